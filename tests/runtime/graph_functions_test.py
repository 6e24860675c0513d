import collections
import concurrent.futures
import gc
import logging

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff
from google.protobuf import text_format

from tff_pfl.runtime import graph_functions, values
from tff_pfl.runtime.private_api import eager_context

_FLOAT = tff.TensorType(np.float32)


@pytest.fixture(name='library')
def _library():
  return graph_functions.FunctionLibrary()


def _function(library, computation):
  return library.function(computation.to_compiled_building_block())


def _counter():
  """A computation that counts up a variable, slowly, and returns it."""

  @tff.tensorflow.computation(np.int32)
  def count(limit):
    variable = tf.Variable(0)

    @tf.function
    def loop():
      while variable < limit:
        variable.assign_add(1)
      return variable.read_value()

    return loop()

  return count


@tff.tensorflow.computation(np.float32, np.float32)
def _decay(total, x):
  return 0.5 * total + x


def test_equal_graphs_are_loaded_once(library):
  def build(number):
    return tff.tensorflow.computation(lambda x: x + number, np.int32)

  first, second, other = (_function(library, build(n)) for n in (1, 1, 2))
  assert first.content_hash == second.content_hash != other.content_hash
  assert [int(f(tf.constant(1))) for f in (first, second, other)] == [2, 2, 3]
  assert len(library) == 2


def test_number_of_loaded_graphs_is_bounded():
  library = graph_functions.FunctionLibrary(max_functions=3)

  def build(number):
    return tff.tensorflow.computation(lambda x: x + number, np.int32)

  functions = [_function(library, build(n)) for n in range(5)]
  for _ in range(2):
    assert [int(f(tf.constant(1))) for f in functions] == [1, 2, 3, 4, 5]
    assert len(library) == 3


def test_unloaded_graph_leaves_no_functions_and_no_variables(library):
  def load_and_call():
    function = _function(library, _counter())
    assert int(function(tf.constant(3))) == 3
    return function.program().concrete.name, [
      f.signature.name
      for f in function.program().concrete.graph.as_graph_def().library.function
    ]

  name, inner = load_and_call()
  context = eager_context.context()
  assert inner
  assert all(context.has_function(n) for n in (name, *inner))
  library.clear()
  gc.collect()
  assert not any(context.has_function(n) for n in (name, *inner))


def test_error_in_a_call_leaves_no_table_for_the_next(library):
  @tff.tensorflow.computation(np.str_, np.bool_)
  def count(key, is_right):
    table = tf.lookup.experimental.MutableHashTable(tf.string, tf.int32, 0)
    with tf.control_dependencies([table.insert(key, 1)]):
      size = table.size()
    with tf.control_dependencies([size, tf.debugging.Assert(is_right, [key])]):
      return tf.identity(size)

  function = _function(library, count)
  with pytest.raises(tf.errors.InvalidArgumentError):
    function((tf.constant('a'), tf.constant(False)))
  assert int(function((tf.constant('c'), tf.constant(True)))) == 1


def test_sequence_that_reads_a_constant_table_outlives_the_call(library):
  @tff.tensorflow.computation(np.str_)
  def look_up(key):
    table = tf.lookup.StaticHashTable(
      tf.lookup.KeyValueTensorInitializer(['a'], [1]), -1
    )
    return tf.data.Dataset.from_tensors(key).map(table.lookup)

  function = _function(library, look_up)
  sequences = [function(tf.constant(key)) for key in ('a', 'b')]
  for sequence, expected in zip(sequences, (1, -1)):
    dataset = tf.data.experimental.from_variant(
      sequence.variant, tf.TensorSpec([], tf.int32)
    )
    assert list(dataset.as_numpy_iterator()) == [expected]


def test_graph_of_another_program_may_use_the_same_function_names(library):
  # Two different definitions of one function name, as from two programs.
  def build(number):
    @tff.tensorflow.computation(np.int32)
    def comp(x):
      return tf.function(lambda v: v + number, autograph=False)(x)

    return comp

  first, second = build(1), build(20)
  proto = tff.framework.serialize_computation(second)
  graph_def = tf.compat.v1.GraphDef()
  proto.tensorflow.graph_def.Unpack(graph_def)
  (old,) = (f.signature.name for f in graph_def.library.function)
  first_graph = tf.compat.v1.GraphDef()
  tff.framework.serialize_computation(first).tensorflow.graph_def.Unpack(
    first_graph
  )
  (new,) = (f.signature.name for f in first_graph.library.function)
  text = str(graph_def).replace(old, new)
  renamed = text_format.Parse(text, tf.compat.v1.GraphDef())
  proto.tensorflow.graph_def.Pack(renamed)
  second = tff.framework.deserialize_computation(proto)
  results = [
    int(_function(library, comp)(tf.constant(1))) for comp in (first, second)
  ]
  assert results == [2, 21]


