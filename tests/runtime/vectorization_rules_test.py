import functools

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.core import shared
from tff_pfl.core import example_tensors, vectorization
from tff_pfl.models import randomness
from tff_pfl.runtime import (
  devices,
  vectorization_rules,  # noqa: F401 (adds rules)
)
from tff_pfl.system import graph_defs

layers = keras.layers

_NUM_EXAMPLES = (30, 25, 17, 30)


def _small_network():
  """With seeds and moving statistics alone."""
  return shared.bridge(
    layers.BatchNormalization(momentum=0.5, name='norm'),
    layers.Dropout(0.25),
    layers.Dense(3, name='head'),
    shape=(6,),
  )


@pytest.mark.parametrize(
  ('make', 'length', 'jit_compile'),
  [
    (_small_network, {'num_epochs': 3}, False),
    *(
      pytest.param(
        functools.partial(shared.network, 'auto'),
        length,
        True,
        marks=pytest.mark.slow,
      )
      for length in ({'num_epochs': 3}, {'num_steps': 7})
    ),
  ],
)
def test_clients_of_different_sizes_train_as_they_do_alone(
  make, length, jit_compile
):
  network = make()
  phase = shared.phase(momentum=0.9, batch_size=8, **length)

  def train(x, y, num_examples, seed):
    examples = example_tensors.ExampleTensors(x, y, num_examples)
    return shared.train(network, examples, phase, seed)

  @tf.function(jit_compile=jit_compile)
  def train_together(clients):
    return tf.vectorized_map(
      lambda client: train(*client), clients, fallback_to_while_loop=False
    )

  clients = tf.nest.map_structure(
    lambda *values: tf.stack(values),
    *(
      (*shared.client(n, seed=i, capacity=32)[:3], tf.constant([7, i]))
      for i, n in enumerate(_NUM_EXAMPLES)
    ),
  )
  together = train_together(clients)
  alone = tf.function(train)
  for i in range(len(_NUM_EXAMPLES)):
    shared.assert_close(
      tf.nest.map_structure(lambda value, i=i: value[i], together),
      alone(*(value[i] for value in clients)),
      atol=1e-5,
    )


def test_the_longest_of_the_clients_is_shared_by_all():
  def steps(num_steps):
    assert num_steps.shape == []
    return vectorization.longest(num_steps) - num_steps

  together = tf.vectorized_map(steps, tf.constant([3, 5, 4]))
  np.testing.assert_array_equal(together, [2, 0, 1])
  assert vectorization.longest(tf.constant(3)) == 3


@pytest.mark.parametrize('traced_for', [None, '/device:GPU:0'])
def test_each_client_makes_its_steps_of_a_loop_for_all(traced_for):
  # For a GPU, five steps in a pass, and the rest one by one.
  def client(number, start):
    def step(index, value, passes):
      changed = 0.5 * value + tf.cast(index, tf.float32)
      value = vectorization.change_if(index < number, changed, value)
      return value, passes + 1

    initial = vectorization.apart((start, tf.zeros([])), number)
    return vectorization.repeat(number, step, initial)

  @tf.function
  def together(*clients):
    return tf.vectorized_map(
      lambda own: client(*own), clients, fallback_to_while_loop=False
    )

  starts = tf.constant([1.0, 2.0, 3.0])
  with devices.tracing_for(traced_for):
    traced = together.get_concrete_function(tf.constant([0, 0, 0]), starts)
  kinds = [
    node.op for node in graph_defs.all_nodes(traced.graph.as_graph_def())
  ]
  # TensorFlow's own rule would put the body into a condition.
  assert not {'If', 'StatelessIf'} & set(kinds)
  num_loops = sum(kind in ('While', 'StatelessWhile') for kind in kinds)
  # One is the client's own, which nothing uses any more.
  assert num_loops == (3 if traced_for else 2)
  for num_steps in ((3, 21, 0), (5, 5, 5), (0, 0, 0)):
    actual, passes = traced(tf.constant(num_steps), starts)
    for value, start, number in zip(actual.numpy(), starts.numpy(), num_steps):
      for index in range(number):
        start = np.float32(0.5) * start + np.float32(index)
      assert value == start
    assert set(passes.numpy()) == {max(num_steps)}


def test_random_integers_of_many_seeds_are_those_of_each():
  seeds = tf.constant([[1, 2], [3, -4], [2**31 - 1, 0]])

  def draw(seed):
    return randomness.uniform_integers(
      randomness.fold_in(seed, 5), [3, 7], 1000
    )

  together = tf.vectorized_map(draw, seeds, fallback_to_while_loop=False)
  np.testing.assert_array_equal(together, [draw(seed) for seed in seeds])
