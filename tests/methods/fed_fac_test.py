import dataclasses
import functools
import math

import numpy as np
import pytest

from tests.methods import toy_problems
from tff_pfl.methods import fed_fac, registry
from tff_pfl.models import zoo

_RNG = np.random.default_rng(5)
_BODY = _RNG.normal(size=[4, 6]).astype(np.float32)
_HEAD = _RNG.normal(size=[6, 3]).astype(np.float32)
_SIZES = (6, 20, 11)
_CLIENTS = [toy_problems.regression_examples(n, 4, 3, seed=n) for n in _SIZES]
_COHORTS = ((0, 1), (1, 2), (0, 2), (0, 1), (0, 1, 2))
_EXPLAINED = 0.75
_NUM_PERSONAL = 3
_STEP = {
  'num_steps': 2,
  'learning_rate': 0.1,
  'momentum': 0.0,
  'batch_size': None,
}
_TRAINING = {'num_epochs': 2, 'learning_rate': 0.1, 'batch_size': 5}


# The rounds of Algorithm 2, by an implementation of its own.


def _is_shared(columns, split='factor_analysis'):
  """Factor analysis of the stacked columns, with numpy alone."""
  correlation = np.corrcoef(columns, rowvar=False)
  values, vectors = np.linalg.eigh(correlation)
  shares = np.cumsum(values[::-1]) / values.sum()
  number = 1 + int(np.argmax(shares >= _EXPLAINED))
  if split == 'eigenvectors':
    assert number > 1
    sums = np.sum(vectors[:, -number:][:, 1:] ** 2, axis=1)
    return sums >= np.quantile(sums, 0.5), number
  communalities = np.ones(len(correlation))
  for _ in range(50):
    reduced = correlation.copy()
    np.fill_diagonal(reduced, communalities)
    values, vectors = np.linalg.eigh(reduced)
    loadings = vectors[:, -number:] * np.sqrt(np.maximum(values[-number:], 0))
    new = np.minimum(np.sum(loadings**2, axis=1), 1)
    change = np.abs(new - communalities).max()
    communalities = new
    if change <= 1e-4:
      break
  return communalities >= np.quantile(communalities, 0.5), number


class _Reference:
  def __init__(self, analyses_weights):
    self.analyses_weights = analyses_weights
    self.body, self.head = _BODY.astype(float), _HEAD.astype(float)
    self.own = [None] * len(_CLIENTS)
    self.is_shared = np.zeros(6, bool)

  def model_of(self, client):
    if self.own[client] is None:
      return self.body
    return np.where(self.is_shared, self.body, self.own[client])

  def round(self, cohort):
    starts = [self.model_of(k) for k in cohort]
    ends = [
      toy_problems.descended_together(start, self.head, _CLIENTS[k], 2, 0.1)
      for k, start in zip(cohort, starts)
    ]
    columns = [
      end if self.analyses_weights else end - start
      for (end, _), start in zip(ends, starts)
    ]
    last_partition = self.is_shared
    self.is_shared, num_factors = _is_shared(np.concatenate(columns))
    assert self.is_shared.sum() == 6 - _NUM_PERSONAL
    sizes = [_SIZES[k] for k in cohort]
    bodies, heads = zip(*ends)
    # Who trained keeps all of it; the server averages what is shared now.
    self.body = np.where(
      self.is_shared, np.average(bodies, axis=0, weights=sizes), self.body
    )
    self.head = np.average(heads, axis=0, weights=sizes)
    for k, body in zip(cohort, bodies):
      self.own[k] = body
    return {
      'global_weights': {'body': self.body, 'head': self.head},
      'algorithm': {'is_shared': {'body': self.is_shared}},
      'models': [{'body': self.model_of(k)} for k in range(len(_CLIENTS))],
      'metrics': {
        'num_factors': {'body': num_factors},
        'unchanged_elements': {
          'body': np.mean(self.is_shared == last_partition)
        },
      },
    }


@functools.cache
def _linear(analysed, **hparams):
  return registry.build(
    'fed_fac',
    toy_problems.linear_network(_BODY, _HEAD),
    layers='body',
    analysed=analysed,
    explained_variance=_EXPLAINED,
    **_STEP,
    **hparams,
  )


def _static_linear():
  return _linear(
    'weights', mode='static', split='eigenvectors', new_client_training='all'
  )


@pytest.mark.parametrize('analysed', ['updates', 'weights'])
def test_rounds_are_those_of_the_paper(analysed):
  reference = _Reference(analysed == 'weights')
  rounds = [reference.round(cohort) for cohort in _COHORTS]
  process = _linear(analysed)
  toy_problems.check_rounds(process, _CLIENTS, rounds, _COHORTS)
  if analysed == 'updates':
    # Elements have changed sides, and some have changed back.
    partitions = [each['algorithm']['is_shared']['body'] for each in rounds]
    changes = np.diff(np.array(partitions, int), axis=0)
    assert np.any(np.abs(changes).sum(axis=0) >= 2)


