"""FedDAR: a shared representation with a head for each domain.

Every example has a domain m. Body phi and heads w_m are global. Round t, client
i of the cohort with L_im examples of domain m (L_i in all):

    (a) heads: for every m, w_im <- SGD(w_m; phi frozen) on its examples of
        domain m, for num_head_epochs
    (b) server: w_m <- combination of the w_im (`domain_heads`): the average by
        L_im, or the second-order aggregation (equation 8)
    (c) body: phi_i <- SGD(phi; the new heads frozen) for num_body_epochs on
              (1 / L_i) sum_j u_m(j) loss_j,  u_m = L / (M L_m)
    (d) server: phi <- sum_i L_i phi_i / sum_i L_i

A round is two exchanges: (a) and (b), then (c) and (d). The weights u_m make
all domains count the same; the L_m come from one federated sum before training
(`domain_histogram`). A domain absent from a round keeps its head. Where clients
weigh alike (`client_weighting='uniform'`, private factories) phi is the plain
mean of the phi_i; heads are combined by examples all the same. With two
exchanges a round does not compile to TFF's `MapReduceForm`; without
`alternating` it does.

Symbols:
  tau_h -> num_head_epochs or num_head_steps
  tau_phi -> num_body_epochs or num_body_steps
  eta -> head_learning_rate, body_learning_rate (one value in the paper)
  k -> projection_dim
  u_m -> reweight_domains

Without `alternating`, body and heads are trained together by the body's phase,
and a round is one exchange. The paper's warm-up is a phase of the experiment:
rounds of FedAvg, from whose model all heads start
(`RunConfig.num_warmup_rounds`).

Deviations from the paper: what is aggregated is how far heads moved, in place
of the heads. Each client's Hessian gets a ridge, relative to the largest
eigenvalue of their sum, so that second order decides where the data say
something, and the average elsewhere (see `domain_heads`); against instability
the paper says only that the representation should be small. With momentum, as
everywhere in this library, by default.

References:
  Zhong, He, Ren, Li, Li: FedDAR: Federated Domain-Aware Representation
  Learning, ICLR 2023, Algorithm 1, equations 6 and 8.
"""

from __future__ import annotations

import dataclasses
from typing import Optional

from tff_pfl import errors
from tff_pfl.algorithms import registry
from tff_pfl.algorithms.parts import domain_heads
from tff_pfl.client import hparams as hparams_lib
from tff_pfl.client import objectives, training_loop
from tff_pfl.models import domain_models, randomness, split_model
from tff_pfl.templates import client_work

AGGREGATIONS = ('weighted_average', 'second_order')


@dataclasses.dataclass(frozen=True)
class FedDarHParams(hparams_lib.HeadAndBodyHParams):
  """Hyperparameters of FedDAR, besides those of the two phases.

  Attributes:
    num_head_epochs: Epochs on the heads in a round; 5 in the paper's
      experiments on images.
    num_body_epochs: Epochs on the body in a round; 5 in the paper's experiments
      on images.
    aggregation: How heads are combined: weighted_average or second_order.
    ridge: What second_order adds to the Hessian's diagonal, as a share of its
      largest eigenvalue, at least 0; 0 is the paper's, for exact sums of well
      conditioned Hessians. It brings heads nearer to the average. With 60
      digits a client and k = 16, 1e-2, 1e-3, 1e-4 and 1e-5 have an accuracy of
      77.6, 76.8, 74.4 and 73.7%, the average 77.3 (docs/results/feddar.md).
    reweight_domains: Whether all domains count the same in the body's loss.
    alternating: Whether heads and body are trained in turn.
    projection_dim: Outputs of a linear layer between body and heads; None for
      no such layer.
  """

  num_head_epochs: int = 5
  num_body_epochs: int = 5
  batch_size: Optional[int] = 32
  aggregation: str = 'second_order'
  ridge: float = 1e-3
  reweight_domains: bool = True
  alternating: bool = True
  projection_dim: Optional[int] = None

  def __post_init__(self):
    errors.expect_one_of('aggregation', self.aggregation, AGGREGATIONS)
    errors.expect_non_negative('ridge', self.ridge)
    if self.projection_dim is not None:
      errors.expect_int('projection_dim', self.projection_dim, 1)
    super().__post_init__()


