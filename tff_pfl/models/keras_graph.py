"""A Keras model's graph: its nodes, weights, hidden elements, body and head."""

from __future__ import annotations

import collections
import re

import tensorflow as tf

from tff_pfl import errors
from tff_pfl.models import hidden_elements

keras = tf.keras

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


def graph_of(model):
  """A functional, sequential or subclassed Keras model as a graph of layers.

  Of a subclassed model it is that of its `call` on symbolic inputs.
  """
  errors.expect_type(model, keras.Model, 'model', 'a tf.keras.Model')
  if getattr(model, '_is_graph_network', False):
    return model
  spec = None if isinstance(model, keras.Sequential) else model.save_spec()
  if spec is None:
    raise TypeError(
      errors.message(
        'model',
        'a Keras model that knows its inputs (give a Sequential an Input; call '
        'a subclassed model on examples once)',
        f'{type(model).__name__} {model.name!r}',
      )
    )

  def trace(**arguments):
    inputs = tf.nest.map_structure(
      lambda of: keras.Input(of.shape[1:], dtype=of.dtype, name=of.name),
      spec[0][0],
    )
    return keras.Model(inputs, model.call(inputs, **arguments), name=model.name)

  try:
    if not model._expects_training_arg:  # pylint: disable=protected-access
      return trace()
    # Layers then follow the mode of a call, as in functional models.
    graph, in_training = trace(training=None), trace(training=True)
  except Exception as e:  # Whatever the user's code raises.
    raise ValueError(
      errors.message(
        'model',
        'a Keras model whose `call` takes symbolic inputs (layers and '
        'TensorFlow operations, nothing that depends on values)',
        f'{type(model).__name__} {model.name!r}: {e}',
      )
    ) from e
  kinds = [
    collections.Counter(
      (type(node.layer), getattr(node.layer, 'function', None))
      for node in graph_nodes(each)
    )
    for each in (graph, in_training)
  ]
  errors.expect(
    kinds[0] == kinds[1],
    'model',
    'a Keras model whose `call` does the same in training, where its layers '
    'do not do otherwise (hand `training` on to them)',
    f'{type(model).__name__} {model.name!r}',
  )
  return graph


def with_output(model, output):
  """The part of a graph of layers that makes one output, by its name.

  Args:
    model: The graph.
    output: One of `model.output_names`; None for the only one.
  """
  names = model.output_names
  if output is None:
    errors.expect(
      len(names) == 1,
      'output',
      f'one of the outputs of {model.name!r} ({", ".join(names)})',
      output,
    )
  else:
    errors.expect_one_of('output', output, names)
    if len(names) > 1:
      chosen = model.outputs[names.index(output)]
      model = keras.Model(model.input, chosen, name=model.name)
  for tensor in model.inputs:
    errors.expect(
      all(size is not None for size in tensor.shape[1:]),
      'model',
      'a Keras model whose inputs have a fixed shape (pad sequences to one '
      'length)',
      f'{tuple(tensor.shape[1:])} in {model.name!r}',
    )
  return model


def input_spec(model):
  """What one example's `x` is; of several inputs by name, in their order."""
  specs = [tf.TensorSpec(t.shape[1:], t.dtype) for t in model.inputs]
  if not tf.nest.is_nested(model.input):
    return specs[0]
  names = model.input_names
  if isinstance(model.input, dict):
    names = sorted(model.input)
  return collections.OrderedDict(sorted(zip(names, specs)))


def layers_within(layer):
  """A layer, or a model, and all layers in it."""
  # Masks of dropout that are kept would be looked through, too.
  forget_masks(layer._flatten_layers())  # pylint: disable=protected-access
  return [
    module
    for module in (layer, *layer.submodules)
    if isinstance(module, keras.layers.Layer)
  ]


def forget_masks(layers):
  """Recurrent layers keep dropout's masks, of the graph of the last call."""
  for layer in layers:
    if hasattr(layer, 'reset_dropout_mask'):
      layer.reset_dropout_mask()
      layer.reset_recurrent_dropout_mask()


def graph_nodes(model):
  """The nodes of the model's own graph, inputs first."""
  by_depth = model._nodes_by_depth  # pylint: disable=protected-access
  return [
    node for depth in sorted(by_depth, reverse=True) for node in by_depth[depth]
  ]