@pytest.mark.parametrize('num_rows', [0, 1, 2, 5, 8, 13])
def test_fold_accumulates_in_order(num_rows, library):
  function = _function(library, _decay)
  expected = np.float32(4)
  for i in range(num_rows):
    expected = np.float32(0.5) * expected + np.float32(i)
  rows = [tf.constant(float(i)) for i in range(num_rows)]
  found = function.fold(tf.constant(4.0), values.PerClient(rows), num_rows)
  assert found.numpy() == expected


@pytest.mark.parametrize('num_rows', [1, 2, 70])
def test_fold_of_stacked_values_is_that_of_single_ones(
  num_rows, library, monkeypatch
):
  @tff.tensorflow.computation(np.float32, (np.float32, (np.float32, [3])))
  def add(total, row):
    scale, vector = row
    return 0.5 * total + scale * tf.reduce_sum(vector)

  function = _function(library, add)
  scale = values.AllEqual(tf.constant(2.0))
  vectors = tf.random.stateless_uniform([num_rows, 3], (1, 2))
  rows = values.Columns((scale, values.PerClient(tf.unstack(vectors))))
  stacked = values.Columns((scale, values.Stacked(vectors)))
  expected = function.fold(tf.constant(4.0), rows, num_rows)
  # They are not taken apart.
  monkeypatch.delattr(values, 'rows')
  found = function.fold(tf.constant(4.0), stacked, num_rows)
  assert found.numpy() == expected.numpy()


def test_fold_of_structures_whose_results_share_a_tensor(library):
  state = tff.to_type(collections.OrderedDict(a=np.float32, b=np.float32))

  @tff.tensorflow.computation(state, ())
  def step(total, unused_row):
    new = total['a'] + total['b']
    return collections.OrderedDict(a=new, b=new)

  result = _function(library, step).fold(
    (tf.constant(1.0), tf.constant(2.0)), values.PerClient([()] * 3), 3
  )
  assert [float(t) for t in result] == [12.0, 12.0]


def test_graph_that_only_passes_on_gives_its_inputs(library):
  @tff.tensorflow.computation(np.float32, np.float32)
  def swap(x, y):
    return tf.identity(y), x

  @tff.tensorflow.computation(np.float32)
  def checked(x):
    with tf.control_dependencies([tf.debugging.assert_positive(x)]):
      return tf.identity(x)

  x, y = tf.constant(-1.0), tf.constant(2.0)
  found = _function(library, swap)((x, y))
  assert found[0] is y and found[1] is x
  with pytest.raises(tf.errors.InvalidArgumentError):
    _function(library, checked)(x)


def test_fold_with_variables_initializes_them_each_time(library):
  @tff.tensorflow.computation(np.float32, np.float32)
  def step(total, x):
    variable = tf.Variable(1.0)
    with tf.control_dependencies([variable.assign_add(x)]):
      return total + variable.read_value()

  rows = values.PerClient([tf.constant(1.0)] * 3)
  assert float(_function(library, step).fold(tf.constant(0.0), rows, 3)) == 6.0


def test_what_is_known_about_a_function(library):
  plain = _function(library, _decay)
  assert plain.is_deterministic
  assert plain.is_tensor_function
  assert not plain.program().asks_for_xla
  arguments = values.flatten((tf.constant(1.0), tf.constant(2.0)))
  assert float(plain.pack(plain.program().concrete(*arguments))) == 2.5
  random = tff.tensorflow.computation(lambda: tf.random.uniform([]))
  assert not _function(library, random).is_deterministic
  with_variable = _function(library, _counter())
  assert not with_variable.is_deterministic
  assert not with_variable.is_tensor_function
  of_sequence = tff.tensorflow.computation(
    lambda dataset: dataset.take(1), tff.SequenceType(np.float32)
  )
  assert not _function(library, of_sequence).is_deterministic
  compiled = tff.tensorflow.computation(
    tf.function(lambda x: x + 1, jit_compile=True), np.int32
  )
  assert _function(library, compiled).program().asks_for_xla


def test_what_xla_cannot_compile_runs_without_it(library, caplog):
  caplog.set_level(logging.WARNING, logger='absl')

  @tf.function(jit_compile=True)
  def length(text):
    return tf.strings.length(text) + 1

  function = _function(library, tff.tensorflow.computation(length, np.str_))
  for _ in range(2):
    assert int(function(tf.constant('abc'))) == 4
  (warning,) = caplog.messages
  assert 'XLA cannot compile' in warning
  assert '\n' not in warning


def test_concurrent_calls_do_not_share_variables(library):
  function = _function(library, _counter())
  limits = [100 + 3 * i for i in range(40)]
  with concurrent.futures.ThreadPoolExecutor(8) as pool:
    results = pool.map(lambda limit: int(function(tf.constant(limit))), limits)
    assert list(results) == limits
