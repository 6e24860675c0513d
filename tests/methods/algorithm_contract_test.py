"""The contract of every registered method, and what methods become."""

import collections
import dataclasses
import functools

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.methods import toy_problems
from tff_pfl import fields
from tff_pfl import tff_api as tff
from tff_pfl.core import (
  example_tensors,
  personalization,
  process_options,
  scoring,
)
from tff_pfl.methods import registry
from tff_pfl.models import augmentation, class_weights

# One with which the first rounds of L2GD are local ones.
_SEED = 12
_SIZES = (7, 23, 12)

# Methods whose global and local weights together are the model.
_PARTITIONED = """
  fed_alt fed_avg fed_bn fed_dar fed_min_max fed_per fed_prox fed_rep
  lg_fed_avg local_only p_fed_me per_fed_avg separate_fed_avg
""".split()
_WITHOUT_GLOBAL_MODEL = """
  fed_alt fed_fac fed_pac fed_per fed_proto fed_rep fed_sa_lora fed_split ifca
  lg_fed_avg local_only
""".split()
# Methods that fine-tune a client's model by themselves.
_ADAPTING = ('fed_babu', 'p_fed_me', 'per_fed_avg')


def _fast_for(*fast):
  """Every method, those but `fast` in the slow suite: all take minutes."""
  return toy_problems.named(registry.ALGORITHMS, fast)


# FedBN of a network without batch normalization is FedAvg.
_every_method = _fast_for(*sorted({*registry.ALGORITHMS} - {'fed_bn'}))
# Templates make personalization and evaluation: a method of each kind.
_every_kind = _fast_for('fed_avg', 'fed_babu', 'fed_dar', 'fed_rep')


# What a round's metrics tell besides those of every method.
_OWN_METRICS = {
  'fed_dar': ['effective_rank'],
  'fed_fac': ['unchanged_elements', 'num_factors', 'num_iterations'],
  'fed_min_max': ['domain_weight', 'domain_risk'],
}


# The same for all methods that have them, with mini-batches, momentum and a
# shuffle, so that the seeds count too.
_TRAINING = {
  'num_epochs': 3,
  'learning_rate': 0.02,
  'num_head_epochs': 4,
  'head_learning_rate': 0.05,
  'num_body_epochs': 2,
  'body_learning_rate': 0.02,
  'batch_size': 5,
}


def _build(name, model=None, **options):
  model = toy_problems.model_for(name, model or toy_problems.classifier())
  return registry.build(name, model, seed=_SEED, **options)


def _training(name):
  known = fields.hints(registry.ALGORITHMS[name].hparams)
  return {key: value for key, value in _TRAINING.items() if key in known}


@functools.cache
def _process(name, fine_tune='method', **changes):
  if fine_tune == 'method':
    return _build(name, **{**_training(name), **changes})
  plain = _process(name, **changes)
  if fine_tune == 'none' and name not in _ADAPTING:
    return plain
  return plain.with_personalization(
    personalization.Personalization(fine_tune=fine_tune)
  )


def _data(name, clients):
  return toy_problems.padded(toy_problems.examples_for(name, clients))


@functools.cache
def _train(name, seed=0):
  return _data(
    name,
    [toy_problems.labeled_examples(n, seed + i) for i, n in enumerate(_SIZES)],
  )


def _test(name):
  return _train(name, 10)


@functools.cache
def _no_data(name):
  return _data(name, [toy_problems.labeled_examples(0, 0)])[0]


def _round(process, indices=(0, 1, 2), data=None, state=None, states=None):
  """A round, by default the first one with all clients."""
  return process.next(
    process.initialize() if state is None else state,
    process.initialize_client_states(list(indices))
    if states is None
    else states,
    [_train(process.name)[i] for i in indices] if data is None else data,
  )


@functools.cache
def _after_two_rounds(name, **changes):
  """Two rounds with clients 0 and 1; client 2 stays new."""
  process = _process(name, **changes)
  first = _round(process, (0, 1))
  second = _round(process, (0, 1), None, first.state, first.client_states)
  states = [*second.client_states, process.initialize_client_state(2)]
  return second.state, states, second.metrics


def _score(process, weights, test_data):
  """Scores given weights, apart from the process."""
  model = process.model
  sums = scoring.score(model, weights, test_data).sums
  return {
    name: sums[name] / sums['examples'] for name in ('loss', *model.metrics)
  }


