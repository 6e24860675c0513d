"""Mean-regularized multi-task learning (Fed-MTL).

    min over w_1, ..., w_n of  sum_i f_i(w_i) + lambda |w_i - mean(w)|^2

    client:  w_i <- SGD on f_i(w) + lambda |w - mean_t|^2  for E epochs
    server:  mean_{t+1} = sum_i n_i w_i / sum_i n_i

This is the mean-regularized case of multi-task learning, with the relationship
of the tasks fixed to (I - 11^T / n)^2. A client is scored with its w_i.

Symbols: lambda -> coupling_strength, E -> num_epochs, eta -> learning_rate.

Deviations from the paper: MOCHA solves the dual of convex problems and can
learn the relationship of the tasks. For networks, SGD trains the primal, as in
all comparisons. The mean is over the cohort's models, weighted by their numbers
of examples (`client_weighting='uniform'` is the plain mean). It is a mean only
with the default server optimizer. A model starts from the initial weights, or
from the mean if a client is scored but never took part.

References:
  Smith, Chiang, Sanjabi, Talwalkar: Federated Multi-Task Learning, NeurIPS
  2017, equation 1 and appendix B.1.
"""

from tff_pfl import fields
from tff_pfl.core import hparams as hparams_lib
from tff_pfl.core import objectives
from tff_pfl.methods import registry
from tff_pfl.methods.shared import personal_copies


@fields.dataclass
class FedMtlHParams(hparams_lib.LocalTrainingHParams):
  """Hyperparameters of Fed-MTL: local training and the coupling.

  Attributes:
    coupling_strength: Strength of the pull of the models toward their mean
      (lambda), at least 0.
  """

  coupling_strength: fields.NonNegative = 0.1


@registry.method('personal models, held near their mean', FedMtlHParams)
def fed_mtl(model, hparams):
  """Fed-MTL."""

  def train_personal(client, personal, num_epochs=None):
    objective = objectives.proximal(
      objectives.joint_loss(model),
      client.received,
      # The gradient of the squared distance has a factor of two.
      2 * hparams.coupling_strength,
    )
    return client.sgd(objective, personal, hparams.phase(num_epochs))

  def train(client):
    trained = train_personal(client, client.local)
    return client.result(trained, local=trained.weights)

  return personal_copies.personal_copies_work(model, train, train_personal)
