"""The hidden elements of a layer, and the slices of weights that make them.

An element is a neuron of a dense layer, a channel of a convolution or a unit of
a recurrent layer. All parameters that produce it are slices along the last axis
of the layer's weights: a column of the kernel, a number of the bias, of a
recurrent unit one column for each gate. Those of a normalization that directly
follows belong to the element, too.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tff_pfl import errors

_RANGE = re.compile(r'(\d+)(?:-(\d+))?')


class HiddenElements(NamedTuple):
  """The elements of a layer.

  Attributes:
    number: How many there are.
    gates: From the name of each weight that belongs to them to how often they
      occur along its last axis, one block after the other: once, or as often as
      a recurrent unit has gates.
    kernels: The names of those weights that multiply the layer's inputs (or its
      state): their slices are what an element computes.
  """

  number: int
  gates: Mapping[str, int]
  kernels: tuple


def as_vectors(
  elements: HiddenElements, weights: Mapping[str, tf.Tensor]
) -> tf.Tensor:
  """The parameters of each element, as the columns of a matrix.

  Args:
    elements: Those of one layer.
    weights: Name to value, of the layer's kernels at least.

  Returns:
    `[rows, number]`: the kernels' slices flattened.
  """
  return tf.concat(
    # A recurrent unit's gates become rows of their own.
    [
      tf.reshape(weights[name], [-1, elements.number])
      for name in elements.kernels
    ],
    axis=0,
  )


def check_layers(
  elements: Mapping[str, HiddenElements], layers: Sequence[str], known: Sequence
) -> None:
  """Raises `ValueError` unless each layer is there and can be divided.

  Args:
    elements: By layer, of the layers that can be divided.
    layers: The names to check.
    known: The names of all layers with weights.
  """
  errors.expect(
    layers, 'layers', f'names of layers ({", ".join(elements)})', 'none'
  )
  errors.expect(
    len(set(layers)) == len(layers), 'layers', 'distinct', ', '.join(layers)
  )
  for layer in layers:
    errors.expect(
      layer in elements,
      'layers',
      'names of layers that can be divided: dense, convolution and recurrent '
      f'ones ({", ".join(elements) or "the model has none"})',
      f'{layer!r}' + (', which is of another kind' if layer in known else ''),
    )


def parse(
  text: str, elements: Mapping[str, HiddenElements], known: Sequence[str]
) -> Mapping[str, np.ndarray]:
  """Elements of layers from a text such as `dense_1:0-49,dense_1:60,dense_2`.

  Args:
    text: Layers, each with a range of elements (from 0 on, the last included)
      or an element; without any, all. What is said of a layer adds up.
    elements: By layer, of the layers that can be divided.
    known: The names of all layers with weights.

  Returns:
    By layer, in the order in which the model has them, which elements are
    named: bool `[number]`.

  Raises:
    ValueError: If the text is none of that, or names what there is not.
  """
  chosen = {}
  for part in filter(None, (part.strip() for part in text.split(','))):
    layer, _, span = part.partition(':')
    check_layers(elements, [layer], known)
    number = elements[layer].number
    found = _RANGE.fullmatch(span or f'0-{number - 1}')
    errors.expect(
      found,
      'elements',
      'parts such as dense_1:0-49, dense_1:60 or dense_1',
      part,
    )
    first, last = int(found[1]), int(found[2] or found[1])
    errors.expect(
      first <= last < number,
      'elements',
      f'of {layer} from 0 to {number - 1}, the smaller first',
      span,
    )
    mask = chosen.setdefault(layer, np.zeros(number, bool))
    mask[first : last + 1] = True
  return {layer: chosen[layer] for layer in elements if layer in chosen}
