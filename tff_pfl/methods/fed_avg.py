"""Federated averaging, and FedSGD.

    client:  w <- w_t;  for E epochs (or K steps) of mini-batches:
                          w <- w - learning_rate * gradient(w)
    server:  w_{t+1} = sum_i n_i w_i / sum_i n_i

All weights are global. FedSGD is one full-batch step (`num_steps=1`,
`batch_size=None`). FedAvg with fine-tuning is this method with the
personalization option `fine_tune`. FedAvg with re-weighting, with several heads
or with the domain as input, as in FedDAR's tables, is this method on a model of
domains (`models.domain_models`).

Symbols: E -> num_epochs, K -> num_steps, eta -> learning_rate, B -> batch_size.

Deviations from the paper: by default the clients' SGD has momentum 0.5, as in
FedRep's experiments (`momentum=0` is the paper's). The optimizers of clients
and server and the aggregator can be replaced.

References:
  McMahan, Moore, Ramage, Hampson, Aguera y Arcas: Communication-Efficient
  Learning of Deep Networks from Decentralized Data, AISTATS 2017, Algorithm 1.
  Collins, Hassani, Mokhtari, Shakkottai: FedAvg with Fine Tuning: Local Updates
  Lead to Representation Learning, NeurIPS 2022.
"""

from tff_pfl import fields
from tff_pfl.core import hparams as hparams_lib
from tff_pfl.methods import registry
from tff_pfl.methods.shared import joint_training


@fields.dataclass
class FedAvgHParams(hparams_lib.LocalTrainingHParams):
  """Hyperparameters of FedAvg: only local training."""


@registry.method(
  'one global model, averaged (FedSGD: one full-batch step)', FedAvgHParams
)
def fed_avg(model, hparams):
  """FedAvg."""
  return joint_training.joint_training_work(model, hparams)
