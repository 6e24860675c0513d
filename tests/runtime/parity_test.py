"""Methods of every kind give the same on every runtime."""

import contextlib
import functools
import itertools
from typing import NamedTuple

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.methods import toy_problems
from tests.runtime import chunks, parity
from tff_pfl import runtime
from tff_pfl.methods import registry
from tff_pfl.models import augmentation

_SEED = 11
_NUM_CLIENTS = 7
_NEW = 6  # The client that is in no round.
# Compiling takes most of the time, so only one method is compiled by XLA.
_WITH_XLA = 'fed_rep'
_RUNTIMES = ('in_process', 'chunks')
_VARIANTS = {
  # Differences over a step much smaller are of rounding.
  'per_fed_avg hessian_free': {
    'variant': 'hessian_free',
    'hessian_free_step': 0.1,
  },
}


def _slow_but(fast, *axes):
  """All cases of some axes, in the slow suite but for some."""
  return [
    pytest.param(*case, marks=() if case in fast else pytest.mark.slow)
    for case in itertools.product(*axes)
  ]


class _Data(NamedTuple):
  """Clients' data for a method."""

  train: list
  test: list
  nothing: tf.data.Dataset
  not_finite: tf.data.Dataset

  @property
  def rounds(self):
    """The data of each round's clients, by the clients' numbers.

    New clients and such that took part before, some without examples, and one
    whose result is left out.
    """
    a, b, c, d = self.train
    return (
      {0: a, 1: b, 4: self.nothing},
      {1: b, 2: c, 5: self.not_finite},
      {3: d, 0: a, 4: c, 1: self.nothing},
    )


@functools.cache
def _data(name):
  def batched(clients):
    return toy_problems.padded(toy_problems.examples_for(name, clients))

  def client_data(seed):
    """Clients of different sizes, and of two sizes of padded examples."""
    return batched(
      toy_problems.labeled_examples(n, 10 * seed + client)
      for client, n in enumerate((7, 23, 5, 30))
    )

  not_finite = toy_problems.labeled_examples(8, 5)
  not_finite.x[3, 2] = np.nan
  return _Data(
    client_data(0),
    client_data(1),
    *batched([toy_problems.labeled_examples(0, 0), not_finite]),
  )


@pytest.fixture(name='on', scope='module')
def _on():
  """`on(name, run, *args)`: `run(rt, *args)` on a runtime, computed once."""
  create = runtime.create_runtime
  make = {
    'native': lambda: create('native'),
    'in_process': lambda: create('in_process', max_concurrent_clients=2),
    'batched': lambda: create('in_process', batched_clients=True),
    'chunks': lambda: chunks.ChunksRuntime(2),
    # As after the loss of each chunk's actor, between all stages.
    'homeless': lambda: chunks.ChunksRuntime(2, num_actors=2, homeless=True),
  }
  with contextlib.ExitStack() as stack:

    @functools.cache
    def runtime_of(key):
      return stack.enter_context(contextlib.closing(make[key]()))

    @functools.cache
    def on(key, run, *args):
      return run(runtime_of(key), *args)

    yield on


@functools.cache
def _process(name):
  changes = _VARIANTS.get(name, {})
  name = name.split()[0]
  return registry.build(
    name,
    toy_problems.model_for(
      name, toy_problems.classifier(jit_compile=name == _WITH_XLA)
    ),
    toy_problems.hparams_for(name, **changes),
    seed=_SEED,
  )


def _train(rt, process):
  """Returns all rounds' results and the states of all clients after them."""
  state = rt.run(process.initialize)
  client_states = rt.run(
    process.initialize_client_states, list(range(_NUM_CLIENTS))
  )
  outputs = []
  for cohort in _data(process.name).rounds:
    output = rt.run(
      process.next,
      state,
      [client_states[client] for client in cohort],
      list(cohort.values()),
    )
    state = output.state
    for client, client_state in zip(cohort, output.client_states):
      client_states[client] = client_state
    outputs.append(output)
  return outputs, client_states


def _train_and_evaluate(rt, name, build):
  """Returns the results of training, and the scores of clients of all kinds."""
  process = build(name)
  outputs, client_states = _train(rt, process)
  train, test, nothing, _ = _data(process.name)
  return {
    'three rounds': outputs,
    'client states': client_states,
    'evaluate_clients': rt.run(
      process.evaluate_clients,
      outputs[-1].state,
      [*client_states[:4], client_states[_NEW], client_states[1]],
      [*train, nothing, train[1]],
      [*test, test[0], nothing],
    ),
  }


