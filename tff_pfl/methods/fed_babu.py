"""FedBABU: the body is trained under a head that never changes.

    client:  for E epochs:  body <- SGD, the head frozen at its initial value
    server:  body_{t+1} = sum_i n_i body_i / sum_i n_i
    before scoring:  fine-tune the head (or all) on the client's data

Symbols: tau -> num_epochs, theta_ext -> the body, theta_cls -> the head.

Deviations from the paper: the head is fine-tuned by default
(`fine_tune_scope='all'` is the paper's main choice). The frozen head runs in
inference mode. The paper's momentum is 0.9.

References:
  Oh, Kim, Yun: FedBABU: Toward Enhanced Representation for Federated Image
  Classification, ICLR 2022, Algorithm 1.
"""

from typing import Literal

import tensorflow as tf

from tff_pfl import fields
from tff_pfl.core import client_work, objectives, personalization
from tff_pfl.core import hparams as hparams_lib
from tff_pfl.methods import registry
from tff_pfl.models import split_model, weight_partition


@fields.dataclass
class FedBabuHParams(hparams_lib.LocalTrainingHParams):
  """Hyperparameters of FedBABU: training of the body and fine-tuning.

  Attributes:
    fine_tune_scope: Weights fine-tuned before a model is scored: head or all.
    num_fine_tune_epochs: Epochs of fine-tuning before a model is scored, at
      least 1. Learning rate, momentum, optimizer and batch size are the same as
      in training.
  """

  fine_tune_scope: Literal['head', 'all'] = 'head'
  num_fine_tune_epochs: fields.integer(1, 10**6) = 5


@registry.method(
  'body trained under a frozen head, which is then fine-tuned',
  FedBabuHParams,
  unsupported=('reweight_domains',),
)
def fed_babu(model, hparams):
  """FedBABU for models whose body has weights. The head layers are frozen."""
  split_model.check_has_body(model, 'fed_babu')
  partition = weight_partition.WeightPartition.by_layer(
    model, model.head_layers
  )
  initial_body, initial_head = partition.split(model.initial_weights)

  def whole_model(body):
    return partition.merge(
      body, tf.nest.map_structure(tf.constant, initial_head)
    )

  def train(client):
    loss = objectives.body_loss(model, initial_head)
    return client.result(client.sgd(loss, client.received, hparams.phase()))

  return client_work.ClientWork(
    model,
    [client_work.Exchange(train)],
    initial_global=initial_body,
    personal_weights=lambda broadcast, _: whole_model(broadcast.global_weights),
    global_model=whole_model,
    adaptation=personalization.Personalization(
      fine_tune=hparams.fine_tune_scope,
      num_epochs=hparams.num_fine_tune_epochs,
      learning_rate=hparams.learning_rate,
      momentum=hparams.momentum,
      optimizer=hparams.optimizer,
      batch_size=hparams.batch_size,
    ),
  )
