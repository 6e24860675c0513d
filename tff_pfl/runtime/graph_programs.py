"""Loaded graphs that TensorFlow can call."""

import collections
import dataclasses
import functools
import hashlib
import itertools
import math
import re
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any, Optional

import tensorflow as tf
from absl import logging

from tff_pfl.runtime import devices, values
from tff_pfl.system import cores, graph_defs
from tff_pfl.system.private_api import eager_context, eager_execute

# TensorFlow's messages if XLA has no kernel for an operation or cannot compile
# it for the shapes.
_XLA_CANNOT_COMPILE = re.compile(
  r'tf2xla conversion failed|unsupported operations|on XLA_[A-Z]+_JIT'
)
_MAX_REASON_CHARACTERS = 300
# Least part of the calls' time that is lost if clients take turns. Two clients
# lose half of it.
_LARGE_PART = 0.25
_CHECKS = ('Assert', 'CheckNumerics', 'CheckNumericsV2')

# Number of programs that stay loaded after their last computation is gone.
_MAX_KEPT = 100

# Deterministic programs in use, and the ones that were loaded last.
_shared = weakref.WeakValueDictionary()
_kept = collections.OrderedDict()
_sharing = threading.RLock()
# By name of a function, the number of loaded graphs that have it.
_num_loaded = collections.Counter()
_counting = threading.Lock()
# Names of the functions of graphs that are gone.
_gone = collections.deque()


class Lazy:
  """A function's result, computed once for all threads at the first `get`."""

  def __init__(self, load: Callable[[], Any]):
    """Takes the function. If it is None, the result is None."""
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
  """Calls a concrete function of flat tensors without its Python layers."""

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


class CompiledFunction(EagerFunction):
  """Calls a concrete function with parts for XLA.

  If most calls take longer than the shortest one of the same shapes, clients
  seem to take turns on their common device (see `devices.for_compiled`).
  Threads then use devices of their own. XLA compiles the function anew for each
  of them, so this happens only after more time is lost than that takes.
  """

  def __init__(self, concrete: Any):
    super().__init__(concrete)
    self._takes_turns = False
    self._varying = [
      i
      for i, tensor in enumerate(concrete.inputs)
      if not tensor.shape.is_fully_defined()
    ]
    # By the shapes of the inputs that vary.
    self._calls: dict[Any, _Calls] = {}
    self._num_other_devices = cores.num_usable_cores() - 1

  def __call__(self, inputs: list[tf.Tensor]) -> list[tf.Tensor]:
    """Returns the results."""
    device = devices.of_compiled()
    if device is None:
      return super().__call__(inputs)
    if not self._takes_turns:
      start = time.perf_counter()
      outputs = super().__call__(inputs)
      self._count(inputs, start, time.perf_counter())
      return outputs
    if device == devices.FIRST_CPU:
      return super().__call__(inputs)
    with tf.device(device):
      outputs = super().__call__(inputs)
    with tf.device(devices.FIRST_CPU):
      return tf.raw_ops.IdentityN(input=outputs) if outputs else outputs

  def _count(self, inputs, start, end):
    shapes = tuple([tuple(inputs[i].shape) for i in self._varying])
    calls = self._calls.get(shapes)
    if calls is None:
      # It includes the compilation.
      self._calls[shapes] = _Calls(end - start, end)
    elif start > calls.first_end:
      calls.number += 1
      calls.total += end - start
      calls.least = min(end - start, calls.least)
      of_shapes = list(self._calls.values())
      compiling = self._num_other_devices * sum(c.first for c in of_shapes)
      total = sum(c.total for c in of_shapes)
      lost = sum(c.lost for c in of_shapes)
      if lost > max(compiling, _LARGE_PART * total):
        self._takes_turns = True


@dataclasses.dataclass
class _Calls:
  """Seconds of a function's calls.

  Attributes:
    first: Seconds of the first call.
    first_end: When it ended.
    number: Number of calls that began later.
    total: Their seconds together.
    least: Seconds of the shortest of them.
  """

  first: float
  first_end: float
  number: int = 0
  total: float = 0.0
  least: float = math.inf

  @property
  def lost(self) -> float:
    """Seconds in which the calls were longer than the shortest one."""
    return self.total - self.number * self.least if self.number else 0.0


def eager_function(concrete: Any, asks_for_xla: bool) -> EagerFunction:
  """Returns the calls of a concrete function, perhaps with parts for XLA."""
  return (CompiledFunction if asks_for_xla else EagerFunction)(concrete)


def xla_refuses(error: BaseException) -> bool:
  """Returns True if an error says that XLA cannot compile a function."""
  return isinstance(
    error, (tf.errors.InvalidArgumentError, tf.errors.UnimplementedError)
  ) and bool(_XLA_CANNOT_COMPILE.search(error.message))


