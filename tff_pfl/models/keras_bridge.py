"""Makes a `SplitModel` from any functional or sequential Keras model.

A Keras layer holds `tf.Variable`s. For the duration of a call the bridge puts
the given tensors in their place (and restores them after), so the call is a
pure function of the weights: it can be differentiated, compiled and run inside
a TFF computation. Layers that assign or draw random numbers in training get a
pure stand-in for their `call`:

* `BatchNormalization`: normalizes with the statistics of the batch's real
  examples (padding does not count) and hands the new moving statistics out
  as values. They are weights of the model, listed in `statistics`.
* `Dropout`, `SpatialDropout*`: draw from the seed that the caller gives.

What cannot be made pure is refused with an error that names the layer: layers
used more than once, stateful recurrent layers, dropout inside recurrent layers,
other random layers, regularizers, and layers that read variables of their own.
Layers with `trainable=False` keep their weights, as in Keras.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import re
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Optional, Union

import tensorflow as tf

from tff_pfl import errors
from tff_pfl.models import hidden_elements, randomness, split_model

keras = tf.keras

_BATCH_NORMALIZATION = (keras.layers.BatchNormalization,)
_DROPOUT = (
  keras.layers.Dropout,
  keras.layers.SpatialDropout1D,
  keras.layers.SpatialDropout2D,
  keras.layers.SpatialDropout3D,
)
_CONVOLUTIONS = (
  keras.layers.Conv1D,
  keras.layers.Conv2D,
  keras.layers.Conv3D,
  keras.layers.DepthwiseConv1D,
  keras.layers.DepthwiseConv2D,
  keras.layers.SeparableConv1D,
  keras.layers.SeparableConv2D,
)
# Output activations after which the outputs are no longer logits.
_PROBABILITY_ACTIVATIONS = (
  keras.activations.softmax,
  keras.activations.sigmoid,
  tf.nn.softmax,
  tf.nn.sigmoid,
)
_CROSS_ENTROPIES = (
  keras.losses.sparse_categorical_crossentropy,
  keras.losses.categorical_crossentropy,
  keras.losses.binary_crossentropy,
)
# Layers whose outputs are hidden elements; convolutions with channels last.
_DIVISIBLE = (
  keras.layers.Dense,
  keras.layers.Conv1D,
  keras.layers.Conv2D,
  keras.layers.Conv3D,
  keras.layers.LSTM,
  keras.layers.GRU,
  keras.layers.SimpleRNN,
)
_NORMALIZATIONS = (
  keras.layers.BatchNormalization,
  keras.layers.GroupNormalization,
  keras.layers.LayerNormalization,
)
# What leaves each element its place between a layer and its normalization.
_IN_PLACE = (
  keras.layers.Activation,
  keras.layers.Dropout,
  keras.layers.ELU,
  keras.layers.LeakyReLU,
  keras.layers.ReLU,
)
_MOVING = (
  keras.layers.Reshape,
  keras.layers.Flatten,
  keras.layers.Permute,
  keras.layers.Dropout,
)
_ACCURACIES = {
  'sparse': keras.metrics.sparse_categorical_accuracy,
  'categorical': keras.metrics.categorical_accuracy,
  'binary': keras.metrics.binary_accuracy,
}

# Layers are shared between the pure calls of one Keras model, and tracing may
# happen on several threads.
_SWAP_LOCK = threading.RLock()


def from_keras(
  model: keras.Model,
  *,
  head_layers: Iterable[str],
  loss: Union[str, keras.losses.Loss, Callable[..., tf.Tensor]],
  metrics: Iterable[Any] = ('accuracy',),
  label_spec: Optional[tf.TensorSpec] = None,
  jit_compile: Union[bool, str] = 'auto',
) -> split_model.SplitModel:
  """Makes a `SplitModel` from a Keras model.

  The Keras model is read, not changed; its current weights become the initial
  weights.

  Args:
    model: A built functional or sequential Keras model with one input and one
      output.
    head_layers: Names of the layers that make the head. Layers without weights
      that follow them (activations, dropout) belong to the head too.
    loss: A loss by Keras name, a Keras loss object, or a function
      `(y_true, y_pred) -> [batch]` (a function gets `y_true` with the type and
      the rank of `y_pred`, unless its name says that labels are sparse). For
      cross-entropies given by name, whether the outputs are logits is read off
      the last layer's activation.
    metrics: Metrics by Keras name (`'accuracy'` fits itself to the loss), Keras
      metric objects that are means over examples, or functions.
    label_spec: `tf.TensorSpec` of one label, without the batch dimension. By
      default int32 for sparse and binary cross-entropies, else float32, and
      scalar where the output is one number.
    jit_compile: See `SplitModel.jit_compile`.

  Returns:
    The model as pure functions.

  Raises:
    TypeError: If `model` is not a functional or sequential Keras model, or
      another argument is of the wrong type.
    ValueError: If a layer does not exist or is not supported; the message names
      it.
  """
  for name, value in (('head_layers', head_layers), ('metrics', metrics)):
    if isinstance(value, str):
      raise TypeError(errors.message(name, 'a list', value))
  _check_graph_network(model)
  nodes = _nodes(model)
  _check_layers(model, nodes)
  weight_slots, layers, statistics = _name_weights(model)
  head_nodes = _head_nodes(model, nodes, tuple(head_layers))
  body_model, head_model = _cut(model, head_nodes)
  head_names = {node.layer.name for node in head_nodes}
  kind, gives_logits, loss_fn = _resolve_loss(loss, model)
  pure = _PureCalls(model, weight_slots)
  output_shape = model.output_shape[1:]
  if label_spec is None:
    is_single = output_shape[-1:] == (1,)
    label_spec = tf.TensorSpec(
      output_shape[:-1] if kind == 'sparse' or is_single else output_shape,
      tf.float32 if kind in ('categorical', 'regression') else tf.int32,
    )
  num_classes = None
  if kind in ('sparse', 'categorical'):
    num_classes = output_shape[-1]
  elif kind == 'binary' and output_shape[-1:] == (1,):
    num_classes = 2
  result = split_model.SplitModel(
    name=model.name,
    initial_weights=collections.OrderedDict(
      (name, variable.numpy())
      for name, (_, _, variable) in weight_slots.items()
    ),
    layers=layers,
    head_layers=tuple(name for name in layers if name in head_names),
    statistics=statistics,
    element_spec=collections.OrderedDict(
      x=tf.TensorSpec(model.input_shape[1:], model.inputs[0].dtype),
      y=label_spec,
    ),
    body=pure.bind(body_model),
    head=pure.bind(head_model),
    loss=_per_example(loss_fn, kind),
    metrics=_resolve_metrics(metrics, kind, gives_logits),
    probabilities=(
      _probabilities(kind, gives_logits) if num_classes is not None else None
    ),
    outputs_of=(
      _outputs_of(kind, gives_logits) if num_classes is not None else None
    ),
    num_classes=num_classes,
    has_convolutions=any(
      isinstance(module, _CONVOLUTIONS) for module in model.submodules
    ),
    jit_compile=jit_compile,
    layer_outputs=_layer_outputs(model, nodes, layers, pure),
    elements=_elements(nodes, layers, weight_slots),
  )
  _check_pure(result, weight_slots)
  return result


def _check_graph_network(model):
  errors.expect_type(model, keras.Model, 'model', 'a tf.keras.Model')
  if not getattr(model, '_is_graph_network', False):
    raise TypeError(
      errors.message(
        'model',
        'a built functional or sequential Keras model (give a Sequential an '
        'Input; a subclassed model has no graph of layers to divide)',
        f'{type(model).__name__} {model.name!r}',
      )
    )
  for what, tensors in (('input', model.inputs), ('output', model.outputs)):
    errors.expect(
      len(tensors) == 1,
      'model',
      f'a Keras model with one {what}',
      f'{len(tensors)} {what}s in {model.name!r}',
    )
  errors.expect(
    all(size is not None for size in model.input_shape[1:]),
    'model',
    'a Keras model whose input has a fixed shape (pad sequences to one length)',
    f'{model.input_shape[1:]} in {model.name!r}',
  )


def _nodes(model):
  """The nodes of the model's own graph, inputs first."""
  by_depth = model._nodes_by_depth  # pylint: disable=protected-access
  return [
    node for depth in sorted(by_depth, reverse=True) for node in by_depth[depth]
  ]


