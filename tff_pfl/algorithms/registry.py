"""All methods by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from tff_pfl import errors
from tff_pfl.algorithms import (
  fed_avg,
  fed_per,
  fed_rep,
  local_only,
  per_fed_avg,
)
from tff_pfl.models import split_model
from tff_pfl.templates import personalized_process


class Algorithm(NamedTuple):
  """A registered method.

  Attributes:
    hparams: Its hyperparameters' frozen dataclass; the defaults are usable.
    build: `(model, hparams, **options) -> PersonalizedProcess`.
    summary: One line for help texts and tables.
  """

  hparams: type
  build: Callable[..., personalized_process.PersonalizedProcess]
  summary: str


ALGORITHMS = {
  'fed_avg': Algorithm(
    fed_avg.FedAvgHParams,
    fed_avg.build_fed_avg,
    'one global model, averaged (FedSGD: one full-batch step)',
  ),
  'fed_per': Algorithm(
    fed_per.FedPerHParams,
    fed_per.build_fed_per,
    'global body, local head, trained together',
  ),
  'fed_rep': Algorithm(
    fed_rep.FedRepHParams,
    fed_rep.build_fed_rep,
    'global body, local head, trained in turn: head first',
  ),
  'local_only': Algorithm(
    local_only.LocalOnlyHParams,
    local_only.build_local_only,
    'every client on its own',
  ),
  'per_fed_avg': Algorithm(
    per_fed_avg.PerFedAvgHParams,
    per_fed_avg.build_per_fed_avg,
    'one global model that a gradient step on the client personalises (MAML)',
  ),
}


def get_algorithm(name: str) -> Algorithm:
  """Returns the method called `name`.

  Raises:
    ValueError: If there is none; the message lists those there are.
  """
  errors.expect(
    name in ALGORITHMS, 'algorithm', f'one of {", ".join(ALGORITHMS)}', name
  )
  return ALGORITHMS[name]


def build(
  name: str, model: split_model.SplitModel, hparams: Any = None, **options: Any
) -> personalized_process.PersonalizedProcess:
  """Builds the method called `name`.

  Args:
    name: A key of `ALGORITHMS`.
    model: The model.
    hparams: Of the method's dataclass; by default its defaults.
    **options: See `federated_round.build_personalized_process`.

  Raises:
    TypeError: If `model` is no `SplitModel` or `hparams` is another method's.
    ValueError: If there is no such method.
  """
  algorithm = get_algorithm(name)
  if hparams is None:
    hparams = algorithm.hparams()
  errors.expect_type(
    model,
    split_model.SplitModel,
    'model',
    'a SplitModel (keras_bridge.from_keras makes one of a Keras model)',
  )
  errors.expect_type(
    hparams, algorithm.hparams, 'hparams', f'a {algorithm.hparams.__name__}'
  )
  return algorithm.build(model, hparams, **options)
