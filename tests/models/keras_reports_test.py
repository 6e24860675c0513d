"""Losses, metrics and steps are those of Keras on the same weights."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.models import keras_models
from tff_pfl.core import objectives
from tff_pfl.models import keras_bridge

layers = keras.layers
losses = keras.losses

_RATE = 0.1
_NUM = 12
_SPARSE = losses.SparseCategoricalCrossentropy(from_logits=True)


@keras.saving.register_keras_serializable('tests')
class Block(layers.Layer):
  """A layer that holds layers."""

  def __init__(self, **kwargs):
    super().__init__(**kwargs)
    self.dense = layers.Dense(5)
    self.norm = layers.BatchNormalization()
    self.scale = self.add_weight(shape=(), initializer='ones', name='scale')

  def call(self, inputs):
    return self.scale * keras.ops.relu(self.norm(self.dense(inputs)))


class Shifted(keras.Model):
  def __init__(self):
    super().__init__()
    self.first = layers.Dense(5, 'tanh')
    self.head = layers.Dense(3, name='head')

  def call(self, inputs):
    return self.head(self.first(inputs - tf.constant(0.5)) + 0.37)


class Centered(layers.Layer):
  """Holds a tensor."""

  def __init__(self):
    super().__init__()
    self.center = tf.constant([1.0, 2.0, 3.0, 4.0])

  def call(self, inputs):
    return inputs - self.center


def _dense(*, units=3, end=None, **kwargs):
  return keras.Sequential(
    [
      keras.Input((4,)),
      layers.Dense(5, 'tanh', **kwargs),
      layers.Dense(units, end, name='head'),
    ]
  )


def _features(*stack, shape=(4,), dtype='float32', units=3):
  return keras.Sequential(
    [keras.Input(shape, dtype=dtype), *stack, layers.Dense(units, name='head')]
  )


def _words(*stack):
  return _features(
    layers.Embedding(7, 4, mask_zero=True), *stack, shape=(6,), dtype='int32'
  )


def _adapted():
  layer = layers.Normalization()
  layer.adapt(np.random.default_rng(0).normal(2, 3, [20, 4]))
  return _features(layer)


def _subclassed():
  model = Shifted()
  model(tf.ones([2, 4]))
  return model


class OwnTraining(keras.Model):
  """Keeps the statistics of its base, as in Keras's guide to transfer."""

  def __init__(self):
    super().__init__()
    self.base = keras.Sequential(
      [keras.Input((4,)), layers.Dense(6), layers.BatchNormalization()]
    )
    self.head = layers.Dense(3, name='head')

  def call(self, inputs):
    return self.head(self.base(inputs, training=False))


def _own_training():
  model = OwnTraining()
  model(tf.ones([2, 4]))
  return model


def _masked_attention():
  inputs = keras.Input((6,), dtype='int32')
  hidden = layers.Embedding(7, 4, mask_zero=True)(inputs)
  hidden = layers.MultiHeadAttention(2, 3, name='head_attention')(
    hidden, hidden
  )
  hidden = layers.GlobalAveragePooling1D()(hidden)
  return keras.Model(inputs, layers.Dense(3, name='head')(hidden))


def _transfer():
  base = keras.Sequential(
    [
      keras.Input((4,)),
      layers.Dense(6),
      layers.BatchNormalization(),
      layers.ReLU(),
    ],
    name='base',
  )
  inputs = keras.Input((4,))
  outputs = layers.Dense(3, name='head')(base(inputs, training=False))
  return keras.Model(inputs, outputs)


def _attention():
  inputs = keras.Input((5, 4))
  hidden = layers.LayerNormalization()(inputs)
  hidden = inputs + layers.MultiHeadAttention(2, 3)(hidden, hidden)
  hidden = layers.GlobalAveragePooling1D()(hidden)
  return keras.Model(inputs, layers.Dense(3, name='head')(hidden))


def _reshaped_sigmoid():
  inputs = keras.Input((4,))
  outputs = layers.Dense(1, 'sigmoid', name='head')(inputs)
  return keras.Model(inputs, layers.Reshape((1,))(outputs))


def _softmax_in_a_lambda():
  return keras.Sequential(
    [
      keras.Input((4,)),
      layers.Dense(3, name='head'),
      layers.Lambda(tf.nn.softmax),
    ]
  )