def _assert_scores(actual, expected):
  assert list(actual) == list(expected)
  for metric, value in expected.items():
    np.testing.assert_allclose(actual[metric], value, rtol=1e-5)


def _keeps_state(process):
  return bool(tf.nest.flatten(process.initialize_client_state(0).local))


@_every_method
def test_no_private_weight_is_in_the_server_state_or_the_metrics(name):
  process = _process(name)
  state, states, metrics = _after_two_rounds(name)
  public = [np.asarray(v) for v in tf.nest.flatten((state, metrics))]
  initial = tf.nest.flatten(process.initialize_client_state(0).local)
  for client_state in states[:2]:
    for value, start in zip(tf.nest.flatten(client_state.local), initial):
      if np.size(value) > 1 and not np.array_equal(value, start):
        assert not any(np.array_equal(value, other) for other in public)
  if name in _PARTITIONED:
    assert process.has_local_weights == _keeps_state(process)
    # Together they are the model, each weight once.
    assert sorted([*state.global_weights, *states[0].local]) == sorted(
      process.model.initial_weights
    )
    # No two weights of this model share a shape, so a local weight would show
    # by its shape wherever it was.
    local_shapes = {np.shape(value) for value in states[0].local.values()}
    assert not local_shapes & {np.shape(value) for value in public}


@_fast_for('fed_min_max')
def test_examples_that_weigh_as_their_classes_train_as_these_do(name):
  factors = np.array([4.0, 1.0, 0.25], np.float32)

  clients = [toy_problems.labeled_examples(n, n) for n in _SIZES]
  model = toy_problems.classifier()
  of_examples, by_class = (
    _build(name, each, **_training(name))
    for each in (
      class_weights.with_sample_weight(model),
      class_weights.with_class_weight(model, dict(enumerate(factors.tolist()))),
    )
  )

  def outcome(process, factors=None):
    data = clients
    if factors is not None:
      data = [toy_problems.changed(c, weight=factors[c.y]) for c in clients]
    data = _data(name, data)
    # Scores are without weights.
    model = process.model
    scores = scoring.score(model, model.initial_weights, data[2]).sums
    return _round(process, data=data), scores

  plain = outcome(_process(name))
  toy_problems.assert_same(outcome(of_examples, np.ones(3, np.float32)), plain)
  weighted = outcome(of_examples, factors)
  toy_problems.assert_close(weighted, outcome(by_class))
  assert toy_problems.differ(weighted[0], plain[0])
  toy_problems.assert_same(weighted[1], plain[1])


# Rounds.


@_every_method
def test_two_rounds_run(name):
  process = _process(name)
  state, states, metrics = _after_two_rounds(name)
  assert state.round_number == 2
  assert state.seed == _SEED
  assert [s.num_rounds for s in states] == [2, 2, 0]
  assert list(metrics) == [
    'loss',
    'accuracy',
    'update_norm',
    'examples',
    'clients',
    'non_finite_clients',
    *_OWN_METRICS.get(name, []),
  ]
  assert all(np.isfinite(value) for value in tf.nest.flatten(metrics))
  assert process.name == name
  assert process.has_global_model == (name not in _WITHOUT_GLOBAL_MODEL)
  assert 0 < metrics['loss'] < 10
  assert 0 <= metrics['accuracy'] <= 1
  assert metrics['examples'] == sum(_SIZES[:2])
  assert metrics['clients'] == 2
  assert metrics['non_finite_clients'] == 0
  initial = process.initialize().global_weights
  assert (metrics['update_norm'] > 0) == bool(initial)
  assert toy_problems.differ(state.global_weights, initial) == bool(initial)


@_every_method
def test_client_state_is_the_work_of_its_own_client(name):
  process = _process(name)
  together = _round(process, (0, 1)).client_states
  with_another = _round(process, (0, 2)).client_states
  if name != 'fed_pac':  # Of which heads are mixed of those of the cohort.
    toy_problems.assert_same(together[0], with_another[0])
  assert [s.client_index for s in together] == [0, 1]
  assert [s.num_rounds for s in together] == [1, 1]
  if _keeps_state(process):
    initial = process.initialize_client_state(0).local
    assert toy_problems.differ(together[0].local, initial)
    assert toy_problems.differ(together[0].local, together[1].local)


