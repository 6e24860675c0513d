"""The division of a model's weights into global (server) and local (client)."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Collection, Mapping, Sequence

import numpy as np
import tensorflow as tf

from tff_pfl.models import split_model


@dataclasses.dataclass(frozen=True)
class WeightPartition:
  """A disjoint and complete division of a model's weights.

  Attributes:
    names: All weight names, in the model's order.
    local_names: Weights that never leave their client. The others are
      aggregated and live at the server.
    divided: Masks of partly local weights, by weight name: bool `[last axis]`,
      True for local slices. The other slices are global, under the same name.
  """

  names: Sequence[str]
  local_names: Sequence[str]
  divided: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)

  @property
  def global_names(self) -> Sequence[str]:
    """Weights that are aggregated, as a whole or in part."""
    return [
      name
      for name in self.names
      if name not in self.local_names or name in self.divided
    ]

  @classmethod
  def by_layer(
    cls, model: split_model.SplitModel, local_layers: Collection[str]
  ) -> WeightPartition:
    """Divides by layer names.

    Args:
      local_layers: Names of the layers that are local. All others are global.
    """
    return cls(tuple(model.initial_weights), model.weight_names(local_layers))

  @classmethod
  def by_unit(
    cls,
    model: split_model.SplitModel,
    local_units: Mapping[str, np.ndarray],
    local_layers: Collection[str] = (),
  ) -> WeightPartition:
    """Divides layers by their units and makes all other weights global.

    Args:
      local_units: Masks of local units by layer name, bool `[number]`, as from
        `units.parse`.
      local_layers: Names of further layers that are local as a whole.
    """
    is_local = {}
    for layer, chosen in local_units.items():
      for name, gates in model.units[layer].gates.items():
        is_local[name] = np.tile(chosen, gates)
    is_local.update(dict.fromkeys(model.weight_names(local_layers), np.True_))
    names = tuple(model.initial_weights)
    return cls(
      names,
      tuple(name for name in names if np.any(is_local.get(name, False))),
      {
        name: chosen
        for name, chosen in is_local.items()
        if chosen.any() and not chosen.all()
      },
    )

  def split(self, weights: split_model.Weights) -> tuple:
    """Returns `(global_weights, local_weights)` in the model's order."""
    return self._part(weights, False), self._part(weights, True)

  def local_part(self, weights: split_model.Weights) -> collections.OrderedDict:
    """Returns the local weights and the local slices of divided ones."""
    return self._part(weights, True)

  def _part(self, weights, is_local):
    """Returns the local or the global part of some weights."""
    part = collections.OrderedDict()
    for name in self.local_names if is_local else self.global_names:
      if name in weights:
        value = weights[name]
        if name in self.divided:
          slices = np.flatnonzero(self.divided[name] == is_local)
          take = np.take if isinstance(value, np.ndarray) else tf.gather
          value = take(value, slices, axis=-1)
        part[name] = value
    return part

  def merge(
    self,
    global_weights: split_model.Weights,
    local_weights: split_model.Weights,
  ) -> collections.OrderedDict:
    """Returns all weights in the model's order."""
    merged = split_model.select({**global_weights, **local_weights}, self.names)
    for name, is_local in self.divided.items():
      # A stable sort puts the global slices first and keeps each part's order.
      places = np.argsort(np.argsort(is_local, kind='stable'))
      both = tf.concat([global_weights[name], local_weights[name]], axis=-1)
      merged[name] = tf.gather(both, places, axis=-1)
    return merged