def _own(y_true, y_pred):
  return keras.ops.mean(keras.ops.abs(y_true - y_pred) ** 3, axis=-1)


# Name -> (model, loss, metrics), and besides arguments of `from_keras`.
_CASES = {
  'probabilities': (
    lambda: _dense(end='softmax'),
    'sparse_categorical_crossentropy',
    ['accuracy', keras.metrics.SparseTopKCategoricalAccuracy(2, name='top')],
  ),
  'logits': (
    _dense,
    _SPARSE,
    [
      'accuracy',
      keras.metrics.SparseCategoricalCrossentropy('nats', from_logits=True),
    ],
  ),
  'label_smoothing': (
    _dense,
    losses.CategoricalCrossentropy(from_logits=True, label_smoothing=0.2),
    ['accuracy'],
  ),
  'categorical_focal': (
    lambda: _dense(end='softmax'),
    'categorical_focal_crossentropy',
    ['accuracy', 'mse'],
  ),
  'categorical_hinge': (_dense, 'categorical_hinge', ['accuracy']),
  'binary': (
    lambda: _dense(units=1, end='sigmoid'),
    'binary_crossentropy',
    ['accuracy', 'mse'],
  ),
  'binary_logits': (
    lambda: _dense(units=1),
    losses.BinaryCrossentropy(from_logits=True),
    [keras.metrics.BinaryAccuracy(threshold=0.0, name='accuracy')],
  ),
  'binary_focal': (
    lambda: _dense(units=1, end='sigmoid'),
    'binary_focal_crossentropy',
    ['accuracy'],
  ),
  'several_labels': (
    lambda: _dense(end='sigmoid'),
    'binary_crossentropy',
    [keras.metrics.BinaryAccuracy(name='accuracy')],
  ),
  'hinge': (
    lambda: _dense(units=1),
    'hinge',
    [keras.metrics.BinaryAccuracy(threshold=0.0)],
  ),
  'reshaped_sigmoid': (_reshaped_sigmoid, 'binary_crossentropy', ['accuracy']),
  'softmax_in_a_lambda': (
    _softmax_in_a_lambda,
    'sparse_categorical_crossentropy',
    ['accuracy'],
  ),
  'mse': (lambda: _dense(units=1), 'mse', ['mae']),
  'mae_of_vectors': (_dense, 'mae', ['mse', 'cosine_similarity']),
  'huber': (lambda: _dense(units=1), losses.Huber(0.3), ['mape']),
  'poisson': (lambda: _dense(units=1, end='softplus'), 'poisson', []),
  'log_cosh': (_dense, 'log_cosh', ['mae']),
  'own_loss': (_dense, _own, ['mae']),
  'tags_of_padded_words': (
    lambda: _words(layers.LSTM(4, return_sequences=True)),
    _SPARSE,
    ['accuracy'],
  ),
  'one_hot_tags': (
    lambda: keras.Sequential(
      [
        keras.Input((6,), dtype='int32'),
        layers.Embedding(7, 4, mask_zero=True),
        layers.LSTM(4, return_sequences=True),
        layers.Dense(3, 'softmax', name='head'),
      ]
    ),
    'categorical_crossentropy',
    ['accuracy'],
  ),
  'padded_words': (
    lambda: _words(layers.GRU(4)),
    _SPARSE,
    ['accuracy'],
  ),
  'mean_of_padded_words': (
    lambda: _words(layers.GlobalAveragePooling1D()),
    _SPARSE,
    ['accuracy'],
  ),
  'ignored_class': (
    lambda: _features(layers.Conv1D(4, 3, padding='same'), shape=(6, 2)),
    losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=0),
    [],
  ),
  'masked_batch_normalization': (
    lambda: _words(layers.BatchNormalization(), layers.GRU(4)),
    _SPARSE,
    ['accuracy'],
  ),
  'batch_normalization': (
    lambda: _features(
      layers.Conv2D(4, 3),
      layers.BatchNormalization(momentum=0.8),
      layers.ReLU(),
      layers.MaxPooling2D(),
      layers.Flatten(),
      shape=(8, 8, 2),
    ),
    _SPARSE,
    ['accuracy'],
  ),
  'renormalization': (
    lambda: _features(layers.Dense(5), layers.BatchNormalization(renorm=True)),
    _SPARSE,
    ['accuracy'],
  ),
  'group_normalization': (
    lambda: _features(
      layers.SeparableConv2D(4, 3),
      layers.GroupNormalization(2),
      layers.GlobalMaxPooling2D(),
      shape=(6, 6, 2),
    ),
    _SPARSE,
    ['accuracy'],
  ),
  'bidirectional': (
    lambda: _features(layers.Bidirectional(layers.GRU(3)), shape=(5, 2)),
    _SPARSE,
    ['accuracy'],
  ),
  'attention': (_attention, _SPARSE, ['accuracy']),
  'model_in_a_model': (_transfer, _SPARSE, ['accuracy']),
  'layer_of_layers': (lambda: _features(Block()), _SPARSE, ['accuracy']),
  'adapted_normalization': (_adapted, _SPARSE, ['accuracy']),
  'holds_a_tensor': (lambda: _features(Centered()), _SPARSE, ['accuracy']),
  'subclassed': (_subclassed, _SPARSE, ['accuracy']),
  'own_training': (_own_training, _SPARSE, ['accuracy']),
  'masks_across_the_cut': (
    _masked_attention,
    _SPARSE,
    ['accuracy'],
    {},
    ['head_attention', 'head'],
  ),
  'class_weight': (_dense, _SPARSE, [], {'class_weight': {0: 3.0, 2: 0.5}}),
}


