"""A Keras model's graph: its nodes, weights, hidden elements, body and head.

Models that are layers of a model are looked into: the graph has the nodes of
their layers, called `model/layer`.
"""

from __future__ import annotations

import collections
import dataclasses
import inspect
import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Optional

import keras
import tensorflow as tf

from tff_pfl import errors
from tff_pfl.models import hidden_elements, split_model

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


def functional_of(
  model: keras.Model, input_spec: Optional[Any] = None
) -> keras.Model:
  """A functional, sequential or subclassed Keras model as a functional one.

  Of a subclassed model it is that of its `call` on symbolic inputs.

  Args:
    model: Knows its inputs.
    input_spec: Of a subclassed model, `tf.TensorSpec`s of one example's inputs;
      None for float32 of the shapes that it was built with.
  """
  if type(model).__module__.startswith('tf_keras'):
    raise TypeError(
      errors.message(
        'model',
        'a model of Keras 3, such as one that `keras.models.load_model` read '
        'from what `model.save("model.h5")` wrote',
        f'{model.name!r} of tf_keras, Keras 2',
      )
    )
  errors.expect_type(model, keras.Model, 'model', 'a keras.Model')
  if isinstance(model, (keras.Function, keras.Sequential)):
    errors.expect(
      'call' not in vars(type(model)) or _is_of_keras(model),
      'model',
      'a functional or sequential model without a `call` of its own',
      f'{type(model).__name__} {model.name!r}',
    )
  if isinstance(model, keras.Function):
    return model
  if isinstance(model, keras.Sequential):
    if model.built:
      return keras.Model(
        model.inputs, model.outputs, name=_kind(model) or model.name
      )
    shapes = None
  else:
    shapes = (model.get_build_config() or {}).get('input_shape')
  if input_spec is None and shapes is None:
    raise TypeError(
      errors.message(
        'model',
        'a Keras model that knows its inputs (give a Sequential an Input; call '
        'a subclassed model on examples once)',
        f'{type(model).__name__} {model.name!r}',
      )
    )
  if input_spec is None:
    input_spec = _specs_of_shapes(shapes)

  def trace(**arguments):
    inputs = tf.nest.map_structure(
      lambda of: keras.Input(of.shape, dtype=of.dtype.name, name=of.name),
      input_spec,
    )
    return keras.Model(
      inputs,
      model.call(inputs, **arguments),
      name=_kind(model) or model.name,
    )

  try:
    if 'training' not in inspect.signature(model.call).parameters:
      return trace()
    # Layers then follow the mode of a call, as in functional models.
    graph, in_training = trace(training=None), trace(training=True)
  except Exception as e:  # Whatever the user's code raises.
    raise ValueError(
      errors.message(
        'model',
        'a Keras model whose `call` takes symbolic inputs (layers and the '
        "functions of keras.ops in place of TensorFlow's, nothing that "
        'depends on values)',
        f'{type(model).__name__} {model.name!r}: {str(e).splitlines()[0]}',
      )
    ) from e
  errors.expect(
    _kinds(graph) == _kinds(in_training),
    'model',
    'a Keras model whose `call` does the same in training, where its layers '
    'do not do otherwise (hand `training` on to them)',
    f'{type(model).__name__} {model.name!r}',
  )
  return graph


def _kinds(model):
  """The layers of a functional model, and how many operations of each kind."""
  return collections.Counter(
    (type(of), of.name if isinstance(of, keras.Layer) else '')
    for of in model.operations
    if not isinstance(of, keras.layers.InputLayer)
  )


def _specs_of_shapes(shapes):
  if isinstance(shapes, dict):
    return {
      name: tf.TensorSpec(shape[1:], name=name)
      for name, shape in shapes.items()
    }
  if isinstance(shapes[0], (list, tuple)):
    return [tf.TensorSpec(shape[1:]) for shape in shapes]
  return tf.TensorSpec(shapes[1:])


