"""Losses, metrics and probabilities."""

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.methods import toy_problems
from tests.models import keras_models
from tff_pfl.core import example_tensors, scoring
from tff_pfl.methods import registry
from tff_pfl.models import copies

layers = keras.layers
losses = keras.losses
sequential = keras_models.sequential

_SPARSE = keras_models.SPARSE
_ONE_HOT = losses.CategoricalCrossentropy(from_logits=True)
_BINARY = losses.BinaryCrossentropy(from_logits=True)
_BINARY_ACCURACY = keras.metrics.BinaryAccuracy(threshold=0, name='accuracy')
_ACCURACY_OF_ALL = keras.metrics.BinaryAccuracy(name='accuracy')


def nats(y, p):
  return losses.sparse_categorical_crossentropy(y, p, from_logits=True)


class Nats(losses.Loss):
  def call(self, y_true, y_pred):
    return nats(y_true, y_pred)


def brier(y, p):
  return tf.reduce_sum(tf.square(y - p), axis=-1)


def pinball(y, p):
  return tf.maximum(0.9 * (y - p), 0.1 * (p - y))


def margin(y_true, y_pred):
  del y_true
  return tf.reduce_max(y_pred, axis=-1)


def _dense(units, activation=None):
  return sequential(layers.Dense(5, 'tanh'), units=units, activation=activation)


def _followed(layer, *head):
  return keras.Sequential([keras.Input((4,)), *_dense(*head).layers, layer])


def _tags(units, activation=None):
  return keras_models.words(
    layers.SimpleRNN(4, return_sequences=True),
    units=units,
    activation=activation,
  )


def _probable_tags():
  return _tags(3, 'softmax')


def _steps():
  return sequential(layers.Conv1D(4, 3, padding='same'), shape=(6, 2))


_OBJECTS = [
  'accuracy',
  keras.metrics.SparseTopKCategoricalAccuracy(2, name='top'),
  keras.metrics.SparseCategoricalCrossentropy('nats', from_logits=True),
  margin,
]
_NAME = 'sparse_categorical_crossentropy'
_IGNORING = losses.SparseCategoricalCrossentropy(True, ignore_class=0)

# Name -> (model, or the units and activation of its head; loss; metrics) and
# weights of classes.
_CASES = {
  'by_name': ((3, 'softmax'), _NAME, ['accuracy']),
  'by_object': ((3,), _SPARSE, _OBJECTS),
  'categorical_hinge': ((3,), 'categorical_hinge', ['accuracy']),
  'binary': ((1, 'sigmoid'), 'binary_crossentropy', ['accuracy', 'mse']),
  'binary_logits': ((1,), _BINARY, [_BINARY_ACCURACY]),
  'several_labels': ((3, 'sigmoid'), 'binary_crossentropy', [_ACCURACY_OF_ALL]),
  'hinge': ((1,), 'hinge', [_BINARY_ACCURACY]),
  'mse': ((1,), 'mse', ['mae']),
  'huber': ((3,), losses.Huber(0.3), ['mse', 'cosine_similarity']),
  'own_loss': ((3,), brier, ['mae']),
  'one_hot_tags': (_probable_tags, 'categorical_crossentropy', ['accuracy']),
  'ignored_class': (_steps, _IGNORING, []),
  'class_weight': ((3,), _SPARSE, [], {0: 3.0, 2: 0.5}),
  'one_hot_class_weight': ((3,), _ONE_HOT, [], {0: 0.5, 2: 4.0}),
  'binary_class_weight': ((1,), _BINARY, [], {1: 3.0}),
}


@pytest.mark.parametrize('kind', _CASES)
def test_reports_and_a_step_are_those_of_keras(kind):
  head, loss, metrics, *weights = _CASES[kind]
  keras.utils.set_random_seed(4)
  model = head() if callable(head) else _dense(*head)
  arguments = {'class_weight': weights[0]} if weights else {}
  keras_models.assert_as_keras(model, loss, metrics, **arguments)


