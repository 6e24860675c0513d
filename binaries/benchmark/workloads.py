"""Workloads: methods, models and data by name.

All data come from a seeded generator: each class has a prototype, an example is
its prototype plus noise, and a client has 2 of 10 classes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Optional

import numpy as np

from tff_pfl import datasets, errors
from tff_pfl.core import personalized_process
from tff_pfl.datasets.sources import synthetic
from tff_pfl.methods import fed_avg, fed_fac, fed_rep, per_fed_avg, registry
from tff_pfl.models import split_model, zoo
from tff_pfl.runs import client_sampling

NUM_CLASSES = 10


@dataclasses.dataclass(frozen=True)
class Workload:
  """A method on a model and data, of given sizes.

  Attributes:
    name: Its key in `WORKLOADS`.
    description: One line for help texts.
    algorithm: A key of `registry.ALGORITHMS`.
    hparams: The method's hyperparameters.
    model: A key of `zoo.MODELS`.
    model_arguments: The model's own arguments.
    shape: Sizes of an example's `x`, without the batch dimension.
    num_clients: Clients in the population.
    cohort_size: Clients in a round.
    examples_per_client: Training examples of each client.
    num_rounds: Default number of measured rounds.
    smaller_num_clients: Size of a smaller population to compare with, for a
      workload about the population's size, which runs with a durable store;
      None for others.
    seed: Seed of the data, the initial weights, the sampling and client work.
  """

  name: str
  description: str
  algorithm: str
  hparams: Any
  model: str
  model_arguments: Mapping[str, Any]
  shape: Sequence[int]
  num_clients: int = 100
  cohort_size: int = 10
  examples_per_client: int = 500
  num_rounds: int = 10
  smaller_num_clients: Optional[int] = None
  seed: int = 0

  def make_data(
    self, num_clients: Optional[int] = None
  ) -> datasets.FederatedDataset:
    """Makes the clients, whose examples are generated on demand.

    Args:
      num_clients: Number of clients; None for the workload's. A client's
        examples do not depend on it.
    """
    return synthetic.make_synthetic(
      num_clients or self.num_clients,
      examples_per_client=self.examples_per_client,
      # Rounds are measured, not evaluation.
      test_examples_per_client=0,
      shape=tuple(self.shape),
      num_classes=NUM_CLASSES,
      classes_per_client=2,
      seed=self.seed,
    )

  def build_model(self) -> split_model.SplitModel:
    """Builds the model for the data's shapes."""
    return zoo.make_model(
      self.model,
      self.make_data().element_spec,
      NUM_CLASSES,
      self.seed,
      **self.model_arguments,
    )

  def build_process(
    self, model: split_model.SplitModel
  ) -> personalized_process.PersonalizedProcess:
    """Builds the method for a model of `build_model`."""
    return registry.build(self.algorithm, model, self.hparams, seed=self.seed)

  def sample_cohort(
    self, round_number: int, num_clients: Optional[int] = None
  ) -> np.ndarray:
    """Draws the clients of a round, as experiments do.

    Args:
      round_number: From 0 on.
      num_clients: Number of clients; None for the workload's.

    Returns:
      int64 `[cohort_size]`, client indices, ascending.
    """
    return client_sampling.CohortSampler(
      num_clients or self.num_clients, self.cohort_size, self.seed
    ).sample(round_number)

  def scaled_down(self) -> Workload:
    """Returns the workload with tiny sizes, for a trial in seconds."""
    arguments = dict(self.model_arguments)
    arguments['widths'] = (8, 6, 4)[: len(arguments['widths'])]
    if 'filters' in arguments:
      arguments['filters'] = 4
    scales = self.smaller_num_clients is not None
    return dataclasses.replace(
      self,
      description=f'{self.description} (scaled down)',
      model_arguments=arguments,
      shape=(16, 16, 3) if len(self.shape) == 3 else (12,),
      num_clients=600 if scales else 6,
      cohort_size=2,
      examples_per_client=20,
      num_rounds=2,
      smaller_num_clients=6 if scales else None,
    )


_MLP = {'widths': (512, 256, 64)}

WORKLOADS: Mapping[str, Workload] = {
  workload.name: workload
  for workload in (
    Workload(
      name='w1',
      description='FedRep, MLP 784-512-256-64-10, 10 head epochs and 1 body '
      'epoch',
      algorithm='fed_rep',
      hparams=fed_rep.FedRepHParams(),
      model='mlp',
      model_arguments=_MLP,
      shape=(784,),
    ),
    Workload(
      name='w2',
      description='FedAvg, MLP 784-512-256-64-10, 5 epochs',
      algorithm='fed_avg',
      hparams=fed_avg.FedAvgHParams(num_epochs=5),
      model='mlp',
      model_arguments=_MLP,
      shape=(784,),
    ),
    Workload(
      name='w2f',
      description='FedFac, dynamic, otherwise w2: factor analysis of the 512 '
      'neurons of the first layer in each round; its plain loop is FedAvg',
      algorithm='fed_fac',
      hparams=fed_fac.FedFacHParams(num_epochs=5, layers='dense_1'),
      model='mlp',
      model_arguments=_MLP,
      shape=(784,),
    ),
    Workload(
      name='w3',
      description='FedRep, 32x32x3 images, CNN of two 5x5 convolutions (64 '
      'channels) and dense 120-64-10, 10 head epochs and 1 body epoch',
      algorithm='fed_rep',
      hparams=fed_rep.FedRepHParams(),
      model='cnn',
      model_arguments={'filters': 64, 'widths': (120, 64)},
      shape=(32, 32, 3),
      num_rounds=3,
    ),
    *(
      Workload(
        name=name,
        description=f'Per-FedAvg {variant}, MLP 784-80-60-10 with ELU, 10 '
        'local iterations with batches of 40',
        algorithm='per_fed_avg',
        hparams=per_fed_avg.PerFedAvgHParams(variant=variant),
        model='mlp',
        model_arguments={'widths': (80, 60), 'activation': 'elu'},
        shape=(784,),
        num_clients=50,
        examples_per_client=400,
        num_rounds=60,
      )
      for name, variant in (
        ('w4', 'first_order'),
        ('w4h', 'hessian_free'),
        ('w4e', 'exact'),
      )
    ),
    Workload(
      name='scale',
      description='FedRep, MLP 64-32-10, 1,000 of 1,000,000 clients a round '
      'with a durable store, beside 10,000 clients',
      algorithm='fed_rep',
      hparams=fed_rep.FedRepHParams(num_head_epochs=1),
      model='mlp',
      model_arguments={'widths': (32,)},
      shape=(64,),
      num_clients=1_000_000,
      cohort_size=1000,
      examples_per_client=20,
      smaller_num_clients=10_000,
    ),
  )
}


def get_workload(name: str) -> Workload:
  """Returns the workload called `name`.

  Raises:
    ValueError: If there is none; the message lists all names.
  """
  errors.expect_one_of('workload', name, WORKLOADS)
  return WORKLOADS[name]
