"""Numbers for words, hashed or in an order, with 0 for padding."""

import re
from collections.abc import Callable, Sequence

import keras
import numpy as np
from sklearn import utils as sklearn_utils

_WORD = re.compile(r"\w+(?:'\w+)*")


def words_of(text: str) -> list[str]:
  """Returns a text's words in lower case, without punctuation."""
  return _WORD.findall(text.lower())


def padded(texts: Sequence[Sequence[int]], length: int) -> np.ndarray:
  """Truncates texts or pads them with 0 at the end, int32 `[n, length]`."""
  return keras.utils.pad_sequences(
    texts, length, padding='post', truncating='post'
  )


def hashed(word: str, size: int) -> int:
  """Returns a number in [1, size) by a hash of the word's letters.

  It is the same on all machines. Different words may share a number.
  """
  digest = sklearn_utils.murmurhash3_32(word, positive=True)
  return 1 + digest % (size - 1)


def numbered(words: Sequence[str]) -> Callable[[str], int]:
  """Returns a function that numbers words from 1; others share the next one."""
  numbers = {word: i + 1 for i, word in enumerate(words)}
  return lambda word: numbers.get(word, len(numbers) + 1)
