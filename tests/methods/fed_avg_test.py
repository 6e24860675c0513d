import keras
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.methods import toy_problems
from tff_pfl import datasets, runtime
from tff_pfl.core import phases
from tff_pfl.methods import registry
from tff_pfl.models import domain_models

_INITIAL, _CLIENTS = toy_problems.KERNEL, toy_problems.CLIENTS


def _process(options=None, kernel=_INITIAL, **changes):
  hparams = {'num_steps': 1, 'learning_rate': 0.1, **changes}
  model = toy_problems.linear_network(None, np.float32(kernel))
  return toy_problems.full_batches('fed_avg', model, options, **hparams)


def _local(weight, client):
  return toy_problems.descended_alone(weight, client, 1, 0.1)


def _mean_local(weight):
  return toy_problems.weighted_mean(
    [_local(weight, client) for client in _CLIENTS], _CLIENTS
  )


def test_one_weight_by_hand():
  # Client 1: x = 1, y = 0: gradient 2 w = 4. Clients 2 to 4 are one client with
  # x = 1, y = 1: gradient 2 (w - 1) = 2. Pooled gradient (4 + 3 * 2) / 4 = 2.5.
  clients = [
    datasets.Examples(x=np.float32([[1]]), y=np.float32([0])),
    datasets.Examples(x=np.ones([3, 1], np.float32), y=np.ones(3, np.float32)),
  ]
  state, _, metrics = toy_problems.train(_process(kernel=[[2]]), clients)
  assert state.global_weights['head/kernel'] == pytest.approx(2 - 0.1 * 2.5)
  # The metrics are those of the training steps: losses 4 and 1, 1, 1.
  assert metrics['loss'] == pytest.approx((4 + 3) / 4)
  assert metrics['update_norm'] == pytest.approx(0.25)
  assert metrics['examples'] == 4
  assert metrics['clients'] == 2


def _pooled(weight):
  """FedSGD: a gradient step on the pooled data."""
  pooled = datasets.Examples(
    *(np.concatenate([getattr(c, n) for c in _CLIENTS]) for n in ('x', 'y'))
  )
  return _local(weight, pooled)


def _uniform(weight):
  expected = np.mean([_local(weight, client) for client in _CLIENTS], axis=0)
  assert not np.allclose(expected, _mean_local(weight), rtol=1e-3)
  return expected


@pytest.mark.parametrize(
  ('next_weight', 'options'),
  [(_pooled, {}), (_uniform, {'client_weighting': 'uniform'})],
)
def test_rounds_by_hand(next_weight, options):
  first = next_weight(_INITIAL)
  toy_problems.check_rounds(
    _process(options),
    _CLIENTS,
    [{'global_weights': {'head': w}} for w in (first, next_weight(first))],
  )


def test_server_momentum_accumulates_over_rounds():
  optimizer = phases.build_optimizer('sgd', 0.5, momentum=0.9)

  def rounds():
    weight, velocity = _INITIAL, 0
    for _ in range(3):
      velocity = 0.9 * velocity + weight - _mean_local(weight)
      weight = weight - 0.5 * velocity
      yield {'global_weights': {'head': weight}}

  process = _process({'server_optimizer': optimizer})
  toy_problems.check_rounds(process, _CLIENTS, rounds())


@pytest.mark.slow
def test_first_server_step_of_adam_moves_by_its_learning_rate():
  # m / sqrt(v) is update / |update| in the first step.
  step = 0.25 * np.sign(_INITIAL - _mean_local(_INITIAL))
  process = _process({'server_optimizer': phases.build_optimizer('adam', 0.25)})
  toy_problems.check_rounds(
    process, _CLIENTS, [{'global_weights': {'head': _INITIAL - step}}]
  )


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
  clients = [toy_problems.labeled_examples(n, seed=n) for n in (13, 24)]
  plain, halved = (
    registry.build(
      'fed_avg', model, server_optimizer=phases.build_optimizer('sgd', rate)
    )
    for rate in (1.0, 0.5)
  )

  def global_weights(process, indices):
    chosen = [clients[i] for i in indices]
    return toy_problems.train(process, chosen, indices=indices)[
      0
    ].global_weights

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


# Domains, of different sizes.