# Probabilities.

_THREE = np.float32([[0.7, 0.2, 0.1], [0.25, 0.25, 0.5]])
_ONE = np.float32([[0.3], [0.8], [0.6]])
_LABELS = np.float32([[0.75, 0.75, 0.25]])


_LABEL = tf.TensorSpec([], tf.int32)
_VECTOR = tf.TensorSpec([3], tf.float32)
_FLAGS = tf.TensorSpec([3], tf.int32)


@pytest.mark.parametrize(
  'loss, probabilities, y, label_spec, expected',
  [
    (_SPARSE, _THREE, [1, 2], _LABEL, [0.2, 0.5]),
    (_ONE_HOT, _THREE, [[0.0, 1, 0], [0.0, 0, 1]], _VECTOR, [0.2, 0.5]),
    (_BINARY, _ONE, [0, 1, 0], _LABEL, [0.7, 0.8, 0.4]),
    # Several labels, of two classes each.
    (_BINARY, _LABELS, [[1, 0, 1]], _FLAGS, [(0.75 * 0.25 * 0.25) ** (1 / 3)]),
  ],
)
@pytest.mark.parametrize('from_logits', [False, True])
def test_outputs_of_classifiers_mean_probabilities(
  loss, probabilities, y, label_spec, expected, from_logits
):
  is_binary = loss is _BINARY
  activation, outputs = 'sigmoid' if is_binary else 'softmax', probabilities
  if from_logits:
    activation, outputs = None, np.log(probabilities)
    if is_binary:
      outputs -= np.log(1 - probabilities)
  outputs = tf.constant(outputs)
  bridged = keras_models.bridge(
    sequential(units=outputs.shape[1], activation=activation),
    loss=type(loss)(from_logits=from_logits),
  )
  assert bridged.element_spec['y'] == label_spec
  np.testing.assert_allclose(
    bridged.loss(tf.constant(y), outputs), -np.log(expected), rtol=1e-4
  )
  classifier = bridged.classifier
  target = probabilities
  if is_binary:
    target = np.stack([1 - probabilities, probabilities], axis=-1)
    assert classifier.is_multilabel == (label_spec.shape.rank == 1)
    if not classifier.is_multilabel:
      target = target[:, 0]
  assert classifier.num_classes == target.shape[-1]
  actual = classifier.probabilities(outputs)
  np.testing.assert_allclose(actual, target, rtol=1e-5)
  again = classifier.probabilities(classifier.outputs_of(actual))
  np.testing.assert_allclose(again, target, rtol=1e-5)


def cubes(y, p):
  return tf.abs(y - p)[:, 0] ** 3


def weighted_pinball(y, p):
  return y[:, 1:] * pinball(y[:, :1], p)


@pytest.mark.parametrize(
  'loss, label_spec, y, outputs, expected',
  [
    # A scalar does not broadcast.
    ('mse', None, [1.0, 2.0, 5.0], [[1.0], [4.0], [2.0]], [0, 4, 9]),
    (cubes, tf.TensorSpec([], tf.int64), [1, 2], [[3.0], [1.0]], [8, 1]),
    # The weight of an example.
    (
      weighted_pinball,
      tf.TensorSpec([2], tf.float32),
      [[3.0, 2.0], [1.0, 0.0]],
      [[1.0], [3.0]],
      [3.6, 0],
    ),
  ],
)
def test_regression(loss, label_spec, y, outputs, expected):
  bridged = keras_models.bridge(
    sequential(units=1), loss=loss, metrics=[], label_spec=label_spec
  )
  spec = bridged.element_spec['y']
  assert spec == (label_spec or tf.TensorSpec([], tf.float32))
  assert bridged.classifier is None
  actual = bridged.loss(tf.constant(y, spec.dtype), tf.constant(outputs))
  np.testing.assert_allclose(actual, expected, rtol=1e-6)


