"""FedALA: a client learns how much of the global model to start from.

Round t, client i of the cohort. h_i are the upper layers of its last local
model. W_i has a number in [0, 1] for each of their weights, 1 at first:

    W_i <- clip(W_i - eta gradient_W f_i, 0, 1)   for num_mixing_epochs
      on a share of its examples, for the model with the lower layers of w_t and
      h_i + (h_t - h_i) * W_i; its gradient_W is gradient_h times (h_t - h_i)
    w_i <- SGD on all weights, from that model    for num_epochs
    h_i <- the upper layers of w_i
    server:  w_{t+1} = sum_i n_i w_i / sum_i n_i

A client is scored with the model that it would start from, with its last W_i. A
client that never took part first trains its own upper layers, from the global
ones with the lower layers frozen, and then W_i. If eta = 0, this is FedAvg.

Symbols: p -> mixing_depth (by default the depth of the head), s ->
mixing_data_share, eta -> mixing_learning_rate, alpha -> learning_rate.

Deviations from the paper: every round learns W_i for the same number of epochs.
The paper has one epoch, but runs until the losses converge the first time. The
authors' code has more than 10 the first time, and learns W_i again before a
client is scored. The share of the examples is drawn at random (the code:
consecutive ones). Moving statistics are the server's. If the upper layers are
the head, the lower ones run in inference mode while W_i is learned. W_i is
learned without momentum.

References:
  Zhang, Hua, Wang, Song, Xue, Ma, Guan: FedALA: Adaptive Local Aggregation for
  Personalized Federated Learning, AAAI 2023, Algorithm 1.
"""

import collections
from typing import Optional

import numpy as np
import tensorflow as tf

from tff_pfl import fields
from tff_pfl.core import (
  client_work,
  example_tensors,
  objectives,
  phases,
  training_loop,
)
from tff_pfl.core import hparams as hparams_lib
from tff_pfl.methods import registry
from tff_pfl.methods.shared import joint_training
from tff_pfl.models import randomness, split_model, weight_partition


@fields.dataclass
class FedAlaHParams(hparams_lib.LocalTrainingHParams):
  """Hyperparameters of FedALA: local training and the mixing weights.

  Attributes:
    mixing_depth: Number of last layers with weights that are mixed with the
      client's own (p). None uses the head layers.
    mixing_learning_rate: Learning rate of the mixing weights, at least 0. If 0,
      they stay at 1, the global model.
    mixing_data_share: Share of a client's examples for learning the mixing
      weights, in (0, 1].
    num_mixing_epochs: Epochs on the mixing weights in a round, at least 0.
  """

  mixing_depth: Optional[int] = None
  mixing_learning_rate: fields.NonNegative = 1.0
  mixing_data_share: fields.PositiveShare = 0.8
  num_mixing_epochs: fields.Epochs = 1


def _mixed(shared, own, mixing):
  """The model to start from, exactly the global one where W is 1."""
  mixed = {
    name: share * shared[name] + (1 - share) * own[name]
    for name, share in mixing.items()
  }
  return split_model.select({**shared, **mixed}, shared)


def share_of(
  examples: example_tensors.ExampleTensors, share: float, seed: tf.Tensor
) -> example_tensors.ExampleTensors:
  """Draws a share of the examples, rounded down but at least one."""
  number = examples.num_examples
  order = randomness.permutations(seed, 1, examples.capacity, number)
  num_drawn = tf.cast(share * tf.cast(number, tf.float32), tf.int32)
  return example_tensors.select(
    examples, tf.argsort(order[0]) < tf.maximum(num_drawn, 1)
  )


def _mixing_objective(loss, hparams, shared, own):
  """The loss as a function of W. A step of rate 1 clips W to [0, 1]."""

  def objective(mixing, batch, *, seed):
    upper = split_model.select(_mixed(shared, own, mixing), mixing)
    output = loss(upper, batch, seed=seed)
    gradient = {}
    for name, share in mixing.items():
      slope = output.gradient[name] * (shared[name] - own[name])
      moved = share - hparams.mixing_learning_rate * slope
      gradient[name] = share - tf.clip_by_value(moved, 0, 1)
    return output._replace(gradient=gradient)

  return objective


@registry.method(
  'clients learn how much of the global model to start from',
  FedAlaHParams,
  unsupported=('reweight_domains',),
)
def fed_ala(model, hparams):
  """FedALA."""
  layers = model.last_layers(hparams.mixing_depth, 'mixing_depth')
  partition = weight_partition.WeightPartition.by_layer(model, layers)
  names = [n for n in partition.local_names if n not in model.statistics]
  sgd = phases.build_optimizer('sgd', 1.0)
  on_mixing = phases.Phase(sgd, hparams.batch_size, hparams.num_mixing_epochs)

  def learn_mixing(client, own):
    shared, mixing = client.received, client.local['mixing']
    # Streams 0 and 1 are for the training's shuffles and steps.
    examples = share_of(
      client.examples, hparams.mixing_data_share, client.stream(2)
    )
    forward, inputs = model.forward, None
    if set(layers) == set(model.head_layers):
      forward = model.head
      examples, inputs = training_loop.head_inputs(model, shared, examples)
    loss = objectives.prediction_loss(
      model, lambda upper, x, mode: forward({**shared, **upper}, x, mode)
    )
    return client.sgd(
      _mixing_objective(loss, hparams, shared, own),
      mixing,
      on_mixing,
      stream=3,
      examples=examples,
      inputs=inputs,
      # Weight decay would pull W to 0, to the client's own weights.
      plain=True,
    ).weights

  def train(client):
    own = client.local['own']
    mixing = learn_mixing(client, own)
    start = _mixed(client.received, own, mixing)
    trained = client.sgd(objectives.joint_loss(model), start, hparams.phase())
    own = split_model.select(trained.weights, names)
    local = collections.OrderedDict(own=own, mixing=mixing)
    return client.result(trained, local=local)

  def fit_new_client(client, num_epochs):
    start = partition.local_part(client.received)
    phase = hparams.phase(num_epochs)
    own = joint_training.fit_local(client, model, partition, phase, local=start)
    own = split_model.select(own, names)
    mixing = learn_mixing(client, own)
    return collections.OrderedDict(own=own, mixing=mixing)

  initial = split_model.select(model.initial_weights, names)
  ones = tf.nest.map_structure(np.ones_like, initial)
  return client_work.global_weights_work(
    model,
    client_work.Exchange(train),
    personal_weights=lambda broadcast, local: _mixed(
      broadcast.global_weights, local['own'], local['mixing']
    ),
    initial_local=collections.OrderedDict(own=initial, mixing=ones),
    fit_new_client=fit_new_client,
  )