def _train_and_score(rt, name):
  """Also returns what is done for a client alone."""
  process = _process(name)
  results = _train_and_evaluate(rt, name, _process)
  state = results['three rounds'][-1].state
  known, new = (results['client states'][i] for i in (1, _NEW))
  train, test, _, _ = _data(process.name)
  return {
    **results,
    'initialize_client_state': rt.run(process.initialize_client_state, 2**40),
    'personalize known': rt.run(process.personalize, state, known, train[1]),
    'personalize new': rt.run(process.personalize, state, new, train[3]),
    'evaluate new': rt.run(process.evaluate, state, new, train[3], test[3]),
  }


# Two exchanges, and state of clients and of the server.
@pytest.mark.parametrize(
  ('rt', 'name'),
  _slow_but(
    {('in_process', 'fed_fac'), ('chunks', 'fed_fac')},
    _RUNTIMES,
    [*registry.ALGORITHMS, *_VARIANTS],
  ),
)
def test_rounds_and_scores_are_those_of_the_native_runtime(on, rt, name):
  parity.assert_close(
    on(rt, _train_and_score, name), on('native', _train_and_score, name)
  )


# Two exchanges; domains.
@pytest.mark.parametrize(
  'name', ['fed_fac', pytest.param('fed_dar', marks=pytest.mark.slow)]
)
def test_chunks_of_lost_actors_change_no_bit(on, name):
  parity.assert_same(
    on('homeless', _train_and_score, name), on('chunks', _train_and_score, name)
  )


def test_rounds_are_of_the_kinds_that_they_are_meant_to_be(on):
  outputs = on('native', _train_and_score, 'fed_fac')['three rounds']
  assert [o.metrics['clients'] for o in outputs] == [2, 2, 3]
  assert [o.metrics['non_finite_clients'] for o in outputs] == [0, 1, 0]
  assert toy_problems.differ(
    outputs[0].state.global_weights, outputs[2].state.global_weights
  )


@pytest.mark.parametrize(
  ('rt', 'name'),
  itertools.product((*_RUNTIMES, 'batched'), ('ditto', 'fed_dar', 'fed_rep')),
)
@pytest.mark.slow
def test_options_of_training_give_the_same_on_every_runtime(on, rt, name):
  actual, expected = (
    on(each, _train_and_evaluate, name, _process_with_options)
    for each in (rt, 'native')
  )
  parity.assert_close(actual, expected)


@functools.cache
def _process_with_options(name):
  def noisy(x, seed):
    return x + tf.random.stateless_uniform(tf.shape(x), seed, -0.1, 0.1)

  keras.utils.set_random_seed(3)
  model = toy_problems.classifier_from(toy_problems.dropout_and_normalization())
  return registry.build(
    name,
    toy_problems.model_for(name, augmentation.augmented(model, noisy)),
    seed=_SEED,
    statistics='local',
    fine_tune='trained' if name == 'ditto' else 'all',
    weight_decay=0.01,
    decoupled_weight_decay=0.02,
    max_gradient_norm=0.5,
    learning_rate_schedule='warmup:2+cosine:4',
    server_learning_rate_schedule='step:1:0.5',
  )


@pytest.mark.slow
@pytest.mark.parametrize(
  'make',
  [
    toy_problems.dropout_and_normalization,
    toy_problems.convolutional_and_recurrent,
  ],
)
@pytest.mark.parametrize('rt', _RUNTIMES)
@pytest.mark.parametrize('name', registry.ALGORITHMS)
def test_layers_of_many_kinds_are_trained_as_on_the_native_runtime(
  on, rt, make, name
):
  if (name, make) == ('fed_pac', toy_problems.convolutional_and_recurrent):
    # Its first exchange has no gradient of the body, so that the client with
    # NaN is accepted or not.
    pytest.skip('a ReLU of NaN is 0 on one runtime and NaN on the other')
  if name == 'fed_sa_lora' and make is toy_problems.convolutional_and_recurrent:
    pytest.skip('It has no dense layers below its head.')
  parity.assert_close(
    on(rt, _train_network, name, make),
    on('native', _train_network, name, make),
    # Heads that are solved for have larger rounding errors.
    atol=5e-6 if name == 'fed_dar' else 1e-6,
  )


@functools.cache
def _process_of_network(name, make):
  keras.utils.set_random_seed(3)
  model = toy_problems.model_for(name, toy_problems.classifier_from(make()))
  return registry.build(name, model, toy_problems.hparams_for(name), seed=_SEED)


def _train_network(rt, name, make):
  return _train(rt, _process_of_network(name, make))
