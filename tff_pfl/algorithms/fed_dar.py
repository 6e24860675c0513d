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

In the rounds of warm-up, FedAvg (by the body's phase, on the same weighted
loss) trains the body and one head for all domains; from there the heads part
their ways. Without `alternating`, body and heads are trained together
by the body's phase, and a round is one exchange.

Deviations from the paper: what is aggregated is how far heads moved, times
their Hessian, in place of the heads times their Hessian (see `domain_heads`);
a ridge relative to the Hessian's largest eigenvalue and a pseudo-inverse make
the solution safe, of which the paper says only that the representation should
be small. With momentum, as everywhere in this library, by default.

References:
  Zhong, He, Ren, Li, Li: FedDAR: Federated Domain-Aware Representation
  Learning, ICLR 2023, Algorithm 1, equations 6 and 8.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Optional

from tff_pfl import errors
from tff_pfl.algorithms.parts import domain_heads
from tff_pfl.client import hparams as hparams_lib
from tff_pfl.client import objectives, training_loop
from tff_pfl.models import domain_models, split_model
from tff_pfl.templates import client_work, federated_round, personalized_process

describe = hparams_lib.describe


@dataclasses.dataclass(frozen=True)
class FedDarHParams(hparams_lib.HeadAndBodyHParams):
  """Hyperparameters of FedDAR, besides those of the two phases.

  Attributes:
    num_head_epochs: See `HeadAndBodyHParams`; 5 and 5 in the paper's
      experiments on images.
    num_body_epochs: Likewise.
    batch_size: Likewise; 32 on digits.
    aggregation: Of the heads: 'second_order' or 'weighted_average'.
    ridge: Of 'second_order': what is added to the Hessian's diagonal, as a
      share of its largest eigenvalue, at least 0; 0 is for exact sums of well
      conditioned Hessians.
    reweight_domains: Whether all domains count the same in the body's loss.
    alternating: Whether heads and body are trained in turn.
    projection_dim: If given, a linear layer brings the body's features down to
      so many numbers.
    num_warmup_rounds: First rounds, of FedAvg with one head, at least 0.
  """

  num_head_epochs: int = describe('epochs on the heads in a round', default=5)
  num_body_epochs: int = describe('epochs on the body in a round', default=5)
  batch_size: Optional[int] = describe(
    'examples per batch; none for the full batch', default=32
  )
  aggregation: str = describe(
    f'of the heads: {" or ".join(domain_heads.AGGREGATIONS)}',
    default='second_order',
  )
  ridge: float = describe(
    "of second_order: added to the Hessian's diagonal, as a share of its "
    'largest eigenvalue',
    default=1e-3,
  )
  reweight_domains: bool = describe(
    "whether all domains count the same in the body's loss", default=True
  )
  alternating: bool = describe(
    'whether heads and body are trained in turn', default=True
  )
  projection_dim: Optional[int] = describe(
    'features that a linear layer brings those of the body down to',
    default=None,
  )
  num_warmup_rounds: int = describe(
    'first rounds, of FedAvg with one head', default=10
  )

  def __post_init__(self):
    domain_heads.check_aggregation(self.aggregation, self.ridge)
    errors.expect_int('num_warmup_rounds', self.num_warmup_rounds, 0)
    if self.projection_dim is not None:
      errors.expect_int('projection_dim', self.projection_dim, 1)
    super().__post_init__()


