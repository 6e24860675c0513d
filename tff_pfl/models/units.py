"""Units of a layer and their slices of its weights.

A unit is a neuron of a dense layer, a channel of a convolution or a unit of a
recurrent layer. All parameters that produce it are slices along the last axis
of the layer's weights: a column of the kernel and a number of the bias, or one
of each for every gate of a recurrent unit. The parameters of a normalization
that directly follows also belong to the unit.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tff_pfl import errors

_RANGE = re.compile(r'(\d+)(?:-(\d+))?')


class LayerUnits(NamedTuple):
  """The units of a layer.

  Attributes:
    number: Number of units.
    gates: Number of blocks along a weight's last axis, by weight name, each
      with one slice per unit: 1, or the number of gates of a recurrent unit.
    kernels: Names of the weights that multiply the layer's inputs or its state.
  """

  number: int
  gates: Mapping[str, int]
  kernels: tuple


def as_vectors(
  units: LayerUnits, weights: Mapping[str, tf.Tensor]
) -> tf.Tensor:
  """Returns the kernels of a layer as a matrix with a column for each unit.

  Args:
    units: The layer's units.
    weights: Values by weight name, including the layer's kernels.

  Returns:
    `[rows, number]`.
  """
  return tf.concat(
    # Each gate of a recurrent unit adds rows.
    [tf.reshape(weights[name], [-1, units.number]) for name in units.kernels],
    axis=0,
  )


def check_layers(
  units: Mapping[str, LayerUnits],
  layers: Sequence[str],
  known: Sequence,
  argument: str = 'layers',
) -> None:
  """Raises `ValueError` unless every layer exists and has units.

  Args:
    units: Units by layer name, for layers that have any.
    layers: Names to check.
    known: Names of all layers with weights.
    argument: Name of `layers` in the error.
  """
  errors.expect(
    layers, argument, f'names of layers ({", ".join(units)})', 'none'
  )
  for layer in layers:
    errors.expect(
      layer in units,
      argument,
      'names of layers that can be divided: dense, convolution and recurrent '
      f'ones ({", ".join(units) or "the model has none"})',
      f'{layer!r}, which is of another kind' if layer in known else layer,
    )


def parse(
  text: str,
  units: Mapping[str, LayerUnits],
  known: Sequence[str],
  argument: str = 'units',
) -> Mapping[str, np.ndarray]:
  """Reads units from a text such as `dense_1:0-49,dense_1:60,dense_2`.

  Args:
    text: Layers, separated by commas, each with a unit or a range of units
      (counted from 0, the last included). A layer alone stands for all its
      units. A layer may occur several times.
    units: Units by layer name, for layers that have any.
    known: Names of all layers with weights.
    argument: Name of `text` in the error.

  Returns:
    A mask of the chosen units by layer name, bool `[number]`, in the model's
    order.
  """
  chosen = {}
  for part in filter(None, (part.strip() for part in text.split(','))):
    layer, _, span = part.partition(':')
    check_layers(units, [layer], known, argument)
    number = units[layer].number
    match = _RANGE.fullmatch(span or f'0-{number - 1}')
    first, last = match.groups() if match else ('1', '0')
    first, last = int(first), int(last or first)
    errors.expect(
      first <= last < number,
      argument,
      f'parts such as {layer}:0-{number - 1}, {layer}:0 or {layer}',
      part,
    )
    mask = chosen.setdefault(layer, np.zeros(number, bool))
    mask[first : last + 1] = True
  return {layer: chosen[layer] for layer in units if layer in chosen}
