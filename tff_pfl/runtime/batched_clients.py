"""Clients that run side by side in one program.

One small model does not keep a GPU busy. Clients with arguments of the same
shapes (examples padded to one bucket) run as one program: `tf.vectorized_map`
of the client's function, which XLA compiles on a GPU or if the function asks
for it. Values that all clients share, such as the broadcast weights, are not
copied. Clients' results stay stacked until one is needed alone. Examples stay
on the GPU.

Each client gets the same result as alone, up to the rounding of additions in
another order.
"""

import collections
import contextlib
import functools
import itertools
import logging as python_logging
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Optional, Union

import tensorflow as tf
from absl import logging

from tff_pfl.runtime import (
  client_mapper,
  device_cache,
  graph_functions,
  graph_programs,
  values,
  vectorization_rules,  # noqa: F401 (adds rules)
)
from tff_pfl.runtime import devices as devices_lib
from tff_pfl.system.private_api import function_def_to_graph

MAX_CLIENTS = 128  # In one program, if they fit into memory.
# Most programs of one function to keep, each for different shapes.
_MAX_PROGRAMS = 64
# Convolutions of a client, forward and backward. XLA had not compiled a program
# of ResNet-18 for a GPU after 5 minutes.
_MAX_CONVOLUTIONS = 30
_MAX_REASON_CHARACTERS = 300
# Tracing changes TensorFlow's log level for all threads.
_tracing = threading.RLock()
_ERROR_LINE = re.compile(r'\s*\w*(Error|Exception): ')


