import contextlib
import functools
import multiprocessing
import os
import pathlib
import shutil
import sqlite3
import time

import numpy as np
import pytest

from tff_pfl import errors
from tff_pfl.runs import directory_lock, run_store

RunStore = run_store.RunStore
resume = functools.partial(RunStore.open, resume=True)

_CONFIG = {
  'algorithm': 'fed_rep',
  'rounds': {'num_rounds': 5},
  'hparams': {'head_learning_rate': 0.1, 'layers': ['head']},
}


def state_of(client, round_number, size=2000):
  return np.random.default_rng([client, round_number]).bytes(size)


def commit(store, clients=(), **options):
  number = store.last_round + 1
  store.commit_round(
    server_state=state_of(10**6, number),
    client_states={c: state_of(c, number) for c in clients},
    **{'metrics': {'loss': float(number)}, **options},
  )


@pytest.fixture(name='store')
def _store(tmp_path):
  """The store of a run that has committed nothing."""
  with RunStore.open(tmp_path, _CONFIG) as store:
    yield store


def start_run(directory, config=_CONFIG):
  """Leaves a run with its initial state."""
  with RunStore.open(directory, config) as store:
    commit(store)


def run_error(function, *args, **kwargs):
  """Returns the one line of the `RunError` that the call must raise."""
  with pytest.raises(errors.RunError) as error:
    function(*args, **kwargs)
  text = str(error.value)
  assert '\n' not in text
  return text


def test_committed_rounds_are_there_after_resuming(tmp_path):
  directory = tmp_path / 'new' / 'run'
  with RunStore.open(directory, _CONFIG) as store:
    assert store.last_round == -1
    assert 'no state yet' in run_error(store.server_state)
    commit(store)
    assert store.last_round == 0
    commit(store, clients=[3, 5])
    commit(store, clients=[5, 7])

  text = run_error(RunStore.open, directory, _CONFIG)
  assert f'a run in {directory} already: pass `resume`' in text
  with resume(directory, _CONFIG) as store:
    assert store.last_round == 2
    assert store.config == _CONFIG
    assert store.server_state() == state_of(10**6, 2)
    states = {7: state_of(7, 2), 3: state_of(3, 1), 5: state_of(5, 2)}
    assert store.client_states([7, 4, 3, 5]) == states
    assert set(store.client_states(range(10))) == {3, 5, 7}
    store.commit_round(server_state=b'', client_states={1: b''}, metrics={})
    assert store.server_state() == store.client_states([1])[1] == b''


def test_a_state_that_sqlite_does_not_take_whole_is_read_back(store):
  # It takes 10**9 bytes by default.
  store._connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, 5000)
  for size in (9999, 3000):
    large, small = state_of(3, size, size), state_of(4, 0)
    store.commit_round(
      server_state=large, client_states={1: large, 2: small}, metrics={}
    )
    for actual in (store, RunStore.open_for_reading(store.directory)):
      assert actual.server_state() == large
      assert actual.client_states([1, 2]) == {1: large, 2: small}
    actual.close()


def test_metrics_evaluations_and_newest_clients_are_read_back(store):
  commit(store, metrics={})
  assert store.per_client() == []
  commit(
    store,
    metrics={'loss': np.float32(0.5), 'nested': {'norm': float('nan')}},
    evaluation={'accuracy': np.float64(0.25)},
    per_client=[{'client': 'a', 'accuracy': 0.0}] * 5,
  )
  commit(store, metrics={'loss': 0.25})
  commit(
    store,
    metrics={'loss': 0.125},
    evaluation={'accuracy': 0.75},
    per_client=[{'client': c, 'accuracy': 1.0} for c in 'ba'],
  )

  first, *others = store.history()
  assert np.isnan(first.pop('nested')['norm'])
  assert [first, *others] == [
    {'round': 1, 'loss': 0.5, 'evaluation': {'accuracy': 0.25}},
    {'round': 2, 'loss': 0.25},
    {'round': 3, 'loss': 0.125, 'evaluation': {'accuracy': 0.75}},
  ]
  assert store.evaluations() == [
    {'round': 1, 'accuracy': 0.25},
    {'round': 3, 'accuracy': 0.75},
  ]
  assert [row['client'] for row in store.per_client()] == ['b', 'a']


def test_file_does_not_grow_with_the_rounds(store, tmp_path):
  sizes = []
  for _ in range(2):
    for _ in range(30):
      commit(store, clients=range(20))
    store._connection.execute('PRAGMA wal_checkpoint(TRUNCATE)')
    sizes.append(os.path.getsize(tmp_path / run_store.FILE_NAME))
  # 30 rounds of states would be more than 1 MB.
  assert sizes[1] - sizes[0] <= 64 * 1024


