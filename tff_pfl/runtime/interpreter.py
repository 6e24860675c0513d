"""Interprets lowered computations on the values of `values`."""

import functools
from collections.abc import Callable
from typing import Any, Optional

import tensorflow as tf
import tensorflow_federated as tff

from tff_pfl import errors
from tff_pfl.runtime import client_mapper, graph_functions, values


class Interpreter:
  """A lowered computation, ready to be run any number of times.

  Runs may overlap in several threads.
  """

  def __init__(
    self,
    block: Any,
    library: graph_functions.FunctionLibrary,
    mapper: client_mapper.ClientMapper,
  ):
    """Prepares the computation.

    Args:
      block: What `lowering.lower` returned, or the parts of it to be evaluated.
    """
    self._block = block
    self._library = library
    self.mapper = mapper
    # From a building block's id; `block` keeps all of them alive.
    self._functions: dict[int, graph_functions.LocalFunction] = {}
    self._constants: dict[int, Any] = {}

  def run(self, argument: Any, num_clients: int) -> Any:
    """Returns the result of the computation.

    Args:
      argument: The argument as a `python_values.reader` returns it; None if
        there is no parameter.
    """
    run, scope = self.begin({}, num_clients)
    return run.evaluate(self._block, scope)(argument)

  def begin(
    self, bindings: dict[str, Any], num_clients: int
  ) -> tuple['_Run', '_Scope']:
    """Returns what evaluates parts of the computation, and their scope.

    Args:
      bindings: The values of names, to which those of the parts may be added.
    """
    return _Run(self, num_clients), _Scope(bindings)

  def constant(
    self, block: tff.framework.Call, function: graph_functions.LocalFunction
  ) -> Any:
    """Returns the result of a call without argument, in most cases zeros."""
    if not function.is_deterministic:
      return function()
    if id(block) not in self._constants:
      self._constants[id(block)] = function()
    return self._constants[id(block)]

  def function(
    self, block: tff.framework.CompiledComputation
  ) -> graph_functions.LocalFunction:
    """Returns the function of a block in the computation."""
    function = self._functions.get(id(block))
    if function is None:
      function = self._functions[id(block)] = self._library.function(block)
    return function


class _Scope:
  """The values of names, at one party or at all clients."""

  def __init__(
    self,
    bindings: dict[str, Any],
    parent: Optional['_Scope'] = None,
    at_clients: bool = False,
  ):
    self.bindings = bindings
    self.at_clients = at_clients
    self._parent = parent

  def lookup(self, name: str) -> Any:
    """Returns the value of a name."""
    if name in self.bindings:
      return self.bindings[name]
    if self._parent is None:
      raise errors.RunError(f'The computation refers to {name}, not its own.')
    value = self._parent.lookup(name)
    if self.at_clients and not self._parent.at_clients:
      return values.AllEqual(value)
    return value