@pytest.mark.slow
def test_agrees_with_the_federated_averaging_of_tff():
  """An independent implementation, with the model as TFF's own form."""
  kernel = np.random.default_rng(3).normal(size=[3, 2]).astype(np.float32)
  clients = [toy_problems.regression_examples(n, 3, 2, n) for n in (5, 16)]
  spec = (
    tf.TensorSpec([None, 3], tf.float32),
    tf.TensorSpec([None, 2], tf.float32),
  )

  def keras_model():
    network = tf.keras.Sequential(
      [tf.keras.layers.Input([3]), tf.keras.layers.Dense(2, use_bias=False)]
    )
    return tff.learning.models.from_keras_model(
      network, loss=tf.keras.losses.MeanSquaredError(), input_spec=spec
    )

  learning_process = tff.learning.algorithms.build_weighted_fed_avg(
    keras_model,
    client_optimizer_fn=tff.learning.optimizers.build_sgdm(0.05, 0.9),
    server_optimizer_fn=tff.learning.optimizers.build_sgdm(1.0),
  )
  # Its Keras model has variables.
  with runtime.create_runtime('native'):
    initial = learning_process.set_model_weights(
      learning_process.initialize(),
      tff.learning.models.ModelWeights([kernel], []),
    )
    theirs = learning_process.next(
      initial,
      [
        # Three epochs of full batches.
        tf.data.Dataset.from_tensors((client.x, client.y)).repeat(3)
        for client in clients
      ],
    )
    (their_weight,) = learning_process.get_model_weights(theirs.state).trainable
  process = _process(
    kernel=kernel,
    num_steps=None,
    num_epochs=3,
    learning_rate=0.05,
    momentum=0.9,
  )
  state, _, metrics = toy_problems.train(process, clients)
  np.testing.assert_allclose(
    state.global_weights['head/kernel'], their_weight, rtol=1e-5
  )
  assert metrics['loss'] == pytest.approx(
    theirs.metrics['client_work']['train']['loss'], rel=1e-5
  )


_IN_DOMAINS = [
  toy_problems.in_domains(client, pattern)
  for client, pattern in zip(_CLIENTS, ([0, 0, 0, 1], [1, 0, 1]))
]


def _process_for_domains(kind='shared', *, reweighted=False):
  model = domain_models.with_domains(
    toy_problems.linear_network(None, _INITIAL),
    toy_problems.domains_of(_IN_DOMAINS, ('a', 'b')),
  )
  model = domain_models.domain_model(model, kind, reweighted=reweighted)
  return toy_problems.full_batches(
    'fed_avg', model, num_steps=2, learning_rate=0.1
  )


# Of the 16 examples 7 and 9.
@pytest.mark.parametrize(
  ('reweighted', 'factors'),
  [
    (True, (16 / 14, 16 / 18)),
    pytest.param(False, (1, 1), marks=pytest.mark.slow),
  ],
)
def test_reweighted_domains_count_the_same(reweighted, factors):
  def local(weight, client):
    for _ in range(2):
      errors = (client.x @ weight)[:, 0] - client.y
      errors *= np.array(factors)[client.domain]
      slope = 2 * client.x.T @ errors[:, np.newaxis] / len(client.y)
      weight = weight - 0.1 * slope
    return weight

  def rounds():
    weight = _INITIAL
    for _ in range(2):
      models = [local(weight, client) for client in _IN_DOMAINS]
      weight = toy_problems.weighted_mean(models, _CLIENTS)
      yield {'global_weights': {'head': weight}}

  process = _process_for_domains(reweighted=reweighted)
  toy_problems.check_rounds(process, _IN_DOMAINS, rounds())


def test_domain_as_input_is_fed_avg_on_inputs_with_the_one_hot():
  widened = [
    toy_problems.changed(
      client,
      x=np.concatenate([client.x, np.eye(2, dtype='f')[client.domain]], axis=1),
      domain=None,
    )
    for client in _IN_DOMAINS
  ]
  kernel = np.concatenate([_INITIAL, np.zeros([2, 1])])
  wide, _, _ = toy_problems.train(
    _process(kernel=kernel, num_steps=2), widened, 2
  )
  found, _, _ = toy_problems.train(
    _process_for_domains(kind='input'), _IN_DOMAINS, 2
  )
  kernel = wide.global_weights['head/kernel']
  wanted = {'head': kernel[:2], 'domain_input': kernel[2:]}
  toy_problems.assert_part(found.global_weights, wanted)


@pytest.mark.parametrize(
  'kind',
  [
    pytest.param(kind, marks=() if kind == 'multi_head' else pytest.mark.slow)
    for kind in domain_models.KINDS
  ],
)
def test_projection_goes_with_every_model_of_domains(kind):
  model = domain_models.with_domains(
    toy_problems.classifier(), toy_problems.DOMAINS
  )
  process = registry.build(
    'fed_avg',
    domain_models.domain_model(domain_models.projected(model, 2), kind),
  )
  initial = process.initialize().global_weights
  assert initial['projection/kernel'].shape == (4, 2)
  (head,) = {v.shape for n, v in initial.items() if n.endswith('head/kernel')}
  assert head == (2, 3)
  clients = [
    toy_problems.in_turn(toy_problems.labeled_examples(n, n)) for n in (9, 14)
  ]
  state, _, _ = toy_problems.train(process, clients)
  for name, value in state.global_weights.items():
    assert toy_problems.differ(value, initial[name]), name
