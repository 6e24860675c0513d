"""A Keras model's graph: its nodes, weights, units, body and head.

A nested model appears as the nodes of its layers, called `model/layer`.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import inspect
import itertools
import re
import threading
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from typing import Any, Optional

import keras
import tensorflow as tf
import tree

from tff_pfl import errors
from tff_pfl.models import split_model, units

# Held while a network has other weights than its own.
_LOCK = threading.Lock()
# Layers that have units (convolutions only with channels last).
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
# Layers that keep the order of units between a layer and its normalization.
_IN_PLACE = (
  keras.layers.Activation,
  keras.layers.Dropout,
  keras.layers.ELU,
  keras.layers.LeakyReLU,
  keras.layers.ReLU,
)

# Model methods that only Keras's own loops call.
_OF_LOOPS = (
  'train_step',
  'test_step',
  'predict_step',
  'compute_loss',
  'compute_metrics',
)


def functional_of(
  model: keras.Model, input_spec: Optional[Any] = None
) -> keras.Model:
  """Converts a sequential or subclassed Keras model to a functional one.

  The `call` of a subclassed model is traced on symbolic inputs.

  Args:
    model: A model that knows its inputs. A functional one is returned
      unchanged.
    input_spec: `tf.TensorSpec`s of one example's inputs, for a subclassed
      model. None means float32 and the shapes that it was built with.
  """
  own = [
    method
    for method in _OF_LOOPS
    if not getattr(model, method).__module__.startswith('keras.')
  ]
  if isinstance(model, (keras.Function, keras.Sequential)):
    own += ['call'] * ('call' in vars(type(model)) and not _is_of_keras(model))
  errors.expect(
    not own,
    'model',
    f'a Keras model without a `{"`, `".join(own)}` of its own, which is never '
    'called (give `loss` and `metrics`)',
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
    input_spec = keras.tree.map_shape_structure(
      lambda shape: tf.TensorSpec(shape[1:]), shapes
    )

  def trace(**arguments):
    inputs = tree.map_structure_with_path(
      lambda path, of: keras.Input(
        of.shape,
        dtype=of.dtype.name,
        name=path[-1] if isinstance(input_spec, dict) else of.name,
      ),
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
    # With None, layers follow the mode of a call, as in functional models.
    graph, in_training = trace(training=None), trace(training=True)
  except Exception as e:  # The user's code may raise anything.
    raise ValueError(
      errors.message(
        'model',
        'a Keras model whose `call` takes symbolic inputs (use layers and '
        'keras.ops)',
        f'{type(model).__name__} {model.name!r}: {str(e).splitlines()[0]}',
      )
    ) from e
  errors.expect(
    _kinds(graph) == _kinds(in_training),
    'model',
    'a Keras model whose `call` only hands `training` on to its layers',
    f'{type(model).__name__} {model.name!r}',
  )
  return graph


def _kinds(model):
  """Counts the operations of a functional model by type, and layers by name."""
  return collections.Counter(
    (type(of), of.name if isinstance(of, keras.Layer) else '')
    for of in model.operations
    if not isinstance(of, keras.layers.InputLayer)
  )


def with_output(model: keras.Model, output: Optional[str]) -> keras.Model:
  """Returns the part of a functional model that computes one output.

  Args:
    model: A functional model.
    output: One of `model.output_names`, or a key of a dict of outputs. None
      selects the only output.
  """
  outputs = dict(zip(model.output_names, model.outputs))
  if isinstance(model.output, dict):
    outputs = dict(model.output)
  if output is None and len(outputs) == 1:
    (output,) = outputs
  errors.expect_one_of('output', output, outputs)
  if len(outputs) > 1 or isinstance(model.output, dict):
    model = keras.Model(model.input, outputs[output], name=model.name)
  for tensor in model.inputs:
    errors.expect(
      tensor.dtype != 'string' and None not in tensor.shape[1:],
      'model',
      'a Keras model whose inputs are numbers of a fixed shape (encode text, '
      'pad sequences)',
      f'{tensor.dtype} {tuple(tensor.shape[1:])} in {model.name!r}',
    )
  return model


@dataclasses.dataclass(frozen=True, eq=False)
class Node:
  """A call of a layer or operation.

  Attributes:
    operation: The layer or operation.
    name: Its name in the graph, `model/layer` in a nested model.
    arguments: Keras's record of the call's arguments.
    sources: Key in the graph of each symbolic tensor in the arguments, by the
      tensor's id.
    results: Keys of the outputs.
    training: The fixed mode of the call. None means the mode of the model's
      call. As in Keras, the mode of a functional model overrides the modes with
      which it calls its layers.
  """

  operation: Any
  name: str
  arguments: Any
  sources: Mapping[int, int]
  results: Sequence[int]
  training: Optional[bool]

  @property
  def is_layer(self) -> bool:
    """True for a call of a layer, False for a call of an operation."""
    return isinstance(self.operation, keras.Layer)


class Graph:
  """The calls of layers in a functional Keras model, in order.

  Keras numbers unnamed layers of a kind across the whole process: a notebook
  cell that runs twice gives `dense`, then `dense_1`. Here they are numbered
  within the model, so that a second build is the same model.

  Attributes:
    model: The functional model.
    name: Its name.
    keep_names: True if layers with weights keep Keras's names.
    nodes: The calls, without inputs. Nested models appear as the calls of their
      layers.
    inputs: Keys of the input tensors.
    output: Key of the only output.
    tensors: Keras's symbolic tensors by key, for shapes and masks.
    layers: Layers by name, in the order of their first calls.
  """

  def __init__(
    self, model: keras.Model, keep_names: bool = False, is_traced: bool = False
  ):
    """Reads the model.

    Args:
      model: A functional model with one output.
      keep_names: True to keep Keras's names of layers that have weights.
      is_traced: True if it was traced from a subclassed model's `call`.
    """
    self.model = model
    self.name = _kind(model) or model.name
    self._is_traced = is_traced
    self._has_nested = False
    self.keep_names = keep_names
    # Names of layers in Keras to their names here.
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
    """Adds a model's nodes, called on inputs, and returns its output keys."""
    keys = {id(t): key for t, key in zip(model.inputs, inputs)}
    names = {}
    taken = {o.name for o in model.operations if not self._kind_of(o)}
    by_depth = model._nodes_by_depth  # pylint: disable=protected-access
    for depth in sorted(by_depth, reverse=True):
      for node in by_depth[depth]:
        if node.is_input:
          continue
        called = node.operation.name
        if called not in names:
          names[called] = self._name_for(node.operation, taken)
          taken.add(names[called])
        name = prefix + names[called]
        self._names.setdefault(keras_prefix + called, name)
        sources = {
          id(tensor): keys[id(tensor)] for tensor in node.input_tensors
        }
        said = node.arguments.kwargs.get('training')
        if said is None or not self._is_traced:
          said = training
        if isinstance(node.operation, keras.Model) and _is_of_keras(
          node.operation
        ):
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
    """False if the model was traced or has nested models."""
    return not self._is_traced and not self._has_nested

  @property
  def numbered(self) -> tuple:
    """Names of the unnamed layers with weights, which are numbered here."""
    return tuple(
      name
      for name, layer in self.layers.items()
      if layer.weights and self._kind_of(layer)
    )

  def _name_for(self, operation, taken):
    kind = self._kind_of(operation)
    return operation.name if kind is None else _numbered(kind, taken)

  def _inputs_of_nested(self, nested, node, name, keys):
    """Returns the keys of the tensors that a nested model is called on."""
    args, kwargs = node.arguments.args, dict(node.arguments.kwargs)
    called_on = keras.tree.flatten(args[0] if args else kwargs['inputs'])
    if kwargs.get('mask') is not None:
      refuse(name, node.operation, 'is called with a mask')
    dtypes, expected = (
      ', '.join(tensor.dtype for tensor in tensors)
      for tensors in (called_on, nested.inputs)
    )
    if dtypes != expected:
      refuse(
        name,
        node.operation,
        f'is called on {dtypes}; its inputs are {expected}',
      )
    return [keys[id(tensor)] for tensor in called_on]

  def _kind_of(self, operation):
    is_kept = self.keep_names and getattr(operation, 'weights', ())
    return None if is_kept else _kind(operation)

  def flat_inputs(self, x: Any) -> list:
    """Returns a batch's inputs in the order of `inputs`."""
    if not self._has_several_inputs:
      return [x]
    return [x[name] for name in self.input_names]

  @property
  def _has_several_inputs(self):
    return len(self.inputs) > 1 or isinstance(self.model.input, dict)

  @property
  def input_names(self) -> list:
    """Keys of the inputs if they are a dict, else their names."""
    if isinstance(self.model.input, dict):
      return sorted(self.model.input)
    return [tensor.name for tensor in self.model.inputs]

  @property
  def input_spec(self) -> Any:
    """Spec of one example's `x`, a dict sorted by name for several inputs."""
    specs = [tf.TensorSpec(t.shape[1:], t.dtype) for t in self.model.inputs]
    if not self._has_several_inputs:
      return specs[0]
    for name in self.input_names:
      errors.expect_plain('model', 'one whose inputs have names', name)
    return collections.OrderedDict(sorted(zip(self.input_names, specs)))

  def nodes_between(
    self, inputs: Iterable[int], outputs: Iterable[int]
  ) -> list[Node]:
    """Returns the nodes that compute the outputs from the inputs."""
    needed, known = set(outputs), set(inputs)
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
    """Runs nodes on values by key and returns values and results by key."""
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
    """Returns True if a tensor carries a Keras mask."""
    return getattr(self.tensors[key], '_keras_mask', None) is not None

  @property
  def masks_output(self) -> bool:
    """True if parts of the output are masked, such as padding of sequences."""
    return self.has_mask(self.output)

  def matching(self, name: str) -> tuple:
    """Finds layers by a layer's or model's name, in Keras or here."""
    for own_name in (self._names.get(name), name):
      layers = split_model.names_within(own_name, self.layers)
      if layers:
        return layers
    return ()


