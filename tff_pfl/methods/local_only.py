"""Local training: every client trains on its own, nothing is shared.

    client:  for E epochs:  w_i <- SGD
    server:  nothing

All clients start from the same initial weights. A client trains only in the
rounds it is sampled for, as in every other method, so that comparisons are at
the same amount of local work. A client that was never sampled trains once
before it is scored.

Symbols: E -> num_epochs, eta -> learning_rate, B -> batch_size.
"""

from tff_pfl import fields
from tff_pfl.core import hparams as hparams_lib
from tff_pfl.methods import registry
from tff_pfl.methods.shared import joint_training
from tff_pfl.models import weight_partition


@fields.dataclass
class LocalOnlyHParams(hparams_lib.LocalTrainingHParams):
  """Hyperparameters of local training."""


@registry.method('every client on its own', LocalOnlyHParams)
def local_only(model, hparams):
  """Local training."""
  return joint_training.joint_training_work(
    model,
    hparams,
    weight_partition.WeightPartition.by_layer(model, model.layers),
  )
