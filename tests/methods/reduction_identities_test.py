"""Where one method becomes another."""

import functools

import keras
import numpy as np
import pytest

from tests.methods import toy_problems
from tff_pfl.core import phases
from tff_pfl.methods import registry

_SEED = 4
# Mini-batches, momentum and a shuffle, so that the seeds count too.
_TRAINING = {'num_epochs': 3, 'learning_rate': 0.1, 'batch_size': 5}
_WITHOUT_INNER_STEPS = {
  'inner_learning_rate': 0.0,
  'num_inner_steps': 2,
  'num_steps': None,
  'momentum': 0.5,
}
_CLIENTS = [toy_problems.labeled_examples(n, seed=n) for n in (13, 24)]


@functools.cache
def _process(name, **changes):
  return registry.build(
    name, toy_problems.classifier(), **{**_TRAINING, **changes}, seed=_SEED
  )


@functools.cache
def _trained(name, **changes):
  """The states of server and clients, and the metrics, after two rounds."""
  return toy_problems.train(_process(name, **changes), _CLIENTS, 2)


def _global_weights(name, **changes):
  return dict(_trained(name, **changes)[0].global_weights)


def _of_the_component(name, **changes):
  return {
    weight.replace('component_0/', ''): value
    for weight, value in _global_weights(name, **changes).items()
  }


def _client_states(name, **changes):
  return _trained(name, **changes)[1]


def _everything(name, **changes):
  return [
    _global_weights(name, **changes),
    _client_states(name, **changes),
    dict(_trained(name, **changes)[2]),
  ]


def _models(name, **changes):
  """The clients' models."""
  state, states, _ = _trained(name, **changes)
  process = _process(name, **changes)
  return toy_problems.personal_models(process, state, states)


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
    ('fed_split', {'personal_elements': ''}, 'fed_avg', _everything),
    ('fed_bn', {}, 'fed_avg', _everything),
    ('ifca', {'num_clusters': 1}, 'fed_avg', _of_the_component),
    *(
      (
        'per_fed_avg',
        {**_WITHOUT_INNER_STEPS, **variant},
        'fed_avg',
        _everything,
      )
      for variant in ({}, {'variant': 'exact'})
    ),
    ('fed_fac', {'threshold': -np.inf}, 'fed_avg', _global_weights),
    ('ditto', {}, 'fed_avg', _global_weights),
    ('knn_per', {}, 'fed_avg', _everything),
    ('knn_per', {'num_neighbors': 0}, 'fed_avg', _models),
    ('knn_per', {'neighbor_weight': 0.0}, 'fed_avg', _models),
    ('fed_rod', {'balance_exponent': 0.0}, 'fed_avg', _global_weights),
    ('apfl', {'mixing_weight': 0.0}, 'fed_avg', _models),
    ('apfl', {'mixing_weight': 1.0}, 'local_only', _models),
    ('ditto', {'proximal_strength': 0.0}, 'local_only', _client_states),
    ('fed_mtl', {'coupling_strength': 0.0}, 'local_only', _client_states),
    ('fed_proto', {'pull_strength': 0.0}, 'local_only', _client_states),
    ('l2gd', {'aggregation_probability': 0.0}, 'local_only', _client_states),
    (
      'fed_split',
      {'personal_elements': 'dense_1,head'},
      'local_only',
      _everything,
    ),
    ('fed_ala', {'mixing_learning_rate': 0.0}, 'fed_avg', _global_weights),
    ('fed_alt', {'updates': 'simultaneous'}, 'fed_per', _everything),
    ('fed_split', {'personal_elements': 'head'}, 'fed_per', _everything),
    ('fed_split', {'personal_elements': 'dense_1'}, 'lg_fed_avg', _everything),
  ],
)
def test_method_becomes_a_simpler_one_bit_for_bit(
  name, changes, simpler, compared
):
  toy_problems.assert_same(compared(name, **changes), compared(simpler))


