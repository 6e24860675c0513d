"""FedDAR: a shared representation with a head for each domain.

Every example has a domain m. The body phi and the heads w_m are global. Round
t, client i of the cohort with L_im examples of domain m (L_i in all):

    (a) heads: for every m, w_im <- SGD(w_m; phi frozen) on its examples of
        domain m, for num_head_epochs
    (b) server: w_m <- combination of the w_im: the average by L_im
        (`domain_heads`), or by curvature (`second_order`, equation 8)
    (c) body: phi_i <- SGD(phi; the new heads frozen) for num_body_epochs on
              (1 / L_i) sum_j u_m(j) loss_j,  u_m = L / (M L_m)
    (d) server: phi <- sum_i L_i phi_i / sum_i L_i

A round has two exchanges: (a) and (b), then (c) and (d). The weights u_m make
all domains count the same. The L_m are known before training (`Domains`). A
domain that is absent from a round keeps its head. Regularizers of the model's
head act on each domain's head. If clients have equal weights
(`client_weighting='uniform'`, private factories), phi is the plain mean of the
phi_i, but heads are still combined by numbers of examples. Only a round without
`alternating` compiles to TFF's `MapReduceForm`.

Symbols:
  tau_h -> num_head_epochs or num_head_steps
  tau_phi -> num_body_epochs or num_body_steps
  eta -> head_learning_rate, body_learning_rate (one value in the paper)
  k -> projection_dim
  u_m -> reweight_domains

Without `alternating`, the body's phase trains body and heads together, and a
round is one exchange. If `heads='domain_as_input'`, all domains have one head,
which takes the one-hot domain in addition to the features (table 2). This head
is trained on the re-weighted loss and averaged by the clients' weights, and the
server's optimizer does not change it. The paper's warm-up is a phase of the
experiment: rounds of FedAvg, from whose model all heads start
(`num_warmup_rounds` of `Settings`).

Deviations from the paper: the changes of heads are aggregated, not the heads.
Each client's Hessian gets a ridge, relative to the largest eigenvalue of the
Hessians' sum. So second order decides where the data say something, and the
average elsewhere (see `second_order`). Against instability, the paper only says
that the representation should be small.

References:
  Zhong, He, Ren, Li, Li: FedDAR: Federated Domain-Aware Representation
  Learning, ICLR 2023, Algorithm 1, equations 6 and 8.
"""

from typing import Literal, Optional

from tff_pfl import errors, fields
from tff_pfl.core import client as client_lib
from tff_pfl.core import client_work, objectives, training_loop
from tff_pfl.core import hparams as hparams_lib
from tff_pfl.methods import registry
from tff_pfl.methods.shared import domain_heads, second_order
from tff_pfl.models import (
  domain_models,
  randomness,
  split_model,
  weight_partition,
)

# Models by their kind of heads.
HEADS = {
  'by_domain': domain_models.multi_head,
  'domain_as_input': domain_models.domain_as_input,
}


@fields.dataclass
class FedDarHParams(hparams_lib.HeadAndBodyHParams):
  """Hyperparameters of FedDAR: the two phases, and the heads.

  Attributes:
    num_head_epochs: Epochs on the heads in a round (5 in the paper's
      experiments on images).
    num_body_epochs: Epochs on the body in a round (5 in the paper's experiments
      on images).
    heads: Kind of heads: by_domain, or domain_as_input for one head for all
      domains (only with weighted_average and alternating).
    aggregation: Combination of heads: weighted_average or second_order.
    ridge: Share of a Hessian's largest eigenvalue that second_order adds to its
      diagonal, at least 0. The paper has 0, which suits exact sums of
      well-conditioned Hessians. A ridge moves heads toward the average, at a
      cost given in docs/results/feddar.md.
    reweight_domains: True to make all domains count the same in the body's
      loss, and in the loss of a single head.
    alternating: True to train heads and body in turn, False to train them
      together.
    projection_dim: Outputs of a linear layer between body and heads. None adds
      no such layer.
  """

  num_head_epochs: fields.Epochs = 5
  num_body_epochs: fields.Epochs = 5
  batch_size: Optional[fields.CountOrZero] = 32
  heads: fields.one_of(HEADS) = 'by_domain'
  aggregation: Literal['weighted_average', 'second_order'] = 'second_order'
  ridge: fields.NonNegative = 1e-3
  reweight_domains: bool = True
  alternating: bool = True
  projection_dim: Optional[fields.Size] = None

  def __post_init__(self):
    super().__post_init__()
    errors.expect(
      self.heads == 'by_domain'
      or (self.alternating and self.aggregation == 'weighted_average'),
      'heads',
      'by_domain, unless they are trained in turn with the body and averaged',
      self.heads,
    )