def _refuse(layer, reason):
  raise ValueError(
    f'Expected `model` to be made of supported layers, found layer '
    f'{layer.name!r} ({type(layer).__name__}), which {reason}.'
  )


def _check_layers(model, nodes):
  uses = collections.Counter(id(node.layer) for node in nodes)
  for layer in model.layers:
    if layer.losses:
      _refuse(
        layer,
        "adds a loss (a regularizer, say); use the optimizer's weight decay or "
        'a proximal term',
      )
    if layer.weights and uses[id(layer)] > 1:
      _refuse(layer, f'is shared: it is used {uses[id(layer)]} times')
    # Not `submodules`, which fails for some layers with recurrent dropout.
    for module in layer._flatten_layers():  # pylint: disable=protected-access
      if module.compute_dtype != module.dtype:
        _refuse(layer, f'computes in mixed precision ({module.compute_dtype})')
      if getattr(module, 'stateful', False) and isinstance(
        module, keras.layers.RNN
      ):
        _refuse(layer, 'keeps its state between batches (stateful=True)')
      if getattr(module, 'recurrent_dropout', 0) or (
        hasattr(module, 'recurrent_dropout') and module.dropout
      ):
        _refuse(
          layer,
          'has unseeded dropout inside a recurrent cell; put a Dropout layer '
          'before it',
        )
      if (
        isinstance(module, keras.__internal__.layers.BaseRandomLayer)
        and not isinstance(module, _DROPOUT)
        and not hasattr(module, 'recurrent_dropout')
        and getattr(module, 'dropout', None) != 0
      ):
        _refuse(layer, 'draws unseeded random numbers')
      if getattr(module, 'activity_regularizer', None) is not None:
        _refuse(layer, 'has an activity regularizer')
      if isinstance(module, _DROPOUT) and module.rate >= 1:
        _refuse(layer, 'drops everything (rate=1)')
      if isinstance(module, _BATCH_NORMALIZATION):
        if module.virtual_batch_size is not None:
          _refuse(layer, 'uses virtual batches')
        if isinstance(layer, keras.layers.TimeDistributed):
          _refuse(
            layer,
            'normalizes over steps; BatchNormalization does so without '
            'TimeDistributed',
          )
  for node in nodes:
    if isinstance(node.layer, _BATCH_NORMALIZATION) and _masked(
      node.keras_inputs
    ):
      _refuse(node.layer, 'normalizes a masked sequence (mask_zero=True, say)')


