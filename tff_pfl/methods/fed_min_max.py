"""FedMinMax: one global model that is best for the worst domain.

    min_w max_{lambda in simplex} sum_g lambda_g r_g(w)

r_g is the mean loss of domain (group) g over all clients. Round t:

    client:  r_ig <- losses of w_t on its examples of each domain;
             w_i <- SGD(w_t) on (1 / L_i) sum_j lambda_g(j) / rho_g(j) loss_j
    server:  w <- sum_i L_i w_i / sum_i L_i;  r_g <- mean over the cohort
             lambda <- projection on the simplex of lambda + eta r

rho_g is the domain's share of all training examples, which is known before
training (`Domains`). At first lambda is rho, which is FedAvg, and it stays rho
if the learning rate is 0. A domain that is absent from a round counts with its
last risk. A domain without any training example does not count. If clients have
equal weights (`client_weighting='uniform'`, private factories), w is the plain
mean of the w_i, but the r_g are still means over examples.

Symbols: eta_lambda -> weight_learning_rate, lambda -> domain_weight (in the
metrics), K -> num_epochs or num_steps.

Deviations from the paper: the clients make several steps in a round, as in
FedDAR's experiments (one step in Algorithm 1). A cohort may be only part of the
clients.

References:
  Papadaki, Martinez, Bertran, Sapiro, Rodrigues: Minimax Demographic Group
  Fairness in Federated Learning, FAccT 2022, Algorithm 1.
"""

import collections

import numpy as np
import tensorflow as tf

from tff_pfl import fields
from tff_pfl.core import client_work, objectives, scoring
from tff_pfl.core import hparams as hparams_lib
from tff_pfl.methods import registry
from tff_pfl.methods.shared import simplex


@fields.dataclass
class FedMinMaxHParams(hparams_lib.LocalTrainingHParams):
  """Hyperparameters of FedMinMax: local training and the domain weights.

  Attributes:
    weight_learning_rate: Learning rate of the server's ascent on the domain
      weights, at least 0. If 0, this is FedAvg.
  """

  weight_learning_rate: fields.NonNegative = 0.1


@registry.method(
  'one global model, weighted toward the worst domain',
  FedMinMaxHParams,
  needs_domains=True,
  unsupported=('domain_model', 'reweight_domains'),
)
def fed_min_max(model, hparams):
  """FedMinMax."""
  domains = model.domains
  counts = np.asarray(domains.num_examples, np.float32)
  rho = counts / counts.sum()
  is_present = rho > 0

  def train(client):
    scores = scoring.score(
      model, client.received, client.examples, training_loss=True
    )
    risks = objectives.per_example(scores.by_domain)
    factors = tf.math.divide_no_nan(client.algorithm['domain_weight'], rho)
    loss = objectives.joint_loss(model, factors)
    trained = client.sgd(loss, client.received, hparams.phase())
    report = collections.OrderedDict(
      losses=risks['loss'], shares=risks['examples']
    )
    return client.result(trained, report=report)

  def weigh_domains(state, update, report, cohort):
    has_examples = report['shares'] > cohort.least_share
    risk = tf.where(
      has_examples,
      report['losses'] / tf.where(has_examples, report['shares'], 1.0),
      state.algorithm['domain_risk'],
    )
    weight = state.algorithm['domain_weight']
    ascended = weight + hparams.weight_learning_rate * risk
    # Domains without examples are so low that the projection gives them 0.
    weight = simplex.project(tf.where(is_present, ascended, -1e6))
    return update, collections.OrderedDict(
      domain_weight=weight, domain_risk=risk
    )

  def server_metrics(algorithm):
    return collections.OrderedDict(
      (name, domains.by_name(values)) for name, values in algorithm.items()
    )

  return client_work.global_weights_work(
    model,
    client_work.Exchange(train, weigh_domains),
    initial_algorithm=collections.OrderedDict(
      domain_weight=rho, domain_risk=np.zeros_like(rho)
    ),
    server_metrics=server_metrics,
    report_scale=domains.examples_per_client,
  )
