"""Substitutes for training operations that LiteRT lacks.

Each such operation in a function's graph becomes a call of a function that
computes the same with operations that every LiteRT interpreter has.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tff_pfl.models import philox
from tff_pfl.runtime import graph_programs
from tff_pfl.system import graph_defs
from tff_pfl.system.private_api import op_def_registry

_SELU_ALPHA, _SELU_SCALE = 1.6732632423543772, 1.0507009873554805


def substituted(concrete: Any) -> Any:
  """Replaces the operations that LiteRT lacks in a concrete function.

  Args:
    concrete: A concrete function of keyword arguments.

  Returns:
    A concrete function that reads and writes the same variables.
  """
  graph_def = concrete.graph.as_graph_def()
  shapes = {tensor.op.name: tensor.shape for tensor in concrete.inputs}
  for node in graph_def.node:
    # The graph has no shapes for captured inputs.
    if node.name in shapes:
      node.attr['shape'].shape.CopyFrom(shapes[node.name].as_proto())
  _substitute(graph_def)
  graph_defs.make_names_unique(graph_def)
  outputs = concrete.structured_outputs
  names = [tensor.name for tensor in tf.nest.flatten(outputs)]
  imported = graph_programs.import_graph(
    graph_def, [tensor.name for tensor in concrete.inputs], names
  )
  parameters = concrete.structured_input_signature[1]

  def function(**arguments):
    values = [arguments[name] for name in parameters]
    results = imported(*values, *concrete.captured_inputs)
    return tf.nest.pack_sequence_as(outputs, results)

  return tf.function(function, autograph=False).get_concrete_function(
    **parameters
  )


def _substitute(graph_def):
  """Replaces operations in a graph and its library's functions."""
  library = graph_def.library
  substitutes = {}
  for nodes, function in (
    (graph_def.node, None),
    *((function.node_def, function) for function in library.function),
  ):
    outputs = {}
    for node in nodes:
      if node.op in _SUBSTITUTES:
        key = node.op, *map(str, sorted(node.attr.items()))
        if key not in substitutes:
          substitutes[key] = _SUBSTITUTES[node.op](node.attr)
        if substitutes[key] is None:
          continue
        definition = op_def_registry.get(node.op)
        for index, output in enumerate(definition.output_arg):
          name = f'{node.name}:{output.name}:0'
          outputs[name] = f'{node.name}:output:{index}'
        _call(node, substitutes[key].function_def.signature)
    if function is not None:
      for node in nodes:
        node.input[:] = [outputs.get(name, name) for name in node.input]
      for name, value in function.ret.items():
        function.ret[name] = outputs.get(value, value)
  library.function.extend(
    f.function_def for f in substitutes.values() if f is not None
  )


def _call(node, signature):
  """Turns a node into the call of a function."""
  node.op = 'PartitionedCall'
  node.attr.clear()
  node.attr['f'].func.name = signature.name
  for name, arguments in (
    ('Tin', signature.input_arg),
    ('Tout', signature.output_arg),
  ):
    node.attr[name].list.type.extend(argument.type for argument in arguments)


def _traced(function, *specs):
  """Traces a function for arguments of these (shape, dtype) pairs."""

  def scoped(*arguments):
    # The scope prevents clashes with other nodes' names.
    with tf.name_scope('builtin'):
      return function(*arguments)

  return tf.function(scoped, autograph=False).get_concrete_function(
    *(
      tf.TensorSpec(shape, dtype, f'builtin_{index}')
      for index, (shape, dtype) in enumerate(specs)
    )
  )


def _ensure_shape(attributes):
  """Makes a reshape, which sets the static shape without a check."""
  shape = tf.TensorShape(attributes['shape'].shape)

  def reshape(x):
    if shape.rank is None or shape.as_list().count(None) > 1:
      return tf.identity(x)
    return tf.reshape(x, [-1 if size is None else size for size in shape])

  return _traced(reshape, (None, attributes['T'].type))


def _cross_entropy(attributes):
  def cross_entropy(logits, labels):
    logs = tf.nn.log_softmax(logits)
    depth = tf.shape(logits)[1]
    hits = tf.one_hot(tf.cast(labels, tf.int32), depth, dtype=logits.dtype)
    # Not a product: the logarithm of an impossible class is infinite.
    losses = tf.where(hits > 0, -logs, tf.zeros_like(logs))
    return tf.reduce_sum(losses, axis=1), tf.nn.softmax(logits) - hits

  return _traced(
    cross_entropy,
    ([None, None], attributes['T'].type),
    ([None], attributes['Tlabels'].type),
  )


