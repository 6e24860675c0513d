import numpy as np
import pytest

from tests.datasets.partitioning import rules
from tff_pfl.datasets.partitioning import mixtures


def _counts(
  concentration, class_counts, test_class_counts, num_clients, seed=0
):
  """Returns the clients' class counts, training and test."""
  train, test = rules.labels(class_counts), rules.labels(test_class_counts)
  parts = rules.partition(
    f'client_dirichlet:{concentration}',
    train,
    test,
    num_clients,
    seed,
    len(class_counts),
  )
  for indices in parts:
    dealt = np.concatenate(indices)
    assert len(np.unique(dealt)) == len(dealt)
  return [
    rules.counts(indices, labels, len(class_counts))
    for indices, labels in zip(parts, (train, test))
  ]


@pytest.mark.parametrize('concentration', [1e-300, 0.3, 1e9])
def test_all_clients_have_the_same_numbers_where_classes_are_alike(
  concentration,
):
  # CIFAR-10 by a hundredth: 100 clients of 500 and 100 images.
  train, test = _counts(concentration, [500] * 10, [100] * 10, 10)
  assert train.sum(axis=1).tolist() == [500] * 10
  assert test.sum(axis=1).tolist() == [100] * 10
  # Of the same distribution, up to rounding.
  assert np.abs(test - train / 5).max() < 2
  assert not test[train == 0].any()


@pytest.mark.parametrize('seed', range(2))
def test_test_sizes_are_as_equal_as_the_pool_allows(seed):
  counts = [400, 300, 200, 107], [23, 38, 21, 20]
  train, test = _counts(0.5, *counts, 20, seed)
  assert train.sum(axis=0).tolist() == counts[0]
  assert sorted(set(train.sum(axis=1))) == [50, 51]
  assert (test.sum(axis=0) <= counts[1]).all()
  assert not test[train == 0].any()
  assert test.sum(axis=1).max() <= 6
  # Whoever has fewer has no class of which more is left than rounding leaves.
  short = test.sum(axis=1) < 5
  is_left = counts[1] - test.sum(axis=0) > 1
  assert short.any() and is_left.any()
  assert not (train[short] > 0)[:, is_left].any()


def test_counts_of_a_case_that_is_solved_by_hand(monkeypatch):
  drawn = np.array([[0.8, 0.2, 0], [0.4, 0.3, 0.3]])
  monkeypatch.setattr(mixtures, 'draw', lambda *_: drawn)
  # Both ask for 10, the first for 8 of class 0 and the second for 4: they get
  # half of it, as there are 6. The first then wants 4 more of class 1, and the
  # second 1 more of each of 1 and 2; where class 1 has 4 left, they get 3.2 and
  # 0.8. At last class 2 makes up for 0.8 and 0.2: 4, 5.2, 0.8 and 2, 3.8, 4.2.
  # Of 4 test examples, the first asks for 1.6, 2, 0.4 and the second for 0.8,
  # 1.6, 1.6. Class 0 has but 2, so that they get 1.33, 2.27, 0.4 and 0.67,
  # 1.73, 1.6. The first has the largest remainder in class 2, and the second
  # what rounding has cost the classes 0 and 1.
  train, test = _counts(1, [6, 9, 5], [2, 4, 2], 2)
  assert train.tolist() == [[4, 5, 1], [2, 4, 4]]
  assert test.tolist() == [[1, 2, 1], [1, 2, 1]]


def test_test_examples_of_classes_nobody_has_room_for_are_left_out(
  monkeypatch, caplog
):
  monkeypatch.setattr(mixtures, 'draw', lambda *_: np.eye(2, 3))
  train, test = _counts(1, [4, 4, 0], [1, 4, 1], 2)
  assert train.tolist() == [[4, 0, 0], [0, 4, 0]]
  assert test.tolist() == [[1, 0, 0], [0, 3, 0]]
  assert 'leaves out 2 of 6 test examples' in caplog.text
