"""Calls of Keras layers as pure functions of their weights.

A layer reads `tf.Variable`s, wherever it holds them. For the duration of a call
they give the tensors that the caller gives. Two more things of Keras are
replaced for so long: a layer's random generator by one that draws from a seed,
and what batch normalization does, which assigns. A layer that still assigns or
draws by itself is found in the traced graph and refused by name.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import threading

import tensorflow as tf

from tff_pfl import errors
from tff_pfl.models import keras_graph, randomness, split_model

keras = tf.keras

_BATCH_NORMALIZATION = keras.layers.BatchNormalization
_DROPOUT = (
  keras.layers.Dropout,
  keras.layers.SpatialDropout1D,
  keras.layers.SpatialDropout2D,
  keras.layers.SpatialDropout3D,
)
# How the names of operations begin that give something else each time.
_IMPURE = (
  'Random',
  'Truncated',
  'Parameterized',
  'Multinomial',
  'PyFunc',
  'Eager',
)
# Layers are shared between the pure calls of one Keras model, and tracing may
# happen on several threads.
_SWAP_LOCK = threading.RLock()


def check_layers(model, nodes):
  """Raises `ValueError` if a layer cannot be made pure."""
  for layer in model.layers:
    for module in keras_graph.layers_within(layer):
      reason = _reason_against(module, layer)
      if reason is not None:
        keras_graph.refuse(layer, reason)
    if len(layer.losses) > len(_penalties(layer)):
      keras_graph.refuse(
        layer, 'adds a loss that is no regularizer of a weight'
      )
  for node in nodes:
    if isinstance(
      node.layer, _BATCH_NORMALIZATION
    ) and keras_graph.masked_tensors(node.keras_inputs):
      keras_graph.refuse(
        node.layer, 'normalizes a masked sequence (mask_zero=True, say)'
      )


def _reason_against(module, layer):
  """Why a layer, or one within a layer, cannot be made pure; None if it can."""
  if getattr(module, 'stateful', False) and isinstance(
    module, keras.layers.RNN
  ):
    return 'keeps its state between batches (stateful=True)'
  if getattr(module, 'activity_regularizer', None) is not None:
    return 'has an activity regularizer'
  if isinstance(module, _BATCH_NORMALIZATION):
    if module.virtual_batch_size is not None:
      return 'uses virtual batches'
    if isinstance(layer, keras.layers.TimeDistributed):
      return (
        'normalizes over steps; BatchNormalization does so without '
        'TimeDistributed'
      )
  return None


def _penalties(layer):
  """The regularizers of a layer's weights: functions with a variable bound."""
  losses = [
    loss.args[0]
    for module in keras_graph.layers_within(layer)
    for loss in module._callable_losses  # pylint: disable=protected-access
  ]
  return [
    loss
    for loss in losses
    if isinstance(loss, functools.partial)
    and [isinstance(value, tf.Variable) for value in loss.args] == [True]
  ]


def regularizers(model, variables):
  """Name of a weight to its regularizer, `(weight) -> scalar`."""
  names = {variable.ref(): name for name, variable in variables.items()}
  return {
    names[loss.args[0].ref()]: loss.func
    for layer in model.layers
    for loss in _penalties(layer)
  }


class _Generator:
  """A layer's random generator for one call, with a seed for each draw."""

  def __init__(self, mode, position):
    self._mode = mode
    self._path = [position]

  def make_seed_for_stateless_op(self):
    if not self._mode.training:
      # Of a branch of the graph that is not taken.
      return tf.zeros([2], tf.int32)
    errors.expect(
      self._mode.seed is not None,
      'mode.seed',
      'given when a model has dropout or other random layers',
      None,
    )
    seed = randomness.fold_in(self._mode.seed, *self._path)
    # The next draw, of a layer that is used twice, say.
    self._path = [self._path[0], sum(self._path[1:]) + 1]
    return seed

  def dropout(self, inputs, rate, noise_shape=None):
    errors.expect(rate < 1, 'rate', 'less than 1, or all is dropped', rate)
    keep = randomness.keep_mask(
      self.make_seed_for_stateless_op(),
      tf.shape(inputs) if noise_shape is None else noise_shape,
      rate,
    )
    return tf.where(keep, inputs / (1 - rate), tf.zeros_like(inputs))

  def random_uniform(self, shape, minval=0.0, maxval=None, dtype=None):
    dtype = tf.as_dtype(dtype or tf.float32)
    seed = self.make_seed_for_stateless_op()
    if dtype.is_integer:
      drawn = randomness.uniform_integers(seed, shape, maxval - minval)
      return tf.cast(drawn, dtype) + minval
    maxval = 1.0 if maxval is None else maxval
    drawn = minval + (maxval - minval) * randomness.uniform(seed, shape)
    return tf.cast(drawn, dtype)

  def random_normal(self, shape, mean=0.0, stddev=1.0, dtype=None):
    drawn = randomness.uniform(self.make_seed_for_stateless_op(), shape)
    return tf.cast(mean + stddev * tf.math.ndtri(drawn), dtype or tf.float32)


