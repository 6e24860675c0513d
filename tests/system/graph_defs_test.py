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

  @tf.function(autograph=False, jit_compile=True)
  def inner(x):
    # The condition gets and does not use what the body uses.
    x = tf.while_loop(lambda v: v < 9, lambda v: v + number + 0 * x, [x])[0]
    # Its gradient has a number, which TensorFlow counts.
    return x + tf.cast(tf.nn.silu(0.0), tf.int32)

  inner._name = name
  with tf.Graph().as_default() as graph:
    tf.identity(inner(tf.compat.v1.placeholder(tf.int32, [])), name='result')
  return graph.as_graph_def()


def test_canonical_names_depend_on_the_graph_alone():
  first, second, other = (
    _graph_def(*arguments) for arguments in ((1, 'a'), (1, 'b'), (2, 'a'))
  )
  assert first != second
  names = [
    graph_defs.make_names_canonical(graph_def)
    for graph_def in (first, second, other)
  ]
  assert first == second
  assert names[0] == names[1]
  assert len({*names[0]}) == len(names[0]) == len(first.library.function) >= 3
  assert not {*names[0]} & {*names[2]}
  assert sorted(f.signature.name for f in first.library.function) == sorted(
    names[0]
  )

  def outcome(graph_def):
    with tf.Graph().as_default() as graph:
      x = tf.constant(4)
      (result,) = tf.graph_util.import_graph_def(
        graph_def, {'Placeholder:0': x}, ['result:0']
      )
      with tf.compat.v1.Session(graph=graph) as session:
        return session.run(result)

  assert [outcome(first), outcome(other)] == [9, 10]
  salted = graph_defs.make_names_canonical(_graph_def(1, 'a'), 'salt')
  assert not {*salted} & {*names[0]}
