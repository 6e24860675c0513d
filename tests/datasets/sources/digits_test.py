import numpy as np
import pytest

from tests.datasets import shared
from tff_pfl.datasets import registry
from tff_pfl.datasets.sources import digits


def test_digits_have_documented_sizes_and_element_spec():
  dataset = shared.load('digits', None, 10, 'shards:2')
  assert dataset.name == 'digits'
  assert dataset.num_classes == 10
  assert dataset.element_spec == shared.spec(8, 8, 1)
  train, test = dataset.class_counts('train'), dataset.class_counts('test')
  assert (train.sum(), test.sum()) == (1437, 360)
  assert (train + test).sum(axis=0).tolist() == [
    178, 182, 177, 183, 181, 182, 181, 179, 174, 180,
  ]  # fmt: skip
  assert np.abs(test.sum(axis=0) - 36).max() <= 1
  assert ((train > 0).sum(axis=1) == 2).all()
  x = dataset.train('client_0').x
  assert x.min() == 0 and x.max() == 1
  np.testing.assert_array_equal(x * 16, np.round(x * 16))


def test_every_image_is_in_one_domain_turned_by_its_angle():
  arrays = digits.load_rotated_digits()
  upright = digits.load_digits()
  assert arrays.domain_names == tuple(
    f'rotation_{angle}' for angle in (0, 90, 180, 270)
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


@pytest.mark.parametrize('num_rotations', [1, 12])
def test_classes_are_spread_evenly_over_rotations(num_rotations):
  arrays = digits.load_rotated_digits(num_rotations=num_rotations)
  assert arrays.x.min() >= 0 and 0.9 < arrays.x.max() <= 1
  for y, domain in zip(
    (arrays.y, arrays.y_test), (arrays.domain, arrays.domain_test)
  ):
    counts = np.zeros((num_rotations, 10), int)
    np.add.at(counts, (domain, y), 1)
    assert (np.ptp(counts, axis=0) <= 1).all()
    assert np.ptp(counts.sum(axis=1)) <= 1


def test_a_domain_renames_all_classes(tmp_path):
  labels = np.repeat(np.arange(10), 10)
  x = np.arange(100 * 3072).reshape(100, 32, 32, 3).astype(np.uint8)
  splits = {'x': x, 'y': labels, 'x_test': x[::2], 'y_test': labels[::2]}
  np.savez(tmp_path / 'cifar10.npz', **splits)
  arrays = registry.load_arrays('relabelled_cifar10', str(tmp_path))
  assert arrays.domain_names[1:3] == ('shifted_2', 'shifted_4')
  np.testing.assert_array_equal(arrays.x, x)
  for y, domain, expected in (
    (arrays.y, arrays.domain, labels),
    (arrays.y_test, arrays.domain_test, labels[::2]),
  ):
    # Each domain has as many of each class, and moves its name two further.
    counts = np.zeros((5, 10), int)
    np.add.at(counts, (domain, expected), 1)
    assert (counts == len(y) / 50).all()
    np.testing.assert_array_equal((y - expected) % 10, 2 * domain)


def test_a_domain_swaps_the_two_labels_of_its_name():
  num_domains = 3
  arrays = digits.load_relabelled_digits(num_domains=num_domains)
  plain = digits.load_digits()
  assert len(arrays.domain_names) == num_domains
  for y, domain, expected in (
    (arrays.y, arrays.domain, plain.y),
    (arrays.y_test, arrays.domain_test, plain.y_test),
  ):
    for m, name in enumerate(arrays.domain_names):
      first, second = map(int, name.split('_')[1:])
      renamed = {first: second, second: first}
      of_domain = domain == m
      assert of_domain.any()
      np.testing.assert_array_equal(
        y[of_domain],
        [renamed.get(label, label) for label in expected[of_domain]],
      )
  np.testing.assert_array_equal(arrays.x, plain.x)
  np.testing.assert_array_equal(arrays.x_test, plain.x_test)
