"""Clients' own hidden units, under a partition from the server.

Every unit of the divided layers is shared or personal, which may change from
round to round (`is_shared`: by layer, bool `[number]`). A client trains with
the global slices of the shared units and its own ones of the personal units. It
keeps, in the shapes of the layers' weights:

    values   by weight, its own slices; anything where it has none
    is_own   by layer, bool `[number]`, True for units it has own slices of

A unit that turns personal has the client's last own value, or the global one if
it never had any. One that turns shared goes on from the server's last value. To
either value the training's change is added, except for moving statistics of a
normalization, which are those after the training. Clients that sit out keep
their state.
"""

import collections
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from tff_pfl.core import client as client_lib
from tff_pfl.core import phases
from tff_pfl.models import split_model

# By layer, bool `[number]`, True for shared units.
IsShared = Mapping[str, Any]


class PersonalElements:
  """Clients' own units of some layers of a model."""

  def __init__(self, model: split_model.SplitModel, layers: Collection[str]):
    """Takes the layers of which any unit may become personal."""
    self._model = model
    self._layers = layers
    # By weight, its layer and its number of blocks with a slice per unit.
    self._owned = {
      name: (layer, model.units[layer].gates[name])
      for name in model.initial_weights
      for layer in layers
      if name in model.units[layer].gates
    }

  @property
  def initial_local(self) -> collections.OrderedDict:
    """The state of a client without own units (arrays)."""
    return collections.OrderedDict(
      values=self._values_of(self._model.initial_weights),
      is_own=collections.OrderedDict(
        (layer, np.zeros(self._model.units[layer].number, bool))
        for layer in self._layers
      ),
    )

  def merge(
    self, global_weights: split_model.Weights, local: Any, is_shared: IsShared
  ) -> collections.OrderedDict:
    """All weights of a client's model: the server's and its own units'."""
    return self._where(
      lambda layer: local['is_own'][layer] & ~is_shared[layer],
      local['values'],
      global_weights,
    )

  def fit(
    self,
    client: client_lib.Client,
    is_shared: IsShared,
    phase: phases.Phase,
  ) -> Any:
    """Trains the client's own units, all else frozen; returns its state."""
    is_own = collections.OrderedDict(
      (layer, ~is_shared[layer]) for layer in self._layers
    )
    start = self.merge(client.received, client.local, is_shared)
    values = client.fit_part(
      self._values_of(start),
      lambda own: self._where(is_own.get, own, client.received),
      self._values_of,
      phase,
      model=self._model,
    ).weights
    return collections.OrderedDict(values=values, is_own=is_own)

  def trained(
    self,
    global_weights: split_model.Weights,
    local: Any,
    trained: split_model.Weights,
    was_shared: IsShared,
    is_shared: IsShared,
  ) -> tuple:
    """Divides the result of a client's training.

    Args:
      global_weights: All weights, the server's, before the training.
      local: The client's state before the training.
      trained: All weights after the training.
      was_shared: The partition under which the client trained.
      is_shared: The new partition.

    Returns:
      The update `initial - final`, which is 0 for personal units, and the
      client's new state.
    """
    statistics, is_own = self._model.statistics, local['is_own']
    start = self.merge(global_weights, local, was_shared)
    # Moving statistics are taken as they are: a change of one variance, applied
    # to another, could make that negative.
    start.update((n, global_weights[n]) for n in start if n in statistics)
    update = split_model.difference(start, trained)
    zeros = tf.nest.map_structure(tf.zeros_like, update)
    sent = self._where(lambda layer: ~is_shared[layer], zeros, update)
    last = self._where(is_own.get, local['values'], global_weights)
    moves = split_model.difference(last, update)
    moves.update((n, trained[n]) for n in moves if n in statistics)
    # Where training began at the last value, the result itself, without the
    # rounding of a sum.
    moved = self._where(
      lambda layer: was_shared[layer] & is_own[layer], moves, trained
    )
    new = self._where(is_shared.get, last, moved)
    return sent, collections.OrderedDict(
      values=self._values_of(new),
      is_own=collections.OrderedDict(
        (layer, is_own[layer] | ~is_shared[layer]) for layer in self._layers
      ),
    )

  def _values_of(self, weights):
    """Those of some weights that a client keeps."""
    return collections.OrderedDict(
      (name, weights[name]) for name in self._owned if name in weights
    )

  def _where(self, choose, chosen, others):
    """`chosen` for the units where `choose(layer)` is True, else `others`."""
    merged = collections.OrderedDict(others)
    for name, (layer, gates) in self._owned.items():
      merged[name] = tf.where(
        tf.tile(choose(layer), [gates]), chosen[name], others[name]
      )
    return merged
