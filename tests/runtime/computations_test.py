"""Federated computations give the same in process as on the native runtime."""

import collections
from typing import Any

import attrs
import numpy as np
import pytest
import tensorflow as tf

from tests.runtime import cases, chunks, parity
from tff_pfl import tff_api as tff

pytestmark = pytest.mark.timeout(60)

_FLOAT = tff.TensorType(np.float32)


@attrs.define
class _Record:
  first: Any
  second: Any


@tff.tensorflow.computation
def _zero():
  return collections.OrderedDict(n=np.int32(0), total=np.float32(0))


@tff.tensorflow.computation(np.int32)
def _one_more(n):
  return n + 1


def _aggregate(values):
  """Has lambdas and structures, and depends on the clients' order."""
  state = _zero.type_signature.result

  @tff.federated_computation(state, np.float32)
  def accumulate(state, x):
    return collections.OrderedDict(
      n=_one_more(state.n), total=cases.add(state.total, x)
    )

  merge = tff.federated_computation(lambda a, b: a, state, state)
  report = tff.federated_computation(lambda s: (s.total, s.n), state)
  return tff.federated_aggregate(values, _zero(), accumulate, merge, report)


def _broadcast_and_map(server, clients):
  at_clients = tff.federated_broadcast(server)
  return tff.federated_map(cases.add, (at_clients, clients)), at_clients


@tff.federated_computation(np.float32)
def _double_twice(x):
  doubled = cases.double(x)
  return collections.OrderedDict(twice=cases.double(doubled), both=(x, doubled))


def _constants(clients):
  two = tff.federated_value(np.float32(2), tff.SERVER)
  return (
    two,
    tff.federated_broadcast(tff.federated_map(cases.double, two)),
    tff.federated_sum(clients),
    tff.federated_sum(tff.federated_value(np.int32(2), tff.CLIENTS)),
    tff.federated_eval(tff.tensorflow.computation(lambda: 3), tff.SERVER),
  )


def _secure_sums(values):
  return (
    tff.federated_secure_sum(values, 10),
    tff.federated_secure_sum_bitwidth(values, 4),
    tff.backends.mapreduce.federated_secure_modular_sum(values, 5),
  )


def _nested(values):
  total = cases.sum_of_doubles(values)
  return total, cases.sum_of_doubles(
    tff.federated_map(cases.add, (values, tff.federated_broadcast(total)))
  )


def _zips(clients, server):
  at_clients = collections.OrderedDict(
    a=clients, b=(clients, tff.federated_broadcast(server))
  )
  return tff.federated_zip(at_clients), tff.federated_zip([server, server])


@tff.tensorflow.computation(
  cases.Point(np.float32, tff.TensorType(np.int32, [2])),
  _Record(np.float32, collections.OrderedDict(b=np.int32, a=np.float32)),
  tff.to_type(((), [np.float32, np.bool_], np.str_)),
)
def _all_containers(point, record, others):
  return collections.OrderedDict(
    point=cases.Point(point.y, (point.x, [record.first])),
    record=_Record(others[2], record.second),
    others=others,
    strings=tf.stack([others[2], 'é']),
    none=[],
  )


@tff.tensorflow.computation(np.float16, np.uint8, np.complex64, np.int64)
def _all_kinds_of_numbers(half, byte, number, long):
  vector = tf.stack([half, half])
  return half, byte, number, long, vector, long > 0, tf.zeros([0, 3])


@tff.tensorflow.computation(np.float32, (np.float32, np.int32))
def _repeated(x, unused):
  return x, x


def _batches(num_examples):
  return tf.data.Dataset.from_tensor_slices(
    collections.OrderedDict(
      y=np.arange(num_examples, dtype=np.int32),
      x=np.arange(2 * num_examples, dtype=np.float32).reshape([-1, 2]),
    )
  ).batch(2)


@tff.tensorflow.computation(
  tff.SequenceType(
    collections.OrderedDict(
      y=tff.TensorType(np.int32, [None]),
      x=tff.TensorType(np.float32, [None, 2]),
    )
  )
)
def _sums_of_sequence(dataset):
  return dataset.reduce(
    (0, 0.0),
    lambda total, e: (
      total[0] + tf.reduce_sum(e['y']),
      total[1] + tf.reduce_sum(e['x']),
    ),
  )


@tff.tensorflow.computation(_sums_of_sequence.type_signature.parameter)
def _first_batch(dataset):
  return dataset.take(1)


