"""Computations that alternate between this process and clients' processes.

A lowered computation is a list of calls, each at the server or at the clients.
This module cuts it into stages: first this process computes all that it can,
then the clients all that they can, and so on. Methods have one stage per
exchange.

The clients' part of a stage is computed in separate chunks of the cohort, by
the interpreter that also runs whole cohorts in one process. A chunk gets the
server's broadcasts and its clients' arguments, and returns one total per
aggregation. The totals are merged in the order of the chunks. So a result
depends on the division of the cohort, but not on where or when a chunk is
computed.
"""

import copyreg
import functools
import pickle
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Optional

import tensorflow as tf

from tff_pfl import tff_api as tff
from tff_pfl.runtime import interpreter, merged_calls, values
from tff_pfl.system.private_api import computation_pb2

_Block = tff.framework.ComputationBuildingBlock

# Intrinsics that clients compute. Broadcasts come before them.
_AT_CLIENTS = (
  tff.framework.FEDERATED_AGGREGATE,
  tff.framework.FEDERATED_EVAL_AT_CLIENTS,
  tff.framework.FEDERATED_MAP,
  tff.framework.FEDERATED_MAP_ALL_EQUAL,
  tff.framework.FEDERATED_ZIP_AT_CLIENTS,
)


class ClientSteps(NamedTuple):
  """The computation of a chunk of clients in one stage.

  Attributes:
    steps: Names and calls, in order.
    received: Names of this process's values that the steps need.
    totals: Names of the aggregations.
    returned: Names of the clients' values that this process needs.
    kept: Names of the clients' values that later stages need.
  """

  steps: tuple[tuple[str, _Block], ...]
  received: tuple[str, ...]
  totals: tuple[str, ...]
  returned: tuple[str, ...]
  kept: tuple[str, ...]


class Plan(NamedTuple):
  """A computation in stages.

  Attributes:
    parameter_name: Name of the computation's argument in the steps.
    at_server: This process's steps before each stage and after the last one.
    at_clients: The clients' steps of each stage.
    result: The result, as an expression of the steps' names.
  """

  parameter_name: Optional[str]
  at_server: tuple[tuple[tuple[str, _Block], ...], ...]
  at_clients: tuple[ClientSteps, ...]
  result: _Block


def plan(computation: _Block) -> Optional[Plan]:
  """Cuts a lowered computation into stages. None if clients have no part."""
  if not (
    isinstance(computation, tff.framework.Lambda)
    and isinstance(computation.result, tff.framework.Block)
  ):
    return None
  calls = dict(computation.result.locals)
  needs = merged_calls.needs_of(calls)
  at_clients = {
    name
    for name, call in calls.items()
    if merged_calls.is_call_of(call, *_AT_CLIENTS)
  }
  if not at_clients:
    return None
  stage = merged_calls.levels_of(
    calls,
    lambda name, needed: needed in at_clients and name not in at_clients,
  )
  result = computation.result.result
  used = merged_calls.references_of(result).union(
    *(needs[name] for name in calls if name not in at_clients)
  )
  num_stages = 1 + max(stage[name] for name in at_clients)
  return Plan(
    computation.parameter_name,
    tuple(
      tuple(
        (name, call)
        for name, call in calls.items()
        if name not in at_clients and stage[name] == number
      )
      for number in range(num_stages + 1)
    ),
    tuple(
      _client_steps(number, calls, needs, at_clients, stage, used)
      for number in range(num_stages)
    ),
    result,
  )


def _client_steps(number, calls, needs, at_clients, stage, used):
  names = [n for n in calls if n in at_clients and stage[n] == number]
  totals = tuple(
    name
    for name in names
    if merged_calls.is_call_of(calls[name], tff.framework.FEDERATED_AGGREGATE)
  )
  received = set().union(*(needs[name] for name in names)) - at_clients
  later = set().union(*(needs[n] for n in at_clients if stage[n] > number))
  return ClientSteps(
    tuple((name, calls[name]) for name in names),
    tuple(sorted(received)),
    totals,
    tuple(n for n in names if n in used and n not in totals),
    tuple(
      n for n in calls if n in later and n in at_clients and stage[n] <= number
    ),
  )


