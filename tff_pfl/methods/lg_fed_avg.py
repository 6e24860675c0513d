"""LG-FedAvg: the head is averaged, the body stays on its client.

    client:  for E epochs:  (body_i, head) <- SGD on both together
    server:  head_{t+1} = sum_i n_i head_i / sum_i n_i

Symbols: local parameters theta^l -> the model's body, global parameters theta^g
-> its head layers, or the last `global_depth`, eta -> learning_rate.

Deviations from the paper: this is the supervised variant without auxiliary and
adversarial losses, as in all comparisons. It starts from the initial weights,
not from a model that FedAvg trained.

References:
  Liang, Liu, Ziyin, Allen, Auerbach, Brent, Salakhutdinov, Morency: Think
  Locally, Act Globally: Federated Learning with Local and Global
  Representations, arXiv:2001.01523, Algorithm 1.
"""

from typing import Optional

from tff_pfl import fields
from tff_pfl.core import hparams as hparams_lib
from tff_pfl.methods import registry
from tff_pfl.methods.shared import joint_training


@fields.dataclass
class LgFedAvgHParams(hparams_lib.LocalTrainingHParams):
  """Hyperparameters of LG-FedAvg: local training and the global layers.

  Attributes:
    global_depth: Number of last layers with weights that are global. None uses
      the head layers.
  """

  global_depth: Optional[int] = None


@registry.method('local body, global head, trained together', LgFedAvgHParams)
def lg_fed_avg(model, hparams):
  """LG-FedAvg for models that have weights below the global layers."""
  return joint_training.divided_work(
    model, hparams, 'lg_fed_avg', 'global_depth'
  )