def _sums(values):
  first = tff.federated_map(_first_batch, values)
  return [tff.federated_map(_sums_of_sequence, v) for v in (values, first)]


@tff.tensorflow.computation(tff.TensorType(np.float32, [2]))
@tf.function(jit_compile=True)
def _compiled(x):
  return tf.while_loop(
    lambda n, _: n < 3, lambda n, y: (n + 1, y + x), [0, tf.zeros([2])]
  )


_STRUCTURE = collections.OrderedDict(
  b=tff.TensorType(np.float32, [2]), a=(np.float32, np.float32)
)


_federated = tff.federated_computation
# From a name to a computation and arguments of it.
_CASES = {
  'sum': (
    _federated(tff.federated_sum, cases.CLIENT_FLOATS),
    [([1.0, 2.0, 4.0],), ([],), ([np.float32(3)] * 13,)],
  ),
  'weighted mean of structures': (
    _federated(
      lambda v, weights: tff.federated_mean(v, weights),
      tff.FederatedType(_STRUCTURE, tff.CLIENTS),
      cases.CLIENT_FLOATS,
    ),
    [
      (
        [
          collections.OrderedDict(b=[1.0, 2.0], a=(3.0, 4.0)),
          collections.OrderedDict(b=[5.0, 7.0], a=(6.0, 8.0)),
        ],
        [1.0, 3.0],
      )
    ],
  ),
  'min and max': (
    _federated(
      lambda v: (tff.federated_min(v), tff.federated_max(v)), cases.CLIENT_INTS
    ),
    [([1, 5, -3],), ([],)],
  ),
  'aggregate': (
    _federated(_aggregate, cases.CLIENT_FLOATS),
    [([2.0, 5.0, -3.0],)],
  ),
  'broadcast and map': (
    _federated(_broadcast_and_map, cases.SERVER_FLOAT, cases.CLIENT_FLOATS),
    [(3.0, [1.0, 2.0])],
  ),
  'map of a lambda that calls twice': (
    cases.at_clients(_double_twice),
    [([1.0, 2.0],)],
  ),
  'constants': (_federated(_constants, cases.CLIENT_FLOATS), [([1.0, 3.0],)]),
  'secure sums': (_federated(_secure_sums, cases.CLIENT_INTS), [([1, 2, 3],)]),
  'containers': (
    _all_containers,
    [
      (
        cases.Point(1.0, [2, 3]),
        _Record(4.0, {'b': 1, 'a': 2.0}),
        ((), [5.0, True], 'text'),
      )
    ],
  ),
  'numbers': (
    _all_kinds_of_numbers,
    [(np.float16(1.5), np.uint8(3), np.complex64(1 + 2j), np.int64(-1))],
  ),
  'compiled by XLA': (
    cases.at_clients(_compiled),
    [([np.float32([1, 2]), np.float32([3, 4])],)],
  ),
  'nested': (_federated(_nested, cases.CLIENT_FLOATS), [([1.0, 2.0],)]),
  'zips': (
    _federated(_zips, cases.CLIENT_FLOATS, cases.SERVER_FLOAT),
    [([1.0, 2.0], 3.0)],
  ),
  'parameter unused or returned': (
    _federated(lambda x: (_repeated(x, (x, 1)), x), _FLOAT),
    [(1.0,)],
  ),
  'sequences': (
    _federated(
      _sums,
      tff.FederatedType(
        _sums_of_sequence.type_signature.parameter, tff.CLIENTS
      ),
    ),
    [([_batches(3), _batches(1), _batches(0)],)],
  ),
}


@pytest.fixture(name='in_chunks', scope='module')
def _in_chunks():
  with chunks.ChunksRuntime(2, 2) as rt:
    yield rt


@pytest.mark.parametrize('name', _CASES)
def test_result_is_that_of_the_native_runtime(name, rt, native, in_chunks):
  computation, arguments_of_calls = _CASES[name]
  for arguments in arguments_of_calls:
    expected = native.run(computation, *arguments)
    # What chunks make of a cohort depends on its order, and cannot be merged.
    for each in [rt] if name == 'aggregate' else [rt, in_chunks]:
      first = each.run(computation, *arguments)
      # Once more, with everything loaded, which leaves the first result alone.
      parity.assert_same(each.run(computation, *arguments), expected)
      parity.assert_same(first, expected)
