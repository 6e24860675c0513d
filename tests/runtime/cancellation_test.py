import concurrent.futures
import threading
import time

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tff_pfl.runtime import cancellation, graph_functions


def test_cancellation_ends_calls_in_its_scopes():
  @tff.tensorflow.computation(np.int64)
  def count(limit):
    return tf.data.Dataset.range(limit).reduce(
      np.int64(0), lambda total, x: total + x
    )

  library = graph_functions.FunctionLibrary()
  function = library.function(count.to_compiled_building_block())
  outer = cancellation.Cancellation()

  def compute():
    with outer.scope(), cancellation.Cancellation().scope():
      with pytest.raises(tf.errors.CancelledError):
        function(tf.constant(10**12, tf.int64))

  with concurrent.futures.ThreadPoolExecutor(1) as pool:
    future = pool.submit(compute)
    time.sleep(0.2)
    outer.cancel()
    future.result(timeout=5)
  assert outer.is_cancelled
  assert cancellation.Cancellation.current() is None
  assert int(function(tf.constant(3, tf.int64))) == 3


def test_scope_is_that_of_a_thread():
  mine = cancellation.Cancellation()
  seen = []
  with mine.scope():
    assert cancellation.Cancellation.current() is mine
    thread = threading.Thread(
      target=lambda: seen.append(cancellation.Cancellation.current())
    )
    thread.start()
    thread.join()
  assert seen == [None]
