"""Loaded graphs, which TensorFlow can call.

Graphs with variables or tables (Keras models) name them in TensorFlow's global
registry. Each loaded copy of such a graph has names of its own and serves one
call at a time, so that concurrent clients do not share variables. The graph's
initialization runs before each call, with its arguments; variables and tables
are freed after the call.
"""

import functools
import itertools
import re
import threading
import weakref
from collections.abc import Callable
from collections.abc import Sequence as ListOrTuple
from typing import Any, Optional

import tensorflow as tf
from absl import logging

from tff_pfl.runtime import graph_defs, values
from tff_pfl.runtime.private_api import eager_context, eager_execute

# Messages of TensorFlow if XLA has no kernel for an operation or cannot compile
# it for the shapes.
_XLA_CANNOT_COMPILE = re.compile(
  r'tf2xla conversion failed|unsupported operations|on XLA_[A-Z]+_JIT'
)
_MAX_REASON_CHARACTERS = 300
_CHECKS = ('Assert', 'CheckNumerics', 'CheckNumericsV2')

# `tf.data.experimental.ExternalStatePolicy`: accept data sets that draw random
# numbers or call Python.
_IGNORE_EXTERNAL_STATE = 1


class Lazy:
  """A function's result, computed once for all threads at the first `get`."""

  def __init__(self, load: Callable[[], Any]):
    """Takes the function, which may be None for the result None."""
    self._lock = threading.Lock()
    self._load = load
    self._result = None

  def get(self) -> Any:
    """Returns the function's result."""
    if self._load is not None:
      with self._lock:
        if self._load is not None:
          self._result = self._load()
          self._load = None
    return self._result


class EagerFunction:
  """A concrete function of flat tensors, called without its Python layers."""

  def __init__(self, concrete: Any):
    self.concrete = concrete
    self._name = concrete.name
    self._captured = list(concrete.captured_inputs)
    self._num_outputs = len(concrete.outputs)
    self._context = eager_context.context()
    self._attributes = tuple(
      itertools.chain(*self._context.function_call_options.as_attrs().items())
    )

  def __call__(self, inputs: list[tf.Tensor]) -> list[tf.Tensor]:
    """Returns the results."""
    return eager_execute.execute(
      self._name,
      self._num_outputs,
      [*inputs, *self._captured],
      self._attributes,
      self._context,
    )


def xla_refuses(error: BaseException) -> bool:
  """Returns True for an error that says that XLA cannot compile a function."""
  return isinstance(
    error, (tf.errors.InvalidArgumentError, tf.errors.UnimplementedError)
  ) and bool(_XLA_CANNOT_COMPILE.search(error.message))


class Program:
  """A loaded graph: one copy, or as many as there are concurrent calls.

  Attributes:
    has_resources: True if it holds variables or tables.
    is_deterministic: The result of `graph_defs.is_deterministic`.
    asks_for_xla: True if XLA has to compile a part of it.
  """

  def __init__(
    self,
    load_copy: Callable[[], '_Copy'],
    *,
    has_resources: bool = False,
    is_deterministic: bool = False,
    load_without_xla: Optional[Callable[[], 'Program']] = None,
  ):
    """Loads the first copy.

    Args:
      load_copy: Loads a copy of the graph.
      has_resources: See the class.
      is_deterministic: See the class.
      load_without_xla: Loads the same graph without parts for XLA; None if it
        has none.
    """
    self.has_resources = has_resources
    self.is_deterministic = is_deterministic
    self.asks_for_xla = load_without_xla is not None
    self._load_copy = load_copy
    self._first = load_copy()
    # Unused copies; only for graphs with resources.
    self._free = [self._first]
    self._without_xla = Lazy(load_without_xla)

  @property
  def concrete(self) -> Any:
    """The first copy's concrete function."""
    return self._first.concrete

  @property
  def has_checks(self) -> bool:
    """True if it has assertions, which XLA would leave out."""
    return any(kind in self._kinds for kind in _CHECKS)

  @property
  def num_convolutions(self) -> int:
    """Number of convolutions of images and of their gradients."""
    return sum(
      number
      for kind, number in self._kinds.items()
      if kind.startswith('Conv2D')
    )

  @functools.cached_property
  def _kinds(self):
    return graph_defs.kinds_in_use(self.concrete.graph.as_graph_def())

  def call(self, inputs: list[tf.Tensor]) -> list[tf.Tensor]:
    """Calls the graph; returns the tensors of its results."""
    if not self.asks_for_xla:
      return self._call(inputs)
    try:
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
      # `pop` and `append` are atomic.
      copy = self._free.pop()
    except IndexError:
      copy = self._load_copy()
    try:
      return copy.call(inputs)
    finally:
      self._free.append(copy)