@_every_method
def test_order_of_the_cohort_is_irrelevant(name):
  process = _process(name)
  forward = _round(process, (0, 1, 2))
  backward = _round(process, (2, 1, 0))
  toy_problems.assert_close(backward.state, forward.state)
  toy_problems.assert_close(backward.metrics, forward.metrics)
  toy_problems.assert_close(backward.client_states[::-1], forward.client_states)


@_every_method
def test_client_without_examples_or_with_non_finite_ones_is_left_out(name):
  process = _process(name)
  bad = toy_problems.labeled_examples(12, 0)
  bad.x[3, 2] = np.nan
  data = [*_train(name)[:2], *_data(name, [bad]), _no_data(name)]
  without = _round(process, (0, 1))
  states = process.initialize_client_states([2, 3])
  output = _round(process, (0, 1, 2, 3), data)
  assert output.metrics['non_finite_clients'] == 1
  toy_problems.assert_same(
    {**output.metrics, 'non_finite_clients': 0}, dict(without.metrics)
  )
  toy_problems.assert_same(output.state, without.state)
  toy_problems.assert_same(
    output.client_states, [*without.client_states, *states]
  )


@_every_method
def test_cohort_of_which_nobody_is_accepted_changes_only_the_round_number(name):
  process = _process(name)
  state, states, _ = _after_two_rounds(name)
  bad = toy_problems.labeled_examples(4, 0)
  bad.x[:] = np.inf
  output = _round(
    process,
    (0, 1, 2),
    [_no_data(name), *_data(name, [bad]), _no_data(name)],
    state,
    states,
  )
  toy_problems.assert_same(output.state, state._replace(round_number=3))
  toy_problems.assert_same(output.client_states, states)
  assert output.metrics['non_finite_clients'] == 1
  assert output.metrics['clients'] == 0
  assert output.metrics['examples'] == 0
  # Nobody trained: there is no loss, and a zero would look like success.
  assert np.isnan(output.metrics['loss'])
  assert output.metrics['update_norm'] == 0


@_every_method
def test_the_result_is_that_of_the_seed(name):
  process = _process(name)
  output = _round(process)
  toy_problems.assert_same(_round(process), output)
  initial = process.initialize()
  other = _round(process, state=initial._replace(seed=np.int64(_SEED + 1)))
  assert toy_problems.differ(
    (other.state.global_weights, other.client_states),
    (output.state.global_weights, output.client_states),
  )


@_every_method
def test_client_with_one_example_takes_part(name):
  one = _data(name, [toy_problems.labeled_examples(1, 5)])
  output = _round(_process(name), (0,), one)
  assert output.metrics['examples'] == 1
  assert output.client_states[0].num_rounds == 1
  assert np.isfinite(output.metrics['loss'])


@_fast_for()
def test_built_again_it_gives_the_same(name):
  again = _round(_build(name, **_training(name)))
  toy_problems.assert_same(again, _round(_process(name)))


@_fast_for()
def test_by_xla_it_gives_the_same_up_to_rounding(name):
  model = toy_problems.classifier(jit_compile=True)
  assert model.uses_xla
  compiled = _round(_build(name, model, **_training(name)))
  toy_problems.assert_close(compiled, _round(_process(name)), rtol=1e-4)


# Options of training. Those take steps of their own.
@_fast_for('apfl', 'scaffold')
def test_options_of_training_reach_every_method(name):
  """Steps without gradient but with decay, in the second round only."""
  process = _build(
    name,
    max_gradient_norm=1e-12,
    weight_decay=0.1,
    decoupled_weight_decay=0.5,
    learning_rate_schedule=lambda rounds_done: tf.cast(
      rounds_done > 0, tf.float32
    ),
  )

  def trained(state, client_states):
    weights = dict(state.global_weights)
    if name in (*_PARTITIONED, 'fed_pac', 'fed_proto'):
      weights.update(client_states[0].local)
    return tf.nest.map_structure(np.asarray, weights)

  start = process.initialize(), process.initialize_client_states([0, 1, 2])
  first = _round(process)
  second = _round(process, state=first.state, states=first.client_states)
  initial, still, moved = (
    trained(*each) for each in (start, first[:2], second[:2])
  )
  assert initial
  toy_problems.assert_close(still, initial, atol=1e-6)
  for key, before in initial.items():
    share = np.divide(moved[key], before, where=before != 0, out=before * 0 + 1)
    assert np.all(share > 0.5) and np.all(share < 1 + 1e-6)
    np.testing.assert_allclose(moved[key][before == 0], 0, atol=1e-6)
    # A model of IFCA that no client chose stays.
    assert name == 'ifca' or not before.any() or np.any(share < 1 - 1e-4), key


