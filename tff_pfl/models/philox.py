"""Philox4x32-10, the algorithm of all random integers.

TensorFlow's operation draws for one seed. This version serves many seeds at
once, and interpreters that lack the operation.

References:
  Salmon, Moraes, Dror, Shaw: Parallel Random Numbers: As Easy as 1, 2, 3, SC
  2011.
"""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf

_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10


def _wide_product(word, factor):
  """Returns the high and the low 32 bits of a product."""
  product = tf.cast(word, tf.uint64) * tf.constant(factor, tf.uint64)
  high = tf.bitwise.right_shift(product, tf.constant(32, tf.uint64))
  return tf.cast(high, tf.uint32), tf.cast(product, tf.uint32)


def integers(
  shape: tf.Tensor,
  keys: tf.Tensor,
  counters: tf.Tensor,
  wide_product: Callable[[tf.Tensor, int], tuple] = _wide_product,
  dtype: tf.DType = tf.uint32,
) -> tf.Tensor:
  """Draws the integers of `StatelessRandomUniformFullIntV2` for each seed.

  Args:
    shape: Shape of one seed's numbers, integers `[rank]`.
    keys: uint64 `[seeds, 1]`, or int32 words `[seeds, 2]`.
    counters: uint64 `[seeds, 2]`, or int32 words `[seeds, 4]`. The lowest 32
      bits must be 0 if there are more than four numbers.
    wide_product: Maps uint32 words and a factor to the high and the low words
      of their products.
    dtype: Type of the result, in which words are split and joined: uint32, or
      int32 for interpreters that can do neither with unsigned integers.

  Returns:
    Integers `[seeds, *shape]`.
  """
  shape = tf.cast(shape, tf.int32)
  size = tf.reduce_prod(shape)
  num_seeds = tf.shape(keys)[0]
  blocks = tf.cast(tf.range((size + 3) // 4), dtype)[tf.newaxis]
  key, words = (
    tf.split(tf.reshape(tf.bitcast(x, dtype), [num_seeds, n]), n, axis=1)
    for x, n in ((keys, 2), (counters, 4))
  )
  words = [word + tf.zeros_like(blocks) for word in words]
  words[0] += blocks
  key, words = (
    [tf.bitcast(value, tf.uint32) for value in values]
    for values in (key, words)
  )
  xor = tf.bitwise.bitwise_xor
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
    key = [k + tf.constant(step, tf.uint32) for k, step in zip(key, _KEY_STEPS)]
  words = [tf.bitcast(word, dtype) for word in words]
  numbers = tf.reshape(tf.stack(words, axis=2), [num_seeds, -1])[:, :size]
  return tf.reshape(numbers, tf.concat([[num_seeds], shape], 0))
