"""Models by name, made for a data set's shapes; seeded."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Optional, Union

import tensorflow as tf

from tff_pfl import errors
from tff_pfl.models import keras_bridge, split_model

keras = tf.keras


class _Seeds:
  """Initializers, by default Glorot's, each with a seed of its own."""

  def __init__(self, seed):
    self._next = seed * 1000

  def __call__(self, initializer=keras.initializers.GlorotUniform):
    self._next += 1
    return initializer(seed=self._next)


def linear(
  element_spec: Mapping[str, tf.TensorSpec],
  num_classes: Optional[int],
  seed: int = 0,
) -> split_model.SplitModel:
  """A linear model; its only layer, `head`, is the head (there is no body).

  Args:
    element_spec: `OrderedDict(x=..., y=...)` of one example.
    num_classes: Number of classes (at least 2), or None for regression of `y`.
    seed: Of the initial weights.
  """
  return _sequential('linear', [], element_spec, num_classes, _Seeds(seed))


def mlp(
  element_spec: Mapping[str, tf.TensorSpec],
  num_classes: Optional[int],
  seed: int = 0,
  *,
  widths: Sequence[int] = (128, 64),
  activation: str = 'relu',
) -> split_model.SplitModel:
  """A fully connected network; its last layer, `head`, is the head.

  Args:
    element_spec: `OrderedDict(x=..., y=...)` of one example; `x` is flattened.
    num_classes: Number of classes (at least 2), or None for regression of `y`.
    seed: Of the initial weights.
    widths: Units of the hidden layers `dense_1`, `dense_2`, ….
    activation: Keras name of the hidden activation, such as 'relu' or 'elu'.
  """
  _check_widths(widths)
  try:
    keras.activations.get(activation)
  except (ValueError, TypeError) as e:
    raise ValueError(
      errors.message('activation', 'the name of a Keras activation', activation)
    ) from e
  seeds = _Seeds(seed)
  hidden = _hidden_layers(widths, activation, seeds)
  return _sequential(
    'mlp', [keras.layers.Flatten(), *hidden], element_spec, num_classes, seeds
  )


def cnn(
  element_spec: Mapping[str, tf.TensorSpec],
  num_classes: Optional[int],
  seed: int = 0,
  *,
  filters: Union[int, Sequence[int]] = 64,
  widths: Sequence[int] = (120, 64),
  dropout: float = 0.0,
) -> split_model.SplitModel:
  """The 5-layer CNN of FedRep; its last layer, `head`, is the head.

  Two 5x5 convolutions, each with 2x2 max-pooling, then dense layers. Images
  smaller than 16x16 are convolved with zero padding, so that pooling has
  something left. The defaults are the paper's for CIFAR-10; its network for
  CIFAR-100 has filters (64, 128), widths (256, 128) and dropout 0.6.

  Args:
    element_spec: `OrderedDict(x=..., y=...)`; `x` is `[height, width,
      channels]` or `[height, width]`.
    num_classes: Number of classes (at least 2), or None for regression of `y`.
    seed: Of the initial weights.
    filters: Channels of both convolutions, or of each.
    widths: Units of the hidden dense layers.
    dropout: Part of the last hidden layer's outputs that is dropped in
      training, in [0, 1); 0 switches it off.

  References:
    Collins et al.: Exploiting Shared Representations for Personalized Federated
    Learning, ICML 2021, section 5, and the authors' implementation.
  """
  shape = tuple(element_spec['x'].shape)
  errors.expect(
    len(shape) in (2, 3) and min(shape[:2]) >= 4,
    'element_spec',
    'images of at least 4x4 pixels for model cnn',
    shape,
  )
  if isinstance(filters, int):
    filters = (filters, filters)
  errors.expect(
    len(filters) == 2, 'filters', 'one integer or two', tuple(filters)
  )
  _check_widths((*filters, *widths))
  seeds = _Seeds(seed)
  padding = 'valid' if min(shape[:2]) >= 16 else 'same'
  layers = [] if len(shape) == 3 else [keras.layers.Reshape((*shape, 1))]
  for i, channels in enumerate(filters):
    layers += [
      keras.layers.Conv2D(
        channels,
        5,
        padding=padding,
        activation='relu',
        kernel_initializer=seeds(),
        name=f'conv_{i + 1}',
      ),
      keras.layers.MaxPooling2D(2),
    ]
  layers += [
    keras.layers.Flatten(),
    *_hidden_layers(widths, 'relu', seeds),
    *_dropout_layers(dropout),
  ]
  return _sequential('cnn', layers, element_spec, num_classes, seeds)


