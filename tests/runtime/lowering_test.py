import collections

import numpy as np

from tests.runtime import cases
from tff_pfl import tff_api as tff
from tff_pfl.runtime import lowering


def _intrinsics(block):
  return [part.uri for part in cases.blocks(block, tff.framework.Intrinsic)]


def test_function_that_calls_several_becomes_one_graph():
  @tff.federated_computation(np.float32)
  def work(x):
    return collections.OrderedDict(
      once=cases.double(x), twice=cases.double(cases.double(x))
    )

  block = lowering.lower(cases.at_clients(work))
  assert len(cases.blocks(block, tff.framework.CompiledComputation)) == 1
  assert len(cases.blocks(block, tff.framework.Lambda)) == 1


def test_function_that_only_arranges_keeps_the_users_graph():
  @tff.federated_computation(np.float32, np.int32)
  def work(x, n):
    return n, cases.double(x)

  block = lowering.lower(cases.at_clients(work))
  (compiled,) = cases.blocks(block, tff.framework.CompiledComputation)
  assert (
    compiled.proto.tensorflow
    == cases.double.to_compiled_building_block().proto.tensorflow
  )


def test_aggregations_are_one_where_none_needs_anothers_result(rt):
  @tff.tensorflow.computation(np.float32, np.float32)
  def subtract(x, y):
    return x - y

  @tff.federated_computation(cases.CLIENT_FLOATS)
  def comp(values):
    mean = tff.federated_mean(values)
    number = tff.federated_sum(tff.federated_value(np.float32(1), tff.CLIENTS))
    centered = tff.federated_map(
      subtract, (values, tff.federated_broadcast(mean))
    )
    squares = tff.federated_map(
      tff.tensorflow.computation(lambda x: x * x, np.float32), centered
    )
    return collections.OrderedDict(
      number=number,
      mean=mean,
      variance=tff.federated_mean(squares),
      total=tff.federated_sum(values),
    )

  aggregations = _intrinsics(lowering.lower(comp)).count(
    tff.framework.FEDERATED_AGGREGATE.uri
  )
  # Number, mean and total; then the variance, around the mean.
  assert aggregations == 2
  actual = rt.run(comp, [1.0, 2.0, 6.0])
  assert actual['number'] == 3
  assert actual['mean'] == 3
  assert actual['total'] == 9
  np.testing.assert_allclose(actual['variance'], 14 / 3, rtol=1e-6)


def test_server_computes_once_between_aggregations(rt):
  add = cases.add

  @tff.federated_computation(cases.SERVER_FLOAT, cases.CLIENT_FLOATS)
  def comp(state, values):
    doubled = tff.federated_map(cases.double, state)
    one = tff.federated_value(np.float32(1), tff.SERVER)
    start = tff.federated_map(
      add, (tff.federated_map(cases.double, doubled), one)
    )
    moved = tff.federated_map(add, (values, tff.federated_broadcast(start)))
    mean = tff.federated_mean(moved)
    new_state = tff.federated_map(add, (state, mean))
    again = tff.federated_map(add, (values, tff.federated_broadcast(new_state)))
    total = tff.federated_map(cases.double, tff.federated_sum(again))
    return new_state, total, doubled

  graphs_at_server = [
    call
    for call in cases.blocks(lowering.lower(comp), tff.framework.Call)
    if isinstance(call.function, tff.framework.Intrinsic)
    and call.function.uri == tff.framework.FEDERATED_APPLY.uri
    and isinstance(call.argument[0], tff.framework.CompiledComputation)
  ]
  # Before the mean, after it, and after the sum.
  assert len(graphs_at_server) == 3
  # Clients have 4 * 2 + 1 + (1, 3); their mean is 11.
  actual = rt.run(comp, 2.0, [1.0, 3.0])
  assert [float(value) for value in actual] == [13, 2 * (14 + 16), 4]