@pytest.mark.parametrize(
  'loss, units, task, label_spec, num_classes',
  [
    (Nats(), 3, 'classification', _LABEL, 3),
    (brier, 3, 'one_hot_classification', _VECTOR, 3),
    (brier, 3, None, _VECTOR, None),
    (pinball, 1, 'regression', tf.TensorSpec([], tf.float32), None),
    (brier, 1, 'binary_classification', _LABEL, 2),
  ],
)
def test_labels_that_a_loss_of_ones_own_takes(
  loss, units, task, label_spec, num_classes
):
  bridged = keras_models.bridge(
    sequential(units=units),
    loss=loss,
    task=task,
    metrics=['accuracy'] if num_classes else [],
  )
  assert bridged.element_spec['y'] == label_spec
  assert (bridged.classifier and bridged.classifier.num_classes) == num_classes


def test_several_numbers_as_labels_are_no_classes():
  bridged = keras_models.bridge(
    sequential(activation='sigmoid'),
    loss='binary_crossentropy',
    metrics=[],
    label_spec=_VECTOR,
  )
  assert bridged.classifier is None


@pytest.mark.parametrize(
  'loss, metrics, higher_is_better, primary',
  [
    ('mse', ['mae', 'mse'], None, ('mae', False)),
    ('mse', [], None, ('loss', False)),
    ('mse', ['cosine_similarity'], None, ('cosine_similarity', True)),
    ('mse', [keras.metrics.MeanSquaredError(name='mse')], None, ('mse', False)),
    ('mse', [pinball], False, ('pinball', False)),
    (
      _ONE_HOT,
      [keras.metrics.TopKCategoricalAccuracy(2, name='top_2'), 'accuracy'],
      None,
      ('top_2', True),
    ),
  ],
)
def test_the_first_metric_is_the_primary_one(
  loss, metrics, higher_is_better, primary
):
  bridged = keras_models.bridge(
    sequential(), loss=loss, metrics=metrics, higher_is_better=higher_is_better
  )
  assert bridged.primary_metric == primary


def test_labels_have_weights_in_training_alone():
  bridged = keras_models.bridge(
    sequential(), loss=_BINARY, class_weight={1: 10.0}
  )
  y, outputs = tf.constant([[0, 1, 0], [1, 1, 0]]), tf.zeros([2, 3])
  for model, factors in ((bridged, [1, 1]), (bridged.in_training, [4, 7])):
    np.testing.assert_allclose(
      model.loss(y, outputs), np.log(2) * np.array(factors), rtol=1e-6
    )


def test_integers_in_an_axis_of_their_own_have_the_weights_of_their_classes():
  bridged = keras_models.bridge(
    sequential(),
    label_spec=tf.TensorSpec([1], tf.int32),
    class_weight={0: 2.0, 2: 5.0},
  )
  y = tf.constant([[0], [1], [2]])
  np.testing.assert_allclose(
    bridged.in_training.loss(y, tf.zeros([3, 3])),
    np.log(3) * np.array([2, 1, 5]),
    rtol=1e-6,
  )


class _OwnUpdate(keras.metrics.SparseCategoricalAccuracy):
  def update_state(self, y_true, y_pred, sample_weight=None):
    super().update_state(y_true, y_pred, tf.cast(y_true > 0, tf.float32))


