"""A computation that holds a variable."""

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff


def counter():
  """A computation that counts up a variable, slowly, and returns it."""

  @tff.tensorflow.computation(np.int32)
  def count(limit):
    variable = tf.Variable(0)

    @tf.function
    def loop():
      while variable < limit:
        variable.assign_add(1)
      return variable.read_value()

    return loop()

  return count