class _Run:
  """One run of a computation."""

  def __init__(self, interpreter: Interpreter, num_clients: int):
    self._interpreter = interpreter
    self._num_clients = num_clients

  def evaluate(
    self, block: tff.framework.ComputationBuildingBlock, scope: _Scope
  ) -> Any:
    """Returns the value of a building block; that of functions can be called.

    A function is of one party, or of all. That of a lambda takes also whether
    it is called with the values of clients.
    """
    evaluate = _EVALUATE.get(type(block))
    if evaluate is None:
      raise errors.RunError(
        f'A computation with {type(block).__name__} ({block}) cannot run in '
        'process; choose the native runtime.'
      )
    return evaluate(self, block, scope)

  def _selection(self, block: tff.framework.Selection, scope: _Scope) -> Any:
    source = self.evaluate(block.source, scope)
    if scope.at_clients:
      return source.select(block.as_index())
    return source[block.as_index()]

  def _struct(self, block: tff.framework.Struct, scope: _Scope) -> Any:
    elements = tuple([self.evaluate(part, scope) for part in block])
    return values.Columns(elements) if scope.at_clients else elements

  def _call(self, block: tff.framework.Call, scope: _Scope) -> Any:
    function = self.evaluate(block.function, scope)
    argument = None
    if block.argument is not None:
      argument = self.evaluate(block.argument, scope)
    if scope.at_clients:
      return self.map(function, argument)
    if argument is None and isinstance(function, graph_functions.LocalFunction):
      return self._interpreter.constant(block, function)
    return function(argument)

  def _lambda(self, block: tff.framework.Lambda, scope: _Scope) -> Any:
    def call(argument, at_clients=False):
      bindings = {}
      if block.parameter_name is not None:
        bindings[block.parameter_name] = argument
      return self.evaluate(block.result, _Scope(bindings, scope, at_clients))

    return call

  def _block(self, block: tff.framework.Block, scope: _Scope) -> Any:
    scope = _Scope({}, scope, scope.at_clients)
    for name, value in block.locals:
      scope.bindings[name] = self.evaluate(value, scope)
    return self.evaluate(block.result, scope)

  def _compiled(
    self, block: tff.framework.CompiledComputation, unused_scope: _Scope
  ) -> Any:
    return self._interpreter.function(block)

  def _intrinsic(
    self, block: tff.framework.Intrinsic, unused_scope: _Scope
  ) -> Any:
    intrinsic = _INTRINSICS.get(block.uri)
    if intrinsic is None:
      raise errors.RunError(
        f'The intrinsic {block.uri} cannot run in process; choose the native '
        'runtime.'
      )
    return functools.partial(intrinsic, self)

  def _literal(self, block: tff.framework.Literal, scope: _Scope) -> Any:
    value = tf.constant(block.value, block.type_signature.dtype)
    return values.AllEqual(value) if scope.at_clients else value

  def map(
    self, function: Any, argument: Optional[values.ClientsValue]
  ) -> values.ClientsValue:
    """Returns the clients' results of a function of one party."""
    if not isinstance(function, graph_functions.LocalFunction):
      # Only the functions that it calls run client by client.
      return function(argument, at_clients=True)
    if not self._num_clients:
      return values.PerClient([])
    if (
      argument is None or values.is_all_equal(argument)
    ) and function.is_deterministic:
      shared = None if argument is None else values.shared_value(argument)
      return values.AllEqual(function(shared))
    return values.PerClient(
      self._interpreter.mapper.map(function, argument, self._num_clients)
    )

  def aggregate(self, argument: Any) -> Any:
    """Returns what an aggregation's argument comes to."""
    return argument[4](self.accumulate(argument))

  def accumulate(self, argument: Any) -> Any:
    """Returns the total of an aggregation's argument, without its report."""
    clients_value, total, accumulate, *_ = argument
    rows = values.rows(clients_value, self._num_clients)
    if isinstance(accumulate, graph_functions.LocalFunction):
      return accumulate.fold(total, rows)
    for row in rows:
      total = accumulate((total, row))
    return total


_EVALUATE: dict[type, Callable[..., Any]] = {
  tff.framework.Reference: lambda _, block, scope: scope.lookup(block.name),
  tff.framework.Selection: _Run._selection,
  tff.framework.Struct: _Run._struct,
  tff.framework.Call: _Run._call,
  tff.framework.Lambda: _Run._lambda,
  tff.framework.Block: _Run._block,
  tff.framework.CompiledComputation: _Run._compiled,
  tff.framework.Intrinsic: _Run._intrinsic,
  tff.framework.Literal: _Run._literal,
}


def _zip(unused_run: _Run, argument: Any) -> values.ClientsValue:
  return values.zip_columns(argument)


# From a run and an intrinsic's argument to its result.
_INTRINSICS: dict[str, Callable[[_Run, Any], Any]] = {
  tff.framework.FEDERATED_AGGREGATE.uri: _Run.aggregate,
  tff.framework.FEDERATED_APPLY.uri: lambda _, a: a[0](a[1]),
  tff.framework.FEDERATED_BROADCAST.uri: lambda _, a: values.AllEqual(a),
  tff.framework.FEDERATED_EVAL_AT_CLIENTS.uri: lambda run, a: run.map(a, None),
  tff.framework.FEDERATED_EVAL_AT_SERVER.uri: lambda _, a: a(None),
  tff.framework.FEDERATED_MAP.uri: lambda run, a: run.map(*a),
  tff.framework.FEDERATED_MAP_ALL_EQUAL.uri: lambda _, a: values.AllEqual(
    a[0](values.shared_value(a[1]))
  ),
  tff.framework.FEDERATED_VALUE_AT_CLIENTS.uri: lambda _, a: values.AllEqual(a),
  tff.framework.FEDERATED_VALUE_AT_SERVER.uri: lambda _, a: a,
  tff.framework.FEDERATED_ZIP_AT_CLIENTS.uri: lambda _, a: values.zip_columns(
    a
  ),
  tff.framework.FEDERATED_ZIP_AT_SERVER.uri: lambda _, a: a,
}
