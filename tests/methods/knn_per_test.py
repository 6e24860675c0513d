import functools

import numpy as np
import tensorflow as tf

from tests.methods import toy_problems
from tff_pfl.methods import knn_per, registry
from tff_pfl.models import prediction

_NEW = toy_problems.labeled_examples(20, 5)
_OTHERS = toy_problems.labeled_examples(24, 6)


@functools.cache
def _process():
  hparams = knn_per.KnnPerHParams(neighbor_weight=0.3, num_neighbors=4)
  return registry.build('knn_per', toy_problems.classifier(), hparams)


def _features(x):
  model = toy_problems.classifier()
  return model.body(model.initial_weights, tf.constant(x))[0].numpy()


def test_three_neighbors_by_hand():
  # Squared distances 1, 4, 9, 100 from the origin, over 2 numbers: the votes
  # are exp(-1/2), exp(-2) and exp(-9/2), and of class 0 none.
  store = {
    'datastore/features': tf.constant(
      [[1.0, 0], [0, -10], [0, 2], [-3, 0], [0, 0], [0, 0]]
    ),
    # Nothing is in the last two places.
    'datastore/classes': tf.constant([2.0, 1, 3, 2, 0, 0]),
  }
  votes = knn_per.neighbor_votes(
    tf.constant([[0.0, 0], [1e4, 0]]),
    store,
    3,
    knn_per.KnnPerHParams(num_neighbors=3),
  )
  a, b, c = np.exp([-0.5, -2, -4.5])
  np.testing.assert_allclose(
    votes[0], np.array([0, a + c, b]) / (a + b + c), rtol=1e-6
  )
  # All are so far away that their votes underflow.
  np.testing.assert_allclose(votes[1], [0, 1, 0], rtol=1e-6)


def test_prediction_is_the_mixture_of_model_and_neighbors():
  process = _process()
  personal = toy_problems.new_client(process, process.initialize(), _NEW)
  assert not tf.nest.flatten(personal.client_state.local)
  model, stored = toy_problems.classifier(), _features(_NEW.x)
  expected = 0.7 * prediction.predict(model, model.initial_weights, _OTHERS.x)
  for row, z in enumerate(_features(_OTHERS.x)):
    squared = ((z - stored) ** 2).sum(axis=1)
    nearest = np.argsort(squared)[:4]
    votes = np.exp(-squared[nearest] / stored.shape[1])
    for vote, label in zip(votes, _NEW.y[nearest]):
      expected[row, label] += 0.3 * vote / votes.sum()
  np.testing.assert_allclose(
    prediction.predict(process.model, personal.weights, _OTHERS.x),
    expected,
    rtol=1e-4,
    atol=1e-6,
  )


def test_without_examples_the_model_is_the_global_one_bit_for_bit():
  process = _process()
  weights = toy_problems.new_client(
    process, process.initialize(), _NEW.select(np.arange(0))
  ).weights
  model = toy_problems.classifier()
  np.testing.assert_array_equal(
    process.model.forward(weights, tf.constant(_OTHERS.x))[0],
    model.forward(model.initial_weights, tf.constant(_OTHERS.x))[0],
  )


def test_of_too_many_examples_some_are_stored():
  model = toy_problems.classifier()
  (data,) = toy_problems.padded([_NEW])

  def stored(seed):
    store = knn_per.datastore(
      model, model.initial_weights, data, 8, tf.constant([seed, 0])
    )
    return {
      (*z, label)
      for z, label in zip(
        store['datastore/features'].numpy(), store['datastore/classes'].numpy()
      )
    }

  pairs = {(*z, label + 1) for z, label in zip(_features(_NEW.x), _NEW.y)}
  assert len(stored(0)) == 8
  assert stored(0) < pairs
  assert stored(1) != stored(0) == stored(0)