def _broadcast_axes(attributes):
  """Makes the substitute that finds the axes to sum gradients over."""

  def broadcast_axes(a, b):
    rank = tf.maximum(tf.size(a), tf.size(b))
    a, b = (
      tf.concat([tf.ones(rank - tf.size(s), s.dtype), s], 0) for s in (a, b)
    )
    return [
      tf.cast(tf.where(tf.logical_and(s == 1, a != b))[:, 0], s.dtype)
      for s in (a, b)
    ]

  return _traced(broadcast_axes, *[([None], attributes['T'].type)] * 2)


def _random_integers(attributes):
  dtype = tf.as_dtype(attributes['dtype'].type)
  if dtype.size != 4:
    return None

  def integers(shape, key, counter, algorithm):
    del algorithm
    # LiteRT cannot reshape 64-bit integers.
    key, counter = (
      tf.reshape(tf.bitcast(value, tf.int32), [1, -1])
      for value in (key, counter)
    )
    numbers = philox.integers(shape, key, counter, _wide_product, tf.int32)
    return tf.bitcast(numbers[0], dtype)

  return _traced(
    integers,
    ([None], attributes['Tshape'].type),
    ([1], tf.uint64),
    ([2], tf.uint64),
    ([], tf.int32),
  )


def _wide_product(x, factor):
  """Returns the upper and the lower 32 bits of a product."""
  x_high, x_low = _halves(x)
  high, low = (_uint32(half) for half in divmod(factor, 1 << 16))
  upper, lower = _halves(x_high * low + _halves(x_low * low)[0])
  upper += x_high * high + _halves(x_low * high + lower)[0]
  return upper, x * _uint32(factor)


def _halves(x):
  high = tf.bitwise.right_shift(x, _uint32(16))
  return high, _minus(x, high * _uint32(1 << 16))


def _minus(x, y):
  # LiteRT has only sums and products for unsigned integers.
  return x + y * _uint32((1 << 32) - 1)


def _and(attributes):
  dtype = tf.as_dtype(attributes['T'].type)

  def bitwise_and(x, y):
    x, y = (tf.bitcast(value, tf.uint32) for value in (x, y))
    # x + y = 2 (x & y) + (x ^ y) if the sum does not overflow.
    a, b = (tf.bitwise.right_shift(value, _uint32(1)) for value in (x, y))
    upper = tf.bitwise.right_shift(
      _minus(a + b, tf.bitwise.bitwise_xor(a, b)), _uint32(1)
    )
    lowest = _minus(x, a + a) * _minus(y, b + b)
    return tf.bitcast(upper + upper + lowest, dtype)

  return _traced(bitwise_and, (None, dtype), (None, dtype))


def _elementwise(function):
  """Makes a substitute from a function of two tensors and maybe `alpha`."""

  def make(attributes):
    dtype = attributes['T'].type
    alpha = [attributes['alpha'].f] if 'alpha' in attributes else []
    return _traced(
      lambda x, y: function(x, y, *alpha), (None, dtype), (None, dtype)
    )

  return make


def _where(condition, gradient, other=0.0):
  return tf.where(condition, gradient, other * gradient)


# The gradients of ELU and SELU take the outputs, the others the features.
_GRADIENTS = {
  'EluGrad': lambda dy, y: _where(y > 0, dy, y + 1),
  'LeakyReluGrad': lambda dy, x, alpha: _where(x > 0, dy, alpha),
  'Relu6Grad': lambda dy, x: _where(tf.logical_and(x > 0, x < 6), dy),
  'ReluGrad': lambda dy, x: _where(x > 0, dy),
  'SeluGrad': lambda dy, y: _where(
    y > 0, _SELU_SCALE * dy, y / _SELU_SCALE + _SELU_ALPHA
  ),
  'SoftsignGrad': lambda dy, x: dy / tf.square(1 + tf.abs(x)),
}


