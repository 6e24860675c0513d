"""Seeds and random numbers of client work.

A seed is an int32 tensor `[2]`. Only integers are drawn, by the Philox
algorithm, so that numbers are the same on every device and with or without XLA.
XLA's own floating-point draws differ from TensorFlow's.
"""

from __future__ import annotations

import functools
from typing import Optional

import tensorflow as tf

from tff_pfl.system.private_api import eager_context

# Purposes of a client's seed, folded in so that no two uses share numbers.
TRAINING = 0
PERSONALIZATION = 1
FIRST_EXCHANGE = 3
# For a round's seed that all parties know.
_SERVER = 2
# For the noise that an aggregation adds.
AGGREGATION = 4

_PERMUTATIONS_PER_BLOCK = 16
# The same as TensorFlow's.
_SCRAMBLING_KEY = 0x02461E293EC8F720


def fold_in(seed: tf.Tensor, *data) -> tf.Tensor:
  """Derives a new seed from a seed and integers, whose order counts."""
  for value in data:
    seed = _folding()(seed, tf.cast(value, tf.int32))
  return seed


@functools.cache
def _folding():
  """Traces the hundreds of operations of one folding, once for all graphs.

  This happens outside of any graph, which the function would keep in memory.
  """
  with eager_context.eager_mode():
    return tf.function(
      lambda seed, value: tf.stack([_bits(seed, []), value]),
      input_signature=[
        tf.TensorSpec([2], tf.int32),
        tf.TensorSpec([], tf.int32),
      ],
      autograph=False,
    ).get_concrete_function()


def client_seed(
  run_seed: tf.Tensor,
  round_number: tf.Tensor,
  client_index: tf.Tensor,
  purpose: int,
) -> tf.Tensor:
  """Returns the seed of one client's work in one round.

  Args:
    run_seed: int64 scalar, from the server state.
    round_number: int32 scalar.
    client_index: int64 scalar, from the client state.
    purpose: `TRAINING`, `PERSONALIZATION` or `FIRST_EXCHANGE` (for an exchange
      before the one that trains).
  """
  # Both halves of the index are used, so that 64-bit indices stay distinct.
  index = _halves(client_index)
  return fold_in(_halves(run_seed), purpose, round_number, index[0], index[1])


def server_seed(run_seed: tf.Tensor, round_number: tf.Tensor) -> tf.Tensor:
  """Returns the seed of the server's draws in a round. Clients may know it."""
  return fold_in(_halves(run_seed), _SERVER, round_number)


def fingerprint(values) -> tf.Tensor:
  """Returns an int64 hash of all numbers of a structure of tensors.

  It replaces the index of a client that has none. Equal values have equal
  fingerprints. Different values almost surely have different ones.
  """
  total = tf.zeros([], tf.int64)
  for value in tf.nest.flatten(values):
    if value.dtype == tf.string:
      value = tf.strings.to_hash_bucket_fast(value, 2**31)
    if value.dtype.is_floating:
      value = tf.bitcast(tf.cast(value, tf.float32), tf.int32)
    numbers = tf.reshape(tf.cast(value, tf.int64), [-1])
    # Different odd factors make the order count. Sums wrap around.
    factors = 2 * tf.range(tf.size(numbers, tf.int64)) + 1
    total = 31 * total + tf.reduce_sum(numbers * factors)
  return total


def _halves(number):
  """Splits a 64-bit integer into two 32-bit integers."""
  return tf.bitcast(tf.cast(number, tf.int64), tf.int32)


def _bits(seed, shape):
  """Draws int32 numbers, uniform over the whole range.

  They equal the numbers of `tf.random.stateless_uniform`, whose 64-bit
  arithmetic LiteRT lacks.
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
  """Runs Philox from a counter of four int32 words `[2, 2]`."""
  return tf.raw_ops.StatelessRandomUniformFullIntV2(
    shape=tf.convert_to_tensor(shape, tf.int32),
    key=key,
    counter=tf.bitcast(counter, tf.uint64),
    alg=1,
    dtype=tf.int32,
  )


def keep_mask(seed: tf.Tensor, shape, drop_rate: float) -> tf.Tensor:
  """Draws independent bools that are False with probability `drop_rate`.

  Args:
    seed: int32 `[2]`.
    shape: Shape of the result.
    drop_rate: A number in [0, 1), rounded to a multiple of 2^-32.
  """
  threshold = min(round(drop_rate * 2**32), 2**32 - 1) - 2**31
  return _bits(seed, shape) >= threshold


def uniform(seed: tf.Tensor, shape) -> tf.Tensor:
  """Draws float32 numbers in (0, 1), uniform over odd multiples of 2^-24."""
  integers = tf.bitwise.bitwise_and(_bits(seed, shape), 2**23 - 1)
  return (2 * tf.cast(integers, tf.float32) + 1) * 2.0**-24


def uniform_integers(seed: tf.Tensor, shape, number: int) -> tf.Tensor:
  """Draws int32 numbers from 0 to `number - 1`, uniform to 2^-31.

  Args:
    seed: int32 `[2]`.
    shape: Shape of the result.
    number: At least 1, and much smaller than 2^31.
  """
  return tf.bitwise.bitwise_and(_bits(seed, shape), 2**31 - 1) % number


def permutations(
  seed: tf.Tensor,
  num_permutations,
  capacity,
  num_examples,
  max_permutations: Optional[int] = None,
) -> tf.Tensor:
  """Draws permutations of a client's examples, padding last.

  Args:
    seed: int32 `[2]`.
    num_permutations: Number of permutations (epochs), at most
      `max_permutations`.
    capacity: Number of rows of the padded tensors.
    num_examples: Number of real examples, at most `capacity`.
    max_permutations: A Python integer, or None if `num_permutations` is one.

  Returns:
    int32 `[num_permutations, capacity]`. Each row holds the indices below
    `num_examples` in random order, then the others.
  """
  # Keys come in blocks of columns, so that a permutation's keys depend neither
  # on the number of permutations nor on the capacity.
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