def test_the_static_partition_is_that_of_the_first_rounds_weights():
  process = _static_linear()
  body, head = _BODY.astype(float), _HEAD.astype(float)
  trained = [
    toy_problems.descended_together(body, head, client, 2, 0.1)[0]
    for client in _CLIENTS[:2]
  ]
  expected, _ = _is_shared(np.concatenate(trained), 'eigenvectors')
  rounds = [{'algorithm': {'is_shared': {'body': expected}}}] * len(_COHORTS)
  toy_problems.check_rounds(process, _CLIENTS, rounds, _COHORTS)


# What it becomes. Mini-batches, momentum and a shuffle, so that the seeds count
# too.


_DATA = [toy_problems.labeled_examples(n, seed=n) for n in (13, 24)]


def _model():
  spec = toy_problems.classifier().element_spec
  model = zoo.mlp(spec, toy_problems.NUM_CLASSES, seed=1, widths=(6, 8))
  return dataclasses.replace(model, jit_compile=False)


@functools.cache
def _process(name, **chosen):
  return registry.build(name, _model(), **_TRAINING, **chosen, seed=3)


def _static():
  return _process(
    'fed_fac', mode='static', layers='dense_1,dense_2', threshold=0.4
  )


@pytest.mark.slow
def test_with_a_whole_layer_personal_it_is_a_method_of_layers():
  (state, states, _), (expected, of_clients, _) = (
    toy_problems.train(process, _DATA, 3)
    for process in (
      _process('fed_fac', layers='head', threshold=math.inf),
      _process('fed_per'),
    )
  )
  # The server sums in another order than where there is less to sum.
  weights = {n: state.global_weights[n] for n in expected.global_weights}
  toy_problems.assert_close(weights, dict(expected.global_weights))
  for client, other in zip(states, of_clients):
    toy_problems.assert_close(client.local['values'], other.local)


def test_the_static_mode_is_fed_split_with_its_partition_bit_for_bit():
  state, states, _ = toy_problems.train(_static(), _DATA, 3)
  partition = state.algorithm['is_shared']
  fed_split = _process(
    'fed_split',
    personal_elements=','.join(
      f'{layer}:{j}'
      for layer, is_shared in partition.items()
      for j in np.flatnonzero(~is_shared)
    ),
  )
  expected, of_clients, _ = toy_problems.train(fed_split, _DATA, 3)
  for name, value in expected.global_weights.items():
    layer = name.split('/')[0]
    actual = np.asarray(state.global_weights[name])
    if layer in partition:
      actual = actual[..., partition[layer]]
    np.testing.assert_array_equal(actual, value)
  for client, other in zip(states, of_clients):
    for name, value in other.local.items():
      is_personal = ~partition[name.split('/')[0]]
      actual = np.asarray(client.local['values'][name])[..., is_personal]
      np.testing.assert_array_equal(actual, value)


def test_of_kernels_alone_other_weights_stay_with_the_clients():
  process = _process(
    'fed_fac', layers='dense_2', threshold=0.4, divided='kernels'
  )
  state, states, _ = toy_problems.train(process, _DATA, 2)
  initial = process.model.initial_weights
  kernel, bias = 'dense_2/kernel', 'dense_2/bias'
  is_shared = state.algorithm['is_shared']['dense_2']
  np.testing.assert_array_equal(state.global_weights[bias], initial[bias])
  for client, examples in zip(states, toy_problems.padded(_DATA)):
    own = client.local['values']
    assert np.any(own[bias] != initial[bias])
    weights = process.personalize(state, client, examples).weights
    np.testing.assert_array_equal(weights[bias], own[bias])
    np.testing.assert_array_equal(
      weights[kernel],
      np.where(is_shared, state.global_weights[kernel], own[kernel]),
    )


def test_a_round_of_nobody_finds_no_static_partition():
  process = _static()
  nobody = toy_problems.padded([toy_problems.labeled_examples(0, 0)])
  states = process.initialize_client_states([0])
  state = process.next(process.initialize(), states, nobody).state
  assert not state.algorithm['is_found']
  state, _, _ = toy_problems.train(process, _DATA[:1])
  assert state.algorithm['is_found']


def test_before_a_static_partition_newcomers_have_the_global_model():
  process = _static()
  state = process.initialize()
  personal = process.personalize(
    state, process.initialize_client_state(0), toy_problems.padded(_DATA)[0]
  )
  toy_problems.assert_same(personal.weights, state.global_weights)
  # What it kept is no obstacle to its first round.
  output, fresh = (
    process.next(state, [client], toy_problems.padded(_DATA[:1]))
    for client in (personal.client_state, process.initialize_client_state(0))
  )
  toy_problems.assert_same(output, fresh)


# Random splits.


