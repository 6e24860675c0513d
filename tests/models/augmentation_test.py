"""Random changes of examples, in training only."""

import functools

import numpy as np
import pytest
import tensorflow as tf

from tff_pfl.datasets import examples as examples_lib
from tff_pfl.models import (
  augmentation,
  domain_models,
  domains,
  randomness,
  split_model,
  zoo,
)
from tff_pfl.runtime import vectorization_rules  # noqa: F401

_SEED = tf.constant([3, 4])


def _images(number=200, shape=(5, 4, 2)):
  rng = np.random.default_rng(1)
  return rng.uniform(1, 2, [number, *shape]).astype(np.float32)


@functools.cache
def _model(shape=(5, 4, 2), dtype=tf.float32):
  spec = examples_lib.element_spec(tf.TensorSpec(shape, dtype))
  return zoo.linear(spec, 3)


@pytest.mark.parametrize('shape', [(5, 4, 2), (5, 4)])
def test_half_of_the_images_are_mirrored(shape):
  images = _images(shape=shape)
  actual = augmentation.flip(images, _SEED).numpy()
  is_same = (actual == images).reshape(len(images), -1).all(axis=1)
  is_mirrored = (actual == images[:, :, ::-1]).reshape(len(images), -1).all(1)
  assert np.all(is_same ^ is_mirrored)
  assert 75 < is_same.sum() < 125


def test_images_are_cut_at_every_offset_alike():
  images = _images(number=900)
  actual = augmentation.crop(images, 1, _SEED).numpy()
  padded = np.pad(images, [(0, 0), (1, 1), (1, 1), (0, 0)])
  counts = np.zeros([3, 3], int)
  for i in range(3):
    for j in range(3):
      same = actual == padded[:, i : i + 5, j : j + 4]
      counts[i, j] = same.reshape(len(images), -1).all(axis=1).sum()
  assert counts.sum() == len(images)
  assert np.all(np.abs(counts - 100) < 40)


def test_clients_as_one_program_get_their_own():
  images = _images(12).reshape([3, 4, 5, 4, 2])
  seeds = tf.constant([[1, 2], [3, 4], [5, 6]])

  def change(x, seed):
    return augmentation.flip(augmentation.crop(x, 1, seed), seed)

  together = tf.function(
    lambda x, s: tf.vectorized_map(
      lambda arguments: change(*arguments), (x, s), fallback_to_while_loop=False
    )
  )(tf.constant(images), seeds)
  for client in range(3):
    np.testing.assert_array_equal(
      together[client], change(tf.constant(images[client]), seeds[client])
    )


@pytest.mark.parametrize(
  'model, spec, reason',
  [
    *(
      (_model(), spec, 'none, flip, crop.*at most 3 pixels')
      for spec in ('', 'crop:0', 'crop:a', 'rotate', 'crop:4+flip', None)
    ),
    (_model((7,)), 'flip', 'that are no images'),
    (_model((5, 4), tf.int32), 'flip', 'that are no images'),
    (augmentation.augmented(_model(), 'flip'), 'crop:1', '`model` .*without'),
    (
      domain_models.with_domains(_model(), domains.Domains(('a',), (1,))),
      'flip',
      '`model` .*without augmentation and domains',
    ),
  ],
)
def test_what_cannot_be_changed_is_refused(model, spec, reason):
  with pytest.raises(ValueError, match=reason):
    augmentation.augmented(model, spec)


def _shift(x, seed):
  return x + randomness.uniform(seed, tf.shape(x))


@pytest.mark.parametrize(
  ('shape', 'change'), [((5, 4, 2), 'crop:1+flip'), ((7,), _shift)]
)
def test_examples_are_changed_in_training_only_by_the_seed(shape, change):
  plain_model = _model(shape)
  model = augmentation.augmented(plain_model, change)
  x = tf.constant(_images(6, shape))
  weights = model.initial_weights
  plain, first, again, other = (
    model.forward(weights, x, mode)[0]
    for mode in (
      split_model.INFERENCE,
      *(split_model.Mode(True, tf.constant([1, k])) for k in (2, 2, 3)),
    )
  )
  np.testing.assert_array_equal(plain, plain_model.forward(weights, x)[0])
  np.testing.assert_array_equal(first, again)
  assert not np.allclose(first, plain) and not np.allclose(first, other)