class BatchedMapper(client_mapper.ClientMapper):
  """A mapper that runs clients with equal shapes as one program."""

  def __init__(
    self,
    devices: Sequence[Optional[str]],
    cache_bytes: int = 0,
  ):
    """Prepares the mapper.

    Functions of datasets run as in `ClientMapper`. So do models that do not
    vectorize, with a warning.

    Args:
      devices: See `ClientMapper`.
      cache_bytes: See `ClientMapper`.
    """
    super().__init__(devices, cache_bytes)
    self._lock = threading.Lock()

  def map(
    self,
    function: graph_functions.LocalFunction,
    argument: Optional[values.ClientsValue],
    num_clients: int,
  ) -> values.ClientsValue:
    """Returns the function's result for each client (see `ClientMapper`)."""
    if argument is None or not function.is_tensor_function:
      return super().map(function, argument, num_clients)
    columns = values.flat_columns(argument)
    is_shared = tuple(isinstance(c, values.AllEqual) for c in columns)
    if all(is_shared):
      # There is nothing to stack if clients only draw random numbers.
      return super().map(function, argument, num_clients)
    program = self._program(function, is_shared)
    chunks, is_one_shape = self._chunks(
      columns, num_clients, program.max_clients
    )

    def compute(clients):
      """Returns parts of the clients, with the results of each part.

      A result is stacked, or a list with one entry per client.
      """
      cache = self.cache()
      # On a CPU a single client is faster without a batch.
      is_batch = len(clients) > 1 or cache is not None
      if is_batch and program.works_on(self.device()):
        most = program.max_clients
        if len(clients) > most:
          return [*compute(clients[:most]), *compute(clients[most:])]
        size = len(clients)
        if not is_one_shape:
          size = min(_padded_size(size), most)
        try:
          outputs = program(
            [_stack(column, clients, size, cache) for column in columns],
            self.device(),
          )
        except tf.errors.ResourceExhaustedError as e:
          if cache is not None:
            cache.clear()
          if size > 1:
            program.allow_no_more_than((size + 1) // 2, e)
            return compute(clients)
          _warn(e)
          outputs = None
        if outputs is not None:
          return [(clients, outputs)]
      alone = function.program()
      rows = [
        self.call(alone.call, _row(columns, client)) for client in clients
      ]
      return [(clients, [list(column) for column in zip(*rows)])]

    parts = self.run_all(
      [functools.partial(compute, clients) for clients in chunks]
    )
    chunks, parts = zip(*itertools.chain(*parts))
    results = [_join(column, chunks, num_clients) for column in zip(*parts)]
    return values.zip_columns(function.pack(results))

  def _chunks(self, columns, num_clients, max_clients):
    """Divides clients into lists with equal shapes.

    Returns:
      The lists, at least one per thread if possible, in the order of their
      first clients, and True if all clients have the same shapes.
    """
    own = [column for column in columns if isinstance(column, list)]
    groups = {}
    for client in range(num_clients):
      shapes = tuple([tuple(column[client].shape) for column in own])
      groups.setdefault(shapes, []).append(client)
    chunks = []
    for clients in groups.values():
      num_chunks = min(
        len(clients),
        max(self.num_threads, -(-len(clients) // max_clients)),
      )
      size = -(-len(clients) // num_chunks)
      chunks.extend(
        clients[begin : begin + size] for begin in range(0, len(clients), size)
      )
    # Devices divide the chunks in this order, as they divide a cohort.
    return sorted(chunks), len(groups) == 1

  def _program(self, function, is_shared):
    with self._lock:
      if is_shared not in function.batched:
        function.batched[is_shared] = _BatchedProgram(function, is_shared)
      return function.batched[is_shared]


class _BatchedProgram:
  """A function of flat tensors, with clients' tensors stacked.

  Attributes:
    max_clients: Largest number of clients in a call.
  """

  def __init__(
    self,
    function: graph_functions.LocalFunction,
    is_shared: Sequence[bool],
  ):
    self._function = function
    self._is_shared = is_shared
    self._lock = threading.Lock()
    self._forms = {}
    self.max_clients = MAX_CLIENTS

  def works_on(self, device: Optional[str]) -> bool:
    """Returns False if the function has no program for a device."""
    return bool(self._forms_on(devices_lib.is_gpu(device)))

  def __call__(
    self, stacked: Sequence[tf.Tensor], device: Optional[str]
  ) -> Optional[list[tf.Tensor]]:
    """Returns the stacked results, or None if there is no such program."""
    forms = self._forms_on(devices_lib.is_gpu(device))
    for form in list(forms):
      try:
        return form(stacked, device)
      except (ValueError, TypeError, NotImplementedError) as e:
        # Tracing fails if the function does not vectorize.
        forms.clear()
        _warn(e)
        break
      except tf.errors.OpError as e:
        if not graph_programs.xla_refuses(e):
          raise
        # Another thread may have removed the form.
        forms[:] = [other for other in forms if other is not form]
        if not forms:
          _warn(e)
    return None

  def allow_no_more_than(
    self, max_clients: int, error: tf.errors.ResourceExhaustedError
  ) -> None:
    """Limits later calls after one ran out of memory."""
    with self._lock:
      if max_clients < self.max_clients:
        self.max_clients = max_clients
        logging.warning(
          'Too little memory for so many clients in one program. From now on, '
          'at most %d run together: %s',
          max_clients,
          _reason(error),
        )

  def _forms_on(self, on_gpu):
    """Returns the forms left to try, the best first."""
    with self._lock:
      if on_gpu not in self._forms:
        program = self._function.together.program()
        if on_gpu and program.num_convolutions > _MAX_CONVOLUTIONS:
          logging.warning(
            'Clients run one by one on the GPU: each has %d convolutions, and '
            'XLA takes minutes to compile a program of several clients.',
            program.num_convolutions,
          )
          choices = []
        elif program.asks_for_xla:
          choices = [True]
        elif on_gpu and not program.has_checks:
          choices = [True, None]
        else:
          choices = [None]
        if choices:
          batched = self._batched(_with_graphs(program.concrete))
        self._forms[on_gpu] = [_Form(batched, choice) for choice in choices]
      return self._forms[on_gpu]

  def _batched(self, concrete):
    def batched(*flat):
      def client(own):
        own = iter(own)
        return concrete(
          *(
            tensor if shared else next(own)
            for tensor, shared in zip(flat, self._is_shared)
          )
        )

      own = [t for t, shared in zip(flat, self._is_shared) if not shared]
      return tf.vectorized_map(client, own, fallback_to_while_loop=False)

    return batched


class _Form:
  """A function of tensors, traced once per combination of shapes."""

  def __init__(self, function: Callable[..., Any], jit_compile: Optional[bool]):
    self._function = function
    self._jit_compile = jit_compile
    self._traced = collections.OrderedDict()

  def __call__(
    self, tensors: Sequence[tf.Tensor], device: Optional[str]
  ) -> list[tf.Tensor]:
    key = tuple([(tuple(t.shape), t.dtype) for t in tensors])
    with _tracing:
      if key not in self._traced:
        self._traced[key] = self._trace(tensors, device)
        while len(self._traced) > _MAX_PROGRAMS:
          self._traced.popitem(last=False)
      self._traced.move_to_end(key)
      program = self._traced[key]
    return program(tensors)

  def _trace(self, tensors, device):
    function = tf.function(
      self._function, autograph=False, jit_compile=self._jit_compile
    )
    with _no_conversion_log(), devices_lib.tracing_for(device):
      return graph_programs.eager_function(
        function.get_concrete_function(*tensors), bool(self._jit_compile)
      )


def _warn(error: BaseException) -> None:
  logging.warning(
    'Clients of this model cannot run as one program; they run one by one on '
    'each device: %s',
    _reason(error),
  )


def _padded_size(num_clients: int) -> int:
  """Returns the program size for a number of clients, a power of four.

  If shapes differ, the number of clients per shape changes from round to round.
  A few programs serve all numbers, with copies of the last client as padding.
  On a GPU, ten times as many clients take 3 to 6 times as long, hundredths of a
  second, while another program of a CNN takes a minute to compile.
  """
  return 4 ** (((num_clients - 1).bit_length() + 1) // 2)


def _row(columns: Sequence[Any], client: int) -> tuple[tf.Tensor, ...]:
  """Returns a client's tensors."""
  return tuple(
    [
      column.value
      if isinstance(column, values.AllEqual)
      else column.tensor[client]
      if isinstance(column, values.Stacked)
      else column[client]
      for column in columns
    ]
  )


def _stack(
  column: Any,
  clients: Sequence[int],
  size: int,
  cache: Optional[device_cache.DeviceCache],
) -> tf.Tensor:
  """Returns a program's argument, a shared tensor or stacked clients' tensors.

  Args:
    column: The tensors of one argument.
    clients: Indices of the clients.
    size: Number of clients in the program. The last client is repeated as
      needed.
    cache: Cache of the current device, or None on a CPU.
  """
  if isinstance(column, values.AllEqual):
    return column.value if cache is None else cache.get(column.value)
  chosen = [*clients, *[clients[-1]] * (size - len(clients))]
  if isinstance(column, values.Stacked):
    if chosen == list(range(column.tensor.shape[0])):
      return column.tensor
    return tf.gather(column.tensor, chosen)
  tensors = [column[client] for client in chosen]
  if cache is None:
    return tf.raw_ops.Pack(values=tensors)
  if not device_cache.is_kept(tensors[0]):
    # Packed on the host, all of them are one copy to the device.
    with tf.device('CPU'):
      return tf.raw_ops.Pack(values=tensors)
  return tf.raw_ops.Pack(values=[cache.get(tensor) for tensor in tensors])


def _join(
  parts: Sequence[Union[tf.Tensor, list[tf.Tensor]]],
  chunks: Sequence[Sequence[int]],
  num_clients: int,
) -> values.ClientsValue:
  """Joins the chunks' results into one value at all clients."""
  stacks = [part for part in parts if isinstance(part, tf.Tensor)]
  if len(stacks) < len(parts) or (
    len({tuple(stack.shape[1:]) for stack in stacks}) > 1
  ):
    results = [None] * num_clients
    for part, clients in zip(parts, chunks):
      rows = part if isinstance(part, list) else tf.unstack(part)
      for client, row in zip(clients, rows):
        results[client] = row
    return values.PerClient(results)
  if len(parts) == 1 and stacks[0].shape[0] == num_clients:
    return values.Stacked(stacks[0])
  positions, begin = [0] * num_clients, 0
  for stack, clients in zip(stacks, chunks):
    for row, client in enumerate(clients):
      positions[client] = begin + row
    begin += stack.shape[0]

  def join():
    return values.Stacked(tf.gather(tf.concat(stacks, 0), positions))

  try:
    with tf.device(stacks[0].device):
      return join()
  except tf.errors.ResourceExhaustedError as e:
    logging.warning(
      "All clients' results do not fit into one device's memory; the "
      'host has them: %s',
      _reason(e),
    )
  with tf.device('CPU'):
    return join()


def _with_graphs(concrete: Any) -> Any:
  """Gives a function Python's graphs of all functions it calls, and returns it.

  TensorFlow needs a function's Python graph to vectorize it, and the functions
  of a graph's library have none.
  """
  library = concrete.graph.as_graph_def().library.function
  with tf.init_scope():
    graphs = {
      definition.signature.name: function_def_to_graph(
        definition, include_library_functions=True
      )
      for definition in library
    }
  for graph in (concrete.graph, *graphs.values()):
    for name in graph._functions:
      graph._functions[name] = _FunctionWithGraph(name, graphs[name])
  return concrete


class _FunctionWithGraph:
  """The function attributes that TensorFlow needs to vectorize calls."""

  def __init__(self, name: str, graph: Any):
    self.name = name
    self.graph = graph
    self.function_type = self
    self.flat_outputs = graph.outputs


def _reason(error: BaseException) -> str:
  """Extracts the informative line of an error.

  TensorFlow's tracing errors quote the user's code around that line, which may
  itself fail.
  """
  while error.__context__ is not None:
    error = error.__context__
  lines = str(error).strip().splitlines() or [type(error).__name__]
  named = [line for line in lines if _ERROR_LINE.match(line)]
  return (named or lines)[0].strip()[:_MAX_REASON_CHARACTERS]


@contextlib.contextmanager
def _no_conversion_log() -> Iterator[None]:
  """Keeps TensorFlow from logging graphs that do not vectorize."""
  logger = tf.get_logger()
  level = logger.level
  logger.setLevel(python_logging.CRITICAL)
  try:
    yield
  finally:
    logger.setLevel(level)
