import collections

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_pfl.runtime import lowering
from tff_pfl.runtime.private_api import tree_analysis

_CLIENT_FLOATS = tff.FederatedType(np.float32, tff.CLIENTS)


@tff.tensorflow.computation(np.float32)
def _double(x):
  return 2 * x


def _blocks(block, kind):
  found = []
  tree_analysis.visit_preorder(
    block, lambda part: found.append(part) if isinstance(part, kind) else None
  )
  return found


def _intrinsics(block):
  return [part.uri for part in _blocks(block, tff.framework.Intrinsic)]


def _lower(comp):
  return lowering.lower(comp)


def test_sums_and_secure_sums_become_aggregations():
  @tff.federated_computation(tff.FederatedType(np.int32, tff.CLIENTS))
  def comp(values):
    return (
      tff.federated_sum(values),
      tff.federated_secure_sum_bitwidth(values, 5),
    )

  uris = _intrinsics(_lower(comp))
  assert uris == [tff.framework.FEDERATED_AGGREGATE.uri] * 2


def test_function_that_calls_several_becomes_one_graph():
  @tff.federated_computation(np.float32)
  def work(x):
    return collections.OrderedDict(once=_double(x), twice=_double(_double(x)))

  @tff.federated_computation(_CLIENT_FLOATS)
  def comp(values):
    return tff.federated_map(work, values)

  block = _lower(comp)
  assert len(_blocks(block, tff.framework.CompiledComputation)) == 1
  assert len(_blocks(block, tff.framework.Lambda)) == 1


def test_function_that_only_arranges_keeps_the_users_graph():
  @tff.federated_computation(np.float32, np.int32)
  def work(x, n):
    return n, _double(x)

  @tff.federated_computation(
    tff.FederatedType((np.float32, np.int32), tff.CLIENTS)
  )
  def comp(values):
    return tff.federated_map(work, values)

  (compiled,) = _blocks(_lower(comp), tff.framework.CompiledComputation)
  assert (
    compiled.proto.tensorflow
    == _double.to_compiled_building_block().proto.tensorflow
  )


def test_maps_are_not_merged():
  @tff.tensorflow.computation(tff.SequenceType(np.float32))
  def read(dataset):
    return dataset.reduce(np.float32(0), lambda total, x: total + x)

  @tff.federated_computation(
    tff.FederatedType(tff.SequenceType(np.float32), tff.CLIENTS)
  )
  def comp(datasets):
    return tff.federated_map(_double, tff.federated_map(read, datasets))

  block = _lower(comp)
  assert _intrinsics(block) == [tff.framework.FEDERATED_MAP.uri] * 2


def test_accumulation_that_is_a_lambda_becomes_a_graph():
  @tff.federated_computation(np.float32, np.float32)
  def accumulate(total, unused_x):
    return _double(total)

  @tff.tensorflow.computation(np.float32, np.float32)
  def merge(a, b):
    return a + b

  @tff.federated_computation(_CLIENT_FLOATS)
  def comp(values):
    return tff.federated_aggregate(
      values, np.float32(1), accumulate, merge, _double
    )

  block = _lower(comp)
  (call,) = (
    call
    for call in _blocks(block, tff.framework.Call)
    if isinstance(call.function, tff.framework.Intrinsic)
  )
  assert isinstance(call.argument[2], tff.framework.CompiledComputation)


def test_sequence_operations_and_selections_become_graphs():
  @tff.tensorflow.computation(np.float32, np.int32)
  def select(value, key):
    return value + tf.cast(key, tf.float32)

  @tff.tensorflow.computation(np.float32, np.float32)
  def add(a, b):
    return a + b

  @tff.federated_computation(
    tff.SequenceType(np.float32),
    tff.FederatedType(tff.TensorType(np.int32, [2]), tff.CLIENTS),
    tff.FederatedType(np.float32, tff.SERVER),
  )
  def comp(sequence, keys, value):
    max_key = tff.federated_value(np.int32(3), tff.SERVER)
    return (
      tff.sequence_sum(tff.sequence_map(_double, sequence)),
      tff.sequence_reduce(sequence, np.float32(0), add),
      tff.federated_secure_select(keys, max_key, value, select),
    )

  assert set(_intrinsics(_lower(comp))) <= {
    tff.framework.FEDERATED_BROADCAST.uri,
    tff.framework.FEDERATED_MAP.uri,
    tff.framework.FEDERATED_ZIP_AT_CLIENTS.uri,
    tff.framework.FEDERATED_VALUE_AT_SERVER.uri,
  }
