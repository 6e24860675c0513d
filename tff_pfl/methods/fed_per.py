"""FedPer: the body is averaged, the head stays on its client.

    client:  for E epochs:  (body, head_i) <- SGD on both together
    server:  body_{t+1} = sum_i n_i body_i / sum_i n_i

Symbols: K_P -> local_depth (by default the depth of the head), e -> num_epochs,
eta -> learning_rate, b -> batch_size.

Deviations from the paper: only the default momentum.

References:
  Arivazhagan, Aggarwal, Singh, Choudhary: Federated Learning with
  Personalization Layers, arXiv:1912.00818, Algorithms 1 and 2.
"""

from typing import Optional

from tff_pfl import fields
from tff_pfl.core import hparams as hparams_lib
from tff_pfl.methods import registry
from tff_pfl.methods.shared import joint_training


@fields.dataclass
class FedPerHParams(hparams_lib.LocalTrainingHParams):
  """Hyperparameters of FedPer: local training and the local layers.

  Attributes:
    local_depth: Number of last layers with weights that are local (K_P). None
      uses the head layers.
  """

  local_depth: Optional[int] = None


@registry.method('global body, local head, trained together', FedPerHParams)
def fed_per(model, hparams):
  """FedPer for models that have weights below the local layers."""
  return joint_training.divided_work(model, hparams, 'fed_per', 'local_depth')