def with_output(model: keras.Model, output: Optional[str]) -> keras.Model:
  """The part of a functional model that makes one output, by its name.

  Args:
    model: A functional model.
    output: One of `model.output_names`, or a key of outputs that are a dict;
      None for the only one.
  """
  outputs = dict(zip(model.output_names, model.outputs))
  if isinstance(model.output, dict):
    outputs = dict(model.output)
  if output is None:
    errors.expect(
      len(outputs) == 1,
      'output',
      f'one of the outputs of {model.name!r} ({", ".join(outputs)})',
      output,
    )
    (output,) = outputs
  else:
    errors.expect_one_of('output', output, outputs)
  if len(outputs) > 1 or isinstance(model.output, dict):
    model = keras.Model(model.input, outputs[output], name=model.name)
  for tensor in model.inputs:
    errors.expect(
      all(size is not None for size in tensor.shape[1:]),
      'model',
      'a Keras model whose inputs have a fixed shape (pad sequences to one '
      'length)',
      f'{tuple(tensor.shape[1:])} in {model.name!r}',
    )
  return model


@dataclasses.dataclass(frozen=True, eq=False)
class Node:
  """A call of a layer or of an operation.

  Attributes:
    operation: The layer or operation.
    name: Its name in the graph; that of a layer within a model within the
      model is `model/layer`.
    arguments: Keras's record of the call's arguments.
    sources: From the id of each symbolic tensor in them to its key in the
      graph.
    results: The keys of its outputs.
    training: The mode in which it is called in any case; None for that of the
      model's call. As in Keras, a functional model's own holds also for layers
      that it calls with another.
  """

  operation: Any
  name: str
  arguments: Any
  sources: Mapping[int, int]
  results: Sequence[int]
  training: Optional[bool]

  @property
  def is_layer(self) -> bool:
    """True for a call of a layer, False for one of an operation."""
    return isinstance(self.operation, keras.Layer)

  @property
  def has_weights(self) -> bool:
    """True for a call of a layer with weights."""
    return self.is_layer and bool(self.operation.weights)


