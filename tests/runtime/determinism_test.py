import pytest
import tensorflow as tf

from tff_pfl.runtime import determinism


def _graph_def(build):
  with tf.Graph().as_default() as graph:
    build()
  return graph.as_graph_def()


def _in_function(build):
  return lambda: tf.function(build, autograph=False)()


def _reduce(transform):
  def build():
    dataset = transform(tf.data.Dataset.range(5))
    return dataset.reduce(tf.constant(0, tf.int64), lambda a, b: a + b)

  return build


def _loop():
  return tf.while_loop(lambda i: i < 3, lambda i: [i + 1], [0])


def _assert():
  tf.debugging.Assert(tf.constant(True), ['message'])


@pytest.mark.parametrize(
  'build',
  [
    lambda: tf.matmul(tf.ones([2, 2]), tf.ones([2, 2])),
    _loop,
    _assert,
    lambda: tf.random.stateless_normal([2], [1, 2]),
    lambda: tf.random.experimental.stateless_shuffle([1, 2], [1, 2]),
    _reduce(lambda d: d.map(lambda x: 2 * x).batch(2).unbatch().repeat(2)),
    lambda: tf.function(lambda: tf.ones([2]) * 2, jit_compile=True)(),
  ],
)
def test_pure_graphs_are_deterministic(build):
  assert determinism.is_deterministic(_graph_def(build))
  assert determinism.is_deterministic(_graph_def(_in_function(build)))


def _options(dataset):
  options = tf.data.Options()
  options.deterministic = False
  return dataset.with_options(options)


def _print():
  tf.print('text')


@pytest.mark.parametrize(
  'build',
  [
    lambda: tf.random.normal([2]),
    lambda: tf.random.shuffle([1, 2]),
    lambda: tf.timestamp(),
    _print,
    lambda: tf.io.read_file('path'),
    lambda: tf.py_function(lambda: 1, [], tf.int32),
    lambda: tf.numpy_function(lambda: 1, [], tf.int32),
    _reduce(lambda d: d.shuffle(2, seed=1)),
    _reduce(
      lambda d: d.map(lambda x: x + tf.random.uniform([], 0, 9, x.dtype))
    ),
    _reduce(
      lambda d: d.map(lambda x: x, num_parallel_calls=2, deterministic=False)
    ),
    _reduce(_options),
    _reduce(lambda d: d.concatenate(tf.data.Dataset.random())),
  ],
)
def test_graphs_that_depend_on_more_than_arguments_are_not(build):
  assert not determinism.is_deterministic(_graph_def(build))
  assert not determinism.is_deterministic(_graph_def(_in_function(build)))


def test_variables_are_deterministic_only_where_the_graph_sets_them():
  def build():
    variable = tf.compat.v1.get_variable(
      'v', initializer=1.0, use_resource=True
    )
    return variable.assign_add(1.0)

  graph_def = _graph_def(build)
  assert not determinism.is_deterministic(graph_def)
  assert determinism.is_deterministic(graph_def, sets_resources=True)
