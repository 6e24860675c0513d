"""Hyperparameters that methods share."""

from collections.abc import Mapping
from typing import Any, Optional

from tff_pfl import fields
from tff_pfl.core import phases


@fields.dataclass
class LocalTrainingHParams:
  """Local training of all weights together.

  Attributes:
    num_epochs: Epochs of local training in a round.
    num_steps: Gradient steps in a round, instead of epochs.
    learning_rate: The clients' learning rate, positive.
    momentum: Momentum of the clients' SGD, in [0, 1), ignored by Adam.
    optimizer: The clients' optimizer: sgd or adam. Python also accepts one of
      tff.learning.optimizers, with its own learning rate and momentum.
    batch_size: Examples per batch. None or 0 is the full batch (this is FedSGD
      if `num_steps=1` and all weights are global).
  """

  num_epochs: fields.Epochs = 5
  num_steps: Optional[fields.Steps] = None
  learning_rate: fields.Positive = 0.01
  momentum: fields.ShareBelowOne = 0.5
  optimizer: phases.Optimizer = 'sgd'
  batch_size: Optional[fields.CountOrZero] = 10

  def __post_init__(self):
    phases.expect_own_rates(self, 'learning_rate', 'momentum')

  def phase(
    self,
    num_epochs: Optional[int] = None,
    learning_rate: Optional[float] = None,
  ) -> phases.Phase:
    """The phase of local training.

    Args:
      num_epochs: Epochs that replace the attributes' epochs or steps.
      learning_rate: Learning rate that replaces the attribute's.
    """
    rate = self.learning_rate if learning_rate is None else learning_rate
    optimizer = phases.build_optimizer(self.optimizer, rate, self.momentum)
    num_steps = None
    if num_epochs is None:
      num_epochs, num_steps = self.num_epochs, self.num_steps
    return phases.Phase(optimizer, self.batch_size, num_epochs, num_steps)


@fields.dataclass
class PersonalTrainingHParams(LocalTrainingHParams):
  """Local training of global weights and, in another phase, personal ones.

  Attributes:
    personal_num_epochs: Epochs on the personal weights in a round. None trains
      them as long as the global weights.
    personal_learning_rate: The personal weights' learning rate. None uses the
      global weights' learning rate.
  """

  personal_num_epochs: Optional[fields.Epochs] = None
  personal_learning_rate: Optional[fields.Positive] = None

  def __post_init__(self):
    super().__post_init__()
    phases.expect_own_rates(self, 'personal_learning_rate')

  def personal_phase(self, num_epochs: Optional[int] = None) -> phases.Phase:
    """The phase of the personal weights, for `num_epochs` if given."""
    if num_epochs is None:
      num_epochs = self.personal_num_epochs
    return self.phase(num_epochs, self.personal_learning_rate)


@fields.dataclass
class HeadAndBodyHParams:
  """Training of the head and the body in turn.

  Attributes:
    num_head_epochs: Epochs on the head in a round (tau_h).
    num_head_steps: Gradient steps on the head, instead of epochs.
    num_body_epochs: Epochs on the body in a round (tau_phi).
    num_body_steps: Gradient steps on the body, instead of epochs.
    head_learning_rate: The head's learning rate, positive.
    body_learning_rate: The body's learning rate, positive.
    momentum: SGD momentum for head and body, in [0, 1), ignored by Adam.
    optimizer: The optimizer for head and body: sgd or adam. Python also accepts
      one of tff.learning.optimizers, with its own learning rate and momentum.
    batch_size: Examples per batch. None or 0 is the full batch.
  """

  num_head_epochs: fields.Epochs = 10
  num_head_steps: Optional[fields.Steps] = None
  num_body_epochs: fields.Epochs = 1
  num_body_steps: Optional[fields.Steps] = None
  head_learning_rate: fields.Positive = 0.01
  body_learning_rate: fields.Positive = 0.01
  momentum: fields.ShareBelowOne = 0.5
  optimizer: phases.Optimizer = 'sgd'
  batch_size: Optional[fields.CountOrZero] = 10

  def __post_init__(self):
    phases.expect_own_rates(
      self, 'head_learning_rate', 'body_learning_rate', 'momentum'
    )

  def head_phase(self, num_epochs: Optional[int] = None) -> phases.Phase:
    """The training of the head in a round, or for `num_epochs`."""
    return self._phase('head', num_epochs)

  def body_phase(self) -> phases.Phase:
    """The training of the body in a round."""
    return self._phase('body')

  def _phase(self, part, num_epochs=None):
    num_steps = None
    if num_epochs is None:
      num_epochs = getattr(self, f'num_{part}_epochs')
      num_steps = getattr(self, f'num_{part}_steps')
    rate = getattr(self, f'{part}_learning_rate')
    optimizer = phases.build_optimizer(self.optimizer, rate, self.momentum)
    return phases.Phase(optimizer, self.batch_size, num_epochs, num_steps)


def steps_instead_of(hparams: type, name: str) -> Optional[str]:
  """The name of the steps field that, if set, replaces an epochs field.

  Args:
    hparams: The class of a method's hyperparameters.
    name: One of its fields.

  Returns:
    The name of the steps field, or None if `name` is not an epochs field or has
    no steps field.
  """
  steps = name.replace('epochs', 'steps')
  is_optional = fields.is_optional(fields.hints(hparams).get(steps))
  return steps if steps != name and is_optional else None


def without_steps_for_epochs(
  hparams: type, values: Mapping[str, Any]
) -> dict[str, Any]:
  """Values of fields, and None for the steps that would replace given epochs.

  Args:
    hparams: The class of a method's hyperparameters.
    values: Values by the names of its fields. Steps among them stay.
  """
  steps = (steps_instead_of(hparams, name) for name in values)
  return {**{name: None for name in steps if name is not None}, **values}
