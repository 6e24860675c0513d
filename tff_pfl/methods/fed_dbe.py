"""FedDBE: FedAvg whose clients keep the bias of their features local.

The body's outputs are z. Client i predicts with head(z + b_i), where its
personal bias b_i (PRBM) is local. The mean of its features is pulled toward a
consensus z_g of all clients (MR), so that the body learns what is common:

    client:  m <- 0;  for E epochs of mini-batches:
               m <- (1 - mu) m + mu mean_batch(z)
               (w, b_i) <- SGD on f_i + kappa / 2 mean_d (m_d - z_g,d)^2
    server:  w <- sum_i n_i w_i / sum_i n_i
             in the first round: z_g = sum_i n_i m_i / sum_i n_i

The gradient only goes through the newest batch's mean. The first round has no
consensus yet, so kappa is 0. Clients send m in that round and zeros afterwards,
and z_g stays fixed. Before it is scored, a client that never took part fits its
bias, from 0, on the frozen model. Without a personal bias and with kappa = 0,
this is FedAvg.

Symbols: kappa -> pull_strength, mu -> mean_rate, b_i -> the weight
`personal_bias/bias`, z_g -> `consensus`, E -> num_epochs, eta -> learning_rate.

Deviations from the paper: there, all clients train once before the first round,
without bias and pull, only to find z_g. Here, the cohort of the first round
finds it. That round also trains biases, and its result is kept. If the cohort
is small, z_g still comes only from it. The clients' optimizer trains the bias,
with its momentum (the authors' code: plain SGD). Written from the paper's
abstract and the authors' code.

References:
  Zhang, Hua, Cao, Wang, Song, Xue, Ma, Guan: Eliminating Domain Bias for
  Federated Learning in Representation Space, NeurIPS 2023. Code:
  github.com/TsingZ0/DBE.
"""

import collections
import dataclasses

import numpy as np
import tensorflow as tf

from tff_pfl import fields
from tff_pfl.core import client_work, objectives
from tff_pfl.core import hparams as hparams_lib
from tff_pfl.methods import registry
from tff_pfl.models import split_model, weight_partition

_LAYER, _BIAS = 'personal_bias', 'personal_bias/bias'
_MEAN = 'features/mean'


@fields.dataclass
class FedDbeHParams(hparams_lib.LocalTrainingHParams):
  """Hyperparameters of FedDBE: local training, the bias and the pull.

  Attributes:
    pull_strength: Strength of the pull of the features' mean toward the
      consensus (kappa), at least 0. The authors' script has 50, for 512
      features and a learning rate of 0.005. For 32 features and a rate of 0.05,
      50 is far too much.
    mean_rate: Share of the newest batch in the moving mean of the features
      (mu), in (0, 1]. If 1, only the newest batch counts.
    personal_bias: True to give each client its own bias.
  """

  pull_strength: fields.NonNegative = 1.0
  mean_rate: fields.PositiveShare = 1.0
  personal_bias: bool = True


@registry.method(
  'global model, local bias of the features, whose mean is pulled toward a '
  'common one',
  FedDbeHParams,
  unsupported=('domain_model',),
)
def fed_dbe(model, hparams):
  """FedDBE. The process' model has a layer `personal_bias` if asked for."""
  features = split_model.feature_spec(model, 'fed_dbe')
  zeros = np.zeros(features.shape, features.dtype.as_numpy_dtype)
  if hparams.personal_bias:
    model = _with_bias(model, zeros)
  partition = weight_partition.WeightPartition.by_layer(
    model, [_LAYER] if hparams.personal_bias else []
  )
  no_bias = partition.local_part(model.initial_weights)
  averaging = _with_mean(model, hparams.mean_rate)

  def train(client):
    consensus = client.algorithm['consensus']
    is_known = client.algorithm['is_known']

    def penalty(unused_features, statistics, unused_batch):
      distance = tf.reduce_mean((statistics[_MEAN] - consensus) ** 2)
      return hparams.pull_strength / 2 * is_known * distance

    weights = partition.merge(client.received, client.local)
    trained = client.sgd(
      objectives.joint_loss(averaging, penalty=penalty),
      {**weights, _MEAN: zeros},
      hparams.phase(),
      model=averaging,
    )
    return client.result(
      trained,
      local=partition.local_part(trained.weights),
      report=(1 - is_known) * trained.weights[_MEAN],
    )

  def agree(state, update, report, unused_cohort):
    before = state.algorithm
    consensus = tf.where(before['is_known'] > 0, before['consensus'], report)
    return update, collections.OrderedDict(
      consensus=consensus, is_known=tf.ones_like(before['is_known'])
    )

  def fit_new_client(client, num_epochs):
    def forward(bias, features, unused_mode):
      return model.head({**client.received, **bias}, features)

    phase = hparams.phase(num_epochs)
    return client.fit_head(client.local, phase, forward=forward).weights

  return client_work.partitioned_weights_work(
    model,
    partition,
    client_work.Exchange(train, agree),
    fit_new_client=fit_new_client if hparams.personal_bias else None,
    initial_algorithm=collections.OrderedDict(
      consensus=zeros, is_known=zeros.dtype.type(0)
    ),
    global_model=lambda weights: partition.merge(weights, no_bias),
  )


def _with_bias(model, zeros):
  """The model whose head takes the features plus the weight `_BIAS`."""

  def head(weights, features, mode=split_model.INFERENCE):
    return model.head(weights, features + weights[_BIAS], mode)

  return dataclasses.replace(
    model,
    name=f'{model.name}_with_bias',
    initial_weights=collections.OrderedDict(
      [*model.initial_weights.items(), (_BIAS, zeros)]
    ),
    layers={**model.layers, _LAYER: (_BIAS,)},
    head_layers=(*model.head_layers, _LAYER),
    head=head,
    layer_outputs=None,
  )


def _with_mean(model, rate):
  """The model with the moving mean of its features as a moving statistic."""

  def body(weights, x, mode):
    features, statistics = model.body(weights, x, mode)
    counts = tf.cast(mode.example_weights, features.dtype)
    shares = counts / tf.maximum(tf.reduce_sum(counts), 1)
    mean = (1 - rate) * weights[_MEAN] + rate * tf.tensordot(
      shares, features, 1
    )
    return features, {**statistics, _MEAN: mean}

  return dataclasses.replace(
    model, body=body, statistics=model.statistics | {_MEAN}
  )
