"""Training in place: the same numbers as with weights as values."""

import collections
import concurrent.futures
import functools

import keras
import numpy as np
import psutil
import pytest
import tensorflow as tf

from tests.core import shared
from tff_pfl import runtime
from tff_pfl import tff_api as tff
from tff_pfl.core import example_tensors, in_place, phases, training_loop
from tff_pfl.runtime import batched_clients

layers = keras.layers

_NUM_CLIENTS = 6
_X = tff.TensorType(np.float32, [16, 6])


@pytest.fixture(autouse=True)
def _all_weights_are_large(monkeypatch):
  monkeypatch.setattr(in_place, '_MANY_WEIGHTS', 1)


def _trainer(model, optimizer='sgd', momentum=0.5, **phase):
  """A computation: weights to those that each client has after training."""
  phase = shared.phase(
    optimizer, momentum=momentum, batch_size=4, **(phase or {'num_epochs': 2})
  )
  names = list(model.initial_weights)
  weights_type = tff.to_type(
    collections.OrderedDict(
      (f'w{i}', tff.TensorType(np.float32, value.shape))
      for i, value in enumerate(model.initial_weights.values())
    )
  )

  @tff.tensorflow.computation(weights_type, _X, np.int32)
  def train(weights, x, number):
    y = tf.cast(x[:, 0] > 0, tf.int32) + tf.cast(x[:, 1] > 0, tf.int32)
    result = shared.train(
      model,
      example_tensors.ExampleTensors(x, y, number),
      phase,
      tf.stack([number, 2]),
      weights=collections.OrderedDict(zip(names, weights.values())),
    )
    return [*result.weights.values()], result.metrics['loss']

  @tff.federated_computation(
    tff.FederatedType(weights_type, tff.SERVER),
    tff.FederatedType(_X, tff.CLIENTS),
    tff.FederatedType(np.int32, tff.CLIENTS),
  )
  def train_all(weights, x, number):
    return tff.federated_map(
      train, (tff.federated_broadcast(weights), x, number)
    )

  return train_all


def _arguments(model):
  rng = np.random.default_rng(0)
  weights = collections.OrderedDict(
    (f'w{i}', value) for i, value in enumerate(model.initial_weights.values())
  )
  x = rng.normal(size=(_NUM_CLIENTS, *_X.shape)).astype(np.float32)
  return weights, list(x), [3, 16, 9, 0, 13, 16]


@pytest.fixture(name='rt', scope='module')
def _rt():
  with runtime.create_runtime('in_process', max_concurrent_clients=3) as rt:
    yield rt


@functools.cache
def _in_place(make, **options):
  """A model, what trains it in place, and the arguments of that."""
  model = make()
  with training_loop.noting_forms() as forms:
    trainer = _trainer(model, **options)
  assert list(forms.values()) == ['in place']
  return model, trainer, _arguments(model)


def _assert_close(found, expected):
  shared.assert_close(found, expected, atol=1e-5)


def _small(jit_compile=False):
  return shared.bridge(
    layers.BatchNormalization(momentum=0.5, name='norm'),
    layers.Dense(3, name='head'),
    shape=(6,),
    jit_compile=jit_compile,
  )


@pytest.mark.parametrize(
  ('make', 'options'),
  [
    (shared.network, {}),
    (_small, {'optimizer': 'adam', 'num_steps': 7}),
  ],
)
def test_numbers_are_those_of_training_with_values(
  make, options, rt, monkeypatch
):
  model, trainer, arguments = _in_place(make, **options)
  actual = rt.run(trainer, *arguments)
  monkeypatch.setattr(in_place, '_MANY_WEIGHTS', 10**9)
  with training_loop.noting_forms() as forms:
    trainer = _trainer(model, **options)
  assert list(forms.values()) == ['by TensorFlow']
  _assert_close(actual, rt.run(trainer, *arguments))
  # The client without examples has its weights back.
  weights, loss = actual[3]
  _assert_close(weights, [*arguments[0].values()])
  assert loss == 0


def test_clients_share_nothing_and_arguments_stay(rt):
  _, trainer, arguments = _in_place(shared.network)
  before = [value.copy() for value in arguments[0].values()]
  first = rt.run(trainer, *arguments)
  with concurrent.futures.ThreadPoolExecutor(4) as threads:
    for again in threads.map(lambda _: rt.run(trainer, *arguments), range(8)):
      tf.nest.map_structure(np.testing.assert_array_equal, again, first)
  for value, kept in zip(arguments[0].values(), before):
    np.testing.assert_array_equal(value, kept)


def test_tffs_own_runtime_gives_the_same_numbers(rt):
  _, trainer, arguments = _in_place(shared.network)
  with runtime.create_runtime('native') as native:
    actual = native.run(trainer, *arguments)
  _assert_close(actual, rt.run(trainer, *arguments))


@pytest.mark.slow
def test_a_program_of_many_clients_takes_the_form_of_values(rt, monkeypatch):
  call, outputs = batched_clients._BatchedProgram.__call__, []

  def record(*arguments):
    outputs.append(call(*arguments))
    return outputs[-1]

  monkeypatch.setattr(batched_clients._BatchedProgram, '__call__', record)
  _, trainer, arguments = _in_place(shared.network)
  with runtime.create_runtime('in_process', batched_clients=True) as batched:
    actual = batched.run(trainer, *arguments)
  assert outputs and all(outputs)
  _assert_close(actual, rt.run(trainer, *arguments))


def test_what_xla_compiles_does_not_train_in_place():
  with training_loop.noting_forms() as forms:
    _trainer(_small(jit_compile=True))
  assert list(forms.values()) == ['compiled by XLA']


def test_an_optimizer_without_a_kernel_trains_values():
  phase = phases.Phase(tff.learning.optimizers.build_adagrad(0.1), 4)
  with training_loop.noting_forms() as forms:
    shared.train(_small(), shared.client(16), phase)
  assert list(forms.values()) == ['by TensorFlow']


def test_variables_are_freed(rt):
  model = shared.bridge(
    layers.Dense(40_000), layers.Dense(3, name='head'), shape=(6,)
  )
  trainer, arguments = _trainer(model, num_steps=1), _arguments(model)
  for _ in range(5):
    rt.run(trainer, *arguments)
  before = psutil.Process().memory_info().rss
  for _ in range(20):
    rt.run(trainer, *arguments)
  # If they stayed: 20 rounds, 6 clients, variables of 1.6 MB for each.
  assert psutil.Process().memory_info().rss - before < 60e6
