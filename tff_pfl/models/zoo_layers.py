"""Layers of the zoo's models, with checks of the examples' specs."""

from __future__ import annotations

import collections
import dataclasses
import math
from collections.abc import Mapping

import keras
import numpy as np
import tensorflow as tf
import tree

from tff_pfl import errors
from tff_pfl.models import keras_bridge

# Blocks of two convolutions in each stage of a residual network, by its depth.
RESIDUAL_BLOCKS = {18: (2, 2, 2, 2), 34: (3, 4, 6, 3)}


def check_spec(element_spec):
  """Raises `ValueError` unless it describes one example with `x` and `y`."""
  errors.expect(
    isinstance(element_spec, Mapping)
    and {'x', 'y'} <= set(element_spec)
    and all(
      isinstance(spec, tf.TensorSpec)
      for spec in tree.flatten([*element_spec.values()])
    ),
    'element_spec',
    'OrderedDict(x=..., y=...) of tf.TensorSpecs, such as `data.element_spec`',
    element_spec,
  )


class Seeds:
  """A maker of initializers, each with its own seed."""

  def __init__(self, seed):
    self._next = seed * 1000

  def __call__(self, initializer=keras.initializers.GlorotUniform):
    """Makes an initializer of the given class."""
    self._next += 1
    # TensorFlow takes signed 64-bit integers.
    return initializer(seed=(self._next + 2**63) % 2**64 - 2**63)