class _Copy:
  """A loaded copy of a graph."""

  def __init__(
    self, concrete: Any, initialize: Any = None, destroy: Any = None
  ):
    self.concrete = concrete
    self._positions = None if initialize else _positions_of_results(concrete)
    self._compute = EagerFunction(concrete)
    self._initialize = initialize and EagerFunction(initialize)
    self._destroy = destroy and EagerFunction(destroy)

  def call(self, inputs: list[tf.Tensor]) -> list[tf.Tensor]:
    """Calls the copy; returns the tensors of its results."""
    if self._positions is not None:
      return [inputs[position] for position in self._positions]
    try:
      if self._initialize is not None:
        self._initialize(inputs)
      outputs = self._compute(inputs)
      if self._destroy is None:
        return outputs
      return [_detach(t) if t.dtype == tf.variant else t for t in outputs]
    finally:
      if self._destroy is not None:
        self._destroy(inputs)


def _positions_of_results(concrete: Any) -> Optional[list[int]]:
  """Returns the inputs that are the results; None if the graph does more."""
  inputs = {tensor.name: n for n, tensor in enumerate(concrete.inputs)}
  positions = []
  for tensor in concrete.outputs:
    while tensor.op.type == 'Identity' and not tensor.op.control_inputs:
      (tensor,) = tensor.op.inputs
    if tensor.name not in inputs:
      return None
    positions.append(inputs[tensor.name])
  return positions


def _detach(variant: tf.Tensor) -> tf.Tensor:
  """Returns a copy of a data set that does not need the graph it comes from."""
  graph = tf.raw_ops.DatasetToGraphV2(
    input_dataset=variant, external_state_policy=_IGNORE_EXTERNAL_STATE
  )
  return tf.raw_ops.DatasetFromGraph(graph_def=graph)


def load_graph(proto: Any, form: int = graph_defs.ALONE) -> Program:
  """Loads a `pb.TensorFlow`, TFF's message of a graph.

  Args:
    proto: The message.
    form: `graph_defs.ALONE` or `graph_defs.TOGETHER`.
  """

  def unpack():
    graph_def = tf.compat.v1.GraphDef()
    proto.graph_def.Unpack(graph_def)
    graph_defs.choose_forms(graph_def, form)
    return graph_def

  graph_def = unpack()
  has_resources = bool(proto.initialize_op) or any(
    map(graph_defs.has_shared_name, graph_defs.all_nodes(graph_def))
  )

  def load_without_xla():
    return Program(
      lambda: _load_copy(graph_defs.without_xla(unpack()), proto),
      has_resources=has_resources,
    )

  return Program(
    lambda: _load_copy(unpack(), proto),
    has_resources=has_resources,
    is_deterministic=graph_defs.is_deterministic(graph_def),
    load_without_xla=load_without_xla
    if graph_defs.parts_for_xla(graph_def)
    else None,
  )


def _load_copy(graph_def: tf.compat.v1.GraphDef, proto: Any) -> _Copy:
  """Loads a copy of a graph, which it changes, under names of its own."""
  function_names = graph_defs.make_names_unique(graph_def)
  token = proto.session_token_tensor_name
  feeds = tensor_names(proto.parameter)
  concrete = import_graph(
    graph_def, feeds, tensor_names(proto.result), token=token
  )
  initialize = destroy = None
  if proto.initialize_op:
    initialize = import_graph(
      graph_def, feeds, [], proto.initialize_op, token=token
    )
  # A returned data set may read a table after the call. It has a copy (see
  # `_detach`), which TensorFlow never frees; so tables that are the same in
  # each call are kept instead.
  stays = (
    any(t.dtype == tf.variant for t in concrete.outputs)
    and initialize is not None
    and not any(t.consumers() for t in initialize.inputs)
    and all(
      node.op == 'HashTableV2'
      for node in graph_defs.resource_handles(graph_def)
    )
  )
  destruction = graph_defs.add_destruction(graph_def)
  if destruction and not stays:
    destroy = import_graph(graph_def, feeds, [], destruction, token=token)
  # TensorFlow would keep a graph's library for ever.
  weakref.finalize(concrete, _unload, function_names).atexit = False
  return _Copy(concrete, initialize, destroy)


