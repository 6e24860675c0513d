"""Losses, metrics and probabilities."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.models import keras_models
from tff_pfl import datasets
from tff_pfl.core import example_tensors, scoring
from tff_pfl.methods import registry
from tff_pfl.models import copies
from tff_pfl.runs import training

layers = keras.layers


_THREE = np.float32([[0.7, 0.2, 0.1], [0.25, 0.25, 0.5]])
_ONE = np.float32([[0.3], [0.8], [0.6]])
_SPARSE = keras.losses.SparseCategoricalCrossentropy
_BINARY = keras.losses.BinaryCrossentropy


@pytest.mark.parametrize(
  'loss, name, probabilities, y, label_spec, losses, accuracies',
  [
    (
      _SPARSE,
      'sparse_categorical_crossentropy',
      _THREE,
      [1, 2],
      tf.TensorSpec([], tf.int32),
      -np.log([0.2, 0.5]),
      [0, 1],
    ),
    (
      keras.losses.CategoricalCrossentropy,
      'categorical_crossentropy',
      _THREE,
      [[0.0, 1.0, 0.0], [0.0, 0.0, 1.0]],
      tf.TensorSpec([3], tf.float32),
      -np.log([0.2, 0.5]),
      [0, 1],
    ),
    (
      _BINARY,
      'binary_crossentropy',
      _ONE,
      [0, 1, 0],
      tf.TensorSpec([], tf.int32),
      -np.log([0.7, 0.8, 0.4]),
      [1, 1, 0],
    ),
    (
      # (1 - p)^2 of what is certain counts less.
      keras.losses.BinaryFocalCrossentropy,
      'binary_focal_crossentropy',
      _ONE,
      [0, 1, 0],
      tf.TensorSpec([], tf.int32),
      -np.log([0.7, 0.8, 0.4]) * np.square([0.3, 0.2, 0.6]),
      [1, 1, 0],
    ),
    (
      # Several labels, of two classes each.
      _BINARY,
      'binary_crossentropy',
      np.float32([[0.75, 0.75, 0.25]]),
      [[1, 0, 1]],
      tf.TensorSpec([3], tf.int32),
      [-np.log([0.75, 0.25, 0.25]).mean()],
      [1 / 3],
    ),
  ],
  ids=['sparse', 'one_hot', 'binary', 'focal', 'labels'],
)
@pytest.mark.parametrize('form', ['name', 'probabilities', 'logits'])
def test_cross_entropies(
  loss, name, probabilities, y, label_spec, losses, accuracies, form
):
  is_binary = name.startswith('binary')
  activation = 'sigmoid' if is_binary else 'softmax'
  outputs = probabilities
  if form == 'logits':
    activation = None
    outputs = np.log(probabilities)
    if is_binary:
      outputs -= np.log(1 - probabilities)
  outputs = tf.constant(outputs)
  bridged = keras_models.bridge(
    keras_models.sequential(units=outputs.shape[1], activation=activation),
    loss=name if form == 'name' else loss(from_logits=form == 'logits'),
  )
  assert bridged.element_spec['y'] == label_spec
  y = tf.constant(y)
  np.testing.assert_allclose(bridged.loss(y, outputs), losses, rtol=1e-4)
  np.testing.assert_allclose(
    bridged.metrics['accuracy'](y, outputs), accuracies
  )
  classifier = bridged.classifier
  wanted = probabilities
  if is_binary:
    wanted = np.stack([1 - probabilities, probabilities], axis=-1)
    assert classifier.is_multilabel == (label_spec.shape.rank == 1)
    if not classifier.is_multilabel:
      wanted = wanted[:, 0]
  assert classifier.num_classes == wanted.shape[-1]
  found = classifier.probabilities(outputs)
  np.testing.assert_allclose(found, wanted, rtol=1e-5)
  again = classifier.probabilities(classifier.outputs_of(found))
  np.testing.assert_allclose(again, wanted, rtol=1e-5)


def test_several_numbers_as_labels_are_no_classes():
  bridged = keras_models.bridge(
    keras_models.sequential(activation='sigmoid'),
    loss='binary_crossentropy',
    metrics=[],
    label_spec=tf.TensorSpec([3], tf.float32),
  )
  assert bridged.classifier is None


def test_sequence_outputs_are_averaged_over_time():
  model = keras.Sequential(
    [
      keras.Input((4,), dtype='int32'),
      layers.Embedding(5, 3),
      layers.GRU(3, return_sequences=True),
      layers.Dense(5, name='head'),
    ]
  )
  bridged = keras_models.bridge(model)
  assert bridged.element_spec['y'] == tf.TensorSpec([4], tf.int32)
  rng = np.random.default_rng(0)
  logits = rng.normal(size=(2, 4, 5)).astype(np.float32)
  y = rng.integers(0, 5, (2, 4)).astype(np.int32)
  log_softmax = logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))
  picked = np.take_along_axis(log_softmax, y[..., np.newaxis], axis=-1)[..., 0]
  np.testing.assert_allclose(
    bridged.loss(tf.constant(y), tf.constant(logits)),
    -picked.mean(axis=1),
    rtol=1e-5,
  )
  np.testing.assert_allclose(
    bridged.metrics['accuracy'](tf.constant(y), tf.constant(logits)),
    (logits.argmax(axis=-1) == y).mean(axis=1),
  )
  assert bridged.classifier.probabilities(logits).shape == (2, 4, 5)


@pytest.mark.parametrize(
  'loss, label_spec, y, outputs, losses',
  [
    # A scalar does not broadcast.
    *(
      (loss, None, [1.0, 2.0, 5.0], [[1.0], [4.0], [2.0]], [0, 4, 9])
      for loss in ('mse', keras.losses.MeanSquaredError())
    ),
    ('mse', None, [[1.0, 2.0]], [[2.0, 5.0]], [5]),
    (
      lambda y, p: tf.abs(y - p)[:, 0] ** 3,
      tf.TensorSpec([], tf.int64),
      [1, 2],
      [[3.0], [1.0]],
      [8, 1],
    ),
    (
      lambda y, p: pinball(y, p),
      None,
      [3.0, 1.0],
      [[1.0], [3.0]],
      [1.8, 0.2],
    ),
    # The weight of an example.
    (
      lambda y, p: y[:, 1:] * pinball(y[:, :1], p),
      tf.TensorSpec([2], tf.float32),
      [[3.0, 2.0], [1.0, 0.0]],
      [[1.0], [3.0]],
      [3.6, 0],
    ),
  ],
)
def test_regression(loss, label_spec, y, outputs, losses):
  units = len(outputs[0])
  bridged = keras_models.bridge(
    keras_models.sequential(units=units),
    loss=loss,
    metrics=[] if label_spec else ['mae'],
    label_spec=label_spec,
  )
  spec = bridged.element_spec['y']
  default = tf.TensorSpec([] if units == 1 else [units], tf.float32)
  assert spec == (label_spec or default)
  assert bridged.classifier is None
  y, outputs = tf.constant(y, spec.dtype), tf.constant(outputs)
  np.testing.assert_allclose(bridged.loss(y, outputs), losses, rtol=1e-6)
  if loss == 'mse':
    np.testing.assert_allclose(
      bridged.metrics['mae'](y, outputs),
      np.abs(np.reshape(y, outputs.shape) - outputs).mean(axis=1),
    )


def test_metrics_by_name_object_and_function():
  def margin(y_true, y_pred):
    del y_true
    return tf.reduce_max(y_pred, axis=-1)

  bridged = keras_models.bridge(
    keras_models.make('dense'),
    metrics=[
      'accuracy',
      keras.metrics.SparseTopKCategoricalAccuracy(k=2, name='top_2'),
      keras.metrics.SparseCategoricalCrossentropy(
        from_logits=True, name='nats'
      ),
      margin,
    ],
  )
  y = tf.constant([0, 2])
  logits = tf.constant([[1.0, 2.0, 0.0], [3.0, 2.0, 1.0]])
  values = {k: f(y, logits).numpy() for k, f in bridged.metrics.items()}
  assert list(values) == ['accuracy', 'top_2', 'nats', 'margin']
  np.testing.assert_array_equal(values['accuracy'], [0, 0])
  np.testing.assert_array_equal(values['top_2'], [1, 0])
  np.testing.assert_allclose(values['nats'], bridged.loss(y, logits))
  np.testing.assert_array_equal(values['margin'], [2, 3])


class _OwnUpdate(keras.metrics.SparseCategoricalAccuracy):
  def __init__(self):
    super().__init__(name='own')

  def update_state(self, y_true, y_pred, sample_weight=None):
    super().update_state(y_true, y_pred, tf.cast(y_true > 0, tf.float32))


def nats(y, p):
  return keras.losses.sparse_categorical_crossentropy(y, p, from_logits=True)


def brier(y, p):
  return tf.reduce_sum(tf.square(y - p), axis=-1)


def pinball(y, p):
  return tf.maximum(0.9 * (y - p), 0.1 * (p - y))


class Nats(keras.losses.Loss):
  def call(self, y_true, y_pred):
    return nats(y_true, y_pred)


@pytest.mark.parametrize(
  'loss, units, task, label_spec, num_classes',
  [
    (nats, 3, 'classification', tf.TensorSpec([], tf.int32), 3),
    (Nats(), 3, 'classification', tf.TensorSpec([], tf.int32), 3),
    (brier, 3, 'one_hot_classification', tf.TensorSpec([3], tf.float32), 3),
    (brier, 3, None, tf.TensorSpec([3], tf.float32), None),
    (pinball, 1, 'regression', tf.TensorSpec([], tf.float32), None),
    (brier, 1, 'binary_classification', tf.TensorSpec([], tf.int32), 2),
  ],
  ids=['classes', 'object', 'one_hot', 'vectors', 'quantile', 'two_classes'],
)
def test_labels_that_a_loss_of_ones_own_takes(
  loss, units, task, label_spec, num_classes
):
  bridged = keras_models.bridge(
    keras_models.sequential(units=units),
    loss=loss,
    task=task,
    metrics=['accuracy'] if num_classes else [],
  )
  assert bridged.element_spec['y'] == label_spec
  assert (bridged.classifier and bridged.classifier.num_classes) == num_classes


@pytest.mark.parametrize(
  'loss, metrics, higher_is_better, primary',
  [
    ('mse', ['mae', 'mse'], None, ('mae', False)),
    ('mse', [], None, ('loss', False)),
    ('mse', ['cosine_similarity'], None, ('cosine_similarity', True)),
    ('mse', [keras.metrics.MeanSquaredError(name='mse')], None, ('mse', False)),
    ('mse', [pinball], False, ('pinball', False)),
    (
      keras.losses.CategoricalCrossentropy(from_logits=True),
      [keras.metrics.TopKCategoricalAccuracy(2, name='top_2'), 'accuracy'],
      None,
      ('top_2', True),
    ),
    (
      _SPARSE(from_logits=True),
      [
        'accuracy',
        keras.metrics.SparseCategoricalCrossentropy(from_logits=True),
      ],
      None,
      ('accuracy', True),
    ),
  ],
)
def test_the_first_metric_is_the_primary_one(
  loss, metrics, higher_is_better, primary
):
  bridged = keras_models.bridge(
    keras_models.sequential(),
    loss=loss,
    metrics=metrics,
    higher_is_better=higher_is_better,
  )
  assert bridged.primary_metric == primary


def test_classes_have_weights_in_training_alone():
  logits = tf.constant([[1.0, 2.0, 0.0], [3.0, 2.0, 1.0], [0.0, 0.0, 0.0]])
  y = tf.constant([0, 1, 2])
  for loss, labels in (
    (_SPARSE(from_logits=True), y),
    (keras.losses.CategoricalCrossentropy(from_logits=True), tf.one_hot(y, 3)),
  ):
    plain, weighted = (
      keras_models.bridge(
        keras_models.sequential(), loss=loss, class_weight=class_weight
      )
      for class_weight in (None, {0: 0.5, 2: 4.0})
    )
    losses = plain.loss(labels, logits)
    np.testing.assert_array_equal(weighted.loss(labels, logits), losses)
    np.testing.assert_allclose(
      weighted.in_training.loss(labels, logits), losses * np.array([0.5, 1, 4])
    )
  binary = keras_models.bridge(
    keras_models.sequential(units=1),
    loss=_BINARY(from_logits=True),
    class_weight={1: 3.0},
  )
  np.testing.assert_allclose(
    binary.in_training.loss(tf.constant([0, 1]), tf.constant([[0.0], [0.0]])),
    np.log(2) * np.array([1, 3]),
    rtol=1e-6,
  )
  labels = keras_models.bridge(
    keras_models.sequential(),
    loss=_BINARY(from_logits=True),
    class_weight={1: 10.0},
  )
  np.testing.assert_allclose(
    labels.in_training.loss(
      tf.constant([[0, 1, 0], [1, 1, 0]]), tf.zeros([2, 3])
    ),
    np.log(2) * np.array([12 / 3, 21 / 3]),
    rtol=1e-6,
  )


@pytest.mark.parametrize(
  'arguments, error, reason',
  [
    ({'loss': 'nonsense'}, ValueError, "Keras loss, found 'nonsense'"),
    ({'loss': 3}, TypeError, '`loss`.*found 3'),
    (
      {'loss': lambda y, p: tf.reduce_mean(p), 'metrics': []},
      ValueError,
      'value per example',
    ),
    (
      {'loss': 'mse', 'metrics': [pinball]},
      ValueError,
      "`higher_is_better` to be True or False.*'pinball'",
    ),
    (
      {'loss': 'sparse_categorical_crossentropy'},
      ValueError,
      r'no probabilities: SparseCategoricalCrossentropy\(from_logits=True\)',
    ),
    ({'loss': _SPARSE()}, ValueError, 'SparseCategoricalCrossentropy'),
    (
      {'loss': _SPARSE(from_logits=True, reduction='sum')},
      ValueError,
      "found \"reduction='sum'",
    ),
    (
      {'metrics': ['sparse_categorical_crossentropy']},
      ValueError,
      r'`SparseCategoricalCrossentropy\(from_logits=True\)`',
    ),
    (
      {'metrics': [_OwnUpdate()]},
      ValueError,
      "means over examples.*_OwnUpdate 'own'",
    ),
    (
      {'loss': lambda y, p: 0 * p[:, 0], 'metrics': []},
      ValueError,
      'a loss with a gradient',
    ),
    ({'task': 'nonsense'}, ValueError, '`task`'),
    ({'class_weight': 'balanced'}, TypeError, 'a dict from class to factor'),
    ({'label_spec': tf.int32}, TypeError, 'a tf.TensorSpec'),
    ({'class_weight': {3: 2.0}}, ValueError, r'integer in \[0, 2\], found 3'),
    (
      {'loss': 'mse', 'metrics': [], 'class_weight': {0: 2.0}},
      ValueError,
      '`class_weight` to be None',
    ),
    ({'loss': 'mse'}, ValueError, "'accuracy' needs a classification loss"),
    (
      {'metrics': ['nonsense']},
      ValueError,
      "Keras metrics, or of .*auc.*found 'nonsense'",
    ),
    ({'metrics': 'accuracy'}, TypeError, "a list, found 'accuracy'"),
    ({'metrics': [3]}, TypeError, '`metrics`.*found 3'),
    ({'metrics': ['AUC']}, ValueError, 'means over examples.*AUC'),
    ({'metrics': ['rmse']}, ValueError, "a classifier.*found 'rmse'"),
    ({'metrics': ['mae']}, ValueError, "is of classes .* found 'mae'"),
    (
      {'metrics': [keras.metrics.AUC(name='area')]},
      ValueError,
      "means over examples.*AUC 'area'",
    ),
    (
      {'metrics': ['accuracy', 'accuracy']},
      ValueError,
      "distinct names other than loss, found 'accuracy'",
    ),
    (
      {'label_spec': tf.TensorSpec([7], tf.int32)},
      ValueError,
      r'labels of shape \(7,\) and dtype int32 \(`label_spec`',
    ),
    (
      {
        'loss': 'mse',
        'metrics': [],
        'label_spec': tf.TensorSpec([7], tf.float32),
      },
      ValueError,
      r'labels of shape \(7,\) and dtype float32',
    ),
  ],
)
def test_losses_metrics_and_labels_that_do_not_fit_are_refused(
  arguments, error, reason
):
  with pytest.raises(error, match=reason) as raised:
    keras_models.bridge(keras_models.make('dense'), **arguments)
  assert '\n' not in str(raised.value)


# Elements that do not count.


def _tagger(units, activation, loss, **arguments):
  return keras_models.bridge(
    keras.Sequential(
      [
        keras.Input((3,), dtype='int32'),
        layers.Embedding(5, 4, mask_zero=True),
        layers.SimpleRNN(4, return_sequences=True),
        layers.Dense(units, activation, name='head'),
      ]
    ),
    loss=loss,
    **arguments,
  )


def test_masked_elements_of_two_classes_count_nowhere():
  bridged = _tagger(1, 'sigmoid', 'binary_crossentropy')
  nan = np.nan
  outputs = tf.constant([[[0.9], [0.2], [nan]], [[0.6], [nan], [nan]]])
  y = tf.constant([[1, 1, 1], [0, 0, 0]])
  np.testing.assert_allclose(
    bridged.metrics['accuracy'](y, outputs), [0.5, 0.0]
  )
  np.testing.assert_allclose(
    bridged.loss(y, outputs),
    [-np.log([0.9, 0.2]).mean(), -np.log(0.4)],
    rtol=1e-5,
  )
  np.testing.assert_allclose(bridged.counted(y, outputs), [2 / 3, 1 / 3])


def test_a_model_that_diverged_is_not_taken_for_masked():
  bridged = _tagger(3, None, _SPARSE(from_logits=True))
  nan, inf = np.nan, np.inf
  outputs = tf.constant([[[inf] * 3, [1.0, 0.0, 0.0], [nan] * 3]])
  y = tf.constant([[0, 0, 0]])
  assert np.isnan(bridged.loss(y, outputs)[0])
  assert bridged.metrics['accuracy'](y, outputs)[0] == 0
  good = tf.constant([[[1.0, 0.0, 0.0]] * 2 + [[nan] * 3]])
  mixed = copies.mixed_outputs(bridged, [outputs, good], tf.zeros([2]))
  assert np.isnan(bridged.loss(y, mixed)[0])
  np.testing.assert_array_equal(
    bridged.counted(y, mixed), bridged.counted(y, good)
  )


@pytest.mark.parametrize('name', ['fed_avg', 'fed_em', 'fed_rod', 'apfl'])
def test_methods_take_models_of_which_not_all_counts(name, tmp_path):
  keras.utils.set_random_seed(1)
  bridged = keras_models.bridge(
    keras_models.sequential(layers.Dense(4, name='body')),
    loss=_SPARSE(from_logits=True, ignore_class=2),
    jit_compile=False,
  )
  rng = np.random.default_rng(0)
  x = rng.normal(size=[40, 4]).astype(np.float32)
  data = datasets.FederatedDataset.from_arrays(
    x, x[:, :3].argmax(axis=1), num_clients=2
  )
  run = training.run(
    registry.build(name, bridged),
    data,
    output_dir=str(tmp_path / 'run'),
    num_rounds=1,
    cohort_size=2,
    show_progress=False,
  )
  assert np.isfinite(run.summary['loss'])


def test_a_gradient_in_chunks_is_that_of_what_counts(monkeypatch):
  bridged = keras_models.bridge(
    keras_models.sequential(layers.Dense(4, name='body')),
    loss=_SPARSE(from_logits=True, ignore_class=-1),
  )
  rng = np.random.default_rng(0)
  x = rng.normal(size=[8, 4]).astype(np.float32)
  y = np.array([0, -1, -1, -1, 1, 2, 0, 1], np.int32)
  weights = keras_models.tensors(bridged)

  def gradient():
    padded = example_tensors.ExampleTensors(
      tf.constant(x), tf.constant(y), tf.constant(8)
    )
    return scoring.mean_gradient(bridged, weights, padded)

  whole = gradient()
  monkeypatch.setattr(example_tensors, 'CHUNK_SIZE', 4)
  for name, value in gradient().items():
    np.testing.assert_allclose(value, whole[name], rtol=1e-4, atol=1e-6)
