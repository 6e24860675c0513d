"""The one training loop, with numbers derived by hand."""

import dataclasses

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.core import shared
from tff_pfl import tff_api as tff
from tff_pfl.core import example_tensors, objectives, phases, scoring
from tff_pfl.datasets import examples as examples_lib
from tff_pfl.models import augmentation, randomness, split_model

layers = keras.layers
_assert_close = shared.assert_close
_client = shared.client
_phase = shared.phase
_train = shared.train

SEED = tf.constant([1, 2])


# One weight w, outputs w * x, loss (y - w x)^2, gradient 2 x (w x - y).


@pytest.fixture(scope='module')
def slope():
  return dataclasses.replace(
    shared.slopes(), initial_weights={'head/kernel': np.float32([[1.0]])}
  )


def _points(x, y, **arguments):
  return shared.padded(
    np.array(x, np.float32)[:, np.newaxis], np.array(y, np.float32), **arguments
  )


def _fit(slope, examples, phase, **arguments):
  result = _train(slope, examples, phase, **arguments)
  return result.weights['head/kernel'].numpy().item(), result.metrics


@pytest.mark.parametrize(
  'phase, expected',
  [
    # At x=1, y=0 the gradient is 2 w: 1 -> 0.8 -> 0.64.
    (_phase(num_steps=2), 0.64),
    # m: 2, then 1 + 1.6 = 2.6.
    (_phase(momentum=0.5, num_steps=2), 0.54),
    # Adam's first step has the length of the learning rate. The second, with
    # g = 2, 1.8: m = 0.36 / 0.19, v = 0.007236 / 0.001999.
    (_phase('adam', num_steps=2), 0.9 - 0.1 * (0.36 / 0.19) / 1.9025803),
  ],
)
def test_steps_of_the_optimizers(slope, phase, expected):
  weight, _ = _fit(slope, _points([1], [0]), phase)
  np.testing.assert_allclose(weight, expected, rtol=1e-5)


@pytest.mark.parametrize(
  ('examples', 'phase', 'expected', 'metrics'),
  [
    # All examples in a step: gradients -2 and 0, mean -1; losses 1 and 0.
    (([1, 2], [2, 2]), _phase(), 1.1, [1, 1, 2]),
    # A partial batch is averaged over its own examples: three equal ones in
    # batches of two have gradients 2 w and 2 w.
    (([1, 1, 1], [0, 0, 0]), _phase(batch_size=2), 0.64, [2 + 0.8**2, 2.8, 3]),
  ],
)
def test_a_step_takes_the_mean_of_its_batch(
  slope, examples, phase, expected, metrics
):
  weight, actual = _fit(slope, _points(*examples), phase)
  np.testing.assert_allclose(weight, expected, rtol=1e-6)
  assert list(actual) == ['loss', 'mae', 'examples']
  np.testing.assert_allclose(list(actual.values()), metrics, rtol=1e-5)


def test_steps_take_the_place_of_epochs_of_which_there_may_be_none(slope):
  for phase, num_steps, num_examples in (
    (_phase(batch_size=2, num_steps=11, num_epochs=7), 11, 17),
    (_phase(batch_size=2, num_epochs=0), 0, 0),
  ):
    weight, metrics = _fit(slope, _points([1, 1, 1], [0, 0, 0]), phase)
    np.testing.assert_allclose(weight, 0.8**num_steps, rtol=1e-5)
    assert metrics['examples'] == num_examples


@pytest.mark.parametrize(
  ('batch_size', 'limit'), [(None, {'num_epochs': 2}), (1, {'num_steps': 2})]
)
def test_clients_without_examples_and_with_one(slope, batch_size, limit):
  phase = _phase(batch_size=batch_size, **limit)
  weight, metrics = _fit(slope, _points([], []), phase)
  assert weight == 1
  assert all(value == 0 for value in metrics.values())
  weight, metrics = _fit(slope, _points([1], [0]), phase)
  np.testing.assert_allclose(weight, 0.64, rtol=1e-6)
  assert metrics['examples'] == 2


# The plan of batches.


def _plan(num_examples, phase, capacity=16, seed=SEED):
  examples = _points(
    np.zeros(num_examples), np.zeros(num_examples), capacity=capacity
  )
  return phases.plan_batches(examples, phase, seed)


