"""Tests of client work that is vectorized over clients."""

import numpy as np
import pytest
import tensorflow as tf

from tests.client import shared
from tff_pfl.client import example_tensors, vectorization

_NUM_EXAMPLES = (30, 25, 17, 30)


@pytest.mark.parametrize(
  ('length', 'jit_compile'),
  [
    pytest.param({'num_epochs': 3}, False, id='plain'),
    pytest.param({'num_epochs': 3}, True, id='xla', marks=pytest.mark.slow),
    pytest.param({'num_steps': 7}, True, id='steps', marks=pytest.mark.slow),
  ],
)
def test_clients_of_different_sizes_train_as_they_do_alone(length, jit_compile):
  # With dropout and batch normalization: seeds and moving statistics.
  network = shared.network('auto')
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
      (*shared.client(n, seed=i, capacity=32), tf.constant([7, i]))
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
