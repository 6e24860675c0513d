"""Simulated attacks by clients under an adversary's control.

Attacked clients multiply their updates and reports by a factor, or train on
wrong labels. Their own local state stays that of their training.
"""

import dataclasses
from typing import Any

import numpy as np
import tensorflow as tf

from tff_pfl import errors
from tff_pfl.core import example_tensors
from tff_pfl.models import split_model

# Keeps the draw of clients apart from others that start from the same seed.
_STREAM = 0x61747461
FORMS = 'none, sign_flip, scale:<factor, not 1> or label_flip'


@dataclasses.dataclass(frozen=True)
class Attack:
  """An attack by some of the clients.

  Attributes:
    clients: Indices of the attacked clients.
    factor: Factor of all that they send; -1 flips its sign.
    flips_labels: True to train on label `classes - 1 - y` in place of y.
  """

  clients: tuple[int, ...] = ()
  factor: float = 1.0
  flips_labels: bool = False

  def expect_fits(self, model: split_model.SplitModel) -> None:
    """Raises `ValueError` if labels to be flipped are not classes."""
    errors.expect(
      not self.flips_labels
      or (
        model.classifier is not None
        and not model.classifier.is_multilabel
        and model.element_spec['y'].dtype.is_integer
      ),
      'attack.flips_labels',
      'false for a model without classes as its labels',
      self.flips_labels,
    )

  def on_examples(
    self,
    examples: example_tensors.ExampleTensors,
    client_index: tf.Tensor,
    model: split_model.SplitModel,
  ) -> example_tensors.ExampleTensors:
    """The examples that a client trains on."""
    if not (self.clients and self.flips_labels):
      return examples
    flipped = model.classifier.num_classes - 1 - examples.y
    y = tf.where(self._includes(client_index), flipped, examples.y)
    return examples._replace(y=y)

  def on_sent(self, sent: Any, client_index: tf.Tensor) -> Any:
    """The tensors that a client sends, from those that its training gave."""
    if not self.clients or self.factor == 1:
      return sent
    factor = tf.where(self._includes(client_index), self.factor, 1.0)
    return tf.nest.map_structure(
      lambda value: value * tf.cast(factor, value.dtype), sent
    )

  def _includes(self, client_index):
    return tf.reduce_any(tf.equal(client_index, list(self.clients)))


def make_attack(
  spec: str, fraction: float, num_clients: int, seed: int
) -> Attack:
  """The attack that a flag value such as `scale:10` names.

  Args:
    spec: 'sign_flip', 'scale:<factor>', 'label_flip' or 'none'.
    fraction: Share of the clients that are attacked, in [0, 1), rounded to
      whole clients: none without an attack, else one or more. They are drawn
      at random; those of a smaller share are among those of a larger one.
    seed: Seed of the draw, nonnegative.

  Raises:
    ValueError: If `spec` has another form or `fraction` is out of its range.
  """
  kind, *numbers = spec.split(':')
  factors = {'none': 1.0, 'label_flip': 1.0, 'sign_flip': -1.0}
  try:
    factor = factors[kind] if kind in factors else float(*numbers)
    is_right = (kind == 'scale') == len(numbers) and errors.is_number(factor)
    is_right &= kind in factors or (kind == 'scale' and factor != 1)
  except (ValueError, TypeError):
    is_right = False
  errors.expect(is_right, 'attack', f'one of {FORMS}', spec)
  errors.expect_share('attacked_fraction', fraction, '[0, 1)')
  errors.expect(
    fraction == 0 or kind != 'none',
    'attacked_fraction',
    '0 without an attack',
    fraction,
  )
  sequence = np.random.SeedSequence(seed, spawn_key=(_STREAM,))
  order = np.random.default_rng(sequence).permutation(num_clients)
  number = int(np.floor(fraction * num_clients + 0.5))
  errors.expect(
    number < num_clients,
    'attacked_fraction',
    f'such that one of the {num_clients} clients is honest',
    fraction,
  )
  errors.expect(
    number > 0 or kind == 'none',
    'attacked_fraction',
    f'at least {0.5 / num_clients:g}, which comes to one of {num_clients} '
    "clients, or 0 with attack 'none'",
    fraction,
  )
  return Attack(
    tuple(sorted(order[:number].tolist())), factor, kind == 'label_flip'
  )