@pytest.mark.parametrize(
  'arguments, reason',
  [
    ({'loss': 'nonsense'}, '`loss` to be the name of a Keras loss'),
    ({'loss': {'head': 'mse'}}, "`loss` to be one .*found {'head': 'mse'}"),
    ({'loss': lambda y, p: tf.reduce_mean(p), 'metrics': []}, 'per example'),
    ({'loss': 'mse', 'metrics': [pinball]}, "`higher_is_better` .*'pinball'"),
    ({'loss': _NAME}, r'`loss` .*\(from_logits=True\).* no probabilities'),
    ({'loss': losses.Hinge(reduction='sum')}, "`loss` .*reduction='sum'"),
    ({'loss': lambda y, p: 0 * p[:, 0], 'metrics': []}, 'with a gradient'),
    ({'loss': 'mse'}, "`metrics` .* a regression.*'accuracy'"),
    ({'task': 'nonsense'}, '`task`'),
    ({'jit_compile': 'yes'}, '`jit_compile`.*True or False or .*auto.*yes'),
    ({'class_weight': 'balanced'}, 'of type Mapping'),
    ({'class_weight': {3: 2.0}}, r'integer in \[0, 2\], found 3'),
    ({'loss': 'mse', 'metrics': [], 'class_weight': {0: 2.0}}, 'to be None'),
    ({'metrics': [_NAME]}, r'Crossentropy\(from_log'),
    ({'metrics': [_OwnUpdate(name='own')]}, "means over .*_OwnUpdate 'own'"),
    ({'metrics': ['nonsense']}, '`metrics` to be names of Keras metrics'),
    ({'metrics': 'accuracy'}, "a list, found 'accuracy'"),
    ({'metrics': [3]}, '`metrics`.*found 3'),
    (
      {'metrics': [lambda y, p: y], 'higher_is_better': True},
      "`metrics` .*names of ASCII letters.*found '<lambda>'",
    ),
    ({'metrics': ['AUC']}, 'means over examples, or names of auc.*AUC'),
    ({'metrics': ['rmse']}, "a classifier.*found 'rmse'"),
    ({'metrics': ['mae']}, "`metrics` .*classes .* found 'mae'"),
    ({'metrics': ['accuracy', 'accuracy']}, "than loss, found 'accuracy'"),
    ({'label_spec': tf.int32}, 'of type TensorSpec'),
    ({'label_spec': tf.TensorSpec([7], tf.int32)}, r'\(7,\) .*`label_spec`'),
  ],
)
def test_losses_metrics_and_labels_that_do_not_fit_are_refused(
  arguments, reason
):
  with pytest.raises((TypeError, ValueError), match=reason) as raised:
    keras_models.bridge(_dense(3), **arguments)
  assert '\n' not in str(raised.value)


def _reshaped_softmax():
  model = _followed(layers.Reshape((2, 3)), 6)
  model.add(layers.Activation('softmax', dtype='mixed_bfloat16'))
  model.add(layers.Reshape((2, 3)))
  return model


def _functional_sigmoid():
  inputs = keras.Input((4,))
  hidden = layers.Dense(1, name='head')(inputs)
  return keras.Model(inputs, keras.ops.sigmoid(hidden))


_OF_LOGITS = functools.partial(
  losses.sparse_categorical_crossentropy, from_logits=True
)


@pytest.mark.parametrize(
  'model, loss, task, found',
  [
    (_followed(layers.Softmax(), 3), _ONE_HOT, None, 'softmax'),
    (_followed(layers.Lambda(tf.nn.softmax), 3), _SPARSE, None, 'softmax'),
    (_reshaped_softmax(), _SPARSE, None, 'softmax'),
    (_probable_tags(), _SPARSE, None, 'softmax'),
    (_dense(3, 'softmax'), _OF_LOGITS, 'classification', 'softmax'),
    (_dense(3, 'softmax'), brier, 'one_hot_classification', 'softmax'),
    (_dense(3, 'sigmoid'), _BINARY, None, 'sigmoid'),
    (_functional_sigmoid(), 'hinge', None, 'sigmoid'),
    # These are scores, though some are between 0 and 1.
    (_dense(1, 'relu'), _BINARY, None, None),
    (_dense(3, 'sigmoid'), _SPARSE, None, None),
    (_dense(3, 'log_softmax'), _SPARSE, None, None),
    (_dense(3), _OF_LOGITS, 'classification', None),
    (_dense(3, 'sigmoid'), brier, None, None),
  ],
)
def test_probabilities_are_not_taken_for_scores(model, loss, task, found):
  def bridge():
    return keras_models.bridge(model, loss=loss, task=task, metrics=[])

  if found is None:
    bridge()
  else:
    reason = f'a loss of probabilities, as the model ends in a {found}'
    with pytest.raises(ValueError, match=reason):
      bridge()


