"""FedRep: a shared representation with personal heads.

Round t, client i of the cohort, with phi the global body and h_i the client's
own head:

    1. head: h_i <- SGD(h_i; phi_t frozen)       for num_head_epochs
    2. body: phi_i <- SGD(phi_t; h_i frozen)     for num_body_epochs
    server:  phi_{t+1} = sum_i n_i phi_i / sum_i n_i

The head starts from the client's last one (for a first-time client, from the
initial head) and is never sent. Before it is scored, a client that never took
part fits its head, from the initial one, on the frozen body.

While the body is frozen, its outputs are constants. They are computed once a
round for all head epochs, unless images are augmented.

Symbols:
  tau_h -> num_head_epochs or num_head_steps
  tau_phi -> num_body_epochs or num_body_steps
  alpha -> head_learning_rate, body_learning_rate (one value in the paper)
  r -> the cohort's share of the clients (an option of the run)

Deviations from the paper: its server takes the plain mean
(`client_weighting='uniform'`), while the default here weights clients by their
numbers of examples. The frozen part runs in inference mode, so the dropout of a
frozen body is off (in the authors' code it is on).

References:
  Collins, Hassani, Mokhtari, Shakkottai: Exploiting Shared Representations for
  Personalized Federated Learning, ICML 2021, Algorithm 1.
"""

from tff_pfl import fields
from tff_pfl.core import client_work, objectives
from tff_pfl.core import hparams as hparams_lib
from tff_pfl.methods import registry
from tff_pfl.models import split_model, weight_partition


@fields.dataclass
class FedRepHParams(hparams_lib.HeadAndBodyHParams):
  """Hyperparameters of FedRep, by default the paper's (CIFAR-10, 2 classes).

  Step 1 of a round is the head's phase, step 2 the body's.
  """


@registry.method(
  'global body, local head, trained in turn: head first',
  FedRepHParams,
  unsupported=('reweight_domains',),
)
def fed_rep(model, hparams):
  """FedRep for models whose body has weights. The head layers are local."""
  split_model.check_has_body(model, 'fed_rep')

  def fit_head(client, num_epochs=None, stream=None):
    phase = hparams.head_phase(num_epochs)
    return client.fit_head(client.local, phase, stream=stream).weights

  def train(client):
    head = fit_head(client, stream=0)
    loss = objectives.body_loss(model, head)
    body = client.sgd(loss, client.received, hparams.body_phase(), stream=1)
    return client.result(body, local=head)

  exchange = client_work.Exchange(train)
  return client_work.partitioned_weights_work(
    model,
    weight_partition.WeightPartition.by_layer(model, model.head_layers),
    exchange,
    fit_new_client=fit_head,
    exchanges_when_forgetting=[exchange],
  )