def _examples(bridged):
  rng = np.random.default_rng(1)

  def some(spec, high):
    shape = [_NUM, *spec.shape]
    if spec.dtype.is_integer:
      return rng.integers(0, high, shape).astype(spec.dtype.as_numpy_dtype)
    return rng.normal(size=shape).astype(np.float32)

  spec = bridged.element_spec
  x, y = some(spec['x'], 7), some(spec['y'], 3)
  classifier = bridged.classifier
  if spec['y'].dtype.is_integer and classifier.num_classes == 2:
    y %= 2
  if spec['y'].dtype.is_floating and classifier is not None:
    y = rng.integers(0, 3, [_NUM, *spec['y'].shape[:-1]])
    y = np.eye(3, dtype=np.float32)[y]
  elif 'poisson' in bridged.name:
    y = np.abs(y)
  return x, y


@pytest.mark.parametrize('case', _CASES)
def test_loss_metrics_and_a_step_are_those_of_keras(case):
  make, loss, metrics, *more = _CASES[case]
  arguments = more[0] if more else {}
  head_layers = more[1] if len(more) > 1 else ['head']
  keras.utils.set_random_seed(4)
  model = make()
  bridged = keras_bridge.from_keras(
    model,
    head_layers=head_layers,
    loss=loss,
    metrics=metrics,
    jit_compile=False,
    **arguments,
  )
  x, y = _examples(bridged)
  weights = keras_models.tensors(bridged)
  batch = objectives.Batch(tf.constant(x), tf.constant(y), tf.ones([_NUM]))
  outputs, _ = bridged.forward(weights, batch.x)
  own = objectives.means(
    objectives.metric_sums(bridged, outputs, batch.y, batch.example_weights)
  )
  step = objectives.joint_loss(bridged)(
    weights, batch, seed=tf.constant([1, 2])
  )

  model.compile(
    keras.optimizers.SGD(_RATE), loss, metrics=metrics, run_eagerly=True
  )
  if not arguments:
    expected = model.evaluate(x, y, _NUM, verbose=0, return_dict=True)
    assert set(own) == set(expected)
    for name, value in own.items():
      np.testing.assert_allclose(value, expected[name], 1e-5, 1e-6)
  trained = model.train_on_batch(x, y, return_dict=True, **arguments)
  np.testing.assert_allclose(
    objectives.means(step.metrics)['loss'], trained['loss'], 1e-4
  )
  after = {
    **weights,
    **{k: weights[k] - _RATE * g for k, g in step.gradient.items()},
    **step.statistics,
  }
  again = keras_bridge.from_keras(
    model,
    head_layers=head_layers,
    loss=loss,
    metrics=metrics,
    jit_compile=False,
    **arguments,
  )
  assert set(after) == set(again.initial_weights)
  for name, value in again.initial_weights.items():
    np.testing.assert_allclose(after[name], value, 1e-4, 1e-5, err_msg=name)
    if name in step.gradient and not name.endswith('bias'):
      assert not np.array_equal(value, weights[name]), name
