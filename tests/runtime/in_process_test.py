import gc
import weakref

import numpy as np
import pytest
import tensorflow as tf

from tests.methods import toy_problems
from tests.runtime import cases
from tff_pfl import errors, runtime
from tff_pfl import tff_api as tff
from tff_pfl.runtime import client_mapper, graph_programs, lowering

pytestmark = pytest.mark.timeout(60)


def _with_variable(x):
  variable = tf.Variable(2.0)
  with tf.control_dependencies([variable.assign_add(x)]):
    return variable.read_value()


def _with_table(x):
  seen = tf.lookup.experimental.MutableHashTable(tf.float32, tf.float32, -1)
  return seen.lookup(x)


_INCREMENT = tff.jax.computation(lambda x: x + 1, np.float32)


def _at_server(function):
  @tff.federated_computation(cases.SERVER_FLOAT)
  def comp(x):
    return tff.federated_map(function, tff.federated_map(function, x))

  return comp


def _in_tensorflow(function):
  return tff.tensorflow.computation(function, np.float32)


@tff.federated_computation(tff.SequenceType(np.float32))
def _sum_of_sequence(numbers):
  return tff.sequence_sum(numbers)


@tff.federated_computation(tff.SequenceType(np.float32))
def _doubles_of_sequence(numbers):
  return tff.sequence_map(cases.double, numbers)


@pytest.mark.parametrize(
  ('comp', 'missing'),
  [
    (_in_tensorflow(_with_variable), 'variables or hash tables'),
    (_at_server(_in_tensorflow(_with_table)), 'variables or hash tables'),
    (_INCREMENT, 'a local computation in xla, which no'),
    (_at_server(_INCREMENT), 'a local computation in xla, which no'),
    (_sum_of_sequence, 'the intrinsic sequence_sum, which no'),
    (_doubles_of_sequence, 'the intrinsic sequence_map'),
    (
      _in_tensorflow(lambda x: tf.data.Dataset.from_tensors(x)),
      r'a result of type float32\*',
    ),
  ],
)
def test_what_it_lacks_is_a_line_that_names_native_if_that_helps(
  rt, comp, missing
):
  with pytest.raises(errors.RunError, match=missing) as caught:
    rt.run(comp, 1.0)
  on_native = '--runtime=native' in str(caught.value)
  assert on_native == (not missing.endswith('which no'))
  assert '\n' not in str(caught.value)


def test_run_works_while_a_graph_is_traced(rt):
  with tf.Graph().as_default():
    assert rt.run(cases.sum_of_doubles, [1.0, 3.0]) == 8.0


def test_computation_in_a_callback_of_a_computation_does_not_deadlock():
  # As many callbacks at a time as TensorFlow has threads between operations
  # would wait for one another, with tf.functions in them as well.
  rt = runtime.create_runtime('in_process', max_concurrent_clients=1)

  def callback(x):
    return rt.run(cases.sum_of_doubles, [float(x)] * 5)

  @tff.tensorflow.computation(np.float32)
  def outer(x):
    return tf.ensure_shape(tf.py_function(callback, [x], tf.float32), [])

  with rt:
    comp = cases.at_clients(outer)
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

  @tff.federated_computation(cases.SERVER_FLOAT, cases.CLIENT_FLOATS)
  def comp(server, clients):
    at_clients = tff.federated_map(add_draw, tff.federated_broadcast(server))
    alone = tff.federated_eval(tff.tensorflow.computation(_draw), tff.CLIENTS)
    return tff.federated_zip((at_clients, clients)), alone

  with runtime.create_runtime('in_process', **options) as rt:
    pairs, alone = rt.run(comp, 1.0, [0.0] * 5)
  assert len({pair[0] for pair in pairs}) == 5
  assert len(set(alone)) == 5


def test_deterministic_function_of_equal_arguments_is_called_once(rt, computed):
  @tff.federated_computation(cases.SERVER_FLOAT, cases.CLIENT_FLOATS)
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
    lambda v: tff.federated_sum(v), cases.CLIENT_FLOATS
  )
  for n in range(1, 4):
    assert rt.run(comp, [1.0] * n) == n
  assert len(lowered) == 1


def test_computations_that_are_gone_are_forgotten(rt, monkeypatch):
  monkeypatch.setattr(graph_programs, '_MAX_KEPT', 0)
  programs = weakref.WeakSet()
  # Other tests' computations have some of the same graphs.
  shared = weakref.WeakSet(graph_programs._shared.values())
  load = graph_programs.load_graph

  def record(*arguments):
    program = load(*arguments)
    if program not in shared:
      programs.add(program)
    return program

  monkeypatch.setattr(graph_programs, 'load_graph', record)

  process = toy_problems.linear('fed_avg')

  def run_on(created, process):
    state = created.run(process.initialize)
    states = created.run(process.initialize_client_states, [0, 1])
    data = toy_problems.padded(toy_problems.CLIENTS)
    created.run(process.next, state, states, data)
    assert programs

  # A closed runtime keeps nothing of a process that goes on.
  with runtime.create_runtime('in_process', batched_clients=True) as other:
    run_on(other, process)
  gc.collect()
  assert not programs
  run_on(rt, process)
  computation = weakref.ref(process.next)
  del process
  gc.collect()
  assert computation() is None
  assert not programs