def test_work_of_a_commit_does_not_grow_with_the_clients(store):
  def steps_of_commit(clients):
    calls = []
    store._connection.set_progress_handler(lambda: calls.append(1), 10)
    commit(store, clients=clients)
    store._connection.set_progress_handler(None, 0)
    return len(calls)

  commit(store, clients=range(20))
  few = steps_of_commit([3, 25])
  commit(store, clients=range(2000))
  assert steps_of_commit([3, 2500]) == pytest.approx(few, abs=2)


def test_a_folder_where_nothing_was_committed_is_not_a_run(tmp_path):
  for directory in (tmp_path, tmp_path / 'missing'):
    text = run_error(RunStore.open_for_reading, directory)
    assert f'no run in {directory}' in text
  assert not (tmp_path / 'missing').exists()
  (tmp_path / 'file').write_text('x')
  text = run_error(RunStore.open, tmp_path / 'file', _CONFIG)
  assert str(tmp_path / 'file') in text
  # Creations that were killed.
  (tmp_path / run_store.FILE_NAME).write_bytes(b'')
  assert 'or an empty one' in run_error(RunStore.open_for_reading, tmp_path)
  RunStore.open(tmp_path, _CONFIG).close()
  with RunStore.open(tmp_path, {'other': 1}) as store:
    assert store.config == {'other': 1}


@pytest.mark.parametrize('content', [b'', None])
def test_a_lost_store_is_not_replaced_where_its_metrics_are(tmp_path, content):
  path = tmp_path / run_store.FILE_NAME
  if content is not None:
    path.write_bytes(content)
  (tmp_path / 'metrics.jsonl').write_text('{"round":1}\n')
  for open_run in (RunStore.open, resume):
    message = run_error(open_run, tmp_path, _CONFIG)
    assert 'restore run.sqlite from a backup, remove metrics.jsonl' in message
  assert content == (path.read_bytes() if path.exists() else None)


def test_resuming_with_other_settings_names_each_of_them(tmp_path):
  start_run(tmp_path)
  given = {
    'algorithm': 'fed_rep',
    'rounds': {'num_rounds': 50},
    'hparams': {'head_learning_rate': 0.2},
    'seed': 3,
  }
  text = run_error(resume, tmp_path, given)
  assert 'hparams.head_learning_rate was 0.1, now 0.2' in text
  assert "hparams.layers was ['head'], now None" in text
  assert 'seed was None, now 3' in text
  assert 'num_rounds' not in text
  assert 'algorithm' not in text
  with pytest.raises(ValueError, match='at least the 0 rounds'):
    resume(tmp_path, {**_CONFIG, 'rounds': {'num_rounds': -1}})
  # The lock is free again, and the run has its old settings.
  for data_dir in ('here', 'moved'):
    given = {**_CONFIG, 'settings': {'data': {'data_dir': data_dir}}}
    # Settings are JSON, which has lists alone.
    given['hparams'] = {**_CONFIG['hparams'], 'layers': ('head',)}
    with resume(tmp_path, given) as store:
      assert store.config == {**_CONFIG, 'settings': given['settings']}


def test_reader_sees_commits_and_cannot_write(store, tmp_path):
  commit(store)
  with RunStore.open_for_reading(tmp_path) as reader:
    commit(store, clients=[2])
    assert reader.history()[0]['round'] == 1
    commit(store)
    assert reader.last_round == 2
    assert reader.client_states([2]) == {2: state_of(2, 1)}
    assert 'readonly' in run_error(commit, reader)
  text = run_error(resume, tmp_path, {})
  assert f'pid {os.getpid()}' in text
  commit(store)


def test_closed_run_is_a_single_file_even_on_a_read_only_disk(
  tmp_path, monkeypatch
):
  start_run(tmp_path)
  files = [directory_lock.LOCK_NAME, run_store.FILE_NAME]
  # Also after a reader has looked at it.
  RunStore.open_for_reading(tmp_path).close()
  assert sorted(os.listdir(tmp_path)) == files
  monkeypatch.setattr(os, 'access', lambda path, mode: mode != os.W_OK)
  with RunStore.open_for_reading(tmp_path) as store:
    assert store.server_state() == state_of(10**6, 0)
    assert sorted(os.listdir(tmp_path)) == files


@contextlib.contextmanager
def forked(function, *arguments):
  """A process that runs a function, and is killed in the end."""
  # It does not import TensorFlow again, as one that is spawned would.
  process = multiprocessing.get_context('fork').Process(
    target=function, args=arguments
  )
  process.start()
  try:
    yield process
  finally:
    process.kill()
    process.join()


class _Slow(dict):
  """States of 400 clients in a transaction that does not end."""

  def __init__(self, is_open):
    super().__init__()
    self._is_open = is_open

  def items(self):
    for client in range(400):
      yield client, state_of(client, 2, 20000)
    self._is_open.set()
    time.sleep(600)


