import numpy as np
import pytest
import tensorflow as tf

from tests.datasets import shared
from tff_pfl import datasets
from tff_pfl import tff_api as tff
from tff_pfl.datasets.sources import stackoverflow

_MODULE = tff.simulation.datasets.stackoverflow


@pytest.mark.parametrize(
  'sentences, x, y',
  [
    (['a b c a b'], [[1, 0, 0], [1, 2, 0], [1, 2, 3], [2, 3, 1]], [2, 3, 1, 2]),
    # Unknown words are context, and nothing to find.
    (['a what b'], [[1, 4, 0]], [2]),
    # Sentences are apart, and four at most.
    (['a b', 'c', '', 'b c', 'a a'], [[1, 0, 0], [2, 0, 0]], [2, 3]),
    ([], [], []),
  ],
)
def test_each_word_follows_those_before_it(sentences, x, y):
  # a: 1, b: 2, c: 3, all others 4.
  examples = stackoverflow.next_words(sentences, ['a', 'b', 'c'], 3, 4)
  assert examples.x.dtype == examples.y.dtype == np.int32
  assert examples.x.shape == (len(y), 3)
  assert (examples.x.tolist(), examples.y.tolist()) == (x, y)


def test_users_come_through_tff(monkeypatch):
  data = _MODULE.get_synthetic()
  monkeypatch.setattr(_MODULE, 'load_data', lambda: (data, None, data))
  counts = _MODULE.get_synthetic_word_counts()
  monkeypatch.setattr(
    _MODULE,
    'load_word_counts',
    lambda vocab_size: dict(list(counts.items())[:vocab_size]),
  )
  dataset = datasets.load_dataset(
    'stackoverflow', num_clients=2, partition='natural', vocabulary_size=50
  )
  assert dataset.num_clients == 2
  assert set(dataset.client_ids) < set(data.client_ids)
  assert dataset.num_classes == 50
  assert dataset.num_overlapping == 20
  assert dataset.element_spec == shared.spec(20, x=tf.int32)
  for client_id in dataset.client_ids:
    train, test = dataset.train(client_id), dataset.test(client_id)
    assert len(train.y) == dataset.num_train_examples(client_id) > 0
    np.testing.assert_array_equal(train.x, test.x)
    assert train.x.shape[1:] == (20,)
    assert train.x.max() <= 49 and 1 <= train.y.min() and train.y.max() <= 48
  assert dataset.class_counts().shape == (2, 50)
