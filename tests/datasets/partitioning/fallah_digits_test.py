import numpy as np
import pytest

from tests.datasets.partitioning import rules


def test_fallah_digits_has_the_papers_counts():
  # Classes as scarce as they may be: 5,390 and 1,960 training images.
  train, test = rules.labels([5390] * 5 + [1960] * 5), rules.labels([1000] * 10)
  parts = rules.partition('fallah_digits:196', train, test, 50)
  counts = rules.counts(parts.train_indices, train, 10)
  assert counts[:25].tolist() == [[196] * 5 + [0] * 5] * 25
  assert (np.sort(counts[25:, :5]) == [0, 0, 0, 0, 98]).all()
  assert (np.sort(counts[25:, 5:]) == [0, 0, 0, 0, 392]).all()
  # Each of the 25 pairs of one class of 0-4 and one of 5-9 once.
  pairs = {tuple(np.flatnonzero(row)) for row in counts[25:]}
  assert len(pairs) == 25


@pytest.mark.parametrize('num_clients', [14, 70])
def test_fallah_digits_covers_classes_evenly(num_clients):
  train = rules.labels([400] * 10)
  parts = rules.partition('fallah_digits:2', train, None, num_clients)
  half = num_clients // 2
  counts = rules.counts(parts.train_indices, train, 10)[half:]
  owners = (counts > 0).sum(axis=0)
  assert owners[:5].sum() == owners[5:].sum() == half
  for group in (owners[:5], owners[5:]):
    assert group.max() - group.min() <= 1
  pairs = [tuple(np.flatnonzero(row)) for row in counts]
  assert len(set(pairs)) == min(half, 25)


@pytest.mark.parametrize(
  'test_counts, factor',
  [
    ([200] * 10, 1 / 5),
    # All test images of the class 3, of which there is not a fifth.
    ([240, 240, 240, 33, 236] + [200] * 5, 33 / 220),
  ],
)
def test_fallah_digits_test_counts_follow_training_counts(
  test_counts, factor, caplog
):
  train, test = rules.labels([1000] * 10), rules.labels(test_counts)
  parts = rules.partition('fallah_digits:40', train, test, 10)
  for indices in parts:
    dealt = np.concatenate(indices)
    assert len(np.unique(dealt)) == len(dealt)
  counts = rules.counts(parts.train_indices, train, 10)
  assert counts.sum(axis=0).tolist() == [220] * 5 + [80] * 5
  test_counts = rules.counts(parts.test_indices, test, 10)
  assert np.abs(test_counts - factor * counts).max() < 1
  np.testing.assert_array_equal(test_counts > 0, counts > 0)
  # The rest is left out without a word.
  assert not caplog.text
