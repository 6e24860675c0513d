"""Functions from TFF's serialized TensorFlow graphs.

A graph is loaded at its first call, once for all computations that have the
same graph, and unloaded after calls of many others. A call costs little more
than TensorFlow's own dispatch.
"""

import collections
import functools
import hashlib
import threading
from collections.abc import Callable
from collections.abc import Sequence as ListOrTuple
from typing import Any, Union

import tensorflow as tf
import tensorflow_federated as tff

from tff_pfl import errors
from tff_pfl.runtime import devices, graph_defs, graph_programs, values

# Largest number of clients whose values one program accumulates.
_MAX_FOLD_SIZE = 16
_MAX_STACKED_FOLD_SIZE = 64


class LocalFunction:
  """A TensorFlow function of one party, without placements.

  It may be called from several threads at once. Calls run on the device of the
  caller's `tf.device`.

  Attributes:
    block: A building block with the serialized graph in `block.proto`.
    type_signature: `tff.FunctionType`; its `parameter` may be None.
    content_hash: Hex digest of the graph and the names of its inputs and
      outputs; the same for equal computations.
    pack: Function from the graph's results to the local value.
  """

  def __init__(
    self,
    block: tff.framework.CompiledComputation,
    library: 'FunctionLibrary',
    form: int = graph_defs.ALONE,
  ):
    """Prepares the function; the library loads its graph at the first call."""
    self.block = block
    self.type_signature = block.type_signature
    self._proto = block.proto.tensorflow
    self._library = library
    self._form = form
    self.content_hash = _content_hash(self._proto)
    names = graph_programs.tensor_names(self._proto.result)
    self.pack = _packer(self._proto.result, list(dict.fromkeys(names)))
    self._pack_fold = _packer(self._proto.result, names)

  def __call__(self, argument: values.LocalValue = None) -> values.LocalValue:
    """Calls the function with a local value; returns a local value."""
    inputs = [] if argument is None else values.flatten(argument)
    return self.pack(self.program().call(inputs))

  def fold(
    self,
    initial: values.LocalValue,
    clients_value: values.ClientsValue,
    num_clients: int,
  ) -> values.LocalValue:
    """Returns `f(... f(f(initial, rows[0]), rows[1]) ...)`.

    Args:
      initial: The initial total, a local value.
      clients_value: The rows, a value at clients.
      num_clients: Number of clients; may be 0.
    """
    has_resources = self.program().has_resources
    if not has_resources and values.is_stacked(clients_value):
      columns = values.flat_columns(clients_value)
      return self._fold_stacked(initial, columns, num_clients)
    rows = values.rows(clients_value, num_clients)
    if has_resources:
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

  def _fold_stacked(
    self,
    initial: values.LocalValue,
    columns: ListOrTuple[Union[values.Stacked, values.AllEqual]],
    num_clients: int,
  ) -> values.LocalValue:
    """Folds many clients' values in one program, on their device."""
    is_shared = tuple(isinstance(c, values.AllEqual) for c in columns)
    device = columns[is_shared.index(False)].tensor.device
    uses_xla = devices.is_gpu(device) and not self.program().has_checks
    flat = values.flatten(initial)
    with tf.device(device):
      for begin in range(0, num_clients, _MAX_STACKED_FOLD_SIZE):
        size = min(_MAX_STACKED_FOLD_SIZE, num_clients - begin)
        program = self._library.program(
          (self.content_hash, 'stacked', size, is_shared, device),
          lambda size=size: graph_programs.load_stacked_fold(
            self.program(), self.pack, size, is_shared, uses_xla
          ),
        )
        rows = [
          column.value
          if shared
          else column.tensor
          if size == num_clients
          else column.tensor[begin : begin + size]
          for column, shared in zip(columns, is_shared)
        ]
        flat = list(program.call([*flat, *rows]))
    return self._pack_fold(flat)

  @functools.cached_property
  def together(self) -> 'LocalFunction':
    """The form of this function for clients that run as one program."""
    if graph_defs.FORMS_ATTRIBUTE.encode() not in self._proto.graph_def.value:
      return self
    return LocalFunction(self.block, self._library, graph_defs.TOGETHER)

  @property
  def is_deterministic(self) -> bool:
    """True if equal arguments surely give equal results."""
    return self.is_tensor_function and self.program().is_deterministic

  @functools.cached_property
  def is_tensor_function(self) -> bool:
    """True if it maps tensors to tensors, without sequences and variables."""
    return not self.program().has_resources and not tff.types.contains(
      self.type_signature, lambda part: isinstance(part, tff.SequenceType)
    )

  def program(self) -> graph_programs.Program:
    """Returns the loaded graph.

    For an `is_tensor_function` its `concrete` takes `values.flatten(argument)`
    and returns flat results, of which `pack` makes the local value.
    """
    return self._library.program(
      (self.content_hash, self._form),
      lambda: graph_programs.load_graph(self._proto, self._form),
    )

  def _fold_program(self, size: int) -> graph_programs.Program:
    return self._library.program(
      (self.content_hash, 'fold', size),
      lambda: graph_programs.load_fold(self.program(), self.pack, size),
    )


def _content_hash(proto: Any) -> str:
  """Returns the digest of a `pb.TensorFlow`."""
  digest = hashlib.sha256(proto.graph_def.value)
  for part in (proto.parameter, proto.result):
    digest.update(b'\0' + part.SerializeToString(deterministic=True))
  digest.update(b'\0' + proto.initialize_op.encode())
  return digest.hexdigest()


def _packer(
  binding: Any, names: ListOrTuple[str]
) -> Callable[[ListOrTuple[tf.Tensor]], values.LocalValue]:
  """Makes a function from the named tensors to the bound local value."""
  kind = binding.WhichOneof('binding')
  if kind == 'tensor':
    index = names.index(binding.tensor.tensor_name)
    return lambda outputs: outputs[index]
  if kind == 'sequence':
    index = names.index(binding.sequence.variant_tensor_name)
    return lambda outputs: values.Sequence(outputs[index])
  packers = [_packer(element, names) for element in binding.struct.element]
  return lambda outputs: tuple([pack(outputs) for pack in packers])


class FunctionLibrary:
  """The loaded graphs of a runtime, up to a number."""

  def __init__(self, max_functions: int = 512):
    """Makes an empty library.

    Args:
      max_functions: Largest number of loaded graphs, at least 1; the least
        recently used ones are unloaded.
    """
    self._max_functions = max_functions
    self._lock = threading.Lock()
    self._programs = collections.OrderedDict()

  def __len__(self) -> int:
    """Returns the number of loaded graphs."""
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
    return LocalFunction(block, self)

  def clear(self) -> None:
    """Unloads all graphs."""
    with self._lock:
      self._programs.clear()

  def program(
    self, key: Any, load: Callable[[], graph_programs.Program]
  ) -> graph_programs.Program:
    """Returns the program of a key, which `load` loads at the first use."""
    with self._lock:
      entry = self._programs.get(key)
      if entry is None:
        entry = self._programs[key] = graph_programs.Lazy(load)
        while len(self._programs) > self._max_functions:
          self._programs.popitem(last=False)
      else:
        self._programs.move_to_end(key)
    return entry.get()