def _masked(tensors):
  """Those of the model's symbolic tensors that carry a Keras mask."""
  return [
    tensor
    for tensor in tensors
    if getattr(tensor, '_keras_mask', None) is not None
  ]


def _reads_mask(layer):
  if isinstance(layer, keras.layers.TimeDistributed):
    return _reads_mask(layer.layer)
  return layer._expects_mask_arg  # pylint: disable=protected-access


def _name_weights(model):
  """Returns name -> (module, attribute, variable), layers, statistics."""
  slots = collections.OrderedDict()
  layers = collections.OrderedDict()
  statistics = set()
  owners = {}
  for layer in model.layers:
    places = {}
    for module in (layer, *layer.submodules):
      for attribute, value in vars(module).items():
        if isinstance(value, tf.Variable):
          places.setdefault(value.ref(), (module, attribute))
    names = []
    frozen = {variable.ref() for variable in layer.non_trainable_weights}
    for variable in layer.weights:
      if owners.setdefault(variable.ref(), layer) is not layer:
        _refuse(
          layer,
          f'shares the variable {variable.name!r} with layer '
          f'{owners[variable.ref()].name!r}',
        )
      if not variable.dtype.is_floating:
        _refuse(
          layer,
          f'has the weight {variable.name!r} of type {variable.dtype.name}, '
          'which cannot be averaged',
        )
      if variable.ref() not in places:
        _refuse(
          layer,
          f'keeps the variable {variable.name!r} in a list or dict, not in an '
          'attribute',
        )
      module, attribute = places[variable.ref()]
      suffix = variable.name.split(':')[0]
      if suffix.startswith(layer.name + '/'):
        suffix = suffix[len(layer.name) + 1 :]
      if not isinstance(layer, keras.Model):
        # Keras numbers inner layers ("lstm_cell_3") by what the Python process
        # has built before; a weight's name must not depend on that.
        suffix = re.sub(r'_\d+/', '/', suffix)
      name = f'{layer.name}/{suffix}'
      while name in slots:
        name += '_'
      slots[name] = (module, attribute, variable)
      names.append(name)
      if variable.ref() in frozen:
        statistics.add(name)
    if names:
      layers[layer.name] = tuple(names)
  if not slots:
    raise ValueError(
      errors.message(
        'model', 'a model with weights', f'{model.name!r} with none'
      )
    )
  return slots, layers, frozenset(statistics)


