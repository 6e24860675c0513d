"""Merging of calls in a lowered computation.

A call costs a runtime as much as many operations on small tensors.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from tff_pfl import tff_api as tff
from tff_pfl.system.private_api import (
  building_block_factory,
  mapreduce_compiler,
  transformation_utils,
  tree_analysis,
)

_LOCAL_TYPES = (
  tff.TensorType,
  tff.StructType,
  tff.SequenceType,
  tff.FunctionType,
)
_Block = tff.framework.ComputationBuildingBlock
# Name of a value to the call of an intrinsic that computes it.
_Calls = dict[str, _Block]


def merge(calls: Mapping[str, _Block], result: _Block) -> _Calls:
  """Merges weightings, aggregations and the server's calls.

  Args:
    calls: The calls of a lowered computation, each after the calls it needs.
    result: The computation's result, as an expression of their names.
  """
  calls = _weigh_while_accumulating(dict(calls), result)
  calls = _report_at_server(_aggregate_together(calls))
  return _compute_at_server_together(calls, result)


def _weigh_while_accumulating(calls: _Calls, result: _Block) -> _Calls:
  """Moves the weighting of clients' values into their aggregation.

  One call for many clients then replaces one call per client, and no weighted
  copy of the values is made.
  """
  references = [references_of(part) for part in (*calls.values(), result)]
  for name, call in [*calls.items()]:
    if not is_call_of(call, tff.framework.FEDERATED_AGGREGATE):
      continue
    value, zero, accumulate, *others = call.argument
    weigh = calls.get(getattr(value, 'name', None))
    if (
      not isinstance(accumulate, tff.framework.CompiledComputation)
      or not is_call_of(weigh, tff.framework.FEDERATED_MAP)
      or not _only_multiplies(weigh.argument[0])
      or sum(value.name in names for names in references) > 1
    ):
      continue
    calls[name] = building_block_factory.create_federated_aggregate(
      weigh.argument[1],
      zero,
      _accumulate_weighted(accumulate, weigh.argument[0]),
      *others,
    )
    del calls[value.name]
  return calls


def _accumulate_weighted(accumulate, weigh):
  total_type, _ = accumulate.type_signature.parameter
  arguments = tff.framework.Reference(
    'total_and_value',
    tff.StructType([total_type, weigh.type_signature.parameter]),
  )
  total, value = (tff.framework.Selection(arguments, index=i) for i in (0, 1))
  return mapreduce_compiler.compile_local_computation_to_tensorflow(
    tff.framework.Lambda(
      arguments.name,
      arguments.type_signature,
      tff.framework.Call(
        accumulate,
        tff.framework.Struct([total, tff.framework.Call(weigh, value)]),
      ),
    )
  )


def _aggregate_together(calls: _Calls) -> _Calls:
  """Merges aggregations that do not need each other's results.

  One call then adds up clients' updates and metrics.
  """
  aggregations = {n for n, call in calls.items() if _is_aggregation(call)}
  by_level = _by_level(
    calls, aggregations, lambda name, needed: needed in aggregations
  )
  for number, names in by_level.items():
    if len(names) > 1:
      _replace(
        calls,
        names,
        f'aggregations_{number}',
        _one_aggregation([calls[name] for name in names]),
      )
  return _in_order(calls)


def _report_at_server(calls: _Calls) -> _Calls:
  """Turns an aggregation's report into a call at the server."""
  separated = {}
  for name, call in calls.items():
    if is_call_of(call, tff.framework.FEDERATED_AGGREGATE):
      *others, report = call.argument
      if num_graphs(report) and not references_of(report):
        total = tff.framework.Reference(
          f'{name}_total', report.type_signature.parameter
        )
        separated[total.name] = (
          building_block_factory.create_federated_aggregate(
            *others,
            tff.framework.Lambda(total.name, total.type_signature, total),
          )
        )
        call = building_block_factory.create_federated_map_or_apply(
          report,
          tff.framework.Reference(
            total.name, separated[total.name].type_signature
          ),
        )
    separated[name] = call
  return separated