class _Windows:
  """The windows of a convolution or pooling of NHWC images.

  Pairs are (rows, columns).

  Attributes:
    is_valid: True if all windows lie within the images.
    is_simple: True if their gradient may have a substitute.
    are_apart: True if they neither overlap nor leave gaps.
  """

  def __init__(self, attributes):
    def pair(name):
      known = name in attributes
      return list(attributes[name].list.i)[1:3] if known else [1, 1]

    self.size = pair('ksize')
    self.strides, self.dilations = pair('strides'), pair('dilations')
    padding = attributes['padding'].s
    self.is_valid = padding == b'VALID'
    self.is_simple = attributes['data_format'].s == b'NHWC' and (
      self.is_valid or padding == b'SAME'
    )
    self.are_apart = self.size == self.strides

  def paddings(self, images, sizes, counts):
    """Returns the padding around the images, int32 `[4, 2]`."""
    paddings = [[0, 0]]
    for axis in (0, 1):
      length = (counts[axis] - 1) * self.strides[axis]
      length += (sizes[axis] - 1) * self.dilations[axis] + 1
      total = tf.maximum(length - images[axis], 0)
      paddings.append([total // 2, total - total // 2])
    return tf.convert_to_tensor([*paddings, [0, 0]])


def _filter_gradient(attributes):
  windows = _Windows(attributes)
  if not windows.is_simple:
    return None

  def filter_gradient(images, filter_sizes, gradient):
    counts = tf.shape(gradient)[1:3]
    images = tf.pad(
      images, windows.paddings(tf.shape(images)[1:3], filter_sizes, counts)
    )
    for axis in (0, 1):
      # All rows (columns) at the filter's first row, then at its second, etc.
      places = windows.dilations[axis] * tf.range(filter_sizes[axis])
      firsts = windows.strides[axis] * tf.range(counts[axis])
      places = tf.reshape(places[:, tf.newaxis] + firsts, [-1])
      images = tf.gather(images, places, axis=axis + 1)
    shape = tf.shape(images)
    images = tf.reshape(
      images,
      [
        shape[0],
        filter_sizes[0],
        counts[0],
        filter_sizes[1],
        counts[1],
        shape[3],
      ],
    )
    images = tf.transpose(images, [1, 3, 5, 0, 2, 4])
    return tf.reshape(
      tf.matmul(
        tf.reshape(images, [tf.reduce_prod(filter_sizes[:3]), -1]),
        tf.reshape(gradient, [-1, filter_sizes[3]]),
      ),
      filter_sizes,
    )

  image = [None] * 4, attributes['T'].type
  return _traced(filter_gradient, image, ([4], tf.int32), image)


def _max_pool_gradient(attributes):
  windows = _Windows(attributes)
  if not windows.is_simple or not windows.are_apart:
    return None
  rows, columns = windows.size

  def max_pool_gradient(images, outputs, gradient):
    shape, counts = tf.shape(images), tf.shape(outputs)
    paddings = windows.paddings(shape[1:3], windows.size, counts[1:3])
    images = tf.pad(images, paddings, constant_values=images.dtype.min)
    whole = [counts[0], counts[1], rows, counts[2], columns, counts[3]]
    images = images[:, : counts[1] * rows, : counts[2] * columns]
    images = tf.transpose(tf.reshape(images, whole), [0, 1, 3, 5, 2, 4])
    places = tf.argmax(
      tf.reshape(images, tf.concat([counts, [rows * columns]], 0)), axis=4
    )
    # The first maximum of a window gets the whole gradient.
    hits = tf.one_hot(places, rows * columns, dtype=gradient.dtype)
    spread = tf.reshape(
      hits * gradient[..., tf.newaxis],
      tf.concat([counts, [rows, columns]], 0),
    )
    return _unpooled(tf.transpose(spread, [0, 1, 4, 2, 5, 3]), shape, paddings)

  image = [None] * 4, attributes['T'].type
  return _traced(max_pool_gradient, image, image, image)


def _average_pool_gradient(attributes):
  windows = _Windows(attributes)
  if not (windows.is_simple and windows.is_valid and windows.are_apart):
    return None
  rows, columns = windows.size

  def average_pool_gradient(shape, gradient):
    spread = gradient[:, :, tf.newaxis, :, tf.newaxis] / (rows * columns)
    spread = tf.tile(spread, [1, 1, rows, 1, columns, 1])
    return _unpooled(spread, shape, tf.zeros([4, 2], tf.int32))

  image = [None] * 4, attributes['T'].type
  return _traced(average_pool_gradient, ([4], tf.int32), image)


def _unpooled(values, shape, paddings):
  """Makes images from windows `[n, rows, row, columns, column, channels]`."""
  sizes = tf.shape(values)
  values = tf.reshape(
    values, [sizes[0], sizes[1] * sizes[2], sizes[3] * sizes[4], sizes[5]]
  )
  # Rows and columns after the last window are 0.
  missing = shape + paddings[:, 0] - tf.shape(values)
  values = tf.pad(
    values, tf.stack([tf.zeros_like(missing), tf.maximum(missing, 0)], 1)
  )
  return tf.reshape(tf.slice(values, paddings[:, 0], shape), shape)


def _uint32(number):
  return tf.constant(number, tf.uint32)


# Operation to a function from a node's attributes to its substitute, a concrete
# function. If that is None, the converter refuses the node.
_SUBSTITUTES = {
  **{name: _elementwise(function) for name, function in _GRADIENTS.items()},
  'AvgPoolGrad': _average_pool_gradient,
  'BitwiseAnd': _and,
  'BroadcastGradientArgs': _broadcast_axes,
  'Conv2DBackpropFilter': _filter_gradient,
  'EnsureShape': _ensure_shape,
  'MaxPoolGrad': _max_pool_gradient,
  'SparseSoftmaxCrossEntropyWithLogits': _cross_entropy,
  'StatelessRandomUniformFullIntV2': _random_integers,
}
