"""Clients' own hidden elements, under a partition from the server.

Every element of the divided layers is shared or personal, and which one it is
may change from round to round. A client trains with the global slices of the
shared elements and its own ones of the personal elements. What it keeps:

    values   its own slices of the weights
    is_own   by layer, of which elements it has any

It keeps room for the elements that can be personal: all of a layer, or, where a
partition never changes, just its personal ones, in the order of the layer.

Of an element that turns personal a client has its last own value, or the global
one if it never had any. One that turns shared goes on from the server's last
value. Clients that sit out keep what they have. To either value the training's
change is added, except for moving statistics of a normalization, which become
what they are after the training.
"""

from __future__ import annotations

import collections
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tff_pfl.models import hidden_elements, split_model

# By layer, which of its elements are shared: bool `[number]`.
IsShared = Mapping[str, Any]


class _Own(NamedTuple):
  """A client's own elements, in their places in the layers.

  Attributes:
    values: By weight, of its full shape; anything where there is no own value.
    exists: By layer, bool `[number]`.
  """

  values: Mapping[str, tf.Tensor]
  exists: Mapping[str, tf.Tensor]


class PersonalElements:
  """What clients keep of some layers of a model, and how they use it."""

  def __init__(
    self,
    model: split_model.SplitModel,
    num_kept: Mapping[str, int],
  ):
    """Plans what a client keeps.

    Args:
      num_kept: By divided layer, for how many elements a client keeps room: for
        all, or for as many as are personal under every partition.
    """
    self._model = model
    self._num_kept = {layer: n for layer, n in num_kept.items() if n}
    self._elements = {layer: model.elements[layer] for layer in self._num_kept}
    # By weight, its layer and how often the elements occur.
    self._owned = {
      name: (layer, self._elements[layer].gates[name])
      for name in model.initial_weights
      for layer in self._elements
      if name in self._elements[layer].gates
    }

  @property
  def initial_local(self) -> collections.OrderedDict:
    """The state of a client that has no own elements (arrays)."""
    values = collections.OrderedDict()
    for name, (layer, gates) in self._owned.items():
      initial = self._model.initial_weights[name]
      values[name] = initial[..., : gates * self._num_kept[layer]]
    return collections.OrderedDict(
      values=values,
      is_own=collections.OrderedDict(
        (layer, np.zeros(n, bool)) for layer, n in self._num_kept.items()
      ),
    )

  def merge(
    self, global_weights: split_model.Weights, local: Any, is_shared: IsShared
  ) -> collections.OrderedDict:
    """All weights of a client's model.

    Args:
      global_weights: All weights, the server's.
      local: The client's state.
      is_shared: The partition under which the state was made.
    """
    own = self._in_place(local, is_shared)
    return self._where(
      lambda layer: own.exists[layer] & ~is_shared[layer],
      own.values,
      global_weights,
    )

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
    statistics = self._model.statistics
    start = self.merge(global_weights, local, was_shared)
    # Moving statistics are taken as they are: a change of one variance, applied
    # to another, could make that negative.
    start = collections.OrderedDict(
      (name, global_weights[name] if name in statistics else value)
      for name, value in start.items()
    )
    update = split_model.difference(start, trained)
    zeros = tf.nest.map_structure(tf.zeros_like, update)
    sent = self._where(lambda layer: ~is_shared[layer], zeros, update)
    own = self._in_place(local, was_shared)
    last = self._where(
      lambda layer: own.exists[layer], own.values, global_weights
    )
    moves = split_model.difference(last, update)
    moves.update((name, trained[name]) for name in moves if name in statistics)
    # Where training began at the last value, the result itself, without the
    # rounding of a sum.
    moved = self._where(
      lambda layer: was_shared[layer] & own.exists[layer],
      moves,
      trained,
    )
    new = self._where(lambda layer: is_shared[layer], last, moved)
    exists = {
      layer: own.exists[layer] | ~is_shared[layer] for layer in self._num_kept
    }
    return sent, collections.OrderedDict(
      values=self.kept_slices(new, is_shared),
      is_own=self._of_kept(exists, is_shared),
    )

  def all_own(self, values: split_model.Weights, is_shared: IsShared) -> Any:
    """The state of a client that has `kept_slices` of its own."""
    return collections.OrderedDict(
      values=values,
      is_own=self._of_kept(
        {layer: ~is_shared[layer] for layer in self._num_kept}, is_shared
      ),
    )

  def kept_slices(
    self, weights: split_model.Weights, is_shared: IsShared
  ) -> collections.OrderedDict:
    """Those slices of weights that a client has room for, by weight."""
    return collections.OrderedDict(
      (
        name,
        hidden_elements.take(
          weights[name],
          self._kept_elements(layer, is_shared),
          self._elements[layer].number,
          gates,
        ),
      )
      for name, (layer, gates) in self._owned.items()
      if name in weights
    )

  def _of_kept(self, values, is_shared):
    """Of numbers of each layer's elements those that a client has room for."""
    return collections.OrderedDict(
      (layer, tf.gather(values[layer], self._kept_elements(layer, is_shared)))
      for layer in self._num_kept
    )

  def _where(self, choose, chosen, others):
    """`others`, but for the elements that `choose(layer)` tells: `chosen`."""
    merged = collections.OrderedDict(others)
    for name, (layer, gates) in self._owned.items():
      merged[name] = tf.where(
        tf.tile(choose(layer), [gates]), chosen[name], others[name]
      )
    return merged

  def _in_place(self, local, is_shared):
    values = {
      name: hidden_elements.take(
        local['values'][name],
        self._rooms(layer, is_shared),
        self._num_kept[layer],
        gates,
      )
      for name, (layer, gates) in self._owned.items()
    }
    exists = {}
    for layer in self._num_kept:
      exists[layer] = tf.gather(
        local['is_own'][layer], self._rooms(layer, is_shared)
      )
      if not self._keeps_all(layer):
        # What is shared has no room.
        exists[layer] &= ~is_shared[layer]
    return _Own(values, exists)

  def _keeps_all(self, layer):
    return self._num_kept[layer] == self._elements[layer].number

  def _kept_elements(self, layer, is_shared):
    """The elements that a client has room for: int32 `[num_kept]`."""
    if self._keeps_all(layer):
      return tf.range(self._num_kept[layer])
    return _personal_first(is_shared[layer])[: self._num_kept[layer]]

  def _rooms(self, layer, is_shared):
    """Each element's room; anyone's for elements without: int32 `[number]`."""
    if self._keeps_all(layer):
      return tf.range(self._num_kept[layer])
    places = tf.argsort(_personal_first(is_shared[layer]))
    return tf.minimum(places, self._num_kept[layer] - 1)


def _personal_first(is_shared):
  return tf.argsort(tf.cast(is_shared, tf.int32), stable=True)