# Elements that do not count.


def test_masked_elements_of_two_classes_count_nowhere():
  bridged = keras_models.bridge(_tags(1, 'sigmoid'), loss='binary_crossentropy')
  nan = np.nan
  outputs = tf.constant([[[0.9], [0.2], [nan]], [[0.6], [nan], [nan]]])
  y = tf.constant([[1, 1, 1], [0, 0, 0]])
  for function, expected in (
    (bridged.metrics['accuracy'], [0.5, 0.0]),
    (bridged.loss, [-np.log([0.9, 0.2]).mean(), -np.log(0.4)]),
    (bridged.counted, [2 / 3, 1 / 3]),
  ):
    np.testing.assert_allclose(function(y, outputs), expected, rtol=1e-5)


def test_a_model_that_diverged_is_not_taken_for_masked():
  bridged = keras_models.bridge(_tags(3))
  nan, inf = np.nan, np.inf
  outputs = tf.constant([[[inf] * 3, [1.0, 0.0, 0.0], [nan] * 3]])
  y = tf.constant([[0, 0, 0]])
  assert np.isnan(bridged.loss(y, outputs)[0])
  assert bridged.metrics['accuracy'](y, outputs)[0] == 0
  good = tf.constant([[[1.0, 0.0, 0.0]] * 2 + [[nan] * 3]])
  mixed = copies.mixed_outputs(bridged, [outputs, good], tf.zeros([2]))
  assert np.isnan(bridged.loss(y, mixed)[0])
  for values in (mixed, good):
    np.testing.assert_allclose(bridged.counted(y, values), [2 / 3])
  of_two = keras_models.bridge(_tags(1), loss=_BINARY)
  outputs = [[[[inf], [1.0], [nan]]], [[[2.0], [2.0], [nan]]]]
  mixed = copies.mixed_outputs(of_two, tf.constant(outputs), tf.zeros([2]))
  mean = (1 / (1 + np.exp(-1)) + 1 / (1 + np.exp(-2))) / 2
  np.testing.assert_allclose(
    mixed, [[[inf], [np.log(mean / (1 - mean))], [nan]]], rtol=1e-5
  )


def _ignoring(label):
  return keras_models.bridge(
    sequential(layers.Dense(4, name='body'), shape=(5,)),
    loss=losses.SparseCategoricalCrossentropy(
      from_logits=True, ignore_class=label
    ),
    jit_compile=False,
  )


def test_methods_take_models_of_which_not_all_counts():
  process = registry.build('fed_em', _ignoring(2), num_components=2)
  client = toy_problems.labeled_examples(20, 0)
  state, states, metrics = toy_problems.train(process, [client])
  assert np.isfinite(metrics['loss'])
  weights = {**state.global_weights, **states[0].local}
  (examples,) = toy_problems.padded([client])
  scores = scoring.score(process.model, weights, examples).sums
  assert np.isfinite(scores['loss'])


def test_a_gradient_in_chunks_is_that_of_what_counts(monkeypatch):
  bridged = _ignoring(-1)
  rng = np.random.default_rng(0)
  x = rng.normal(size=[8, 5]).astype(np.float32)
  y = np.array([0, -1, -1, -1, 1, 2, 0, 1], np.int32)
  weights = keras_models.tensors(bridged)
  padded = example_tensors.ExampleTensors(
    tf.constant(x), tf.constant(y), tf.constant(8)
  )
  whole = scoring.mean_gradient(bridged, weights, padded)
  monkeypatch.setattr(example_tensors, 'CHUNK_SIZE', 4)
  for name, value in scoring.mean_gradient(bridged, weights, padded).items():
    np.testing.assert_allclose(value, whole[name], rtol=1e-4, atol=1e-6)
