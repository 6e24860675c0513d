"""Graphs with variables, tables and data sets, in process and native."""

import collections
import functools

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.runtime import cases

pytestmark = pytest.mark.timeout(60)

_CASES = cases.Cases()
_CLIENT_FLOATS = tff.FederatedType(np.float32, tff.CLIENTS)


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


@_CASES.add(([_batches(3), _batches(1)],))
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


@_CASES.add(([1.0, 2.0, 3.0],))
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


@_CASES.add((['b', 'a', 'c'],))
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


@_CASES.add((1.0,), (5.0,))
def _variable_of_the_argument():
  @tff.tensorflow.computation(np.float32)
  def comp(x):
    variable = tf.Variable(x)
    with tf.control_dependencies([variable.assign_add(1.0)]):
      return variable.read_value()

  return comp


@_CASES.add((0.5,))
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


@_CASES.add(([['a', 'b'], ['b', 'c'], ['d', 'e']],))
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


@_CASES.add(([['a', 'b'], ['b', 'c'], ['d', 'e']],))
def _sequence_that_reads_a_table_of_the_argument():
  @tff.tensorflow.computation(_TWO_STRINGS)
  def work(keys):
    return tf.data.Dataset.from_tensors('b').map(_table(keys).lookup)

  @tff.federated_computation(tff.FederatedType(_TWO_STRINGS, tff.CLIENTS))
  def comp(keys):
    return tff.federated_map(work, keys)

  return comp


@_CASES.add((1.0,), (5.0,))
def _sequence_that_reads_a_variable():
  @tff.tensorflow.computation(np.float32)
  def comp(x):
    variable = tf.Variable(1.0)
    with tf.control_dependencies([variable.assign(x)]):
      return tf.data.Dataset.range(2).map(
        lambda i: tf.cast(i, tf.float32) * variable
      )

  return comp


@_CASES.add((1,), (2,))
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
  cases.Point,
  lambda total, count: (total, count),
  lambda total, count: [total, count],
  lambda total, count: collections.OrderedDict(a=total, b=count),
):
  _CASES[f'sequence_reduce-{type(_make(1, 2)).__name__}'] = (
    functools.partial(_reduced, _make),
    ([1.0, 2.0], _make(1.0, 2), [[1.0, 2.0], [], [3.0]]),
  )


@pytest.mark.parametrize('name', _CASES)
def test_result_is_that_of_the_native_runtime(name, rt, native):
  _CASES.check(name, rt, native)


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
    doubled = tff.sequence_map(cases.double, sequence)
    return (
      tff.sequence_sum(sequence),
      tff.sequence_sum(doubled),
      tff.sequence_reduce(sequence, np.float32(1), cases.add),
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
