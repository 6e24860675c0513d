"""Tests of digits in domains of one rotation each."""

import numpy as np
import pytest
import tensorflow as tf

from tff_pfl.datasets import digits, rotated_digits


def _images(x):
  return {image.tobytes() for image in x}


def test_every_image_is_in_one_domain_turned_by_its_angle():
  arrays = rotated_digits.load_rotated_digits_arrays()
  upright = digits.load_digits_arrays()
  assert arrays.domain_names == (
    'rotation_0',
    'rotation_90',
    'rotation_180',
    'rotation_270',
  )
  for x, domain, expected in (
    (arrays.x, arrays.domain, upright.x),
    (arrays.x_test, arrays.domain_test, upright.x_test),
  ):
    turned_back = np.stack(
      [np.rot90(image, -turns) for image, turns in zip(x, domain)]
    )
    np.testing.assert_allclose(turned_back, expected, atol=1e-6)
  np.testing.assert_array_equal(arrays.y, upright.y)
  np.testing.assert_array_equal(arrays.y_test, upright.y_test)
  assert arrays.x.dtype == np.float32


def test_training_and_test_images_are_kept_apart():
  upright = digits.load_digits_arrays()
  # No picture occurs twice, so that one can be told from all others.
  assert len(_images(upright.x) | _images(upright.x_test)) == 1797
  arrays = rotated_digits.load_rotated_digits_arrays()
  assert not _images(arrays.x) & _images(arrays.x_test)


@pytest.mark.parametrize('num_rotations', [2, 4, 7, 12])
def test_classes_are_spread_evenly_over_domains(num_rotations):
  arrays = rotated_digits.load_rotated_digits_arrays(num_rotations)
  for y, domain in (
    (arrays.y, arrays.domain),
    (arrays.y_test, arrays.domain_test),
  ):
    counts = np.zeros((num_rotations, 10), int)
    np.add.at(counts, (domain, y), 1)
    assert (np.ptp(counts, axis=0) <= 1).all()
    assert np.ptp(counts.sum(axis=1)) <= 1


def test_the_same_picture_means_something_else_in_another_domain():
  """A classifier of upright digits fails on those upside down."""
  arrays = rotated_digits.load_rotated_digits_arrays(2)
  upright = digits.load_digits_arrays()
  x = upright.x.reshape(-1, 64)

  def nearest(queries):
    distances = (x**2).sum(axis=1) - 2 * queries.reshape(-1, 64) @ x.T
    return upright.y[np.argmin(distances, axis=1)]

  right = nearest(arrays.x_test) == arrays.y_test
  assert right[arrays.domain_test == 0].mean() > 0.95
  assert right[arrays.domain_test == 1].mean() < 0.6
  # A six that is turned by 180 degrees is a nine.
  six = (arrays.y_test == 6) & (arrays.domain_test == 1)
  assert (nearest(arrays.x_test[six]) == 9).mean() > 0.5


def test_turns_between_right_angles_stay_in_the_unit_interval():
  arrays = rotated_digits.load_rotated_digits_arrays(12)
  assert arrays.x.min() >= 0 and 0.9 < arrays.x.max() <= 1
  assert arrays.domain_names[1] == 'rotation_30'


def test_one_rotation_leaves_the_digits_as_they_are():
  arrays = rotated_digits.load_rotated_digits_arrays(1)
  np.testing.assert_array_equal(arrays.x, digits.load_digits_arrays().x)
  assert arrays.domain_names == ('rotation_0',)


def test_clients_are_mixtures_of_domains_by_default():
  dataset = rotated_digits.load_rotated_digits(6, seed=1)
  assert dataset.name == 'rotated_digits'
  assert dict(dataset.element_spec) == {
    'x': tf.TensorSpec([8, 8, 1], tf.float32),
    'y': tf.TensorSpec([], tf.int32),
    'domain': tf.TensorSpec([], tf.int32),
  }
  train, test = dataset.domain_counts('train'), dataset.domain_counts('test')
  assert (train.sum(), test.sum()) == (1437, 360)
  shares = train / train.sum(axis=1, keepdims=True)
  assert shares.max() > 0.5 and shares.min() < 0.1
  again = rotated_digits.load_rotated_digits(6, seed=1)
  np.testing.assert_array_equal(again.domain_counts(), train)


@pytest.mark.parametrize('num_rotations', [0, 13, 2.5])
def test_numbers_of_rotations_out_of_range_are_errors(num_rotations):
  with pytest.raises(ValueError, match=r'`num_rotations` .*in \[1, 12\]'):
    rotated_digits.load_rotated_digits(2, num_rotations=num_rotations)
