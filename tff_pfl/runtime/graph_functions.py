"""Functions from TFF's serialized TensorFlow graphs.

A graph is loaded when it is first called, once for all computations that hold
the same graph, and unloaded when many others have been called since. A call
costs little more than TensorFlow's own dispatch.

Graphs with variables or tables (Keras models) name them in TensorFlow's global
registry. Each loaded copy of such a graph has names of its own, and a copy is
in use by one call at a time, so that concurrent clients do not share variables.
The graph's initialization runs before each call, with its arguments; after it
variables and tables are freed.
"""

import abc
import collections
import contextlib
import hashlib
import itertools
import re
import threading
import weakref
from collections.abc import Iterator
from collections.abc import Sequence as ListOrTuple
from typing import Any, Callable, Optional

import tensorflow as tf
import tensorflow_federated as tff
from absl import logging
from tensorflow.python.eager import cancellation, context, execute
from tensorflow_federated.python.tensorflow_libs import serialization_utils

from tff_pfl import errors
from tff_pfl.runtime import determinism, values

# How many clients' values one program accumulates at most.
_MAX_FOLD_SIZE = 16

# What TensorFlow says where XLA has no kernel for an operation, or where the
# shapes are such that it refuses to compile.
_XLA_CANNOT_COMPILE = re.compile(
  r'tf2xla conversion failed|unsupported operations|on XLA_[A-Z]+_JIT'
)
_MAX_REASON_CHARACTERS = 300

# What makes the handle of a variable or a table.
_RESOURCE_HANDLES = re.compile(r'VarHandleOp|\w*HashTable(OfTensors)?V2')
# `tf.data.experimental.ExternalStatePolicy`: take data sets as they are that
# draw random numbers or call Python.
_IGNORE_EXTERNAL_STATE = 1

_unique_number = itertools.count()
_of_thread = threading.local()


class Cancellation:
  """Ends the TensorFlow functions that are under way in its scopes.

  One that is made in the scope of another is cancelled with that one.
  """

  def __init__(self):
    self.manager = cancellation.CancellationManager()
    self._lock = threading.Lock()
    self._inner = weakref.WeakSet()
    outer = self.current()
    if outer is not None:
      outer._add(self)

  @classmethod
  def current(cls) -> Optional['Cancellation']:
    """What can cancel the calls of the calling thread; None if nothing."""
    return getattr(_of_thread, 'cancellation', None)

  @property
  def is_cancelled(self) -> bool:
    """Whether `cancel` has been called."""
    return self.manager.is_cancelled

  @contextlib.contextmanager
  def scope(self) -> Iterator[None]:
    """Makes the functions that the calling thread calls cancellable by this."""
    outer = self.current()
    _of_thread.cancellation = self
    try:
      # For calls that TensorFlow's own Python makes.
      with cancellation.CancellationManagerContext(self.manager):
        yield
    finally:
      _of_thread.cancellation = outer

  def cancel(self) -> None:
    """Ends what is under way with `tf.errors.CancelledError`."""
    with self._lock:
      self.manager.start_cancel()
      inner = list(self._inner)
    for each in inner:
      each.cancel()

  def _add(self, inner: 'Cancellation') -> None:
    with self._lock:
      self._inner.add(inner)
    if self.is_cancelled:
      inner.cancel()


def xla_refuses(error: BaseException) -> bool:
  """Whether an error says that XLA cannot compile a function."""
  return isinstance(
    error, (tf.errors.InvalidArgumentError, tf.errors.UnimplementedError)
  ) and bool(_XLA_CANNOT_COMPILE.search(error.message))


