import pytest
import tensorflow as tf

from tff_pfl.runtime import graph_defs


def _graph_def(build):
  with tf.Graph().as_default() as graph:
    build()
  return graph.as_graph_def()


def _in_function(build, jit_compile=None):
  def function():
    build()
    return 1

  return tf.function(function, autograph=False, jit_compile=jit_compile)


def _in_compiled_function(build):
  return _in_function(build, jit_compile=True)


def _in_loop(build):
  def body(i):
    build()
    return i + 1

  return lambda: tf.while_loop(lambda i: i < 3, body, [0])


def _in_branch(build):
  def branch():
    build()
    return 1

  return lambda: tf.switch_case(tf.size([0]), [branch, lambda: 0])


_EVERYWHERE = pytest.mark.parametrize(
  'place',
  [
    lambda build: build,
    _in_function,
    _in_compiled_function,
    _in_loop,
    _in_branch,
    lambda build: _in_function(_in_loop(_in_function(build))),
  ],
)


@_EVERYWHERE
@pytest.mark.parametrize(
  'build',
  [
    lambda: tf.matmul(tf.ones([2, 2]), tf.ones([2, 2])),
    lambda: tf.random.stateless_normal([2], [1, 2]),
  ],
)
def test_graphs_without_stateful_operations_are_deterministic(build, place):
  assert graph_defs.is_deterministic(_graph_def(place(build)))


def _reduce(dataset):
  return dataset.reduce(tf.constant(0, tf.int64), lambda a, b: a + b)


@_EVERYWHERE
@pytest.mark.parametrize(
  'build',
  [
    lambda: tf.random.normal([2]),
    lambda: tf.random.shuffle([1, 2]),
    lambda: tf.nn.fractional_max_pool(tf.ones([1, 8, 8, 1]), [1, 2, 2, 1]),
    lambda: tf.timestamp(),
    lambda: tf.print('text'),
    lambda: tf.py_function(lambda: 1, [], tf.int32),
    lambda: tf.numpy_function(lambda: 1, [], tf.int32),
    lambda: tf.lookup.experimental.MutableHashTable(tf.string, tf.int32, 0),
    lambda: _reduce(tf.data.Dataset.range(5).shuffle(2)),
    lambda: _reduce(tf.data.Dataset.random().take(2)),
  ],
)
def test_graphs_that_depend_on_more_than_arguments_are_not(build, place):
  assert not graph_defs.is_deterministic(_graph_def(place(build)))


@pytest.mark.parametrize(
  'build',
  [
    lambda: tf.debugging.Assert(tf.constant(True), ['message']),
    lambda: _reduce(tf.data.Dataset.range(5)),
    lambda: tf.compat.v1.get_variable('v', initializer=1.0, use_resource=True),
  ],
)
def test_harmless_stateful_operations_are_cases_of_doubt(build):
  assert not graph_defs.is_deterministic(_graph_def(build))


def test_operations_that_nobody_knows_are_cases_of_doubt():
  graph_def = tf.compat.v1.GraphDef()
  graph_def.node.add(op='Unheard', name='of')
  assert not graph_defs.is_deterministic(graph_def)