@toy_problems.named(
  # These also look at the losses or features of the examples as they are.
  sorted(
    {*registry.ALGORITHMS} - {'fed_dar', 'fed_em', 'fed_pac', 'ifca', 'knn_per'}
  ),
  fast=('fed_ala',),
)
def test_all_training_sees_augmented_examples(name):
  """Which are zeros here, so that the clients' own do not count."""
  model = augmentation.augmented(
    toy_problems.classifier(), lambda x, unused_seed: tf.zeros_like(x)
  )
  process = _build(name, model, fine_tune='head')

  def results(factor):
    clients = [toy_problems.labeled_examples(n, n) for n in _SIZES]
    data = _data(
      name, [toy_problems.changed(c, x=factor * c.x) for c in clients]
    )
    output = _round(process, data=data)
    new = process.initialize_client_state(7)
    return (
      output.state.global_weights,
      [state.local for state in output.client_states],
      process.personalize(process.initialize(), new, data[0]).weights,
    )

  toy_problems.assert_close(results(-1), results(1))


# Personalization and evaluation.


@_every_kind
def test_evaluation_scores_what_personalize_makes(name):
  process = _process(name)
  state, states, _ = _after_two_rounds(name)
  train, test = _train(name), _test(name)
  together = process.evaluate_clients(state, states, train, test)
  for i, client_state in enumerate(states):
    alone = process.evaluate(state, client_state, train[i], test[i])
    toy_problems.assert_same(alone, together[i])
    personal = process.personalize(state, client_state, train[i])
    _assert_scores(alone['after'], _score(process, personal.weights, test[i]))
    new = process.initialize_client_state(i)
    before = process.personalize(state, new, _no_data(name)).weights
    _assert_scores(alone['before'], _score(process, before, test[i]))
    assert alone['examples'] == _SIZES[i]
  # The server learns means over the clients that have test examples.
  means = process.personalization_eval(
    state, states, train, [*test[:2], _no_data(name)]
  )
  assert (means['clients'], means['examples']) == (2, sum(_SIZES[:2]))
  for when in ('before', 'after'):
    _assert_scores(
      means[when],
      {
        metric: (value + together[1][when][metric]) / 2
        for metric, value in together[0][when].items()
      },
    )


@toy_problems.named(
  [n for n, a in registry.ALGORITHMS.items() if a.needs_domains],
  fast=('fed_dar',),
)
def test_scores_of_domains_are_those_of_their_examples_alone(name):
  process = _process(name)
  state, states, _ = _after_two_rounds(name)
  scores = process.evaluate(state, states[1], _train(name)[1], _test(name)[1])
  by_domain = scores['domains']
  assert by_domain['examples'].tolist() == [8, 8, 7]
  client = _test(name)[1]
  for m in range(toy_problems.DOMAINS.number):
    of_domain = example_tensors.select(client, client.x['domain'] == m)
    alone = _score(process, state.global_weights, of_domain)
    means = {
      metric: values[m] / by_domain['examples'][m]
      for metric, values in by_domain['after'].items()
    }
    _assert_scores(means, alone)


@_every_kind
def test_only_a_new_client_fits_its_local_state(name):
  process = _process(name, fine_tune='none')
  state, states, _ = _after_two_rounds(name)
  train = _train(name)
  known = process.personalize(state, states[0], train[0])
  toy_problems.assert_same(known.client_state, states[0])
  new = process.personalize(state, states[2], train[2])
  assert new.client_state.num_rounds == 0
  if name in _PARTITIONED:
    toy_problems.assert_same(
      known.weights,
      collections.OrderedDict(
        (n, {**state.global_weights, **states[0].local}[n])
        for n in process.model.initial_weights
      ),
    )
    for weight_name, value in state.global_weights.items():
      np.testing.assert_array_equal(new.weights[weight_name], value)
    for weight_name, value in new.client_state.local.items():
      np.testing.assert_array_equal(new.weights[weight_name], value)
      assert toy_problems.differ(value, states[2].local[weight_name])
  scores = process.evaluate(state, states[2], train[2], train[2])
  if not process.has_local_weights:
    toy_problems.assert_same(scores['after'], scores['before'])
  elif name == 'ifca':
    # The first of the models may be the best.
    assert scores['after']['loss'] <= scores['before']['loss']
  else:
    assert scores['after']['loss'] < scores['before']['loss']