class LocalFunction(abc.ABC):
  """A function of one party, without placements, that TensorFlow computes.

  It may be called from several threads at once. Calls run on the device of the
  caller's `tf.device`.

  Attributes:
    block: `tff.framework.CompiledComputation` with `block.proto`.
    type_signature: `tff.FunctionType`; its `parameter` may be None.
    content_hash: Hex digest of what it computes: the graph, the names of its
      inputs and outputs. Equal for equal computations.
  """

  block: tff.framework.CompiledComputation
  type_signature: tff.FunctionType
  content_hash: str

  @abc.abstractmethod
  def __call__(self, argument: values.LocalValue = None) -> values.LocalValue:
    """Returns the local value of the result, from that of the argument."""

  @abc.abstractmethod
  def fold(
    self, initial: values.LocalValue, rows: ListOrTuple[values.LocalValue]
  ) -> values.LocalValue:
    """Returns `f(... f(f(initial, rows[0]), rows[1]) ...)`.

    Args:
      initial: The first element of the first argument.
      rows: The second elements, in their order; may be empty.
    """

  @property
  @abc.abstractmethod
  def is_deterministic(self) -> bool:
    """Whether equal arguments surely give equal results, and nothing else."""

  @property
  @abc.abstractmethod
  def is_tensor_function(self) -> bool:
    """Whether it maps tensors to tensors, without sequences and variables."""

  @property
  @abc.abstractmethod
  def has_variables(self) -> bool:
    """Whether it holds variables or tables."""

  @property
  @abc.abstractmethod
  def asks_for_xla(self) -> bool:
    """Whether a part of it is to be compiled by XLA."""

  @property
  @abc.abstractmethod
  def concrete(self) -> Any:
    """The concrete function from `values.flatten(argument)` to flat results.

    For a program that is made of several calls; only of an
    `is_tensor_function`.
    """

  @abc.abstractmethod
  def pack(self, outputs: ListOrTuple[tf.Tensor]) -> values.LocalValue:
    """Returns the local value for the flat results of `concrete`."""


class FunctionLibrary:
  """The loaded graphs of a runtime, bounded in number."""

  def __init__(self, max_functions: int = 512):
    """Makes an empty library.

    Args:
      max_functions: How many graphs stay loaded, at least 1; those that have
        not been called for longest are unloaded.
    """
    errors.expect(
      max_functions >= 1, 'max_functions', 'at least 1', max_functions
    )
    self._max_functions = max_functions
    self._lock = threading.Lock()
    self._programs = collections.OrderedDict()

  def __len__(self) -> int:
    """The number of loaded graphs."""
    return len(self._programs)

  def function(self, block: tff.framework.CompiledComputation) -> LocalFunction:
    """Returns the function of a serialized graph; loads nothing yet.

    Args:
      block: A building block with a TensorFlow graph.

    Raises:
      RunError: If it is not TensorFlow.
    """
    kind = block.proto.WhichOneof('computation')
    if kind != 'tensorflow':
      raise errors.RunError(
        f'A local computation in {kind} cannot run in process, only TensorFlow;'
        ' choose the native runtime.'
      )
    return _GraphFunction(block, self)

  def clear(self) -> None:
    """Unloads all graphs."""
    with self._lock:
      self._programs.clear()

  def program(self, key: Any, load: Callable[[], Any]) -> Any:
    """Returns what `load` returned when the key was first asked for."""
    with self._lock:
      entry = self._programs.get(key)
      if entry is None:
        entry = self._programs[key] = _Loadable(load)
        while len(self._programs) > self._max_functions:
          self._programs.popitem(last=False)
      else:
        self._programs.move_to_end(key)
    return entry.get()


class _Loadable:
  """Calls a function once, even if several threads ask for its result."""

  def __init__(self, load: Callable[[], Any]):
    self._lock = threading.Lock()
    self._load = load
    self._result = None

  def get(self) -> Any:
    if self._load is not None:
      with self._lock:
        if self._load is not None:
          self._result = self._load()
          self._load = None
    return self._result


