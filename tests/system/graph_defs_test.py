import pytest
import tensorflow as tf

from tff_pfl.system import graph_defs


def _in_function(build, jit_compile=None):
  def function():
    build()
    return 1

  return tf.function(function, autograph=False, jit_compile=jit_compile)


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


def _reduce(dataset):
  return dataset.reduce(tf.constant(0, tf.int64), lambda a, b: a + b)


@pytest.mark.parametrize(
  'place',
  [
    lambda build: build,
    lambda build: _in_function(build, jit_compile=True),
    _in_branch,
    lambda build: _in_function(_in_loop(_in_function(build))),
  ],
)
@pytest.mark.parametrize(
  ('build', 'is_deterministic'),
  [
    (lambda: tf.matmul(tf.ones([2, 2]), tf.ones([2, 2])), True),
    (lambda: tf.random.stateless_normal([2], [1, 2]), True),
    (lambda: tf.random.normal([2]), False),
    (
      lambda: tf.nn.fractional_max_pool(tf.ones([1, 8, 8, 1]), [1, 2, 2, 1]),
      False,
    ),
    (lambda: tf.py_function(lambda: 1, [], tf.int32), False),
    (lambda: _reduce(tf.data.Dataset.range(5).shuffle(2)), False),
    # Harmless, but stateful to TensorFlow.
    (lambda: tf.debugging.Assert(tf.constant(True), ['message']), False),
    (lambda: _reduce(tf.data.Dataset.range(5)), False),
  ],
)
def test_graphs_without_stateful_operations_are_deterministic(
  build, is_deterministic, place
):
  with tf.Graph().as_default() as graph:
    place(build)()
  assert graph_defs.is_deterministic(graph.as_graph_def()) == is_deterministic
