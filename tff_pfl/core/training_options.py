"""Options of local training that are the same for every method.

They apply to training in a round and, without the schedule, to the training of
a client that never took part. Fine-tuning before scoring has its own options
(`core.personalization`). `OptimizerChain` applies them before a phase's
optimizer.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Mapping
from typing import Any, Optional

import tensorflow as tf

from tff_pfl import errors, fields
from tff_pfl import tff_api as tff
from tff_pfl.core import schedules

_LEARNING_RATE = tff.learning.optimizers.LEARNING_RATE_KEY


@fields.dataclass
class TrainingOptions:
  """Options of local training.

  Attributes:
    weight_decay: L2 regularization, as in PyTorch's SGD and Adam, at least 0:
      this times the weights is added to their gradient.
    decoupled_weight_decay: Weight decay of AdamW and SGDW, at least 0: each
      step also subtracts this times the learning rate times the weights.
    max_gradient_norm: Largest norm of a gradient over all trained weights. A
      longer one is scaled down to it, before weight decay. None means no bound.
    learning_rate_schedule: Factor of the clients' learning rates by round:
      constant, warmup:<rounds>, step:<rounds>[:<factor>],
      cosine:<rounds>[:<last>], or several joined by +. Python also accepts a
      function of the number of completed rounds, an int32 tensor.
  """

  weight_decay: fields.NonNegative = 0.0
  decoupled_weight_decay: fields.NonNegative = 0.0
  max_gradient_norm: Optional[fields.Positive] = None
  learning_rate_schedule: schedules.Schedule = 'constant'


@dataclasses.dataclass(eq=False)
class OptimizerChain(tff.learning.optimizers.Optimizer):
  """An optimizer after clipping, weight decay and a factor of its rate.

  Attributes:
    last: The optimizer that makes the step.
    options: Clipping and weight decay.
    factor: float32 scalar. None means 1.
  """

  last: tff.learning.optimizers.Optimizer
  options: TrainingOptions = TrainingOptions()
  factor: Optional[tf.Tensor] = None

  @classmethod
  def of(cls, optimizer: tff.learning.optimizers.Optimizer) -> OptimizerChain:
    """The optimizer itself if it is a chain, otherwise a chain of it alone."""
    return optimizer if isinstance(optimizer, cls) else cls(optimizer)

  def initialize(self, specs: Any) -> Any:
    """The last link's state, at the learning rate of the round."""
    state = self.last.initialize(specs)
    if self.factor is None:
      return state
    return scaled(self.last, state, self.factor)

  def next(self, state: Any, weights: Any, gradients: Any) -> tuple[Any, Any]:
    """The new state and weights, both by name."""
    gradients = self.changed(gradients, weights)
    # Uses the learning rate before the optimizer's step, which may change it.
    share = self.decay(state)
    if share is not None:
      weights = collections.OrderedDict(
        (name, value - tf.cast(share, value.dtype) * value)
        for name, value in weights.items()
      )
    return self.last.next(state, weights, gradients)

  def changed(
    self, gradients: Mapping[str, tf.Tensor], weights: Mapping[str, tf.Tensor]
  ) -> Mapping[str, tf.Tensor]:
    """A step's gradient by name, after clipping and weight decay."""
    if self.options.max_gradient_norm is not None:
      clipped, _ = tf.clip_by_global_norm(
        list(gradients.values()), self.options.max_gradient_norm
      )
      gradients = collections.OrderedDict(zip(gradients, clipped))
    if self.options.weight_decay:
      gradients = collections.OrderedDict(
        (name, slope + self.options.weight_decay * weights[name])
        for name, slope in gradients.items()
      )
    return gradients

  def decay(self, state: Any) -> Optional[tf.Tensor]:
    """The share of the weights that a step first subtracts, or None."""
    if not self.options.decoupled_weight_decay:
      return None
    rate = _learning_rate(self.last, state)
    return self.options.decoupled_weight_decay * rate


def specs_of(weights: Mapping[str, Any]) -> collections.OrderedDict:
  """The shapes and dtypes of weights, for an optimizer's `initialize`."""
  return collections.OrderedDict(
    (name, tf.TensorSpec(value.shape, value.dtype))
    for name, value in weights.items()
  )


def scaled(
  optimizer: tff.learning.optimizers.Optimizer, state: Any, factor: tf.Tensor
) -> Any:
  """An optimizer's state with its learning rate multiplied by a factor."""
  rate = _learning_rate(optimizer, state) * factor
  hparams = optimizer.get_hparams(state)
  return optimizer.set_hparams(state, {**hparams, _LEARNING_RATE: rate})


def _learning_rate(optimizer, state):
  hparams = optimizer.get_hparams(state)
  errors.expect(
    _LEARNING_RATE in hparams,
    'optimizer',
    f'one with the hyperparameter {_LEARNING_RATE!r}',
    type(optimizer).__name__,
  )
  return hparams[_LEARNING_RATE]
