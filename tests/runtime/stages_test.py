"""Computations in stages, and cohorts in chunks."""

import functools
import pickle
import threading
import types
from concurrent import futures

import numpy as np
import pytest
import tensorflow as tf

from tests.methods import toy_problems
from tests.runtime import chunks, parity
from tff_pfl import datasets
from tff_pfl import tff_api as tff
from tff_pfl.core import padding
from tff_pfl.methods import registry
from tff_pfl.runtime import (
  lowering,
  ray_actor,
  ray_runtime,
  stages,
  transport,
  values,
)


@functools.cache
def _process(name):
  return registry.build(
    name,
    toy_problems.model_for(name, toy_problems.classifier()),
    toy_problems.hparams_for(name),
    seed=5,
  )


def _plan(computation):
  return stages.plan(lowering.lower(computation))


@pytest.mark.parametrize(
  ('name', 'num_stages'),
  [pytest.param('fed_rep', 1, marks=pytest.mark.slow), ('fed_fac', 2)],
)
def test_stage_is_an_exchange(name, num_stages):
  plan = _plan(_process(name).next)
  assert len(plan.at_clients) == num_stages
  for part in plan.at_clients:
    assert part.totals
    assert part.received
  assert not plan.at_clients[-1].kept
  # The driver needs the clients' new states only.
  assert [len(part.returned) for part in plan.at_clients] == [0] * (
    num_stages - 1
  ) + [1]


def test_clients_have_no_part_in_what_the_server_computes():
  assert _plan(_process('fed_fac').initialize) is None


def test_cohort_without_clients():
  with chunks.ChunksRuntime(2) as rt:
    process = _process('fed_fac')
    state = rt.run(process.initialize)
    output = rt.run(process.next, state, [], [])
  assert output.client_states == []
  assert output.metrics['clients'] == 0


class _Future:
  """A value in Ray's store."""

  def __init__(self, value):
    self.value = value


class _Actor:
  """An actor that computes in this process."""

  def __init__(self, *arguments):
    actor = ray_actor.ChunkActor(*arguments, fetch=lambda boxed: boxed[0].value)
    self.checksum, self.compute = (
      types.SimpleNamespace(remote=lambda *a, call=call: _Future(call(*a)))
      for call in (actor.checksum, actor.compute)
    )


# A Ray with room for one actor.
_RAY = types.SimpleNamespace(
  remote=lambda _: types.SimpleNamespace(
    options=lambda **_: types.SimpleNamespace(remote=_Actor)
  ),
  nodes=lambda: [{'Alive': True, 'Resources': {'CPU': 1}}],
  cluster_resources=dict,
  put=_Future,
  get=lambda future: future.value,
  wait=lambda waited, **_: (waited, []),
  kill=lambda _: None,
)


def test_threads_take_turns_on_an_actor(monkeypatch):
  distance = tff.tensorflow.computation(
    lambda x, y: abs(x - y), np.float32, np.float32
  )

  @tff.federated_computation(tff.FederatedType(np.float32, tff.CLIENTS))
  def mean_distance(numbers):
    mean = tff.federated_broadcast(tff.federated_mean(numbers))
    return tff.federated_mean(tff.federated_map(distance, (numbers, mean)))

  both = threading.Barrier(2, timeout=60)
  cohort = ray_runtime._Cluster.cohort

  def cohort_in_turns(*arguments):
    compute = cohort(*arguments)

    def compute_in_turn(received):
      both.wait()
      return compute(received)

    return compute_in_turn

  monkeypatch.setattr(ray_runtime._Cluster, 'cohort', cohort_in_turns)
  monkeypatch.setattr(ray_runtime.ray_cluster, 'connect', lambda _: _RAY)
  with ray_runtime.RayRuntime() as rt, futures.ThreadPoolExecutor() as pool:
    means = pool.map(
      functools.partial(rt.run, mean_distance),
      [[1.0, 2.0, 6.0], [10.0, 20.0, 60.0]],
    )
    assert [*means] == [2.0, 20.0]


def test_an_actor_computes_a_chunk_again_that_others_had_in_between():
  add = tff.tensorflow.computation(lambda x, y: x + y, np.float32, np.float32)

  @tff.federated_computation(tff.FederatedType(np.float32, tff.CLIENTS))
  def three_exchanges(numbers):
    for _ in range(2):
      total = tff.federated_broadcast(tff.federated_sum(numbers))
      numbers = tff.federated_map(add, (numbers, total))
    return tff.federated_sum(numbers)

  assert len(_plan(three_exchanges).at_clients) == 3
  with chunks.ChunksRuntime(2, num_actors=2, homeless=True) as rt:
    assert rt.run(three_exchanges, [1.0, 2.0, 3.0]) == 96.0


def test_actors_keep_a_dataset_while_clients_need_no_examples(monkeypatch):
  opened = []
  monkeypatch.setattr(ray_actor, 'unpack', lambda p: opened.append(p) or (p,))
  actor = ray_actor.ChunkActor(1, on_gpu=False, fetch=lambda boxed: boxed[0])
  first, second = (
    {number: [{'client': tf.constant(number)}]} for number in (7, 8)
  )
  # New clients get their states between two rounds.
  for shared in (first, {}, first, {}, second, first):
    references = [values.Reference((number, 0), 'client') for number in shared]
    argument = actor._argument(
      ray_actor.Order((0, []), 0, 0, 1, [], (1, *references), shared)
    )
    assert [x.numpy() for x in argument[1:]] == [*shared]
  assert len(opened) == 3


def test_transport_keeps_values():
  value = (
    values.AllEqual((np.float32(1), values.Reference((0, 1), 'a'))),
    values.Columns((values.PerClient([np.arange(3), np.arange(2)]),)),
    None,
  )
  sent = pickle.loads(pickle.dumps(transport.encode(value)))
  decoded = transport.decode(sent, load=lambda _: (tf.constant(7),))
  assert decoded[0].value[1][0].numpy() == 7
  np.testing.assert_array_equal(
    decoded[1].columns[0].values[0].numpy(), np.arange(3)
  )
  assert decoded[2] is None
  assert transport.references(sent) == [values.Reference((0, 1), 'a')]


def test_chunk_has_its_clients_part_of_an_argument():
  argument = (
    (np.float32(1), np.float32(2)),
    values.PerClient([10, 11, 12]),
    values.AllEqual(3),
  )
  assert transport.client_part(argument, 1, 3) == (
    (None, None),
    values.PerClient([11, 12]),
    values.AllEqual(3),
  )


def test_dataset_travels_as_its_description():
  data = datasets.load_dataset('digits', num_clients=3)
  examples = padding.ClientExamples(data.train)
  expected = [examples[i] for i in data.client_ids]
  sent = pickle.dumps(examples)  # Without those that it keeps.
  assert len(sent) < 2000
  again = pickle.loads(sent)
  parity.assert_same([again[i] for i in data.client_ids], expected)


def test_dataset_of_arrays_travels_whole():
  data = datasets.FederatedDataset.from_arrays(
    np.float32([[1], [2], [3], [4]]), [0, 1, 0, 1], keys=['a', 'a', 'b', 'b']
  )
  assert pickle.loads(pickle.dumps(data)).fingerprint == data.fingerprint