def _kind(operation):
  """Returns an operation's default name in Keras, None if the user named it."""
  kind = re.sub(r'_\d+$', '', operation.name)
  is_given = kind.replace('_', '') != type(operation).__name__.lower()
  return None if is_given else kind


def _is_of_keras(operation):
  return type(operation).__module__.startswith('keras.')


def refuse(name: str, layer: Any, reason: str) -> None:
  """Raises a `ValueError` that names a layer and why it is refused."""
  raise ValueError(
    f'Expected `model` to be made of supported layers, found layer '
    f'{name!r} ({type(layer).__name__}), which {reason}.'
  )


def layers_within(graph: Graph) -> list[tuple[str, Any]]:
  """Returns all layers and the layers within them, each with its graph name."""
  return [
    (name, module)
    for name, layer in graph.layers.items()
    for module in layer._flatten_layers()  # pylint: disable=protected-access
  ]


def update_kept_tensors(network: keras.Model) -> None:
  """Updates the tensors that layers make of their weights and keep."""
  for layer in network._flatten_layers():  # pylint: disable=protected-access
    if isinstance(layer, keras.layers.Normalization):
      layer.finalize_state()


@contextlib.contextmanager
def restoring_weights(network: keras.Model) -> Iterator[None]:
  """Restores a network's weights after a block, for one thread at a time."""
  with _LOCK:
    before = network.get_weights()
    try:
      yield
    finally:
      network.set_weights(before)
      # Keras updates them when it loads a file.
      update_kept_tensors(network)


