"""Models by name, made for a data set's shapes.

All have a last layer `head`, which is the head, and take

    element_spec  `OrderedDict(x=..., y=...)` of one example
    num_classes   number of classes (at least 2), or None for regression of `y`
    seed          seed of the initial weights

and arguments of their own, which are flags of the programs. Images are
`[height, width, channels]` or `[height, width]`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Optional, Union

import keras
import tensorflow as tf

from tff_pfl import errors
from tff_pfl.models import split_model, zoo_layers


def linear(
  element_spec: Mapping[str, tf.TensorSpec],
  num_classes: Optional[int],
  seed: int = 0,
) -> split_model.SplitModel:
  """A linear model, whose only layer is the head."""
  seeds = zoo_layers.Seeds(seed)
  flat = zoo_layers.dense((), None, seeds)
  return zoo_layers.build('linear', [flat], element_spec, num_classes, seeds)


def mlp(
  element_spec: Mapping[str, tf.TensorSpec],
  num_classes: Optional[int],
  seed: int = 0,
  *,
  widths: Sequence[int] = (128, 64),
  activation: str = 'relu',
  initialization: str = 'glorot',
) -> split_model.SplitModel:
  """A fully connected network on flattened inputs.

  Args:
    widths: Units of the hidden layers `dense_1`, `dense_2`, ….
    activation: Keras name of the hidden activation, such as 'relu' or 'elu'.
    initialization: 'glorot', or 'fan_in', PyTorch's: weights and biases uniform
      on plus or minus the inverse root of the number of inputs.
  """
  try:
    keras.activations.get(activation)
  except (ValueError, TypeError) as e:
    raise ValueError(
      errors.message('activation', 'the name of a Keras activation', activation)
    ) from e
  errors.expect_one_of('initialization', initialization, ('glorot', 'fan_in'))
  seeds = zoo_layers.Seeds(seed)
  hidden = zoo_layers.dense(widths, activation, seeds)
  model = zoo_layers.build('mlp', [hidden], element_spec, num_classes, seeds)
  if initialization == 'fan_in':
    model = zoo_layers.initialized_by_fan_in(model, seed)
  return model


def cnn(
  element_spec: Mapping[str, tf.TensorSpec],
  num_classes: Optional[int],
  seed: int = 0,
  *,
  filters: Union[int, Sequence[int]] = 64,
  widths: Sequence[int] = (120, 64),
  normalization: str = 'none',
  groups: int = 32,
  dropout: float = 0.0,
) -> split_model.SplitModel:
  """The 5-layer CNN of FedRep.

  Two 5x5 convolutions, each with 2x2 max-pooling, then dense layers. Images
  smaller than 16x16 are convolved with zero padding. The defaults are the
  paper's for CIFAR-10; its network for CIFAR-100 has filters (64, 128), widths
  (256, 128) and dropout 0.6.

  Args:
    filters: Channels of the convolutions, one number for both or two.
    widths: Units of the hidden dense layers.
    normalization: After a convolution, before its activation: 'none', 'batch'
      or 'group'.
    groups: Groups of each group normalization; fewer where they do not divide
      the channels.
    dropout: Fraction of the last hidden layer's outputs that training drops, in
      [0, 1); 0 switches it off.

  References:
    Collins et al.: Exploiting Shared Representations for Personalized Federated
    Learning, ICML 2021, section 5, and the authors' implementation.
  """
  if isinstance(filters, int):
    filters = (filters, filters)
  errors.expect(
    len(filters) == 2, 'filters', 'one integer or two', tuple(filters)
  )
  for channels in filters:
    errors.expect_int('filters', channels, 1)
  seeds = zoo_layers.Seeds(seed)
  blocks = zoo_layers.Convolutions(element_spec, seeds, normalization, groups)
  is_small = min(element_spec['x'].shape[:2]) < 16

  def convolutions(x):
    for channels in filters:
      x = blocks.add(
        x,
        channels,
        kernel=5,
        padding='same' if is_small else 'valid',
        initializer=keras.initializers.GlorotUniform,
      )
      x = keras.layers.MaxPooling2D(2)(x)
    return x

  hidden = zoo_layers.dense(widths, 'relu', seeds, dropout)
  return zoo_layers.build(
    'cnn', [convolutions, hidden], element_spec, num_classes, seeds
  )


def resnet_18(
  element_spec: Mapping[str, tf.TensorSpec],
  num_classes: Optional[int],
  seed: int = 0,
  *,
  base_filters: int = 64,
  normalization: str = 'group',
  groups: int = 32,
) -> split_model.SplitModel:
  """ResNet-18 for small images.

  A 3x3 convolution `conv_1`; four stages of two blocks of two convolutions,
  `conv_2` to `conv_17`; a mean over the image; and the head. Each convolution
  is followed by a normalization, `norm_1` and so on. Where a block changes the
  shape, a 1x1 convolution `shortcut_1` to `shortcut_3` adapts its input.

  Args:
    base_filters: Channels of the first stage, doubled in each later one.
    normalization: 'group', 'batch' or 'none'.
    groups: Groups of each group normalization; fewer where they do not divide
      the channels.

  References:
    He, Zhang, Ren, Sun: Deep Residual Learning for Image Recognition, CVPR
    2016, section 4.2 for 32x32 images. Wu, He: Group Normalization, ECCV 2018.
  """
  errors.expect_int('base_filters', base_filters, 1)
  seeds = zoo_layers.Seeds(seed)
  blocks = zoo_layers.Convolutions(element_spec, seeds, normalization, groups)

  def network(x):
    x = blocks.add(x, base_filters)
    for stage in range(4):
      filters = base_filters * 2**stage
      for strides in (2 if stage else 1, 1):
        before = x
        x = blocks.add(x, filters, strides=strides)
        x = blocks.add(x, filters, activation=None)
        if strides > 1:
          before = blocks.add(
            before, filters, strides, kernel=1, activation=None, kind='shortcut'
          )
        x = keras.layers.ReLU()(keras.layers.Add()([before, x]))
    return keras.layers.GlobalAveragePooling2D()(x)

  return zoo_layers.build(
    'resnet_18', [network], element_spec, num_classes, seeds
  )


def vgg_16(
  element_spec: Mapping[str, tf.TensorSpec],
  num_classes: Optional[int],
  seed: int = 0,
  *,
  base_filters: int = 64,
  widths: Sequence[int] = (512, 512),
  normalization: str = 'group',
  groups: int = 32,
  dropout: float = 0.0,
) -> split_model.SplitModel:
  """VGG-16 for small images.

  Thirteen 3x3 convolutions `conv_1` to `conv_13`, each followed by a
  normalization `norm_1` and so on, in five groups that end with 2x2
  max-pooling; then `dense_1`, `dense_2` and the head.

  Args:
    base_filters: Channels of the first group; the others have 2, 4, 8 and 8
      times as many.
    widths: Units of the hidden dense layers.
    normalization: 'group', 'batch' or 'none'.
    groups: Groups of each group normalization; fewer where they do not divide
      the channels.
    dropout: Fraction of the last hidden layer's outputs that training drops, in
      [0, 1); 0 switches it off.

  References:
    Simonyan, Zisserman: Very Deep Convolutional Networks for Large-Scale Image
    Recognition, ICLR 2015, configuration D, with smaller dense layers for 32x32
    images.
  """
  errors.expect_int('base_filters', base_filters, 1)
  seeds = zoo_layers.Seeds(seed)
  blocks = zoo_layers.Convolutions(element_spec, seeds, normalization, groups)

  def convolutions(x):
    for factor, count in ((1, 2), (2, 2), (4, 3), (8, 3), (8, 3)):
      for _ in range(count):
        x = blocks.add(x, factor * base_filters)
      x = keras.layers.MaxPooling2D(2, padding='same')(x)
    return x

  hidden = zoo_layers.dense(widths, 'relu', seeds, dropout)
  return zoo_layers.build(
    'vgg_16', [convolutions, hidden], element_spec, num_classes, seeds
  )


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
  """Dense layers on the normalized mean of the words' embeddings.

  Without layer normalization the mean of many words' small embeddings, and
  with it the gradient, would be too small for plain SGD.

  Args:
    element_spec: `OrderedDict(x=..., y=...)`; `x` is `[words]`, integers in
      [0, vocabulary_size), where 0 is padding and does not count.
    vocabulary_size: The data's bound on the words' numbers.
    embedding_size: Size of a word's embedding.
    widths: Units of the hidden dense layers.
    dropout: Fraction of the last hidden layer's outputs that training drops, in
      [0, 1); 0 switches it off.
  """
  seeds = zoo_layers.Seeds(seed)
  layers = [
    zoo_layers.embedding(element_spec, vocabulary_size, embedding_size, seeds),
    zoo_layers.MeanOfWords(name='mean'),
    keras.layers.LayerNormalization(name='normalization'),
    zoo_layers.dense(widths, 'relu', seeds, dropout),
  ]
  return zoo_layers.build('text_mlp', layers, element_spec, num_classes, seeds)


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
  """LSTM layers on embeddings of characters or words, then dense layers.

  LEAF's model for Shakespeare has 2 layers of 256 units. FedRep's for Sent140
  has embeddings of size 300, a layer of 128 units, widths (10,) and dropout
  0.5.

  Args:
    element_spec: `OrderedDict(x=..., y=...)`; `x` is `[characters or words]`,
      integers in [0, vocabulary_size), where 0 is padding and is skipped.
    vocabulary_size: The data's bound on the numbers in `x`; None for
      `num_classes`, where the next character or word is predicted.
    embedding_size: Size of an embedding.
    units: Units of each LSTM layer.
    num_layers: LSTM layers `lstm_1`, …, at least 1.
    widths: Units of the hidden dense layers.
    dropout: Fraction of the outputs before the head that training drops, in
      [0, 1); 0 switches it off.

  References:
    Caldas et al.: LEAF: A Benchmark for Federated Settings, 2018.
    Collins et al.: Exploiting Shared Representations for Personalized Federated
    Learning, ICML 2021, appendix A.
  """
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
  errors.expect_int('units', units, 1)
  seeds = zoo_layers.Seeds(seed)
  layers = [
    zoo_layers.embedding(element_spec, vocabulary_size, embedding_size, seeds)
  ]
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
  layers.append(zoo_layers.dense(widths, 'relu', seeds, dropout))
  return zoo_layers.build('text_lstm', layers, element_spec, num_classes, seeds)


MODELS: Mapping[str, Callable[..., split_model.SplitModel]] = {
  model.__name__: model
  for model in (linear, mlp, cnn, resnet_18, vgg_16, text_mlp, text_lstm)
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
    num_classes: Number of classes; None for regression.
    seed: Seed of the initial weights.
    **arguments: The model's own arguments.

  Raises:
    ValueError: If there is no such model, or the data do not fit it.
  """
  errors.expect_one_of('model', name, MODELS)
  return MODELS[name](element_spec, num_classes, seed, **arguments)