class Program:
  """A loaded graph.

  Attributes:
    concrete: The graph's concrete function.
    is_deterministic: The result of `graph_defs.is_deterministic`.
    asks_for_xla: True if XLA has to compile a part of the graph.
  """

  def __init__(
    self,
    concrete: Any,
    *,
    is_deterministic: bool = False,
    load_without_xla: Optional[Callable[[], 'Program']] = None,
  ):
    """Prepares the calls.

    Args:
      concrete: See the class.
      is_deterministic: See the class.
      load_without_xla: Loads the same graph without parts for XLA. None if it
        has no such parts.
    """
    self.concrete = concrete
    self.is_deterministic = is_deterministic
    self.asks_for_xla = load_without_xla is not None
    self._positions = _positions_of_results(concrete)
    self._compute = eager_function(concrete, self.asks_for_xla)
    self._without_xla = Lazy(load_without_xla)

  @property
  def has_checks(self) -> bool:
    """True if the graph has assertions, which XLA would drop."""
    return any(kind in self._kinds for kind in _CHECKS)

  @property
  def num_convolutions(self) -> int:
    """Number of image convolutions, including gradients."""
    return sum(
      number
      for kind, number in self._kinds.items()
      if kind.startswith('Conv2D')
    )

  @functools.cached_property
  def _kinds(self):
    return graph_defs.kinds_in_use(self.concrete.graph.as_graph_def())

  def call(self, inputs: list[tf.Tensor]) -> list[tf.Tensor]:
    """Calls the graph and returns the tensors of its results."""
    if self._positions is not None:
      return [inputs[position] for position in self._positions]
    if not self.asks_for_xla:
      return self._compute(inputs)
    try:
      return self._compute(inputs)
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


def _positions_of_results(concrete: Any) -> Optional[list[int]]:
  """Returns the results' positions in the inputs, None if any is computed."""
  inputs = {tensor.name: n for n, tensor in enumerate(concrete.inputs)}
  positions = []
  for tensor in concrete.outputs:
    while tensor.op.type == 'Identity' and not tensor.op.control_inputs:
      (tensor,) = tensor.op.inputs
    if tensor.name not in inputs:
      return None
    positions.append(inputs[tensor.name])
  return positions


def load_graph(proto: Any, form: int = graph_defs.ALONE) -> Program:
  """Loads a `pb.TensorFlow`, TFF's message for a graph.

  Equal deterministic graphs are one program, which all runtimes share. The
  programs that were loaded last stay loaded, so that a later run need not
  compile them again.

  Args:
    proto: The message.
    form: `graph_defs.ALONE` or `graph_defs.TOGETHER`.
  """

  def unpack():
    graph_def = tf.compat.v1.GraphDef()
    proto.graph_def.Unpack(graph_def)
    graph_defs.choose_forms(graph_def, form)
    return graph_def

  feeds, fetches = map(tensor_names, (proto.parameter, proto.result))

  def load(graph_def, function_names, feeds=feeds, fetches=fetches):
    with _counting:
      _num_loaded.update(function_names)
    _unload()
    try:
      concrete = import_graph(graph_def, feeds, fetches)
    except BaseException:
      _unload(function_names)
      raise
    # TensorFlow would keep a graph's library forever.
    weakref.finalize(concrete, _unload, function_names).atexit = False
    return concrete

  def load_without_xla():
    graph_def = graph_defs.without_xla(unpack())
    return Program(load(graph_def, graph_defs.make_names_unique(graph_def)))

  graph_def = unpack()
  options = {}
  if graph_defs.parts_for_xla(graph_def):
    options['load_without_xla'] = load_without_xla
  if not graph_defs.is_deterministic(graph_def):
    # An operation with a state, such as a random one, needs its own function.
    names = graph_defs.make_names_unique(graph_def)
    return Program(load(graph_def, names), **options)
  with _sharing:
    call_options = _call_options()
    names, tensors = graph_defs.make_names_canonical(
      graph_def, [*feeds, *fetches], call_options
    )
    tensors = tensors[: len(feeds)], tensors[len(feeds) :]
    content = graph_def.SerializeToString(deterministic=True)
    options_and_tensors = repr((call_options, tensors)).encode()
    key = hashlib.sha256(content + options_and_tensors).digest()
    program = _shared.get(key)
    if program is None:
      program = _shared[key] = Program(
        load(graph_def, names, *tensors), is_deterministic=True, **options
      )
    _kept[key] = program
    _kept.move_to_end(key)
    while len(_kept) > _MAX_KEPT:
      _kept.popitem(last=False)
  return program


def _call_options() -> str:
  """Describes what a program depends on besides its graph."""
  options = eager_context.context().function_call_options
  return repr(
    (
      options.config_proto_serialized,
      tf.config.experimental.tensor_float_32_execution_enabled(),
    )
  )