class Graph:
  """The calls that a functional Keras model makes, in their order.

  Keras numbers the layers of a kind that have no name by what the process has
  built before: the same cell of a notebook gives `dense`, then `dense_1`. Here
  such names count within the model, so that a second build is the same model.

  Attributes:
    model: The functional model.
    name: Its name.
    nodes: The calls, without those of inputs; of nested models those of their
      layers.
    inputs: The keys of the inputs' tensors.
    output: The key of the only output.
    tensors: From keys to Keras's symbolic tensors, for shapes and masks.
    layers: From names to layers, in the order of the first calls.
  """

  def __init__(
    self, model: keras.Model, keep_names: bool = False, is_traced: bool = False
  ):
    """Reads the model, which has one output.

    Args:
      model: The functional model.
      keep_names: Whether all layers are called as Keras calls them.
      is_traced: Whether it comes from a subclassed model's `call`.
    """
    self.model = model
    self.name = _kind(model) or model.name
    self._is_traced = is_traced
    self._has_nested = False
    self._keep_names = keep_names
    # From what Keras calls layers to what they are called here.
    self._names = {}
    self.tensors = {}
    self.nodes = []
    self.inputs = [self._new(tensor) for tensor in model.inputs]
    (self.output,) = self._add(model, self.inputs, '', '')
    self.maker = {key: node for node in self.nodes for key in node.results}
    self.layers = collections.OrderedDict(
      (node.name, node.operation) for node in self.nodes if node.is_layer
    )

  def _new(self, tensor):
    self.tensors[len(self.tensors)] = tensor
    return len(self.tensors) - 1

  def _add(self, model, inputs, prefix, keras_prefix, training=None):
    """Adds a model's nodes, called on tensors; returns its outputs' keys."""
    keys = {id(t): key for t, key in zip(model.inputs, inputs)}
    names = {}
    given = {o.name for o in model.operations if not self._kind_of(o)}
    by_depth = model._nodes_by_depth  # pylint: disable=protected-access
    for depth in sorted(by_depth, reverse=True):
      for node in by_depth[depth]:
        if node.is_input:
          continue
        called = node.operation.name
        if called not in names:
          names[called] = self._name_for(node.operation, given)
          given.add(names[called])
        name = prefix + names[called]
        self._names.setdefault(keras_prefix + called, name)
        sources = {
          id(tensor): keys[id(tensor)] for tensor in node.input_tensors
        }
        said = node.arguments.kwargs.get('training')
        if said is None or not self._is_traced:
          said = training
        if _is_plain_model(node.operation):
          self._has_nested = True
          nested = functional_of(node.operation)
          results = self._add(
            nested,
            self._inputs_of_nested(nested, node, name, keys),
            f'{name}/',
            f'{keras_prefix}{called}/',
            said,
          )
        else:
          results = [self._new(tensor) for tensor in node.outputs]
          self.nodes.append(
            Node(node.operation, name, node.arguments, sources, results, said)
          )
        keys.update(zip(map(id, node.outputs), results))
    return [keys[id(tensor)] for tensor in model.outputs]

  @property
  def is_plain(self) -> bool:
    """False where the model is traced or has models in it."""
    return not self._is_traced and not self._has_nested

  def _name_for(self, operation, taken):
    kind = self._kind_of(operation)
    if kind is None:
      return operation.name
    numbered = (f'{kind}_{n}' if n else kind for n in itertools.count())
    return next(name for name in numbered if name not in taken)

  def _inputs_of_nested(self, nested, node, name, keys):
    """The keys of the tensors that a model within the model is called on."""
    args, kwargs = node.arguments.args, dict(node.arguments.kwargs)
    called_on = keras.tree.flatten(args[0] if args else kwargs['inputs'])
    if kwargs.get('mask') is not None:
      refuse(name, node.operation, 'is called with a mask')
    found, wanted = (
      ', '.join(tensor.dtype for tensor in tensors)
      for tensors in (called_on, nested.inputs)
    )
    if found != wanted:
      refuse(
        name, node.operation, f'is called on {found}; its inputs are {wanted}'
      )
    return [keys[id(tensor)] for tensor in called_on]

  def _kind_of(self, operation):
    return None if self._keep_names else _kind(operation)

  def flat_inputs(self, x: Any) -> list:
    """A batch's inputs in the order of `inputs`."""
    if not self._has_several_inputs:
      return [x]
    return [x[name] for name in self.input_names]

  @property
  def _has_several_inputs(self):
    return len(self.inputs) > 1 or isinstance(self.model.input, dict)

  @property
  def input_names(self) -> list:
    """The inputs' keys, or else their names."""
    if isinstance(self.model.input, dict):
      return sorted(self.model.input)
    return [tensor.name for tensor in self.model.inputs]

  @property
  def input_spec(self) -> Any:
    """The spec of one example's `x`; of several inputs by name, in order."""
    specs = [tf.TensorSpec(t.shape[1:], t.dtype) for t in self.model.inputs]
    if not self._has_several_inputs:
      return specs[0]
    return collections.OrderedDict(sorted(zip(self.input_names, specs)))

  def nodes_between(
    self, given: Iterable[int], wanted: Iterable[int]
  ) -> list[Node]:
    """The nodes that make some tensors of others, in their order."""
    needed, known = set(wanted), set(given)
    chosen = []
    for node in reversed(self.nodes):
      if needed & set(node.results) - known:
        chosen.append(node)
        needed |= set(node.sources.values())
    return chosen[::-1]

  def run(
    self,
    nodes: Iterable[Node],
    values: Mapping[int, tf.Tensor],
    training: bool,
  ) -> dict[int, tf.Tensor]:
    """The values of tensors by their keys, those given and the nodes'."""
    values = dict(values)
    for node in nodes:
      args, kwargs = node.arguments.fill_in(
        {of: values[key] for of, key in node.sources.items()}
      )
      if node.is_layer:
        kwargs['training'] = (
          training if node.training is None else node.training
        )
      results = keras.tree.flatten(node.operation(*args, **kwargs))
      values.update(zip(node.results, results))
    return values

  def has_mask(self, key: int) -> bool:
    """Tells whether a tensor carries a Keras mask."""
    return getattr(self.tensors[key], '_keras_mask', None) is not None

  @property
  def masks_output(self) -> bool:
    """True where parts of the output are masked, as padding of sequences is."""
    return self.has_mask(self.output)

  def matching(self, name: str) -> tuple:
    """The layers that a name stands for, Keras's or here, also of a model."""
    for wanted in (self._names.get(name), name):
      found = split_model.names_within(wanted, self.layers)
      if found:
        return found
    return ()


