"""Ditto: a global model by FedAvg, and personal models held near it.

    client:  w_i <- SGD on f_i from w_t                    for E epochs
             v_i <- SGD on f_i(v) + lambda / 2 |v - w_t|^2 for E_v epochs
    server:  w_{t+1} = sum_i n_i w_i / sum_i n_i

A client is scored with its v_i. If lambda = 0, the personal models are trained
locally only. They approach the global model as lambda grows.

Symbols: lambda -> proximal_strength, eta -> learning_rate and
personal_learning_rate, E -> num_epochs, E_v (s in the paper) ->
personal_num_epochs.

Deviations from the paper: both models go through the examples in the same
order. The server weights clients by their numbers of examples (the paper:
equally, `client_weighting='uniform'`). A personal model starts from the initial
weights, or from the global model if a client is scored but never took part.

References:
  Li, Hu, Beirami, Smith: Ditto: Fair and Robust Federated Learning Through
  Personalization, ICML 2021, Algorithm 1 (with FedAvg as the solver of w,
  Algorithm 2).
"""

from tff_pfl import fields
from tff_pfl.core import hparams as hparams_lib
from tff_pfl.core import objectives
from tff_pfl.methods import registry
from tff_pfl.methods.shared import personal_copies


@fields.dataclass
class DittoHParams(hparams_lib.PersonalTrainingHParams):
  """Hyperparameters of Ditto: training of both models and the pull.

  Attributes:
    proximal_strength: Strength of the pull of a personal model toward the
      global one (lambda), at least 0.
  """

  proximal_strength: fields.NonNegative = 0.75


@registry.method('a personal model held near the global one', DittoHParams)
def ditto(model, hparams):
  """Ditto."""
  loss = objectives.joint_loss(model)

  def train_personal(client, personal, num_epochs=None):
    pulled = objectives.proximal(
      loss, client.received, hparams.proximal_strength
    )
    return client.sgd(pulled, personal, hparams.personal_phase(num_epochs))

  def train(client):
    trained = client.sgd(loss, client.received, hparams.phase())
    personal = train_personal(client, client.local)
    result = client.result(trained, local=personal.weights)
    return result._replace(metrics=personal.metrics)

  return personal_copies.personal_copies_work(model, train, train_personal)