@_every_kind
def test_client_that_needs_no_training_data_is_scored_without_it(name):
  process = _process(name, fine_tune='none')
  state, states, _ = _after_two_rounds(name)
  nothing = _no_data(name)
  assert process.needs_training_data(states[0]) == (
    process.has_local_weights and not _keeps_state(process)
  )
  assert process.needs_training_data(states[2]) == process.has_local_weights
  for i, client_state in enumerate(states):
    if not process.needs_training_data(client_state):
      toy_problems.assert_same(
        process.evaluate(state, client_state, nothing, _test(name)[i]),
        process.evaluate(state, client_state, _train(name)[i], _test(name)[i]),
      )
  # A new one without any data gets what there is without it.
  scores = process.evaluate(state, states[2], nothing, _test(name)[2])
  toy_problems.assert_close(scores['after'], scores['before'])
  scores = process.evaluate(state, states[2], nothing, nothing)
  assert scores['examples'] == 0
  assert set(scores['after'].values()) == {0}


@_fast_for('fed_rep')
@pytest.mark.parametrize(
  'scope', ['head', pytest.param('all', marks=pytest.mark.slow)]
)
def test_fine_tuning_comes_on_top_and_is_not_kept(name, scope):
  plain = _process(name, fine_tune='none')
  state, states, _ = _after_two_rounds(name)
  model = plain.model
  head = set(model.weight_names(model.head_layers))
  data = _train(name)[0]
  untuned = plain.personalize(state, states[0], data)
  process = _process(name, fine_tune=scope)
  assert process.needs_training_data(states[0])
  tuned = process.personalize(state, states[0], data)
  for weight_name in set(untuned.weights) - model.statistics:
    assert toy_problems.differ(
      tuned.weights[weight_name], untuned.weights[weight_name]
    ) == (scope == 'all' or weight_name in head)
  toy_problems.assert_same(tuned.client_state, untuned.client_state)


@_fast_for('fed_rep', 'separate_fed_avg')
def test_a_trained_model_is_that_of_a_round_of_the_client_alone(name):
  if name in ('fed_dar', 'fed_fac', 'fed_pac', 'separate_fed_avg'):
    assert not _process(name).has_trained_models
    with pytest.raises(ValueError, match=f'other than trained for {name}'):
      _process(name, fine_tune='trained')
    return
  process = _process(name, fine_tune='trained')
  state, states, _ = _after_two_rounds(name)
  for client_state, examples in zip(states, _train(name)):
    personal = process.personalize(state, client_state, examples)
    toy_problems.assert_same(personal.client_state, client_state)
    # Its mean over one client is the client's.
    output = process.next(state, [client_state], [examples])
    expected = _process(name, fine_tune='none').personalize(
      output.state, output.client_states[0], examples
    )
    if name == 'knn_per':  # Its datastore is in another order.
      expected = _score(process, expected.weights, examples)
      _assert_scores(_score(process, personal.weights, examples), expected)
    else:
      toy_problems.assert_close(personal.weights, expected.weights)
  nothing = _no_data(name)
  toy_problems.assert_same(
    process.personalize(state, states[0], nothing).weights,
    _process(name, fine_tune='none')
    .personalize(state, states[0], nothing)
    .weights,
  )


# What methods become.


def _global_weights(name, **changes):
  return dict(_after_two_rounds(name, **changes)[0].global_weights)


def _of_the_component(name, **changes):
  return {
    weight.replace('component_0/', ''): value
    for weight, value in _global_weights(name, **changes).items()
  }


def _client_states(name, **changes):
  return _after_two_rounds(name, **changes)[1]


def _everything(name, **changes):
  state, states, metrics = _after_two_rounds(name, **changes)
  return [dict(state.global_weights), states, dict(metrics)]


def _models(name, **changes):
  """The clients' models."""
  state, states, _ = _after_two_rounds(name, **changes)
  process = _process(name, **changes)
  return toy_problems.personal_models(process, state, states[:2])