def _read_as(tensor):
  """The attributes with which a variable has the value of a tensor."""
  return {
    '_handle': tensor,
    'value': lambda: tensor,
    'read_value': lambda: tensor,
    'sparse_read': lambda indices, name=None: tf.gather(tensor, indices),
    'gather_nd': lambda indices, name=None: tf.gather_nd(tensor, indices),
    '_dense_var_to_tensor': (
      lambda dtype=None, name=None, as_ref=False: tf.convert_to_tensor(
        tensor, dtype
      )
    ),
    **dict.fromkeys(('assign', 'assign_add', 'assign_sub'), _assign),
  }


def _assign(*unused_args, **unused_kwargs):
  raise ValueError('It assigns to a weight, which no pure function does.')


class PureCalls:
  """Calls Keras models with tensors in the place of their variables."""

  def __init__(self, model, variables):
    # Those of mixed precision read another one.
    self._variables = {
      name: getattr(variable, '_variable', variable)
      for name, variable in variables.items()
    }
    # Integers, which nobody trains or averages.
    self._constants = [
      (variable, variable.numpy())
      for variable in model.weights
      if not variable.dtype.is_floating
    ]
    within = keras_graph.layers_within(model)
    random = [m for m in within if hasattr(m, '_random_generator')]
    # Seeds go by the number; dropout layers have always had the first ones.
    self._random = sorted(random, key=lambda m: not isinstance(m, _DROPOUT))
    names = {variable.ref(): name for name, variable in variables.items()}
    self._normalizing = [
      (m, names[m.moving_mean.ref()], names[m.moving_variance.ref()])
      for m in within
      if isinstance(m, _BATCH_NORMALIZATION)
    ]

  def bind(self, model):
    """Returns `(weights, inputs, mode) -> (outputs, new_statistics)`."""

    def call(weights, inputs, mode):
      with self._swapped(weights, mode) as new_statistics:
        outputs = model(inputs, training=mode.training)
      return outputs, new_statistics

    # Operations that run at once read variables past Python.
    traced = tf.function(call, autograph=False)

    def pure(weights, inputs, mode=split_model.INFERENCE):
      function = traced if tf.executing_eagerly() else call
      return function(weights, inputs, mode)

    return pure

  @contextlib.contextmanager
  def _swapped(self, weights, mode):
    new_statistics = {}
    saved = []

    def put(owner, **values):
      attributes = vars(owner)
      for attribute, value in values.items():
        saved.append((attributes, attribute, attributes.get(attribute, self)))
        attributes[attribute] = value

    with _SWAP_LOCK:
      try:
        for name, variable in self._variables.items():
          if name in weights:
            put(variable, **_read_as(tf.convert_to_tensor(weights[name])))
        for variable, value in self._constants:
          put(variable, **_read_as(tf.constant(value)))
        for position, layer in enumerate(self._random):
          put(layer, _random_generator=_Generator(mode, position))
        for layer, mean_name, variance_name in self._normalizing:
          put(
            layer,
            call=_pure_batch_normalization(
              layer, mean_name, variance_name, mode, new_statistics
            ),
          )
        yield new_statistics
      finally:
        for attributes, attribute, value in reversed(saved):
          if value is self:
            del attributes[attribute]
          else:
            attributes[attribute] = value
        keras_graph.forget_masks(self._random)


def _pure_batch_normalization(layer, mean_name, variance_name, mode, new):
  @tf.autograph.experimental.do_not_convert
  def call(inputs, training=None, mask=None):
    del mask
    training = training and layer.trainable
    dtype = inputs.dtype
    if dtype.size < 4:
      inputs = tf.cast(inputs, tf.float32)
    rank = inputs.shape.rank
    axes = [axis % rank for axis in layer.axis]
    reduced = [axis for axis in range(rank) if axis not in axes]

    def broadcast(value):
      shape = [
        inputs.shape[axis] if axis in axes else 1 for axis in range(rank)
      ]
      return None if value is None else tf.reshape(value, shape)

    if training:
      weights = tf.ones_like(inputs[..., :1])
      weights = tf.reduce_mean(
        weights, axis=list(range(1, rank)), keepdims=True
      )
      if mode.example_weights is not None:
        weights *= tf.reshape(
          tf.cast(mode.example_weights, inputs.dtype), [-1] + [1] * (rank - 1)
        )
      mean, variance = tf.nn.weighted_moments(inputs, reduced, weights)
      # Keras' fused kernel, used for images, keeps the unbiased variance.
      count = tf.reduce_sum(weights) * tf.cast(
        tf.size(inputs[0]) // tf.size(mean), inputs.dtype
      )
      correction = (
        count / tf.maximum(count - 1, 1) if layer.fused else tf.ones_like(count)
      )
      # A batch of padding only leaves the statistics as they are.
      rate = tf.where(count > 0, tf.cast(1 - layer.momentum, inputs.dtype), 0)
      for name, old, value in (
        (mean_name, layer.moving_mean, mean),
        (variance_name, layer.moving_variance, variance * correction),
      ):
        old = new.get(name, tf.convert_to_tensor(old))
        new[name] = old + rate * (tf.reshape(value, old.shape) - old)
    else:
      mean, variance = layer.moving_mean, layer.moving_variance
    outputs = tf.nn.batch_normalization(
      inputs,
      broadcast(mean),
      broadcast(variance),
      broadcast(layer.beta),
      broadcast(layer.gamma),
      layer.epsilon,
    )
    return tf.cast(outputs, dtype)

  return call


