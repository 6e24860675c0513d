"""Tests of shards of one class each."""

import pytest

from tests.datasets.partitioning import rules


def test_shards_of_unequal_classes_are_cut_to_nearly_equal_sizes():
  # 12 shards of 600 examples: 2, 4 and 6 of them give 50 each.
  train = rules.labels([100, 200, 300])
  parts = rules.partition('shards:2', train, None, 6)
  counts = rules.counts(parts.train_indices, train, 3)
  assert set(counts.ravel()) == {0, 50}
  assert (counts > 0).sum(axis=0).tolist() == [2, 4, 6]


def test_shards_that_do_not_divide_by_the_classes_still_have_distinct_classes():
  train = rules.labels([90] * 10)
  parts = rules.partition('shards:3', train, None, 7)
  counts = rules.counts(parts.train_indices, train, 10)
  assert ((counts > 0).sum(axis=1) == 3).all()
  owners = (counts > 0).sum(axis=0)
  assert owners.min() == 2 and owners.max() == 3


def test_as_many_shards_as_classes_gives_every_client_all_classes():
  train = rules.labels([12, 24, 36])
  parts = rules.partition('shards:3', train, None, 4)
  counts = rules.counts(parts.train_indices, train, 3)
  assert counts.tolist() == [[3, 6, 9]] * 4


@pytest.mark.parametrize('per_client', [5, 20])
def test_shards_of_a_hundred_classes_as_in_fedreps_table(per_client):
  train, test = rules.labels([500] * 100), rules.labels([100] * 100)
  parts = rules.partition(f'shards:{per_client}', train, test, 100)
  for indices, labels, size in zip(parts, (train, test), (500, 100)):
    counts = rules.counts(indices, labels, 100)
    assert set(counts.ravel()) == {0, size // per_client}
    assert ((counts > 0).sum(axis=1) == per_client).all()
    assert ((counts > 0).sum(axis=0) == per_client).all()
