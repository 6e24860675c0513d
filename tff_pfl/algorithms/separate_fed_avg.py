"""Separate FedAvg: a model for each domain, by FedAvg on that domain's data.

    client:  for every domain m:  w_im <- SGD(w_m) on its examples of domain m
    server:  w_m <- sum_i L_im w_im / sum_i L_im

The models start alike. With rounds of warm-up one model is trained for all
domains first, by FedAvg, and the models part from there: that is FedAvg with
fine-tuning per domain, which the clients do together, by FedAvg again. Where
clients weigh alike (`client_weighting='uniform'`, private factories) they do so
in the warm-up; a domain's mean is by its examples all the same.

Deviations from the papers: by default the clients' SGD has momentum 0.5, as
everywhere in this library. A domain absent from a round keeps its model (but a
server's optimizer with momentum moves on).

References:
  Zhong, He, Ren, Li, Li: FedDAR: Federated Domain-Aware Representation
  Learning, ICLR 2023, sections 5.1 to 5.3 ("separate FedAvg", "FedAvg +
  separate FT").
"""

from __future__ import annotations

import collections
import dataclasses
from typing import Any

from tff_pfl import errors
from tff_pfl.algorithms.parts import domain_heads
from tff_pfl.client import hparams as hparams_lib
from tff_pfl.client import training_loop
from tff_pfl.models import domain_models, split_model
from tff_pfl.templates import client_work, federated_round, personalized_process


@dataclasses.dataclass(frozen=True)
class SeparateFedAvgHParams(hparams_lib.LocalTrainingHParams):
  """Hyperparameters of Separate FedAvg: of local training, and the warm-up.

  Attributes:
    num_warmup_rounds: First rounds, of one model for all domains, at least 0.
  """

  num_warmup_rounds: int = hparams_lib.describe(
    'first rounds, of one model for all domains, which is then fine-tuned for '
    'each',
    default=0,
  )

  def __post_init__(self):
    errors.expect_int('num_warmup_rounds', self.num_warmup_rounds, 0)
    super().__post_init__()


def build_separate_fed_avg(
  model: split_model.SplitModel,
  hparams: SeparateFedAvgHParams = SeparateFedAvgHParams(),
  **options: Any,
) -> personalized_process.PersonalizedProcess:
  """Builds Separate FedAvg; the process' model has one for each domain.

  Args:
    model: The model, with domains.
    hparams: Of local training and the warm-up.
    **options: See `federated_round.build_personalized_process`.
  """
  domain_models.expect_domains(model, 'separate_fed_avg')
  one = domain_models.all_head(model)
  all_models = domain_models.multi_head(one)
  warmup = domain_heads.Warmup(one, hparams.phase(), hparams.num_warmup_rounds)
  mean = domain_heads.make_aggregation(
    'weighted_average', one, aggregator=options.get('aggregator')
  )

  def train(broadcast, local, examples, seed):
    weights = broadcast.global_weights

    def apart():
      inputs = training_loop.frozen_features(all_models, weights, examples)
      trained, metrics = domain_heads.train(
        one, weights, inputs, hparams.phase(), seed
      )
      no_update = warmup.usual_update(collections.OrderedDict(), weights)
      return no_update, mean.report(weights, trained, inputs), metrics

    def as_one_model():
      update, metrics = warmup.train(weights, examples, seed)
      return update, mean.nothing(weights), metrics

    update, report, metrics = warmup.unless(broadcast, apart, as_one_model)
    return client_work.ClientResult(update, local, metrics, report)

  def server_update(state, update, report, num_clients):
    return warmup.unless(
      state,
      lambda: mean.update(report, num_clients),
      lambda: (warmup.server_update(update), state.algorithm),
    )

  work = client_work.global_weights_work(
    all_models,
    train,
    server_update=server_update,
    statistics=all_models.statistics,
    report_scale=model.domains.examples_per_client,
  )
  return federated_round.build_personalized_process(
    'separate_fed_avg', all_models, work, hparams=hparams, **options
  )