def _compute_at_server_together(calls: _Calls, result: _Block) -> _Calls:
  """Merges the server's calls between two aggregations into one graph."""
  at_server = {name for name, call in calls.items() if _is_at_server(call)}
  # The server waits for results that it does not compute itself.
  by_level = _by_level(
    calls,
    at_server,
    lambda name, needed: name in at_server and needed not in at_server,
  )
  for number, names in by_level.items():
    references = set().union(*(references_of(calls[name]) for name in names))
    # Calls that depend on nothing stay apart, because they run only once.
    if sum(num_graphs(calls[name]) for name in names) > 1 and references - {
      *names
    }:
      others = [call for name, call in calls.items() if name not in names]
      used = set().union(*map(references_of, [*others, result]))
      _replace(
        calls,
        [name for name in names if name in used],
        f'at_server_{number}',
        _one_function({name: calls[name] for name in names}, used),
      )
      for name in names:
        if name not in used:
          del calls[name]
  return _in_order(calls)


def _is_at_server(call: _Block) -> bool:
  """Returns True for a call that TensorFlow can compute at the server."""
  if is_call_of(call, tff.framework.FEDERATED_APPLY):
    function = call.argument[0]
    if isinstance(function, tff.framework.Lambda):
      return is_local(function)
    return isinstance(function, tff.framework.CompiledComputation)
  if is_call_of(call, tff.framework.FEDERATED_VALUE_AT_SERVER):
    return not references_of(call)
  return is_call_of(call, tff.framework.FEDERATED_ZIP_AT_SERVER)


def is_local(function: tff.framework.Lambda) -> bool:
  """Returns True for a function that TensorFlow alone can compute."""
  return (
    tff.types.contains_only(
      function.type_signature, lambda part: isinstance(part, _LOCAL_TYPES)
    )
    and not tree_analysis.contains(
      function, lambda part: isinstance(part, tff.framework.Intrinsic)
    )
    and not references_of(function)
  )


def num_graphs(block: _Block) -> int:
  """Returns the number of graphs that a block calls."""
  return tree_analysis.count(
    block, lambda part: isinstance(part, tff.framework.CompiledComputation)
  )


def _one_function(calls: _Calls, used: set[str]) -> _Block:
  """Returns one call whose results are the results of all used calls."""
  inputs = {}

  def find_inputs(block):
    if isinstance(block, tff.framework.Struct):
      for part in block:
        find_inputs(part)
    elif getattr(block, 'name', None) not in calls:
      inputs[block.compact_representation()] = block

  for call in calls.values():
    if not is_call_of(call, tff.framework.FEDERATED_VALUE_AT_SERVER):
      find_inputs(_argument_of(call))
  argument = tff.framework.Reference(
    'at_server',
    tff.StructType([block.type_signature.member for block in inputs.values()]),
  )
  position = {text: number for number, text in enumerate(inputs)}

  def local(block):
    if isinstance(block, tff.framework.Struct):
      return tff.framework.Struct(
        [(name, local(part)) for name, part in tff.structure.to_elements(block)]
      )
    if getattr(block, 'name', None) in calls:
      return tff.framework.Reference(
        block.name, calls[block.name].type_signature.member
      )
    return tff.framework.Selection(
      argument, index=position[block.compact_representation()]
    )

  computed = []
  for name, call in calls.items():
    if is_call_of(call, tff.framework.FEDERATED_VALUE_AT_SERVER):
      value = call.argument
    else:
      value = local(_argument_of(call))
    if is_call_of(call, tff.framework.FEDERATED_APPLY):
      value = tff.framework.Call(call.argument[0], value)
    computed.append((name, value))
  results = [
    tff.framework.Reference(name, call.type_signature.member)
    for name, call in calls.items()
    if name in used
  ]
  function = mapreduce_compiler.compile_local_computation_to_tensorflow(
    tff.framework.Lambda(
      argument.name,
      argument.type_signature,
      tff.framework.Block(computed, tff.framework.Struct(results)),
    )
  )
  return building_block_factory.create_federated_map_or_apply(
    function,
    building_block_factory.create_federated_zip(
      tff.framework.Struct(list(inputs.values()))
    ),
  )


def _argument_of(call: tff.framework.Call) -> _Block:
  """Returns the argument of a call at the server, without its function."""
  if is_call_of(call, tff.framework.FEDERATED_APPLY):
    return call.argument[1]
  return call.argument


def _is_aggregation(call: _Block) -> bool:
  """Returns True for a TensorFlow aggregation whose total keeps its type."""
  if not is_call_of(call, tff.framework.FEDERATED_AGGREGATE):
    return False
  _, zero, accumulate, *_ = call.argument
  return isinstance(
    accumulate, tff.framework.CompiledComputation
  ) and zero.type_signature.is_equivalent_to(accumulate.type_signature.result)


