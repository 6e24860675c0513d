import collections

import numpy as np
import pytest
import tensorflow_federated as tff

from tff_pfl.core import collecting

pytestmark = pytest.mark.usefixtures('runtime')


def test_values_are_stacked_and_too_many_of_them_refused():
  process = collecting.StackFactory(2).create(
    tff.to_type(collections.OrderedDict(a=np.float32, b=(np.int32, [2]))),
    tff.TensorType(np.float32),
  )
  values = [{'a': 1.0, 'b': [2, 3]}, {'a': 4.0, 'b': [5, 6]}]

  def stacked(values, weights):
    return process.next(process.initialize(), values, weights).result

  both = stacked(values, [1.0, 7.0])
  np.testing.assert_array_equal(both['a'], [1, 4])
  np.testing.assert_array_equal(both['b'], [[2, 3], [5, 6]])
  # Who has no weight is left out; empty slots are zeros.
  second = stacked(values, [0.0, 7.0])
  np.testing.assert_array_equal(second['a'], [4, 0])
  np.testing.assert_array_equal(second['b'], [[5, 6], [0, 0]])
  nobody = stacked(values, [0.0, 0.0])
  np.testing.assert_array_equal(nobody['b'], np.zeros([2, 2]))
  with pytest.raises(Exception, match='found 2 and clients'):
    stacked(values * 2, [1.0] * 4)
