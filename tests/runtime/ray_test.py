"""Cohorts on a Ray cluster of two nodes."""

import contextlib
import dataclasses
import math
import signal
import threading
import time
import types
from unittest import mock

import numpy as np
import psutil
import pytest
import tensorflow as tf

from tests.runtime import cases, parity
from tff_pfl import datasets, errors, runtime
from tff_pfl import tff_api as tff
from tff_pfl.core import padding
from tff_pfl.methods import registry
from tff_pfl.models import zoo
from tff_pfl.runtime import ray_runtime

ray = pytest.importorskip(
  'ray', reason='needs Ray, which `make venv RAY=1` installs'
)

_NUM_CLIENTS = 12
_NUM_ROUNDS = 2


@pytest.fixture(name='cluster', scope='module')
def _cluster():
  from ray import cluster_utils

  before = set(psutil.process_iter())
  cluster = cluster_utils.Cluster(
    initialize_head=True,
    head_node_args={
      'num_cpus': 1,
      'include_dashboard': False,
      '_system_config': {
        'health_check_initial_delay_ms': 500,
        'health_check_period_ms': 500,
        'health_check_failure_threshold': 3,
      },
    },
  )
  cluster.add_node(num_cpus=1)
  cluster.wait_for_nodes()
  yield cluster
  ray.shutdown()
  cluster.shutdown()
  ours = set(psutil.Process().children(recursive=True)) - before
  _, alive = psutil.wait_procs(ours, timeout=10)
  assert not [p for p in alive if 'ray' in ' '.join(p.cmdline())]


@pytest.fixture(name='rt', scope='module')
def _rt(cluster):
  with _runtime(cluster) as rt:
    yield rt


def _runtime(cluster, **options):
  return runtime.create_runtime('ray', address=cluster.address, **options)


@pytest.fixture(name='data', scope='module')
def _data():
  return datasets.load_dataset('digits', num_clients=_NUM_CLIENTS)


@pytest.fixture(name='process', scope='module')
def _process(data):
  # Two exchanges, and state of clients and of the server.
  model = zoo.mlp(data.element_spec, data.num_classes, 1, widths=(16,))
  # Each actor would compile anew.
  model = dataclasses.replace(model, jit_compile=False)
  return registry.build('fed_fac', model, seed=3)


def _train(rt, process, data, disturb=lambda: None):
  """Returns the results of some rounds; the second one is disturbed."""
  (train,) = rt.share(padding.ClientExamples(data.train))
  state = rt.run(process.initialize)
  states = rt.run(process.initialize_client_states, [*range(_NUM_CLIENTS)])
  outputs = []
  for round_number in range(_NUM_ROUNDS):
    if round_number == 1:
      disturb()
    output = rt.run(
      process.next, state, states, [train[i] for i in data.client_ids]
    )
    state, states = output.state, output.client_states
    outputs.append(output)
  return outputs


@pytest.fixture(name='undisturbed', scope='module')
def _undisturbed(rt, process, data):
  return _train(rt, process, data)


def test_rounds_are_those_of_one_process(undisturbed, process, data):
  with runtime.create_runtime('in_process') as here:
    expected = _train(here, process, data)
  parity.assert_close(undisturbed, expected, rtol=1e-3, atol=1e-5)


def _kill_actors(number):
  workers = [
    p for p in psutil.process_iter() if p.name().startswith('ray::ChunkActor')
  ]
  for process in workers[:number]:
    process.send_signal(signal.SIGKILL)


def test_killed_process_changes_no_bit(rt, undisturbed, process, data, caplog):
  # On a busy machine the actor may be gone before it has work.
  for delay in (0.05, 0.1, 0.2, 0.4):
    disturbed = _train(
      rt,
      process,
      data,
      threading.Timer(delay, _kill_actors, [1]).start,
    )
    parity.assert_same(disturbed, undisturbed)
    if 'actor was lost' in caplog.text:
      return
  pytest.fail('No actor was lost while it computed.')


def test_killed_node_changes_no_bit(
  cluster, rt, undisturbed, process, data, caplog
):
  # The round may be over before the node has ended.
  for delay in (0.05, 0.1, 0.2, 0.4):
    # Until both nodes have an actor.
    while len(rt._cluster._ready_actors()) < 2:
      rt._cluster._last_count = -math.inf
      time.sleep(0.1)
    (node,) = cluster.worker_nodes
    disturbed = _train(
      rt,
      process,
      data,
      threading.Timer(
        delay, cluster.remove_node, [node], {'allow_graceful': False}
      ).start,
    )
    parity.assert_same(disturbed, undisturbed)
    if 'actor was lost' in caplog.text:
      return
    cluster.add_node(num_cpus=1)
  pytest.fail('No actor was lost while it computed.')


