import functools

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.methods import toy_problems
from tff_pfl import datasets
from tff_pfl.core import phases
from tff_pfl.methods import fed_avg, registry
from tff_pfl.models import domain_models

pytestmark = pytest.mark.usefixtures('runtime')

_INITIAL = np.array([[0.5], [-1.0]], np.float32)
_CLIENTS = [
  toy_problems.regression_examples(4, 2, 1, seed=0),
  toy_problems.regression_examples(12, 2, 1, seed=1),
]


@functools.cache
def _build(hparams=None, initial=None, **options):
  model = toy_problems.linear_network(
    None, _INITIAL if initial is None else np.float32(initial)
  )
  hparams = hparams or fed_avg.FedAvgHParams(
    num_steps=1, batch_size=None, learning_rate=0.1, momentum=0.0
  )
  return registry.build('fed_avg', model, hparams, **options)


def _train(process, num_rounds=1, clients=_CLIENTS):
  """The global weight after some rounds, and the last round's metrics."""
  state, _, metrics = toy_problems.train(process, clients, num_rounds)
  return state.global_weights['head/kernel'], metrics


def _local_weight(weight, client, num_steps=1, rate=0.1, momentum=0.0):
  return toy_problems.descended_alone(weight, client, num_steps, rate, momentum)


def _mean_local_weight(weight, *arguments):
  return toy_problems.weighted_mean(
    [_local_weight(weight, client, *arguments) for client in _CLIENTS], _CLIENTS
  )


def test_one_weight_by_hand():
  # Client 1: x = 1, y = 0: gradient 2 w = 4. Clients 2 to 4 are one client with
  # x = 1, y = 1: gradient 2 (w - 1) = 2. Pooled gradient (4 + 3 * 2) / 4 = 2.5.
  clients = [
    datasets.Examples(x=np.float32([[1]]), y=np.float32([0])),
    datasets.Examples(x=np.ones([3, 1], np.float32), y=np.ones(3, np.float32)),
  ]
  process = _build(initial=((2,),))
  weight, metrics = _train(process, clients=clients)
  assert weight == pytest.approx(2 - 0.1 * 2.5)
  # The metrics are those of the training steps: losses 4 and 1, 1, 1.
  assert metrics['loss'] == pytest.approx((4 + 3) / 4)
  assert metrics['update_norm'] == pytest.approx(0.25)
  assert metrics['examples'] == 4
  assert metrics['clients'] == 2


def test_fed_sgd_is_a_gradient_step_on_the_pooled_data():
  weight, _ = _train(_build(), num_rounds=3)
  pooled = datasets.Examples(
    x=np.concatenate([client.x for client in _CLIENTS]),
    y=np.concatenate([client.y for client in _CLIENTS]),
  )
  expected = _local_weight(_INITIAL, pooled, num_steps=3)
  np.testing.assert_allclose(weight, expected, rtol=1e-5)


def test_local_steps_are_averaged_by_number_of_examples():
  hparams = fed_avg.FedAvgHParams(
    batch_size=None, num_epochs=4, learning_rate=0.05, momentum=0.9
  )
  weight, _ = _train(_build(hparams), num_rounds=2)
  expected = _INITIAL
  for _ in range(2):
    # The momentum starts anew each round.
    expected = _mean_local_weight(expected, 4, 0.05, 0.9)
  np.testing.assert_allclose(weight, expected, rtol=1e-5)


def test_uniform_weighting_takes_the_plain_mean():
  weight, _ = _train(_build(client_weighting='uniform'))
  locals_ = [_local_weight(_INITIAL, client) for client in _CLIENTS]
  np.testing.assert_allclose(weight, np.mean(locals_, axis=0), rtol=1e-5)
  assert not np.allclose(weight, _mean_local_weight(_INITIAL), rtol=1e-3)


def test_server_momentum_accumulates_over_rounds():
  process = _build(
    server_optimizer=phases.build_optimizer('sgd', 0.5, momentum=0.9)
  )
  weight, _ = _train(process, num_rounds=3)
  expected, velocity = _INITIAL, 0
  for _ in range(3):
    velocity = 0.9 * velocity + expected - _mean_local_weight(expected)
    expected = expected - 0.5 * velocity
  np.testing.assert_allclose(weight, expected, rtol=1e-5)