class _GraphFunction(LocalFunction):
  """A `LocalFunction` whose programs a library holds."""

  def __init__(
    self, block: tff.framework.CompiledComputation, library: FunctionLibrary
  ):
    self.block = block
    self.type_signature = block.type_signature
    self._proto = block.proto.tensorflow
    self._library = library
    self.content_hash = _content_hash(self._proto)
    names = _names(self._proto.result)
    self._pack = _packer(self._proto.result, list(dict.fromkeys(names)))
    self._pack_fold = _packer(self._proto.result, names)

  def __call__(self, argument: values.LocalValue = None) -> values.LocalValue:
    inputs = [] if argument is None else values.flatten(argument)
    return self._pack(self._program().call(inputs))

  def fold(
    self, initial: values.LocalValue, rows: ListOrTuple[values.LocalValue]
  ) -> values.LocalValue:
    if self._program().has_resources:
      for row in rows:
        initial = self((initial, row))
      return initial
    flat = values.flatten(initial)
    begin = 0
    while begin < len(rows):
      size = min(_MAX_FOLD_SIZE, len(rows) - begin)
      for row in rows[begin : begin + size]:
        flat.extend(values.flatten(row))
      flat = list(self._fold_program(size).call(flat))
      begin += size
    return self._pack_fold(flat) if rows else initial

  @property
  def is_deterministic(self) -> bool:
    return self._program().is_deterministic

  @property
  def is_tensor_function(self) -> bool:
    return not self._program().has_resources and not tff.types.contains(
      self.type_signature, lambda part: isinstance(part, tff.SequenceType)
    )

  @property
  def has_variables(self) -> bool:
    return self._program().has_resources

  @property
  def asks_for_xla(self) -> bool:
    return self._program().asks_for_xla

  @property
  def concrete(self) -> Any:
    return self._program().concrete

  def pack(self, outputs: ListOrTuple[tf.Tensor]) -> values.LocalValue:
    return self._pack(outputs)

  def _program(self) -> '_Program':
    return self._library.program(
      self.content_hash, lambda: _load_graph(self._proto)
    )

  def _fold_program(self, size: int) -> '_Program':
    return self._library.program(
      (self.content_hash, size),
      lambda: _load_fold(self._program(), self._pack, size),
    )


def _content_hash(proto: Any) -> str:
  """Returns the digest of a `pb.TensorFlow`."""
  digest = hashlib.sha256(proto.graph_def.value)
  for part in (proto.parameter, proto.result):
    digest.update(b'\0' + part.SerializeToString(deterministic=True))
  digest.update(b'\0' + proto.initialize_op.encode())
  return digest.hexdigest()


def _names(binding: Any) -> list[str]:
  """Returns the tensors' names of a `pb.TensorFlow.Binding`, in its order."""
  kind = binding.WhichOneof('binding')
  if kind == 'tensor':
    return [binding.tensor.tensor_name]
  if kind == 'sequence':
    return [binding.sequence.variant_tensor_name]
  # A function without parameter has no binding, and no names.
  return [name for part in binding.struct.element for name in _names(part)]


def _packer(
  binding: Any, names: ListOrTuple[str]
) -> Callable[[ListOrTuple[tf.Tensor]], values.LocalValue]:
  """Returns the function from the named tensors to the bound local value."""
  kind = binding.WhichOneof('binding')
  if kind == 'tensor':
    index = names.index(binding.tensor.tensor_name)
    return lambda outputs: outputs[index]
  if kind == 'sequence':
    index = names.index(binding.sequence.variant_tensor_name)
    return lambda outputs: values.Sequence(outputs[index])
  packers = [_packer(element, names) for element in binding.struct.element]
  return lambda outputs: tuple([pack(outputs) for pack in packers])


class _EagerFunction:
  """Calls a concrete function with flat tensors, without its Python layers."""

  def __init__(self, concrete: Any):
    self.concrete = concrete
    self._name = concrete.name
    self._num_outputs = len(concrete.outputs)
    self._context = context.context()
    self._attributes = tuple(
      itertools.chain(*self._context.function_call_options.as_attrs().items())
    )

  def __call__(self, inputs: list[tf.Tensor]) -> list[tf.Tensor]:
    current = Cancellation.current()
    if current is None:
      return self.call_to_the_end(inputs)
    return execute.execute_with_cancellation(
      self._name,
      self._num_outputs,
      inputs,
      self._attributes,
      self._context,
      current.manager,
    )

  def call_to_the_end(self, inputs: list[tf.Tensor]) -> list[tf.Tensor]:
    """Calls it, whatever is cancelled."""
    return execute.execute(
      self._name, self._num_outputs, inputs, self._attributes, self._context
    )