def test_fed_em_with_one_component_is_fed_avg():
  # Not bit for bit on every CPU: a softmax over one number may be 1 - 6e-8.
  toy_problems.assert_close(
    _of_the_component('fed_em', num_components=1), _global_weights('fed_avg')
  )
  _, states, metrics = _trained('fed_em', num_components=1)
  for client_state in states:
    assert client_state.local['mixture/log_weights'] == pytest.approx([0])
  toy_problems.assert_close(dict(metrics), dict(_trained('fed_avg')[2]))


def test_the_first_round_of_scaffold_is_that_of_fed_avg():
  plain = {'num_steps': None, 'momentum': 0.0, 'client_weighting': 'uniform'}
  toy_problems.assert_same(
    *(
      toy_problems.train(_process(name, **plain), _CLIENTS)[0].global_weights
      for name in ('scaffold', 'fed_avg')
    )
  )


_ALTERNATING = {
  'num_head_epochs': 4,
  'head_learning_rate': 0.2,
  'num_body_epochs': 2,
  'body_learning_rate': 0.1,
  'batch_size': 5,
}


@pytest.mark.parametrize(
  ('name', 'hparams', 'of_fed_rep'),
  [
    (
      'fed_alt',
      {
        'personal_num_epochs': 4,
        'personal_learning_rate': 0.2,
        'num_epochs': 2,
        'learning_rate': 0.1,
        'batch_size': 5,
      },
      {},
    ),
    (
      'fed_pac',
      {'pull_strength': 0.0, 'combines_heads': False, **_ALTERNATING},
      {},
    ),
    # Which shuffles with another seed.
    (
      'fed_babu',
      {'num_epochs': 2, 'learning_rate': 0.1, 'batch_size': None},
      {'num_head_epochs': 0, 'batch_size': None},
    ),
  ],
)
def test_method_becomes_fed_rep(name, hparams, of_fed_rep):
  (state, *found), (expected_state, *expected) = (
    toy_problems.train(
      registry.build(each, toy_problems.classifier(), **chosen, seed=_SEED),
      _CLIENTS,
      2,
    )
    for each, chosen in (
      (name, hparams),
      ('fed_rep', {**_ALTERNATING, **of_fed_rep}),
    )
  )
  toy_problems.assert_close(state.global_weights, expected_state.global_weights)
  if name != 'fed_babu':  # Whose clients keep no head.
    toy_problems.assert_same(found, expected)


def test_moving_statistics_are_averaged_whatever_the_server_optimizer():
  keras.utils.set_random_seed(0)
  network = keras.Sequential(
    [
      keras.layers.Input([5]),
      keras.layers.Dense(4, name='dense'),
      keras.layers.BatchNormalization(name='norm', momentum=0.5),
      keras.layers.Dense(toy_problems.NUM_CLASSES, name='head'),
    ]
  )
  model = toy_problems.classifier_from(network)

  def global_weights(indices, rate=1.0):
    process = registry.build(
      *('fed_avg', model),
      **_TRAINING,
      server_optimizer=phases.build_optimizer('sgd', rate),
    )
    clients = [_CLIENTS[i] for i in indices]
    state, _, _ = toy_problems.train(process, clients, indices=indices)
    return state.global_weights

  alone = [global_weights([i]) for i in (0, 1)]
  actual = global_weights([0, 1], 0.5)
  assert sorted(model.statistics) == [
    'norm/moving_mean',
    'norm/moving_variance',
  ]
  for name, initial in model.initial_weights.items():
    mean = np.average(
      [weights[name] for weights in alone], axis=0, weights=[13, 24]
    )
    expected = mean if name in model.statistics else (initial + mean) / 2
    np.testing.assert_allclose(
      actual[name], expected, rtol=1e-5, atol=1e-6, err_msg=name
    )
    assert toy_problems.differ(actual[name], initial)
