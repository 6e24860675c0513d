"""Finds the layers of a Keras model with hidden elements, and their weights."""

from __future__ import annotations

import collections

import tensorflow as tf

from tff_pfl.models import hidden_elements, keras_graph

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


def find_elements(nodes, layers, variables):
  """The hidden elements of the layers that have any, by name."""
  consumers = collections.defaultdict(list)
  for node in nodes:
    for tensor in node.keras_inputs:
      consumers[id(keras_graph.source_node(tensor))].append(node)
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
