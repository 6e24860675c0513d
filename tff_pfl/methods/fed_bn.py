"""FedBN: batch normalization stays on its client, the rest is averaged.

    client:  for E epochs:  (w, bn_i) <- SGD on both together
    server:  w_{t+1} = sum_i n_i w_i / sum_i n_i

The scale, offset, moving mean and moving variance of every batch normalization
are local. A client that never took part trains them, from the initial ones,
with the rest frozen. In a network without batch normalization, this is FedAvg,
and a warning says so.

Symbols: E -> num_epochs, eta -> learning_rate, B -> batch_size.

Deviations from the paper: its server takes the plain mean
(`client_weighting='uniform'`).

References:
  Li, Jiang, Zhang, Kamp, Dou: FedBN: Federated Learning on Non-IID Features via
  Local Batch Normalization, ICLR 2021, Algorithm 1.
"""

from absl import logging

from tff_pfl import fields
from tff_pfl.core import hparams as hparams_lib
from tff_pfl.methods import registry
from tff_pfl.methods.shared import joint_training
from tff_pfl.models import weight_partition


@fields.dataclass
class FedBnHParams(hparams_lib.LocalTrainingHParams):
  """Hyperparameters of FedBN: only local training."""


@registry.method('all weights global except batch normalization', FedBnHParams)
def fed_bn(model, hparams):
  """FedBN."""
  local_layers = [
    layer
    for layer, names in model.layers.items()
    if any(name.endswith('/moving_mean') for name in names)
  ]
  if not local_layers:
    logging.warning(
      'The model %r has no batch normalization, so fed_bn is fed_avg.',
      model.name,
    )
  return joint_training.joint_training_work(
    model,
    hparams,
    weight_partition.WeightPartition.by_layer(model, local_layers),
  )
