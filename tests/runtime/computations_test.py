"""Federated computations give the same in process as on the native runtime."""

import collections
from typing import Any

import attrs
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.runtime import cases, chunks, parity

pytestmark = pytest.mark.timeout(60)

# From a name to what makes a computation, and its arguments.
_CASES = {}
_FLOAT = tff.TensorType(np.float32)
_CLIENT_FLOATS = tff.FederatedType(np.float32, tff.CLIENTS)
_CLIENT_INTS = tff.FederatedType(np.int32, tff.CLIENTS)
_SERVER_FLOAT = tff.FederatedType(np.float32, tff.SERVER)


def _case(*arguments):
  """Adds a computation with each of some tuples of arguments."""

  def decorate(make):
    for number, argument in enumerate(arguments):
      _CASES[f'{make.__name__.strip("_")}-{number}'] = (make, argument)
    return make

  return decorate


@attrs.define
class _Record:
  first: Any
  second: Any


@_case(([1.0, 2.0, 4.0],), ([],), ([np.float32(3)] * 13,))
def _sum():
  @tff.federated_computation(_CLIENT_FLOATS)
  def comp(values):
    return tff.federated_sum(values)

  return comp


@_case(
  (
    [
      collections.OrderedDict(b=[1.0, 2.0], a=(3.0, 4.0)),
      collections.OrderedDict(b=[5.0, 7.0], a=(6.0, 8.0)),
    ],
    [1.0, 3.0],
  )
)
def _weighted_mean_of_structures():
  @tff.federated_computation(
    tff.FederatedType(
      collections.OrderedDict(
        b=tff.TensorType(np.float32, [2]), a=(np.float32, np.float32)
      ),
      tff.CLIENTS,
    ),
    _CLIENT_FLOATS,
  )
  def comp(values, weights):
    return tff.federated_mean(values, weights)

  return comp


@_case(([1, 5, -3],), ([],))
def _min_and_max():
  @tff.federated_computation(_CLIENT_INTS)
  def comp(values):
    return tff.federated_min(values), tff.federated_max(values)

  return comp


@_case(([2.0, 5.0, -3.0],))
def _aggregate_with_lambdas_and_structures():
  zero = collections.OrderedDict(n=np.int32(0), total=np.float32(0))

  @tff.tensorflow.computation
  def make_zero():
    return zero

  @tff.tensorflow.computation(np.int32)
  def one_more(n):
    return n + 1

  @tff.federated_computation(make_zero.type_signature.result, np.float32)
  def accumulate(state, x):
    return collections.OrderedDict(
      n=one_more(state.n), total=cases.add(state.total, x)
    )

  @tff.federated_computation(
    make_zero.type_signature.result, make_zero.type_signature.result
  )
  def merge(a, unused_b):
    return a

  @tff.federated_computation(make_zero.type_signature.result)
  def report(state):
    return state.total, state.n

  @tff.federated_computation(_CLIENT_FLOATS)
  def comp(values):
    return tff.federated_aggregate(
      values, make_zero(), accumulate, merge, report
    )

  return comp


@_case((3.0, [1.0, 2.0]))
def _broadcast_and_map():
  @tff.federated_computation(_SERVER_FLOAT, _CLIENT_FLOATS)
  def comp(server, clients):
    at_clients = tff.federated_broadcast(server)
    return tff.federated_map(cases.add, (at_clients, clients)), at_clients

  return comp


@_case(([1.0, 2.0],))
def _map_of_a_lambda_that_calls_twice():
  @tff.federated_computation(np.float32)
  def work(x):
    doubled = cases.double(x)
    return collections.OrderedDict(
      twice=cases.double(doubled), both=(x, doubled)
    )

  @tff.federated_computation(_CLIENT_FLOATS)
  def comp(values):
    return tff.federated_map(work, values)

  return comp


@_case(())
def _values_without_arguments():
  @tff.federated_computation
  def comp():
    return (
      tff.federated_value(np.float32(2), tff.SERVER),
      tff.federated_sum(tff.federated_value(np.int32(2), tff.CLIENTS)),
      tff.federated_eval(tff.tensorflow.computation(lambda: 3), tff.SERVER),
    )

  return comp


@_case(([1, 2, 3],))
def _secure_sums():
  @tff.federated_computation(_CLIENT_INTS)
  def comp(values):
    return (
      tff.federated_secure_sum(values, 10),
      tff.federated_secure_sum_bitwidth(values, 4),
      tff.backends.mapreduce.federated_secure_modular_sum(values, 5),
    )

  return comp


