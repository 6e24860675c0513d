"""Models by name, made for a dataset's shapes.

All have a last layer `head`, which is the head, and take

    element_spec  `OrderedDict(x=..., y=...)` of one example
    num_classes   number of classes (at least 2), or None for regression of `y`
    seed          seed of the initial weights

and their own arguments, which are flags of the programs. Images are
`[height, width, channels]` or `[height, width]`. Only `image_and_record` takes
several inputs.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, Literal, Optional, Union

import keras
import tensorflow as tf

from tff_pfl import errors, fields
from tff_pfl.models import split_model, zoo_layers

_Classes = Optional[fields.integer(2)]
_Seed = fields.integer(-(2**63), 2**63 - 1)
_Normalization = fields.one_of(('group', 'batch', 'none'))
_Padding = fields.one_of(('auto', 'same', 'valid'))
_Initialization = fields.one_of(('glorot', 'fan_in'))

MODELS: dict[str, Callable[..., split_model.SplitModel]] = {}


def _of_zoo(function):
  """Registers a function that makes a model, and checks its arguments."""
  checked = fields.checked_call(function)

  @functools.wraps(function)
  def make(element_spec, *args, **arguments):
    name = function.__name__
    zoo_layers.check_spec(element_spec)
    is_joint = isinstance(element_spec['x'], Mapping)
    errors.expect(
      is_joint == (name == image_and_record.__name__)
      and (not is_joint or set(element_spec['x']) == {'image', 'record'}),
      'model',
      'image_and_record for examples of an image and a record, and only for '
      'them',
      f'{name} for {element_spec["x"]}',
    )
    return checked(element_spec, *args, **arguments)

  MODELS[function.__name__] = make
  return make


def model(
  function: Callable[..., split_model.SplitModel],
) -> Callable[..., split_model.SplitModel]:
  """Registers a function that makes a model, under the function's name.

  Settings, studies and flags then have this model. Its own arguments are
  settings such as `model_width`, and the docstring has the help of their flags.

  Args:
    function: `(element_spec, num_classes, seed, *, ...) -> SplitModel`, as in
      `make_model`, with a type for each of its own keyword-only arguments.
      Keras and NumPy draw from the seed in it.
  """
  checked = fields.registered(
    'model', function, _OF_LIBRARY, 'element_spec', 'num_classes', 'seed'
  )

  @functools.wraps(function)
  def make(element_spec, num_classes, seed=0, **arguments):
    zoo_layers.check_spec(element_spec)
    keras.utils.set_random_seed(seed % 2**32)
    made = checked(element_spec, num_classes, seed, **arguments)
    errors.expect_type(
      made, split_model.SplitModel, function.__name__, 'a SplitModel'
    )
    return made

  MODELS[function.__name__] = make
  return make


@_of_zoo
def linear(
  element_spec: Mapping[str, tf.TensorSpec],
  num_classes: _Classes,
  seed: _Seed = 0,
) -> split_model.SplitModel:
  """A linear model, whose only layer is the head."""
  seeds = zoo_layers.Seeds(seed)
  flat = zoo_layers.dense((), None, seeds)
  return zoo_layers.build('linear', [flat], element_spec, num_classes, seeds)


@_of_zoo
def mlp(
  element_spec: Mapping[str, tf.TensorSpec],
  num_classes: _Classes,
  seed: _Seed = 0,
  *,
  widths: fields.Counts = (128, 64),
  activation: str = 'relu',
  initialization: _Initialization = 'glorot',
) -> split_model.SplitModel:
  """A fully connected network on flattened inputs.

  Args:
    widths: Units of the hidden layers `dense_1`, `dense_2`, ….
    activation: Keras name of the hidden activation, such as 'relu' or 'elu'.
    initialization: Distribution of the initial weights, 'glorot' or PyTorch's
      'fan_in', in which weights and biases are uniform between plus and minus
      the inverse square root of the number of inputs.
  """
  seeds = zoo_layers.Seeds(seed)
  hidden = zoo_layers.dense(widths, activation, seeds)
  model = zoo_layers.build('mlp', [hidden], element_spec, num_classes, seeds)
  if initialization == 'fan_in':
    model = zoo_layers.initialized_by_fan_in(model, seed)
  return model


@_of_zoo
def cnn(
  element_spec: Mapping[str, tf.TensorSpec],
  num_classes: _Classes,
  seed: _Seed = 0,
  *,
  filters: Union[fields.Count, fields.Counts] = 64,
  kernel_size: fields.Count = 5,
  convolutions_per_pooling: fields.Count = 1,
  num_poolings: Optional[fields.CountOrZero] = None,
  padding: _Padding = 'auto',
  widths: fields.Counts = (120, 64),
  normalization: _Normalization = 'none',
  groups: fields.Count = 32,
  normalize_dense: bool = False,
  dropout: fields.ShareBelowOne = 0.0,
) -> split_model.SplitModel:
  """Convolutions, 2x2 max-pooling and dense layers: the CNNs of the papers.

  The default is FedRep's 5-layer CNN for CIFAR-10, with two 5x5 convolutions.
  FedRep's CNN for CIFAR-100 has filters (64, 128), widths (256, 128) and
  dropout 0.6. The 6-layer CNN of FedBN and FedDAR for digits has filters
  (64, 64, 128), 2 poolings, padding 'same', normalization 'batch', also in the
  dense layers, and widths (2048, 512). The network of FedAvg with fine-tuning
  has 2 convolutions for each of 3 poolings.

  Args:
    filters: Channels of the convolutions, one number for two, or one for each.
    kernel_size: Height and width of the convolutions.
    convolutions_per_pooling: Convolutions before each pooling.
    num_poolings: Number of poolings, after the first convolutions. None means
      one after each block of `convolutions_per_pooling`.
    padding: Padding of the convolutions. 'same' keeps the image's size by
      adding zeros, 'valid' adds none, and 'auto' is 'same' if the image's
      height or width is less than 16, else 'valid'.
    widths: Units of the hidden dense layers.
    normalization: Normalization between a convolution and its activation:
      'group', 'batch' or 'none'.
    groups: Groups of each group normalization, fewer if they do not divide the
      channels.
    normalize_dense: True to also normalize hidden dense layers.
    dropout: Fraction of the last hidden layer's outputs that training drops, in
      [0, 1). 0 switches it off.

  References:
    Collins et al.: Exploiting Shared Representations for Personalized Federated
    Learning, ICML 2021, section 5, and the authors' implementation. Li et al.:
    FedBN: Federated Learning on Non-IID Features via Local Batch Normalization,
    ICLR 2021, and the authors' implementation. Collins et al.: FedAvg with Fine
    Tuning: Local Updates Lead to Representation Learning, NeurIPS 2022, section
    5.2.
  """
  if isinstance(filters, int):
    filters = (filters, filters)
  num_blocks, rest = divmod(len(filters), convolutions_per_pooling)
  errors.expect(
    filters and not rest,
    'filters',
    f'{convolutions_per_pooling} numbers for each pooling',
    tuple(filters),
  )
  if num_poolings is None:
    num_poolings = num_blocks
  errors.expect(
    num_poolings <= num_blocks,
    'num_poolings',
    f'at most {num_blocks}',
    num_poolings,
  )
  seeds = zoo_layers.Seeds(seed)
  image = element_spec['x']
  blocks = zoo_layers.Convolutions(image, seeds, normalization, groups)
  if padding == 'auto':
    padding = 'same' if min(image.shape[:2]) < 16 else 'valid'

  def convolutions(x):
    for number, channels in enumerate(filters, 1):
      x = blocks.add(
        x,
        channels,
        kernel=kernel_size,
        padding=padding,
        initializer=keras.initializers.GlorotUniform,
      )
      block, rest = divmod(number, convolutions_per_pooling)
      if not rest and block <= num_poolings:
        errors.expect(
          min(x.shape[1:3]) > 1,
          'num_poolings',
          f'less than {block} for {tuple(image.shape)} images',
          num_poolings,
        )
        x = keras.layers.MaxPooling2D(2)(x)
    return x

  is_normalized = normalize_dense and normalization != 'none'
  hidden = zoo_layers.dense(
    widths,
    'relu',
    seeds,
    dropout,
    normalized=is_normalized and blocks.normalized,
  )
  return zoo_layers.build(
    'cnn', [convolutions, hidden], element_spec, num_classes, seeds
  )


def _residual(depth):
  def resnet(
    element_spec: Mapping[str, tf.TensorSpec],
    num_classes: _Classes,
    seed: _Seed = 0,
    *,
    base_filters: fields.Count = 64,
    normalization: _Normalization = 'group',
    groups: fields.Count = 32,
    torchvision: bool = False,
  ) -> split_model.SplitModel:
    """ResNet-18 or ResNet-34, by default for small images.

    It has a 3x3 convolution `conv_1`, four stages of blocks with two
    convolutions each, a mean over the image, and the head. The stages of
    ResNet-18 have two blocks each (`conv_2` to `conv_17`), and the stages of
    ResNet-34 have 3, 4, 6 and 3 (`conv_2` to `conv_33`). A normalization
    follows each convolution, `norm_1` and so on. If a block changes the shape,
    a 1x1 convolution (`shortcut_1` to `shortcut_3`) adapts its input.

    Args:
      base_filters: Channels of the first stage, doubled in each later one.
      normalization: Normalization between a convolution and its activation:
        'group', 'batch' or 'none'.
      groups: Groups of each group normalization, fewer if they do not divide
        the channels.
      torchvision: True for torchvision's network, which gives the same outputs
        with torchvision's weights and normalization 'batch'. It starts with a
        7x7 convolution and 3x3 max-pooling, both of stride 2.

    References:
      He, Zhang, Ren, Sun: Deep Residual Learning for Image Recognition, CVPR
      2016, section 4.2 for 32x32 images. Wu, He: Group Normalization, ECCV
      2018.
    """
    seeds = zoo_layers.Seeds(seed)
    network = zoo_layers.residual(
      depth,
      element_spec['x'],
      seeds,
      base_filters,
      normalization,
      groups,
      torchvision,
    )
    return zoo_layers.build(
      f'resnet_{depth}', [network], element_spec, num_classes, seeds
    )

  resnet.__name__ = resnet.__qualname__ = f'resnet_{depth}'
  return _of_zoo(resnet)


resnet_18, resnet_34 = map(_residual, (18, 34))


@_of_zoo
def vgg_16(
  element_spec: Mapping[str, tf.TensorSpec],
  num_classes: _Classes,
  seed: _Seed = 0,
  *,
  base_filters: fields.Count = 64,
  widths: fields.Counts = (512, 512),
  normalization: _Normalization = 'group',
  groups: fields.Count = 32,
  dropout: fields.ShareBelowOne = 0.0,
  torchvision: bool = False,
) -> split_model.SplitModel:
  """VGG-16, by default for small images.

  It has thirteen 3x3 convolutions `conv_1` to `conv_13`, each followed by a
  normalization `norm_1` and so on, in five groups that end with 2x2
  max-pooling. Then come `dense_1`, `dense_2` and the head. Configuration D has
  widths (4096, 4096) and dropout 0.5 in both dense layers.

  Args:
    base_filters: Channels of the first group. The others have 2, 4, 8 and 8
      times as many.
    widths: Units of the hidden dense layers.
    normalization: Normalization between a convolution and its activation:
      'group', 'batch' or 'none'.
    groups: Groups of each group normalization, fewer if they do not divide the
      channels.
    dropout: Fraction of the last hidden layer's outputs (with `torchvision`,
      each hidden layer's) that training drops, in [0, 1). 0 switches it off.
    torchvision: True for torchvision's network, whose convolutions have biases
      and whose `dense_1` takes 7x7 pixels. For images of at most 32x32 pixels,
      these are 49 copies of one pixel.

  References:
    Simonyan, Zisserman: Very Deep Convolutional Networks for Large-Scale Image
    Recognition, ICLR 2015, configuration D, with smaller dense layers for 32x32
    images.
  """
  seeds = zoo_layers.Seeds(seed)
  blocks = zoo_layers.Convolutions(
    element_spec['x'], seeds, normalization, groups, torchvision
  )

  def convolutions(x):
    for factor, count in ((1, 2), (2, 2), (4, 3), (8, 3), (8, 3)):
      for _ in range(count):
        x = blocks.add(x, factor * base_filters, use_bias=torchvision)
      x = keras.layers.MaxPooling2D(2, padding='same')(x)
    if torchvision:
      size = x.shape[1:3]
      errors.expect(
        size in ((1, 1), (7, 7)),
        'torchvision',
        'False unless images have at most 32, or 193 to 224, pixels a side',
        tuple(element_spec['x'].shape),
      )
      if size == (1, 1):
        x = keras.layers.UpSampling2D(7)(x)
    return x

  hidden = zoo_layers.dense(
    widths, 'relu', seeds, dropout, dropout_of_each=torchvision
  )
  return zoo_layers.build(
    'vgg_16', [convolutions, hidden], element_spec, num_classes, seeds
  )


@_of_zoo
def image_and_record(
  element_spec: Mapping[str, Any],
  num_classes: _Classes,
  seed: _Seed = 0,
  *,
  depth: Literal[18, 34] = 34,
  base_filters: fields.Count = 64,
  normalization: _Normalization = 'group',
  groups: fields.Count = 32,
  torchvision: bool = False,
  widths: fields.Counts = (256,),
  record_widths: fields.Counts = (),
) -> split_model.SplitModel:
  """A residual network on an image, joined with the columns of a record.

  The image's features come from `dense_1`, …, after `resnet_18` or `resnet_34`.
  The record's features come from `record_dense_1`, …, or are the record itself.
  The head takes both side by side. A record of 22 columns gives 278 features by
  default, as many as in FedDAR's experiment with chest X-rays and health
  records (EXAM). The attention and crossed columns in the network of its data's
  authors are left out. `resnet_18` explains the arguments of the residual
  network.

  Args:
    element_spec: `OrderedDict(x=..., y=...)`. `x` is a dict of `image` and
      `record`, `[columns]`.
    depth: Depth of the residual network, 18 or 34.
    widths: Units of the dense layers on the image's features.
    record_widths: Units of the dense layers on the record. If there are none,
      the head takes the record itself.

  References:
    Zhong et al.: FedDAR: Federated Domain-Aware Representation Learning, ICLR
    2023, appendix B.3.3.
  """
  seeds = zoo_layers.Seeds(seed)
  of_image = zoo_layers.residual(
    depth,
    element_spec['x']['image'],
    seeds,
    base_filters,
    normalization,
    groups,
    torchvision,
  )
  hidden = zoo_layers.dense(widths, 'relu', seeds)
  of_record = zoo_layers.dense(
    record_widths, 'relu', seeds, name='record_dense'
  )

  def network(x):
    return keras.layers.Concatenate()(
      [hidden(of_image(x['image'])), of_record(x['record'])]
    )

  return zoo_layers.build(
    'image_and_record', [network], element_spec, num_classes, seeds
  )


@_of_zoo
def text_mlp(
  element_spec: Mapping[str, tf.TensorSpec],
  num_classes: _Classes,
  seed: _Seed = 0,
  *,
  vocabulary_size: fields.Count = 10_000,
  embedding_size: fields.Count = 32,
  widths: fields.Counts = (32,),
  dropout: fields.ShareBelowOne = 0.0,
) -> split_model.SplitModel:
  """Dense layers on the normalized mean of the words' embeddings.

  Without layer normalization, the mean of many words' small embeddings would be
  too small for plain SGD, and so would the gradient.

  Args:
    element_spec: `OrderedDict(x=..., y=...)`. `x` is `[words]`, integers in
      [0, vocabulary_size), where 0 is padding and does not count.
    vocabulary_size: Exclusive upper bound of the words' numbers in the data.
    embedding_size: Size of a word's embedding.
    widths: Units of the hidden dense layers.
    dropout: Fraction of the last hidden layer's outputs that training drops, in
      [0, 1). 0 switches it off.
  """
  seeds = zoo_layers.Seeds(seed)
  layers = [
    zoo_layers.embedding(element_spec, vocabulary_size, embedding_size, seeds),
    zoo_layers.MeanOfWords(name='mean'),
    keras.layers.LayerNormalization(name='normalization'),
    zoo_layers.dense(widths, 'relu', seeds, dropout),
  ]
  return zoo_layers.build('text_mlp', layers, element_spec, num_classes, seeds)


@_of_zoo
def text_lstm(
  element_spec: Mapping[str, tf.TensorSpec],
  num_classes: _Classes,
  seed: _Seed = 0,
  *,
  vocabulary_size: Optional[fields.Count] = None,
  embedding_size: fields.Count = 8,
  units: fields.Count = 128,
  num_layers: fields.integer(1, 100) = 1,
  widths: fields.Counts = (),
  dropout: fields.ShareBelowOne = 0.0,
) -> split_model.SplitModel:
  """LSTM layers on embeddings of characters or words, then dense layers.

  LEAF's model for Shakespeare has 2 layers of 256 units. FedRep's model for
  Sent140 has embeddings of size 300, a layer of 128 units, widths (10,) and
  dropout 0.5.

  Args:
    element_spec: `OrderedDict(x=..., y=...)`. `x` is `[characters or words]`,
      integers in [0, vocabulary_size), where 0 is padding and is skipped.
    vocabulary_size: Exclusive upper bound of the numbers in `x`. None uses
      `num_classes`, if the next character or word is predicted.
    embedding_size: Size of an embedding.
    units: Units of each LSTM layer.
    num_layers: Number of LSTM layers `lstm_1`, …, from 1 to 100.
    widths: Units of the hidden dense layers.
    dropout: Fraction of the outputs before the head that training drops, in
      [0, 1). 0 switches it off.

  References:
    Caldas et al.: LEAF: A Benchmark for Federated Settings, 2018.
    Collins et al.: Exploiting Shared Representations for Personalized Federated
    Learning, ICML 2021, appendix A.
  """
  if vocabulary_size is None:
    errors.expect(
      num_classes is not None and num_classes > 2,
      'vocabulary_size',
      f'given unless classes are next words ({num_classes} classes)',
      vocabulary_size,
    )
    vocabulary_size = num_classes
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
    seed: Seed of the initial weights.
    **arguments: The model's own arguments.
  """
  errors.expect_one_of('model', name, MODELS)
  return MODELS[name](element_spec, num_classes, seed, **arguments)


_OF_LIBRARY = frozenset(MODELS)
