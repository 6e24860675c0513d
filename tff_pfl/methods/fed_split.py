"""FedSplit: some hidden units of a layer are personal, the rest is averaged.

    client:  W_k = (W^s, W_k^p);  for G epochs:  W_k <- SGD on all of it
             W_k^p <- W_k^p + Delta W_k^p;  send Delta W_k^s
    server:  W^s <- W^s + eta_g sum_k n_k Delta W_k^s / sum_k n_k

Hidden units (the paper's hidden elements) are the neurons of dense layers, the
channels of convolutions and the units of recurrent layers. All parameters that
produce a personal unit stay on its client: its columns of the kernels, its bias
and its parameters of a normalization that follows. You choose the partition,
while `fed_fac` finds one.

A client that never took part trains its personal units, from the initial ones,
with all shared weights frozen (the paper's LocalTrain).

Without personal units, this is FedAvg. If all units of the last layer are
personal, it is FedPer. If all of the lower layers are, it is LG-FedAvg.

Symbols: Lambda and I^p -> personal_elements, G -> num_epochs, eta_l ->
learning_rate, eta_g -> the server optimizer's learning rate.

Deviations from the paper: only the default momentum.

References:
  Wang, Tang, Li: Factor-Assisted Federated Learning for Personalized
  Optimization with Heterogeneous Data, arXiv:2312.04281, section 3.
"""

from typing import Optional

from absl import logging

from tff_pfl import fields
from tff_pfl.core import hparams as hparams_lib
from tff_pfl.methods import registry
from tff_pfl.methods.shared import joint_training
from tff_pfl.models import units, weight_partition


@fields.dataclass
class FedSplitHParams(hparams_lib.LocalTrainingHParams):
  """Hyperparameters of FedSplit: local training and the personal units.

  Attributes:
    personal_elements: The personal units, such as `dense_1:0-49,dense_2` (see
      `units.parse`). None uses the second half of the last hidden layer, and ''
      no units (FedAvg).
  """

  personal_elements: Optional[str] = None


@registry.method('chosen hidden units local, the rest global', FedSplitHParams)
def fed_split(model, hparams):
  """FedSplit."""
  chosen = hparams.personal_elements
  if chosen is None:
    (layer,) = model.layers_to_divide()
    number = model.units[layer].number
    chosen = f'{layer}:{number // 2}-{number - 1}'
  parsed = units.parse(chosen, model.units, model.layers, 'personal_elements')
  if not parsed:
    logging.warning(
      'No unit is personal (personal_elements=%r), so fed_split is fed_avg.',
      chosen,
    )
  return joint_training.joint_training_work(
    model, hparams, weight_partition.WeightPartition.by_unit(model, parsed)
  )
