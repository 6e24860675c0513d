"""All methods by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from tff_pfl import errors
from tff_pfl.algorithms import (
  apfl,
  ditto,
  fed_avg,
  fed_babu,
  fed_bn,
  fed_dar,
  fed_em,
  fed_fac,
  fed_min_max,
  fed_mtl,
  fed_per,
  fed_prox,
  fed_rep,
  fed_split,
  ifca,
  l2gd,
  lg_fed_avg,
  local_only,
  p_fed_me,
  per_fed_avg,
  scaffold,
  separate_fed_avg,
)
from tff_pfl.models import split_model
from tff_pfl.templates import personalized_process


class Algorithm(NamedTuple):
  """A registered method.

  Attributes:
    hparams: Its hyperparameters' frozen dataclass; the defaults are usable.
    build: `(model, hparams, **options) -> PersonalizedProcess`.
    summary: One line for help texts and tables.
    needs_domains: Whether it takes only models of examples with a domain.
  """

  hparams: type
  build: Callable[..., personalized_process.PersonalizedProcess]
  summary: str
  needs_domains: bool = False


ALGORITHMS = {
  'apfl': Algorithm(
    apfl.ApflHParams,
    apfl.build_apfl,
    'a personal model mixed with the global one',
  ),
  'ditto': Algorithm(
    ditto.DittoHParams,
    ditto.build_ditto,
    'a personal model held near the global one',
  ),
  'fed_avg': Algorithm(
    fed_avg.FedAvgHParams,
    fed_avg.build_fed_avg,
    'one global model, averaged (FedSGD: one full-batch step)',
  ),
  'fed_babu': Algorithm(
    fed_babu.FedBabuHParams,
    fed_babu.build_fed_babu,
    'body trained under a frozen head, which is then fine-tuned',
  ),
  'fed_bn': Algorithm(
    fed_bn.FedBnHParams,
    fed_bn.build_fed_bn,
    'global but for the batch normalizations',
  ),
  'fed_dar': Algorithm(
    fed_dar.FedDarHParams,
    fed_dar.build_fed_dar,
    'global body, a global head for each domain, combined by curvature',
    needs_domains=True,
  ),
  'fed_em': Algorithm(
    fed_em.FedEmHParams,
    fed_em.build_fed_em,
    'clients are mixtures of a few global models',
  ),
  'fed_fac': Algorithm(
    fed_fac.FedFacHParams,
    fed_fac.build_fed_fac,
    'hidden elements global or local, told apart by factor analysis',
  ),
  'fed_min_max': Algorithm(
    fed_min_max.FedMinMaxHParams,
    fed_min_max.build_fed_min_max,
    'one global model, weighted towards the worst domain',
    needs_domains=True,
  ),
  'fed_mtl': Algorithm(
    fed_mtl.FedMtlHParams,
    fed_mtl.build_fed_mtl,
    'personal models, held near their mean',
  ),
  'fed_per': Algorithm(
    fed_per.FedPerHParams,
    fed_per.build_fed_per,
    'global body, local head, trained together',
  ),
  'fed_prox': Algorithm(
    fed_prox.FedProxHParams,
    fed_prox.build_fed_prox,
    'FedAvg with clients held near the global model',
  ),
  'fed_rep': Algorithm(
    fed_rep.FedRepHParams,
    fed_rep.build_fed_rep,
    'global body, local head, trained in turn: head first',
  ),
  'fed_split': Algorithm(
    fed_split.FedSplitHParams,
    fed_split.build_fed_split,
    'given hidden elements local, all else global',
  ),
  'ifca': Algorithm(
    ifca.IfcaHParams,
    ifca.build_ifca,
    'a few global models, of which each client takes the best',
  ),
  'l2gd': Algorithm(
    l2gd.L2gdHParams,
    l2gd.build_l2gd,
    'personal models, drawn to their mean at random rounds',
  ),
  'lg_fed_avg': Algorithm(
    lg_fed_avg.LgFedAvgHParams,
    lg_fed_avg.build_lg_fed_avg,
    'local body, global head, trained together',
  ),
  'local_only': Algorithm(
    local_only.LocalOnlyHParams,
    local_only.build_local_only,
    'every client on its own',
  ),
  'p_fed_me': Algorithm(
    p_fed_me.PFedMeHParams,
    p_fed_me.build_p_fed_me,
    'a global model of which personal ones are Moreau envelopes',
  ),
  'per_fed_avg': Algorithm(
    per_fed_avg.PerFedAvgHParams,
    per_fed_avg.build_per_fed_avg,
    'one global model that a gradient step on the client personalizes (MAML)',
  ),
  'scaffold': Algorithm(
    scaffold.ScaffoldHParams,
    scaffold.build_scaffold,
    'FedAvg with control variates against client drift',
  ),
  'separate_fed_avg': Algorithm(
    separate_fed_avg.SeparateFedAvgHParams,
    separate_fed_avg.build_separate_fed_avg,
    'a global model for each domain',
    needs_domains=True,
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
