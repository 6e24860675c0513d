"""A Keras model's graph of layers: its nodes, its weights, body and head."""

from __future__ import annotations

import collections
import re

import tensorflow as tf

from tff_pfl import errors

keras = tf.keras


def check_graph_network(model):
  """Raises unless `model` is a graph of layers, of one input and output."""
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
        refuse(
          layer,
          f'shares the variable {variable.name!r} with layer '
          f'{owners[variable.ref()].name!r}',
        )
      if not variable.dtype.is_floating:
        refuse(
          layer,
          f'has the weight {variable.name!r} of type {variable.dtype.name}, '
          'which cannot be averaged',
        )
      if variable.ref() not in places:
        refuse(
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
    return keras.Model(model.inputs, model.inputs[0]), model
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
  return keras.Model(model.inputs, features), keras.Model(
    features, model.outputs[0]
  )
