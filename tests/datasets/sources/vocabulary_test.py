"""Tests of the numbering of words."""

import numpy as np
import pytest

from tff_pfl.datasets.sources import vocabulary


def test_words_are_in_lower_case_and_without_punctuation():
  assert vocabulary.words_of("Don't PANIC -- it's 42, (isn't it?) 'tis") == [
    "don't",
    'panic',
    "it's",
    '42',
    "isn't",
    'it',
    'tis',
  ]
  assert vocabulary.words_of(' ... ') == []


def test_texts_are_cut_or_followed_by_padding():
  numbers = vocabulary.WordVocabulary(['a', 'b'])
  x = numbers.encode([['a', 'b', 'c', 'a'], ['b'], []], 3)
  assert x.dtype == np.int32
  assert x.tolist() == [[1, 2, 3], [2, 0, 0], [0, 0, 0]]
  assert numbers.other == 3


def test_the_most_frequent_words_are_learned_ties_by_letters():
  texts = [['the', 'cat'], ['the', 'dog'], ['a', 'dog', 'the']]
  numbers = vocabulary.WordVocabulary.of_most_frequent(texts, 5)
  words = ['the', 'dog', 'a', 'cat', 'bird']
  assert [numbers.number(word) for word in words] == [1, 2, 3, 4, 4]
  assert numbers.other == 4
  other = vocabulary.WordVocabulary.of_most_frequent(texts[::-1], 5)
  assert [other.number(word) for word in words] == [1, 2, 3, 4, 4]


def test_fewer_words_than_asked_for_give_a_smaller_vocabulary():
  numbers = vocabulary.WordVocabulary.of_most_frequent([['a', 'b']], 100)
  assert numbers.other == 3


def test_hashed_words_are_always_the_same_numbers_and_never_padding():
  words = [f'word{i}' for i in range(5000)]
  numbers = vocabulary.HashedVocabulary(100)
  found = [numbers.number(word) for word in words]
  assert set(found) == set(range(1, 100))
  again = vocabulary.HashedVocabulary(100)
  assert [again.number(word) for word in reversed(words)] == found[::-1]
  # About 50 words for each number.
  assert max(np.bincount(found)) < 100


def test_the_hash_is_murmurhash3_of_the_letters():
  # Of the empty word with seed 0 it is 0.
  assert vocabulary.HashedVocabulary(1000).number('') == 1


def test_too_small_vocabularies_are_errors():
  with pytest.raises(ValueError, match='`vocabulary_size`.*at least 2, found'):
    vocabulary.HashedVocabulary(1)
  with pytest.raises(ValueError, match='`vocabulary_size`.*at least 3, found'):
    vocabulary.WordVocabulary.of_most_frequent([['a']], 2)