class _Program:
  """A loaded graph: one copy, or as many as there are concurrent calls.

  Attributes:
    has_resources: Whether it holds variables or tables.
    is_deterministic: As for a `LocalFunction`.
    asks_for_xla: As for a `LocalFunction`.
  """

  def __init__(
    self,
    load_copy: Callable[[], '_Copy'],
    *,
    has_resources: bool = False,
    is_deterministic: bool = False,
    asks_for_xla: bool = False,
    load_without_xla: Optional[Callable[[], '_Program']] = None,
  ):
    self.has_resources = has_resources
    self.is_deterministic = is_deterministic
    self.asks_for_xla = asks_for_xla
    self._load_copy = load_copy
    self._first = load_copy()
    # Copies that are not in use; only for graphs with resources.
    self._free = [self._first]
    self._without_xla = _Loadable(load_without_xla)

  @property
  def concrete(self) -> Any:
    """The first copy's concrete function."""
    return self._first.concrete

  def call(self, inputs: list[tf.Tensor]) -> list[tf.Tensor]:
    """Returns the tensors of the graph's results."""
    if not self.asks_for_xla:
      return self._call(inputs)
    try:
      # An error cancels all that its scope's calls could go on with.
      with Cancellation().scope():
        return self._call(inputs)
    except (tf.errors.InvalidArgumentError, tf.errors.UnimplementedError) as e:
      if not xla_refuses(e):
        raise
      logging.log_first_n(
        logging.WARNING,
        'XLA cannot compile a part of the computation, which runs without it: '
        '%s',
        1,
        ' '.join(e.message.split())[:_MAX_REASON_CHARACTERS],
      )
    return self._without_xla.get().call(inputs)

  def _call(self, inputs: list[tf.Tensor]) -> list[tf.Tensor]:
    if not self.has_resources:
      return self._first.call(inputs)
    try:
      # Taking the last and appending are atomic.
      copy = self._free.pop()
    except IndexError:
      copy = self._load_copy()
    try:
      return copy.call(inputs)
    finally:
      self._free.append(copy)


class _Copy:
  """A loaded copy of a graph.

  Attributes:
    concrete: The concrete function.
  """

  def __init__(
    self, concrete: Any, initialize: Any = None, destroy: Any = None
  ):
    self.concrete = concrete
    self._compute = _EagerFunction(concrete)
    self._initialize = initialize and _EagerFunction(initialize)
    self._destroy = destroy and _EagerFunction(destroy)

  def call(self, inputs: list[tf.Tensor]) -> list[tf.Tensor]:
    """Returns the tensors of the results."""
    try:
      if self._initialize is not None:
        self._initialize(inputs)
      outputs = self._compute(inputs)
      if self._destroy is None:
        return outputs
      return [_detach(t) if t.dtype == tf.variant else t for t in outputs]
    finally:
      if self._destroy is not None:
        self._destroy.call_to_the_end(inputs)


def _detach(variant: tf.Tensor) -> tf.Tensor:
  """Returns a data set that needs nothing of the graph that it comes from."""
  graph = tf.raw_ops.DatasetToGraphV2(
    input_dataset=variant, external_state_policy=_IGNORE_EXTERNAL_STATE
  )
  return tf.raw_ops.DatasetFromGraph(graph_def=graph)


def _load_graph(proto: Any) -> _Program:
  """Loads a `pb.TensorFlow`."""
  graph_def = _unpack(proto)
  has_resources = bool(proto.initialize_op) or any(
    'shared_name' in node.attr for node in determinism.all_nodes(graph_def)
  )
  return _Program(
    lambda: _load_copy(_unpack(proto), proto),
    has_resources=has_resources,
    is_deterministic=determinism.is_deterministic(
      graph_def, sets_resources=bool(proto.initialize_op)
    ),
    asks_for_xla=bool(_parts_for_xla(graph_def)),
    load_without_xla=lambda: _Program(
      lambda: _load_copy(_without_xla(_unpack(proto)), proto),
      has_resources=has_resources,
    ),
  )


def _unpack(proto: Any) -> tf.compat.v1.GraphDef:
  return serialization_utils.unpack_graph_def(proto.graph_def)


def _without_xla(graph_def: tf.compat.v1.GraphDef) -> tf.compat.v1.GraphDef:
  for part in _parts_for_xla(graph_def):
    part.attr['_XlaMustCompile'].b = False
  return graph_def


def _parts_for_xla(graph_def: tf.compat.v1.GraphDef) -> list[Any]:
  """Returns the nodes and functions that XLA must compile."""
  return [
    part
    for part in (*determinism.all_nodes(graph_def), *graph_def.library.function)
    if '_XlaMustCompile' in part.attr and part.attr['_XlaMustCompile'].b
  ]


