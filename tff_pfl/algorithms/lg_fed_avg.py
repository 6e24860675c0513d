"""LG-FedAvg: the head is averaged, the body stays on its client.

    client:  for E epochs:  (body_i, head) <- SGD on both together
    server:  head_{t+1} = sum_i n_i head_i / sum_i n_i

A client that never took part trains its body, from the initial one, under the
frozen head.

Symbols: local parameters theta^l -> the model's body, global parameters
theta^g -> its head layers, eta -> learning_rate.

Deviations from the paper: the supervised variant without its auxiliary and
adversarial losses, as every comparison has it; it starts from the initial
weights, not from a model that FedAvg trained. As everywhere in this library,
momentum is 0.5 by default.

References:
  Liang, Liu, Ziyin, Allen, Auerbach, Brent, Salakhutdinov, Morency: Think
  Locally, Act Globally: Federated Learning with Local and Global
  Representations, arXiv:2001.01523, Algorithm 1.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from tff_pfl.algorithms.parts import joint_training
from tff_pfl.client import hparams as hparams_lib
from tff_pfl.models import split_model, weight_partition
from tff_pfl.templates import personalized_process


@dataclasses.dataclass(frozen=True)
class LgFedAvgHParams(hparams_lib.LocalTrainingHParams):
  """Hyperparameters of LG-FedAvg: those of local training."""


def build_lg_fed_avg(
  model: split_model.SplitModel,
  hparams: LgFedAvgHParams = LgFedAvgHParams(),
  **options: Any,
) -> personalized_process.PersonalizedProcess:
  """Builds LG-FedAvg; the model's body is local, its head layers are global.

  Args:
    model: The model; its body must have weights.
    hparams: Of local training.
    **options: See `federated_round.build_personalized_process`.
  """
  split_model.check_has_body(model, 'lg_fed_avg')
  return joint_training.build_joint_training(
    'lg_fed_avg',
    model,
    hparams,
    weight_partition.WeightPartition.by_layer(
      model, global_layers=model.head_layers
    ),
    **options,
  )
