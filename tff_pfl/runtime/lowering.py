"""Lowering of TFF computations for the in-process runtime.

The result is in TFF's call-dominant form: a list of calls of intrinsics and
TensorFlow functions, nested only in the functions that intrinsics take.
Intrinsics that are defined by others are replaced with their definitions.
Secure sums are computed in the clear, with the same integers. A function of one
party that calls several graphs becomes one graph. Calls are merged if possible.
"""

from typing import Any, Optional

import tensorflow as tf

from tff_pfl import tff_api as tff
from tff_pfl.runtime import base, interpreter, merged_calls
from tff_pfl.system import graph_defs
from tff_pfl.system.private_api import (
  mapreduce_compiler,
  test_compiler,
  tree_analysis,
)

_Transformed = tuple[tff.framework.ComputationBuildingBlock, bool]


def lower(
  computation: tff.framework.ConcreteComputation,
) -> tff.framework.ComputationBuildingBlock:
  """Lowers a computation that is not polymorphic, for `Interpreter`.

  Raises:
    RunError: If the interpreter does not support the computation.
  """
  block = _without_secure_sums(computation.to_building_block())
  block = mapreduce_compiler.unpack_compiled_computations(block)
  block, _ = tff.tensorflow.replace_intrinsics_with_bodies(block)
  block = tff.framework.to_call_dominant(block)
  _expect_supported(block)
  for transform in (_lower_aggregate, _lower_lambda):
    block, _ = tff.framework.transform_postorder(block, transform)
  if not (
    isinstance(block, tff.framework.Lambda)
    and isinstance(block.result, tff.framework.Block)
  ):
    return block
  result = block.result.result
  calls = merged_calls.merge(dict(block.result.locals), result)
  return tff.framework.Lambda(
    block.parameter_name,
    block.parameter_type,
    tff.framework.Block(list(calls.items()), result),
  )


def replace_secure_sums(
  computation: tff.framework.ConcreteComputation,
) -> tff.framework.ConcreteComputation:
  """Replaces secure sums with sums of the same integers in the clear."""
  block = computation.to_building_block()
  replaced = _without_secure_sums(block)
  if replaced is block:
    return computation
  return tff.framework.ConcreteComputation.from_building_block(replaced)


def _without_secure_sums(
  block: tff.framework.ComputationBuildingBlock,
) -> tff.framework.ComputationBuildingBlock:
  if not tree_analysis.contains(block, _is_secure):
    return block
  # Inlined definitions of the sums could nest deeper than protocol buffers
  # allow. This form is flat.
  block = tff.framework.to_call_dominant(block)
  # TFF's public function would also write and read all graphs.
  block, _ = test_compiler._replace_secure_intrinsics_with_insecure_bodies(
    block
  )
  return block


def _is_secure(block: tff.framework.ComputationBuildingBlock) -> bool:
  return isinstance(block, tff.framework.Intrinsic) and block.uri.startswith(
    'federated_secure'
  )


def _lower_lambda(
  block: tff.framework.ComputationBuildingBlock,
) -> _Transformed:
  """Turns a function of one party that calls several graphs into one graph.

  A function that calls at most one graph stays. Its selections cost nothing,
  and its graph remains the user's.
  """
  if not isinstance(block, tff.framework.Lambda) or not merged_calls.is_local(
    block
  ):
    return block, False
  if merged_calls.num_graphs(block) < 2:
    return block, False
  return mapreduce_compiler.compile_local_computation_to_tensorflow(block), True


def _lower_aggregate(
  block: tff.framework.ComputationBuildingBlock,
) -> _Transformed:
  """Turns an accumulation into one graph, so that it can be chained."""
  if not merged_calls.is_call_of(block, tff.framework.FEDERATED_AGGREGATE):
    return block, False
  elements = tff.structure.to_elements(block.argument)
  name, accumulate = elements[2]
  if not isinstance(accumulate, tff.framework.Lambda):
    return block, False
  elements[2] = (
    name,
    mapreduce_compiler.compile_local_computation_to_tensorflow(accumulate),
  )
  return tff.framework.Call(
    block.function, tff.framework.Struct(elements)
  ), True


def _expect_supported(block: tff.framework.ComputationBuildingBlock) -> None:
  """Raises `RunError` if this runtime does not support a computation."""

  def expect(part):
    missing = None
    runs_on_native = True
    if isinstance(part, tff.framework.CompiledComputation):
      kind = part.proto.WhichOneof('computation')
      if kind == 'tensorflow':
        missing = _missing_in_graph(part.proto)
      else:
        missing = f'a local computation in {kind}'
        runs_on_native = False
    elif isinstance(part, tff.framework.Intrinsic):
      if part.uri not in interpreter.INTRINSICS:
        missing = f'the intrinsic {part.uri}'
        runs_on_native = part.uri != 'sequence_sum'
    elif type(part) not in interpreter.BLOCKS:
      missing = f'a part of the kind {type(part).__name__}'
    if missing is not None:
      raise base.unsupported(missing, runs_on_native)
    return part, False

  tff.framework.transform_postorder(block, expect)


def _missing_in_graph(proto: Any) -> Optional[str]:
  """Returns the unsupported part of a TensorFlow computation, or None."""
  graph_def = tf.compat.v1.GraphDef()
  proto.tensorflow.graph_def.Unpack(graph_def)
  if proto.tensorflow.initialize_op or any(
    map(graph_defs.is_shared, graph_defs.all_nodes(graph_def))
  ):
    return 'variables or hash tables'
  return None
