"""Simulated attacks by clients under an adversary's control.

Attacked clients multiply their updates and reports by a factor, or train on
wrong labels. Their own local state stays that of their training.
"""

import contextlib
from typing import Any

import numpy as np
import tensorflow as tf

from tff_pfl import errors, fields
from tff_pfl.core import example_tensors
from tff_pfl.models import split_model

# Keeps the draw of clients apart from others that start from the same seed.
_STREAM = 0x61747461


@fields.dataclass
class Attack:
  """An attack by some of the clients.

  Attributes:
    clients: Indices of the attacked clients.
    factor: Factor of all that they send; -1 flips its sign.
    flips_labels: True to train on label `classes - 1 - y` in place of y.
  """

  clients: tuple[int, ...] = ()
  factor: fields.Float = 1.0
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
      'false where labels are no classes',
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


def parse(spec: str) -> tuple[float, bool]:
  """The factor and the flip of labels of an attack such as `scale:10`.

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
  """The attack that a flag value names, by clients that are drawn.

  Args:
    spec: See `parse`.
    fraction: Share of the clients that are attacked, rounded to whole clients,
      of which some must be attacked and some honest. The
      clients are drawn at random; those of a smaller share are among those of a
      larger one.
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