def _commit_two_rounds_and_hang(directory, is_open):
  with RunStore.open(directory, {}) as store:
    commit(store, clients=range(10))
    commit(store, clients=range(10))
    store.commit_round(
      server_state=b'x' * 2_000_000, client_states=_Slow(is_open), metrics={}
    )


@pytest.mark.filterwarnings('ignore:.*fork:DeprecationWarning')
def test_kill_in_the_middle_of_a_commit_loses_only_that_round(tmp_path):
  is_open = multiprocessing.get_context('fork').Event()
  with forked(_commit_two_rounds_and_hang, tmp_path, is_open) as process:
    assert is_open.wait(60)
    # The states exceed SQLite's cache: part of the round is on the disk.
    log_size = os.path.getsize(tmp_path / f'{run_store.FILE_NAME}-wal')
    assert log_size > 4_000_000
    with RunStore.open_for_reading(tmp_path) as reader:
      assert reader.last_round == 1
    for open_run in (resume, RunStore.open):
      text = run_error(open_run, tmp_path, {})
      assert f'{tmp_path} is in use' in text
      assert f'pid {process.pid}' in text

  # What is refused leaves the run as it is.
  for open_run in (resume, RunStore.open):
    run_error(open_run, tmp_path, {'seed': 1})
  with resume(tmp_path, {}) as store:
    assert store.last_round == 1
    assert store.server_state() == state_of(10**6, 1)
    assert store.client_states(range(400)) == {
      c: state_of(c, 1) for c in range(10)
    }
    assert [row['loss'] for row in store.history()] == [1.0]
    commit(store, clients=[1])
    assert store.last_round == 2
  with contextlib.closing(
    sqlite3.connect(tmp_path / run_store.FILE_NAME)
  ) as connection:
    check = connection.execute('PRAGMA integrity_check')
    assert check.fetchall() == [('ok',)]


class _Interrupted(dict):
  def items(self):
    yield 1, b'new'
    raise KeyboardInterrupt


def test_a_commit_that_fails_loses_only_its_round(tmp_path):
  with RunStore.open(tmp_path, _CONFIG) as store:
    commit(store, clients=[1])
    commit(store, clients=[1])
    pages = store._connection.execute('PRAGMA page_count').fetchone()[0]
    store._connection.execute(f'PRAGMA max_page_count = {pages + 2}')

    text = run_error(
      store.commit_round,
      server_state=b's' * 10_000,
      client_states={c: b'c' * 20_000 for c in range(50)},
      metrics={'loss': 0.0},
    )

    assert 'disk is full' in text
    assert 'all rounds before it are safe: fix that and pass `resume`' in text
    # Once there is room, the same store goes on.
    store._connection.execute(f'PRAGMA max_page_count = {pages + 1000}')
    with pytest.raises(KeyboardInterrupt):
      store.commit_round(
        server_state=b'new', client_states=_Interrupted(), metrics={}
      )
    assert store.last_round == 1
    assert store.server_state() == state_of(10**6, 1)
    assert store.client_states(range(50)) == {1: state_of(1, 1)}
    commit(store, clients=range(50))

  with resume(tmp_path, _CONFIG) as store:
    assert store.last_round == 2
    assert len(store.client_states(range(60))) == 50


def _replace_by_a_copy(run):
  run.rename(run.with_name('away'))
  shutil.copytree(run.with_name('away'), run)


@pytest.mark.parametrize(
  'lose, whole',
  [
    (lambda run: (run / run_store.FILE_NAME).unlink(), []),
    (shutil.rmtree, []),
    (lambda run: run.rename(run.with_name('away')), ['away']),
    (_replace_by_a_copy, ['away', 'run']),
  ],
)
@pytest.mark.parametrize(
  'use', [commit, RunStore.history, lambda store: store.copy_to(store.best)]
)
def test_a_file_that_is_lost_while_it_is_written_to_is_missed_at_once(
  lose, whole, use, tmp_path
):
  run = tmp_path / 'run'
  with RunStore.open(run, _CONFIG) as store:
    commit(store)
    commit(store, clients=[1])
    store.best = run / 'best'
    lose(run)
    text = run_error(use, store)
    assert f'{run / run_store.FILE_NAME} was deleted, moved or rep' in text
    assert not store.best.exists()
  # Nothing is made anew, and what was moved or copied is whole.
  folders = [name for name in ('away', 'run') if (tmp_path / name).exists()]
  assert [f for f in folders if run_store.has_run(tmp_path / f)] == whole
  for name in whole:
    with resume(tmp_path / name, _CONFIG) as store:
      assert store.last_round == 1
      assert store.client_states([1]) == {1: state_of(1, 1)}


