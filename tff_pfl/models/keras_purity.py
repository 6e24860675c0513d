"""Calls of Keras layers as pure functions of their weights.

A layer holds `tf.Variable`s in its attributes. For the duration of a call the
given tensors take their place. Dropout and batch normalization, which draw
random numbers or assign, get a `call` of their own; other layers that do such
things are refused by name.
"""

from __future__ import annotations

import collections
import contextlib
import threading

import tensorflow as tf

from tff_pfl import errors
from tff_pfl.models import keras_graph, randomness, split_model

keras = tf.keras

_BATCH_NORMALIZATION = (keras.layers.BatchNormalization,)
_DROPOUT = (
  keras.layers.Dropout,
  keras.layers.SpatialDropout1D,
  keras.layers.SpatialDropout2D,
  keras.layers.SpatialDropout3D,
)
# Layers are shared between the pure calls of one Keras model, and tracing may
# happen on several threads.
_SWAP_LOCK = threading.RLock()


def check_layers(model, nodes):
  """Raises `ValueError` if a layer cannot be made pure."""
  uses = collections.Counter(id(node.layer) for node in nodes)
  for layer in model.layers:
    if layer.losses:
      keras_graph.refuse(
        layer,
        "adds a loss (a regularizer, say); use the optimizer's weight decay or "
        'a proximal term',
      )
    if layer.weights and uses[id(layer)] > 1:
      keras_graph.refuse(
        layer, f'is shared: it is used {uses[id(layer)]} times'
      )
    # Not `submodules`, which fails for some layers with recurrent dropout.
    for module in layer._flatten_layers():  # pylint: disable=protected-access
      reason = _reason_against(module, layer)
      if reason is not None:
        keras_graph.refuse(layer, reason)
  for node in nodes:
    if isinstance(
      node.layer, _BATCH_NORMALIZATION
    ) and keras_graph.masked_tensors(node.keras_inputs):
      keras_graph.refuse(
        node.layer, 'normalizes a masked sequence (mask_zero=True, say)'
      )


def _reason_against(module, layer):
  """Why a layer, or one within a layer, cannot be made pure; None if it can."""
  if module.compute_dtype != module.dtype:
    return f'computes in mixed precision ({module.compute_dtype})'
  if getattr(module, 'stateful', False) and isinstance(
    module, keras.layers.RNN
  ):
    return 'keeps its state between batches (stateful=True)'
  if getattr(module, 'recurrent_dropout', 0) or (
    hasattr(module, 'recurrent_dropout') and module.dropout
  ):
    return (
      'has unseeded dropout inside a recurrent cell; put a Dropout layer '
      'before it'
    )
  if (
    isinstance(module, keras.__internal__.layers.BaseRandomLayer)
    and not isinstance(module, _DROPOUT)
    and not hasattr(module, 'recurrent_dropout')
    and getattr(module, 'dropout', None) != 0
  ):
    return 'draws unseeded random numbers'
  if getattr(module, 'activity_regularizer', None) is not None:
    return 'has an activity regularizer'
  if isinstance(module, _DROPOUT) and module.rate >= 1:
    return 'drops everything (rate=1)'
  if isinstance(module, _BATCH_NORMALIZATION):
    if module.virtual_batch_size is not None:
      return 'uses virtual batches'
    if isinstance(layer, keras.layers.TimeDistributed):
      return (
        'normalizes over steps; BatchNormalization does so without '
        'TimeDistributed'
      )
  return None