def test_first_server_step_of_adam_moves_by_its_learning_rate():
  process = _build(server_optimizer=phases.build_optimizer('adam', 0.25))
  weight, _ = _train(process)
  # m / sqrt(v) is update / |update| in the first step.
  update = _INITIAL - _mean_local_weight(_INITIAL)
  np.testing.assert_allclose(
    weight, _INITIAL - 0.25 * np.sign(update), rtol=1e-4
  )


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
  # Three epochs of full batches.
  theirs = learning_process.next(
    learning_process.set_model_weights(
      learning_process.initialize(),
      tff.learning.models.ModelWeights([kernel], []),
    ),
    [
      tf.data.Dataset.from_tensors((client.x, client.y)).repeat(3)
      for client in clients
    ],
  )
  hparams = fed_avg.FedAvgHParams(
    num_epochs=3, batch_size=None, learning_rate=0.05, momentum=0.9
  )
  weight, metrics = _train(
    _build(hparams, tuple(map(tuple, kernel))), clients=clients
  )
  np.testing.assert_allclose(
    weight,
    learning_process.get_model_weights(theirs.state).trainable[0],
    rtol=1e-5,
  )
  assert metrics['loss'] == pytest.approx(
    theirs.metrics['client_work']['train']['loss'], rel=1e-5
  )


# Domains.


_DOMAIN_RATE = 0.1


# Of different sizes.
_IN_DOMAINS = [
  toy_problems.in_domains(client, pattern)
  for client, pattern in zip(_CLIENTS, ([0, 0, 0, 1], [1, 0, 1]))
]


def _build_for_domains(body=None, kind='shared', *, reweighted=False):
  model = domain_models.with_domains(
    toy_problems.linear_network(body, _INITIAL),
    toy_problems.domains_of(_IN_DOMAINS, ('a', 'b')),
  )
  return registry.build(
    'fed_avg',
    domain_models.domain_model(model, kind, reweighted=reweighted),
    fed_avg.FedAvgHParams(
      num_steps=2, batch_size=None, learning_rate=_DOMAIN_RATE, momentum=0.0
    ),
  )


def _train_for_domains(process):
  state, _, _ = toy_problems.train(process, _IN_DOMAINS, 2)
  return state.global_weights


def _weighted_rounds(loss_weights):
  """Two rounds of two steps on losses with a factor by domain."""
  weight = _INITIAL
  for _ in range(2):
    locals_ = []
    for client in _IN_DOMAINS:
      local, factors = weight, np.asarray(loss_weights)[client.domain]
      for _ in range(2):
        errors = factors * ((client.x @ local)[:, 0] - client.y)
        slope = 2 * client.x.T @ errors[:, np.newaxis] / len(client.y)
        local = local - _DOMAIN_RATE * slope
      locals_.append(local)
    weight = toy_problems.weighted_mean(locals_, _CLIENTS)
  return weight


def test_reweighted_domains_count_the_same():
  of_data = toy_problems.domains_of(_IN_DOMAINS, ('a', 'b'))
  assert of_data.num_examples == (7, 9)
  weights = _train_for_domains(_build_for_domains(reweighted=True))
  expected = _weighted_rounds([16 / 14, 16 / 18])
  toy_problems.assert_kernels(weights, rtol=1e-5, head=expected)
  plain = _train_for_domains(_build_for_domains())
  toy_problems.assert_kernels(plain, rtol=1e-5, head=_weighted_rounds([1, 1]))


def test_domain_as_input_is_fed_avg_on_inputs_with_the_one_hot():
  weights = _train_for_domains(_build_for_domains(kind='input'))
  widened = [
    toy_problems.changed(
      client,
      x=np.concatenate(
        [client.x, np.eye(2, dtype=np.float32)[client.domain]], axis=1
      ),
      domain=None,
    )
    for client in _IN_DOMAINS
  ]
  initial = tuple(map(tuple, np.concatenate([_INITIAL, np.zeros([2, 1])])))
  hparams = fed_avg.FedAvgHParams(
    num_steps=2, batch_size=None, learning_rate=_DOMAIN_RATE, momentum=0.0
  )
  expected, _ = _train(_build(hparams, initial), 2, widened)
  np.testing.assert_allclose(
    np.concatenate([weights['head/kernel'], weights['domain_input/kernel']]),
    expected,
    rtol=1e-5,
  )


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
