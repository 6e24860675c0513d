import gc
import weakref

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.runtime import cases
from tff_pfl import errors, runtime
from tff_pfl.runtime import client_mapper, lowering

pytestmark = pytest.mark.timeout(60)

_CLIENT_FLOATS = tff.FederatedType(np.float32, tff.CLIENTS)
_CLIENT_INTS = tff.FederatedType(np.int32, tff.CLIENTS)
_SERVER_FLOAT = tff.FederatedType(np.float32, tff.SERVER)


# Errors.


def test_different_numbers_of_clients_are_refused(rt):
  @tff.federated_computation(_CLIENT_INTS, _CLIENT_INTS)
  def comp(a, b):
    return tff.federated_zip((a, b))

  with pytest.raises(ValueError, match='Conflicting cardinalities'):
    rt.run(comp, [1, 2], [1])


def test_unsupported_intrinsic_is_named_in_one_line(rt):
  intrinsic = tff.framework.Intrinsic(
    'generic_zero', tff.FunctionType(np.int32, np.int32)
  )
  comp = tff.framework.ConcreteComputation.from_building_block(intrinsic)
  with pytest.raises(errors.RunError, match='generic_zero') as caught:
    rt.run(comp, 1)
  assert '\n' not in str(caught.value)


_INCREMENT = tff.jax.computation(lambda x: x + 1, np.int32)


@tff.federated_computation(tff.FederatedType(np.int32, tff.SERVER))
def _increment_twice(x):
  return tff.federated_map(_INCREMENT, tff.federated_map(_INCREMENT, x))


@pytest.mark.parametrize('comp', [_INCREMENT, _increment_twice])
def test_computation_that_is_not_tensorflow_is_refused_in_one_line(rt, comp):
  with pytest.raises(errors.RunError, match='local computation in xla') as e:
    rt.run(comp, 1)
  assert '\n' not in str(e.value)


# Threads.


@tff.federated_computation(_CLIENT_FLOATS)
def _sum_of_doubles(values):
  return tff.federated_sum(tff.federated_map(cases.double, values))


def test_run_works_while_a_graph_is_traced(rt):
  with tf.Graph().as_default():
    assert rt.run(_sum_of_doubles, [1.0, 3.0]) == 8.0


def test_computation_in_a_callback_of_a_computation_does_not_deadlock():
  # As many callbacks at a time as TensorFlow has threads between operations
  # would wait for one another, with tf.functions in them as well.
  rt = runtime.create_runtime('in_process', max_concurrent_clients=1)

  def callback(x):
    return rt.run(_sum_of_doubles, [float(x)] * 5)

  @tff.tensorflow.computation(np.float32)
  def outer(x):
    return tf.ensure_shape(tf.py_function(callback, [x], tf.float32), [])

  @tff.federated_computation(_CLIENT_FLOATS)
  def comp(values):
    return tff.federated_map(outer, values)

  with rt:
    assert rt.run(comp, [1.0, 2.0, 3.0]) == [10.0, 20.0, 30.0]


# What is kept from one computation to the next.


@pytest.fixture(name='computed')
def _computed(monkeypatch):
  """The functions that clients computed, one entry for each client."""
  calls = []
  original = client_mapper.ClientMapper.map

  def count(self, function, argument, num_clients):
    calls.extend([function] * num_clients)
    return original(self, function, argument, num_clients)

  monkeypatch.setattr(client_mapper.ClientMapper, 'map', count)
  return calls


def _draw():
  return tf.random.uniform([])


@pytest.mark.parametrize('options', [{}, {'batched_clients': True}])
def test_each_client_draws_where_all_have_equal_arguments(options):
  add_draw = tff.tensorflow.computation(lambda x: x + _draw(), np.float32)

  @tff.federated_computation(_SERVER_FLOAT, _CLIENT_FLOATS)
  def comp(server, clients):
    at_clients = tff.federated_map(add_draw, tff.federated_broadcast(server))
    alone = tff.federated_eval(tff.tensorflow.computation(_draw), tff.CLIENTS)
    return tff.federated_zip((at_clients, clients)), alone

  with runtime.create_runtime('in_process', **options) as rt:
    pairs, alone = rt.run(comp, 1.0, [0.0] * 5)
  assert len({pair[0] for pair in pairs}) == 5
  assert len(set(alone)) == 5


def test_deterministic_function_of_equal_arguments_is_called_once(rt, computed):
  @tff.federated_computation(_SERVER_FLOAT, _CLIENT_FLOATS)
  def comp(server, clients):
    return tff.federated_map(
      cases.add,
      (
        tff.federated_map(cases.double, tff.federated_broadcast(server)),
        clients,
      ),
    )

  assert rt.run(comp, 1.0, [0.0, 1.0]) == [2.0, 3.0]
  assert len(computed) == 2


def test_computation_is_lowered_once(rt, monkeypatch):
  lowered = []
  original = lowering.lower

  def count(computation):
    lowered.append(computation)
    return original(computation)

  monkeypatch.setattr(lowering, 'lower', count)
  comp = tff.federated_computation(
    lambda v: tff.federated_sum(v), _CLIENT_FLOATS
  )
  for n in range(1, 4):
    assert rt.run(comp, [1.0] * n) == n
  assert len(lowered) == 1


def test_computations_that_are_gone_are_forgotten(rt):
  def build_and_run(i):
    comp = tff.tensorflow.computation(lambda: tf.constant(i))
    assert rt.run(comp) == i
    return weakref.ref(comp)

  built = [build_and_run(i) for i in range(5)]
  gc.collect()
  assert all(reference() is None for reference in built)