@registry.method(
  'global body, a global head for each domain, combined by curvature',
  FedDarHParams,
  needs_domains=True,
  # The method has its own options for both.
  unsupported=('domain_model', 'reweight_domains'),
)
def fed_dar(model, hparams):
  """FedDAR. The process' model has a head for each domain, or one for all.

  The body must have weights. `second_order`, a projection and `domain_as_input`
  need a linear head.
  """
  split_model.check_has_body(model, 'fed_dar')
  if hparams.projection_dim is not None:
    model = domain_models.projected(model, hparams.projection_dim)
  domain_model = HEADS[hparams.heads](model)
  combination = domain_heads.WeightedAverage(model)
  if hparams.aggregation == 'second_order':
    combination = second_order.SecondOrder(model, hparams.ridge)
  domain_weights = model.domains.loss_weights
  if not hparams.reweight_domains:
    domain_weights = None
  partition = weight_partition.WeightPartition.by_layer(
    domain_model, domain_model.head_layers
  )

  def train_heads(client):
    """Step (a)."""
    _, heads = partition.split(client.received)
    features = client.features()
    examples, inputs = training_loop.head_inputs(
      domain_model, client.received, client.examples, features
    )
    trained, _ = domain_heads.train(
      client, model, heads, examples, hparams.head_phase(), inputs
    )
    report = combination.report(heads, trained, features)
    return client_lib.ClientResult(report=report)

  def train_one_head(client):
    """Step (a) with one head for all domains."""
    _, head = partition.split(client.received)
    trained = client.fit_head(
      head, hparams.head_phase(), domain_weights=domain_weights
    )
    return client.result(trained, initial=head)

  def combine_heads(unused_state, update, report, cohort):
    """Step (b), and also (d) if body and heads are trained together."""
    head_update, algorithm = combination.update(report, cohort)
    return {**update, **head_update}, algorithm

  def train_body(client):
    """Step (c)."""
    body, heads = partition.split(client.received)
    loss = objectives.body_loss(domain_model, heads, domain_weights)
    trained = client.sgd(loss, body, hparams.body_phase())
    return client.result(trained, initial=body)

  def train_jointly(client):
    """Steps (a) and (c) at once."""
    loss = objectives.joint_loss(domain_model, domain_weights)
    trained = client.sgd(loss, client.received, hparams.body_phase())
    body, heads = partition.split(client.received)
    _, new_heads = partition.split(trained.weights)
    features = client.features(trained.weights)
    report = combination.report(heads, new_heads, features)
    return client.result(trained, initial=body, report=report)

  exchanges = [client_work.Exchange(train_jointly, combine_heads)]
  if hparams.alternating:
    first = randomness.FIRST_EXCHANGE
    if hparams.heads == 'by_domain':
      on_heads = client_work.Exchange(
        train_heads, combine_heads, 'num_examples', first
      )
    else:
      on_heads = client_work.Exchange(train_one_head, seed_purpose=first)
    on_body = client_work.Exchange(train_body, receives=partition.local_names)
    exchanges = [on_heads, on_body]
  return client_work.global_weights_work(
    domain_model,
    *exchanges,
    # The server's optimizer is for the body: heads are solved for or averaged.
    statistics=domain_model.statistics | set(partition.local_names),
    initial_algorithm=combination.initial_algorithm,
    server_metrics=combination.metrics,
    report_scale=model.domains.examples_per_client,
  )
