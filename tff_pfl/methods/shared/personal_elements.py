"""Clients' own hidden units, under a partition from the server.

Every unit of the divided layers is shared or personal, which may change from
round to round (`is_shared`: by layer, bool `[number]`). A client trains with
the global slices of the shared units and its own ones of the personal units. It
keeps, in the shapes of the layers' weights:

    values   by weight, all slices of its last training
    is_own   bool, False for a client that never trained: it has the global ones

So it keeps slices of shared units, too, which the next download replaces. A
unit that turns personal goes on from the client's own last trained slices; one
that turns shared from the mean of the trained slices of those who take part.
Clients that sit out keep their state.
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

  def __init__(
    self,
    model: split_model.SplitModel,
    layers: Collection[str],
    kernels_only: bool = False,
  ):
    """Prepares the division.

    Args:
      layers: The layers of which any unit may become personal.
      kernels_only: True to divide kernels alone; the layers' other weights are
        personal as a whole.
    """
    self._model = model
    # By weight, its layer and its number of blocks with a slice per unit.
    self._owned = {
      name: (layer, model.units[layer].gates[name])
      for name in model.initial_weights
      for layer in layers
      if name in model.units[layer].gates
    }
    self._undivided = {
      name
      for name, (layer, _) in self._owned.items()
      if kernels_only and name not in model.units[layer].kernels
    }

  @property
  def initial_local(self) -> collections.OrderedDict:
    """The state of a client without own units (arrays)."""
    return collections.OrderedDict(
      values=self._values_of(self._model.initial_weights),
      is_own=np.bool_(False),
    )

  def merge(
    self, global_weights: split_model.Weights, local: Any, is_shared: IsShared
  ) -> collections.OrderedDict:
    """All weights of a client's model: the server's and its own units'."""
    merged = self._with_personal(global_weights, local['values'], is_shared)
    merged.update(
      (name, tf.where(local['is_own'], merged[name], global_weights[name]))
      for name in self._owned
    )
    return merged

  def fit(
    self,
    client: client_lib.Client,
    is_shared: IsShared,
    phase: phases.Phase,
  ) -> Any:
    """Trains the client's own units, all else frozen; returns its state."""
    start = self.merge(client.received, client.local, is_shared)
    values = client.fit_part(
      self._values_of(start),
      lambda own: self._with_personal(client.received, own, is_shared),
      self._values_of,
      phase,
      model=self._model,
    ).weights
    return collections.OrderedDict(values=values, is_own=tf.constant(True))

  def trained(
    self,
    global_weights: split_model.Weights,
    trained: split_model.Weights,
    is_shared: IsShared,
  ) -> tuple:
    """Divides the result of a client's training.

    Args:
      global_weights: All weights, the server's, before the training.
      trained: All weights after the training.
      is_shared: The partition that was found after it.

    Returns:
      The update, which takes the server's shared slices to the trained ones and
      is 0 for personal units, and the client's new state.
    """
    update = split_model.difference(global_weights, trained)
    zeros = tf.nest.map_structure(tf.zeros_like, update)
    return self._with_personal(update, zeros, is_shared), (
      collections.OrderedDict(
        values=self._values_of(trained), is_own=tf.constant(True)
      )
    )

  def _values_of(self, weights):
    """Those of some weights that a client keeps."""
    return collections.OrderedDict(
      (name, weights[name]) for name in self._owned if name in weights
    )

  def _with_personal(self, shared, personal, is_shared):
    """`shared`, by weight, with the personal units' slices of `personal`."""
    merged = collections.OrderedDict(shared)
    for name, (layer, gates) in self._owned.items():
      merged[name] = personal[name]
      if name not in self._undivided:
        merged[name] = tf.where(
          tf.tile(is_shared[layer], [gates]), shared[name], personal[name]
        )
    return merged