def _elements(nodes, layers, weight_slots):
  """The hidden elements of the layers that have any, by name."""
  consumers = collections.defaultdict(list)
  for node in nodes:
    for tensor in node.keras_inputs:
      consumers[id(_source(tensor))].append(node)
  elements = {}
  for node in nodes:
    # Not subclasses: a transposed convolution is one of a convolution.
    if type(node.layer) not in _DIVISIBLE or (
      getattr(node.layer, 'data_format', None) == 'channels_first'
    ):
      continue
    names = layers[node.layer.name]
    number = weight_slots[names[0]][2].shape[-1]
    if isinstance(node.layer, keras.layers.RNN):
      number = node.layer.units
    owned = [*names, *_normalization_weights(node, number, consumers, layers)]
    elements[node.layer.name] = hidden_elements.HiddenElements(
      number,
      {name: weight_slots[name][2].shape[-1] // number for name in owned},
      tuple(name for name in names if name.endswith('kernel')),
    )
  return {name: elements[name] for name in layers if name in elements}


def _normalization_weights(node, number, consumers, layers):
  """The weights of a normalization right after a node, one for each element."""
  following = consumers[id(node)]
  while len(following) == 1:
    (following,) = following
    layer = following.layer
    if isinstance(layer, _NORMALIZATIONS):
      of_elements = _axes(layer) in ([-1], [len(layer.output_shape) - 1])
      return [
        name
        for name in layers.get(layer.name, ())
        if of_elements
        and all(weight.shape == (number,) for weight in layer.weights)
      ]
    if not isinstance(layer, _IN_PLACE):
      break
    following = consumers[id(following)]
  return []


def _axes(layer):
  """The axes along which a normalization has parameters."""
  axis = layer.axis
  return [axis] if isinstance(axis, int) else list(axis)


def _source(tensor):
  """The node that makes a tensor of the model's graph."""
  history = tensor._keras_history  # pylint: disable=protected-access
  return history.layer._inbound_nodes[history.node_index]  # pylint: disable=protected-access


def _head_nodes(model, nodes, head_layers):
  """The nodes of the head: of its layers, and all that follow them."""
  known = [layer.name for layer in model.layers]
  errors.expect(
    head_layers, 'head_layers', 'at least one layer name', head_layers
  )
  for name in head_layers:
    errors.expect(
      name in known,
      'head_layers',
      f'names of layers of {model.name!r} ({", ".join(known)})',
      name,
    )
  errors.expect(
    any(model.get_layer(name).weights for name in head_layers),
    'head_layers',
    'layers of which one at least has weights',
    ', '.join(head_layers),
  )
  head = []
  for node in nodes:
    if node.layer.name in head_layers:
      head.append(node)
    elif any(_source(tensor) in head for tensor in node.keras_inputs):
      # Every node leads to the output, so this also finds heads that end early.
      if node.layer.weights:
        raise ValueError(
          'Expected `head_layers` to be the end of the network, found layer '
          f'{node.layer.name!r} with weights after the head; add it to '
          '`head_layers`.'
        )
      head.append(node)
  return head


def _cut(model, head_nodes):
  """Two Keras models over the same layers: body and head."""
  crossing = {}
  for node in head_nodes:
    for tensor in node.keras_inputs:
      if _source(tensor) not in head_nodes:
        crossing[id(tensor)] = tensor
  if not crossing:
    # The input layer itself was named as part of the head.
    return keras.Model(model.inputs, model.inputs[0]), model
  if _masked(crossing.values()):
    # Features are cached without their mask.
    for node in head_nodes:
      if _reads_mask(node.layer) and _masked(node.keras_inputs):
        _refuse(
          node.layer,
          'is in the head and reads a mask made in the body; move it to the '
          'body or the masking layer to the head',
        )
  features = list(crossing.values())
  if len(features) == 1:
    features = features[0]
  return keras.Model(model.inputs, features), keras.Model(
    features, model.outputs[0]
  )


def _layer_outputs(model, nodes, layers, pure):
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


class _PureCalls:
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


def _loss_kind(name):
  name = name.replace('_', '').lower()
  if 'sparsecategorical' in name:
    return 'sparse'
  if 'categorical' in name:
    return 'categorical'
  if 'binary' in name or 'hinge' in name:
    return 'binary'
  return 'regression'


def _gives_probabilities(model):
  """Whether the outputs went through a softmax or sigmoid."""
  node = _source(model.outputs[0])
  # Layers that only move numbers say nothing about them.
  while isinstance(node.layer, _MOVING) and len(node.keras_inputs) == 1:
    node = _source(node.keras_inputs[0])
  layer = node.layer
  while isinstance(layer, (keras.Model, keras.layers.TimeDistributed)):
    if isinstance(layer, keras.layers.TimeDistributed):
      layer = layer.layer
    elif getattr(layer, '_is_graph_network', False):
      layer = _source(layer.outputs[0]).layer
    else:
      return False
  # `function` is that of a TensorFlow operation in a functional model.
  activation = getattr(layer, 'activation', getattr(layer, 'function', None))
  return isinstance(layer, keras.layers.Softmax) or (
    activation in _PROBABILITY_ACTIVATIONS
  )


def _resolve_loss(loss, model):
  """Returns the kind, whether outputs are logits, and the loss function."""
  gives_logits = not _gives_probabilities(model)
  if isinstance(loss, str):
    try:
      function = keras.losses.get(loss)
    except ValueError as e:
      raise ValueError(
        errors.message('loss', 'the name of a Keras loss', loss)
      ) from e
    name = getattr(function, '__name__', loss)
    return _loss_kind(name), gives_logits, _of_outputs(function, gives_logits)
  if isinstance(loss, keras.losses.Loss):
    gives_logits = loss.get_config().get('from_logits', gives_logits)
    return _loss_kind(type(loss).__name__), gives_logits, loss.call
  if callable(loss):
    kind = _loss_kind(getattr(loss, '__name__', ''))
    return kind, gives_logits, _of_outputs(loss, gives_logits)
  raise TypeError(
    errors.message(
      'loss', 'a Keras loss name, a Keras loss object or a function', loss
    )
  )


def _of_outputs(function, gives_logits):
  """Tells Keras' own cross-entropies whether the outputs are logits."""
  if function in _CROSS_ENTROPIES:
    return functools.partial(function, from_logits=gives_logits)
  return function


def _probabilities(kind, gives_logits):
  """The function from outputs to class probabilities; None for regression."""
  if kind == 'regression':
    return None

  def call(outputs):
    outputs = tf.convert_to_tensor(outputs)
    if kind == 'binary':
      if gives_logits:
        # Not 1 - p, which would be 0 for large logits.
        return tf.sigmoid(tf.concat([-outputs, outputs], axis=-1))
      return tf.concat([1 - outputs, outputs], axis=-1)
    return tf.nn.softmax(outputs) if gives_logits else outputs

  return call


def _outputs_of(kind, gives_logits):
  """The function from class probabilities to outputs."""

  def call(probabilities):
    # Of no class is a classifier quite sure, or the loss would be infinite.
    smallest = 1e-30
    if kind == 'binary':
      negative, positive = tf.split(probabilities, 2, axis=-1)
      if not gives_logits:
        return positive
      return tf.math.log(tf.maximum(positive, smallest)) - tf.math.log(
        tf.maximum(negative, smallest)
      )
    if gives_logits:
      return tf.math.log(tf.maximum(probabilities, smallest))
    return probabilities

  return call


def _resolve_metrics(metrics, kind, gives_logits) -> Mapping[str, Callable]:
  resolved = collections.OrderedDict()
  for metric in metrics:
    if isinstance(metric, str):
      name = metric
      if metric in ('accuracy', 'acc'):
        if kind == 'regression':
          raise ValueError(
            errors.message(
              'metrics',
              "metrics that fit the loss ('accuracy' needs a classification "
              "loss; try 'mae')",
              metric,
            )
          )
        name, function = 'accuracy', _ACCURACIES[kind]
        if kind == 'binary':
          function = functools.partial(
            function, threshold=0.0 if gives_logits else 0.5
          )
      else:
        try:
          function = keras.metrics.get(metric)
        except ValueError:
          function = None
        if not callable(function):
          raise ValueError(
            errors.message('metrics', 'names of Keras metrics', metric)
          )
    else:
      function, name = metric, getattr(metric, '__name__', None)
    if isinstance(function, keras.metrics.Metric):
      name = function.name if not isinstance(metric, str) else name
      function = _mean_metric_function(function)
    if not callable(function):
      raise TypeError(
        errors.message(
          'metrics', 'Keras metric names, metric objects or functions', metric
        )
      )
    name = name or type(metric).__name__
    if name in resolved or name in ('loss', 'examples'):
      raise ValueError(
        errors.message('metrics', 'distinct names other than loss', name)
      )
    resolved[name] = _per_example(_of_outputs(function, gives_logits), kind)
  return resolved


def _mean_metric_function(metric):
  if not isinstance(metric, keras.metrics.MeanMetricWrapper):
    raise ValueError(
      errors.message(
        'metrics',
        'metrics that are means over examples (such as '
        'SparseCategoricalAccuracy or MeanAbsoluteError)',
        f'{type(metric).__name__} {metric.name!r}',
      )
    )
  function, arguments = metric._fn, metric._fn_kwargs  # pylint: disable=protected-access
  return lambda y_true, y_pred: function(y_true, y_pred, **arguments)


def _per_example(function, kind):
  """A value for each example: averages over all but the batch dimension."""

  def call(y_true, y_pred):
    if kind != 'sparse':
      if y_true.shape.rank == y_pred.shape.rank - 1:
        # One output for a scalar label: without this it would broadcast.
        y_true = y_true[..., tf.newaxis]
      y_true = tf.cast(y_true, y_pred.dtype)
    values = tf.cast(function(y_true, y_pred), y_pred.dtype)
    rank = values.shape.rank
    errors.expect(
      rank,
      'loss and metrics',
      'functions that return a value per example',
      'a scalar',
    )
    return tf.reduce_mean(values, axis=list(range(1, rank)))

  return call


def _check_pure(model, weight_slots):
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
      f'{y_spec.shape} and dtype {y_spec.dtype.name}, found: {_reason(e)}'
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
