"""Derivation of seeds: the only source of randomness of client work.

A seed is an int32 tensor `[2]`. Only integers are drawn, from a named algorithm
(Philox): they are the same on every device and with or without XLA, which turns
the same bits into other floating-point numbers than TensorFlow's kernels do.
"""

from __future__ import annotations

from typing import Optional

import tensorflow as tf

# What a client's seed is for; folded in so that the uses never share numbers.
TRAINING = 0
PERSONALIZATION = 1
FIRST_EXCHANGE = 3
# And what a round's seed is for that all parties know.
_SERVER = 2
# Of the noise that an aggregation adds.
AGGREGATION = 4

_PERMUTATIONS_PER_BLOCK = 16
# As TensorFlow has it.
_SCRAMBLING_KEY = 0x02461E293EC8F720


def fold_in(seed: tf.Tensor, *data) -> tf.Tensor:
  """Derives a new seed from `seed` and integers, folded in in their order."""
  for value in data:
    seed = _fold_in(seed, tf.cast(value, tf.int32))
  return seed


# Some hundred operations, which are traced once.
@tf.function(
  input_signature=[tf.TensorSpec([2], tf.int32), tf.TensorSpec([], tf.int32)],
  autograph=False,
)
def _fold_in(seed, value):
  return tf.stack([_bits(seed, []), value])


def client_seed(
  run_seed: tf.Tensor,
  round_number: tf.Tensor,
  client_index: tf.Tensor,
  purpose: int,
) -> tf.Tensor:
  """The seed of one client's work in one round.

  Args:
    run_seed: int64 scalar, from the server state.
    round_number: int32 scalar.
    client_index: int64 scalar, from the client state.
    purpose: `TRAINING`, `PERSONALIZATION` or `FIRST_EXCHANGE` (of a round that
      trains in a later one, too).
  """
  # Both halves of the index count, so that 64-bit indices stay distinct.
  index = _halves(client_index)
  return fold_in(_halves(run_seed), purpose, round_number, index[0], index[1])


def server_seed(run_seed: tf.Tensor, round_number: tf.Tensor) -> tf.Tensor:
  """The seed of what the server draws in one round; clients may know it."""
  return fold_in(_halves(run_seed), _SERVER, round_number)


def fingerprint(values) -> tf.Tensor:
  """An int64 number that depends on every number of a structure of tensors.

  It stands for the number of a client that has none. Equal values have equal
  fingerprints; of others they differ by all odds.
  """
  total = tf.zeros([], tf.int64)
  for value in tf.nest.flatten(values):
    if value.dtype == tf.string:
      value = tf.strings.to_hash_bucket_fast(value, 2**31)
    if value.dtype.is_floating:
      value = tf.bitcast(tf.cast(value, tf.float32), tf.int32)
    numbers = tf.reshape(tf.cast(value, tf.int64), [-1])
    # Odd factors, so that the order counts; sums wrap around.
    factors = 2 * tf.range(tf.size(numbers, tf.int64)) + 1
    total = 31 * total + tf.reduce_sum(numbers * factors)
  return total


def _halves(number):
  """A 64-bit integer as two of 32 bits."""
  return tf.bitcast(tf.cast(number, tf.int64), tf.int32)


def _bits(seed, shape):
  """int32 numbers, uniform over the whole range.

  Those of `tf.random.stateless_uniform`, whose arithmetic of 64 bits is none of
  LiteRT's.
  """
  scrambled = _philox(
    [4],
    tf.constant([_SCRAMBLING_KEY], tf.uint64),
    tf.stack([seed, tf.bitwise.right_shift(seed, 31)], axis=1),
  )
  key, high = tf.unstack(tf.reshape(scrambled, [2, 2]))
  counter = tf.stack([tf.zeros_like(high), high])
  return _philox(shape, tf.bitcast([key], tf.uint64), counter)


def _philox(shape, key, counter):
  """The algorithm itself, from a counter of four int32 words `[2, 2]`."""
  return tf.raw_ops.StatelessRandomUniformFullIntV2(
    shape=tf.convert_to_tensor(shape, tf.int32),
    key=key,
    counter=tf.bitcast(counter, tf.uint64),
    alg=1,
    dtype=tf.int32,
  )


def keep_mask(seed: tf.Tensor, shape, drop_rate: float) -> tf.Tensor:
  """Independent coins: bool tensor, False with probability `drop_rate`.

  Args:
    shape: The shape of the result.
    drop_rate: In [0, 1), resolved to 2^-32.
  """
  threshold = min(round(drop_rate * 2**32), 2**32 - 1) - 2**31
  return _bits(seed, shape) >= threshold


def uniform(seed: tf.Tensor, shape) -> tf.Tensor:
  """Independent float32 numbers in (0, 1), uniform over odd multiples of 2^-24.

  Args:
    shape: The shape of the result.
  """
  integers = tf.bitwise.bitwise_and(_bits(seed, shape), 2**23 - 1)
  return (2 * tf.cast(integers, tf.float32) + 1) * 2.0**-24


def uniform_integers(seed: tf.Tensor, shape, number: int) -> tf.Tensor:
  """Independent int32 numbers from 0 to `number - 1`, uniform to 2^-31.

  Args:
    shape: The shape of the result.
    number: At least 1, and small beside 2^31.
  """
  return tf.bitwise.bitwise_and(_bits(seed, shape), 2**31 - 1) % number


def permutations(
  seed: tf.Tensor,
  num_permutations,
  capacity,
  num_examples,
  max_permutations: Optional[int] = None,
) -> tf.Tensor:
  """Seeded permutations of a client's examples, padding last.

  Args:
    num_permutations: Number of permutations (epochs), at most
      `max_permutations`.
    capacity: Number of rows of the padded tensors.
    num_examples: Number of real examples, at most `capacity`.
    max_permutations: A bound that is known when the graph is made; may be None
      if `num_permutations` is a Python integer.

  Returns:
    int32 `[num_permutations, capacity]`: each row holds the indices below
    `num_examples` in random order, then the others.
  """
  # Keys come in blocks of columns, so that a permutation's depend neither on
  # the number of permutations nor on the capacity.
  max_permutations = max_permutations or num_permutations
  num_blocks = -(-max_permutations // _PERMUTATIONS_PER_BLOCK)
  blocks = [
    _bits(fold_in(seed, block), [capacity, _PERMUTATIONS_PER_BLOCK])
    for block in range(max(1, num_blocks))
  ]
  keys = tf.transpose(tf.concat(blocks, axis=1)[:, :num_permutations])
  is_padding = tf.range(capacity) >= num_examples
  keys = tf.where(is_padding[tf.newaxis], tf.int32.max, keys)
  return tf.argsort(keys, axis=1, stable=True)