class PureCalls:
  """Calls Keras models with tensors in the place of their variables."""

  def __init__(self, model, weight_slots):
    self._slots = weight_slots
    self._random = []
    self._normalizing = []
    names = {
      (id(module), attribute): name
      for name, (module, attribute, _) in weight_slots.items()
    }
    for module in model.submodules:
      if isinstance(module, _DROPOUT):
        self._random.append(module)
      elif isinstance(module, _BATCH_NORMALIZATION):
        self._normalizing.append(
          (
            module,
            names[id(module), 'moving_mean'],
            names[id(module), 'moving_variance'],
          )
        )

  def bind(self, model):
    """Returns `(weights, inputs, mode) -> (outputs, new_statistics)`."""

    def call(weights, inputs, mode=split_model.INFERENCE):
      with self._swapped(weights, mode) as new_statistics:
        outputs = model(inputs, training=mode.training)
      return outputs, new_statistics

    return call

  @contextlib.contextmanager
  def _swapped(self, weights, mode):
    new_statistics = {}
    saved = []

    def put(module, attribute, value):
      attributes = vars(module)
      saved.append((attributes, attribute, attributes.get(attribute, self)))
      attributes[attribute] = value

    with _SWAP_LOCK:
      try:
        for name, (module, attribute, _) in self._slots.items():
          if name in weights:
            put(module, attribute, tf.convert_to_tensor(weights[name]))
        for position, layer in enumerate(self._random):
          put(layer, 'call', _pure_dropout(layer, position, mode))
        for layer, mean_name, variance_name in self._normalizing:
          put(
            layer,
            'call',
            _pure_batch_normalization(
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


def _pure_dropout(layer, position, mode):
  @tf.autograph.experimental.do_not_convert
  def call(inputs, training=None):
    if not training or not layer.rate:
      return tf.identity(inputs)
    errors.expect(
      mode.seed is not None, 'mode.seed', 'given when a model has dropout', None
    )
    shape = layer._get_noise_shape(inputs)  # pylint: disable=protected-access
    keep = randomness.keep_mask(
      randomness.fold_in(mode.seed, position),
      tf.shape(inputs) if shape is None else shape,
      layer.rate,
    )
    return tf.where(keep, inputs / (1 - layer.rate), tf.zeros_like(inputs))

  return call


def _pure_batch_normalization(layer, mean_name, variance_name, mode, new):
  @tf.autograph.experimental.do_not_convert
  def call(inputs, training=None, mask=None):
    del mask
    training = training and layer.trainable
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
        old = tf.convert_to_tensor(old)
        new[name] = old + rate * (tf.reshape(value, old.shape) - old)
    else:
      mean, variance = layer.moving_mean, layer.moving_variance
    return tf.nn.batch_normalization(
      inputs,
      broadcast(mean),
      broadcast(variance),
      broadcast(layer.beta),
      broadcast(layer.gamma),
      layer.epsilon,
    )

  return call


def layer_outputs(model, nodes, layers, pure):
  """`(weights, x) -> OrderedDict` of the outputs of `layers`."""
  # A layer with weights has one node: shared ones were refused.
  outputs = {node.layer.name: node.outputs for node in nodes}
  call = pure.bind(
    keras.Model(model.inputs, {name: outputs[name] for name in layers})
  )

  def layer_outputs(weights, x):
    by_name, _ = call(weights, x)
    return split_model.select(by_name, layers)

  return layer_outputs


def check_pure(model, weight_slots):
  """Traces the model once; refuses it if it still reads a variable."""
  specs = {
    name: tf.TensorSpec(value.shape, value.dtype)
    for name, value in model.initial_weights.items()
  }
  x_spec = model.element_spec['x']
  y_spec = model.element_spec['y']

  doing = 'run'

  @tf.function(autograph=False)
  def trace(weights, x, y, seed):
    nonlocal doing
    mode = split_model.Mode(True, seed, tf.ones(tf.shape(x)[:1]))
    outputs, statistics = model.forward(weights, x, mode)
    doing = 'score'
    metrics = {name: fn(y, outputs) for name, fn in model.metrics.items()}
    return model.loss(y, outputs), metrics, statistics

  try:
    concrete = trace.get_concrete_function(
      specs,
      tf.TensorSpec([None, *x_spec.shape], x_spec.dtype),
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
  handles = {id(v.handle): name for name, (_, _, v) in weight_slots.items()}
  others = {id(v.handle): v.name for v in concrete.graph.variables}
  for tensor, placeholder in concrete.graph.captures:
    name = handles.get(id(tensor)) or others.get(id(tensor))
    if name is not None:
      # The operation's name has the layer's in it.
      operation = placeholder.consumers()[0].name
      raise ValueError(
        'Expected `model` to read its state only through the attributes of '
        f'layers that hold weights, found {name!r} read in {operation!r}.'
      )


def _reason(error):
  """The telling line of an error of Keras or TensorFlow."""
  lines = str(error).split('Call arguments received by')[0].splitlines()
  lines = [line.strip() for line in lines if line.strip()] or [repr(error)]
  if lines[0].startswith('Exception encountered when calling'):
    return f'{lines[0]} {lines[-1]}'
  return lines[-1]