def test_a_random_split_has_as_many_personal_elements():
  process = _process('fed_fac', split='random', threshold=0.4)
  partitions = []
  for state, _, metrics in toy_problems.rounds(process, _DATA, [(0, 1)] * 3):
    partitions.append(state.algorithm['is_shared']['dense_2'])
    assert partitions[-1].sum() == 5
    assert metrics['num_factors']['dense_2'] == 0
  assert np.all(np.any(np.diff(np.array(partitions, int), axis=0), axis=1))


# New clients.


def test_a_new_client_fits_its_personal_elements_only():
  process = _linear('updates')
  state, _, _ = toy_problems.train(process, _CLIENTS[:2], 2)
  kernels = toy_problems.kernels(state.global_weights)
  is_personal = ~np.asarray(state.algorithm['is_shared']['body'])
  client = _CLIENTS[2]
  personal = toy_problems.new_client(process, state, client)
  body, _ = toy_problems.descended_together(
    kernels['body'], kernels['head'], client, 2, 0.1, 0.0, (is_personal, False)
  )
  actual = toy_problems.kernels(personal.weights)
  shared = kernels['body'][:, ~is_personal]
  np.testing.assert_array_equal(actual['body'][:, ~is_personal], shared)
  expected = {'body': body, 'head': kernels['head']}
  toy_problems.assert_part(personal.weights, expected)


def test_a_new_client_may_train_all_weights_and_take_the_shared_ones_back():
  process = _static_linear()
  state, _, _ = toy_problems.train(process, _CLIENTS[:2], 2)
  kernels = toy_problems.kernels(state.global_weights)
  is_shared = np.asarray(state.algorithm['is_shared']['body'])
  client = _CLIENTS[2]
  body, head = toy_problems.descended_together(
    kernels['body'], kernels['head'], client, 2, 0.1
  )
  assert np.abs(head - kernels['head']).max() > 1e-3
  expected = {
    'body': np.where(is_shared, kernels['body'], body),
    'head': kernels['head'],
  }
  personal = toy_problems.new_client(process, state, client)
  toy_problems.assert_part(personal.weights, expected)


# Degenerate updates.


def test_without_any_update_the_first_elements_are_personal():
  clients = [
    toy_problems.changed(client, x=np.zeros_like(client.x))
    for client in _CLIENTS
  ]
  state, _, metrics = toy_problems.train(_linear('updates'), clients)
  np.testing.assert_array_equal(
    state.algorithm['is_shared']['body'], [False] * 3 + [True] * 3
  )
  assert metrics['num_factors']['body'] == 1
  np.testing.assert_array_equal(
    toy_problems.kernels(state.global_weights)['body'], _BODY
  )


# Other layers.


@pytest.mark.slow
def test_convolutions_and_recurrent_layers_are_divided():
  model = toy_problems.classifier_from(
    toy_problems.convolutional_and_recurrent()
  )
  process = registry.build(
    'fed_fac', model, layers='conv,lstm,head', **_TRAINING, seed=3
  )
  state, states, _ = toy_problems.train(process, _DATA, 2)
  personal = [
    process.personalize(state, client, examples).weights
    for client, examples in zip(states, toy_problems.padded(_DATA))
  ]
  for layer, is_shared in state.algorithm['is_shared'].items():
    units = model.units[layer]
    assert is_shared.sum() == units.number - math.ceil((units.number - 1) / 2)
    for name, gates in units.gates.items():
      shared = np.tile(is_shared, gates)
      for client in personal:
        np.testing.assert_array_equal(
          client[name][..., shared],
          np.asarray(state.global_weights[name])[..., shared],
        )
      values = [client.local['values'][name] for client in states]
      # Trained on other data.
      assert np.all(
        np.any(values[0] != values[1], axis=tuple(range(values[0].ndim - 1)))[
          ~shared
        ]
      )


# Bytes.


def test_an_upload_is_an_update_and_the_sums_of_the_divided_layers():
  update = _BODY.size + _HEAD.size
  sums = 6 * (6 + 1) // 2 + 6 + 1
  process = _linear('updates')
  assert process.bytes_per_round.up == 4 * (update + sums)
  # Nothing is to be analysed where all or no elements are personal.
  for threshold in (math.inf, -math.inf):
    hparams = fed_fac.FedFacHParams(layers='body', threshold=threshold)
    partition = fed_fac.FoundPartition(process.model, hparams)
    assert not partition.report(partition.initial_algorithm, {})


# Hyperparameters.


@pytest.mark.parametrize('number', [1, 2, 7, 200])
@pytest.mark.parametrize('threshold', [0, 0.25, 0.5, 0.95, 1])
def test_the_threshold_is_a_quantile(number, threshold):
  values = np.arange(number, dtype=float)
  hparams = fed_fac.FedFacHParams(threshold=threshold)
  assert hparams.num_personal(number) == np.sum(
    # Of what is one number up to rounding, not the one below the other.
    values < np.quantile(values, threshold) - 1e-9
  )
