import asyncio
import collections
import concurrent.futures
import functools
import gc
import threading
import time
import weakref
from typing import Any, NamedTuple

import attrs
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.runtime import growth, interruption, variables
from tff_pfl import errors, runtime
from tff_pfl.runtime import client_mapper, lowering

pytestmark = pytest.mark.timeout(60)

_FLOAT = tff.TensorType(np.float32)
_CLIENT_FLOATS = tff.FederatedType(np.float32, tff.CLIENTS)
_CLIENT_INTS = tff.FederatedType(np.int32, tff.CLIENTS)
_SERVER_FLOAT = tff.FederatedType(np.float32, tff.SERVER)


class _Point(NamedTuple):
  x: Any
  y: Any


@attrs.define
class _Record:
  first: Any
  second: Any


@pytest.fixture(name='rt', scope='module')
def _rt():
  with runtime.create_runtime('in_process') as rt:
    yield rt


@pytest.fixture(name='native', scope='module')
def _native():
  with runtime.create_runtime('native') as rt:
    yield rt


def _describe(value):
  """Returns containers, types and numbers of a result, comparable by ==."""
  if isinstance(value, tf.data.Dataset):
    return (
      'dataset',
      value.element_spec,
      [_describe(tf.nest.map_structure(np.asarray, e)) for e in value],
    )
  if attrs.has(type(value)):
    return type(value), _describe(attrs.asdict(value, recurse=False))
  if isinstance(value, dict):
    return type(value), [(k, _describe(v)) for k, v in value.items()]
  if isinstance(value, (list, tuple)):
    return type(value), [_describe(v) for v in value]
  array = np.asarray(value)
  return type(value), array.dtype, array.shape, array.tolist()


_CASES = {}


def _case(*arguments):
  """Adds a computation, with arguments, that both contexts must agree on."""

  def add(make):
    for number, argument in enumerate(arguments):
      key = f'{make.__name__.strip("_")}-{number}'
      _CASES[key] = (make, argument)
    return make

  return add


@tff.tensorflow.computation(np.float32)
def _double(x):
  return 2 * x


@tff.tensorflow.computation(np.float32, np.float32)
def _add(x, y):
  return x + y


@_case(([1.0, 2.0, 4.0],), ([],), ([np.float32(3)] * 13,))
def _sum():
  @tff.federated_computation(_CLIENT_FLOATS)
  def comp(values):
    return tff.federated_sum(values)

  return comp


@_case(([1.0, 2.0, 4.0],))
def _mean():
  @tff.federated_computation(_CLIENT_FLOATS)
  def comp(values):
    return tff.federated_mean(values)

  return comp


@_case(([1.0, 2.0, 4.0], [1.0, 1.0, 2.0]))
def _weighted_mean():
  @tff.federated_computation(_CLIENT_FLOATS, _CLIENT_FLOATS)
  def comp(values, weights):
    return tff.federated_mean(values, weights)

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


@_case(([1.0, 5.0, -3.0],))
def _aggregate():
  @tff.tensorflow.computation(_FLOAT, np.float32)
  def accumulate(total, x):
    return 2 * total + x

  @tff.tensorflow.computation(np.float32)
  def report(total):
    return collections.OrderedDict(result=total)

  @tff.federated_computation(_CLIENT_FLOATS)
  def comp(values):
    return tff.federated_aggregate(
      values, np.float32(1), accumulate, _add, report
    )

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
      n=one_more(state.n), total=_add(state.total, x)
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
    return tff.federated_map(_add, (at_clients, clients)), at_clients

  return comp


@_case((3.0,))
def _apply_at_server():
  @tff.federated_computation(_SERVER_FLOAT)
  def comp(server):
    return tff.federated_map(_double, server)

  return comp


@_case(
  (
    [
      collections.OrderedDict(a=1.0, b=(2, 3)),
      collections.OrderedDict(a=4.0, b=(5, 6)),
    ],
  )
)
def _map_of_a_lambda_that_only_arranges():
  @tff.federated_computation(
    tff.FederatedType(
      collections.OrderedDict(a=np.float32, b=(np.int32, np.int32)), tff.CLIENTS
    )
  )
  def comp(values):
    return tff.federated_map(
      tff.federated_computation(lambda v: (v.b[1], v.a)), values
    )

  return comp


