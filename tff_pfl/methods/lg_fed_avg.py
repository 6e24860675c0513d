"""LG-FedAvg: the head is averaged, the body stays on its client.

    client:  for E epochs:  (body_i, head) <- SGD on both together
    server:  head_{t+1} = sum_i n_i head_i / sum_i n_i

A client that never took part trains its body, from the initial one, under the
frozen head.

Symbols: local parameters theta^l -> the model's body, global parameters theta^g
-> its head layers, or the last `global_depth`, eta -> learning_rate.

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
from typing import Optional

from tff_pfl.core import client_work
from tff_pfl.core import hparams as hparams_lib
from tff_pfl.methods import registry
from tff_pfl.methods.shared import joint_training
from tff_pfl.models import split_model, weight_partition


@dataclasses.dataclass(frozen=True)
class LgFedAvgHParams(hparams_lib.LocalTrainingHParams):
  """Hyperparameters of LG-FedAvg, besides those of local training.

  Attributes:
    global_depth: Number of last layers with weights that are global; None for
      the head layers.
  """

  global_depth: Optional[int] = None


@registry.method('local body, global head, trained together', LgFedAvgHParams)
def lg_fed_avg(
  model: split_model.SplitModel, hparams: LgFedAvgHParams
) -> client_work.ClientWork:
  """LG-FedAvg; there must be layers with weights below the global ones."""
  split_model.check_has_body(model, 'lg_fed_avg')
  layers = model.last_layers(hparams.global_depth, 'global_depth')
  return joint_training.joint_training_work(
    model,
    hparams,
    weight_partition.WeightPartition.by_layer(
      model, [layer for layer in model.layers if layer not in layers]
    ),
  )
