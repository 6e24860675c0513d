"""Simulated attacks by clients under an adversary's control.

Attacked clients multiply their updates and reports by a factor, or train on
wrong labels. Their local state is the unchanged result of their training.
"""

import contextlib
from typing import Any

import numpy as np
import tensorflow as tf

from tff_pfl import errors, fields
from tff_pfl.core import example_tensors
from tff_pfl.models import split_model

# Separates the draw of clients from others that start from the same seed.
_STREAM = 0x61747461


@fields.dataclass
class Attack:
  """An attack by some of the clients.

  Attributes:
    clients: Indices of the attacked clients.
    factor: Factor that multiplies everything they send. -1 flips the sign.
    flips_labels: True to train on label `classes - 1 - y` instead of y.
  """

  clients: fields.Integers = ()
  factor: fields.Float = 1.0
  flips_labels: bool = False

  def expect_fits(self, model: split_model.SplitModel) -> None:
    """Raises `ValueError` if the labels to flip are not classes."""
    errors.expect(
      not self.flips_labels
      or (
        model.classifier is not None
        and not model.classifier.is_multilabel
        and model.element_spec['y'].dtype.is_integer
      ),
      'attack.flips_labels',
      'false if labels are not classes',
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
    last = tf.cast(model.classifier.num_classes - 1, examples.y.dtype)
    # Ignored labels may be out of range.
    is_flipped = (examples.y >= 0) & (examples.y <= last)
    is_flipped &= self._includes(client_index)
    y = tf.where(is_flipped, last - examples.y, examples.y)
    return examples._replace(y=y)

  def on_sent(self, sent: Any, client_index: tf.Tensor) -> Any:
    """The tensors that a client sends, given the result of its training."""
    if not self.clients or self.factor == 1:
      return sent
    factor = tf.where(self._includes(client_index), self.factor, 1.0)
    return tf.nest.map_structure(
      lambda value: value * tf.cast(factor, value.dtype), sent
    )

  def _includes(self, client_index):
    return tf.reduce_any(tf.equal(client_index, list(self.clients)))


def parse(spec: str) -> tuple[float, bool]:
  """Parses an attack such as `scale:10` into its factor and its label flip.

  Args:
    spec: 'sign_flip', 'scale:<factor>', 'label_flip' or 'none'.
  """
  factor = {'none': 1.0, 'label_flip': 1.0, 'sign_flip': -1.0}.get(spec)
  kind, _, number = spec.partition(':')
  if kind == 'scale':
    with contextlib.suppress(ValueError):
      factor = float(number)
  errors.expect(
    errors.is_number(factor) and (kind, factor) != ('scale', 1),
    'attack',
    'one of none, sign_flip, scale:<factor, not 1> or label_flip',
    spec,
  )
  return factor, kind == 'label_flip'


def make_attack(
  spec: str, fraction: float, num_clients: int, seed: int
) -> Attack:
  """Makes the attack that a flag value names, by randomly drawn clients.

  Args:
    spec: See `parse`.
    fraction: Share of attacked clients, rounded to whole clients. At least one
      client must be attacked and one honest. A larger share includes the
      clients of a smaller one.
    seed: Seed of the draw, nonnegative.
  """
  number = int(np.floor(fraction * num_clients + 0.5))
  errors.expect(
    spec != 'none' and 0 < number < num_clients,
    'attacked_fraction',
    '0 without an attack'
    if spec == 'none'
    else f'such that some of {num_clients} clients attack and some do not',
    fraction,
  )
  sequence = np.random.SeedSequence(seed, spawn_key=(_STREAM,))
  order = np.random.default_rng(sequence).permutation(num_clients)
  return Attack(tuple(sorted(order[:number].tolist())), *parse(spec))
