import keras
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


def _graph_def(number, name):
  """The graph of a function that calls another one, which has a name."""
  # Keras counts the layers.
  model = keras.Sequential(
    [keras.layers.Dense(1, kernel_initializer='ones', activation='silu')]
  )
  model.build([1, 1])
  weights = [[1.0]], [0.0]

  @tf.function(autograph=False, jit_compile=True)
  def inner(x, kernel, bias):
    # The condition gets and does not use what the body uses.
    x = tf.while_loop(lambda v: v < 9, lambda v: v + number + 0 * x, [x])[0]
    # The gradient of the activation has a number, which TensorFlow counts.
    y, _ = model.stateless_call([kernel, bias], [], tf.zeros([1, 1]))
    return x + tf.cast(y[0, 0], tf.int32)

  inner._name = name
  with tf.Graph().as_default() as graph:
    x = tf.compat.v1.placeholder(tf.int32, [])
    # As one family of names, `x`, `x_1` and `x_1_1` stay apart.
    for name in ('x', 'x_1_1', 'x_1'):
      x = tf.add(x, number, name=name)
    result = inner(x, *map(tf.constant, weights))
  return graph.as_graph_def(), ['Placeholder:0', result.name]


def test_canonical_names_depend_on_the_graph_alone():
  (first, tensors), (second, _), (other, _), (salted, _) = (
    _graph_def(*arguments)
    for arguments in ((1, 'a'), (1, 'b'), (2, 'a'), (1, 'a'))
  )
  assert first != second

  def make_canonical(graph_def, *salt):
    return graph_defs.make_names_canonical(graph_def, tensors, *salt)

  (names, feeds_and_fetches), second_names, (other_names, _) = map(
    make_canonical, (first, second, other)
  )
  assert first == second
  assert (names, feeds_and_fetches) == second_names
  assert len({*names}) == len(names) == len(first.library.function) >= 3
  assert not {*names} & {*other_names}
  assert sorted(f.signature.name for f in first.library.function) == sorted(
    names
  )

  def outcome(graph_def):
    feed, fetch = feeds_and_fetches
    with tf.Graph().as_default() as graph:
      (result,) = tf.graph_util.import_graph_def(
        graph_def, {feed: tf.constant(0)}, [fetch]
      )
      with tf.compat.v1.Session(graph=graph) as session:
        return session.run(result)

  # From 3 in steps of 1, and from 6 in steps of 2.
  assert [outcome(first), outcome(other)] == [9, 10]
  assert not {*make_canonical(salted, 'salt')[0]} & {*names}
