"""Functions made from TFF's serialized TensorFlow graphs.

A graph is loaded at its first call. All computations with the same graph share
it, and it is unloaded with the last of them. A call costs little more than
TensorFlow's own dispatch.
"""

import functools
import hashlib
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any, Union

import tensorflow as tf
from absl import logging

from tff_pfl import tff_api as tff
from tff_pfl.runtime import devices, graph_programs, values
from tff_pfl.system import graph_defs

# Largest number of clients whose values one program accumulates.
_MAX_FOLD_SIZE = 16
_MAX_STACKED_FOLD_SIZE = 64


class LocalFunction:
  """A TensorFlow function of one party, without placements.

  Several threads may call it at once. A call runs on the device of the caller's
  `tf.device`.

  Attributes:
    pack: Function from the graph's results to the local value.
    batched: Programs for several clients, which a mapper adds.
  """

  def __init__(
    self,
    block: tff.framework.CompiledComputation,
    form: int = graph_defs.ALONE,
  ):
    """Prepares the function.

    Args:
      block: A building block with the serialized graph in `block.proto`.
      form: `graph_defs.ALONE` or `graph_defs.TOGETHER`.
    """
    self._block = block
    proto = self._proto = block.proto.tensorflow
    names = graph_programs.tensor_names(proto.result)
    self.pack = _packer(proto.result, list(dict.fromkeys(names)))
    self._pack_fold = _packer(proto.result, names)
    self._program = graph_programs.Lazy(
      lambda: graph_programs.load_graph(proto, form)
    )
    self._folds: dict[Any, graph_programs.Program] = {}
    self._max_stacked_fold_size = _MAX_STACKED_FOLD_SIZE
    self.batched: dict[Any, Any] = {}

  def __call__(self, argument: values.LocalValue = None) -> values.LocalValue:
    """Calls the function with a local value and returns a local value."""
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
      num_clients: Number of clients, at least 0.
    """
    if values.is_stacked(clients_value):
      columns = values.flat_columns(clients_value)
      return self._fold_stacked(initial, columns, num_clients)
    rows = values.rows(clients_value, num_clients)
    flat = values.flatten(initial)
    for begin in range(0, len(rows), _MAX_FOLD_SIZE):
      part = rows[begin : begin + _MAX_FOLD_SIZE]
      for row in part:
        flat.extend(values.flatten(row))
      fold = self._fold(None, len(part))
      flat = list(fold.call(flat))
    return self._pack_fold(flat) if rows else initial

  def _fold_stacked(
    self,
    initial: values.LocalValue,
    columns: Sequence[Union[values.Stacked, values.AllEqual]],
    num_clients: int,
  ) -> values.LocalValue:
    """Folds many clients' values per program, on their device."""
    is_shared = tuple(isinstance(c, values.AllEqual) for c in columns)
    device = columns[is_shared.index(False)].tensor.device
    uses_xla = devices.is_gpu(device) and not self.program().has_checks
    flat = values.flatten(initial)
    begin = 0
    with tf.device(device):
      while begin < num_clients:
        size = min(self._max_stacked_fold_size, num_clients - begin)
        try:
          fold = self._fold(device, size, is_shared, uses_xla)
          rows = [
            column.value
            if shared
            else column.tensor
            if size == num_clients
            else column.tensor[begin : begin + size]
            for column, shared in zip(columns, is_shared)
          ]
          flat = list(fold.call([*flat, *rows]))
          begin += size
        except tf.errors.ResourceExhaustedError:
          if size == 1:
            raise
          self._max_stacked_fold_size = (size + 1) // 2
          logging.warning(
            'Too little memory to add up so many clients in one program. From '
            'now on, at most %d are added up together.',
            self._max_stacked_fold_size,
          )
    return self._pack_fold(flat)

  def _fold(self, device, *arguments):
    key = (device, *arguments)
    if key not in self._folds:
      self._folds[key] = graph_programs.load_fold(
        self.program(), self.pack, *arguments
      )
    return self._folds[key]

  @functools.cached_property
  def together(self) -> 'LocalFunction':
    """This function's form for clients that run as one program."""
    if graph_defs.FORMS_ATTRIBUTE.encode() not in self._proto.graph_def.value:
      return self
    return LocalFunction(self._block, graph_defs.TOGETHER)

  @property
  def is_deterministic(self) -> bool:
    """True if equal arguments certainly give equal results."""
    return self.is_tensor_function and self.program().is_deterministic

  @functools.cached_property
  def is_tensor_function(self) -> bool:
    """True if it maps tensors to tensors, without sequences."""
    return not tff.types.contains(
      self._block.type_signature,
      lambda part: isinstance(part, tff.SequenceType),
    )

  def program(self) -> graph_programs.Program:
    """Returns the loaded graph.

    Its `concrete` takes `values.flatten(argument)` and returns flat results,
    which `pack` turns into the local value.
    """
    return self._program.get()


def _content_hash(proto: Any) -> bytes:
  """Returns the digest of a `pb.TensorFlow`."""
  digest = hashlib.sha256(proto.graph_def.value)
  for part in (proto.parameter, proto.result):
    digest.update(b'\0' + part.SerializeToString(deterministic=True))
  return digest.digest()


def _packer(
  binding: Any, names: Sequence[str]
) -> Callable[[Sequence[tf.Tensor]], values.LocalValue]:
  """Makes a function from the named tensors to the bound local value."""
  if binding.WhichOneof('binding') != 'struct':
    (name,) = graph_programs.tensor_names(binding)
    index = names.index(name)
    return lambda outputs: outputs[index]
  packers = [_packer(element, names) for element in binding.struct.element]
  return lambda outputs: tuple([pack(outputs) for pack in packers])


class FunctionLibrary:
  """The functions in use, one per distinct graph."""

  def __init__(self):
    self._lock = threading.Lock()
    self._functions = weakref.WeakValueDictionary()

  def function(self, block: tff.framework.CompiledComputation) -> LocalFunction:
    """Returns the function of a serialized graph, without loading it yet.

    Args:
      block: A building block with a TensorFlow graph.
    """
    key = _content_hash(block.proto.tensorflow)
    with self._lock:
      function = self._functions.get(key)
      if function is None:
        function = self._functions[key] = LocalFunction(block)
      return function
