"""FedAlt and FedSim: any part of the model is personal, the rest is averaged.

Round t, client i of the cohort, with u the global weights and v_i the client's
own:

    FedAlt (`updates='alternating'`)
      1. v_i <- SGD(v_i; u_t frozen)      for personal_num_epochs
      2. u_i <- SGD(u_t; v_i frozen)      for num_epochs
    FedSim (`updates='simultaneous'`)
      (u_i, v_i) <- SGD on both together, from (u_t, v_i)
    server:  u_{t+1} = sum_i n_i u_i / sum_i n_i

The personal part is near the output, near the input (if clients' inputs differ,
as accents do), or any layers or hidden units that you name, such as adapters in
your Keras model. A client that never took part trains its own weights, from the
initial ones, with the global weights frozen.

FedAlt with a personal head is FedRep. FedSim is FedPer with a personal head,
LG-FedAvg with personal lower layers, and FedSplit with personal hidden units.

Symbols: tau_v -> personal_num_epochs, tau_u -> num_epochs, gamma_v ->
personal_learning_rate, gamma_u -> learning_rate.

Deviations from the paper: its server takes the plain mean
(`client_weighting='uniform'`) and starts from a model that FedAvg trained
(`num_warmup_rounds`). FedSim has one learning rate for both parts. A frozen
part runs as in training (dropout, batch statistics), as in the authors' code,
except for a body whose head trains, which runs in inference mode.

References:
  Pillutla, Malik, Mohamed, Rabbat, Sanjabi, Xiao: Federated Learning with
  Partial Model Personalization, ICML 2022, Algorithms 1 to 3.
"""

import re
from typing import Literal

from tff_pfl import errors, fields
from tff_pfl.core import client_work
from tff_pfl.core import hparams as hparams_lib
from tff_pfl.methods import registry
from tff_pfl.methods.shared import joint_training
from tff_pfl.models import split_model, units, weight_partition

_AN_END = re.compile(r'(input|output)(?::(\d+))?')


@fields.dataclass
class FedAltHParams(hparams_lib.PersonalTrainingHParams):
  """Hyperparameters of FedAlt and FedSim.

  Attributes:
    updates: Order of updates: alternating (FedAlt) or simultaneous (FedSim).
    personal: The personal part: output (the head), output:2 (the last two
      layers with weights), input (the first), input:2, or names of layers and
      of their units, such as adapter_1,dense_2:0-49 (see `units.parse`). Names
      are those of the model's `layers`, where `from_keras` has renumbered names
      like Keras's own, such as dense_2.
  """

  updates: Literal['alternating', 'simultaneous'] = 'alternating'
  personal: str = 'output'

  def __post_init__(self):
    if self.updates == 'simultaneous':
      for name in ('personal_num_epochs', 'personal_learning_rate'):
        value = getattr(self, name)
        errors.expect(
          value is None, name, 'left out if updates are simultaneous', value
        )
    super().__post_init__()


def personal_partition(
  model: split_model.SplitModel, personal: str
) -> weight_partition.WeightPartition:
  """The partition with a given personal part.

  A normalization that directly follows a personal layer is also personal.

  Args:
    personal: See `FedAltHParams`.
  """
  layers, end = tuple(model.layers), _AN_END.fullmatch(personal)
  names = [
    layer
    for name in map(str.strip, personal.split(','))
    for layer in model.layers_within(name) or [name]
  ]
  if end:
    number = int(end[2]) if end[2] else None
    names = model.last_layers(number, 'personal')
    if end[1] == 'input':
      names = layers[: number or 1]
  whole = [n for n in names if n in layers and n not in model.units]
  partition = weight_partition.WeightPartition.by_unit(
    model,
    units.parse(
      ','.join(n for n in names if n not in whole),
      model.units,
      layers,
      'personal',
    ),
    whole,
  )
  errors.expect(
    partition.local_names and partition.global_names,
    'personal',
    f'a part of the model, whose layers are {", ".join(layers)}',
    personal,
  )
  return partition


@registry.method(
  'any part of the model local, trained before or together with the rest',
  FedAltHParams,
  unsupported=('reweight_domains',),
)
def fed_alt(model, hparams):
  """FedAlt or FedSim."""
  partition = personal_partition(model, hparams.personal)
  if hparams.updates == 'simultaneous':
    return joint_training.joint_training_work(model, hparams, partition)

  def fit_local(client, num_epochs=None, stream=None):
    phase = hparams.personal_phase(num_epochs)
    return joint_training.fit_local(
      client, model, partition, phase, stream=stream
    )

  def train(client):
    local = fit_local(client, stream=0)
    trained = client.fit_part(
      client.received,
      lambda part: partition.merge(part, local),
      lambda weights: partition.split(weights)[0],
      hparams.phase(),
      stream=1,
    )
    return client.result(trained, local=local)

  exchange = client_work.Exchange(train)
  return client_work.partitioned_weights_work(
    model,
    partition,
    exchange,
    fit_new_client=fit_local,
    exchanges_when_forgetting=[exchange],
  )
