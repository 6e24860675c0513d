"""Separate FedAvg: a model for each domain, by FedAvg on that domain's data.

    client:  for every domain m:  w_im <- SGD(w_m) on its examples of domain m
    server:  w_m <- sum_i L_im w_im / sum_i L_im

All models start from the same weights. After warm-up rounds
(`num_warmup_rounds` of `Settings`), they start from one model that FedAvg has
trained for all domains. That is FedAvg with fine-tuning per domain, which the
clients do together, again by FedAvg. A domain's mean is weighted by its
examples, however clients are weighted.

Deviations from the papers: a domain that is absent from a round keeps its model
(but a server optimizer with momentum still moves it).

References:
  Zhong, He, Ren, Li, Li: FedDAR: Federated Domain-Aware Representation
  Learning, ICLR 2023, sections 5.1 to 5.3 ("separate FedAvg", "FedAvg +
  separate FT").
"""

from tff_pfl import fields
from tff_pfl.core import client as client_lib
from tff_pfl.core import client_work
from tff_pfl.core import hparams as hparams_lib
from tff_pfl.methods import registry
from tff_pfl.methods.shared import domain_heads
from tff_pfl.models import domain_models


@fields.dataclass
class SeparateFedAvgHParams(hparams_lib.LocalTrainingHParams):
  """Hyperparameters of Separate FedAvg: only local training."""


@registry.method(
  'a global model for each domain',
  SeparateFedAvgHParams,
  needs_domains=True,
  unsupported=('domain_model', 'reweight_domains'),
)
def separate_fed_avg(model, hparams):
  """Separate FedAvg. The process' model contains a model for each domain."""
  one = domain_models.all_head(model)
  all_models = domain_models.multi_head(one)
  mean = domain_heads.WeightedAverage(one)

  def train(client):
    inputs = client.features()  # The body does nothing.
    trained, metrics = domain_heads.train(
      client, one, client.received, inputs, hparams.phase()
    )
    report = mean.report(client.received, trained, inputs)
    return client_lib.ClientResult((), client.local, metrics, report)

  def combine(unused_state, unused_update, report, cohort):
    return mean.update(report, cohort)

  return client_work.global_weights_work(
    all_models,
    client_work.Exchange(train, combine),
    statistics=all_models.statistics,
    report_scale=model.domains.examples_per_client,
  )