_WITHOUT_INNER_STEPS = {
  'inner_learning_rate': 0.0,
  'num_inner_steps': 2,
  'num_steps': None,
  'momentum': 0.5,
}


@pytest.mark.parametrize(
  ('name', 'changes', 'simpler', 'compared'),
  [
    ('fed_prox', {'proximal_strength': 0.0}, 'fed_avg', _everything),
    (
      'fed_dbe',
      {'personal_bias': False, 'pull_strength': 0.0},
      'fed_avg',
      _everything,
    ),
    ('ifca', {'num_clusters': 1}, 'fed_avg', _of_the_component),
    ('per_fed_avg', _WITHOUT_INNER_STEPS, 'fed_avg', _everything),
    ('fed_fac', {'threshold': -np.inf}, 'fed_avg', _global_weights),
    ('ditto', {}, 'fed_avg', _global_weights),
    ('knn_per', {}, 'fed_avg', _everything),
    ('fed_rod', {'balance_exponent': 0.0}, 'fed_avg', _global_weights),
    ('apfl', {'mixing_weight': 0.0}, 'fed_avg', _models),
    ('fed_mtl', {'coupling_strength': 0.0}, 'local_only', _client_states),
    ('fed_proto', {'pull_strength': 0.0}, 'local_only', _client_states),
    ('l2gd', {'aggregation_probability': 0.0}, 'local_only', _client_states),
    ('fed_ala', {'mixing_learning_rate': 0.0}, 'fed_avg', _global_weights),
    ('fed_alt', {'updates': 'simultaneous'}, 'fed_per', _everything),
    ('fed_split', {'personal_elements': 'head'}, 'fed_per', _everything),
    *(
      pytest.param(*each, marks=pytest.mark.slow)
      for each in (
        ('fed_bn', {}, 'fed_avg', _everything),
        (
          'per_fed_avg',
          {**_WITHOUT_INNER_STEPS, 'variant': 'exact'},
          'fed_avg',
          _everything,
        ),
        ('knn_per', {'neighbor_weight': 0.0}, 'fed_avg', _models),
        ('knn_per', {'num_neighbors': 0}, 'fed_avg', _models),
        ('ditto', {'proximal_strength': 0.0}, 'local_only', _client_states),
        ('apfl', {'mixing_weight': 1.0}, 'local_only', _models),
        ('fed_split', {'personal_elements': ''}, 'fed_avg', _everything),
        (
          'fed_split',
          {'personal_elements': 'dense_1'},
          'lg_fed_avg',
          _everything,
        ),
        (
          'fed_split',
          {'personal_elements': 'dense_1,head'},
          'local_only',
          _everything,
        ),
      )
    ),
  ],
)
def test_method_becomes_a_simpler_one_bit_for_bit(
  name, changes, simpler, compared
):
  toy_problems.assert_same(compared(name, **changes), compared(simpler))


def test_fed_em_with_one_component_is_fed_avg():
  # Not bit for bit on every CPU: a softmax over one number may be 1 - 6e-8.
  _, states, metrics = _everything('fed_em', num_components=1)
  toy_problems.assert_close(
    _of_the_component('fed_em', num_components=1), _global_weights('fed_avg')
  )
  for client_state in states:
    assert client_state.local['mixture/log_weights'] == pytest.approx(
      [0], abs=1e-6
    )
  toy_problems.assert_close(metrics, _everything('fed_avg')[2])


def test_the_first_round_of_scaffold_is_that_of_fed_avg():
  plain = {'num_steps': None, 'momentum': 0.0, 'client_weighting': 'uniform'}
  toy_problems.assert_same(
    *(
      _round(_process(name, **plain)).state.global_weights
      for name in ('scaffold', 'fed_avg')
    )
  )


@pytest.mark.parametrize(
  ('name', 'changes', 'of_fed_rep'),
  [
    (
      'fed_alt',
      {
        'personal_num_epochs': 4,
        'personal_learning_rate': 0.05,
        'num_epochs': 2,
      },
      {},
    ),
    ('fed_pac', {'pull_strength': 0.0, 'combines_heads': False}, {}),
    # Which shuffles with another seed.
    (
      'fed_babu',
      {'num_epochs': 2, 'batch_size': None},
      {'num_head_epochs': 0, 'batch_size': None},
    ),
  ],
)
def test_method_becomes_fed_rep(name, changes, of_fed_rep):
  (weights, *actual), (expected_weights, *expected) = (
    _everything(name, **changes),
    _everything('fed_rep', **of_fed_rep),
  )
  toy_problems.assert_close(weights, expected_weights)
  if name != 'fed_babu':  # Whose clients keep no head.
    toy_problems.assert_same(actual, expected)


