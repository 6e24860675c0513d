"""A run that is interrupted and resumed ends as one that never was."""

import collections
import contextlib

import numpy as np
import pytest

from tests.runs import left_behind
from tff_pfl import datasets, errors
from tff_pfl import runtime as runtime_lib
from tff_pfl.core import client_sampling
from tff_pfl.methods import fed_rep, registry
from tff_pfl.models import zoo
from tff_pfl.runs import (
  client_population,
  loop,
  metrics_writers,
  report,
  run_store,
  stored_rounds,
)

pytestmark = pytest.mark.usefixtures('no_pictures', 'one_runtime')

_NUM_CLIENTS = 12
_NUM_ROUNDS = 6


@pytest.fixture(scope='module', name='process')
def _process(data):
  return registry.build(
    'fed_rep',
    # Wide enough for each client's state to take pages of its own.
    zoo.mlp(data.element_spec, data.num_classes, widths=(256,)),
    fed_rep.FedRepHParams(num_head_epochs=2),
    seed=3,
  )


@pytest.fixture(scope='module', name='data')
def _data():
  return datasets.make_synthetic(
    _NUM_CLIENTS, 16, 4, shape=(6,), num_classes=20
  )


class _SharedRuntime:
  """A runtime that counts, and may stop, what is run on it."""

  def __init__(self, runtime, before_call=lambda number, computation: None):
    self._runtime = runtime
    self._before_call = before_call
    self.num_calls = 0
    self.share = runtime.share
    self.batches_clients = runtime.batches_clients
    self.clients_per_call = runtime.clients_per_call

  def run(self, computation, *arguments):
    self.num_calls += 1
    self._before_call(self.num_calls, computation)
    return self._runtime.run(computation, *arguments)


def _run(process, data, directory, **options):
  loop.run(
    process,
    data,
    output_dir=str(directory),
    rounds_per_evaluation=2,
    num_final_evaluations=1,
    show_progress=False,
    **{'num_rounds': _NUM_ROUNDS, 'cohort_size': 3, **options},
  )


@pytest.fixture(name='run')
def _run_fixture(process, data, runtime, monkeypatch):
  """Runs the experiment on one worker for all tests, which is quicker."""

  def run(directory, *, before_call=None, data=data, **options):
    shared = _SharedRuntime(runtime, *([before_call] if before_call else []))
    with monkeypatch.context() as patch:
      patch.setattr(
        runtime_lib,
        'create_runtime',
        lambda name: contextlib.nullcontext(shared),
      )
      _run(process, data, directory, resume=True, **options)
    return shared.num_calls

  return run


@pytest.fixture(scope='module', name='expected')
def _expected(process, data, tmp_path_factory):
  """What a run that nothing disturbs leaves."""
  directory = tmp_path_factory.mktemp('uninterrupted')
  _run(process, data, directory)
  actual = left_behind.everything(directory, _NUM_CLIENTS)
  # More than the cohort of one round, fewer than all: both kinds are scored.
  assert 3 < len(actual['client_states']) < _NUM_CLIENTS
  return actual


def test_rounds_commit_the_cohorts_and_touch_no_other_client(
  process, data, runtime, tmp_path, monkeypatch
):
  read = []
  train = datasets.FederatedDataset.train

  def spying_train(self, client_id):
    read.append(self.client_ids.index(client_id))
    return train(self, client_id)

  monkeypatch.setattr(datasets.FederatedDataset, 'train', spying_train)
  sampler = client_sampling.CohortSampler(_NUM_CLIENTS, 2, 0)
  cohorts = [sampler.sample(number) for number in range(1, 5)]
  with run_store.RunStore.open(tmp_path, {}) as store:
    rounds = stored_rounds.StoredRounds(process, runtime, data, store)
    assert not read
    assert store.last_round == 0
    for cohort in cohorts:
      rounds.commit(rounds.run_round(cohort))
    taken = np.concatenate(cohorts).tolist()
    # Those who came again have their data kept.
    assert read == list(dict.fromkeys(taken))
    counts = collections.Counter(taken)
    assert max(counts.values()) > 1
    assert set(store.client_states(range(_NUM_CLIENTS))) == set(counts)
    # Those who came again went on from their stored state.
    states = client_population.client_states(process, runtime, store)(
      list(counts)
    )
    assert [int(state.num_rounds) for state in states] == list(counts.values())
    server = client_population.server_state(process, runtime, store)
    assert server.round_number == store.last_round == 4


