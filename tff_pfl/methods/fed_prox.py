"""FedProx: FedAvg whose clients are held near the global model.

    client:  w <- w_t;  for E epochs of mini-batches:
               w <- w - learning_rate * (gradient(w) + mu (w - w_t))
    server:  w_{t+1} = sum_i n_i w_i / sum_i n_i

The client's loss is f_i(w) + mu / 2 |w - w_t|^2. If mu = 0, this is FedAvg.

Symbols: mu -> proximal_strength, E -> num_epochs, eta -> learning_rate.

Deviations from the paper: its server samples clients by their numbers of
examples and takes the plain mean. Here, they are sampled uniformly and weighted
by their numbers of examples. The local problem is solved by a fixed number of
epochs (its inexactness gamma is not set).

References:
  Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith: Federated Optimization in
  Heterogeneous Networks, MLSys 2020, Algorithm 2.
"""

from tff_pfl import fields
from tff_pfl.core import hparams as hparams_lib
from tff_pfl.methods import registry
from tff_pfl.methods.shared import joint_training


@fields.dataclass
class FedProxHParams(hparams_lib.LocalTrainingHParams):
  """Hyperparameters of FedProx: local training and the pull.

  Attributes:
    proximal_strength: Strength of the pull toward the global model (mu), at
      least 0.
  """

  proximal_strength: fields.NonNegative = 0.1


@registry.method(
  'FedAvg with clients held near the global model', FedProxHParams
)
def fed_prox(model, hparams):
  """FedProx."""
  return joint_training.joint_training_work(
    model, hparams, proximal_strength=hparams.proximal_strength
  )
