"""FedProto: clients have their own models and share class means of features.

    client:  for E epochs of mini-batches (all weights local):
               w_i <- SGD on f_i(w) + lambda mean_j d(z_j, C_{y_j})
             C_i^c = mean of its features z of class c, for each c
    server:  C^c = sum_i n_i^c C_i^c / sum_i n_i^c over the clients with class c

z are the body's outputs, the head's inputs. d is the mean squared difference
over feature values. Classes without a prototype add nothing to the loss. A
class that no client of a cohort has keeps its prototype. If lambda = 0, this is
local training. A client that never took part trains as in a round before it is
scored.

Symbols: lambda -> pull_strength, C -> prototypes (`algorithm['means']`), E ->
num_epochs, eta -> learning_rate.

Deviations from the paper: its penalty is the distance of the client's class
means to the prototypes, summed over classes (eq. 8). Here, as in the authors'
code, the penalty is the mean over a batch of each example's squared distance.
The paper's mean (eq. 6) has a further factor 1 / (number of clients with the
class), which would make prototypes vanish. The authors' code weights clients
equally (here with `client_weighting='uniform'`, where a class counts by its
share of a client's examples). Prototypes come from the trained model in
inference mode (the code: from the last epoch's batches). The paper names the
nearest prototype as a way to predict. Here, the model's outputs predict, as in
the code's "w/o protos". All clients have the same network.

References:
  Tan, Long, Liu, Zhou, Lu, Jiang, Zhang: FedProto: Federated Prototype Learning
  across Heterogeneous Clients, AAAI 2022, Algorithm 1. Code:
  github.com/yuetan031/FedProto.
"""

from tff_pfl import fields
from tff_pfl.core import client_work, objectives
from tff_pfl.core import hparams as hparams_lib
from tff_pfl.methods import registry
from tff_pfl.methods.shared import class_means
from tff_pfl.models import weight_partition


@fields.dataclass
class FedProtoHParams(hparams_lib.LocalTrainingHParams):
  """Hyperparameters of FedProto: local training and the pull.

  Attributes:
    pull_strength: Strength of the pull of features toward their class's
      prototype (lambda), at least 0. The authors use 1 for MNIST and FEMNIST,
      0.1 for CIFAR-10.
  """

  pull_strength: fields.NonNegative = 1.0


@registry.method(
  'local models whose features are pulled toward common class means',
  FedProtoHParams,
  needs_classes=True,
  unsupported=('domain_model',),
)
def fed_proto(model, hparams):
  """FedProto for classifiers whose body has weights."""
  prototypes = class_means.ClassMeans(model, 'fed_proto')

  def fit(client, num_epochs=None):
    penalty = prototypes.pull(client.algorithm, hparams.pull_strength)
    loss = objectives.joint_loss(model, penalty=penalty)
    return client.sgd(loss, client.local, hparams.phase(num_epochs))

  def train(client):
    trained = fit(client)
    report = prototypes.report(client.features(trained.weights))
    return client.result(trained, local=trained.weights, report=report)

  def average_prototypes(state, update, report, cohort):
    return update, prototypes.update(state.algorithm, report, cohort)

  return client_work.partitioned_weights_work(
    model,
    weight_partition.WeightPartition.by_layer(model, model.layers),
    client_work.Exchange(train, average_prototypes),
    fit_new_client=lambda *arguments: fit(*arguments).weights,
    initial_algorithm=prototypes.initial_algorithm,
  )