def build_fed_dar(
  model: split_model.SplitModel,
  hparams: FedDarHParams = FedDarHParams(),
  **options: Any,
) -> personalized_process.PersonalizedProcess:
  """Builds FedDAR; the process' model has a head for each domain.

  Args:
    model: The model, with domains; its body must have weights, and its head
      must be linear for `second_order` and for a projection.
    hparams: Of training and aggregation.
    **options: See `federated_round.build_personalized_process`.
  """
  domain_models.expect_domains(model, 'fed_dar')
  split_model.check_has_body(model, 'fed_dar')
  if hparams.projection_dim is not None:
    model = domain_models.projected(model, hparams.projection_dim)
  multi_head = domain_models.multi_head(model)
  body_names = multi_head.weight_names(multi_head.body_layers)
  head_names = multi_head.weight_names(multi_head.head_layers)
  domain_weights = (
    model.domains.loss_weights if hparams.reweight_domains else None
  )
  warmup = domain_heads.Warmup(
    model, hparams.body_phase(), hparams.num_warmup_rounds, domain_weights
  )
  combination = domain_heads.make_aggregation(
    hparams.aggregation,
    model,
    ridge=hparams.ridge,
    aggregator=options.get('aggregator'),
  )

  def divided(weights):
    return (
      split_model.select(weights, body_names),
      split_model.select(weights, head_names),
    )

  def features_of(weights, examples):
    return training_loop.frozen_features(multi_head, weights, examples)

  def train_heads(broadcast, unused_local, examples, seed):
    """Step (a)."""
    weights = broadcast.global_weights
    _, heads = divided(weights)

    def usual():
      features = features_of(weights, examples)
      trained = domain_heads.train(
        model, heads, features, hparams.head_phase(), seed
      ).weights
      return combination.report(heads, trained, features)

    return client_work.Prepared(
      warmup.unless(broadcast, usual, lambda: combination.nothing(heads))
    )

  def combine_heads(broadcast, report, num_clients):
    """Step (b)."""
    _, heads = divided(broadcast.global_weights)

    def usual():
      update, algorithm = combination.update(report, num_clients)
      return split_model.difference(heads, update), algorithm

    return warmup.unless(broadcast, usual, lambda: (heads, broadcast.algorithm))

  def descend(objective, weights, examples, seed):
    return training_loop.train(
      objective, weights, examples, hparams.body_phase(), seed, model=multi_head
    )

  def train_body(weights, examples, seed):
    """Step (c): the update of the body, no report, and metrics."""
    body, heads = divided(weights)
    loss = objectives.body_loss(multi_head, heads, domain_weights)
    trained, metrics = descend(loss, body, examples, seed)
    return split_model.difference(body, trained), (), metrics

  def train_jointly(weights, examples, seed):
    """Steps (a) and (c) at once: the heads are reported."""
    loss = objectives.joint_loss(multi_head, domain_weights)
    trained, metrics = descend(loss, weights, examples, seed)
    (body, heads), (new_body, new_heads) = divided(weights), divided(trained)
    features = features_of(trained, examples)
    report = combination.report(heads, new_heads, features)
    return split_model.difference(body, new_body), report, metrics

  def train(broadcast, local, examples, seed, unused_carried=()):
    weights = broadcast.global_weights

    def usual():
      step = train_body if hparams.alternating else train_jointly
      update, report, metrics = step(weights, examples, seed)
      return warmup.usual_update(update, weights), report, metrics

    def as_one_model():
      update, metrics = warmup.train(weights, examples, seed)
      _, heads = divided(weights)
      report = () if hparams.alternating else combination.nothing(heads)
      return update, report, metrics

    update, report, metrics = warmup.unless(broadcast, usual, as_one_model)
    return client_work.ClientResult(update, local, metrics, report)

  def server_update(state, update, report, num_clients):
    """Step (d), and (b) where heads and body are trained at once."""
    weights = state.global_weights

    def usual():
      of_body = warmup.usual_update(
        split_model.select(update, body_names), weights
      )
      if hparams.alternating:
        return of_body, state.algorithm
      of_heads, algorithm = combination.update(report, num_clients)
      return split_model.select({**of_body, **of_heads}, weights), algorithm

    return warmup.unless(
      state, usual, lambda: (warmup.server_update(update), state.algorithm)
    )

  work = client_work.global_weights_work(
    multi_head,
    train,
    # The server's optimizer is the body's: heads are solved for, or averaged.
    statistics=multi_head.statistics | set(head_names),
    initial_algorithm=combination.initial_algorithm,
    server_update=server_update,
    server_metrics=combination.metrics,
    preparation=(
      client_work.Preparation(
        train_heads, combine_heads, weighting='num_examples'
      )
      if hparams.alternating
      else None
    ),
    report_scale=model.domains.examples_per_client,
  )
  return federated_round.build_personalized_process(
    'fed_dar', multi_head, work, hparams=hparams, **options
  )