def test_errors_of_clients_are_raised_as_they_are(rt):
  @tff.tensorflow.computation(np.int32)
  def fail(x):
    with tf.control_dependencies([tf.debugging.assert_less(x, 2)]):
      return tf.identity(x)

  fail_at_clients = cases.at_clients(fail)
  with pytest.raises(tf.errors.InvalidArgumentError):
    rt.run(fail_at_clients, [1, 2, 3])
  assert rt.run(fail_at_clients, [1, 0, 1]) == [1, 0, 1]


def test_data_that_differ_are_refused(rt, process, data, monkeypatch):
  monkeypatch.setattr(data, 'fingerprint', 'of other data')
  with pytest.raises(errors.RunError, match='of other data'):
    _train(rt, process, data)


def test_no_actor_in_time_is_an_error(
  cluster, rt, process, data, monkeypatch, caplog
):
  del rt  # Has all cores.
  monkeypatch.setattr(ray_runtime, '_SECONDS_BETWEEN_COUNTS', 0.1)
  with _runtime(cluster, seconds_to_start=0.5) as late:
    # As if its node had died: another actor is waited for.
    (actor, *_) = late._cluster.actors
    ray.kill(actor.handle)
    ray.wait([actor.started], timeout=10)
    with pytest.raises(
      errors.RunError,
      match='No Ray actor is left. None started in 0.5 seconds.',
    ):
      _train(late, process, data)
  assert 'The actor never ran' in caplog.text
  assert 'start, or wait for cores' in caplog.text


@pytest.mark.parametrize(
  ('limit', 'actors', 'refusals', 'seconds', 'message'),
  [
    # Ray has them pending.
    (None, ['pending'], [], 1e6, None),
    (None, [], ['One was refused.'], 0.0, 'One was refused.'),
    # Nodes may come back.
    (None, [], [], 119.0, None),
    (None, [], [], 121.0, 'None started in 120 seconds.'),
    (300.0, ['pending'], [], 301.0, 'None started in 300 seconds.'),
    (300.0, [], [], 299.0, None),
  ],
)
def test_actors_are_waited_for_as_long_as_they_may_come(
  limit, actors, refusals, seconds, message
):
  waiting = types.SimpleNamespace(
    _seconds_to_start=limit, actors=actors, _refusals=refusals
  )
  context = contextlib.nullcontext()
  if message is not None:
    context = pytest.raises(
      errors.RunError, match=f'^No Ray actor is left. {message}$'
    )
  with context:
    ray_runtime._Cluster._check_wait(waiting, seconds)


class _Died(Exception):
  actor_init_failed = False


def _fake_cluster(get):
  """A cluster with room for 16 actors, of which `get` tells the code."""
  cluster = object.__new__(ray_runtime._Cluster)
  vars(cluster).update(
    actors=[],
    _ray=types.SimpleNamespace(
      wait=lambda futures, **_: (futures, []),
      get=get,
      kill=lambda _: None,
      exceptions=types.SimpleNamespace(RayError=_Died),
    ),
    _checksum='own',
    _seconds_to_start=None,
    _refusals=[],
    _failed_starts=set(),
    _num_starts=0,
    _last_count=-math.inf,
    _actor_class=mock.Mock(),
    _arguments=(),
    _num_fitting=lambda: 16,
  )
  return cluster


def test_actors_that_die_with_their_node_before_they_start_are_replaced():
  def fail(_):
    raise _Died('The node died.')

  cluster = _fake_cluster(fail)
  for _ in range(4):
    assert len(cluster.actors) in (0, 16)
    assert not cluster._refusals
    assert cluster._ready_actors() == []
  assert cluster._ready_actors() == []
  assert len(cluster._refusals) == 16 and not cluster.actors
  with pytest.raises(errors.RunError, match='left. An actor .* died.$'):
    cluster._check_wait(0.0)


def test_other_code_is_refused():
  cluster = _fake_cluster(lambda _: 'of other code')
  for _ in range(2):
    assert cluster._ready_actors() == []
  with pytest.raises(errors.RunError, match='install the same'):
    cluster._check_wait(0.0)


def test_actors_that_fit_no_node_are_refused(cluster):
  with pytest.raises(ValueError, match='cpus_per_actor'):
    _runtime(cluster, cpus_per_actor=1000)


@pytest.mark.slow
@pytest.mark.parametrize('number', [1, 6])
def test_number_of_actors_changes_no_bit(
  cluster, rt, undisturbed, process, data, monkeypatch, number
):
  rt.close()
  cluster.add_node(num_cpus=1)
  monkeypatch.setattr(ray_runtime._Cluster, '_num_fitting', lambda _: number)
  with _runtime(cluster, cpus_per_actor=0.5) as other:
    parity.assert_same(_train(other, process, data), undisturbed)
    assert other.num_actors == number
