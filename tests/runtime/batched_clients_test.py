"""Tests of clients that run as one program."""

import dataclasses
import functools

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.methods import toy_problems
from tests.runtime import cases
from tff_pfl import datasets, runtime
from tff_pfl import tff_api as tff
from tff_pfl.core import private_mean
from tff_pfl.methods import registry
from tff_pfl.models import zoo
from tff_pfl.runtime import (
  batched_clients,
  client_mapper,
  graph_functions,
  in_process,
  ray_actor,
)

# Three clients of bucket 32, and one without examples, alone in bucket 16.
_NUM_EXAMPLES = (20, 31, 0, 25)


@pytest.fixture(name='one_by_one', scope='module')
def _one_by_one():
  with runtime.create_runtime('in_process', batched_clients=False) as created:
    yield created


@pytest.fixture(name='batched', scope='module')
def _batched():
  with runtime.create_runtime(
    'in_process', batched_clients=True, max_concurrent_clients=1
  ) as created:
    yield created


@pytest.fixture(name='batch_sizes')
def _batch_sizes(monkeypatch):
  """How many clients each program has, and how many with padding."""
  sizes = []
  padded_size = batched_clients._padded_size

  def record(num_clients):
    sizes.append((num_clients, padded_size(num_clients)))
    return sizes[-1][1]

  monkeypatch.setattr(batched_clients, '_padded_size', record)
  return sizes


def _examples(shape, num_examples=_NUM_EXAMPLES):
  rng = np.random.default_rng(0)
  return [
    datasets.Examples(
      rng.standard_normal([n, *shape]).astype(np.float32),
      rng.integers(0, 3, [n]).astype(np.int32),
    )
    for n in num_examples
  ]


def _clients(shape, num_examples=_NUM_EXAMPLES):
  return toy_problems.padded(_examples(shape, num_examples))


def _element_spec(shape):
  return {
    'x': tf.TensorSpec(shape, tf.float32),
    'y': tf.TensorSpec([], tf.int32),
  }


def _round(created, process, clients):
  states = created.run(process.initialize_client_states, [*range(len(clients))])
  state = created.run(process.initialize)
  return created.run(process.next, state, states, clients)


def _assert_close(found, expected):
  def check(a, b):
    if isinstance(b, bytes):  # A description of the noise.
      assert a == b
    else:
      np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)

  tf.nest.map_structure(check, found, expected)


@pytest.mark.parametrize(
  ('name', 'options'),
  [
    *(
      pytest.param(name, {}, marks=pytest.mark.slow)
      for name in registry.ALGORITHMS
    ),
    ('fed_avg', {'max_gradient_norm': 0.5}),
    (
      'fed_avg',
      {
        'aggregator': private_mean.PrivateMeanFactory(1.0, len(_NUM_EXAMPLES)),
        'client_weighting': 'uniform',
      },
    ),
  ],
)
def test_a_round_gives_what_it_gives_one_by_one(
  name, options, one_by_one, batched, monkeypatch
):
  model = dataclasses.replace(
    zoo.mlp(_element_spec([4]), 3, widths=(8,)), jit_compile=True
  )
  process = registry.build(name, toy_problems.model_for(name, model), **options)
  clients = toy_problems.padded(toy_problems.examples_for(name, _examples([4])))
  expected = _round(one_by_one, process, clients)

  def fail(message, *arguments):
    raise AssertionError(message % arguments)

  # The warning that clients cannot run as one program.
  monkeypatch.setattr(batched_clients.logging, 'warning', fail)
  _assert_close(_round(batched, process, clients), expected)


@pytest.mark.slow
def test_networks_with_convolutions_are_one_program(
  one_by_one, batched, batch_sizes
):
  network = keras.Sequential(
    [
      keras.layers.Input([8, 8, 2]),
      keras.layers.Conv2D(4, 3, 2, padding='same', activation='relu'),
      keras.layers.BatchNormalization(),
      keras.layers.MaxPool2D(),
      keras.layers.Conv2D(3, 2, activation='relu'),
      keras.layers.Flatten(),
      keras.layers.Dense(3, name='head'),
    ]
  )
  process = registry.build('fed_rep', toy_problems.classifier_from(network))
  clients = _clients([8, 8, 2], (20, 17, 31))
  actual = _round(batched, process, clients)
  # All have one shape.
  assert not batch_sizes
  _assert_close(actual, _round(one_by_one, process, clients))


def test_clients_of_one_bucket_are_a_batch(batched, batch_sizes):
  squares = _map(lambda x: tf.reduce_sum(x * x))
  sizes = [4, 2, 4, 4, 2, 3]
  vectors = [np.arange(n, dtype=np.float32) for n in sizes]
  expected = [float(v @ v) for v in vectors]
  assert batched.run(squares, vectors) == expected
  batch_sizes.clear()
  assert batched.run(squares, vectors) == expected
  # One is no batch.
  assert batch_sizes == [(3, 4), (2, 4)]


