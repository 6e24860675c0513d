"""kNN-Per: a global model, mixed with the votes of a client's own examples.

Training is FedAvg. A client keeps the pairs (phi(x_j), y_j) of its examples'
features and classes. It predicts for x from N, the k nearest neighbors by
distance of features:

    v_j       = exp(-|phi(x) - phi(x_j)|^2 / (sigma D)), D numbers in phi(x)
    p_kNN(c)  = sum of v_j over j in N with y_j = c / sum of v_j over j in N
    p(c)      = lambda p_kNN(c) + (1 - lambda) p_model(c)

The pairs, `datastore/features` and `datastore/classes` (classes count from 1, 0
is an empty place), are weights of a client's model that are not trained. They
are made along with the client's model, so clients keep nothing between rounds.
A client without examples has the global model. If k = 0 or lambda = 0, this is
FedAvg.

Symbols: k -> num_neighbors, lambda -> neighbor_weight, sigma -> length_scale,
phi -> the body, capacity -> num_stored_examples.

Deviations from the paper: one lambda holds for all clients (in the paper, each
chooses its own by validation). The kernel comes from the authors' program and
is not checked against the paper's text. Neighbors count only in predictions:
fine-tuning trains the model without them and keeps the features stored before
it.

References:
  Marfoq, Neglia, Kameni, Vidal: Personalized Federated Learning through Local
  Memorization, ICML 2022, section 3.
"""

import collections
import dataclasses

import numpy as np
import tensorflow as tf

from tff_pfl import fields
from tff_pfl.core import example_tensors, training_loop
from tff_pfl.core import hparams as hparams_lib
from tff_pfl.methods import registry
from tff_pfl.methods.shared import joint_training
from tff_pfl.models import randomness, split_model

_FEATURES, _CLASSES = _STORE = ('datastore/features', 'datastore/classes')


@fields.dataclass
class KnnPerHParams(hparams_lib.LocalTrainingHParams):
  """Hyperparameters of kNN-Per: local training and the neighbors.

  Attributes:
    num_neighbors: Number of stored examples that vote on each prediction (k),
      at least 0.
    neighbor_weight: Share of the neighbors' vote in a prediction (lambda), in
      [0, 1].
    length_scale: Scale of squared distances in the votes (sigma), positive. The
      larger it is, the more slowly votes fall with the distance.
    num_stored_examples: Number of examples that a client's model has room for,
      at least 1. A client with more stores this many, drawn at random.
  """

  num_neighbors: fields.CountOrZero = 10
  neighbor_weight: fields.Share = 0.5
  length_scale: fields.Positive = 1.0
  num_stored_examples: fields.integer(1, 10**6) = 1000


def neighbor_votes(
  features: tf.Tensor,
  store: split_model.Weights,
  num_classes: int,
  hparams: KnnPerHParams,
) -> tf.Tensor:
  """p_kNN `[rows, num_classes]` of features `[rows, D]`, all float32."""
  stored = store[_FEATURES]
  # |a - b|^2 without a tensor of all differences.
  squared = (
    tf.reduce_sum(features**2, axis=1, keepdims=True)
    - 2 * tf.matmul(features, stored, transpose_b=True)
    + tf.reduce_sum(stored**2, axis=1)
  )
  capacity, size = stored.shape
  log_votes = -squared / (hparams.length_scale * size)
  log_votes = tf.where(store[_CLASSES] > 0, log_votes, tf.float32.min)
  log_votes, places = tf.math.top_k(
    log_votes, min(hparams.num_neighbors, capacity)
  )
  classes = tf.cast(tf.gather(store[_CLASSES], places), tf.int32) - 1
  # The nearest has exp(0), so this is not 0 / 0 even if all are far away.
  shares = tf.nn.softmax(log_votes)[:, :, tf.newaxis]
  return tf.reduce_sum(shares * tf.one_hot(classes, num_classes), axis=1)


def with_neighbors(
  model: split_model.SplitModel, hparams: KnnPerHParams
) -> split_model.SplitModel:
  """The model with a datastore whose votes are mixed into predictions."""
  size = split_model.feature_spec(model, 'knn_per').shape.num_elements()
  capacity = hparams.num_stored_examples
  store = {
    _FEATURES: np.zeros([capacity, size], np.float32),
    _CLASSES: np.zeros([capacity], np.float32),
  }

  def head(weights, features, mode=split_model.INFERENCE):
    outputs, statistics = model.head(weights, features, mode)
    if mode.training:
      return outputs, statistics
    votes = neighbor_votes(
      tf.cast(tf.reshape(features, [-1, size]), tf.float32),
      weights,
      model.classifier.num_classes,
      hparams,
    )
    own = model.classifier.probabilities(outputs)
    share = hparams.neighbor_weight
    mixed = share * tf.cast(votes, own.dtype) + (1 - share) * own
    is_empty = tf.reduce_all(weights[_CLASSES] == 0)
    outputs_of = model.classifier.outputs_of
    return tf.where(is_empty, outputs, outputs_of(mixed)), statistics

  return dataclasses.replace(
    model,
    name=f'{model.name}_with_neighbors',
    initial_weights=collections.OrderedDict({**model.initial_weights, **store}),
    layers={**model.layers, 'datastore': tuple(store)},
    head_layers=(*model.head_layers, 'datastore'),
    statistics=model.statistics.union(store),
    head=head,
    layer_outputs=None,
  )


def datastore(
  model: split_model.SplitModel,
  weights: split_model.Weights,
  examples: example_tensors.ExampleTensors,
  capacity: int,
  seed: tf.Tensor,
) -> collections.OrderedDict:
  """The pairs of a client's examples, or `capacity` drawn from more."""
  number, places = examples.num_examples, tf.range(capacity)
  order = randomness.permutations(seed, 1, examples.capacity, number)[0]
  rows = tf.gather(order, tf.minimum(places, examples.capacity - 1))
  is_stored = places < number
  features = training_loop.frozen_features(model, weights, examples).x
  size = features.shape[1:].num_elements()
  features = tf.cast(tf.reshape(features, [-1, size]), tf.float32)
  features = tf.gather(features, rows)
  classes = tf.cast(tf.gather(examples.y, rows), tf.float32) + 1
  return collections.OrderedDict(
    [
      # Features of padding may be anything.
      (_FEATURES, tf.where(is_stored[:, tf.newaxis], features, 0)),
      (_CLASSES, tf.where(is_stored, classes, 0)),
    ]
  )


@registry.method(
  "a global model, mixed with votes of the client's nearest examples",
  KnnPerHParams,
  needs_classes=True,
  # A client's own statistics would be computed without its datastore.
  unsupported=('statistics',),
)
def knn_per(model, hparams):
  """kNN-Per for classifiers whose body has weights and returns one tensor."""
  fed_avg = joint_training.joint_training_work(model, hparams)
  if not hparams.num_neighbors or not hparams.neighbor_weight:
    return fed_avg
  mixed = with_neighbors(model, hparams)

  def without_data(shared):
    nothing = {n: tf.zeros(mixed.initial_weights[n].shape) for n in _STORE}
    return collections.OrderedDict({**shared, **nothing})

  def fit_new_client(client, unused_epochs):
    capacity = hparams.num_stored_examples
    return datastore(
      model, client.received, client.examples, capacity, client.seed
    )

  return dataclasses.replace(
    fed_avg,
    model=mixed,
    personal_weights=lambda broadcast, store: collections.OrderedDict(
      {**broadcast.global_weights, **store}
    ),
    global_model=without_data,
    fit_new_client=fit_new_client,
    keeps_local=False,
  )
