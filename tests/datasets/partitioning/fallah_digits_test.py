"""Tests of the partition of Per-FedAvg's experiment."""

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


@pytest.mark.parametrize('num_clients', [10, 14, 36, 70])
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


def test_fallah_digits_deals_no_example_twice_and_leaves_the_rest_out(caplog):
  train, test = rules.labels([90] * 10), rules.labels([30] * 10)
  parts = rules.partition('fallah_digits:6', train, test, 10)
  for indices in parts:
    dealt = np.concatenate(indices)
    assert len(np.unique(dealt)) == len(dealt)
  assert sum(len(i) for i in parts.train_indices) == 5 * 30 + 5 * 15
  assert [len(i) for i in parts.train_indices] == [30] * 5 + [15] * 5
  assert caplog.text == ''


@pytest.mark.parametrize(
  'test_counts, factor',
  [
    ([200] * 10, 1 / 5),
    # All test images of the class 3, of which there is not a fifth.
    ([240, 240, 240, 33, 236] + [200] * 5, 33 / 220),
    ([1000] * 10, 1.0),
  ],
)
def test_fallah_digits_test_counts_follow_training_counts(test_counts, factor):
  train, test = rules.labels([1000] * 10), rules.labels(test_counts)
  parts = rules.partition('fallah_digits:40', train, test, 10)
  counts = rules.counts(parts.train_indices, train, 10)
  assert counts.sum(axis=0).tolist() == [220] * 5 + [80] * 5
  test_counts = rules.counts(parts.test_indices, test, 10)
  assert np.abs(test_counts - factor * counts).max() < 1
  np.testing.assert_array_equal(test_counts > 0, counts > 0)


def test_fallah_digits_of_more_images_than_there_are_names_the_most():
  train = rules.labels([99] * 5 + [48] * 5)
  # 5.5 of 99 and 2 of 48 images: at most 18 and 24, of which 18 is even.
  with pytest.raises(ValueError, match='to be at most 18, .* 10 .* found 20'):
    rules.partition('fallah_digits:20', train, None, 10)
  parts = rules.partition('fallah_digits:18', train, None, 10)
  assert rules.counts(parts.train_indices, train, 10).sum() == 5 * 99 + 5 * 36
  with pytest.raises(ValueError, match='`num_clients` to be smaller.* 92'):
    rules.partition('fallah_digits:2', train, None, 92)


@pytest.mark.parametrize('num_clients', [1, 2, 8, 11])
def test_fallah_digits_of_an_odd_or_small_number_of_clients_is_an_error(
  num_clients,
):
  with pytest.raises(
    ValueError, match=f'`num_clients` to be an even .*10.*found {num_clients}'
  ):
    rules.partition(
      'fallah_digits:2', rules.labels([99] * 10), None, num_clients
    )


@pytest.mark.parametrize(
  'counts, num_classes, found',
  [
    ([9] * 9, None, '9 of 9 classes'),
    ([9] * 11, None, '11 of 11 classes'),
    ([9] * 9, 10, '9 of 10 classes'),
    ([9] * 10, 20, '10 of 20 classes'),
  ],
)
def test_fallah_digits_needs_ten_classes_with_examples(
  counts, num_classes, found
):
  with pytest.raises(
    ValueError, match=f'`y_train` to be of exactly 10 classes.*{found}'
  ):
    rules.partition(
      'fallah_digits:2', rules.labels(counts), None, 10, num_classes=num_classes
    )


def test_fallah_digits_needs_test_examples_of_every_class_or_none():
  with pytest.raises(ValueError, match='`y_test` to be of .*9 of 10 classes'):
    rules.partition(
      'fallah_digits:2', rules.labels([99] * 10), rules.labels([9] * 9), 10
    )
