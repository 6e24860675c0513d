import numpy as np
import pytest
import tensorflow as tf

from tff_pfl.models import randomness

SEED = tf.constant([1, 2])


def _client_seed(experiment=7, round_number=3, client=5, purpose=0):
  return tuple(
    randomness.client_seed(
      tf.constant(experiment, tf.int64),
      tf.constant(round_number),
      tf.constant(client, tf.int64),
      purpose,
    ).numpy()
  )


def test_numbers_are_pinned():
  # A run can only be resumed or repeated if these never change.
  np.testing.assert_array_equal(randomness.fold_in(SEED, 3), [1105988140, 3])
  np.testing.assert_array_equal(randomness.fold_in(SEED, 3, 4), [-506102758, 4])
  assert _client_seed() == (-590609495, 0)
  np.testing.assert_array_equal(
    randomness.permutations(SEED, 2, 8, 6),
    [[1, 0, 4, 3, 5, 2, 6, 7], [3, 2, 0, 1, 5, 4, 6, 7]],
  )
  np.testing.assert_array_equal(
    randomness.keep_mask(SEED, [2, 5], 0.5),
    [[True, True, False, True, True], [False, True, True, True, True]],
  )


def test_numbers_are_the_same_with_xla():
  def draw(seed):
    return (
      randomness.fold_in(seed, 3, 4),
      randomness.keep_mask(seed, [33, 7], 0.3),
      randomness.permutations(seed, 3, 64, 40),
      randomness.uniform(seed, [50]),
    )

  plain = tf.function(draw)(SEED)
  compiled = tf.function(draw, jit_compile=True)(SEED)
  tf.nest.map_structure(np.testing.assert_array_equal, compiled, plain)
  tf.nest.map_structure(np.testing.assert_array_equal, draw(SEED), plain)


def test_fold_in_of_several_is_one_after_the_other():
  np.testing.assert_array_equal(
    randomness.fold_in(SEED, 3, tf.constant(4, tf.int64)),
    randomness.fold_in(randomness.fold_in(SEED, 3), 4),
  )
  assert tuple(randomness.fold_in(SEED, 3, 4).numpy()) != tuple(
    randomness.fold_in(SEED, 4, 3).numpy()
  )


@pytest.mark.parametrize(
  'difference',
  [
    {'experiment': 7 + 2**32},
    {'experiment': -7},
    {'round_number': 4},
    {'client': 5 + 2**32},
    {'client': 5 - 2**40},
    {'purpose': randomness.PERSONALIZATION},
  ],
)
def test_every_part_of_a_clients_seed_counts(difference):
  assert _client_seed() == _client_seed()
  assert _client_seed() != _client_seed(**difference)


@pytest.mark.parametrize('drop_rate', [0.0, 0.1, 0.9])
def test_coins_fall_at_the_drop_rate(drop_rate):
  kept = randomness.keep_mask(SEED, [200, 500], drop_rate)
  assert kept.dtype == tf.bool
  # 100,000 coins: a standard deviation is at most 0.0016.
  assert abs(np.mean(~kept.numpy()) - drop_rate) < 0.006
  if drop_rate == 0:
    assert np.all(kept)


def test_more_rows_of_coins_keep_the_first_ones():
  few = randomness.keep_mask(SEED, [16, 7], 0.5)
  many = randomness.keep_mask(SEED, [64, 7], 0.5)
  np.testing.assert_array_equal(few, many[:16])


@pytest.mark.parametrize('num_examples', [0, 1, 7, 16])
def test_permutations_shuffle_the_examples_and_leave_padding_last(num_examples):
  rows = randomness.permutations(SEED, 5, 16, num_examples).numpy()
  assert rows.shape == (5, 16)
  for row in rows:
    assert sorted(row[:num_examples]) == list(range(num_examples))
    assert list(row[num_examples:]) == list(range(num_examples, 16))


def test_permutations_depend_neither_on_their_number_nor_on_the_padding():
  many = randomness.permutations(SEED, 40, 128, 11)
  few = randomness.permutations(SEED, 3, 16, 11)
  bounded = randomness.permutations(
    SEED, tf.constant(3), 16, 11, max_permutations=40
  )
  np.testing.assert_array_equal(few[:, :11], many[:3, :11])
  np.testing.assert_array_equal(few, bounded)
  other = randomness.permutations(tf.constant([1, 3]), 4, 128, 11)
  assert len({tuple(row) for row in (*many.numpy(), *other.numpy())}) == 44


def test_every_position_is_equally_likely():
  rows = randomness.permutations(SEED, 4000, 16, 4).numpy()
  # 4000 / 4 = 1000 for each pair; a standard deviation is 27.
  counts = np.stack([np.bincount(rows[:, i], minlength=4) for i in range(4)])
  assert np.all(abs(counts - 1000) < 140), counts


def test_uniform_numbers_are_between_0_and_1_and_of_the_same_density():
  values = randomness.uniform(SEED, [4000]).numpy()
  assert 0 < values.min() and values.max() < 1
  counts, _ = np.histogram(values, 8, (0, 1))
  # 500 each, with a standard deviation of 21.
  assert np.all(abs(counts - 500) < 84)
