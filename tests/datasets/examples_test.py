import numpy as np
import pytest
import tensorflow as tf

from tff_pfl.datasets import examples as examples_lib
from tff_pfl.datasets import federated_dataset

FederatedDataset = federated_dataset.FederatedDataset


def test_transform_is_applied_only_to_the_client_asked_for():
  calls = []

  def halve(x):
    calls.append(len(x))
    return x.astype(np.float32) / 2

  x = np.arange(40, dtype=np.uint8)[:, np.newaxis]
  dataset = FederatedDataset.from_arrays(
    x, np.zeros(40, int), keys=np.repeat([0, 1], 20), transform=halve
  )
  assert sum(calls) <= 1  # One example for the element spec.
  calls.clear()
  assert dataset.element_spec['x'].dtype == tf.float32
  np.testing.assert_array_equal(dataset.class_counts(), [[16], [16]])
  assert dataset.num_test_examples('0') == 4
  assert calls == []
  assert dataset.train('1').x.min() >= 10
  assert calls == [16]


def test_transform_that_changes_the_number_of_examples_is_an_error():
  dataset = FederatedDataset.from_arrays(
    np.zeros((10, 2)),
    np.zeros(10, int),
    num_clients=1,
    transform=lambda x: x[:1],
  )
  with pytest.raises(ValueError, match=r'`transform\(x\)` to be 8 examples'):
    dataset.train('client_0').x  # noqa: B018


def test_inputs_may_be_made_when_they_are_asked_for():
  made = []

  def make():
    made.append(np.zeros((5, 2)))
    return made[-1]

  part = examples_lib.Examples(make, np.arange(5))
  half = part.select(part.y > 2)
  assert (len(part), len(half), made) == (5, 2, [])
  assert half.x.shape == (2, 2)
  assert part.x is made[0] and len(made) == 1


def test_select_takes_examples_with_all_their_fields():
  x, y = np.arange(4.0)[:, np.newaxis], np.arange(4)
  chosen = examples_lib.Examples(x, y, 3 - y).select(np.array([3, 1]))
  assert chosen.x.ravel().tolist() == [3, 1] and chosen.y.tolist() == [3, 1]
  assert chosen.domain.tolist() == [0, 2]
