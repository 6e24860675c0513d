"""What comes with TFF gives the same in process as on the native runtime."""

import asyncio
import collections
import functools

import attrs
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.methods import toy_problems
from tests.runtime import parity

keras = tf.keras

_SPEC = collections.OrderedDict(
  x=tf.TensorSpec([None, 4], tf.float32), y=tf.TensorSpec([None], tf.int32)
)
_NUM_ROUNDS = 3


# Learning.


def _dataset(num_examples, seed):
  """Examples in an order that is drawn from a seed, twice over."""
  rng = np.random.default_rng(seed)
  x = rng.normal(size=(num_examples, 4)).astype(np.float32)
  y = np.argmax(x[:, :3], axis=1).astype(np.int32)
  return (
    tf.data.Dataset.from_tensor_slices(collections.OrderedDict(x=x, y=y))
    .shuffle(num_examples + 1, seed=seed, reshuffle_each_iteration=False)
    .repeat(2)
    .batch(4)
  )


_DATA = [_dataset(n, seed) for seed, n in enumerate((7, 12, 0, 3))]


def _network():
  def initializer(seed):
    return keras.initializers.GlorotUniform(seed=seed)

  return keras.Sequential(
    [
      keras.layers.Input([4]),
      keras.layers.Dense(5, 'relu', kernel_initializer=initializer(1)),
      keras.layers.Dense(3, kernel_initializer=initializer(2), name='head'),
    ]
  )


def _network_with_statistics():
  return keras.Sequential(
    [keras.layers.Input([4]), keras.layers.BatchNormalization(), _network()]
  )


def _loss():
  return keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def _metrics():
  return [keras.metrics.SparseCategoricalAccuracy(name='accuracy')]


def _keras_model(network=_network):
  return tff.learning.models.from_keras_model(
    network(), loss=_loss(), input_spec=_SPEC, metrics=_metrics()
  )


def _functional_model():
  return tff.learning.models.functional_model_from_keras(
    _network,
    _loss(),
    _SPEC,
    metrics_constructor=lambda: collections.OrderedDict(
      accuracy=keras.metrics.SparseCategoricalAccuracy()
    ),
  )


def _reconstruction_model():
  network = _network()
  return tff.learning.models.ReconstructionModel.from_keras_model_and_layers(
    network,
    global_layers=network.layers[:1],
    local_layers=network.layers[1:],
    input_spec=_SPEC,
  )


_learning = tff.learning.algorithms
_sgd = tff.learning.optimizers.build_sgdm
_PROCESSES = {
  'weighted_fed_avg': lambda: _learning.build_weighted_fed_avg(
    _keras_model, _sgd(0.1), _sgd(1.0, 0.9)
  ),
  'unweighted_fed_avg': lambda: _learning.build_unweighted_fed_avg(
    _functional_model(), _sgd(0.1, 0.5)
  ),
  'weighted_fed_prox': lambda: _learning.build_weighted_fed_prox(
    _functional_model(), 0.5, _sgd(0.1)
  ),
  'weighted_mime_lite': lambda: _learning.build_weighted_mime_lite(
    _keras_model, _sgd(0.1, 0.9)
  ),
  'fed_recon': lambda: _learning.build_fed_recon(
    _reconstruction_model,
    loss_fn=_loss,
    metrics_fn=_metrics,
    client_optimizer_fn=_sgd(0.1),
    reconstruction_optimizer_fn=_sgd(0.1),
  ),
  'fed_eval': lambda: _learning.build_fed_eval(_keras_model),
  'fed_avg_with_statistics': lambda: _learning.build_weighted_fed_avg(
    functools.partial(_keras_model, _network_with_statistics), _sgd(0.1)
  ),
  'fed_avg_with_adam_and_yogi': lambda: _learning.build_weighted_fed_avg(
    _keras_model,
    tff.learning.optimizers.build_adam(0.01),
    tff.learning.optimizers.build_yogi(0.1),
  ),
  'fed_avg_with_schedule': lambda: (
    _learning.build_weighted_fed_avg_with_optimizer_schedule(
      _functional_model(), lambda r: 0.1 / tf.cast(r + 1, tf.float32), _sgd
    )
  ),
  'fed_sgd': lambda: _learning.build_fed_sgd(_keras_model, _sgd(0.1)),
  'fed_recon_eval': lambda: _learning.build_fed_recon_eval(
    _reconstruction_model, loss_fn=_loss, metrics_fn=_metrics
  ),
}


# Training and evaluation.
_FAST = ('weighted_fed_avg', 'fed_eval')


def _run_process(rt, process, data):
  """Returns what rounds give, and the model's weights."""
  initial = state = rt.run(process.initialize)
  results = [initial]
  for _ in range(_NUM_ROUNDS):
    output = rt.run(process.next, state, data)
    state = output.state
    weights = rt.run(process.get_model_weights, state)
    replaced = rt.run(process.set_model_weights, initial, weights)
    results.append((output, weights, replaced))
  return results


def _compare(runtimes, run, *args):
  """Checks that a function of a runtime returns the same for both."""
  in_process, native = runtimes
  result = run(in_process, *args)
  parity.assert_close(result, run(native, *args))
  return result


