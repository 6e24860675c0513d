"""Next words of Stack Overflow's questions and answers by user.

Source: Stack Overflow Data, hosted by Kaggle, as downloaded by TensorFlow
Federated. Users with fewer than 100 sentences are left out.
License: CC BY-SA 3.0.
Sizes: 342,477 users with 135,818,730 training sentences (before 2018) and
204,088 with 16,586,035 test sentences (since then). The clients here are the
users that have both.

An example is up to `sequence_length` words of a sentence and the word that
follows them. The next word is always in the vocabulary: accuracy does not count
the words that share one number.
"""

from collections.abc import Sequence
from typing import Optional

import numpy as np
import tensorflow as tf

from tff_pfl import fields
from tff_pfl import tff_api as tff
from tff_pfl.datasets import examples as examples_lib
from tff_pfl.datasets import federated_dataset, partitioning
from tff_pfl.datasets.partitioning import natural
from tff_pfl.datasets.sources import downloads, vocabulary

_KIND = 'users with training and test sentences'
_REMEDY = (
  'load it once on a machine with a network, and copy ~/.tff and ~/.keras from'
  ' there'
)


def next_words(
  sentences: list[str],
  words: Sequence[str],
  sequence_length: int,
  max_sentences: int,
) -> examples_lib.Examples:
  """Makes examples from a user's sentences.

  Args:
    sentences: Words separated by spaces.
    words: The vocabulary.
    sequence_length: Number of words in an input. Shorter inputs, at the
      beginning of a sentence, are padded with 0 at the end.
    max_sentences: Maximum number of sentences to use.

  Returns:
    `x` int32 `[n, sequence_length]` and `y` int32 `[n]`, with an example for
    every vocabulary word from the second word of a sentence on.
  """
  number_of = vocabulary.numbered(words)
  other = len(words) + 1
  contexts, labels = [], []
  for sentence in sentences[:max_sentences]:
    numbers = [number_of(word) for word in sentence.split()]
    for place, number in enumerate(numbers):
      if place and number != other:
        contexts.append(numbers[max(place - sequence_length, 0) : place])
        labels.append(number)
  return examples_lib.Examples(
    vocabulary.padded(contexts, sequence_length), np.array(labels, np.int32)
  )


@fields.checked_call
def load_stackoverflow(
  num_clients: Optional[int],
  partition: Optional[partitioning.Partitioner],
  *,
  seed: fields.Seed = 0,
  sequence_length: fields.Count = 20,
  vocabulary_size: fields.integer(3) = 10_000,
  max_sentences: fields.Count = 1000,
) -> federated_dataset.FederatedDataset:
  """Next word after up to 20 others by user (partition natural), downloaded.

  Args:
    num_clients: Number of users to draw. None means all.
    partition: Natural or None.
    seed: Seed of the choice of users.
    sequence_length: Number of words in an input, at least 1.
    vocabulary_size: Number of distinct word numbers, at least 3. 0 is padding,
      and the last number stands for all words except the most frequent ones.
    max_sentences: Maximum number of training sentences, and of test sentences,
      per user, at least 1.

  Returns:
    Dataset with `x` int32 `[sequence_length]`, `y` int32, the next word, and
    `vocabulary_size` classes.
  """
  natural.expect_natural(partition, 'stackoverflow', 'users')
  module = tff.simulation.datasets.stackoverflow
  word_counts = downloads.from_tff(
    'stackoverflow',
    lambda: module.load_word_counts(vocab_size=vocabulary_size - 2),
    _REMEDY,
  )
  train, _, test = downloads.from_tff(
    'stackoverflow', module.load_data, _REMEDY
  )
  users = natural.choose_clients(
    downloads.in_both(train, test), num_clients, _KIND, seed
  )
  sentences = {
    split: downloads.texts_of(data, 'tokens')
    for split, data in (('train', train), ('test', test))
  }
  words = list(word_counts)
  return federated_dataset.FederatedDataset(
    name='stackoverflow',
    client_ids=users,
    element_spec=examples_lib.element_spec(
      tf.TensorSpec((sequence_length,), tf.int32)
    ),
    num_classes=vocabulary_size,
    load=lambda user, split: next_words(
      sentences[split](user), words, sequence_length, max_sentences
    ),
    # Examples of a sentence that are this close have words in common.
    num_overlapping=sequence_length,
  )