def test_few_programs_serve_all_numbers_of_clients():
  sizes = [batched_clients._padded_size(number) for number in range(1, 257)]
  assert sorted(set(sizes)) == [1, 4, 16, 64, 256]
  assert all(
    number <= size < 4 * number for number, size in enumerate(sizes, 1)
  )


@pytest.fixture(name='as_on_gpu')
def _as_on_gpu(monkeypatch):
  """A runtime that takes the CPU for a GPU; the warnings of it."""
  said = []
  for module in (client_mapper, batched_clients):
    monkeypatch.setattr(
      module.devices_lib, 'is_gpu', lambda device: device is not None
    )
  monkeypatch.setattr(
    batched_clients.logging,
    'warning',
    lambda message, *arguments: said.append(message % arguments),
  )
  with runtime.create_runtime('in_process', max_concurrent_clients=1) as made:
    yield made, said


def _map(function):
  """A computation that maps a function of `[?]` vectors at clients."""
  vector = tff.TensorType(np.float32, [None])
  return cases.at_clients(tff.tensorflow.computation(function, vector))


_VECTORS = [np.float32([1, -2, 3]), np.float32([4, 5, 6]), np.float32([7])]


def test_results_of_different_shapes_come_one_by_one(as_on_gpu):
  created, said = as_on_gpu
  actual = created.run(_map(lambda x: tf.boolean_mask(x, x > 0)), _VECTORS)
  assert [row.tolist() for row in actual] == [[1, 3], [4, 5, 6], [7]]
  assert len(said) == 1
  assert 'one by one' in said[0]


def test_what_xla_cannot_compile_is_one_program_without_it(as_on_gpu):
  created, said = as_on_gpu
  actual = created.run(_map(lambda x: tf.math.special.dawsn(x)), _VECTORS)
  for row, vector in zip(actual, _VECTORS):
    np.testing.assert_allclose(row, tf.math.special.dawsn(vector))
  assert not said


def test_checks_are_not_compiled_away(as_on_gpu):
  created, _ = as_on_gpu

  def checked(x):
    with tf.control_dependencies([tf.debugging.assert_less(x, 6.5, 'large')]):
      return tf.identity(x)

  with pytest.raises(tf.errors.InvalidArgumentError, match='large'):
    created.run(_map(checked), _VECTORS)

  # Nor those of aggregations.
  @tff.federated_computation(tff.FederatedType(np.int32, tff.CLIENTS))
  def total(values):
    doubled = tff.federated_map(
      tff.tensorflow.computation(lambda x: 2 * x, np.int32), values
    )
    return tff.federated_secure_sum(doubled, 10), doubled

  assert created.run(total, [1, 2])[0] == 6
  with pytest.raises(tf.errors.InvalidArgumentError, match='maximum'):
    created.run(total, [1, 400])


def _with_memory_for(most, monkeypatch):
  """Lets programs of more clients fail; returns the sizes that are tried."""
  call = batched_clients._Form.__call__
  sizes = []

  def call_small(form, tensors, device):
    sizes.append(int(tensors[0].shape[0]))
    if sizes[-1] > most:
      raise tf.errors.ResourceExhaustedError(None, None, 'out of memory')
    return call(form, tensors, device)

  monkeypatch.setattr(batched_clients._Form, '__call__', call_small)
  return sizes


def test_without_memory_clients_run_one_by_one(as_on_gpu, monkeypatch):
  created, said = as_on_gpu
  _with_memory_for(0, monkeypatch)
  summed = created.run(_map(lambda x: tf.reduce_sum(x)), _VECTORS)
  assert summed == [2.0, 15.0, 7.0]
  assert 'out of memory' in said[0]


def test_fewer_clients_run_together_where_the_memory_does_not_do(
  as_on_gpu, monkeypatch
):
  created, said = as_on_gpu
  sizes = _with_memory_for(2, monkeypatch)
  computation = _map(lambda x: 2 * x)
  vectors = [np.float32([i, 2 * i, -i]) for i in range(7)]
  for expected_sizes in ([7, 4, 2, 2, 2, 1], [2, 2, 2, 1]):
    actual = created.run(computation, vectors)
    np.testing.assert_array_equal(actual, 2 * np.stack(vectors))
    assert sizes == expected_sizes
    sizes.clear()
  assert len(said) == 2
  assert 'at most 4 run together' in said[0]
  assert 'at most 2 run together' in said[1]


