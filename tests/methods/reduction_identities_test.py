"""Where one method becomes another."""

import functools

import keras
import numpy as np
import pytest

from tests.methods import toy_problems
from tff_pfl.core import phases
from tff_pfl.methods import fed_avg, registry

pytestmark = pytest.mark.usefixtures('runtime')

_SEED = 4
# Mini-batches, momentum and a shuffle, so that the seeds count too.
_TRAINING = {'num_epochs': 3, 'learning_rate': 0.1, 'batch_size': 5}
_CLIENTS = [toy_problems.labeled_examples(n, seed=n) for n in (13, 24)]


@functools.cache
def _process(name, **changes):
  return registry.build(
    name,
    toy_problems.classifier(),
    toy_problems.hparams_for(name, **_TRAINING, **changes),
    seed=_SEED,
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
        {
          'inner_learning_rate': 0.0,
          'num_inner_steps': 2,
          'variant': variant,
          'num_steps': None,
          'momentum': 0.5,
        },
        'fed_avg',
        _everything,
      )
      for variant in ('first_order', 'exact')
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
  weights = []
  for name in ('scaffold', 'fed_avg'):
    process = registry.build(
      name,
      toy_problems.classifier(),
      toy_problems.hparams_for(name, **_TRAINING, num_steps=None, momentum=0.0),
      seed=_SEED,
      client_weighting='uniform',
    )
    weights.append(toy_problems.train(process, _CLIENTS)[0].global_weights)
  toy_problems.assert_same(*weights)


_ALTERNATING = dict(
  num_head_epochs=4,
  head_learning_rate=0.2,
  num_body_epochs=2,
  body_learning_rate=0.1,
  batch_size=5,
)


@pytest.mark.parametrize(
  ('name', 'hparams', 'of_fed_rep'),
  [
    (
      'fed_alt',
      dict(
        personal_num_epochs=4,
        personal_learning_rate=0.2,
        num_epochs=2,
        learning_rate=0.1,
        batch_size=5,
      ),
      _ALTERNATING,
    ),
    (
      'fed_pac',
      dict(pull_strength=0.0, combines_heads=False, **_ALTERNATING),
      _ALTERNATING,
    ),
    # Which shuffles with another seed.
    (
      'fed_babu',
      dict(num_epochs=2, learning_rate=0.1, batch_size=None),
      {**_ALTERNATING, 'num_head_epochs': 0, 'batch_size': None},
    ),
  ],
)
def test_method_becomes_fed_rep(name, hparams, of_fed_rep):
  trained = {}
  for each, chosen in ((name, hparams), ('fed_rep', of_fed_rep)):
    process = registry.build(
      each,
      toy_problems.classifier(),
      toy_problems.hparams_for(each, **chosen),
      seed=_SEED,
    )
    trained[each] = toy_problems.train(process, _CLIENTS, 2)
  (state, *found), (expected_state, *expected) = trained.values()
  toy_problems.assert_close(state.global_weights, expected_state.global_weights)
  if name != 'fed_babu':  # Whose clients keep no head.
    toy_problems.assert_same(found, expected)


def _personal_models(name, clients, indices):
  """The clients' models after two rounds with all of them."""
  process = _process(name)
  state, states, _ = toy_problems.train(process, clients, 2, indices)
  return toy_problems.personal_models(process, state, states)


def test_methods_of_joint_training_agree_where_there_is_one_client():
  (fed_avg_model,) = _personal_models('fed_avg', _CLIENTS[:1], [0])
  (fed_per_model,) = _personal_models('fed_per', _CLIENTS[:1], [0])
  (local_model,) = _personal_models('local_only', _CLIENTS[:1], [0])
  # The server computes w - (w - w_i), which rounds.
  toy_problems.assert_close(fed_per_model, fed_avg_model)
  toy_problems.assert_close(local_model, fed_avg_model)


def test_fed_avg_of_identical_clients_is_local_training():
  # Identical down to the index, from which a client's shuffle is seeded.
  clients = [_CLIENTS[0]] * 3
  averaged = _personal_models('fed_avg', clients, [5, 5, 5])
  alone = _personal_models('local_only', clients[:1], [5])
  for model in averaged:
    toy_problems.assert_close(model, alone[0])


def test_fed_per_differs_from_fed_avg_where_clients_differ():
  fed_per_models, fed_avg_models = _models('fed_per'), _models('fed_avg')
  toy_problems.assert_same(fed_avg_models[0], fed_avg_models[1])
  body = {n: v for n, v in fed_per_models[0].items() if 'head' not in n}
  toy_problems.assert_same(body, {n: fed_per_models[1][n] for n in body})
  assert toy_problems.differ(fed_per_models[0], fed_per_models[1])


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
  hparams = fed_avg.FedAvgHParams(**_TRAINING)
  data = toy_problems.padded(_CLIENTS)

  def global_weights(process, indices):
    return process.next(
      process.initialize(),
      process.initialize_client_states(indices),
      [data[i] for i in indices],
    ).state.global_weights

  plain = registry.build('fed_avg', model, hparams)
  halved = registry.build(
    'fed_avg',
    model,
    hparams,
    server_optimizer=phases.build_optimizer('sgd', 0.5),
  )
  alone = [global_weights(plain, [i]) for i in (0, 1)]
  actual = global_weights(halved, [0, 1])
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