# Models.


# FedSA-LoRA leaves all but dense layers and the head as they are.
@toy_problems.named(
  [n for n in registry.ALGORITHMS if n != 'fed_sa_lora'], fast=()
)
@pytest.mark.parametrize(
  ('make', 'statistics'),
  [
    (toy_problems.dropout_and_normalization, 'global'),
    (toy_problems.dropout_and_normalization, 'local'),
    (toy_problems.convolutional_and_recurrent, 'global'),
  ],
)
def test_networks_of_other_kinds_are_trained(name, make, statistics):
  keras.utils.set_random_seed(3)
  # Whose clients cannot keep the statistics of batch normalization.
  if name in ('fed_split', 'ifca', 'knn_per', 'separate_fed_avg'):
    statistics = 'global'
  network = toy_problems.classifier_from(make())
  process = _build(name, network, statistics=statistics)
  data = _data(name, [toy_problems.labeled_examples(n, n) for n in (9, 20)])
  output = _round(process, (0, 1), data)
  assert output.metrics['clients'] == 2
  assert output.metrics['non_finite_clients'] == 0
  # A pure function of its arguments, random layers included.
  toy_problems.assert_same(_round(process, (0, 1), data), output)
  for client_state, local in zip(output.client_states, data):
    weights = process.personalize(output.state, client_state, local).weights
    assert list(weights) == list(process.model.initial_weights)
    for weight_name, initial in process.model.initial_weights.items():
      assert toy_problems.differ(weights[weight_name], initial), weight_name
  scores = process.evaluate_clients(
    output.state, output.client_states, data, data
  )
  assert np.isfinite([score['after']['loss'] for score in scores]).all()


# Arguments.


@_every_method
def test_hyperparameters_are_frozen_described_and_named_apart(name):
  algorithm = registry.ALGORITHMS[name]
  hparams = algorithm.hparams()
  with pytest.raises(dataclasses.FrozenInstanceError):
    hparams.batch_size = 1
  assert algorithm.summary
  options = fields.flat_names(process_options.ProcessOptions)
  for field in vars(hparams):
    assert field not in options
    # A help text, from which the programs' flags are made.
    assert fields.help_text(algorithm.hparams, field)
  with pytest.raises(TypeError, match=f'hparams.*{type(hparams).__name__}'):
    registry.build(
      name, toy_problems.classifier(), personalization.Personalization()
    )


def test_hyperparameters_may_be_words():
  def described(*hparams, **options):
    process = registry.build(
      'fed_avg', toy_problems.classifier(), *hparams, **options
    )
    return process.description['hparams'], process.seed

  hparams = registry.get_algorithm('fed_avg').hparams(
    num_epochs=2, batch_size=3
  )
  actual = described(hparams, batch_size=4, seed=7)
  expected = {'num_epochs': 2, 'batch_size': 4}
  assert expected.items() <= actual[0].items()
  assert actual[1] == 7
  assert described(num_epochs=2, batch_size=4, seed=7) == actual
  with pytest.raises(TypeError, match='no argument `num_epoch`.*num_epochs'):
    described(num_epoch=2)


@pytest.mark.parametrize(
  ('name', 'error', 'message'),
  [
    ('fed_nothing', ValueError, 'fed_avg, .*, fed_rep, .*, local_only'),
    ('fed_avg', TypeError, '`model`.*from_keras'),
  ],
)
def test_unknown_method_and_what_is_no_split_model_are_refused(
  name, error, message
):
  model = toy_problems.classifier() if name != 'fed_avg' else keras.Sequential()
  with pytest.raises(error, match=message):
    registry.build(name, model)


@toy_problems.named(sorted({*registry.ALGORITHMS} - {'fed_pac'}), fast=())
def test_nothing_is_summed_in_the_clear_by_a_secure_round(name):
  process = _build(name, aggregator=tff.learning.secure_aggregator())
  tff.test.assert_not_contains_unsecure_aggregation(process.next)