def _unload(function_names: Sequence[str] = ()) -> None:
  """Frees the functions of a graph that is gone, unless another graph has them.

  The garbage collector calls this at any time, even during another call. Then
  the other call does its work.
  """
  _gone.append(function_names)
  while _gone and _counting.acquire(blocking=False):
    try:
      while _gone:
        for name in _gone.popleft():
          _num_loaded[name] -= 1
          if not _num_loaded[name]:
            del _num_loaded[name]
            while eager_context.context().has_function(name):
              eager_context.context().remove_function(name)
    finally:
      _counting.release()


def import_graph(
  graph_def: tf.compat.v1.GraphDef,
  feeds: Sequence[str],
  fetches: Sequence[str],
) -> Any:
  """Returns the concrete function of a part of a graph.

  Args:
    graph_def: The graph.
    feeds: Names of the placeholders' tensors that are the arguments.
    fetches: Names of the tensors that are the results. Repeated names give one
      result.
  """
  nodes = {node.name: node for node in graph_def.node}
  needed, names = set(), {_node_of(fetch) for fetch in fetches}
  while names:
    needed |= names
    inputs = (nodes[name].input for name in names)
    names = set(map(_node_of, itertools.chain(*inputs))) - needed
  part = tf.compat.v1.GraphDef(
    node=[node for node in graph_def.node if node.name in needed],
    library=graph_def.library,
    versions=graph_def.versions,
  )
  for node in part.node:
    # It may name a node of the graph from which this one was made.
    node.attr.pop('_class', None)
  used = set(itertools.chain(*(node.input for node in part.node)))
  attributes = [nodes[_node_of(feed)].attr for feed in feeds]

  def imported(*arguments):
    replaced = {}
    for feed, argument in zip(feeds, arguments):
      node = _node_of(feed)
      if node in needed:
        replaced[feed] = argument
      # An operation may also just wait for the input.
      if f'^{node}' in used:
        replaced[f'^{node}'] = argument
    return tf.graph_util.import_graph_def(
      part,
      replaced,
      list(dict.fromkeys(fetches)),
      name='',
    )

  with tf.init_scope():
    # Unlike `tf.function`, this adds no dependencies between operations.
    return tf.compat.v1.wrap_function(
      imported,
      [tf.TensorSpec(a['shape'].shape, a['dtype'].type) for a in attributes],
    )


def _node_of(tensor_name: str) -> str:
  """Returns the node of a tensor or of a control input."""
  return tensor_name.removeprefix('^').split(':')[0]


def tensor_names(binding: Any) -> list[str]:
  """Returns the tensor names of a `pb.TensorFlow.Binding`, in its order."""
  kind = binding.WhichOneof('binding')
  if kind == 'tensor':
    return [binding.tensor.tensor_name]
  if kind == 'sequence':
    return [binding.sequence.variant_tensor_name]
  # A function without a parameter has no binding and no names.
  return [
    name for part in binding.struct.element for name in tensor_names(part)
  ]


def load_fold(
  program: Program,
  pack: Callable[[Sequence[tf.Tensor]], values.LocalValue],
  size: int,
  is_shared: Optional[Sequence[bool]] = None,
  uses_xla: bool = False,
) -> Program:
  """Makes a program that accumulates several rows.

  Args:
    program: The program that accumulates one row.
    pack: Function from its results to the local value.
    size: Number of rows.
    is_shared: For each of a row's tensors, True if it is the same in all rows
      and False if all rows' tensors are stacked, `[size, ...]`. None means that
      the arguments are the tensors of one row after another.
    uses_xla: True to compile the program with XLA if possible.
  """
  specs = [tf.TensorSpec(t.shape, t.dtype) for t in program.concrete.inputs]
  # One tensor of the results may stand for several of the next call's inputs.
  num_totals = len(values.flatten(pack(program.concrete.outputs)))
  totals, row = specs[:num_totals], specs[num_totals:]
  if is_shared is None:
    others = size * row
  else:
    others = [
      spec if shared else tf.TensorSpec([size, *spec.shape], spec.dtype)
      for spec, shared in zip(row, is_shared)
    ]

  def rows_of(flat):
    if is_shared is None:
      return [flat[i * len(row) : (i + 1) * len(row)] for i in range(size)]
    return zip(
      *(
        [tensor] * size if shared else tf.unstack(tensor, size)
        for tensor, shared in zip(flat, is_shared)
      )
    )

  def fold(*flat):
    total = flat[:num_totals]
    for row in rows_of(flat[num_totals:]):
      total = values.flatten(pack(program.concrete(*total, *row)))
    return total

  def load(jit_compile):
    function = tf.function(
      fold,
      input_signature=totals + others,
      autograph=False,
      jit_compile=jit_compile,
    )
    with tf.init_scope():
      return function.get_concrete_function()

  if not uses_xla:
    return Program(load(None))
  return Program(load(True), load_without_xla=lambda: Program(load(None)))