class _Steps:
  """The steps (a) to (d) of a round.

  Attributes:
    model: With one head.
    multi_head: The process' model, with a head for each domain.
    combination: How heads are combined.
  """

  def __init__(self, model: split_model.SplitModel, hparams: FedDarHParams):
    self.model = model
    self.multi_head = domain_models.multi_head(model)
    self.combination = domain_heads.WeightedAverage(model)
    if hparams.aggregation == 'second_order':
      self.combination = domain_heads.SecondOrder(model, hparams.ridge)
    self.head_names = self.multi_head.weight_names(self.multi_head.head_layers)
    self._body_names = self.multi_head.weight_names(self.multi_head.body_layers)
    self._hparams = hparams
    self._domain_weights = (
      model.domains.loss_weights if hparams.reweight_domains else None
    )

  def train_heads(self, broadcast, unused_local, examples, seed):
    """Step (a)."""
    weights = broadcast.global_weights
    _, heads = self._divided(weights)
    features = training_loop.frozen_features(self.multi_head, weights, examples)
    trained, _ = domain_heads.train(
      self.model, heads, features, self._hparams.head_phase(), seed
    )
    return client_work.ClientResult(
      report=self.combination.report(heads, trained, features)
    )

  def combine_heads(self, unused_state, unused_update, report, cohort):
    """Step (b)."""
    return self.combination.update(report, cohort)

  def train_body(self, broadcast, local, examples, seed, unused_carried):
    """Step (c)."""
    body, heads = self._divided(broadcast.global_weights)
    loss = objectives.body_loss(self.multi_head, heads, self._domain_weights)
    trained, metrics = self._descend(loss, body, examples, seed)
    return client_work.ClientResult(
      split_model.difference(body, trained), local, metrics
    )

  def train_jointly(self, broadcast, local, examples, seed):
    """Steps (a) and (c) at once."""
    weights = broadcast.global_weights
    loss = objectives.joint_loss(self.multi_head, self._domain_weights)
    trained, metrics = self._descend(loss, weights, examples, seed)
    body, heads = self._divided(weights)
    new_body, new_heads = self._divided(trained)
    features = training_loop.frozen_features(self.multi_head, trained, examples)
    return client_work.ClientResult(
      split_model.difference(body, new_body),
      local,
      metrics,
      report=self.combination.report(heads, new_heads, features),
    )

  def combine_all(self, unused_state, update, report, cohort):
    """Steps (b) and (d)."""
    of_heads, algorithm = self.combination.update(report, cohort)
    return {**update, **of_heads}, algorithm

  def _divided(self, weights):
    """The weights of the body and those of the heads."""
    return (
      split_model.select(weights, self._body_names),
      split_model.select(weights, self.head_names),
    )

  def _descend(self, objective, weights, examples, seed):
    phase = self._hparams.body_phase()
    return training_loop.train(
      objective, weights, examples, phase, seed, model=self.multi_head
    )


@registry.method(
  FedDarHParams,
  'global body, a global head for each domain, combined by curvature',
  needs_domains=True,
  # It has options of its own for both.
  refuses=('domain_model', 'reweight_domains'),
)
def build_fed_dar(
  model: split_model.SplitModel, hparams: FedDarHParams
) -> client_work.ClientWork:
  """FedDAR; the process' model has a head for each domain.

  The model's body must have weights, and its head must be linear for
  `second_order` and for a projection.
  """
  split_model.check_has_body(model, 'fed_dar')
  if hparams.projection_dim is not None:
    model = domain_models.projected(model, hparams.projection_dim)
  steps = _Steps(model, hparams)
  if hparams.alternating:
    exchanges = (
      client_work.Exchange(
        steps.train_heads,
        steps.combine_heads,
        weighting='num_examples',
        seed_purpose=randomness.FIRST_EXCHANGE,
      ),
      client_work.Exchange(steps.train_body, receives=steps.head_names),
    )
  else:
    exchanges = (client_work.Exchange(steps.train_jointly, steps.combine_all),)
  return client_work.global_weights_work(
    steps.multi_head,
    *exchanges,
    # The server's optimizer is the body's: heads are solved for, or averaged.
    statistics=steps.multi_head.statistics | set(steps.head_names),
    initial_algorithm=steps.combination.initial_algorithm,
    server_metrics=steps.combination.metrics,
    report_scale=model.domains.examples_per_client,
  )