def layer_outputs(model, nodes, layers, pure):
  """`(weights, x) -> OrderedDict` of the outputs of `layers`."""
  outputs = collections.defaultdict(list)
  for node in nodes:
    if node.layer.name in layers:
      outputs[node.layer.name].append(node.outputs)
  # Of a layer that is used once, not a list of one.
  outputs = {
    name: uses[0] if len(uses) == 1 else uses for name, uses in outputs.items()
  }
  call = pure.bind(keras.Model(model.input, outputs))

  def layer_outputs(weights, x):
    by_name, _ = call(weights, x)
    return split_model.select(by_name, layers)

  return layer_outputs


def check_pure(model, variables):
  """Traces the model once; refuses it if it still has a state of its own.

  Returns:
    The types of its operations.
  """
  x_spec = tf.nest.map_structure(
    lambda spec: tf.TensorSpec([None, *spec.shape], spec.dtype),
    model.element_spec['x'],
  )
  y_spec = model.element_spec['y']
  specs = {
    name: tf.TensorSpec(value.shape, value.dtype)
    for name, value in model.initial_weights.items()
  }
  body, head = (
    split_model.select(specs, model.weight_names(layers))
    for layers in (model.body_layers, model.head_layers)
  )
  doing = 'run'

  @tf.function(autograph=False)
  def trace(body, head, x, y, seed):
    nonlocal doing
    mode = split_model.Mode(
      True, seed, tf.ones(tf.shape(tf.nest.flatten(x)[0])[:1])
    )
    # Each reads its own weights only.
    features, statistics = model.body(body, x, mode)
    outputs, new = model.head(head, features, mode)
    doing = 'score'
    metrics = {name: fn(y, outputs) for name, fn in model.metrics.items()}
    return model.loss(y, outputs), metrics, statistics, new

  try:
    concrete = trace.get_concrete_function(
      body,
      head,
      x_spec,
      tf.TensorSpec([None, *y_spec.shape], y_spec.dtype),
      tf.TensorSpec([2], tf.int32),
    )
  except (AttributeError, TypeError, ValueError) as e:
    if doing == 'run':
      raise ValueError(
        'Expected `model` to be made of layers that are functions of their '
        f'weights and inputs, found: {_reason(e)}'
      ) from e
    raise ValueError(
      'Expected `model`, `loss` and `metrics` to fit labels of shape '
      f'{y_spec.shape} and dtype {y_spec.dtype.name} (`label_spec` says what '
      f'they are), found: {_reason(e)}'
    ) from e
  names = {
    **{id(v.handle): v.name for v in concrete.graph.variables},
    **{id(v.handle): name for name, v in variables.items()},
  }
  for tensor, placeholder in concrete.graph.captures:
    if tensor.dtype == tf.resource and placeholder.consumers():
      # The operation's name has the layer's in it.
      raise ValueError(
        'Expected `model` to be made of layers that read no state but the '
        'weights of their own side, body or head, found '
        f'{names.get(id(tensor), "a resource")!r} read in '
        f'{placeholder.consumers()[0].name!r}.'
      )
  graph = concrete.graph.as_graph_def()
  operations = [
    *graph.node,
    *(
      node for function in graph.library.function for node in function.node_def
    ),
  ]
  for operation in operations:
    if operation.op.startswith(_IMPURE):
      raise ValueError(
        'Expected `model` to be made of layers that draw random numbers by '
        f'their random generator, found {operation.op} in {operation.name!r}.'
      )
  return {operation.op for operation in operations}


def _reason(error):
  """The telling line of an error of Keras or TensorFlow."""
  lines = str(error).split('Call arguments received by')[0].splitlines()
  lines = [line.strip() for line in lines if line.strip()] or [repr(error)]
  if lines[0].startswith('Exception encountered when calling'):
    return f'{lines[0]} {lines[-1]}'
  return lines[-1]