@_case(([1.0, 2.0],))
def _map_of_a_lambda_that_calls_twice():
  @tff.federated_computation(np.float32)
  def work(x):
    return collections.OrderedDict(once=_double(x), twice=_double(_double(x)))

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


@_case(([1.0, 2.0],))
def _eval_at_clients():
  @tff.federated_computation(_CLIENT_FLOATS)
  def comp(values):
    ones = tff.federated_eval(
      tff.tensorflow.computation(lambda: np.float32(1)), tff.CLIENTS
    )
    return tff.federated_map(_add, (values, ones)), ones

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


@_case(([(1, 2), (3, 4)],))
def _secure_sum_of_structures():
  @tff.federated_computation(
    tff.FederatedType((np.int32, np.int64), tff.CLIENTS)
  )
  def comp(values):
    return tff.federated_secure_sum_bitwidth(values, (4, 5))

  return comp


_ELEMENT = collections.OrderedDict(
  y=tff.TensorType(np.int32, [None]), x=tff.TensorType(np.float32, [None, 2])
)


def _batches(num_examples):
  return tf.data.Dataset.from_tensor_slices(
    collections.OrderedDict(
      y=np.arange(num_examples, dtype=np.int32),
      x=np.arange(2 * num_examples, dtype=np.float32).reshape([-1, 2]),
    )
  ).batch(2)


@_case(([_batches(3), _batches(1)],))
def _sequences_in_and_out():
  @tff.tensorflow.computation(tff.SequenceType(_ELEMENT))
  def work(dataset):
    return dataset.map(lambda e: (e['x'] + 1, e['y'])), dataset.reduce(
      0, lambda n, e: n + tf.shape(e['y'])[0]
    )

  @tff.federated_computation(
    tff.FederatedType(tff.SequenceType(_ELEMENT), tff.CLIENTS)
  )
  def comp(datasets):
    return tff.federated_map(work, datasets), datasets

  return comp