def _kind(operation):
  """The name that Keras gives an operation without one; None if it has one."""
  kind = re.sub(r'_\d+$', '', operation.name)
  is_given = kind.replace('_', '') != type(operation).__name__.lower()
  return None if is_given else kind


def _is_plain_model(operation):
  """True for models of Keras's own kinds, False for a user's class."""
  return isinstance(operation, keras.Model) and _is_of_keras(operation)


def _is_of_keras(operation):
  return type(operation).__module__.startswith('keras.')


def refuse(name: str, layer: Any, reason: str) -> None:
  """Raises the `ValueError` that names a layer and what is wrong with it."""
  raise ValueError(
    f'Expected `model` to be made of supported layers, found layer '
    f'{name!r} ({type(layer).__name__}), which {reason}.'
  )


def layers_within(graph: Graph) -> list[tuple[str, Any]]:
  """All layers, also those that layers hold, each with its layer's name."""
  return [
    (name, module)
    for name, layer in graph.layers.items()
    for module in layer._flatten_layers()  # pylint: disable=protected-access
  ]


def _owners(name, layer):
  """The layers to which a layer's weights belong, by name.

  A layer of the user's own that holds others is looked into; one of Keras is
  taken as a whole (a recurrent layer and its cell, attention and its products).
  """
  inner = [] if _is_of_keras(layer) else layer._layers  # pylint: disable=protected-access
  for module in inner:
    yield from _owners(f'{name}/{module.name}', module)
  yield name, layer


def name_weights(graph):
  """Returns name -> variable, layers, statistics."""
  variables = collections.OrderedDict()
  layers = collections.OrderedDict()
  statistics = set()
  known = set()
  for graph_name, layer in graph.layers.items():
    for name, owner in _owners(graph_name, layer):
      names = []
      frozen = set(map(id, layer.non_trainable_variables))
      for variable in owner.variables:
        # A weight that layers share is the first one's. Integers, seeds of
        # random numbers among them, are no weights.
        if id(variable) in known or not _is_float(variable):
          continue
        known.add(id(variable))
        suffix = f'/{variable.path}'.partition(f'/{owner.name}/')[2]
        suffix = suffix or variable.name
        # Keras numbers inner layers ("lstm_cell_3") by what the Python process
        # has built before; a weight's name must not depend on that.
        suffix = re.sub(r'_\d+/', '/', suffix)
        weight = f'{name}/{suffix}'
        while weight in variables:
          weight += '_'
        variables[weight] = variable
        names.append(weight)
        if id(variable) in frozen:
          statistics.add(weight)
      if names:
        layers[name] = tuple(names)
  if not variables:
    raise ValueError(
      errors.message(
        'model', 'a model with weights', f'{graph.name!r} with none'
      )
    )
  return variables, layers, frozenset(statistics)


def _is_float(variable):
  return tf.as_dtype(variable.dtype).is_floating


