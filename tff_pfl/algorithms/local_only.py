"""Local training: every client on its own, nothing is shared.

    client:  for E epochs:  w_i <- SGD
    server:  nothing

All clients start from the same initial weights. A client trains only in the
rounds it is sampled for, like in every other method, so that comparisons are at
the same amount of local work; one that never was trains once before it is
scored.

Symbols: E -> num_epochs, eta -> learning_rate, B -> batch_size.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from tff_pfl.algorithms.parts import joint_training
from tff_pfl.client import hparams as hparams_lib
from tff_pfl.models import split_model, weight_partition
from tff_pfl.templates import personalized_process


@dataclasses.dataclass(frozen=True)
class LocalOnlyHParams(hparams_lib.LocalTrainingHParams):
  """Hyperparameters of local training."""


def build_local_only(
  model: split_model.SplitModel,
  hparams: LocalOnlyHParams = LocalOnlyHParams(),
  **options: Any,
) -> personalized_process.PersonalizedProcess:
  """Builds local training.

  Args:
    model: The model.
    hparams: Of local training.
    **options: See `federated_round.build_personalized_process`.
  """
  return joint_training.build_joint_training(
    'local_only',
    model,
    hparams,
    weight_partition.WeightPartition.by_layer(model, global_layers=()),
    **options,
  )
