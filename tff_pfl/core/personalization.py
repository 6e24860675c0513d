"""Personalization of a client's model before it is scored."""

from __future__ import annotations

import dataclasses
from typing import Annotated, Literal, Optional

import tensorflow as tf

from tff_pfl import fields
from tff_pfl.core import (
  example_tensors,
  hparams,
  objectives,
  phases,
  training_loop,
)
from tff_pfl.models import split_model

Scope = Literal['method', 'none', 'head', 'all', 'trained']


def _flat(hint, name):
  return Annotated[hint, fields.FlatName(f'fine_tune_{name}')]


@fields.dataclass
class Personalization(hparams.LocalTrainingHParams):
  """Options of personalization, the same for every method.

  The model first gets the client's local weights. A client that never took part
  fits them to its training data. The model is then fine-tuned on the training
  data: FedAvg + FT is `fed_avg` with `fine_tune='all'`.

  Attributes:
    fine_tune: Weights to fine-tune on a client's training data before its model
      is scored: head (on the frozen body's features), all or none. Two more
      values ignore the other fine-tuning options: method, the method's own
      fine-tuning (per_fed_avg's inner steps, fed_babu's head, p_fed_me's
      personal model, none for others), and trained, a client's work in the next
      round, before the server averages, as some papers' code scores FedAvg.
      trained needs a method whose clients make whole models in one exchange.
    num_epochs: Epochs of fine-tuning.
    num_steps: Gradient steps of fine-tuning, instead of epochs.
    learning_rate: Learning rate of fine-tuning, positive.
    momentum: SGD momentum of fine-tuning, in [0, 1), ignored by Adam.
    optimizer: Optimizer of fine-tuning: sgd or adam. Python also accepts one of
      tff.learning.optimizers, with its own learning rate and momentum.
    batch_size: Examples per batch of fine-tuning. None or 0 is the full batch.
    new_client_epochs: Epochs for which a client that never took part fits its
      local weights, with the global ones frozen, before it is scored. None
      trains as long as in a round.
    proximal_strength: Strength of the quadratic pull of fine-tuning toward the
      weights from which it starts, as in FedProx, at least 0.
  """

  fine_tune: Scope = 'method'
  num_epochs: _flat(fields.Epochs, 'num_epochs') = 10
  num_steps: _flat(Optional[fields.Steps], 'num_steps') = None
  learning_rate: _flat(fields.Positive, 'learning_rate') = 0.01
  momentum: _flat(fields.ShareBelowOne, 'momentum') = 0.5
  optimizer: _flat(phases.Optimizer, 'optimizer') = 'sgd'
  batch_size: _flat(Optional[fields.CountOrZero], 'batch_size') = 10
  new_client_epochs: Optional[fields.Epochs] = None
  proximal_strength: _flat(fields.NonNegative, 'proximal_strength') = 0.0

  def resolved(self, adaptation: Personalization) -> Personalization:
    """These options, or `adaptation` if `fine_tune` is 'method'."""
    if self.fine_tune != 'method':
      return self
    return dataclasses.replace(
      adaptation, new_client_epochs=self.new_client_epochs
    )


NO_ADAPTATION = Personalization(fine_tune='none')


def fine_tune(
  model: split_model.SplitModel,
  weights: split_model.Weights,
  examples: example_tensors.ExampleTensors,
  options: Personalization,
  seed: tf.Tensor,
) -> split_model.Weights:
  """Fine-tunes a client's model on its training data.

  Args:
    options: Options of fine-tuning, `resolved`.
    seed: int32 `[2]`.

  Returns:
    All weights of the model after fine-tuning.
  """
  if options.fine_tune == 'none':
    return weights
  names, inputs = weights, None
  objective = objectives.joint_loss(model)
  if options.fine_tune == 'head':
    names = model.weight_names(model.head_layers)
    objective = objectives.prediction_loss(model, model.head)
    examples, inputs = training_loop.head_inputs(model, weights, examples)
  start = split_model.select(weights, names)
  if options.proximal_strength:
    objective = objectives.proximal(objective, start, options.proximal_strength)
  trained = training_loop.train(
    objective,
    start,
    examples,
    options.phase(),
    seed,
    model=model,
    inputs=inputs,
  ).weights
  return split_model.select({**weights, **trained}, weights)
