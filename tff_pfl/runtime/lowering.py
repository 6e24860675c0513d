"""Lowering of TFF computations for the in-process runtime.

The result is in TFF's call-dominant form: a list of calls of intrinsics and of
TensorFlow functions, without nesting except in the functions that intrinsics
take. Intrinsics that are defined by others are replaced by their definitions;
secure sums are computed in the clear, with the same integers. A function of one
party that calls several graphs becomes one graph. Calls are merged if possible.
"""

import itertools
from typing import Any, Optional

import tensorflow as tf
import tensorflow_federated as tff

from tff_pfl.runtime import merged_calls
from tff_pfl.runtime.private_api import (
  building_block_factory,
  intrinsic_defs,
  mapreduce_compiler,
  tensorflow_utils,
  test_compiler,
  tree_analysis,
)

_Transformed = tuple[tff.framework.ComputationBuildingBlock, bool]

_unique_number = itertools.count()


def lower(
  computation: tff.framework.ConcreteComputation,
) -> tff.framework.ComputationBuildingBlock:
  """Lowers a computation that is not polymorphic, for `Interpreter`."""
  block = _without_secure_sums(computation.to_building_block())
  block = mapreduce_compiler.unpack_compiled_computations(block)
  block, _ = tff.tensorflow.replace_intrinsics_with_bodies(block)
  block = tff.framework.to_call_dominant(block)
  for transform in (_lower_call, _lower_lambda):
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
  """Replaces secure sums by sums in the clear, with the same integers."""
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
  # The sums' definitions in place could nest deeper than protocol buffers may;
  # this form is flat.
  block = tff.framework.to_call_dominant(block)
  # TFF's public function writes and reads all graphs before and after this.
  block, _ = test_compiler._replace_secure_intrinsics_with_insecure_bodies(
    block
  )
  return block


def _is_secure(block: tff.framework.ComputationBuildingBlock) -> bool:
  return isinstance(block, tff.framework.Intrinsic) and block.uri.startswith(
    'federated_secure'
  )


def _lower_call(block: tff.framework.ComputationBuildingBlock) -> _Transformed:
  """Replaces intrinsics by TensorFlow, or their functions by graphs."""
  if not isinstance(block, tff.framework.Call) or not isinstance(
    block.function, tff.framework.Intrinsic
  ):
    return block, False
  lower_intrinsic = _LOWERINGS.get(block.function.uri)
  if lower_intrinsic is None:
    return block, False
  return lower_intrinsic(block), True


def _lower_lambda(
  block: tff.framework.ComputationBuildingBlock,
) -> _Transformed:
  """Makes a function of one party that calls several graphs one graph.

  A function that calls one graph at most stays: its selections cost nothing,
  and its graph stays the user's own.
  """
  if not isinstance(block, tff.framework.Lambda) or not merged_calls.is_local(
    block
  ):
    return block, False
  if merged_calls.num_graphs(block) < 2:
    return block, False
  return mapreduce_compiler.compile_local_computation_to_tensorflow(block), True


def _to_graph(
  function: tff.framework.ComputationBuildingBlock,
) -> tff.framework.ComputationBuildingBlock:
  """Makes a function one TensorFlow graph if possible."""
  if isinstance(function, tff.framework.Lambda) and merged_calls.is_local(
    function
  ):
    return mapreduce_compiler.compile_local_computation_to_tensorflow(function)
  return function


def _lower_aggregate(call: tff.framework.Call) -> tff.framework.Call:
  """Makes the accumulation one graph, so that it can be chained in one."""
  elements = tff.structure.to_elements(call.argument)
  name, accumulate = elements[2]
  elements[2] = (name, _to_graph(accumulate))
  return tff.framework.Call(call.function, tff.framework.Struct(elements))


def _lower_sequence_map(call: tff.framework.Call) -> tff.framework.Call:
  function, sequence = call.argument
  apply = _in_graph(function)

  @tff.tensorflow.computation(sequence.type_signature)
  def sequence_map(dataset):
    return dataset.map(lambda *element: apply(_element(element)))

  return _call(sequence_map, sequence)


def _lower_sequence_reduce(call: tff.framework.Call) -> tff.framework.Call:
  sequence, zero, function = call.argument
  apply = _in_graph(function)

  @tff.tensorflow.computation(sequence.type_signature, zero.type_signature)
  def sequence_reduce(dataset, initial):
    if isinstance(initial, tff.structure.Struct):
      initial = tff.structure.to_odict_or_tuple(initial)
    return dataset.reduce(
      initial, lambda state, *element: apply((state, _element(element)))
    )

  return _call(sequence_reduce, tff.framework.Struct([sequence, zero]))


def _lower_sequence_sum(call: tff.framework.Call) -> tff.framework.Call:
  sequence = call.argument

  @tff.tensorflow.computation(sequence.type_signature)
  def sequence_sum(dataset):
    zero = tf.nest.map_structure(
      lambda spec: tf.zeros(spec.shape, spec.dtype), dataset.element_spec
    )
    return dataset.reduce(
      zero,
      lambda state, *element: tf.nest.map_structure(
        tf.add, state, _element(element)
      ),
    )

  return _call(sequence_sum, sequence)


def _lower_select(call: tff.framework.Call) -> tff.framework.Call:
  """Broadcasts the server's value; each client selects by its own keys."""
  keys, _, server_value, select = call.argument
  apply = _in_graph(select)

  @tff.tensorflow.computation(
    server_value.type_signature.member, keys.type_signature.member
  )
  def select_at_client(value, client_keys):
    dataset = tf.data.Dataset.from_tensor_slices(client_keys)
    return dataset.map(lambda key: apply((value, key)))

  argument = building_block_factory.create_federated_zip(
    tff.framework.Struct(
      [building_block_factory.create_federated_broadcast(server_value), keys]
    )
  )
  return building_block_factory.create_federated_map(
    select_at_client.to_compiled_building_block(), argument
  )


_LOWERINGS = {
  intrinsic_defs.FEDERATED_AGGREGATE.uri: _lower_aggregate,
  intrinsic_defs.FEDERATED_SELECT.uri: _lower_select,
  intrinsic_defs.SEQUENCE_MAP.uri: _lower_sequence_map,
  intrinsic_defs.SEQUENCE_REDUCE.uri: _lower_sequence_reduce,
  intrinsic_defs.SEQUENCE_SUM.uri: _lower_sequence_sum,
}


def _call(
  computation: tff.framework.ConcreteComputation,
  argument: tff.framework.ComputationBuildingBlock,
) -> tff.framework.Call:
  return tff.framework.Call(computation.to_compiled_building_block(), argument)


def _element(arguments: tuple[Any, ...]) -> Any:
  """Returns a data set's element, which `map` passes as several arguments."""
  return arguments[0] if len(arguments) == 1 else arguments


def _in_graph(function: tff.framework.ComputationBuildingBlock) -> Any:
  """Returns a function that copies another into the graph being traced."""
  graph = _to_graph(function)

  # AutoGraph would convert, and spend seconds on, TFF's own functions.
  @tf.autograph.experimental.do_not_convert
  def apply(argument: Optional[Any]) -> Any:
    _, result = tensorflow_utils.deserialize_and_call_tf_computation(
      graph.proto,
      tff.structure.from_container(argument, recursive=True)
      if isinstance(argument, (tuple, list, dict))
      else argument,
      tf.compat.v1.get_default_graph(),
      str(next(_unique_number)),
      tf.constant(''),
    )
    if isinstance(result, tff.structure.Struct):
      return tff.structure.to_odict_or_tuple(result)
    return result

  return apply
