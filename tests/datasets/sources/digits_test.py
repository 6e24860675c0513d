"""Tests of scikit-learn's digits as a federated dataset."""

import numpy as np
import pytest
import tensorflow as tf

from tff_pfl.datasets.sources import digits


def test_digits_have_documented_sizes_and_element_spec():
  dataset = digits.load_digits(10, 'shards:2')
  assert dataset.name == 'digits'
  assert dataset.num_classes == 10
  assert dict(dataset.element_spec) == {
    'x': tf.TensorSpec([8, 8, 1], tf.float32),
    'y': tf.TensorSpec([], tf.int32),
  }
  train, test = dataset.class_counts('train'), dataset.class_counts('test')
  assert (train.sum(), test.sum()) == (1437, 360)
  assert (train + test).sum(axis=0).tolist() == [
    178, 182, 177, 183, 181, 182, 181, 179, 174, 180,
  ]  # fmt: skip
  assert np.abs(test.sum(axis=0) - 36).max() <= 1
  assert ((train > 0).sum(axis=1) == 2).all()


def test_digits_are_scaled_to_the_unit_interval():
  part = digits.load_digits(1, 'iid').train('client_0')
  assert part.x.shape == (1437, 8, 8, 1)
  assert part.x.min() == 0 and part.x.max() == 1
  np.testing.assert_array_equal(part.x * 16, np.round(part.x * 16))


def test_seed_changes_the_partition_but_not_which_images_are_test_images():
  first, other = (digits.load_digits(2, 'iid', seed=seed) for seed in (0, 1))
  pools = [
    np.concatenate([d.test(c).x for c in d.client_ids]).reshape(360, -1)
    for d in (first, other)
  ]
  assert not np.array_equal(*pools)
  np.testing.assert_array_equal(*(np.sort(p.sum(axis=1)) for p in pools))


def test_impossible_partition_is_an_error():
  with pytest.raises(ValueError, match='at most 10'):
    digits.load_digits(3, 'shards:11')


def test_the_division_of_per_fedavgs_experiment_can_be_dealt():
  dataset = digits.load_digits(10, 'fallah_digits:24')
  train, test = dataset.class_counts('train'), dataset.class_counts('test')
  assert train[:5].tolist() == [[24] * 5 + [0] * 5] * 5
  assert train[5:].sum(axis=1).tolist() == [12 + 48] * 5
  assert np.abs(test - train / 4).max() < 1
  assert ((test > 0) == (train > 0)).all()


def test_arrays_are_what_the_clients_are_dealt():
  arrays = digits.load_digits_arrays()
  assert arrays.x.shape == (1437, 8, 8, 1) and arrays.x.dtype == np.float32
  assert arrays.y.shape == (1437,) and arrays.y.dtype == np.int32
  assert arrays.x_test.shape == (360, 8, 8, 1)
  again = digits.load_digits_arrays()
  np.testing.assert_array_equal(arrays.x_test, again.x_test)
  part = digits.load_digits(1, 'iid').test('client_0')[:2]
  found, expected = (
    sorted((y, x.tobytes()) for x, y in zip(*pair))
    for pair in (part, (arrays.x_test, arrays.y_test))
  )
  assert found == expected