def _unload(function_names: ListOrTuple[str]) -> None:
  """Frees the functions of a loaded copy."""
  for name in function_names:
    # Each part of the graph has registered them.
    while eager_context.context().has_function(name):
      eager_context.context().remove_function(name)


def import_graph(
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
    fetches: Names of the tensors that are the results; repeated names give one.
    operation: Name of a further operation to run.
    token: Name of the tensor for TFF's session token, which is empty here.
  """
  fetches = list(dict.fromkeys(fetches))
  given = [name for name in (*feeds, token) if name]
  ends = [*fetches, operation] if operation else fetches
  part = graph_defs.ancestors(graph_def, ends, given)
  used = {
    graph_defs.tensor_name(name) for node in part.node for name in node.input
  }

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
    for node in (placeholders[graph_defs.node_name(name)] for name in feeds)
  ]
  with tf.init_scope():
    return tf.compat.v1.wrap_function(import_part, signature)


def tensor_names(binding: Any) -> list[str]:
  """Returns the names of a `pb.TensorFlow.Binding`'s tensors, in its order."""
  kind = binding.WhichOneof('binding')
  if kind == 'tensor':
    return [binding.tensor.tensor_name]
  if kind == 'sequence':
    return [binding.sequence.variant_tensor_name]
  # A function without parameter has no binding, and no names.
  return [
    name for part in binding.struct.element for name in tensor_names(part)
  ]


def load_fold(
  program: Program,
  pack: Callable[[ListOrTuple[tf.Tensor]], values.LocalValue],
  size: int,
) -> Program:
  """Makes a program that accumulates several rows.

  Args:
    program: The program that accumulates one row.
    pack: Function from its results to the local value.
    size: Number of rows.
  """
  accumulated, row = _specs_of_fold(program, pack)

  def rows_of(flat):
    number = len(row)
    return [flat[i * number : (i + 1) * number] for i in range(size)]

  signature = (accumulated, size * row)
  return Program(lambda: _load_fold(program, pack, signature, rows_of))


def load_stacked_fold(
  program: Program,
  pack: Callable[[ListOrTuple[tf.Tensor]], values.LocalValue],
  size: int,
  is_shared: ListOrTuple[bool],
  uses_xla: bool,
) -> Program:
  """Makes a program that accumulates stacked rows, `[size, ...]`.

  Args:
    program: The program that accumulates one row.
    pack: Function from its results to the local value.
    size: Number of rows.
    is_shared: For each of a row's tensors True if it is the same in all rows,
      and not stacked.
    uses_xla: True to compile it by XLA if possible.
  """
  accumulated, row = _specs_of_fold(program, pack)
  columns = [
    spec if shared else tf.TensorSpec([size, *spec.shape], spec.dtype)
    for spec, shared in zip(row, is_shared)
  ]

  def rows_of(flat):
    return zip(
      *(
        [tensor] * size if shared else tf.unstack(tensor, size)
        for tensor, shared in zip(flat, is_shared)
      )
    )

  def load(jit_compile):
    signature = (accumulated, columns)
    return _load_fold(program, pack, signature, rows_of, jit_compile)

  if not uses_xla:
    return Program(lambda: load(None))
  return Program(
    lambda: load(True), load_without_xla=lambda: Program(lambda: load(None))
  )


def _specs_of_fold(program, pack):
  """Returns the specs of the total's and of a row's tensors."""
  specs = [tf.TensorSpec(t.shape, t.dtype) for t in program.concrete.inputs]
  # One tensor of the results may stand for several of the next call's inputs.
  number = len(values.flatten(pack(program.concrete.outputs)))
  return specs[:number], specs[number:]


def _load_fold(program, pack, signature, rows_of, jit_compile=None):
  """Loads a fold.

  Args:
    signature: Specs of the total's tensors, and of the other arguments.
    rows_of: Function from the other arguments to the rows.
  """
  accumulated, others = signature

  def fold(*flat):
    total = flat[: len(accumulated)]
    for row in rows_of(flat[len(accumulated) :]):
      total = values.flatten(pack(program.concrete(*total, *row)))
    return total

  function = tf.function(
    fold,
    input_signature=accumulated + others,
    autograph=False,
    jit_compile=jit_compile,
  )
  with tf.init_scope():
    return _Copy(function.get_concrete_function())
