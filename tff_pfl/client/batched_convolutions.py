"""Convolutions of many clients, each with its own filters, as one product.

TensorFlow vectorizes a convolution only where all clients have the same
filters. Here a convolution is written as a product of matrices, the patches of
its input and the filters, which vectorizes. A client that runs alone has
TensorFlow's own convolution.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf

from tff_pfl.runtime.private_api import pfor_converters, wrap


class _Window(NamedTuple):
  """How a filter moves over an image; each pair is of rows and columns."""

  kernel: tuple[int, int]
  image: tuple[int, int]
  strides: tuple[int, int]
  dilations: tuple[int, int]
  padding: tuple[tuple[int, int], tuple[int, int]]

  @property
  def padded(self) -> tuple[int, int]:
    """The image's size with padding."""
    return tuple(n + sum(p) for n, p in zip(self.image, self.padding))

  @property
  def places(self) -> tuple[int, int]:
    """How many places the filter has."""
    return tuple(
      (n - (k - 1) * d - 1) // s + 1
      for n, k, d, s in zip(
        self.padded, self.kernel, self.dilations, self.strides
      )
    )

  def starts(self) -> list[tuple[int, int]]:
    """Where each of the filter's elements first lies in the padded image."""
    return [
      (row * self.dilations[0], column * self.dilations[1])
      for row, column in itertools.product(*map(range, self.kernel))
    ]


