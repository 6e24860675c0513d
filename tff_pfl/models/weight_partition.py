"""Which weights are global (server) and which are local (clients)."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Optional

import numpy as np
import tensorflow as tf

from tff_pfl import errors
from tff_pfl.models import hidden_elements, split_model


@dataclasses.dataclass(frozen=True)
class WeightPartition:
  """A disjoint and complete division of a model's weights.

  Attributes:
    names: All weight names, in the model's order.
    global_names: Weights that are aggregated and live at the server.
    local_names: Weights that never leave their client.
    divided: Weights of which a part is global and a part is local, under the
      same name and with the last axis shorter; both lists have them. By name,
      which slices along the last axis are local: bool `[last axis]`.

  Raises:
    ValueError: If a weight that is not divided is in both parts, or one is in
      neither, or unknown; the message names the offending weights.
  """

  names: Sequence[str]
  global_names: Sequence[str]
  local_names: Sequence[str]
  divided: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)

  def __post_init__(self):
    known = set(self.names)
    parts = (set(self.global_names), set(self.local_names))
    divided = set(self.divided)
    for offending, what in (
      ((parts[0] & parts[1]) - divided, 'are both global and local'),
      (divided - (parts[0] & parts[1]), 'are divided and not in both parts'),
      (known - parts[0] - parts[1], 'are neither global nor local'),
      ((parts[0] | parts[1]) - known, 'are not weights of the model'),
    ):
      if offending:
        raise ValueError(
          'Expected `partition` to be disjoint and complete, found weights '
          f'that {what}: {", ".join(sorted(offending))}.'
        )

  @classmethod
  def by_layer(
    cls,
    model: split_model.SplitModel,
    *,
    local_layers: Optional[Iterable[str]] = None,
    global_layers: Optional[Iterable[str]] = None,
  ) -> WeightPartition:
    """Divides by layer names.

    Args:
      local_layers: Names of the layers that are local.
      global_layers: Names of the layers that are global. If only one of the two
        is given, the other is all remaining layers.

    Raises:
      ValueError: If a layer does not exist, or the two lists overlap or leave a
        layer out.
    """
    if local_layers is None and global_layers is None:
      raise ValueError(
        'Expected `local_layers` or `global_layers` to be given, found neither.'
      )
    names = tuple(model.initial_weights)

    def named_or_rest(layers, other):
      if layers is not None:
        return model.weight_names(tuple(layers))
      rest = set(names) - set(model.weight_names(tuple(other)))
      return tuple(name for name in names if name in rest)

    return cls(
      names=names,
      global_names=named_or_rest(global_layers, local_layers),
      local_names=named_or_rest(local_layers, global_layers),
    )

  @classmethod
  def by_element(
    cls,
    model: split_model.SplitModel,
    local_elements: Mapping[str, np.ndarray],
  ) -> WeightPartition:
    """Divides layers by their hidden elements; all other weights are global.

    Args:
      local_elements: By layer, which of its elements are local: bool `[number]`
        of `model.elements`.

    Raises:
      ValueError: If a layer cannot be divided, or has another number of
        elements.
    """
    names = tuple(model.initial_weights)
    is_local = {}
    for layer, chosen in local_elements.items():
      hidden_elements.check_layers(model.elements, [layer], model.layers)
      elements = model.elements[layer]
      chosen = np.asarray(chosen)
      errors.expect(
        chosen.dtype == bool and chosen.shape == (elements.number,),
        'local_elements',
        f'a truth value for each of the {elements.number} elements of {layer}',
        f'{chosen.dtype} {chosen.shape}',
      )
      for name, gates in elements.gates.items():
        is_local[name] = np.tile(chosen, gates)
    return cls(
      names=names,
      global_names=tuple(
        n for n in names if n not in is_local or not is_local[n].all()
      ),
      local_names=tuple(
        n for n in names if n in is_local and is_local[n].any()
      ),
      divided={
        name: chosen
        for name, chosen in is_local.items()
        if chosen.any() and not chosen.all()
      },
    )

  def split(self, weights: split_model.Weights) -> tuple:
    """Returns `(global_weights, local_weights)` in the model's order."""
    return self._part(weights, False), self._part(weights, True)

  def local_part(self, weights: split_model.Weights) -> collections.OrderedDict:
    """Of some of the model's weights, those that are local, or their slices."""
    return self._part(weights, True)

  def _part(self, weights, of_client):
    """The part of some weights that is local, or that is global."""
    part = collections.OrderedDict()
    for name in self.local_names if of_client else self.global_names:
      if name in weights:
        value = weights[name]
        if name in self.divided:
          slices = np.flatnonzero(self.divided[name] == of_client)
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
      # A stable sort has the global slices first, each part in its order.
      places = np.argsort(np.argsort(is_local, kind='stable'))
      both = tf.concat([global_weights[name], local_weights[name]], axis=-1)
      merged[name] = tf.gather(both, places, axis=-1)
    return merged
