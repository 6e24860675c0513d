"""From words to whole numbers: hashed or learned, with 0 for padding."""

import abc
import collections
import re
from collections.abc import Iterable, Sequence

import numpy as np
import tensorflow as tf
from sklearn import utils as sklearn_utils

from tff_pfl import errors

_WORD = re.compile(r"\w+(?:'\w+)*")


def words_of(text: str) -> list[str]:
  """Returns a text's words in lower case, without punctuation."""
  return _WORD.findall(text.lower())


def padded(texts: Sequence[Sequence[int]], length: int) -> np.ndarray:
  """Returns the first numbers of each text, followed by 0, int32 `[n, length]`.

  Args:
    texts: The words' numbers of each text.
    length: How many to keep.
  """
  return tf.keras.utils.pad_sequences(
    texts, length, padding='post', truncating='post'
  )


class Vocabulary(abc.ABC):
  """A rule that numbers words from 1; 0 stands for no word (padding)."""

  @abc.abstractmethod
  def number(self, word: str) -> int:
    """Returns the word's number."""

  def encode(self, texts: Iterable[Sequence[str]], length: int) -> np.ndarray:
    """Returns the first words of each text as numbers.

    Args:
      length: How many words of each to keep; shorter texts are followed by 0.

    Returns:
      int32 array `[texts, length]`.
    """
    return padded(
      [[self.number(word) for word in words[:length]] for words in texts],
      length,
    )


class HashedVocabulary(Vocabulary):
  """Numbers words by a hash of their letters; nothing has to be agreed on.

  Different words may share a number. It is the same everywhere and always.
  """

  def __init__(self, size: int):
    """Makes a vocabulary.

    Args:
      size: Bound on the numbers, at least 2: 0 and one number for words.

    Raises:
      ValueError: It is less.
    """
    errors.expect_int('vocabulary_size', size, 2)
    self._size = size

  def number(self, word: str) -> int:
    """Returns the word's number, in [1, size)."""
    digest = sklearn_utils.murmurhash3_32(word, positive=True)
    return 1 + digest % (self._size - 1)


class WordVocabulary(Vocabulary):
  """Numbers the words of a list from 1; all others share the last number.

  Attributes:
    other: The number of the words that are not in the list.
  """

  def __init__(self, words: Sequence[str]):
    """Makes a vocabulary of distinct words in the order of their numbers."""
    self._numbers = {word: i + 1 for i, word in enumerate(words)}
    self.other = len(words) + 1

  @classmethod
  def of_most_frequent(
    cls, texts: Iterable[Sequence[str]], size: int
  ) -> 'WordVocabulary':
    """Makes the vocabulary of the most frequent words.

    Args:
      texts: The words of each text to learn from, in general those of all
        clients' training examples.
      size: Bound on the numbers, at least 3: those of padding and of words out
        of the vocabulary included. Fewer words give a smaller vocabulary.

    Raises:
      ValueError: The size is less.
    """
    errors.expect_int('vocabulary_size', size, 3)
    counts = collections.Counter(word for words in texts for word in words)
    # By letters where counts are equal, so that the order of texts is nothing.
    ranked = sorted(counts, key=lambda word: (-counts[word], word))
    return cls(ranked[: size - 2])

  def number(self, word: str) -> int:
    """Returns the word's number, or `other`."""
    return self._numbers.get(word, self.other)