def find_elements(graph, layers, variables):
  """The hidden elements of the layers that have any, by name."""
  consumers = collections.defaultdict(list)
  for node in graph.nodes:
    for key in node.sources.values():
      if key in graph.maker:
        consumers[graph.maker[key]].append(node)
  elements = {}
  for node in graph.nodes:
    # Not subclasses: a transposed convolution is one of a convolution.
    if (
      type(node.operation) not in _DIVISIBLE
      or node.name not in layers
      or getattr(node.operation, 'data_format', None) == 'channels_first'
    ):
      continue
    names = layers[node.name]
    number = variables[names[0]].shape[-1]
    if isinstance(node.operation, keras.layers.RNN):
      number = node.operation.units
    owned = [
      *names,
      *_normalization_weights(graph, node, number, consumers, layers),
    ]
    elements[node.name] = hidden_elements.HiddenElements(
      number,
      {name: variables[name].shape[-1] // number for name in owned},
      tuple(name for name in names if name.endswith('kernel')),
    )
  return {name: elements[name] for name in layers if name in elements}


def _normalization_weights(graph, node, number, consumers, layers):
  """The weights of a normalization right after a node, one for each element."""
  following = consumers[node]
  while len(following) == 1:
    (following,) = following
    layer = following.operation
    if isinstance(layer, _NORMALIZATIONS):
      # One axis or a list of them.
      axes = tf.nest.flatten(layer.axis)
      rank = len(graph.tensors[following.results[0]].shape)
      of_elements = axes in ([-1], [rank - 1])
      return [
        name
        for name in layers.get(following.name, ())
        if of_elements
        and all(tuple(weight.shape) == (number,) for weight in layer.weights)
      ]
    if not isinstance(layer, _IN_PLACE):
      break
    following = consumers[following]
  return []


def head_nodes(graph, head_layers):
  """The nodes of the head: of its layers, and all that follow them."""
  errors.expect(
    head_layers, 'head_layers', 'at least one layer name', head_layers
  )
  wanted = set()
  inputs = {
    operation.name
    for operation in graph.model.operations
    if isinstance(operation, keras.layers.InputLayer)
  }
  for name in head_layers:
    matching = graph.matching(name)
    errors.expect(
      matching or name in inputs,
      'head_layers',
      f'names of layers of {graph.name!r} ({", ".join(graph.layers)})',
      name,
    )
    wanted.update(matching)
  errors.expect(
    any(graph.layers[name].weights for name in wanted),
    'head_layers',
    'layers of which one at least has weights',
    ', '.join(head_layers),
  )
  head = []
  for node in graph.nodes:
    if node.name in wanted:
      head.append(node)
    elif any(graph.maker.get(key) in head for key in node.sources.values()):
      # Every node leads to the output, so this also finds heads that end early.
      if node.has_weights:
        raise ValueError(
          'Expected `head_layers` to be the end of the network, found layer '
          f'{node.name!r} with weights after the head; add it to '
          '`head_layers`.'
        )
      head.append(node)
  return head


def features_of(graph, head_nodes):
  """The keys of the tensors that the head takes from the body.

  Returns:
    Those of the tensors, and those of them whose masks the head needs.
  """
  crossing = {}
  for node in head_nodes:
    for key in node.sources.values():
      if graph.maker.get(key) not in head_nodes:
        crossing[key] = None
  needs_masks = graph.masks_output or any(
    _may_read_masks(node.operation) for node in head_nodes
  )
  masked = [key for key in crossing if needs_masks and graph.has_mask(key)]
  return list(crossing), masked


def _may_read_masks(layer):
  """True for layers that may do something else for inputs with a mask.

  One of a user may hold others that do.
  """
  if isinstance(layer, keras.layers.Wrapper):
    return _may_read_masks(layer.layer)
  if not isinstance(layer, keras.Layer):
    return False
  parameters = inspect.signature(layer.call).parameters
  return not _is_of_keras(layer) or any('mask' in name for name in parameters)
