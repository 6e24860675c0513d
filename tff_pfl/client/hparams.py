"""Hyperparameters that methods share, and what is made of them."""

import dataclasses
from typing import Optional

from tff_pfl.client import training_loop


def describe(text: str, **default) -> dataclasses.Field:
  """A dataclass field with a help text, from which the flags are made."""
  return dataclasses.field(metadata={'help': text}, **default)


@dataclasses.dataclass(frozen=True)
class LocalTrainingHParams:
  """Local training of all weights together.

  Attributes:
    num_epochs: Epochs of local training in a round.
    num_steps: If given, gradient steps instead of epochs.
    learning_rate: Of the client's optimizer, positive.
    momentum: Of SGD (adam does not read it), in [0, 1).
    optimizer: 'sgd' or 'adam'.
    batch_size: Examples per batch; None is the full batch (with `num_steps=1`
      and all weights global, this is FedSGD).
  """

  num_epochs: int = describe('epochs of local training in a round', default=5)
  num_steps: Optional[int] = describe(
    'gradient steps in a round, instead of epochs', default=None
  )
  learning_rate: float = describe("the clients' learning rate", default=0.01)
  momentum: float = describe("momentum of the clients' SGD", default=0.5)
  optimizer: str = describe(
    "the clients' optimizer: sgd or adam", default='sgd'
  )
  batch_size: Optional[int] = describe(
    'examples per batch; none for the full batch', default=10
  )

  def __post_init__(self):
    self.phase()

  def phase(
    self,
    num_epochs: Optional[int] = None,
    learning_rate: Optional[float] = None,
  ) -> training_loop.Phase:
    """The phase of local training.

    Args:
      num_epochs: If given, this number of epochs (and never `num_steps`).
      learning_rate: If given, instead of the attribute.
    """
    if learning_rate is None:
      learning_rate = self.learning_rate
    return training_loop.Phase(
      optimizer=training_loop.build_optimizer(
        self.optimizer, learning_rate, self.momentum
      ),
      batch_size=self.batch_size,
      num_epochs=self.num_epochs if num_epochs is None else num_epochs,
      num_steps=self.num_steps if num_epochs is None else None,
    )