def _numbered(kind: str, taken: Container[str]) -> str:
  """The first of `kind`, `kind_1` and so on that is not taken."""
  numbered = (f'{kind}_{n}' if n else kind for n in itertools.count())
  return next(name for name in numbered if name not in taken)


def owners(
  name: str, layer: Any, keep_names: bool = False
) -> Iterator[tuple[str, Any]]:
  """Yields the layers to which a layer's weights belong, by name.

  A custom layer may hold other layers with their own weights. A Keras layer
  counts as a whole (a recurrent layer with its cell, attention with its
  projections).
  """
  inner = [] if _is_of_keras(layer) else layer._layers  # pylint: disable=protected-access
  taken = set()
  for module in inner:
    kind = (None if keep_names else _kind(module)) or module.name
    taken.add(own := _numbered(kind, taken))
    yield from owners(f'{name}/{own}', module, keep_names)
  yield name, layer


def name_weights(graph):
  """Returns a graph's variables by weight name, its layers and statistics."""
  variables = collections.OrderedDict()
  layers = collections.OrderedDict()
  statistics = set()
  known = set()
  for graph_name, layer in graph.layers.items():
    for name, owner in owners(graph_name, layer, graph.keep_names):
      names = []
      frozen = set(map(id, layer.non_trainable_variables))
      for variable in owner.variables:
        # A shared weight belongs to the first layer. Integers, such as seeds,
        # are not weights.
        is_float = tf.as_dtype(variable.dtype).is_floating
        if id(variable) in known or not is_float:
          continue
        known.add(id(variable))
        suffix = f'/{variable.path}'.partition(f'/{owner.name}/')[2]
        suffix = suffix or variable.name
        # Keras numbers inner layers ("lstm_cell_3") across the process. A
        # weight's name must not depend on that.
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
  return variables, layers, frozenset(statistics)