def text_mlp(
  element_spec: Mapping[str, tf.TensorSpec],
  num_classes: Optional[int],
  seed: int = 0,
  *,
  vocabulary_size: int = 10_000,
  embedding_size: int = 32,
  widths: Sequence[int] = (32,),
  dropout: float = 0.0,
) -> split_model.SplitModel:
  """The mean of the words' embeddings, normalized, then dense layers.

  Without layer normalization the mean of many words' small embeddings, and
  with it the gradient, would be too small for plain SGD to get anywhere.

  Args:
    element_spec: `OrderedDict(x=..., y=...)`; `x` is `[words]`, integers in
      [0, vocabulary_size), where 0 is padding and leaves the mean as it is.
    num_classes: Number of classes (at least 2), or None for regression of `y`.
    seed: Of the initial weights.
    vocabulary_size: Bound on the words' numbers, that of the data.
    embedding_size: Elements of a word's embedding.
    widths: Units of the hidden dense layers.
    dropout: Part of the last hidden layer's outputs that is dropped in
      training, in [0, 1); 0 switches it off.
  """
  _check_text(element_spec, 'text_mlp')
  _check_widths((vocabulary_size, embedding_size, *widths))
  seeds = _Seeds(seed)
  layers = [
    _embedding(vocabulary_size, embedding_size, seeds),
    _MeanOfWords(name='mean'),
    keras.layers.LayerNormalization(name='normalization'),
    *_hidden_layers(widths, 'relu', seeds),
    *_dropout_layers(dropout),
  ]
  return _sequential('text_mlp', layers, element_spec, num_classes, seeds)


def text_lstm(
  element_spec: Mapping[str, tf.TensorSpec],
  num_classes: Optional[int],
  seed: int = 0,
  *,
  vocabulary_size: Optional[int] = None,
  embedding_size: int = 8,
  units: int = 128,
  num_layers: int = 1,
  widths: Sequence[int] = (),
  dropout: float = 0.0,
) -> split_model.SplitModel:
  """Embeddings of characters or words, LSTM layers, then dense layers.

  LEAF's model of Shakespeare has 2 layers of 256 units. FedRep's of Sent140 has
  embeddings of 300 elements, a layer of 128 units, widths (10,) and dropout
  0.5.

  Args:
    element_spec: `OrderedDict(x=..., y=...)`; `x` is `[characters or words]`,
      integers in [0, vocabulary_size), where 0 is padding and is skipped.
    num_classes: Number of classes (at least 2), or None for regression of `y`.
    seed: Of the initial weights.
    vocabulary_size: Bound on the numbers in `x`, that of the data; None where
      the next character or word is to be found, so that it is `num_classes`.
    embedding_size: Elements of an embedding.
    units: Of each LSTM layer.
    num_layers: LSTM layers `lstm_1`, …, at least 1.
    widths: Units of the hidden dense layers.
    dropout: Part of the last layer's outputs before the head that is dropped in
      training, in [0, 1); 0 switches it off.

  References:
    Caldas et al.: LEAF: A Benchmark for Federated Settings, 2018.
    Collins et al.: Exploiting Shared Representations for Personalized Federated
    Learning, ICML 2021, appendix A.
  """
  _check_text(element_spec, 'text_lstm')
  if vocabulary_size is None:
    errors.expect(
      num_classes is not None and num_classes > 2,
      'vocabulary_size',
      'given where the classes are not those of a next character or word'
      f' ({num_classes} classes)',
      vocabulary_size,
    )
    vocabulary_size = num_classes
  errors.expect_int('num_layers', num_layers, 1)
  _check_widths((vocabulary_size, embedding_size, units, *widths))
  seeds = _Seeds(seed)
  layers = [_embedding(vocabulary_size, embedding_size, seeds)]
  layers += [
    keras.layers.LSTM(
      units,
      return_sequences=i + 1 < num_layers,
      kernel_initializer=seeds(),
      recurrent_initializer=seeds(keras.initializers.Orthogonal),
      name=f'lstm_{i + 1}',
    )
    for i in range(num_layers)
  ]
  layers += [
    *_hidden_layers(widths, 'relu', seeds),
    *_dropout_layers(dropout),
  ]
  return _sequential('text_lstm', layers, element_spec, num_classes, seeds)