def _load_copy(graph_def: tf.compat.v1.GraphDef, proto: Any) -> _Copy:
  """Returns a copy of a graph, which it changes, under names of its own."""
  function_names = _make_names_unique(graph_def)
  token = proto.session_token_tensor_name
  feeds = _names(proto.parameter)
  concrete = _import(graph_def, feeds, _names(proto.result), token=token)
  initialize = destroy = None
  if proto.initialize_op:
    initialize = _import(graph_def, feeds, [], proto.initialize_op, token=token)
  # A returned data set may read a table after the call. It takes along a copy
  # (see `_detach`), which TensorFlow never frees; so tables that are the same
  # in each call stay where they are instead.
  stays = (
    any(t.dtype == tf.variant for t in concrete.outputs)
    and initialize is not None
    and not any(t.consumers() for t in initialize.inputs)
    and all(node.op == 'HashTableV2' for node in _resource_handles(graph_def))
  )
  destruction = _add_destruction(graph_def)
  if destruction and not stays:
    destroy = _import(graph_def, feeds, [], destruction, token=token)
  # TensorFlow would keep a graph's library for ever.
  weakref.finalize(concrete, _unload, function_names).atexit = False
  return _Copy(concrete, initialize, destroy)


def _add_destruction(graph_def: tf.compat.v1.GraphDef) -> str:
  """Adds the operation that frees variables and tables; returns its name."""
  handles = _resource_handles(graph_def)
  everything = graph_def.node.add(op='NoOp', name='destroy_resources')
  for node in handles:
    destruction = graph_def.node.add(
      op='DestroyResourceOp', name=f'{node.name}/destroy', input=[node.name]
    )
    destruction.attr['ignore_lookup_error'].b = True
    everything.input.append(f'^{destruction.name}')
  return everything.name if handles else ''


def _resource_handles(graph_def: tf.compat.v1.GraphDef) -> list[Any]:
  """Returns the nodes that make variables and tables."""
  return [n for n in graph_def.node if _RESOURCE_HANDLES.fullmatch(n.op)]


def _unload(function_names: ListOrTuple[str]) -> None:
  """Frees what a loaded copy held."""
  for name in function_names:
    # Each part of the graph has registered them.
    while context.context().has_function(name):
      context.context().remove_function(name)


def _make_names_unique(graph_def: tf.compat.v1.GraphDef) -> list[str]:
  """Gives functions and resources names that no other loaded graph has.

  TensorFlow has one table for all functions of a process, and another for all
  resources.

  Returns:
    The new names of the functions.
  """
  suffix = f'_of_copy_{next(_unique_number)}'
  library = graph_def.library
  names = {
    f.signature.name: f.signature.name + suffix for f in library.function
  }
  for gradient in library.gradient:
    gradient.function_name = names[gradient.function_name]
    gradient.gradient_func = names[gradient.gradient_func]
  for function in library.function:
    function.signature.name = names[function.signature.name]
    _rename_in_attributes(function.attr, names)
  for node in determinism.all_nodes(graph_def):
    node.op = names.get(node.op, node.op)
    _rename_in_attributes(node.attr, names)
    if 'shared_name' in node.attr:
      # Without a name TensorFlow takes the node's.
      name = node.attr['shared_name'].s.decode() or node.name
      node.attr['shared_name'].s = (name + suffix).encode()
  return list(names.values())


def _rename_in_attributes(attributes: Any, names: dict[str, str]) -> None:
  """Renames functions that attributes refer to."""
  for attribute in attributes.values():
    kind = attribute.WhichOneof('value')
    if kind == 'func':
      _rename_call(attribute.func, names)
    elif kind == 'list':
      for call in attribute.list.func:
        _rename_call(call, names)
    elif kind == 's' and attribute.s.isascii():
      # Keras names the versions of a function for other devices by strings.
      name = attribute.s.decode()
      attribute.s = names.get(name, name).encode()


def _rename_call(call: Any, names: dict[str, str]) -> None:
  call.name = names.get(call.name, call.name)
  _rename_in_attributes(call.attr, names)