class StagedInterpreter(interpreter.Interpreter):
  """An interpreter whose mapper computes the clients' part in chunks."""

  def __init__(self, block: _Block, library: Any, mapper: Any):
    super().__init__(block, library, mapper)
    self._plan = plan(block)
    self._program = self._plan and mapper.prepare(self._plan)

  def run(self, argument: Any, num_clients: int) -> Any:
    """Returns the computation's result (see `Interpreter.run`)."""
    if self._program is None or not num_clients:
      return super().run(argument, num_clients)
    bindings = {}
    if self._plan.parameter_name is not None:
      bindings[self._plan.parameter_name] = argument
    scope = interpreter.Scope(bindings, num_clients)
    compute = self.mapper.cohort(self._program, argument, num_clients)
    for number, part in enumerate(self._plan.at_clients):
      self._compute(scope, number)
      outputs = compute({name: bindings[name] for name in part.received})
      for name, call in part.steps:
        if name in part.totals:
          totals = [output.totals[name] for output in outputs]
          bindings[name] = self._merge(scope, call, totals)
        elif name in part.returned:
          bindings[name] = _join([output.returned[name] for output in outputs])
    self._compute(scope, len(self._plan.at_clients))
    return self.evaluate(self._plan.result, scope)

  def _compute(self, scope, number):
    for name, call in self._plan.at_server[number]:
      scope.bindings[name] = self.evaluate(call, scope)

  def _merge(self, scope, call, totals):
    """Returns an aggregation's result from the chunks' totals."""
    *_, merge, report = call.argument
    merge = self.evaluate(merge, scope)
    total = functools.reduce(lambda a, b: merge((a, b)), totals)
    return self.evaluate(report, scope)(total)


def _join(chunks: Sequence[values.ClientsValue]) -> values.ClientsValue:
  """Joins the chunks' values at clients, in order."""
  first = chunks[0]
  if isinstance(first, values.Columns):
    return values.Columns(
      tuple(_join(columns) for columns in zip(*(c.columns for c in chunks)))
    )
  if isinstance(first, values.AllEqual):
    return first
  shapes = {
    tuple(chunk.tensor.shape[1:]) if isinstance(chunk, values.Stacked) else None
    for chunk in chunks
  }
  if len(shapes) == 1 and None not in shapes:
    return values.Stacked(tf.concat([chunk.tensor for chunk in chunks], axis=0))
  return values.PerClient([row for chunk in chunks for row in _rows(chunk)])


def _rows(chunk: values.ClientsValue) -> Sequence[values.LocalValue]:
  if isinstance(chunk, values.Stacked):
    return values.rows(chunk, chunk.tensor.shape[0])
  return chunk.values


class ChunkOutput(NamedTuple):
  """The results of a chunk of clients in one stage, by name."""

  totals: Mapping[str, values.LocalValue]
  returned: Mapping[str, values.ClientsValue]


def compute_chunk(
  program: interpreter.Interpreter,
  part: ClientSteps,
  bindings: dict[str, Any],
  num_clients: int,
) -> tuple[ChunkOutput, dict[str, Any]]:
  """Computes the clients' part of a stage for a chunk.

  Args:
    program: The program of the whole plan.
    part: The clients' part of the stage.
    bindings: Values by name: the chunk's argument, the values kept from earlier
      stages and the values that the stage receives.
    num_clients: Number of clients in the chunk.

  Returns:
    The output, and the values to keep for later stages.
  """
  scope = interpreter.Scope(bindings, num_clients)
  for name, call in part.steps:
    if name in part.totals:
      argument = program.evaluate(call.argument, scope)
      bindings[name] = program.accumulate(argument, scope)
    else:
      bindings[name] = program.evaluate(call, scope)
  output = ChunkOutput(
    {name: bindings[name] for name in part.totals},
    {name: bindings[name] for name in part.returned},
  )
  return output, {name: bindings[name] for name in part.kept}


def pack(plan_: Plan) -> bytes:
  """Serializes the parts of a plan that an actor needs."""
  return pickle.dumps((plan_.parameter_name, plan_.at_clients))


def unpack(data: bytes) -> tuple[Optional[str], tuple[ClientSteps, ...]]:
  """Returns the argument's name and the clients' parts of a packed plan."""
  return pickle.loads(data)


def _to_call(data: bytes) -> tff.framework.Call:
  return tff.framework.Call.from_proto(
    computation_pb2.Computation.FromString(data)
  )


copyreg.pickle(
  tff.framework.Call,
  lambda call: (_to_call, (call.proto.SerializeToString(),)),
)
