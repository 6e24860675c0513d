"""Random augmentation of training examples.

The changes are drawn from the step's seed, separately for each image and step,
so they are the same on every runtime. Evaluation uses the unchanged images.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Union

import tensorflow as tf

from tff_pfl import errors
from tff_pfl.models import randomness, split_model

FORMS = 'none, flip, crop:<pixels> or crop:<pixels>+flip'
# Far above the numbers that `keras_purity` gives a network's layers.
_STREAM = 2**30


def augmented(
  model: split_model.SplitModel,
  spec: Union[str, Callable[[Any, tf.Tensor], Any]],
) -> split_model.SplitModel:
  """Returns the model with augmented examples in training.

  `crop:<pixels>` pads an image with zeros on all sides and cuts out a random
  window of the original size. `flip` mirrors an image left to right with
  probability 1/2. `crop:4+flip` is common for CIFAR.

  Args:
    model: Takes images `[height, width, channels]` or `[height, width]`, as its
      only input or as the input `image`. If `spec` is a function, any inputs
      will do. Add domains afterwards, with `with_domains`.
    spec: The changes, joined by `+`. 'none' returns the model itself. A
      function maps inputs `[batch, ...]` and a seed, int32 `[2]`, to inputs of
      the same shape, and draws from the seed (`randomness`,
      `tf.random.stateless_*`).
  """
  if spec == 'none':
    return model
  errors.expect(
    not model.is_augmented and model.domains is None,
    'model',
    'one without augmentation and domains (add domains afterwards)',
    model.name,
  )
  if callable(spec):
    changes = [spec]
  else:
    x = model.element_spec['x']
    is_part = isinstance(x, Mapping) and 'image' in x
    x = x['image'] if is_part else x
    errors.expect(
      isinstance(x, tf.TensorSpec)
      and x.shape.rank in (2, 3)
      and x.dtype.is_floating,
      'augmentation',
      f'none for examples that are no images ({x})',
      spec,
    )
    parts = str(spec).split('+')
    changes = [_change(part, spec, x.shape[:2]) for part in parts]
    if is_part:
      changes = [*map(_of_image, changes)]

  def body(weights, x, mode=split_model.INFERENCE):
    if mode.seed is not None:
      for number, change in enumerate(changes):
        x = change(x, randomness.fold_in(mode.seed, _STREAM + number))
    return model.body(weights, x, mode)

  return dataclasses.replace(
    model,
    body=body,
    is_augmented=True,
    made_with={**model.made_with, 'augmentation': spec},
  )


def _of_image(change):
  return lambda x, seed: {**x, 'image': change(x['image'], seed)}


def _change(part, spec, size):
  name, _, pixels = part.partition(':')
  if part == 'flip':
    return flip
  largest = min(size) - 1
  errors.expect(
    name == 'crop' and pixels.isdecimal() and 0 < int(pixels) <= largest,
    'augmentation',
    f'{FORMS} (of at most {largest} pixels), or a function',
    spec,
  )
  return lambda x, seed: crop(x, int(pixels), seed)


def flip(images: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
  """Mirrors each image `[batch, height, width, ...]` with probability 1/2."""
  images = tf.convert_to_tensor(images)
  is_kept = randomness.keep_mask(seed, tf.shape(images)[:1], 0.5)
  is_kept = tf.reshape(is_kept, [-1] + [1] * (images.shape.rank - 1))
  return tf.where(is_kept, images, tf.reverse(images, axis=[2]))


def crop(images: tf.Tensor, pixels: int, seed: tf.Tensor) -> tf.Tensor:
  """Shifts each image at random by up to `pixels` along both axes."""
  images = tf.convert_to_tensor(images)
  paddings = [[0, 0], [pixels, pixels], [pixels, pixels], [0, 0]]
  cut = tf.pad(images, paddings[: images.shape.rank])
  batch = tf.shape(images)[0]
  for axis in (1, 2):
    offset = randomness.uniform_integers(
      randomness.fold_in(seed, axis), [batch], 2 * pixels + 1
    )
    positions = offset[:, tf.newaxis] + tf.range(images.shape[axis])
    cut = tf.gather(cut, positions, axis=axis, batch_dims=1)
  return cut
