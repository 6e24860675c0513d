"""Clients' own hidden elements, under a partition from the server.

Every element of the divided layers is shared or personal, and which one it is
may change from round to round (`is_shared`: by layer, bool `[number]`). A
client trains with the global slices of the shared elements and its own ones of
the personal elements. What it keeps, in the places of the layers:

    values   by weight, its own slices; anything where it has none
    is_own   by layer, of which elements it has any

Of an element that turns personal a client has its last own value, or the global
one if it never had any. One that turns shared goes on from the server's last
value. Clients that sit out keep what they have. To either value the training's
change is added, except for moving statistics of a normalization, which become
what they are after the training.
"""

from __future__ import annotations

import collections
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from tff_pfl.core import client as client_lib
from tff_pfl.core import phases
from tff_pfl.models import split_model

# By layer, which of its elements are shared.
IsShared = Mapping[str, Any]


class PersonalElements:
  """What clients keep of some layers of a model, and how they use it."""

  def __init__(self, model: split_model.SplitModel, layers: Collection[str]):
    """Takes the layers of which any element may become personal."""
    self._model = model
    self._layers = layers
    # By weight, its layer and how often the elements occur.
    self._owned = {
      name: (layer, model.units[layer].gates[name])
      for name in model.initial_weights
      for layer in layers
      if name in model.units[layer].gates
    }

  @property
  def initial_local(self) -> collections.OrderedDict:
    """The state of a client that has no own elements (arrays)."""
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
    """All weights of a client's model: the server's, but for its own ones."""
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
    """The client's state after it trained its own elements, all else frozen."""
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
    """What a client sends and keeps after its training.

    Args:
      global_weights: All weights, the server's, before the training.
      local: The client's state before it.
      trained: All weights after it.
      was_shared: The partition under which it trained.
      is_shared: That of now.

    Returns:
      The update `initial - final`, which is 0 for personal elements, and the
      new state.
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
    """Of some weights those that a client keeps."""
    return collections.OrderedDict(
      (name, weights[name]) for name in self._owned if name in weights
    )

  def _where(self, choose, chosen, others):
    """`others`, but for the elements that `choose(layer)` tells: `chosen`."""
    merged = collections.OrderedDict(others)
    for name, (layer, gates) in self._owned.items():
      merged[name] = tf.where(
        tf.tile(choose(layer), [gates]), chosen[name], others[name]
      )
    return merged
