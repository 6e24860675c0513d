"""Convolutions of many clients, each with its own filters, as one product.

TensorFlow vectorizes a convolution only if all clients have the same filters.
Here it becomes a matrix product of input patches and filters, which vectorizes.
A client that runs alone uses TensorFlow's own convolution.
"""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tff_pfl.system.private_api import pfor_converters, wrap


def _product_of(
  pfor_input: Any, image: tf.TensorShape, filters: tf.TensorShape
) -> Callable[[tf.Tensor, tf.Tensor], tf.Tensor]:
  """Returns the operation's convolution, for `[clients, ...]` values."""
  if pfor_input.get_attr('data_format') != b'NHWC':
    raise NotImplementedError('Conv2D with channels first and several filters.')
  if image[3] != filters[2] or None in (*image[1:], *filters):
    raise NotImplementedError('Conv2D in groups, or of unknown sizes.')
  strides = list(pfor_input.get_attr('strides')[1:3])
  dilations = pfor_input.get_attr('dilations')[1:3]
  # The distance from the first element of a filter to the last.
  extents = [(k - 1) * d for k, d in zip(filters[:2], dilations)]
  padding = pfor_input.get_attr('padding')
  pads = [(0, 0), (0, 0)]
  if padding == b'EXPLICIT':
    explicit = pfor_input.get_attr('explicit_paddings')
    pads = [explicit[2:4], explicit[4:6]]
  elif padding == b'SAME':
    # The formula in TensorFlow's documentation.
    totals = [
      max((-(-n // s) - 1) * s + extent + 1 - n, 0)
      for n, s, extent in zip(image[1:3], strides, extents)
    ]
    pads = [(total // 2, total - total // 2) for total in totals]

  def product(images, own_filters):
    num = tf.shape(own_filters)[0]
    padded = tf.reshape(images, [-1, *image[1:]])
    padded = tf.pad(padded, [(0, 0), *pads, (0, 0)])
    rows, columns = (
      n - extent for n, extent in zip(padded.shape[1:3], extents)
    )
    # Slices of all positions come before strides: their gradient is a padding.
    parts = [
      tf.slice(padded, [0, i, j, 0], [-1, rows, columns, -1])
      for i in range(0, extents[0] + 1, dilations[0])
      for j in range(0, extents[1] + 1, dilations[1])
    ]
    if strides != [1, 1]:
      parts = [part[:, :: strides[0], :: strides[1]] for part in parts]
    # `[n, places, places, kernel * kernel * channels]`
    patches = tf.concat(parts, -1)
    matrix = tf.reshape(own_filters, [num, patches.shape[-1], filters[3]])
    outputs = tf.reshape(patches, [num, -1, patches.shape[-1]]) @ matrix
    return tf.reshape(outputs, [num, -1, *patches.shape[1:3], filters[3]])

  return product


def _convolution(pfor_input: Any) -> tf.Tensor:
  product = _product_of(pfor_input, *(v.shape for v in pfor_input.op.inputs))
  pfor_input.stack_inputs([0, 1])
  return product(*map(pfor_input.stacked_input, (0, 1)))


def _input_gradient(pfor_input: Any) -> tf.Tensor:
  image, filters = pfor_input.op.outputs[0].shape, pfor_input.op.inputs[1].shape
  product = _product_of(pfor_input, image, filters)
  pfor_input.stack_inputs([1, 2])
  filters, slope = map(pfor_input.stacked_input, (1, 2))
  # A product is linear in the images, so any images give the same gradient.
  shape = [*tf.unstack(tf.shape(slope)[:2]), *image[1:]]
  images = tf.zeros(shape, slope.dtype)
  with tf.GradientTape() as tape:
    tape.watch(images)
    outputs = product(images, filters)
  return tape.gradient(outputs, images, slope)


def _filter_gradient(pfor_input: Any) -> tf.Tensor:
  image, filters = pfor_input.op.inputs[0].shape, pfor_input.op.outputs[0].shape
  product = _product_of(pfor_input, image, filters)
  pfor_input.stack_inputs([0, 2])
  images, slope = map(pfor_input.stacked_input, (0, 2))
  filters = tf.zeros([tf.shape(slope)[0], *filters], slope.dtype)
  with tf.GradientTape() as tape:
    tape.watch(filters)
    outputs = product(images, filters)
  return tape.gradient(outputs, filters, slope)


def _replace(kind: str, position: int, convert: Callable[[Any], tf.Tensor]):
  """Extends TensorFlow's rule to an input that differs between clients."""
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
