import collections
import gc
import logging
import weakref

import keras
import numpy as np
import pytest
import tensorflow as tf
from google.protobuf import text_format

import tff_pfl as pfl
from tests.runtime import cases
from tff_pfl import tff_api as tff
from tff_pfl.runtime import graph_functions, graph_programs, lowering, values
from tff_pfl.system.private_api import eager_context

_FLOAT = tff.TensorType(np.float32)


@pytest.fixture(name='library')
def _library():
  return graph_functions.FunctionLibrary()


def _function(library, computation):
  return library.function(computation.to_compiled_building_block())


@tff.tensorflow.computation(np.float32, np.float32)
def _decay(total, x):
  return 0.5 * total + x


def test_equal_graphs_are_loaded_once(library):
  def build(number):
    inner = tf.function(lambda x: x + number, autograph=False)
    return tff.tensorflow.computation(inner, np.int32)

  comp = build(1)
  first, second, other = (_function(library, c) for c in (comp, comp, build(2)))
  assert first is second is not other
  assert [int(f(tf.constant(1))) for f in (first, other)] == [2, 3]


def _increment(name, jit_compile=None):
  """A computation whose graph differs from others only in a function's name."""
  inner = tf.function(
    lambda x: tf.nn.silu(x) + 1, autograph=False, jit_compile=jit_compile
  )
  inner._name = name
  return tff.tensorflow.computation(inner, np.float32)


def _names_of(program):
  return [*program.concrete.graph._functions]


def test_the_programs_loaded_last_stay_for_the_next_library(monkeypatch):
  monkeypatch.setattr(graph_programs, '_MAX_KEPT', 2)
  first = weakref.ref(
    _function(graph_functions.FunctionLibrary(), _increment('first')).program()
  )
  names = [first().concrete.name, *_names_of(first())]
  has_function = eager_context.context().has_function
  assert len(names) > 1 and all(map(has_function, names))
  gc.collect()
  library = graph_functions.FunctionLibrary()
  second = _function(library, _increment('second'))
  assert second.program() is first()
  assert float(second(tf.constant(0.0))) == 1
  del second
  for compute in (lambda x: 2 * x, lambda x: 3 * x):
    computation = tff.tensorflow.computation(compute, np.int32)
    _function(library, computation).program()
  gc.collect()
  assert first() is None
  assert not any(map(has_function, names))
  graph_programs._kept.clear()


def test_graphs_with_other_constants_have_the_same_functions(library):
  inner = tf.function(lambda x, y: x - y, autograph=False)

  def subtract(number):
    computation = tff.tensorflow.computation(
      lambda x: inner(x, tf.constant(number)), np.int32
    )
    return _function(library, computation)

  one, other = map(subtract, (1, 2))
  assert [int(function(tf.constant(5))) for function in (one, other)] == [4, 3]
  assert _names_of(one.program()) == _names_of(other.program()) != []


def test_a_model_that_is_made_again_has_the_same_functions(library):
  # XLA compiles a function anew if it, or a part of it, has another name.
  def functions():
    scores = keras.layers.Dense(3)
    network = keras.Sequential(
      [keras.Input([5, 2]), keras.layers.LSTM(4), keras.layers.Dense(4), scores]
    )
    model = pfl.from_keras(
      network,
      head_layers=[scores.name],
      loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    process = pfl.build('fed_avg', model)
    return {
      name
      for computation in (process.next, process.evaluate_clients)
      for block in cases.blocks(
        lowering.lower(computation), tff.framework.CompiledComputation
      )
      for name in _names_of(library.function(block).program())
    }

  first, second = functions(), functions()
  assert first == second
  assert len(first) > 10


def test_functions_stay_as_long_as_one_of_several_graphs_has_them(monkeypatch):
  monkeypatch.setattr(graph_programs, '_MAX_KEPT', 0)
  # The same functions with other bindings.
  inner = tf.function(lambda x, y: x - y, autograph=False)
  one, other = (
    _function(graph_functions.FunctionLibrary(), computation)
    for computation in (
      tff.tensorflow.computation(lambda x, y: inner(x, y), np.int32, np.int32),
      tff.tensorflow.computation(
        lambda x, y: (inner(x, y), 1), np.int32, np.int32
      ),
    )
  )
  arguments = tf.constant(5), tf.constant(3)
  assert int(one(arguments)) == int(other(arguments)[0]) == 2
  assert _names_of(one.program())
  del one
  gc.collect()
  assert int(other(arguments)[0]) == 2
  names = _names_of(other.program())
  del other
  gc.collect()
  assert not {*names} & {*graph_programs._num_loaded}


def test_other_options_of_calls_have_other_programs():
  library = graph_functions.FunctionLibrary()
  before = _function(library, _increment('x')).program()
  options = tf.config.optimizer.get_experimental_options()
  is_enabled = options.get('constant_folding', True)
  try:
    tf.config.optimizer.set_experimental_options(
      {'constant_folding': not is_enabled}
    )
    library = graph_functions.FunctionLibrary()
    after = _function(library, _increment('x')).program()
  finally:
    tf.config.optimizer.set_experimental_options(
      {'constant_folding': is_enabled}
    )
  assert before is not after
  assert not {*_names_of(before)} & {*_names_of(after)}


def test_random_graphs_begin_anew_in_the_next_library():
  @tff.tensorflow.computation
  def draw():
    return tf.random.uniform([], seed=1)

  one, other = (
    _function(graph_functions.FunctionLibrary(), draw) for _ in range(2)
  )
  assert one is not other
  assert float(one()) == float(other()) != float(one())


def test_an_operation_may_wait_for_an_argument_alone(library):
  @tff.tensorflow.computation(np.int32, np.int32)
  def second(x, y):
    with tf.control_dependencies([x.op]):
      return tf.identity(y)

  function = _function(library, second)
  graph_def = tf.compat.v1.GraphDef()
  second.to_compiled_building_block().proto.tensorflow.graph_def.Unpack(
    graph_def
  )
  inputs = [name for node in graph_def.node for name in node.input]
  assert any(name.startswith('^') for name in inputs)
  assert int(function((tf.constant(1), tf.constant(2)))) == 2


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


@pytest.mark.parametrize('num_rows', [0, 1, 16, 21])
def test_fold_accumulates_in_order(num_rows, library):
  function = _function(library, _decay)
  expected = np.float32(4)
  for i in range(num_rows):
    expected = np.float32(0.5) * expected + np.float32(i)
  rows = [tf.constant(float(i)) for i in range(num_rows)]
  actual = function.fold(tf.constant(4.0), values.PerClient(rows), num_rows)
  assert actual.numpy() == expected


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
  actual = function.fold(tf.constant(4.0), stacked, num_rows)
  assert actual.numpy() == expected.numpy()


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


def test_what_is_known_about_a_function(library):
  plain = _function(library, _decay)
  assert plain.is_deterministic
  assert plain.is_tensor_function
  assert not plain.program().asks_for_xla
  arguments = values.flatten((tf.constant(1.0), tf.constant(2.0)))
  assert float(plain.pack(plain.program().concrete(*arguments))) == 2.5
  random = tff.tensorflow.computation(lambda: tf.random.uniform([]))
  assert not _function(library, random).is_deterministic
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