def test_fewer_clients_are_added_up_where_the_memory_does_not_do(
  as_on_gpu, monkeypatch
):
  _, said = as_on_gpu
  monkeypatch.setattr(
    graph_functions.logging, 'warning', batched_clients.logging.warning
  )
  fold, sizes = graph_functions.LocalFunction._fold, []

  def fold_small(function, device, size, *arguments):
    sizes.append(size)
    if size > 3:
      raise tf.errors.ResourceExhaustedError(None, None, 'out of memory')
    return fold(function, device, size, *arguments)

  monkeypatch.setattr(graph_functions.LocalFunction, '_fold', fold_small)
  doubled = tff.tensorflow.computation(
    lambda x: 2 * x, tff.TensorType(np.float32, [2])
  )

  @tff.federated_computation(
    tff.FederatedType(doubled.type_signature.parameter, tff.CLIENTS)
  )
  def total(vectors):
    return tff.federated_sum(tff.federated_map(doubled, vectors))

  vectors = [np.float32([i, 0.1 * i]) for i in range(7)]
  expected = np.float32([0, 0])
  for vector in vectors:
    expected += 2 * vector
  for expected_sizes in ([7, 4, 2, 2, 2, 1], [2, 2, 2, 1]):
    np.testing.assert_array_equal(as_on_gpu[0].run(total, vectors), expected)
    assert sizes == expected_sizes
    sizes.clear()
  assert 'at most 4 are added up together' in said[0]


def test_results_that_do_not_fit_together_on_a_device_are_on_the_host(
  as_on_gpu, monkeypatch
):
  created, said = as_on_gpu
  concat, devices = tf.concat, []

  def fail_once(tensors, axis):
    devices.append(concat(tensors, axis).device)
    if len(devices) == 1:
      raise tf.errors.ResourceExhaustedError(None, None, 'out of memory')
    return concat(tensors, axis)

  monkeypatch.setattr(batched_clients.tf, 'concat', fail_once)
  vectors = [np.float32([i]) for i in range(130)]
  assert created.run(_map(lambda x: tf.reduce_sum(x)), vectors) == [*range(130)]
  assert len(devices) == 2
  assert 'the host has them: out of memory' in said[0]


def test_padding_keeps_to_the_memory(as_on_gpu, monkeypatch):
  created, said = as_on_gpu
  sizes = _with_memory_for(40, monkeypatch)
  computation = _map(lambda x: tf.reduce_sum(x))
  # 130 are two programs, also where the memory suffices.
  vectors = [np.float32([i]) for i in range(130)] + [np.ones(2, np.float32)] * 2
  expected = [*range(130), 2, 2]
  assert created.run(computation, vectors) == expected
  assert sizes == [128, 64, 32, 32, 1, 32, 32, 1, 4]
  sizes.clear()
  assert created.run(computation, vectors) == expected
  assert sizes == [32] * 5 + [4]
  assert [line.split('at most ')[1][:2] for line in said] == ['64', '32']


def test_programs_with_many_convolutions_are_not_made(as_on_gpu):
  created, said = as_on_gpu

  def convolve(number, x):
    image = tf.reshape(x[:1], [1, 1, 1, 1])
    for _ in range(number):
      image = tf.nn.conv2d(image, tf.ones([1, 1, 1, 1]), 1, 'SAME')
    return tf.reshape(image, [])

  for number in (30, 31):
    computation = _map(functools.partial(convolve, number))
    assert created.run(computation, _VECTORS) == [1.0, 4.0, 7.0]
    assert len(said) == number - 30
  assert '31 convolutions' in said[0]


def test_what_does_not_vectorize_runs_one_by_one_and_says_why_once(as_on_gpu):
  created, said = as_on_gpu

  def convolve(x):
    volume = tf.reshape(x[:1], [1, 1, 1, 1, 1])
    return tf.reshape(tf.nn.conv3d(volume, 2 * volume, [1] * 5, 'SAME'), [])

  computation = _map(convolve)
  for _ in range(2):
    assert created.run(computation, _VECTORS) == [2.0, 32.0, 98.0]
  (message,) = said
  assert 'cannot run as one program' in message
  assert 'Conv3D' in message


@pytest.mark.parametrize(
  ('device', 'options', 'is_batched'),
  [
    ('/device:CPU:0', {}, False),
    ('/device:GPU:0', {}, True),
    ('/device:GPU:0', {'batched_clients': False}, False),
  ],
)
def test_batches_are_the_default_on_gpus_only(
  monkeypatch, device, options, is_batched
):
  monkeypatch.setattr(in_process.devices_lib, 'resolve', lambda _: [device])
  mapper, _ = in_process.create_mapper('auto', **options)
  mapper.close()
  assert isinstance(mapper, batched_clients.BatchedMapper) == is_batched


def test_an_actor_on_gpus_has_one_program_for_each(monkeypatch):
  gpus = ['/device:GPU:0', '/device:GPU:1']
  monkeypatch.setattr(
    in_process.devices_lib, 'resolve', {'gpu': gpus}.__getitem__
  )
  mapper = ray_actor.ChunkActor(8, on_gpu=True)._mapper
  mapper.close()
  chunks, _ = mapper._chunks([[tf.zeros([1])] * 32], 32, 128)
  assert [*map(len, chunks)] == [16, 16]
