"""Federated averaging, and FedSGD.

    client:  w <- w_t;  for E epochs (or K steps) of mini-batches:
                          w <- w - learning_rate * gradient(w)
    server:  w_{t+1} = sum_i n_i w_i / sum_i n_i

All weights are global. On data with domains the loss may be weighted so that
all domains count the same (u_m = L / (M L_m)), and the model may have a head
for each domain (FedAvg + multi-head), or take the domain as a further feature
of its last layer. FedSGD is one full-batch step (`num_steps=1`,
`batch_size=None`). FedAvg with fine-tuning is this method with the
personalization option `fine_tune`.

Symbols: E -> num_epochs, K -> num_steps, eta -> learning_rate, B -> batch_size.

Deviations from the paper: by default the clients' SGD has momentum 0.5, as in
the experiments of FedRep (`momentum=0` is the paper's). Optimizers of clients
and server and the aggregator can be replaced.

References:
  McMahan, Moore, Ramage, Hampson, Aguera y Arcas: Communication-Efficient
  Learning of Deep Networks from Decentralized Data, AISTATS 2017, Algorithm 1.
  Collins, Hassani, Mokhtari, Shakkottai: FedAvg with Fine Tuning: Local Updates
  Lead to Representation Learning, NeurIPS 2022.
  Zhong, He, Ren, Li, Li: FedDAR: Federated Domain-Aware Representation
  Learning, ICLR 2023, tables 1 and 2 (the options for domains).
"""

from __future__ import annotations

import dataclasses
from typing import Any, Optional

from tff_pfl import errors
from tff_pfl.algorithms.parts import joint_training
from tff_pfl.client import hparams as hparams_lib
from tff_pfl.client import objectives
from tff_pfl.models import domain_models, split_model, weight_partition
from tff_pfl.templates import personalized_process

describe = hparams_lib.describe

DOMAIN_MODELS = ('shared', 'multi_head', 'input')


@dataclasses.dataclass(frozen=True)
class FedAvgHParams(hparams_lib.LocalTrainingHParams):
  """Hyperparameters of FedAvg: those of local training, and for domains.

  Attributes:
    domain_model: On data with domains, what the model makes of them: 'shared'
      is nothing, 'multi_head' has a head for each, 'input' takes the domain,
      one-hot, beside the features of the last hidden layer.
    reweight_domains: Whether all domains count the same in the loss.
    projection_dim: If given, a linear layer brings the body's features down to
      so many numbers.
  """

  domain_model: str = describe(
    f'what the model makes of domains: {", ".join(DOMAIN_MODELS)}',
    default='shared',
  )
  reweight_domains: bool = describe(
    'whether all domains count the same in the loss', default=False
  )
  projection_dim: Optional[int] = describe(
    'features that a linear layer brings those of the body down to',
    default=None,
  )

  def __post_init__(self):
    errors.expect(
      self.domain_model in DOMAIN_MODELS,
      'domain_model',
      f'one of {", ".join(DOMAIN_MODELS)}',
      self.domain_model,
    )
    if self.projection_dim is not None:
      errors.expect_int('projection_dim', self.projection_dim, 1)
    super().__post_init__()


def build_fed_avg(
  model: split_model.SplitModel,
  hparams: FedAvgHParams = FedAvgHParams(),
  **options: Any,
) -> personalized_process.PersonalizedProcess:
  """Builds FedAvg.

  Args:
    model: The model; with domains, if an option for domains is asked for.
    hparams: Of local training, and for domains.
    **options: aggregator, server optimizer, client weighting, personalization,
      seed: see `federated_round.build_personalized_process`.
  """
  if hparams.domain_model != 'shared' or hparams.reweight_domains:
    domain_models.expect_domains(
      model, 'fed_avg with domain_model or reweight_domains'
    )
  if hparams.projection_dim is not None:
    model = domain_models.projected(model, hparams.projection_dim)
  if hparams.domain_model == 'multi_head':
    model = domain_models.multi_head(model)
  elif hparams.domain_model == 'input':
    model = domain_models.domain_as_input(model)
  domain_weights = None
  if hparams.reweight_domains:
    domain_weights = model.domains.loss_weights
  return joint_training.build_joint_training(
    'fed_avg',
    model,
    hparams,
    weight_partition.WeightPartition.by_layer(model, local_layers=()),
    objectives.joint_loss(model, domain_weights),
    **options,
  )
