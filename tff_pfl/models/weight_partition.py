"""Which weights are global (server) and which are local (clients)."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Iterable, Sequence
from typing import Optional

from tff_pfl.models import split_model


@dataclasses.dataclass(frozen=True)
class WeightPartition:
  """A disjoint and complete division of a model's weights.

  Attributes:
    names: All weight names, in the model's order.
    global_names: Weights that are aggregated and live at the server.
    local_names: Weights that never leave their client.

  Raises:
    ValueError: If a weight is in both parts, in neither, or unknown; the
      message names the offending weights.
  """

  names: Sequence[str]
  global_names: Sequence[str]
  local_names: Sequence[str]

  def __post_init__(self):
    known = set(self.names)
    parts = (set(self.global_names), set(self.local_names))
    for offending, what in (
      (parts[0] & parts[1], 'are both global and local'),
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
      model: The model.
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

  def split(self, weights: split_model.Weights) -> tuple:
    """Returns `(global_weights, local_weights)` in the model's order."""
    return (
      split_model.select(weights, self.global_names),
      split_model.select(weights, self.local_names),
    )

  def merge(
    self,
    global_weights: split_model.Weights,
    local_weights: split_model.Weights,
  ) -> collections.OrderedDict:
    """Returns all weights in the model's order."""
    both = {**global_weights, **local_weights}
    return split_model.select(both, self.names)