@_case(
  (
    cases.Point(1.0, [2, 3]),
    _Record(4.0, {'b': 1, 'a': 2.0}),
    ((), [5.0, True], 'text'),
  )
)
def _all_containers():
  @tff.tensorflow.computation(
    cases.Point(np.float32, tff.TensorType(np.int32, [2])),
    _Record(np.float32, collections.OrderedDict(b=np.int32, a=np.float32)),
    tff.to_type(((), [np.float32, np.bool_], np.str_)),
  )
  def comp(point, record, others):
    return collections.OrderedDict(
      point=cases.Point(point.y, (point.x, [record.first])),
      record=_Record(others[2], record.second),
      others=others,
      strings=tf.stack([others[2], 'é']),
      none=[],
    )

  return comp


@_case((np.float16(1.5), np.uint8(3), np.complex64(1 + 2j), np.int64(-1)))
def _all_kinds_of_numbers():
  @tff.tensorflow.computation(np.float16, np.uint8, np.complex64, np.int64)
  def comp(half, byte, number, long):
    vector = tf.stack([half, half])
    return half, byte, number, long, vector, long > 0, tf.zeros([0, 3])

  return comp


@_case(([1.0, 2.0],))
def _nested_computations():
  @tff.federated_computation(_CLIENT_FLOATS)
  def inner(values):
    return tff.federated_sum(tff.federated_map(cases.double, values))

  @tff.federated_computation(_CLIENT_FLOATS)
  def comp(values):
    total = inner(values)
    return total, inner(
      tff.federated_map(cases.add, (values, tff.federated_broadcast(total)))
    )

  return comp


@_case(([1.0, 2.0], 3.0))
def _zips():
  @tff.federated_computation(_CLIENT_FLOATS, _SERVER_FLOAT)
  def comp(clients, server):
    return tff.federated_zip(
      collections.OrderedDict(
        a=clients, b=(clients, tff.federated_broadcast(server))
      )
    ), tff.federated_zip([server, server])

  return comp


@_case((1.0,))
def _parameter_unused_or_returned():
  @tff.tensorflow.computation(np.float32, (np.float32, np.int32))
  def inner(x, unused):
    return x, x

  @tff.federated_computation(np.float32)
  def comp(x):
    return inner(x, (x, 1)), x

  return comp


def _batches(num_examples):
  return tf.data.Dataset.from_tensor_slices(
    collections.OrderedDict(
      y=np.arange(num_examples, dtype=np.int32),
      x=np.arange(2 * num_examples, dtype=np.float32).reshape([-1, 2]),
    )
  ).batch(2)


@_case(([_batches(3), _batches(1), _batches(0)],))
def _sequences():
  @tff.tensorflow.computation(
    tff.SequenceType(
      collections.OrderedDict(
        y=tff.TensorType(np.int32, [None]),
        x=tff.TensorType(np.float32, [None, 2]),
      )
    )
  )
  def sums(dataset):
    return dataset.reduce(
      (0, 0.0),
      lambda total, e: (
        total[0] + tf.reduce_sum(e['y']),
        total[1] + tf.reduce_sum(e['x']),
      ),
    )

  @tff.federated_computation(
    tff.FederatedType(sums.type_signature.parameter, tff.CLIENTS)
  )
  def comp(datasets):
    return tff.federated_map(sums, datasets)

  return comp


@pytest.fixture(name='in_chunks', scope='module')
def _in_chunks():
  with chunks.ChunksRuntime(2, 2) as rt:
    yield rt


@pytest.mark.parametrize('name', _CASES)
def test_result_is_that_of_the_native_runtime(name, rt, native, in_chunks):
  make, arguments = _CASES[name]
  computation = make()
  expected = native.run(computation, *arguments)
  # What chunks make of a cohort depends on its order, and cannot be merged.
  for each in [rt] if name.startswith('aggregate') else [rt, in_chunks]:
    first = each.run(computation, *arguments)
    # Once more, with everything loaded, which leaves the first result alone.
    parity.assert_same(each.run(computation, *arguments), expected)
    parity.assert_same(first, expected)


def test_equal_values_are_one_for_all_clients(rt):
  equal = tff.FederatedType(np.float32, tff.CLIENTS, all_equal=True)

  @tff.federated_computation(equal, _CLIENT_FLOATS)
  def comp(value, values):
    return value, tff.federated_map(cases.double, value), values

  assert rt.run(comp, 3.0, [1.0, 2.0]) == (3.0, [6.0, 6.0], [1.0, 2.0])