def _one_aggregation(
  calls: list[tff.framework.Call],
) -> tff.framework.Call:
  values, zeros, accumulates, merges, reports = zip(
    *(tuple(call.argument) for call in calls)
  )
  types = [zero.type_signature for zero in zeros]

  def each(functions, parameter_type, argument_of):
    """Makes a function that applies one function per part of a structure."""
    argument = tff.framework.Reference('argument', parameter_type)
    parts = [
      tff.framework.Call(function, argument_of(argument, index))
      for index, function in enumerate(functions)
    ]
    return tff.framework.Lambda(
      argument.name, parameter_type, tff.framework.Struct(parts)
    )

  def pair(argument, index):
    return tff.framework.Struct(
      [
        tff.framework.Selection(
          tff.framework.Selection(argument, index=side), index=index
        )
        for side in (0, 1)
      ]
    )

  totals = tff.StructType(types)
  members = [function.type_signature.parameter[1] for function in accumulates]
  return building_block_factory.create_federated_aggregate(
    building_block_factory.create_federated_zip(
      tff.framework.Struct(list(values))
    ),
    tff.framework.Struct(list(zeros)),
    mapreduce_compiler.compile_local_computation_to_tensorflow(
      each(accumulates, tff.StructType([totals, tff.StructType(members)]), pair)
    ),
    each(merges, tff.StructType([totals, totals]), pair),
    each(
      reports,
      totals,
      lambda argument, index: tff.framework.Selection(argument, index=index),
    ),
  )


def _replace(
  calls: _Calls, names: Sequence[str], merged: str, call: _Block
) -> None:
  """Replaces calls, in place, with the elements of one call's result."""
  calls[merged] = call
  reference = tff.framework.Reference(merged, call.type_signature)
  for index, name in enumerate(names):
    structure = tff.framework.Reference(
      'structure', reference.type_signature.member
    )
    calls[name] = building_block_factory.create_federated_map_or_apply(
      tff.framework.Lambda(
        structure.name,
        structure.type_signature,
        tff.framework.Selection(structure, index=index),
      ),
      reference,
    )


def levels_of(
  calls: _Calls, waits: Callable[[str, str], bool]
) -> dict[str, int]:
  """Returns the largest number of waits on a path to each call.

  Args:
    calls: The calls, each after the calls it needs.
    waits: Returns True if a call has to wait for a call it needs.
  """
  needs = needs_of(calls)
  levels = {}
  for name in calls:
    levels[name] = max(
      (levels[needed] + waits(name, needed) for needed in needs[name]),
      default=0,
    )
  return levels


def _by_level(
  calls: _Calls, chosen: set[str], waits: Callable[[str, str], bool]
) -> dict[int, list[str]]:
  """Groups the chosen calls by their `levels_of`."""
  by_level = {}
  for name, level in levels_of(calls, waits).items():
    if name in chosen:
      by_level.setdefault(level, []).append(name)
  return by_level


def _in_order(calls: _Calls) -> _Calls:
  """Sorts the calls, each after the calls it needs."""
  needs = needs_of(calls)
  ordered = {}
  while len(ordered) < len(calls):
    ordered.update(
      (name, call)
      for name, call in calls.items()
      if name not in ordered and needs[name] <= ordered.keys()
    )
  return ordered


def needs_of(calls: _Calls) -> dict[str, set[str]]:
  """Returns the names of the calls that each call refers to."""
  return {name: references_of(c) & calls.keys() for name, c in calls.items()}


def references_of(block: _Block) -> set[str]:
  """Returns the unbound names of a block."""
  return transformation_utils.get_map_of_unbound_references(block)[block]


def is_call_of(block: Any, *intrinsics: Any) -> bool:
  """Returns True if a block calls one of some intrinsics."""
  return (
    isinstance(block, tff.framework.Call)
    and isinstance(block.function, tff.framework.Intrinsic)
    and block.function.uri in [intrinsic.uri for intrinsic in intrinsics]
  )


def _only_multiplies(function: _Block) -> bool:
  if not isinstance(function, tff.framework.CompiledComputation):
    return False
  graph_def = tf.compat.v1.GraphDef()
  function.proto.tensorflow.graph_def.Unpack(graph_def)
  kinds = {node.op for node in graph_def.node}
  return kinds <= {'Placeholder', 'Const', 'Cast', 'Identity', 'Mul'}
