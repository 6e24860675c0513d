"""Models by name, made for a data set's shapes; seeded."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Optional

import tensorflow as tf

from tff_pfl import errors
from tff_pfl.models import keras_bridge, split_model

keras = tf.keras


class _Seeds:
  """Glorot initializers, each with a seed of its own."""

  def __init__(self, seed):
    self._next = seed * 1000

  def __call__(self):
    self._next += 1
    return keras.initializers.GlorotUniform(seed=self._next)


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
  hidden = [
    keras.layers.Dense(
      width, activation, kernel_initializer=seeds(), name=f'dense_{i + 1}'
    )
    for i, width in enumerate(widths)
  ]
  return _sequential(
    'mlp', [keras.layers.Flatten(), *hidden], element_spec, num_classes, seeds
  )


def cnn(
  element_spec: Mapping[str, tf.TensorSpec],
  num_classes: Optional[int],
  seed: int = 0,
  *,
  filters: int = 64,
  widths: Sequence[int] = (120, 64),
) -> split_model.SplitModel:
  """The 5-layer CNN of FedRep; its last layer, `head`, is the head.

  Two 5x5 convolutions, each with 2x2 max-pooling, then dense layers. Images
  smaller than 16x16 are convolved with zero padding, so that pooling has
  something left.

  Args:
    element_spec: `OrderedDict(x=..., y=...)`; `x` is `[height, width,
      channels]` or `[height, width]`.
    num_classes: Number of classes (at least 2), or None for regression of `y`.
    seed: Of the initial weights.
    filters: Channels of both convolutions.
    widths: Units of the hidden dense layers.

  References:
    Collins et al.: Exploiting Shared Representations for Personalized Federated
    Learning, ICML 2021, section 5.
  """
  shape = tuple(element_spec['x'].shape)
  errors.expect(
    len(shape) in (2, 3) and min(shape[:2]) >= 4,
    'element_spec',
    'images of at least 4x4 pixels for model cnn',
    shape,
  )
  _check_widths((filters, *widths))
  seeds = _Seeds(seed)
  padding = 'valid' if min(shape[:2]) >= 16 else 'same'
  layers = [] if len(shape) == 3 else [keras.layers.Reshape((*shape, 1))]
  for i in range(2):
    layers += [
      keras.layers.Conv2D(
        filters,
        5,
        padding=padding,
        activation='relu',
        kernel_initializer=seeds(),
        name=f'conv_{i + 1}',
      ),
      keras.layers.MaxPooling2D(2),
    ]
  layers.append(keras.layers.Flatten())
  layers += [
    keras.layers.Dense(
      width, 'relu', kernel_initializer=seeds(), name=f'dense_{i + 1}'
    )
    for i, width in enumerate(widths)
  ]
  return _sequential('cnn', layers, element_spec, num_classes, seeds)


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