def test_run_that_is_stopped_again_and_again_ends_the_same(
  run, expected, tmp_path
):
  rng = np.random.default_rng(0)
  num_stops = 0
  while True:
    stop_at = int(rng.integers(1, 12))

    def stop(number, computation, stop_at=stop_at):
      if number == stop_at:
        raise KeyboardInterrupt

    before = left_behind.last_round(tmp_path)
    try:
      run(tmp_path, before_call=stop)
    except KeyboardInterrupt:
      num_stops += 1
      assert left_behind.last_round(tmp_path) >= before
    else:
      break
  assert num_stops >= 2
  assert left_behind.everything(tmp_path, _NUM_CLIENTS) == expected


@pytest.mark.parametrize('computation', ['next', 'evaluate_clients'])
def test_round_in_flight_is_not_committed(
  computation, process, run, expected, tmp_path
):
  calls = []

  def stop_in_round_4(number, called):
    if called is getattr(process, computation):
      calls.append(number)
      # Evaluations follow rounds 1, 2, 4 and 6.
      if len(calls) == (4 if computation == 'next' else 3):
        raise KeyboardInterrupt

  with pytest.raises(KeyboardInterrupt):
    run(tmp_path, before_call=stop_in_round_4)
  with run_store.RunStore.open_for_reading(tmp_path) as store:
    assert store.last_round == 3
    assert [row['round'] for row in store.evaluations()] == [1, 2]
    # What was committed is what the undisturbed run had after its rounds.
    assert [
      left_behind.without_times(row) for row in store.history()
    ] == expected['history'][:3]
  run(tmp_path)
  assert left_behind.everything(tmp_path, _NUM_CLIENTS) == expected


@pytest.mark.parametrize(
  'owner, name, call, last_round, num_calls',
  [
    (run_store.RunStore, 'commit_round', 5, 3, None),
    # The first call is for the rounds that there are.
    (metrics_writers.MetricsWriters, 'write', 4, 3, None),
    # A picture, and what a report writes last: no other round is run.
    (report, '_write_pictures', 1, _NUM_ROUNDS, 0),
    (report.summary_lib, 'write_json', 1, _NUM_ROUNDS, 0),
  ],
)
def test_what_cannot_be_written_costs_nothing_that_was_committed(
  owner,
  name,
  call,
  last_round,
  num_calls,
  run,
  expected,
  tmp_path,
  monkeypatch,
):
  calls, write = [], getattr(owner, name)

  def fail(*arguments, **options):
    calls.append(name)
    if len(calls) == call:
      raise OSError(28, 'No space left on device')
    return write(*arguments, **options)

  with monkeypatch.context() as patch:
    patch.setattr(owner, name, fail)
    with pytest.raises(OSError, match='No space left'):
      run(tmp_path)
  assert left_behind.last_round(tmp_path) == last_round
  # A summary would say that the report is complete.
  assert not (tmp_path / report.SUMMARY_NAME).exists()
  assert num_calls in (run(tmp_path), None)
  assert left_behind.everything(tmp_path, _NUM_CLIENTS) == expected


_CHANGING = {'cohort_size': 5, 'dropout_rate': 0.4}


def test_clients_that_change_are_the_same_after_a_resume(
  process, data, run, tmp_path
):
  # Three clients from round 1 on, the others from round 4 on.
  joining = data.joining({name: 4 for name in data.client_ids[3:]})
  at_once, resumed = tmp_path / 'at once', tmp_path / 'resumed'
  run(at_once, data=joining, **_CHANGING)
  expected = left_behind.everything(at_once, _NUM_CLIENTS)
  run(resumed, data=joining, num_rounds=2, **_CHANGING)
  with run_store.RunStore.open_for_reading(resumed) as store:
    assert len(store.per_client()) == 3
    assert set(store.client_states(range(_NUM_CLIENTS))) <= {0, 1, 2}
  for words, other in (
    ('cohort_size was 5, now 4', {'cohort_size': 4}),
    ('dropout_rate was 0.4, now 0.3', {'dropout_rate': 0.3}),
    ('data_sha256 was', {'data': data}),
  ):
    with pytest.raises(errors.RunError, match=words):
      run(resumed, **{'data': joining, **_CHANGING, **other})
  run(resumed, data=joining, num_rounds=4, **_CHANGING)
  run(resumed, data=joining, **_CHANGING)
  assert left_behind.everything(resumed, _NUM_CLIENTS) == expected
  # In rounds 1 to 3 there are three clients; from round 4 on all are scored.
  invited = [3, 3, 3, 5, 5, 5]
  reported = [row['clients'] for row in expected['history']]
  assert all(0 < n <= most for n, most in zip(reported, invited))
  assert reported != invited
  sampler = client_sampling.CohortSampler(
    _NUM_CLIENTS,
    seed=process.seed,
    join_rounds=(1,) * 3 + (4,) * 9,
    **_CHANGING,
  )
  assert reported == [len(sampler.sample(r)) for r in range(1, 7)]
  assert len(expected['per_client']) == _NUM_CLIENTS
