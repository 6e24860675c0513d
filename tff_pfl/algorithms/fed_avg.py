"""Federated averaging, and FedSGD.

    client:  w <- w_t;  for E epochs (or K steps) of mini-batches:
                          w <- w - learning_rate * gradient(w)
    server:  w_{t+1} = sum_i n_i w_i / sum_i n_i

All weights are global. FedSGD is one full-batch step (`num_steps=1`,
`batch_size=None`). FedAvg with fine-tuning is this method with the
personalisation option `fine_tune`.

Symbols: E -> num_epochs, K -> num_steps, eta -> learning_rate, B -> batch_size.

Deviations from the paper: by default the clients' SGD has momentum 0.5, as in
the experiments of FedRep (`momentum=0` is the paper's). Optimizers of clients
and server and the aggregator can be replaced.

References:
  McMahan, Moore, Ramage, Hampson, Aguera y Arcas: Communication-Efficient
  Learning of Deep Networks from Decentralized Data, AISTATS 2017, Algorithm 1.
  Collins, Hassani, Mokhtari, Shakkottai: FedAvg with Fine Tuning: Local Updates
  Lead to Representation Learning, NeurIPS 2022.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from tff_pfl.client import hparams as hparams_lib
from tff_pfl.models import split_model, weight_partition
from tff_pfl.templates import joint_training, personalized_process


@dataclasses.dataclass(frozen=True)
class FedAvgHParams(hparams_lib.LocalTrainingHParams):
  """Hyperparameters of FedAvg: those of local training."""


def build_fed_avg(
  model: split_model.SplitModel,
  hparams: FedAvgHParams = FedAvgHParams(),
  **options: Any,
) -> personalized_process.PersonalizedProcess:
  """Builds FedAvg.

  Args:
    model: The model.
    hparams: Of local training.
    **options: aggregator, server optimizer, client weighting, personalisation,
      seed: see `federated_round.build_personalized_process`.
  """
  return joint_training.build_joint_training(
    'fed_avg',
    model,
    hparams,
    weight_partition.WeightPartition.by_layer(model, local_layers=()),
    **options,
  )