@pytest.mark.parametrize(
  'build',
  [
    pytest.param(
      build, id=name, marks=() if name in _FAST else pytest.mark.slow
    )
    for name, build in _PROCESSES.items()
  ],
)
def test_learning_process_gives_the_same(runtimes, build):
  results = _compare(runtimes, _run_process, build(), _DATA)
  # Something was learned or, in evaluation, added up.
  assert toy_problems.differ(results[0], results[-1][0].state)


def test_clusters_are_the_same(runtimes):
  rng = np.random.default_rng(0)
  data = [
    tf.data.Dataset.from_tensor_slices(
      rng.normal(size=(n, 2)).astype(np.float32)
    )
    for n in (20, 1, 7)
  ]
  process = _learning.build_fed_kmeans(3, (2,), random_seed=(1, 2))
  results = _compare(runtimes, _run_process, process, data)
  assert np.sum(results[-1][0].state.finalizer) == 3 * (20 + 1 + 7) + 3


def _personalize_fn():
  optimizer = _sgd(0.1)

  @tf.function
  def personalize(model, train_data, test_data, unused_context=None):
    weights = model.trainable_variables
    state = optimizer.initialize(
      tf.nest.map_structure(
        lambda v: tf.TensorSpec(v.shape, v.dtype), tuple(weights)
      )
    )
    for batch in train_data.batch(2):
      with tf.GradientTape() as tape:
        loss = model.forward_pass(batch).loss
      gradients = tape.gradient(loss, weights)
      state, new = optimizer.next(
        state, tuple(v.read_value() for v in weights), tuple(gradients)
      )
      for variable, value in zip(weights, new):
        variable.assign(value)
    return _evaluate_model(model, test_data)

  return personalize


@tf.function
def _evaluate_model(model, data):
  loss = 0.0
  num_examples = 0
  for batch in data.batch(4):
    output = model.forward_pass(batch, training=False)
    loss += output.loss * tf.cast(output.num_examples, tf.float32)
    num_examples += output.num_examples
  return collections.OrderedDict(
    loss=loss / tf.cast(num_examples, tf.float32), num_examples=num_examples
  )


@pytest.mark.slow
def test_personalization_evaluation_gives_the_same(runtimes):
  evaluate = _learning.build_personalization_eval_computation(
    _keras_model,
    collections.OrderedDict(fine_tuned=_personalize_fn),
    _evaluate_model,
  )
  data = [
    collections.OrderedDict(
      train_data=_dataset(5, seed).unbatch(),
      test_data=_dataset(n, seed + 100).unbatch(),
    )
    for seed, n in enumerate((7, 4, 1))
  ]
  weights = _initial_weights(runtimes[1])

  def run(rt):
    result = rt.run(evaluate, weights, data)
    # The sample of clients is drawn at random, so they have no order.
    order = np.argsort(result['baseline_metrics']['num_examples'])
    return tf.nest.map_structure(lambda values: values[order], result)

  result = _compare(runtimes, run)
  assert list(result['fine_tuned']['num_examples']) == [2, 8, 14]


def _initial_weights(rt):
  process = _learning.build_fed_eval(_keras_model)
  return rt.run(process.get_model_weights, rt.run(process.initialize))


# Programs.


def test_program_gives_the_same(runtimes):
  process = _PROCESSES['unweighted_fed_avg']()

  async def program():
    clients = tff.program.DatasetDataSource(_DATA).iterator()
    state = process.initialize()
    outputs = []
    for _ in range(2):
      output = process.next(state, clients.select(len(_DATA)))
      state = output.state
      outputs.append(output)
    return await tff.program.materialize_value(outputs)

  def run(rt):
    context = rt.program_context()
    with tff.framework.get_context_stack().install(context):
      return asyncio.run(program())

  _compare(runtimes, run)


# Analytics.


def _strings(*words):
  return tf.data.Dataset.from_tensor_slices(list(words))


_WORDS = [
  _strings('hello', 'world', 'hello'),
  _strings('hello', 'äöü', 'a-long-word-to-be-cut'),
  _strings('world'),
]


@pytest.mark.slow
@pytest.mark.parametrize('bits', [16, None])
def test_heavy_hitters_are_the_same(runtimes, bits):
  find = tff.analytics.heavy_hitters.iblt.build_iblt_computation(
    string_max_bytes=12,
    capacity=10,
    max_words_per_user=5,
    secure_sum_bitwidth=bits,
    seed=3,
  )

  def run(rt):
    found = rt.run(find, [words.batch(2) for words in _WORDS])
    # They are found in an order that is drawn at random.
    order = np.argsort(found.heavy_hitters)
    return attrs.evolve(
      found,
      heavy_hitters=found.heavy_hitters[order],
      heavy_hitters_counts=found.heavy_hitters_counts[order],
      heavy_hitters_unique_counts=found.heavy_hitters_unique_counts[order],
      round_timestamp=np.int64(0),
    )

  found = _compare(runtimes, run)
  assert list(found.heavy_hitters) == [
    b'a-long-word-',
    b'hello',
    b'world',
    'äöü'.encode(),
  ]
  assert list(found.heavy_hitters_counts) == [1, 3, 2, 1]
  assert list(found.heavy_hitters_unique_counts) == [1, 2, 2, 1]