def source_node(tensor):
  """The node that makes a tensor of the model's graph."""
  history = tensor._keras_history  # pylint: disable=protected-access
  return history.layer._inbound_nodes[history.node_index]  # pylint: disable=protected-access


def refuse(layer, reason):
  """Raises the `ValueError` that names a layer and what is wrong with it."""
  raise ValueError(
    f'Expected `model` to be made of supported layers, found layer '
    f'{layer.name!r} ({type(layer).__name__}), which {reason}.'
  )


def masked_tensors(tensors):
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


def name_weights(model):
  """Returns name -> variable, layers, statistics."""
  variables = collections.OrderedDict()
  layers = collections.OrderedDict()
  statistics = set()
  known = set()
  for layer in model.layers:
    names = []
    frozen = {variable.ref() for variable in layer.non_trainable_weights}
    for variable in layer.weights:
      # A weight that layers share is the first one's. Integers are constants.
      if variable.ref() in known or not variable.dtype.is_floating:
        continue
      known.add(variable.ref())
      path = variable.name.split(':')[0]
      suffix = f'/{path}'.partition(f'/{layer.name}/')[2] or path
      if not isinstance(layer, keras.Model):
        # Keras numbers inner layers ("lstm_cell_3") by what the Python process
        # has built before; a weight's name must not depend on that.
        suffix = re.sub(r'_\d+/', '/', suffix)
      name = f'{layer.name}/{suffix}'
      while name in variables:
        name += '_'
      variables[name] = variable
      names.append(name)
      if variable.ref() in frozen:
        statistics.add(name)
    if names:
      layers[layer.name] = tuple(names)
  if not variables:
    raise ValueError(
      errors.message(
        'model', 'a model with weights', f'{model.name!r} with none'
      )
    )
  return variables, layers, frozenset(statistics)


def find_elements(nodes, layers, variables):
  """The hidden elements of the layers that have any, by name."""
  consumers = collections.defaultdict(list)
  for node in nodes:
    for tensor in node.keras_inputs:
      consumers[id(source_node(tensor))].append(node)
  elements = {}
  for node in nodes:
    # Not subclasses: a transposed convolution is one of a convolution.
    if (
      type(node.layer) not in _DIVISIBLE
      or node.layer.name not in layers
      or getattr(node.layer, 'data_format', None) == 'channels_first'
    ):
      continue
    names = layers[node.layer.name]
    number = variables[names[0]].shape[-1]
    if isinstance(node.layer, keras.layers.RNN):
      number = node.layer.units
    owned = [*names, *_normalization_weights(node, number, consumers, layers)]
    elements[node.layer.name] = hidden_elements.HiddenElements(
      number,
      {name: variables[name].shape[-1] // number for name in owned},
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
      # One axis or a list of them.
      axes = tf.nest.flatten(layer.axis)
      of_elements = axes in ([-1], [len(layer.output_shape) - 1])
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


def head_nodes(model, nodes, head_layers):
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
    elif any(source_node(tensor) in head for tensor in node.keras_inputs):
      # Every node leads to the output, so this also finds heads that end early.
      if node.layer.weights:
        raise ValueError(
          'Expected `head_layers` to be the end of the network, found layer '
          f'{node.layer.name!r} with weights after the head; add it to '
          '`head_layers`.'
        )
      head.append(node)
  return head


def cut_at_head(model, head_nodes):
  """Two Keras models over the same layers: body and head."""
  crossing = {}
  for node in head_nodes:
    for tensor in node.keras_inputs:
      if source_node(tensor) not in head_nodes:
        crossing[id(tensor)] = tensor
  if not crossing:
    # The input layer itself was named as part of the head.
    return keras.Model(model.input, model.input), model
  if masked_tensors(crossing.values()):
    # Features are cached without their mask.
    for node in head_nodes:
      if _reads_mask(node.layer) and masked_tensors(node.keras_inputs):
        refuse(
          node.layer,
          'is in the head and reads a mask made in the body; move it to the '
          'body or the masking layer to the head',
        )
  features = list(crossing.values())
  if len(features) == 1:
    features = features[0]
  return keras.Model(model.input, features), keras.Model(
    features, model.outputs[0]
  )