class _MeanOfWords(keras.layers.Layer):
  """Mean over the words that are not masked; zeros where there are none.

  Keras's average pooling divides by zero there.
  """

  def call(self, inputs, mask):
    weights = tf.cast(mask, inputs.dtype)[..., tf.newaxis]
    return tf.math.divide_no_nan(
      tf.reduce_sum(weights * inputs, axis=1), tf.reduce_sum(weights, axis=1)
    )

  def compute_mask(self, inputs, mask=None):
    del inputs, mask  # There are no words any more.


def _check_text(element_spec, model):
  x = element_spec['x']
  errors.expect(
    x.shape.rank == 1 and x.dtype.is_integer,
    'element_spec',
    f'sequences of integers for model {model}',
    x,
  )


def _embedding(vocabulary_size, embedding_size, seeds):
  return keras.layers.Embedding(
    vocabulary_size,
    embedding_size,
    embeddings_initializer=seeds(keras.initializers.RandomUniform),
    mask_zero=True,
    name='embedding',
  )


def _hidden_layers(widths, activation, seeds):
  return [
    keras.layers.Dense(
      width, activation, kernel_initializer=seeds(), name=f'dense_{i + 1}'
    )
    for i, width in enumerate(widths)
  ]


def _dropout_layers(rate):
  errors.expect(
    isinstance(rate, (int, float)) and 0 <= rate < 1,
    'dropout',
    'a number in [0, 1)',
    rate,
  )
  return [keras.layers.Dropout(rate)] if rate else []


def _check_widths(widths):
  for width in widths:
    errors.expect(
      isinstance(width, int) and width > 0,
      'widths',
      'positive integers',
      tuple(widths),
    )


def _sequential(name, layers, element_spec, num_classes, seeds):
  x, y = element_spec['x'], element_spec['y']
  errors.expect(
    num_classes is None or num_classes >= 2,
    'num_classes',
    'at least 2, or None for regression',
    num_classes,
  )
  outputs = num_classes
  if num_classes is None:
    outputs = y.shape[-1] if y.shape.rank else 1
  needs_flatten = not layers and x.shape.rank != 1
  model = keras.Sequential(
    [
      keras.layers.Input(x.shape, dtype=x.dtype),
      *([keras.layers.Flatten()] if needs_flatten else []),
      *layers,
      keras.layers.Dense(outputs, kernel_initializer=seeds(), name='head'),
    ],
    name=name,
  )
  classifies = num_classes is not None
  return keras_bridge.from_keras(
    model,
    head_layers=['head'],
    loss='sparse_categorical_crossentropy' if classifies else 'mse',
    metrics=['accuracy'] if classifies else ['mae'],
    label_spec=y,
  )


MODELS: Mapping[str, Callable[..., split_model.SplitModel]] = {
  'linear': linear,
  'mlp': mlp,
  'cnn': cnn,
  'text_mlp': text_mlp,
  'text_lstm': text_lstm,
}


def make_model(
  name: str,
  element_spec: Mapping[str, tf.TensorSpec],
  num_classes: Optional[int],
  seed: int = 0,
  **arguments: Any,
) -> split_model.SplitModel:
  """Makes the model called `name`.

  Args:
    name: A key of `MODELS`.
    element_spec: `OrderedDict(x=..., y=...)` of one example.
    num_classes: Number of classes, or None for regression.
    seed: Of the initial weights.
    **arguments: The model's own.

  Raises:
    ValueError: If there is no such model, or the data do not fit it.
  """
  errors.expect(name in MODELS, 'model', f'one of {", ".join(MODELS)}', name)
  return MODELS[name](element_spec, num_classes, seed, **arguments)
