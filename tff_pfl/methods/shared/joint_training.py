"""Methods that differ only in which layers are local, and in their objective.

A client trains all of its weights, global and local ones, together; the global
ones are averaged, the local ones stay. FedAvg keeps none local, FedPer the
head, local training all. A client that never took part trains its local
weights, from the initial ones, with the global ones frozen.
"""

from __future__ import annotations

from typing import Optional

import tensorflow as tf

from tff_pfl.core import (
  client_work,
  example_tensors,
  objectives,
  personalization,
  phases,
  training_loop,
)
from tff_pfl.core import hparams as hparams_lib
from tff_pfl.models import split_model, weight_partition


def joint_training_work(
  model: split_model.SplitModel,
  hparams: hparams_lib.LocalTrainingHParams,
  partition: Optional[weight_partition.WeightPartition] = None,
  objective: Optional[objectives.Objective] = None,
  proximal_strength: float = 0.0,
  adaptation: personalization.Personalization = personalization.NO_ADAPTATION,
  default_weighting: str = 'num_examples',
) -> client_work.ClientWork:
  """Makes a method from the partition of its weights and what they minimize.

  Args:
    hparams: What a round's training is.
    partition: Which weights are local; None for none.
    objective: A function of all weights and as many batches as `hparams.phase`
      has for a step; by default the batch's loss.
    proximal_strength: How strongly the global weights are pulled to those that
      were broadcast, at least 0 (half of it times the squared distance).
    adaptation: How a model is fine-tuned before it is scored; by default not.
    default_weighting: As for `ClientWork`.
  """
  partition = partition or weight_partition.WeightPartition.by_layer(model, ())
  objective = objective or objectives.joint_loss(model)

  def train(broadcast, local, examples, seed):
    start, pulled = broadcast.global_weights, objective
    if proximal_strength:
      pulled = objectives.proximal(objective, start, proximal_strength)
    weights, phase = partition.merge(start, local), hparams.phase()
    trained, metrics = training_loop.train(
      pulled, weights, examples, phase, seed, model=model
    )
    new, new_local = partition.split(trained)
    update = split_model.difference(start, new)
    return client_work.ClientResult(update, new_local, metrics)

  def fit_new_client(broadcast, local, examples, seed, num_epochs):
    return train_local(
      model,
      partition,
      broadcast.global_weights,
      local,
      examples,
      hparams.phase(num_epochs),
      seed,
    ).weights

  return client_work.partitioned_weights_work(
    model,
    partition,
    client_work.Exchange(train),
    fit_new_client=fit_new_client if partition.local_names else None,
    adaptation=adaptation,
    default_weighting=default_weighting,
  )


def train_local(
  model: split_model.SplitModel,
  partition: weight_partition.WeightPartition,
  global_weights: split_model.Weights,
  local: split_model.Weights,
  examples: example_tensors.ExampleTensors,
  phase: phases.Phase,
  seed: tf.Tensor,
) -> training_loop.TrainResult:
  """Trains the local weights with the global ones frozen.

  A local head trains on the body's features.

  Args:
    partition: Which weights are local.
    global_weights: Those at which they are frozen.
    local: Where the local ones start.
    examples: As for `training_loop.train`, as the others.
  """
  head_names = set(model.weight_names(model.head_layers))
  if set(partition.local_names) == head_names and not partition.divided:
    return training_loop.train_head(
      model, global_weights, local, examples, phase, seed
    )
  return training_loop.train_part(
    model,
    local,
    lambda part: partition.merge(global_weights, part),
    partition.local_part,
    examples,
    phase,
    seed,
  )
