"""Methods that differ only in their local layers and their objective.

A client trains all of its weights, global and local, together. The global ones
are averaged, the local ones stay. FedAvg has no local weights. In FedPer the
head is local, and in local training all weights are. A client that never took
part trains its local weights, from the initial ones, with the global weights
frozen.
"""

from typing import Any, Optional

from tff_pfl.core import client as client_lib
from tff_pfl.core import client_work, objectives, phases
from tff_pfl.core import hparams as hparams_lib
from tff_pfl.models import split_model, weight_partition


def joint_training_work(
  model: split_model.SplitModel,
  hparams: hparams_lib.LocalTrainingHParams,
  partition: Optional[weight_partition.WeightPartition] = None,
  objective: Optional[objectives.Objective] = None,
  proximal_strength: float = 0.0,
  **others: Any,
) -> client_work.ClientWork:
  """Makes a method from the partition of its weights and its objective.

  Args:
    partition: Division into global and local weights. None makes all global.
    objective: A function of all weights and as many batches as `hparams.phase`
      has for a step. None uses the batch's loss.
    proximal_strength: Strength of the pull of the global weights toward the
      broadcast ones, at least 0 (half of it times the squared distance).
    **others: Further fields of `ClientWork`.
  """
  partition = partition or weight_partition.WeightPartition.by_layer(model, ())
  objective = objective or objectives.joint_loss(model)

  def train(client):
    pulled = objective
    if proximal_strength:
      pulled = objectives.proximal(
        objective, client.received, proximal_strength
      )
    weights = partition.merge(client.received, client.local)
    trained = client.sgd(pulled, weights, hparams.phase(), model=model)
    new, new_local = partition.split(trained.weights)
    return client.result(trained._replace(weights=new), local=new_local)

  def fit_new_client(client, num_epochs):
    return fit_local(client, model, partition, hparams.phase(num_epochs))

  return client_work.partitioned_weights_work(
    model,
    partition,
    client_work.Exchange(train),
    fit_new_client=fit_new_client if partition.local_names else None,
    **others,
  )


def divided_work(
  model: split_model.SplitModel,
  hparams: hparams_lib.LocalTrainingHParams,
  method: str,
  depth: str,
) -> client_work.ClientWork:
  """Makes a method whose last layers, or all but these, are local.

  Args:
    model: The process' model, whose body must have weights.
    depth: `local_depth` or `global_depth`, the field of `hparams` with the
      number of last layers on that side. None means the head layers.
  """
  split_model.check_has_body(model, method)
  last = model.last_layers(getattr(hparams, depth), depth)
  local = [
    name for name in model.layers if (name in last) == (depth == 'local_depth')
  ]
  partition = weight_partition.WeightPartition.by_layer(model, local)
  return joint_training_work(model, hparams, partition)


def fit_local(
  client: client_lib.Client,
  model: split_model.SplitModel,
  partition: weight_partition.WeightPartition,
  phase: phases.Phase,
  *,
  local: Optional[split_model.Weights] = None,
  stream: Optional[int] = None,
) -> split_model.Weights:
  """Trains the local weights, with the received weights frozen.

  A local head that reads no weights of the body trains on the body's features.
  If all weights are local, they train together.

  Args:
    local: Initial local weights. None uses the client's.
    stream: See `Client.sgd`.
  """
  local = client.local if local is None else local
  head_names = set(model.weight_names(model.head_layers))
  is_head = set(partition.local_names) == head_names and not partition.divided
  if not partition.global_names:
    loss = objectives.joint_loss(model)
    trained = client.sgd(loss, local, phase, stream=stream, model=model)
  elif is_head and not model.tied:
    trained = client.fit_head(local, phase, stream=stream, model=model)
  else:
    trained = client.fit_part(
      local,
      lambda part: partition.merge(client.received, part),
      partition.local_part,
      phase,
      stream=stream,
      model=model,
    )
  return trained.weights