@_case(
  (
    _Point(1.0, [2, 3]),
    _Record(4.0, {'b': 1, 'a': 2.0}),
    ((), [5.0, True], 'text'),
  )
)
def _all_containers():
  @tff.tensorflow.computation(
    _Point(np.float32, tff.TensorType(np.int32, [2])),
    _Record(np.float32, collections.OrderedDict(b=np.int32, a=np.float32)),
    tff.to_type(((), [np.float32, np.bool_], np.str_)),
  )
  def comp(point, record, others):
    return collections.OrderedDict(
      point=_Point(point.y, (point.x, [record.first])),
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
    return tff.federated_sum(tff.federated_map(_double, values))

  @tff.federated_computation(_CLIENT_FLOATS)
  def comp(values):
    total = inner(values)
    return total, inner(
      tff.federated_map(_add, (values, tff.federated_broadcast(total)))
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


@_case((1.0, 2.0))
def _local_lambda():
  @tff.federated_computation(np.float32, np.float32)
  def comp(x, y):
    return _add(_double(x), y), x

  return comp


@_case(())
def _same_tensor_twice():
  @tff.tensorflow.computation
  def comp():
    x = tf.constant(1.0)
    return x, x

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


@_case(([1.0, 2.0, 3.0],))
def _variables():
  @tff.tensorflow.computation(np.float32)
  def work(x):
    variable = tf.Variable(2.0)
    with tf.control_dependencies([variable.assign_add(x)]):
      return variable.read_value()

  @tff.federated_computation(_CLIENT_FLOATS)
  def comp(values):
    return tff.federated_map(work, values)

  return comp


@_case((['b', 'a', 'c'],))
def _tables():
  @tff.tensorflow.computation(np.str_)
  def work(x):
    table = tf.lookup.StaticHashTable(
      tf.lookup.KeyValueTensorInitializer(['a', 'b'], [1, 2]), -1
    )
    return table.lookup(x)

  @tff.federated_computation(tff.FederatedType(np.str_, tff.CLIENTS))
  def comp(values):
    return tff.federated_map(work, values)

  return comp


@_case((1.0,), (5.0,))
def _variable_of_the_argument():
  @tff.tensorflow.computation(np.float32)
  def comp(x):
    variable = tf.Variable(x)
    with tf.control_dependencies([variable.assign_add(1.0)]):
      return variable.read_value()

  return comp


@_case((0.5,))
def _keras_optimizer_with_the_argument():
  @tff.tensorflow.computation(np.float32)
  def comp(learning_rate):
    optimizer = tf.keras.optimizers.SGD(learning_rate)
    variable = tf.Variable(1.0)

    @tf.function
    def step():
      optimizer.apply_gradients([(tf.constant(2.0), variable)])
      return variable.read_value()

    return step()

  return comp


_TWO_STRINGS = tff.TensorType(np.str_, [2])


def _table(keys):
  return tf.lookup.StaticHashTable(
    tf.lookup.KeyValueTensorInitializer(keys, tf.constant([1, 2])), -1
  )


@_case(([['a', 'b'], ['b', 'c'], ['d', 'e']],))
def _table_of_the_argument():
  @tff.tensorflow.computation(_TWO_STRINGS)
  def work(keys):
    seen = tf.lookup.experimental.MutableHashTable(tf.string, tf.int32, -1)
    with tf.control_dependencies([seen.insert(keys, tf.constant([1, 2]))]):
      return _table(keys).lookup(tf.constant('b')), seen.size()

  @tff.federated_computation(tff.FederatedType(_TWO_STRINGS, tff.CLIENTS))
  def comp(keys):
    return tff.federated_map(work, keys)

  return comp


@_case(([['a', 'b'], ['b', 'c'], ['d', 'e']],))
def _sequence_that_reads_a_table_of_the_argument():
  @tff.tensorflow.computation(_TWO_STRINGS)
  def work(keys):
    return tf.data.Dataset.from_tensors('b').map(_table(keys).lookup)

  @tff.federated_computation(tff.FederatedType(_TWO_STRINGS, tff.CLIENTS))
  def comp(keys):
    return tff.federated_map(work, keys)

  return comp


@_case((1.0,), (5.0,))
def _sequence_that_reads_a_variable():
  @tff.tensorflow.computation(np.float32)
  def comp(x):
    variable = tf.Variable(1.0)
    with tf.control_dependencies([variable.assign(x)]):
      return tf.data.Dataset.range(2).map(
        lambda i: tf.cast(i, tf.float32) * variable
      )

  return comp


@_case((1,), (2,))
def _sequence_beside_a_table_that_grows():
  @tff.tensorflow.computation(np.int64)
  def comp(key):
    table = tf.lookup.experimental.MutableHashTable(tf.int64, tf.int64, -1)
    with tf.control_dependencies([table.insert(key, key)]):
      size = table.size()
    fixed = _table(['a', 'b']).lookup(tf.constant('b'))
    return tf.data.Dataset.from_tensors((size, fixed))

  return comp


def _reduced(make):
  """Sums and counts numbers, the state in a container, from two starts."""
  state = make(np.float32, np.int32)

  @tff.tensorflow.computation(state, np.float32)
  def add(state, x):
    total, count = tf.nest.flatten(state)
    return make(total + x, count + 1)

  @tff.tensorflow.computation
  def zero():
    return make(tf.constant(0.0), tf.constant(0))

  @tff.federated_computation(tff.SequenceType(np.float32))
  def work(numbers):
    return tff.sequence_reduce(numbers, zero(), add)

  @tff.federated_computation(
    tff.SequenceType(np.float32),
    state,
    tff.FederatedType(tff.SequenceType(np.float32), tff.CLIENTS),
  )
  def comp(numbers, start, clients):
    return tff.sequence_reduce(numbers, start, add), tff.federated_map(
      work, clients
    )

  return comp


for _make in (
  _Point,
  lambda total, count: (total, count),
  lambda total, count: [total, count],
  lambda total, count: collections.OrderedDict(a=total, b=count),
):
  _CASES[f'sequence_reduce-{type(_make(1, 2)).__name__}'] = (
    functools.partial(_reduced, _make),
    ([1.0, 2.0], _make(1.0, 2), [[1.0, 2.0], [], [3.0]]),
  )


@pytest.mark.parametrize('name', _CASES)
def test_result_is_that_of_the_native_context(name, rt, native):
  make, arguments = _CASES[name]
  computation = make()
  expected = _describe(native.run(computation, *arguments))
  assert _describe(rt.run(computation, *arguments)) == expected
  # Once more, with everything loaded, which leaves the first result alone.
  results = [rt.run(computation, *arguments) for _ in range(2)]
  assert [_describe(result) for result in results] == [expected] * 2


def _build_fed_avg():
  def model_fn():
    model = tf.keras.Sequential(
      [
        tf.keras.layers.InputLayer([2]),
        tf.keras.layers.Dense(1, kernel_initializer='ones'),
      ]
    )
    return tff.learning.models.from_keras_model(
      model,
      loss=tf.keras.losses.MeanSquaredError(),
      input_spec=_regression_data(1).element_spec,
      metrics=[tf.keras.metrics.MeanAbsoluteError()],
    )

  return tff.learning.algorithms.build_weighted_fed_avg(
    model_fn,
    client_optimizer_fn=tff.learning.optimizers.build_sgdm(0.1),
    server_optimizer_fn=tff.learning.optimizers.build_sgdm(1.0, momentum=0.9),
  )


def _regression_data(seed, num_examples=12):
  x = np.random.default_rng(seed).normal(size=[num_examples, 2])
  x = x.astype(np.float32)
  return tf.data.Dataset.from_tensor_slices(
    collections.OrderedDict(x=x, y=x[:, :1] - x[:, 1:])
  ).batch(5)


def _assert_close(actual, expected):
  actual, expected = _describe(actual), _describe(expected)
  for a, b in zip(tf.nest.flatten(actual), tf.nest.flatten(expected)):
    if isinstance(a, float):
      np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    else:
      assert a == b


def test_rounds_of_learning_are_those_of_the_native_context(rt, native):
  process = _build_fed_avg()
  outputs = []
  for runtime_ in (rt, native):
    state = runtime_.run(process.initialize)
    for round_number in range(2):
      data = [_regression_data(10 * round_number + i) for i in range(3)]
      output = runtime_.run(process.next, state, data)
      state = output.state
    outputs.append(output)
  _assert_close(*outputs)


@pytest.mark.parametrize(
  'build',
  [
    lambda: tff.aggregators.MeanFactory(),
    lambda: tff.learning.robust_aggregator(),
    lambda: tff.learning.secure_aggregator(),
    lambda: tff.learning.compression_aggregator(),
  ],
  ids=['mean', 'robust', 'secure', 'compression'],
)
def test_aggregators_agree_with_the_native_context(build, rt, native):
  aggregator = build().create(
    tff.to_type([tff.TensorType(np.float32, [3]), np.float32]),
    tff.TensorType(np.float32),
  )
  values = [
    [np.array([1.0, -2.0, 3.0], np.float32), 4.0],
    [np.array([0.5, 1.0, 0.0], np.float32), -1.0],
  ]
  outputs = []
  for runtime_ in (rt, native):
    state = runtime_.run(aggregator.initialize)
    for _ in range(2):
      output = runtime_.run(aggregator.next, state, values, [1.0, 2.0])
      state = output.state
    outputs.append(output)
  _assert_close(*outputs)


# What the native context does not run.


def test_equal_values_are_one_for_all_clients(rt):
  equal = tff.FederatedType(np.float32, tff.CLIENTS, all_equal=True)

  @tff.federated_computation(equal, _CLIENT_FLOATS)
  def comp(value, values):
    return value, tff.federated_map(_double, value), values

  assert rt.run(comp, 3.0, [1.0, 2.0]) == (3.0, [6.0, 6.0], [1.0, 2.0])


def test_clients_select_by_their_keys(rt):
  @tff.tensorflow.computation(tff.TensorType(np.float32, [3]), np.int32)
  def select_fn(table, key):
    return collections.OrderedDict(key=key, entry=tf.gather(table, key))

  @tff.tensorflow.computation(tff.SequenceType(select_fn.type_signature.result))
  def total(entries):
    return entries.reduce(np.float32(0), lambda s, e: s + e['entry'])

  @tff.federated_computation(
    tff.FederatedType(tff.TensorType(np.int32, [2]), tff.CLIENTS),
    tff.FederatedType(tff.TensorType(np.float32, [3]), tff.SERVER),
  )
  def comp(keys, table):
    max_key = tff.federated_value(np.int32(3), tff.SERVER)
    chosen = tff.federated_select(keys, max_key, table, select_fn)
    secret = tff.federated_secure_select(keys, max_key, table, select_fn)
    return (
      tff.federated_map(total, chosen),
      tff.federated_map(total, secret),
      chosen,
    )

  open_totals, secret_totals, chosen = rt.run(
    comp, [[0, 2], [1, 1]], [1.0, 2.0, 4.0]
  )
  assert open_totals == secret_totals == [5.0, 4.0]
  assert list(chosen[0].as_numpy_iterator()) == [
    {'key': 0, 'entry': 1.0},
    {'key': 2, 'entry': 4.0},
  ]


@pytest.mark.parametrize('make', [list, tf.data.Dataset.from_tensor_slices])
def test_sequences_are_mapped_reduced_and_summed(make, rt):
  @tff.federated_computation(tff.SequenceType(np.float32))
  def comp(sequence):
    doubled = tff.sequence_map(_double, sequence)
    return (
      tff.sequence_sum(sequence),
      tff.sequence_sum(doubled),
      tff.sequence_reduce(sequence, np.float32(1), _add),
      doubled,
    )

  *numbers, doubled = rt.run(comp, make([1.0, 2.0, 4.0]))
  assert numbers == [7.0, 14.0, 8.0]
  assert list(doubled.as_numpy_iterator()) == [2.0, 4.0, 8.0]


def test_sequences_of_structures_are_mapped_and_summed_at_clients(rt):
  element = collections.OrderedDict(b=np.int32, a=(np.float32, np.float32))

  @tff.tensorflow.computation(element)
  def change(e):
    return collections.OrderedDict(x=2 * e['b'], y=(e['a'][1], e['a'][0]))

  @tff.federated_computation(tff.SequenceType(element))
  def work(sequence):
    return tff.sequence_sum(tff.sequence_map(change, sequence))

  @tff.federated_computation(
    tff.FederatedType(tff.SequenceType(element), tff.CLIENTS)
  )
  def comp(sequences):
    return tff.federated_map(work, sequences)

  one = collections.OrderedDict(b=1, a=(2.0, 3.0))
  assert rt.run(comp, [[one, one], [one]]) == [
    collections.OrderedDict(x=4, y=(6.0, 4.0)),
    collections.OrderedDict(x=2, y=(3.0, 2.0)),
  ]


# Errors.


@tff.tensorflow.computation(np.int32)
def _check(x):
  with tf.control_dependencies(
    [tf.debugging.assert_positive(x, message='my own message')]
  ):
    return tf.identity(x)


@tff.federated_computation(_CLIENT_INTS)
def _check_at_clients(values):
  return tff.federated_map(_check, values)


def test_error_of_a_computation_is_tensorflows(rt):
  for computation, argument in ((_check, -1), (_check_at_clients, [1, -1, 2])):
    with pytest.raises(tf.errors.InvalidArgumentError, match='my own message'):
      rt.run(computation, argument)
    assert rt.run(_check, 1) == 1


@pytest.mark.parametrize(
  'argument', ['text', 1.5, [1, 2], np.zeros([2], np.int32), 2**40]
)
def test_argument_of_another_type_is_refused(argument, rt):
  with pytest.raises(TypeError, match='Expected a value of type int32, found'):
    rt.run(_check, argument)


def test_structure_with_other_names_is_refused(rt):
  @tff.tensorflow.computation(collections.OrderedDict(a=np.int32, b=np.int32))
  def comp(value):
    return value['a']

  with pytest.raises(TypeError, match="names \\['b', 'a'\\]"):
    rt.run(comp, collections.OrderedDict(b=1, a=2))


def test_client_values_that_are_not_a_list_are_refused(rt):
  with pytest.raises(TypeError, match='to be a `list` or `tuple`'):
    rt.run(_check_at_clients, 1)


def test_different_numbers_of_clients_are_refused(rt):
  @tff.federated_computation(_CLIENT_INTS, _CLIENT_INTS)
  def comp(a, b):
    return tff.federated_zip((a, b))

  with pytest.raises(ValueError, match='Conflicting cardinalities'):
    rt.run(comp, [1, 2], [1])


def test_unsupported_intrinsic_is_named_in_one_line(rt):
  intrinsic = tff.framework.Intrinsic(
    'generic_zero', tff.FunctionType(np.int32, np.int32)
  )
  comp = tff.framework.ConcreteComputation.from_building_block(intrinsic)
  with pytest.raises(errors.RunError, match='generic_zero') as caught:
    rt.run(comp, 1)
  assert '\n' not in str(caught.value)


def test_computation_that_is_not_tensorflow_is_refused_in_one_line(rt):
  comp = tff.jax.computation(lambda x: x + 1, np.int32)
  with pytest.raises(errors.RunError, match='local computation in xla') as e:
    rt.run(comp, 1)
  assert '\n' not in str(e.value)


@pytest.mark.parametrize(
  'options', [{'max_concurrent_clients': 0}, {'dataset_cache_bytes': -1}]
)
def test_numbers_out_of_range_are_refused(options):
  with pytest.raises(ValueError, match='Expected `'):
    runtime.create_runtime('in_process', **options)


def test_closed_runtime_says_so():
  rt = runtime.create_runtime('in_process')
  rt.run(_check, 1)
  rt.close()
  rt.close()
  with pytest.raises(errors.RunError, match='is closed; create another'):
    rt.run(_check, 1)


# Threads, event loops, interrupts.


@tff.federated_computation(_CLIENT_FLOATS)
def _sum_of_doubles(values):
  return tff.federated_sum(tff.federated_map(_double, values))


@tff.tensorflow.computation(np.int64)
def _count(limit):
  return tf.data.Dataset.range(limit).reduce(
    np.int64(0), lambda total, x: total + x
  )


@tff.federated_computation(tff.FederatedType(np.int64, tff.CLIENTS))
def _count_at_clients(limits):
  return tff.federated_map(_count, limits)


_FOREVER = 10**12


def test_threads_end_with_the_runtime():
  before = set(threading.enumerate())
  with runtime.create_runtime('in_process', max_concurrent_clients=4) as rt:
    assert _sum_of_doubles([1.0] * 20) == 40.0
    assert rt.context is not None
  assert set(threading.enumerate()) <= before


def test_dropped_runtime_ends_its_threads():
  before = set(threading.enumerate())
  rt = runtime.create_runtime('in_process', max_concurrent_clients=4)
  rt.run(_sum_of_doubles, [1.0] * 20)
  context = weakref.ref(rt.context)
  del rt
  gc.collect()
  assert context() is None
  assert set(threading.enumerate()) <= before


def test_number_of_threads_does_not_change_results():
  values = np.random.default_rng(0).normal(size=13).astype(np.float32)
  results = set()
  for num in (1, 2, 5):
    with runtime.create_runtime('in_process', max_concurrent_clients=num) as rt:
      results.add(rt.run(_sum_of_doubles, list(values)).tobytes())
  assert len(results) == 1


def test_several_threads_run_computations_at_once(rt):
  def compute(i):
    return [rt.run(_sum_of_doubles, [float(i)] * n) for n in range(1, 20)]

  with concurrent.futures.ThreadPoolExecutor(8) as pool:
    results = list(pool.map(compute, range(16)))
  assert results == [[2.0 * i * n for n in range(1, 20)] for i in range(16)]


def test_run_works_inside_an_event_loop_as_in_a_notebook(rt):
  async def cell():
    return rt.run(_sum_of_doubles, [1.0, 3.0])

  assert asyncio.run(cell()) == 8.0


def test_run_works_while_a_graph_is_traced(rt):
  with tf.Graph().as_default():
    assert rt.run(_sum_of_doubles, [1.0, 3.0]) == 8.0


def test_computation_in_a_callback_of_a_computation_does_not_deadlock():
  # As many callbacks at a time as TensorFlow has threads between operations
  # would wait for one another, with tf.functions in them as well.
  rt = runtime.create_runtime('in_process', max_concurrent_clients=1)

  def callback(x):
    return rt.run(_sum_of_doubles, [float(x)] * 5)

  @tff.tensorflow.computation(np.float32)
  def outer(x):
    return tf.ensure_shape(tf.py_function(callback, [x], tf.float32), [])

  @tff.federated_computation(_CLIENT_FLOATS)
  def comp(values):
    return tff.federated_map(outer, values)

  with rt:
    assert rt.run(comp, [1.0, 2.0, 3.0]) == [10.0, 20.0, 30.0]


@pytest.mark.parametrize('receiver', ['process', 'thread'])
@pytest.mark.parametrize(
  'computation, argument',
  [(_count, _FOREVER), (_count_at_clients, [_FOREVER] * 5)],
)
def test_ctrl_c_ends_a_computation_and_the_next_one_works(
  computation, argument, receiver, rt
):
  rt.run(_count_at_clients, [1, 2])
  with interruption.ctrl_c(0.3, ends_within_seconds=10, receiver=receiver):
    rt.run(computation, argument)
  assert rt.run(_count_at_clients, [4, 5]) == [6, 10]


def test_closing_ends_a_computation_of_another_thread_with_an_error():
  rt = runtime.create_runtime('in_process')
  with concurrent.futures.ThreadPoolExecutor(1) as pool:
    outcome = pool.submit(rt.run, _count_at_clients, [_FOREVER] * 3)
    time.sleep(0.5)
    rt.close()
    with pytest.raises(errors.RunError, match='is closed'):
      outcome.result(timeout=5)


def test_first_error_of_a_client_ends_the_others(rt):
  @tff.tensorflow.computation(np.int64)
  def work(limit):
    with tf.control_dependencies([tf.debugging.assert_positive(limit)]):
      limit = tf.identity(limit)
    return tf.data.Dataset.range(limit).reduce(np.int64(0), lambda t, x: t + x)

  @tff.federated_computation(tff.FederatedType(np.int64, tff.CLIENTS))
  def comp(limits):
    return tff.federated_map(work, limits)

  begin = time.monotonic()
  with pytest.raises(tf.errors.InvalidArgumentError):
    rt.run(comp, [_FOREVER, -1, _FOREVER, _FOREVER])
  assert time.monotonic() - begin < 5


# What is kept from one computation to the next.


_IDS = tff.SequenceType(np.int64)


@tff.tensorflow.computation(_IDS)
def _total(dataset):
  return dataset.reduce(np.int64(0), lambda total, x: total + x)


@tff.federated_computation(tff.FederatedType(_IDS, tff.CLIENTS))
def _totals(datasets):
  return tff.federated_map(_total, datasets)


@pytest.fixture(name='computed')
def _computed(monkeypatch):
  """The functions that clients computed, one entry for each client."""
  calls = []
  original = client_mapper.ThreadMapper.map

  def count(self, function, argument, num_clients):
    calls.extend([function] * num_clients)
    return original(self, function, argument, num_clients)

  monkeypatch.setattr(client_mapper.ThreadMapper, 'map', count)
  return calls


def test_dataset_that_is_passed_again_is_not_read_again(rt, computed):
  datasets = [tf.data.Dataset.range(n) for n in (3, 4, 5)]
  assert rt.run(_totals, datasets[:2]) == [3, 6]
  assert len(computed) == 2
  assert rt.run(_totals, datasets) == [3, 6, 10]
  assert len(computed) == 3
  # The same content in another object is another data set.
  assert rt.run(_totals, [tf.data.Dataset.range(3)]) == [3]
  assert len(computed) == 4


def test_dataset_that_shuffles_is_read_each_time(rt, computed):
  datasets = [tf.data.Dataset.range(3).shuffle(3, seed=1)]
  for _ in range(3):
    assert rt.run(_totals, datasets) == [3]
  assert len(computed) == 3


def test_dataset_cache_can_be_switched_off(computed):
  datasets = [tf.data.Dataset.range(3)]
  with runtime.create_runtime('in_process', dataset_cache_bytes=0) as rt:
    for _ in range(3):
      rt.run(_totals, datasets)
  assert len(computed) == 3


def test_random_function_of_a_dataset_is_called_each_time(rt, computed):
  @tff.tensorflow.computation(_IDS)
  def draw(dataset):
    del dataset
    return tf.random.uniform([])

  @tff.federated_computation(tff.FederatedType(_IDS, tff.CLIENTS))
  def comp(datasets):
    return tff.federated_map(draw, datasets)

  datasets = [tf.data.Dataset.range(3)]
  assert rt.run(comp, datasets) != rt.run(comp, datasets)
  assert len(computed) == 2


def test_random_function_of_equal_arguments_differs_between_clients(rt):
  @tff.tensorflow.computation(np.float32)
  def draw(x):
    return x + tf.random.uniform([])

  @tff.federated_computation(_SERVER_FLOAT, _CLIENT_FLOATS)
  def comp(server, clients):
    drawn = tff.federated_map(draw, tff.federated_broadcast(server))
    return tff.federated_zip((drawn, clients))

  drawn = [pair[0] for pair in rt.run(comp, 1.0, [0.0] * 5)]
  assert len(set(drawn)) == 5


def test_deterministic_function_of_equal_arguments_is_called_once(rt, computed):
  @tff.federated_computation(_SERVER_FLOAT, _CLIENT_FLOATS)
  def comp(server, clients):
    return tff.federated_map(
      _add,
      (tff.federated_map(_double, tff.federated_broadcast(server)), clients),
    )

  assert rt.run(comp, 1.0, [0.0, 1.0]) == [2.0, 3.0]
  assert len(computed) == 2


def test_computation_is_lowered_once(rt, monkeypatch):
  lowered = []
  original = lowering.lower

  def count(computation):
    lowered.append(computation)
    return original(computation)

  monkeypatch.setattr(lowering, 'lower', count)
  comp = tff.federated_computation(
    lambda v: tff.federated_sum(v), _CLIENT_FLOATS
  )
  for n in range(1, 4):
    assert rt.run(comp, [1.0] * n) == n
  assert len(lowered) == 1


def test_concurrent_clients_do_not_share_variables():
  count = variables.counter()

  @tff.federated_computation(_CLIENT_INTS)
  def comp(limits):
    return tff.federated_map(count, limits)

  limits = [200 + 7 * i for i in range(24)]
  with runtime.create_runtime('in_process', max_concurrent_clients=6) as rt:
    for _ in range(3):
      assert rt.run(comp, limits) == limits


def test_nothing_grows_over_a_thousand_calls(rt):
  def work():
    for n in range(340):
      rt.run(_sum_of_doubles, [1.0] * (n % 17))

  work()
  grown = growth.steady_growth(work)
  assert np.all(grown < [4, 1, 1, 30]), grown


def test_computations_that_are_gone_are_forgotten(rt):
  def build_and_run(i):
    comp = tff.tensorflow.computation(lambda: tf.constant(i))
    assert rt.run(comp) == i
    return weakref.ref(comp)

  built = [build_and_run(i) for i in range(5)]
  gc.collect()
  assert all(reference() is None for reference in built)
