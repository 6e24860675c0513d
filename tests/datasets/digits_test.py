"""Tests of scikit-learn's digits as a federated dataset."""

import numpy as np
import pytest
import tensorflow as tf

from tff_pfl.datasets import digits


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