class Convolutions:
  """A maker of convolutions with normalizations, numbered in their order.

  If `torchvision` is True, they compute the same as torchvision's: strides
  start at the image's edge, and batch normalization adds 1e-5 to the variance.
  """

  def __init__(
    self, image_spec, seeds, normalization, groups, torchvision=False
  ):
    shape = tuple(image_spec.shape)
    errors.expect(
      len(shape) in (2, 3)
      and min(shape[:2]) >= 4
      and image_spec.dtype.is_floating,
      'element_spec',
      'float images of at least 4x4 pixels for a model with convolutions'
      ' (x / 255 makes floats of bytes, and so does --dataset_scale)',
      image_spec,
    )
    self._seeds = seeds
    self._normalization = normalization
    self._groups = groups
    self._torchvision = torchvision
    self._counts = collections.Counter()

  def add(
    self,
    x,
    filters,
    strides=1,
    kernel=3,
    padding='same',
    activation='relu',
    kind='conv',
    initializer=keras.initializers.HeNormal,
    use_bias=False,
  ):
    """Applies a convolution, a normalization and an activation."""
    if len(x.shape) == 3:
      x = keras.layers.Reshape((*x.shape[1:], 1))(x)
    self._counts[kind] += 1
    suffix = f'_{self._counts[kind]}'
    is_plain = self._normalization == 'none'
    if self._torchvision and strides > 1 and kernel > 1:
      x, padding = keras.layers.ZeroPadding2D(kernel // 2)(x), 'valid'
    x = keras.layers.Conv2D(
      filters,
      kernel,
      strides,
      padding,
      activation=activation if is_plain else None,
      use_bias=is_plain or use_bias,
      kernel_initializer=self._seeds(initializer),
      name=kind + suffix,
    )(x)
    if is_plain:
      return x
    name = ('norm' if kind == 'conv' else f'{kind}_norm') + suffix
    return self.normalized(x, activation, name)

  def normalized(self, x, activation, name):
    """Applies a normalization and an activation, if there is one."""
    if self._normalization == 'group':
      number = math.gcd(self._groups, x.shape[-1])
      x = keras.layers.GroupNormalization(number, name=name)(x)
    else:
      # Keras's default of 0.99 forgets the initial statistics too slowly for
      # clients that make few steps. PyTorch uses this momentum.
      x = keras.layers.BatchNormalization(
        momentum=0.9, epsilon=1e-5 if self._torchvision else 1e-3, name=name
      )(x)
    return keras.layers.Activation(activation)(x) if activation else x


@keras.saving.register_keras_serializable('tff_pfl')
class MeanOfWords(keras.layers.Layer):
  """Mean over the words that are not masked, zeros if there are none.

  Keras's average pooling would divide by zero.
  """

  def __init__(self, **kwargs):
    super().__init__(**kwargs)
    self.supports_masking = True

  def call(self, inputs, mask=None):
    """Returns `[batch, size]` from inputs `[batch, words, size]`."""
    weights = tf.cast(mask, inputs.dtype)[..., tf.newaxis]
    return tf.math.divide_no_nan(
      tf.reduce_sum(weights * inputs, axis=1), tf.reduce_sum(weights, axis=1)
    )

  def compute_mask(self, inputs, mask=None):
    """Returns None, because the outputs have no axis of words."""
    del inputs, mask


def embedding(element_spec, vocabulary_size, embedding_size, seeds):
  """Makes an embedding of integers that masks 0 as padding."""
  x = element_spec['x']
  errors.expect(
    x.shape.rank == 1 and x.dtype.is_integer,
    'element_spec',
    'sequences of integers for a model of text',
    x,
  )
  return keras.layers.Embedding(
    vocabulary_size,
    embedding_size,
    embeddings_initializer=seeds(keras.initializers.RandomUniform),
    mask_zero=True,
    name='embedding',
  )


def residual(
  depth, image_spec, seeds, base_filters, normalization, groups, torchvision
):
  """Makes a function that applies a residual network up to its mean.

  Args:
    depth: A key of `RESIDUAL_BLOCKS`.
    image_spec: The `tf.TensorSpec` of an image.
    seeds: The `Seeds`.
    base_filters: Channels of the first stage, doubled in each later one.
    normalization: See `Convolutions`.
    groups: See `Convolutions`.
    torchvision: True to start with a 7x7 convolution and 3x3 max-pooling, both
      of stride 2, instead of a 3x3 convolution.
  """
  blocks = Convolutions(image_spec, seeds, normalization, groups, torchvision)

  def network(x):
    if torchvision:
      x = blocks.add(x, base_filters, 2, kernel=7)
      x = keras.layers.MaxPooling2D(3, 2)(keras.layers.ZeroPadding2D(1)(x))
    else:
      x = blocks.add(x, base_filters)
    for stage, count in enumerate(RESIDUAL_BLOCKS[depth]):
      filters = base_filters * 2**stage
      for i in range(count):
        before, strides = x, 2 if stage and not i else 1
        x = blocks.add(x, filters, strides)
        x = blocks.add(x, filters, activation=None)
        if strides > 1:
          before = blocks.add(
            before, filters, strides, kernel=1, activation=None, kind='shortcut'
          )
        x = keras.layers.ReLU()(keras.layers.Add()([before, x]))
    return keras.layers.GlobalAveragePooling2D()(x)

  return network


def dense(
  widths,
  activation,
  seeds,
  dropout=0.0,
  dropout_of_each=False,
  normalized=None,
  name='dense',
):
  """Makes a function that applies dense layers, `dense_1`, …, and dropout.

  Args:
    widths: Units of the layers.
    activation: Name of their activation.
    seeds: The `Seeds`.
    dropout: Fraction of the last layer's outputs that is dropped.
    dropout_of_each: True to drop this fraction of each layer's outputs.
    normalized: `Convolutions.normalized`, to normalize before the activations.
    name: Prefix of the layers' names.
  """

  def network(x):
    if len(x.shape) != 2:
      x = keras.layers.Flatten()(x)
    for i, width in enumerate(widths):
      x = keras.layers.Dense(
        width,
        None if normalized else activation,
        use_bias=not normalized,
        kernel_initializer=seeds(),
        name=f'{name}_{i + 1}',
      )(x)
      if normalized:
        x = normalized(x, activation, f'{name}_norm_{i + 1}')
      if dropout and dropout_of_each:
        x = keras.layers.Dropout(dropout)(x)
    is_left = dropout and not (dropout_of_each and widths)
    return keras.layers.Dropout(dropout)(x) if is_left else x

  return network


def initialized_by_fan_in(model, seed):
  """Draws new initial weights and biases for a model of dense layers.

  They are uniform between plus and minus the inverse square root of the number
  of inputs.
  """
  rng = np.random.default_rng(seed % 2**63)
  weights = collections.OrderedDict()
  for name, value in model.initial_weights.items():
    kernel = model.initial_weights[f'{name.rpartition("/")[0]}/kernel']
    limit = len(kernel) ** -0.5
    weights[name] = rng.uniform(-limit, limit, value.shape).astype(np.float32)
  return dataclasses.replace(model, initial_weights=weights)


def build(name, layers, element_spec, num_classes, seeds):
  """Makes a model of a sequence of layers or functions, and a head."""
  x, y = element_spec['x'], element_spec['y']
  inputs = tree.map_structure_with_path(
    lambda path, spec: keras.layers.Input(
      tuple(spec.shape), dtype=spec.dtype.name, name='_'.join(path) or None
    ),
    x,
  )
  features = inputs
  for layer in layers:
    features = layer(features)
  outputs = num_classes
  loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
  if num_classes is None:
    outputs, loss = y.shape[-1] if y.shape.rank else 1, 'mse'
  elif y.shape.rank == len(features.shape) - 1:
    errors.expect(
      num_classes == 2, 'num_classes', '2 for several labels', num_classes
    )
    outputs = y.shape[-1]
    loss = keras.losses.BinaryCrossentropy(from_logits=True)
  head = keras.layers.Dense(outputs, kernel_initializer=seeds(), name='head')
  model = keras.Model(inputs, head(features), name=name)
  return keras_bridge.from_keras(
    model,
    head_layers=['head'],
    loss=loss,
    metrics=['mae'] if num_classes is None else ['accuracy'],
    label_spec=y,
    keep_names=True,
  )
