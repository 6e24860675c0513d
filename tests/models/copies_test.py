import numpy as np
import pytest
import tensorflow as tf

from tests.methods import toy_problems
from tff_pfl.datasets import examples as examples_lib
from tff_pfl.models import copies, zoo


@pytest.fixture(name='model', scope='module')
def _model():
  spec = examples_lib.element_spec(tf.TensorSpec([6], tf.int32))
  return zoo.text_lstm(spec, 9, units=8)


def test_drawn_apart_copies_are_initial_weights_of_the_same_kind(model):
  both = copies.components(model, 2)
  initial = both.parts(copies.drawn_apart(both, seed=3))
  for name, value in model.initial_weights.items():
    np.testing.assert_array_equal(initial['component_0'][name], value)
    other = initial['component_1'][name]
    np.testing.assert_array_equal(
      np.sort(other, axis=None), np.sort(value, axis=None)
    )
    # An LSTM's bias is 1 at its forget gates, and must be at the other's, too.
    assert np.array_equal(other, value) == (value.ndim < 2), name
  name = 'lstm_1/lstm_cell/recurrent_kernel'
  kernel = initial['component_1'][name]
  np.testing.assert_allclose(kernel @ kernel.T, np.eye(8), atol=1e-5)
  again, other = (both.parts(copies.drawn_apart(both, seed)) for seed in (3, 4))
  toy_problems.assert_same(again, initial)
  assert toy_problems.differ(other, initial)


def test_part_of_some_weights_are_those_of_the_copy_that_are_there(model):
  both = copies.components(model, 2)
  joined = copies.drawn_apart(both, seed=0)
  some = {n: v for n, v in joined.items() if '/head/' in n}
  assert list(both.part(some, 'component_1')) == ['head/kernel', 'head/bias']