def find_units(graph, layers, variables):
  """Returns `LayerUnits` by layer name, for layers that have units."""
  consumers = collections.defaultdict(list)
  for node in graph.nodes:
    for key in node.sources.values():
      if key in graph.maker:
        consumers[graph.maker[key]].append(node)
  layer_units = {}
  for node in graph.nodes:
    # Exact types: a transposed convolution is a subclass of a convolution.
    if (
      type(node.operation) not in _DIVISIBLE
      or node.name not in layers
      or getattr(node.operation, 'data_format', None) == 'channels_first'
      # All units share a low-rank factor.
      or getattr(node.operation, 'lora_enabled', False)
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
    layer_units[node.name] = units.LayerUnits(
      number,
      {name: variables[name].shape[-1] // number for name in owned},
      tuple(name for name in names if name.endswith('kernel')),
    )
  return {name: layer_units[name] for name in layers if name in layer_units}


def _normalization_weights(graph, node, number, consumers, layers):
  """Returns the per-unit weights of a normalization right after a node."""
  following = consumers[node]
  while len(following) == 1:
    (following,) = following
    layer = following.operation
    if isinstance(layer, _NORMALIZATIONS):
      # One axis or a list of axes.
      axes = tf.nest.flatten(layer.axis)
      rank = len(graph.tensors[following.results[0]].shape)
      is_per_unit = axes in ([-1], [rank - 1])
      return [
        name
        for name in layers.get(following.name, ())
        if is_per_unit
        and all(tuple(weight.shape) == (number,) for weight in layer.weights)
      ]
    if not isinstance(layer, _IN_PLACE):
      break
    following = consumers[following]
  return []


def head_nodes(graph, head_layers):
  """Returns the nodes of the head's layers and all nodes that follow.

  A layer whose weights are in the body, such as an embedding that also ends the
  network, may follow, or be the head by its last call.
  """
  chosen = set()
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
    chosen.update(matching)
  errors.expect(
    any(graph.layers[name].weights for name in chosen),
    'head_layers',
    'layers of which one at least has weights',
    ', '.join(head_layers),
  )
  first = [node for node in graph.nodes if node.name in chosen]
  last = {node.name: node for node in first}.values()
  head, strangers = _head_from(graph, first)
  if strangers and len(last) < len(first):
    again, others = _head_from(graph, last)
    if not others:
      return again
  if strangers:
    raise ValueError(
      'Expected `head_layers` to be the end of the network, found layers with '
      f'weights after the head; add {", ".join(strangers)} to `head_layers`.'
    )
  return head


def _head_from(graph, starts):
  """Returns `starts` with all that follow, and layers missing in `starts`."""
  head, of_body, strangers = [], set(), {}
  for node in graph.nodes:
    weights = {id(w) for w in node.operation.weights} if node.is_layer else ()
    if node in starts:
      head.append(node)
    elif any(graph.maker.get(key) in head for key in node.sources.values()):
      # Every node leads to the output, so this also finds heads that end early.
      head.append(node)
      if not of_body.issuperset(weights):
        strangers[node.name] = None
    else:
      of_body.update(weights)
  return head, strangers


def features_of(graph, head_nodes):
  """Finds the tensors that the head takes from the body.

  Returns:
    Their keys, and the keys of tensors whose masks the head needs.
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
  """Returns True for layers whose outputs may depend on a mask.

  A custom layer may hold other layers whose outputs do.
  """
  if isinstance(layer, keras.layers.Wrapper):
    return _may_read_masks(layer.layer)
  if not isinstance(layer, keras.Layer):
    return False
  parameters = inspect.signature(layer.call).parameters
  return not _is_of_keras(layer) or any('mask' in name for name in parameters)