def _batches(plan, place=0):
  """The examples of a batch of each step, without padding."""
  steps = zip(
    plan.indices.numpy()[:, place], plan.example_weights.numpy()[:, place]
  )
  rows = [list(indices[weights > 0]) for indices, weights in steps]
  assert all(row == [] for row in rows[plan.num_steps.numpy() :])
  return rows[: plan.num_steps.numpy()]


@pytest.mark.parametrize('num_examples', [1, 5, 16])
@pytest.mark.parametrize('batch_size', [1, 4, 100, 0, None])
def test_an_epoch_has_every_example_once(num_examples, batch_size):
  batches = _batches(
    _plan(num_examples, _phase(batch_size=batch_size, num_epochs=3))
  )
  size = min(batch_size or num_examples, num_examples)
  sizes = [size] * (num_examples // size)
  if num_examples % size:
    sizes.append(num_examples % size)
  assert [len(batch) for batch in batches] == 3 * sizes
  for epoch in range(3):
    rows = sum(batches[epoch * len(sizes) : (epoch + 1) * len(sizes)], [])
    assert sorted(rows) == list(range(num_examples))


def test_shuffles_differ_between_epochs_and_seeds():
  phase = _phase(num_epochs=3)
  plans = [_plan(16, phase, seed=tf.constant([1, s])) for s in (2, 3)]
  orders = {tuple(batch) for plan in plans for batch in _batches(plan)}
  assert len(orders) == 6
  assert _batches(_plan(16, phase)) == _batches(plans[0])
  # Steps are the first of as many epochs as they need.
  epochs = _batches(_plan(9, _phase(batch_size=2, num_epochs=2)))
  assert _batches(_plan(9, _phase(batch_size=2, num_steps=7))) == epochs[:7]


@pytest.mark.parametrize('num_examples', [3, 12, 13, 16])
@pytest.mark.parametrize('batches_per_step', [2, 3])
def test_the_batches_of_a_step_have_no_example_in_common(
  num_examples, batches_per_step
):
  phase = _phase(
    batch_size=-(-num_examples // batches_per_step) - 1 or 1,
    num_epochs=2,
    batches_per_step=batches_per_step,
  )
  plan = _plan(num_examples, phase)
  by_place = [_batches(plan, place) for place in range(batches_per_step)]
  for step in zip(*by_place):
    rows = sum(step, [])
    assert len(set(rows)) == len(rows)
  for batches in by_place:
    rows = sum(batches[: len(batches) // 2], [])
    assert sorted(rows) == list(range(num_examples))


def test_the_first_batches_of_steps_are_those_of_a_phase_with_one():
  one, three = (
    _plan(14, _phase(batch_size=4, num_steps=9, batches_per_step=count))
    for count in (1, 3)
  )
  assert _batches(three) == _batches(one)
  assert _batches(three, 1) != _batches(one)


def test_a_client_with_too_few_batches_has_some_of_them_twice():
  phase = _phase(batch_size=4, num_epochs=1, batches_per_step=3)
  plan = _plan(7, phase)
  first, second, third = (_batches(plan, place) for place in range(3))
  assert second == first
  assert third == first[::-1]
  only = _plan(4, phase)
  for place in range(3):
    (rows,) = _batches(only, place)
    assert sorted(rows) == [0, 1, 2, 3]


def test_the_objective_gets_all_batches_of_a_step(slope):
  loss = objectives.joint_loss(slope)

  def sum_of_losses(weights, first, second, *, seed):
    output = loss(weights, first, seed=seed)
    other = loss(weights, second, seed=seed)
    return output._replace(
      gradient={
        name: value + other.gradient[name]
        for name, value in output.gradient.items()
      }
    )

  # At w=1 the gradients of the two examples are 2 and 8.
  weight, metrics = _fit(
    slope,
    _points([1, 2], [0, 0]),
    _phase(learning_rate=0.05, batch_size=1, num_steps=1, batches_per_step=2),
    objective=sum_of_losses,
  )
  assert weight == pytest.approx(0.5)
  assert metrics['examples'] == 1


@pytest.mark.parametrize(
  'limit', [{'batch_size': 3, 'num_epochs': 2}, {'num_steps': 4}, {}]
)
def test_plans_of_a_bucket_have_one_shape_and_no_padding(limit):
  plans = {n: _plan(n, _phase(**limit)) for n in (0, 1, 7, 16)}
  assert len({tuple(plan.indices.shape) for plan in plans.values()}) == 1
  for num_examples in (1, 7):
    assert np.max(plans[num_examples].indices) < num_examples


# A network with every kind of layer that knows of padding or randomness.


@pytest.fixture(scope='module')
def network():
  return shared.network()


def _noisy(x, seed):
  return x + randomness.uniform(seed, tf.shape(x))


def _split(model):
  return tuple(
    split_model.select(model.initial_weights, model.weight_names(names))
    for names in (model.body_layers, model.head_layers)
  )


@pytest.mark.parametrize('change', ['none', _noisy])
def test_nan_in_the_padding_does_not_leak(network, change):
  network = augmentation.augmented(network, change)
  phase = _phase(batch_size=4, num_epochs=2)
  examples = _client(13, padding=np.nan)
  assert np.isnan(examples.x[-1, 0])

  @tf.function
  def numbers(examples):
    trained = _train(network, examples, phase)
    head = shared.fit_head(network, *_split(network), examples, phase, SEED)
    scores = scoring.score(network, network.initial_weights, examples).sums
    return {**trained.weights, **trained.metrics}, head.weights, scores

  for actual, clean in zip(numbers(examples), numbers(_client(13))):
    _assert_close(actual, clean)


def test_xla_gives_the_same_numbers(network):
  phase = _phase(momentum=0.5, batch_size=4, num_epochs=2)

  def trainer(model):
    return tf.function(lambda examples: _train(model, examples, phase))

  trainers = trainer(network), trainer(shared.network(True))
  for size in (13, 2, 0):
    plain, compiled = (train(_client(size)) for train in trainers)
    _assert_close(compiled.weights, plain.weights, rtol=1e-3, atol=1e-5)
    _assert_close(compiled.metrics, plain.metrics, rtol=1e-3)


def test_the_seed_decides_the_result(network):
  phase, client = _phase(batch_size=4, num_epochs=2), _client(13)
  train = tf.function(lambda seed: _train(network, client, phase, seed))
  first, again, other = map(train, map(tf.constant, [(1, 2), (1, 2), (1, 3)]))
  for name, value in first.weights.items():
    np.testing.assert_array_equal(value, again.weights[name])
  assert not np.allclose(
    first.weights['first/kernel'], other.weights['first/kernel'], rtol=1e-3
  )


def test_frozen_layers_keep_their_weights():
  model = shared.bridge(
    layers.Dense(4, name='first', trainable=False),
    layers.BatchNormalization(name='norm', trainable=False),
    layers.Dense(3, name='head'),
    shape=(6,),
  )
  result = _train(model, _client(9), _phase('adam', num_steps=3))
  assert list(result.weights) == list(model.initial_weights)
  for name, value in result.weights.items():
    moved = np.any(value != model.initial_weights[name])
    assert moved == name.startswith('head/'), name


def test_a_loop_of_ones_own_gives_the_same(network):
  """The loop against a few lines of eager TensorFlow, batch by batch."""
  examples = _client(13)
  phase = _phase(batch_size=4, num_epochs=2)
  objective = objectives.joint_loss(network)
  batches = []

  def recording(weights, batch, *, seed):
    # With a weight, so that a step's record waits for the step before.
    tf.py_function(
      lambda *values: batches.append(values[:3]),
      [batch.x, batch.y, seed, weights['head/bias']],
      [],
    )
    return objective(weights, batch, seed=seed)

  result = _train(network, examples, phase, objective=recording)
  assert len(batches) == 8
  assert len({tuple(seed.numpy()) for _, _, seed in batches}) == 8
  weights = {k: tf.constant(v) for k, v in network.initial_weights.items()}
  for step, (x, y, seed) in enumerate(batches):
    real = 4 if step % 4 < 3 else 1
    mode = split_model.Mode(
      True, seed, tf.constant([1.0] * real + [0.0] * (4 - real))
    )
    trained = [n for n in weights if n not in network.statistics]
    with tf.GradientTape() as tape:
      tape.watch(weights)
      outputs, statistics = network.forward(weights, x, mode)
      loss = tf.reduce_mean(network.loss(y, outputs)[:real])
    gradients = tape.gradient(loss, [weights[n] for n in trained])
    weights.update(statistics)
    for name, gradient in zip(trained, gradients):
      weights[name] -= 0.1 * gradient
  _assert_close(result.weights, weights, rtol=1e-3, atol=1e-5)


# Frozen features.


@pytest.mark.parametrize('change', ['none', _noisy])
def test_head_trains_as_with_a_frozen_body_in_each_step(network, change):
  network = augmentation.augmented(network, change)
  body, head = _split(network)
  # A body with statistics that differ from those of any batch.
  body = {k: v + 0.25 for k, v in body.items()}
  examples = _client(13)
  phase = _phase(momentum=0.5, batch_size=4, num_epochs=4)

  def recompute(weights, x, mode):
    features, _ = network.body(body, x, split_model.Mode(seed=mode.seed))
    return network.head(weights, features, mode)

  expected = _train(
    network,
    examples,
    phase,
    weights=head,
    objective=objectives.prediction_loss(network, recompute),
  )
  actual = shared.fit_head(network, body, head, examples, phase, SEED)
  assert list(actual.weights) == list(head)
  _assert_close(actual.weights, expected.weights)
  _assert_close(actual.metrics, expected.metrics)
  assert not np.allclose(actual.weights['head/kernel'], head['head/kernel'])


# Evaluation.


def test_evaluation_sums_over_the_examples(slope):
  examples = _points([1, 2, 3], [1, 0, 6], padding=7.0)
  metrics = scoring.score(slope, slope.initial_weights, examples).sums
  # Errors 0, 2, -3.
  assert dict(metrics) == {'loss': 13, 'mae': 5, 'examples': 3}
  nobody = scoring.score(slope, slope.initial_weights, _points([], [])).sums
  assert dict(nobody) == {'loss': 0, 'mae': 0, 'examples': 0}


def test_evaluation_of_many_examples_runs_in_inference_mode(network):
  examples = _client(700, capacity=1024)
  metrics = scoring.score(network, network.initial_weights, examples).sums
  outputs, _ = network.forward(network.initial_weights, examples.x[:700])
  y = examples.y[:700]
  np.testing.assert_allclose(
    metrics['loss'], np.sum(network.loss(y, outputs)), rtol=1e-4
  )
  assert metrics['accuracy'] == np.sum(np.argmax(outputs, axis=1) == y)


# One program for all clients.

SIZES = (13, 0, 1, 16, 7, 40)


def test_one_trace_serves_the_clients_of_a_tff_computation(network):
  traces = []
  phase = _phase(batch_size=4, num_epochs=2)
  objective = objectives.joint_loss(network)
  spec = examples_lib.element_spec(tf.TensorSpec([6], tf.float32))

  def counted(weights, batch, *, seed):
    traces.append(1)
    return objective(weights, batch, seed=seed)

  @tff.tensorflow.computation(example_tensors.type_of(spec))
  def work(examples):
    return _train(network, examples, phase, objective=counted)

  @tff.federated_computation(
    tff.FederatedType(example_tensors.type_of(spec), tff.CLIENTS)
  )
  def train_all(examples):
    return tff.federated_map(work, examples)

  clients = [_client(n, capacity=16 if n <= 16 else 64) for n in SIZES]
  results = train_all(clients)
  assert len(traces) == 1
  alone = tf.function(lambda examples: _train(network, examples, phase))
  for size, result in zip(SIZES, results):
    expected = alone(_client(size, capacity=64))
    _assert_close(result.weights, expected.weights)
    _assert_close(result.metrics, expected.metrics)
    assert result.metrics['examples'] == 2 * size


@pytest.mark.parametrize('jit_compile', [True, False])
def test_training_is_compiled_as_the_model_says(slope, jit_compile):
  model = dataclasses.replace(slope, jit_compile=jit_compile)
  work = tf.function(lambda: _train(model, _points([1], [0]), _phase()).weights)
  functions = work.get_concrete_function().graph.as_graph_def().library.function
  assert any(f.attr['_XlaMustCompile'].b for f in functions) == jit_compile