def _import(
  graph_def: tf.compat.v1.GraphDef,
  feeds: ListOrTuple[str],
  fetches: ListOrTuple[str],
  operation: str = '',
  *,
  token: str = '',
) -> Any:
  """Returns the concrete function of a part of a graph.

  Args:
    graph_def: The graph.
    feeds: Names of the tensors that are the arguments.
    fetches: Names of the tensors that are the results; equal ones are one.
    operation: Name of an operation to run as well.
    token: Name of the tensor for TFF's session token, which is empty here.
  """
  fetches = list(dict.fromkeys(fetches))
  given = [name for name in (*feeds, token) if name]
  ends = [*fetches, operation] if operation else fetches
  part = _ancestors(graph_def, ends, given)
  used = {_tensor_name(name) for node in part.node for name in node.input}

  def import_part(*arguments):
    tensors = dict(zip(feeds, arguments))
    if token:
      tensors[token] = tf.constant('')
    imported = [name for name in ends if name not in tensors]
    elements = tf.graph_util.import_graph_def(
      part,
      input_map={n: t for n, t in tensors.items() if n in used},
      return_elements=imported,
      name='',
    )
    tensors.update(zip(imported, elements))
    if not operation:
      return [tensors[name] for name in fetches]
    with tf.control_dependencies([tensors[operation]]):
      return [tf.identity(tensors[name]) for name in fetches] or tf.constant(0)

  placeholders = {node.name: node for node in graph_def.node}
  signature = [
    tf.TensorSpec(node.attr['shape'].shape, node.attr['dtype'].type)
    for node in (placeholders[_node_name(name)] for name in feeds)
  ]
  with tf.init_scope():
    return tf.compat.v1.wrap_function(import_part, signature)


def _ancestors(
  graph_def: tf.compat.v1.GraphDef,
  ends: ListOrTuple[str],
  given: ListOrTuple[str],
) -> tf.compat.v1.GraphDef:
  """Returns what the ends depend on, without the nodes of given tensors."""
  nodes = {node.name: node for node in graph_def.node}
  for name in given:
    nodes.pop(_node_name(name), None)
  reached = set()
  waiting = [_node_name(name) for name in ends]
  while waiting:
    name = waiting.pop()
    if name in nodes and name not in reached:
      reached.add(name)
      waiting.extend(map(_node_name, nodes[name].input))
  part = tf.compat.v1.GraphDef(
    versions=graph_def.versions, library=graph_def.library
  )
  for node in graph_def.node:
    if node.name in reached:
      copied = part.node.add()
      copied.CopyFrom(node)
      _forget_missing(copied, reached)
  return part


def _forget_missing(node: tf.compat.v1.NodeDef, present: set[str]) -> None:
  """Drops what else than tensors a node wants of nodes that are not there."""
  inputs = [
    name
    for name in node.input
    if not name.startswith('^') or _node_name(name) in present
  ]
  del node.input[:]
  node.input.extend(inputs)
  if '_class' in node.attr:
    places = node.attr['_class'].list
    kept = [s for s in places.s if s.decode().split('loc:@')[-1] in present]
    del places.s[:]
    places.s.extend(kept)


def _node_name(name: str) -> str:
  """Returns the node of an input, a control input or a tensor."""
  return name.lstrip('^').split(':')[0]


def _tensor_name(name: str) -> str:
  """Returns the full name of the tensor that is a node's input."""
  return name if ':' in name or name.startswith('^') else f'{name}:0'


def _load_fold(
  program: _Program,
  pack: Callable[[ListOrTuple[tf.Tensor]], values.LocalValue],
  size: int,
) -> _Program:
  """Returns the program that accumulates several rows."""
  concrete = program.concrete
  specs = [tf.TensorSpec(t.shape, t.dtype) for t in concrete.inputs]
  # One tensor of the results may stand for several of the next call's inputs.
  num_accumulated = len(values.flatten(pack(concrete.outputs)))
  per_row = len(specs) - num_accumulated

  def fold(*flat):
    accumulated = flat[:num_accumulated]
    for row in range(size):
      begin = num_accumulated + row * per_row
      outputs = concrete(*accumulated, *flat[begin : begin + per_row])
      accumulated = values.flatten(pack(outputs))
    return accumulated

  def load_copy():
    with tf.init_scope():
      signature = specs[:num_accumulated] + size * specs[num_accumulated:]
      function = tf.function(fold, input_signature=signature, autograph=False)
      return _Copy(function.get_concrete_function())

  return _Program(load_copy)
