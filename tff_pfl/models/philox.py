"""Philox4x32-10, the algorithm of all random integers.

TensorFlow's operation draws for one seed. Written out here, it serves many
seeds at once, and interpreters that lack the operation.

References:
  Salmon, Moraes, Dror, Shaw: Parallel Random Numbers: As Easy as 1, 2, 3,
  SC 2011.
"""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf

_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10


def integers(
  shape: tf.Tensor, keys: tf.Tensor, counters: tf.Tensor
) -> tf.Tensor:
  """Draws the integers of `StatelessRandomUniformFullIntV2` for each seed.

  Args:
    shape: Shape of one seed's numbers, integers `[rank]`.
    keys: uint64 `[seeds, 1]`.
    counters: uint64 `[seeds, 2]`, whose lowest 32 bits are 0 unless there are
      no more than four numbers.

  Returns:
    uint32 `[seeds, *shape]`.
  """
  shape = tf.cast(shape, tf.int32)
  size = tf.reduce_prod(shape)
  num_seeds = tf.shape(keys)[0]
  blocks = tf.cast(tf.range((size + 3) // 4), tf.uint32)[tf.newaxis]
  key, words = (
    tf.split(tf.reshape(tf.bitcast(x, tf.uint32), [num_seeds, n]), n, axis=1)
    for x, n in ((keys, 2), (counters, 4))
  )
  words = [word + tf.zeros_like(blocks) for word in words]
  words[0] += blocks
  words = scramble(words, key, _wide_product, tf.bitwise.bitwise_xor, _constant)
  numbers = tf.reshape(tf.stack(words, axis=2), [num_seeds, -1])[:, :size]
  return tf.reshape(numbers, tf.concat([[num_seeds], shape], 0))


def scramble(
  words: list[tf.Tensor],
  key: list[tf.Tensor],
  wide_product: Callable[[tf.Tensor, int], tuple[tf.Tensor, tf.Tensor]],
  xor: Callable[[tf.Tensor, tf.Tensor], tf.Tensor],
  constant: Callable[[int], tf.Tensor],
) -> list[tf.Tensor]:
  """Runs the ten rounds.

  Args:
    words: The four words of the counter, uint32 of any shape.
    key: The two words of the key.
    wide_product: From a word and a factor to the high and the low word of their
      product.
    xor: Bitwise exclusive or.
    constant: Makes a word of an integer.

  Returns:
    Four words of random bits.
  """
  for _ in range(_ROUNDS):
    (high_0, low_0), (high_2, low_2) = (
      wide_product(words[i], factor) for i, factor in zip((0, 2), _MULTIPLIERS)
    )
    words = [
      xor(xor(high_2, words[1]), key[0]),
      low_2,
      xor(xor(high_0, words[3]), key[1]),
      low_0,
    ]
    key = [k + constant(step) for k, step in zip(key, _KEY_STEPS)]
  return words


def _wide_product(word, factor):
  product = tf.cast(word, tf.uint64) * tf.constant(factor, tf.uint64)
  high = tf.bitwise.right_shift(product, tf.constant(32, tf.uint64))
  return tf.cast(high, tf.uint32), tf.cast(product, tf.uint32)


def _constant(number):
  return tf.constant(number, tf.uint32)
