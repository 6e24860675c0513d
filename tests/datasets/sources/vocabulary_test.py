import numpy as np

from tff_pfl.datasets.sources import vocabulary


def test_words_are_in_lower_case_and_without_punctuation():
  words = vocabulary.words_of("Don't PANIC -- it's 42, (isn't it?) 'tis")
  assert words == "don't panic it's 42 isn't it tis".split()
  assert vocabulary.words_of(' ... ') == []


def test_texts_are_cut_or_followed_by_padding():
  x = vocabulary.padded([[1, 2, 3, 1], [2], []], 3)
  assert x.dtype == np.int32
  assert x.tolist() == [[1, 2, 3], [2, 0, 0], [0, 0, 0]]


def test_words_are_numbered_in_their_order_and_others_share_a_number():
  number = vocabulary.numbered(['the', 'dog'])
  assert [number(word) for word in 'the dog bird cat'.split()] == [1, 2, 3, 3]


def test_hashed_words_are_always_the_same_numbers_and_never_padding():
  words = [f'word{i}' for i in range(5000)]
  actual = [vocabulary.hashed(word, 100) for word in words]
  assert set(actual) == set(range(1, 100))
  # MurmurHash3 of the empty word with seed 0 is 0.
  assert vocabulary.hashed('', 1000) == 1
  # About 50 words for each number.
  assert max(np.bincount(actual)) < 100
