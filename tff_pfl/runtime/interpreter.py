"""An interpreter of lowered computations, for values from `values`."""

from collections.abc import Callable
from typing import Any, NamedTuple, Optional

import tensorflow as tf

from tff_pfl import tff_api as tff
from tff_pfl.runtime import client_mapper, graph_functions, values


class Scope(NamedTuple):
  """Values by name, at one party or at all clients of one run.

  Attributes:
    bindings: The values.
    num_clients: Number of clients of the run.
    at_clients: True if the values are at all clients.
  """

  bindings: dict[str, Any]
  num_clients: int
  at_clients: bool = False


class Interpreter:
  """Runs a lowered computation any number of times.

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
      block: The result of `lowering.lower`, or its parts to evaluate.
      library: The runtime's functions.
      mapper: Runs the clients' functions.
    """
    self._block = block
    self._library = library
    self.mapper = mapper
    # By the ids of building blocks, all of which `block` keeps alive.
    self._functions: dict[int, graph_functions.LocalFunction] = {}
    self._constants: dict[int, Any] = {}

  def run(self, argument: Any, num_clients: int) -> Any:
    """Returns the computation's result.

    Args:
      argument: The argument, as returned by a `python_values.reader`. None if
        there is no parameter.
      num_clients: Number of clients.
    """
    return self.evaluate(self._block, Scope({}, num_clients))(argument)

  def evaluate(
    self, block: tff.framework.ComputationBuildingBlock, scope: Scope
  ) -> Any:
    """Returns the value of a building block, a callable for a function.

    A lambda's callable has a second argument, which is True for values at
    clients.
    """
    return BLOCKS[type(block)](self, block, scope)

  def _selection(self, block: tff.framework.Selection, scope: Scope) -> Any:
    source = self.evaluate(block.source, scope)
    if scope.at_clients:
      return source.select(block.as_index())
    return source[block.as_index()]

  def _struct(self, block: tff.framework.Struct, scope: Scope) -> Any:
    elements = tuple([self.evaluate(part, scope) for part in block])
    return values.Columns(elements) if scope.at_clients else elements

  def _call(self, block: tff.framework.Call, scope: Scope) -> Any:
    function = self.evaluate(block.function, scope)
    argument = None
    if block.argument is not None:
      argument = self.evaluate(block.argument, scope)
    if scope.at_clients:
      return self.map(function, argument, scope)
    if (
      argument is None
      and isinstance(function, graph_functions.LocalFunction)
      and function.is_deterministic
    ):
      # These are mostly zeros.
      if id(block) not in self._constants:
        self._constants[id(block)] = function()
      return self._constants[id(block)]
    return function(argument)

  def _lambda(self, block: tff.framework.Lambda, scope: Scope) -> Any:
    def call(argument, at_clients=False):
      bindings = {}
      if block.parameter_name is not None:
        bindings[block.parameter_name] = argument
      inner = Scope(bindings, scope.num_clients, at_clients)
      return self.evaluate(block.result, inner)

    return call

  def _block(self, block: tff.framework.Block, scope: Scope) -> Any:
    scope = scope._replace(bindings=dict(scope.bindings))
    for name, value in block.locals:
      scope.bindings[name] = self.evaluate(value, scope)
    return self.evaluate(block.result, scope)

  def _compiled(
    self, block: tff.framework.CompiledComputation, unused_scope: Scope
  ) -> Any:
    function = self._functions.get(id(block))
    if function is None:
      function = self._functions[id(block)] = self._library.function(block)
    return function

  def _intrinsic(self, block: tff.framework.Intrinsic, scope: Scope) -> Any:
    intrinsic = INTRINSICS[block.uri]
    return lambda argument: intrinsic(self, argument, scope)

  def _literal(self, block: tff.framework.Literal, scope: Scope) -> Any:
    value = tf.constant(block.value, block.type_signature.dtype)
    return values.AllEqual(value) if scope.at_clients else value

  def map(
    self, function: Any, argument: Optional[values.ClientsValue], scope: Scope
  ) -> values.ClientsValue:
    """Applies a function of one party at every client."""
    if not isinstance(function, graph_functions.LocalFunction):
      # The functions that it calls are mapped over the clients.
      return function(argument, at_clients=True)
    if not scope.num_clients:
      return values.PerClient([])
    if (
      argument is None or values.is_all_equal(argument)
    ) and function.is_deterministic:
      shared = None if argument is None else values.shared_value(argument)
      return values.AllEqual(function(shared))
    return self.mapper.map(function, argument, scope.num_clients)

  def accumulate(self, argument: Any, scope: Scope) -> Any:
    """Returns an aggregation's total, before its report function."""
    clients_value, total, accumulate, *_ = argument
    return accumulate.fold(total, clients_value, scope.num_clients)


# By the type of a building block.
BLOCKS: dict[type, Callable[..., Any]] = {
  tff.framework.Reference: lambda _, block, scope: scope.bindings[block.name],
  tff.framework.Selection: Interpreter._selection,
  tff.framework.Struct: Interpreter._struct,
  tff.framework.Call: Interpreter._call,
  tff.framework.Lambda: Interpreter._lambda,
  tff.framework.Block: Interpreter._block,
  tff.framework.CompiledComputation: Interpreter._compiled,
  tff.framework.Intrinsic: Interpreter._intrinsic,
  tff.framework.Literal: Interpreter._literal,
}


# URI to a function from an interpreter, the argument and a scope to the result.
INTRINSICS: dict[str, Callable[[Interpreter, Any, Scope], Any]] = {
  getattr(tff.framework, f'FEDERATED_{name}').uri: function
  for name, function in (
    ('AGGREGATE', lambda run, a, scope: a[4](run.accumulate(a, scope))),
    ('APPLY', lambda run, a, scope: a[0](a[1])),
    ('BROADCAST', lambda run, a, scope: values.AllEqual(a)),
    ('EVAL_AT_CLIENTS', lambda run, a, scope: run.map(a, None, scope)),
    ('EVAL_AT_SERVER', lambda run, a, scope: a(None)),
    ('MAP', lambda run, a, scope: run.map(*a, scope)),
    (
      'MAP_ALL_EQUAL',
      lambda run, a, scope: values.AllEqual(a[0](values.shared_value(a[1]))),
    ),
    ('VALUE_AT_CLIENTS', lambda run, a, scope: values.AllEqual(a)),
    ('VALUE_AT_SERVER', lambda run, a, scope: a),
    ('ZIP_AT_CLIENTS', lambda run, a, scope: values.zip_columns(a)),
    ('ZIP_AT_SERVER', lambda run, a, scope: a),
  )
}