def test_a_copy_that_fails_leaves_no_part(tmp_path, monkeypatch):
  with RunStore.open(tmp_path / 'run', _CONFIG) as store:
    commit(store)
    best = tmp_path / 'best'

    def full(path, target):
      assert path.exists()
      raise OSError('no space left')

    monkeypatch.setattr(pathlib.Path, 'replace', full)
    with pytest.raises(errors.RunError, match='no space left'):
      store.copy_to(best)
    assert not os.listdir(best)


def everything(directory):
  """All that a run's file holds."""
  with RunStore.open_for_reading(directory) as store:
    return (
      store.config,
      store.history(),
      store.evaluations(),
      store.per_client(),
      store.server_state(),
      store.client_states(range(20)),
    )


@pytest.fixture(scope='module', name='evaluated')
def _evaluated(tmp_path_factory):
  """The file of a run of four rounds, two evaluated, and what it holds."""
  directory = tmp_path_factory.mktemp('run')
  with RunStore.open(directory, _CONFIG) as store:
    for number in range(5):
      scores = {
        'evaluation': {'accuracy': 0.25 * number},
        'per_client': [{'client': c, 'accuracy': 0.5} for c in 'abc'],
      }
      commit(store, clients=range(15), **(scores if number % 2 else {}))
  actual = everything(directory)
  return (directory / run_store.FILE_NAME).read_bytes(), actual


@pytest.mark.parametrize(
  'damage',
  [
    lambda content: content[: len(content) // 2],
    lambda content: b'not a database at all, but long enough' * 100,
  ],
)
def test_damaged_file_is_one_line_and_left_alone(tmp_path, evaluated, damage):
  path = tmp_path / run_store.FILE_NAME
  damaged = damage(evaluated[0])
  path.write_bytes(damaged)
  for open_run in (everything, functools.partial(resume, config=_CONFIG)):
    message = run_error(open_run, tmp_path)
    assert 'run.sqlite is damaged' in message
    assert 'restore it from a backup' in message
  run_error(RunStore.open, tmp_path, _CONFIG)
  assert path.read_bytes() == damaged


def test_no_bit_that_flips_gives_another_result(tmp_path, evaluated):
  content, expected = evaluated
  rng = np.random.default_rng(0)
  used = np.flatnonzero(np.frombuffer(content, np.uint8))
  # The header and the schema, where the file's structure is, and anywhere.
  positions = [*used[:150:3], *rng.choice(used, 150, replace=False)]
  num_errors = 0
  for position in positions:
    damaged = bytearray(content)
    damaged[position] ^= 1 << rng.integers(8)
    (tmp_path / run_store.FILE_NAME).write_bytes(damaged)
    try:
      assert everything(tmp_path) == expected
    except errors.RunError as error:
      assert '\n' not in str(error)
      num_errors += 1
  assert num_errors > 100


def write_changed(directory, content, statement):
  """Writes the content of a run's file, changed by a statement of SQL."""
  path = directory / run_store.FILE_NAME
  path.write_bytes(content)
  with contextlib.closing(sqlite3.connect(path)) as connection:
    connection.execute(statement)
    connection.commit()
  return path


_MISSING = 'states or metrics that were committed are missing'


@pytest.mark.parametrize(
  'statement, words',
  [
    ("DELETE FROM contents WHERE kind = 'client' AND number = 7", _MISSING),
    ("DELETE FROM contents WHERE kind = 'totals'", _MISSING),
    (
      "UPDATE contents SET number = 9 WHERE number = 4 AND kind = 'round'",
      'round 9',
    ),
    ("UPDATE contents SET content = x'00' WHERE kind = 'server'", 'server 0'),
    (
      "UPDATE contents SET content = NULL WHERE kind = 'round'",
      'round 0 has another',
    ),
    ('PRAGMA user_version = 0', 'There is no run'),
    ('PRAGMA user_version = 3', 'version 3.*use the tff_pfl that made it'),
    ('DROP TABLE contents', 'no such table'),
  ],
)
def test_a_damaged_run_is_not_resumed_and_not_changed(
  tmp_path, evaluated, statement, words
):
  path = write_changed(tmp_path, evaluated[0], statement)
  damaged = path.read_bytes()
  with pytest.raises(errors.RunError, match=words):
    resume(tmp_path, {**_CONFIG, 'rounds': {'num_rounds': 9}})
  run_error(RunStore.open, tmp_path, _CONFIG)
  assert path.read_bytes() == damaged


def test_what_is_lost_while_a_run_goes_on_is_missing_at_the_next_start(
  store, tmp_path
):
  commit(store, clients=range(5))
  store._connection.execute("DELETE FROM contents WHERE kind = 'client'")
  commit(store, clients=range(5))
  assert _MISSING in run_error(RunStore.open_for_reading, tmp_path)