def _window(
  pfor_input: Any, image: tf.TensorShape, filters: tf.TensorShape
) -> _Window:
  """The window of an operation, from its static shapes and attributes."""
  if pfor_input.get_attr('data_format') != b'NHWC':
    raise NotImplementedError('Conv2D with channels first and several filters.')
  if image[3] != filters[2] or None in (*image[1:], *filters):
    raise NotImplementedError('Conv2D in groups, or of unknown sizes.')
  strides = tuple(pfor_input.get_attr('strides')[1:3])
  dilations = tuple(pfor_input.get_attr('dilations')[1:3])
  padding = pfor_input.get_attr('padding')
  if padding == b'EXPLICIT':
    explicit = pfor_input.get_attr('explicit_paddings')
    pads = (tuple(explicit[2:4]), tuple(explicit[4:6]))
  elif padding == b'VALID':
    pads = ((0, 0), (0, 0))
  else:
    # As TensorFlow's documentation of "SAME" has it.
    totals = [
      max((-(-n // s) - 1) * s + (k - 1) * d + 1 - n, 0)
      for n, k, d, s in zip(image[1:3], filters[:2], dilations, strides)
    ]
    pads = tuple((total // 2, total - total // 2) for total in totals)
  return _Window(
    tuple(filters[:2]), tuple(image[1:3]), strides, dilations, pads
  )


def _patches(images: tf.Tensor, window: _Window) -> tf.Tensor:
  """`[n, rows, columns, c]` to `[n, places, places, kernel * kernel * c]`."""
  padded = tf.pad(images, [(0, 0), *window.padding, (0, 0)])
  rows, columns = (
    (places - 1) * stride + 1
    for places, stride in zip(window.places, window.strides)
  )
  return tf.concat(
    [
      padded[
        :,
        row : row + rows : window.strides[0],
        column : column + columns : window.strides[1],
      ]
      for row, column in window.starts()
    ],
    -1,
  )


def _sum_of_patches(patches: tf.Tensor, window: _Window) -> tf.Tensor:
  """The transpose of `_patches`."""
  starts = window.starts()
  total = 0.0
  for part, (row, column) in zip(tf.split(patches, len(starts), -1), starts):
    part = _spread(part, window.strides)
    missing = [
      size - start - part.shape[axis]
      for axis, size, start in zip((1, 2), window.padded, (row, column))
    ]
    total += tf.pad(
      part, [(0, 0), (row, missing[0]), (column, missing[1]), (0, 0)]
    )
  (top, _), (left, _) = window.padding
  rows, columns = window.image
  return total[:, top : top + rows, left : left + columns]


def _spread(values: tf.Tensor, strides: tuple[int, int]) -> tf.Tensor:
  """Puts `stride - 1` zeros between rows, and between columns."""
  if strides == (1, 1):
    return values
  _, rows, columns, channels = values.shape
  down, right = strides
  apart = tf.pad(
    values[:, :, tf.newaxis, :, tf.newaxis],
    [(0, 0), (0, 0), (0, down - 1), (0, 0), (0, right - 1), (0, 0)],
  )
  joined = tf.reshape(apart, [-1, rows * down, columns * right, channels])
  return joined[:, : (rows - 1) * down + 1, : (columns - 1) * right + 1]


def _rows(values: tf.Tensor, num_clients: tf.Tensor) -> tf.Tensor:
  """`[..., k]` to `[clients, rows, k]`, for values of one client by another."""
  return tf.reshape(values, [num_clients, -1, values.shape[-1]])


def _patch_rows(images: tf.Tensor, window: _Window) -> tf.Tensor:
  """`[clients, n, rows, columns, c]` to the patches of each client's places."""
  merged = tf.reshape(images, [-1, *window.image, images.shape[-1]])
  return _rows(_patches(merged, window), tf.shape(images)[0])


def _convolution(pfor_input: Any) -> tf.Tensor:
  image, filters = (pfor_input.op.inputs[i].shape for i in (0, 1))
  window = _window(pfor_input, image, filters)
  pfor_input.stack_inputs([0, 1])
  x, filters = pfor_input.stacked_input(0), pfor_input.stacked_input(1)
  num = tf.shape(x)[0]
  rows = _patch_rows(x, window)
  product = rows @ tf.reshape(filters, [num, rows.shape[2], filters.shape[-1]])
  return tf.reshape(product, [num, -1, *window.places, filters.shape[-1]])


def _input_gradient(pfor_input: Any) -> tf.Tensor:
  image, filters = pfor_input.op.outputs[0].shape, pfor_input.op.inputs[1].shape
  window = _window(pfor_input, image, filters)
  pfor_input.stack_inputs([1, 2])
  filters, slope = pfor_input.stacked_input(1), pfor_input.stacked_input(2)
  num = tf.shape(slope)[0]
  kernel = tf.reshape(filters, [num, -1, filters.shape[-1]])
  patches = tf.matmul(_rows(slope, num), kernel, transpose_b=True)
  size = window.kernel[0] * window.kernel[1] * image[3]
  slope = _sum_of_patches(
    tf.reshape(patches, [-1, *window.places, size]), window
  )
  return tf.reshape(slope, [num, -1, *image[1:]])


def _filter_gradient(pfor_input: Any) -> tf.Tensor:
  image, filters = pfor_input.op.inputs[0].shape, pfor_input.op.outputs[0].shape
  window = _window(pfor_input, image, filters)
  pfor_input.stack_inputs([0, 2])
  x, slope = pfor_input.stacked_input(0), pfor_input.stacked_input(2)
  slope = _rows(slope, tf.shape(slope)[0])
  product = tf.matmul(_patch_rows(x, window), slope, transpose_a=True)
  return tf.reshape(product, [-1, *filters])


def _replace(kind: str, position: int, convert: Callable[[Any], tf.Tensor]):
  """Adds to TensorFlow's rule one for several values of an input."""
  convert_shared = pfor_converters[kind]

  def rule(pfor_input):
    if pfor_input.input(position).is_stacked:
      return wrap(convert(pfor_input), True)
    return convert_shared(pfor_input)

  pfor_converters[kind] = rule


_replace('Conv2D', 1, _convolution)
_replace('Conv2DBackpropInput', 1, _input_gradient)
# TensorFlow's own rule computes one client after another.
_replace('Conv2DBackpropFilter', 0, _filter_gradient)
