import contextlib
import json
import math
import os
import pathlib
import signal
import sqlite3
import subprocess
import sys

import numpy as np
import pytest

from tff_pfl import errors
from tff_pfl.simulation import directory_lock, run_file, run_store

RunStore = run_store.RunStore

_ROOT = pathlib.Path(run_store.__file__).parents[2]
_CONFIG = {
  'algorithm': 'fed_rep',
  'num_rounds': 5,
  'hparams': {'head_learning_rate': 0.1, 'layers': ['head']},
}


def state_of(client, round_number, size=2000):
  return np.random.default_rng([client, round_number]).bytes(size)


def commit(store, round_number, clients=(), **options):
  options.setdefault('metrics', {'loss': float(round_number)})
  store.commit_round(
    round_number,
    server_state=state_of(10**6, abs(round_number)),
    client_states={c: state_of(c, round_number) for c in clients},
    **options,
  )


@pytest.fixture(name='store')
def _store(tmp_path):
  """The store of a run that has committed nothing."""
  with RunStore.create(tmp_path, _CONFIG) as store:
    yield store


def start_run(directory, config=_CONFIG):
  """Leaves a run with its initial state."""
  with RunStore.create(directory, config) as store:
    commit(store, 0)


def start(code, directory):
  """Starts Python code that is given the directory as `directory`."""
  header = f"""
import sys
sys.path.insert(0, {str(_ROOT)!r})
import numpy as np
from tff_pfl.simulation.run_store import RunStore
directory = {str(directory)!r}
def state_of(client, round_number, size=2000):
  return np.random.default_rng([client, round_number]).bytes(size)
"""
  return subprocess.Popen(
    [sys.executable, '-c', header + code],
    stdin=subprocess.PIPE,
    stdout=subprocess.PIPE,
    text=True,
  )


def kill(process):
  os.kill(process.pid, signal.SIGKILL)
  process.wait()
  process.stdin.close()
  process.stdout.close()


def run_error(function, *args, **kwargs):
  """Returns the one line of the `RunError` that the call must raise."""
  with pytest.raises(errors.RunError) as error:
    function(*args, **kwargs)
  text = str(error.value)
  assert '\n' not in text
  return text


def test_committed_rounds_are_there_after_resuming(tmp_path):
  with RunStore.create(tmp_path / 'new' / 'run', _CONFIG) as store:
    assert store.last_round == -1
    commit(store, 0)
    assert store.last_round == 0
    commit(store, 1, clients=[3, 5])
    commit(store, 2, clients=[5, 7])

  with RunStore.open_or_create(tmp_path / 'new' / 'run', _CONFIG) as store:
    assert store.last_round == 2
    assert store.config == _CONFIG
    assert store.server_state() == state_of(10**6, 2)
    assert store.client_states([7, 4, 3, 5]) == {
      7: state_of(7, 2),
      3: state_of(3, 1),
      5: state_of(5, 2),
    }
    assert list(store.client_states([7, 3])) == [7, 3]
    assert set(store.client_states(range(10))) == {3, 5, 7}


def test_empty_states_are_states(store):
  store.commit_round(0, server_state=b'', client_states={1: b''}, metrics={})
  assert store.server_state() == b''
  assert store.client_states([1]) == {1: b''}


def test_server_state_larger_than_a_piece_is_put_together(store, monkeypatch):
  monkeypatch.setattr(run_file, '_PIECE_SIZE', 7)
  commit(store, 0)
  assert store.server_state() == state_of(10**6, 0)
  store.commit_round(1, server_state=b'x', client_states={}, metrics={})
  assert store.server_state() == b'x'


def test_metrics_evaluations_and_newest_clients_are_read_back(store):
  commit(store, 0, metrics={})
  commit(
    store,
    1,
    metrics={'loss': np.float32(0.5), 'nested': {'norm': float('nan')}},
    evaluation={'accuracy': np.float64(0.25)},
    per_client=[{'client': 'a', 'accuracy': 0.0}] * 5,
  )
  commit(store, 2, metrics={'loss': 0.25})
  commit(
    store,
    3,
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
  for round_number in range(10):
    commit(store, round_number, clients=range(20))
  store._connection.execute('PRAGMA wal_checkpoint(TRUNCATE)')
  before = os.path.getsize(tmp_path / run_store.FILE_NAME)
  for round_number in range(10, 60):
    commit(store, round_number, clients=range(20))
  store._connection.execute('PRAGMA wal_checkpoint(TRUNCATE)')
  after = os.path.getsize(tmp_path / run_store.FILE_NAME)
  # 50 rounds of states would be more than 2 MB.
  assert after - before <= 64 * 1024


@pytest.mark.parametrize('round_number', [-1, 0, 1, 3])
def test_only_the_next_round_can_be_committed(store, round_number):
  commit(store, 0)
  commit(store, 1)
  with pytest.raises(ValueError, match='next round, 2'):
    commit(store, round_number)
  assert store.last_round == 1


@pytest.mark.parametrize('name', ['round', 'evaluation'])
def test_metrics_must_not_take_the_names_of_the_history(store, name):
  with pytest.raises(ValueError, match=f"without '{name}'"):
    commit(store, 0, metrics={name: 1})


def test_state_before_the_initial_commit_is_an_error(store):
  assert 'no state yet' in run_error(store.server_state)


def test_create_refuses_a_directory_with_a_run(tmp_path):
  start_run(tmp_path)
  text = run_error(RunStore.create, tmp_path, _CONFIG)
  assert str(tmp_path) in text
  assert '`resume`' in text
  assert '`output_dir`' in text
  with RunStore.open_or_create(tmp_path, _CONFIG) as store:
    assert store.last_round == 0


def test_create_replaces_a_run_that_committed_nothing(tmp_path):
  RunStore.create(tmp_path, _CONFIG).close()
  with RunStore.create(tmp_path, {'other': 1}) as store:
    assert store.config == {'other': 1}


def test_create_replaces_what_a_killed_creation_left(tmp_path):
  (tmp_path / run_store.FILE_NAME).write_bytes(b'')
  assert 'no run' in run_error(RunStore.open_for_reading, tmp_path)
  with RunStore.create(tmp_path, _CONFIG) as store:
    assert store.last_round == -1


def test_reading_without_a_run_is_an_error(tmp_path):
  for directory in (tmp_path, tmp_path / 'missing'):
    text = run_error(RunStore.open_for_reading, directory)
    assert 'no run' in text
    assert str(directory) in text
  assert not (tmp_path / 'missing').exists()


def test_resuming_with_other_settings_names_each_of_them(tmp_path):
  start_run(tmp_path)
  given = {
    'algorithm': 'fed_rep',
    'num_rounds': 50,
    'hparams': {'head_learning_rate': 0.2},
    'seed': 3,
  }
  text = run_error(RunStore.open_or_create, tmp_path, given)
  assert 'hparams.head_learning_rate was 0.1, now 0.2' in text
  assert "hparams.layers was ['head'], now absent" in text
  assert 'seed was absent, now 3' in text
  assert 'num_rounds' not in text
  assert 'algorithm' not in text
  # The lock is free again, and the run has its old settings.
  with RunStore.open_or_create(tmp_path, _CONFIG) as store:
    assert store.config == _CONFIG


def test_mutable_settings_take_the_new_value(tmp_path):
  start_run(tmp_path)
  given = {**_CONFIG, 'num_rounds': 9, 'data_dir': 'moved'}
  with RunStore.open_or_create(tmp_path, given) as store:
    assert store.config == given


def test_settings_are_kept_and_compared_as_json(tmp_path):
  given = {'sizes': (1, 2), 'rate': {'x': np.float64(0.5)}, 'nan': math.nan}
  start_run(tmp_path, given)
  with RunStore.open_for_reading(tmp_path) as store:
    assert json.dumps(store.config) == (
      '{"sizes": [1, 2], "rate": {"x": 0.5}, "nan": NaN}'
    )
  RunStore.open_or_create(
    tmp_path, {'sizes': [1, 2], 'rate': {'x': 0.5}, 'nan': math.nan}
  ).close()


def test_directory_in_use_is_refused_naming_the_process(tmp_path):
  process = start(
    """
store = RunStore.create(directory, {})
store.commit_round(0, server_state=b's', client_states={}, metrics={})
print('ready', flush=True)
sys.stdin.read()
""",
    tmp_path,
  )
  try:
    assert process.stdout.readline() == 'ready\n'
    for open_run in (RunStore.open_or_create, RunStore.create):
      text = run_error(open_run, tmp_path, {})
      assert str(tmp_path) in text
      assert f'pid {process.pid}' in text
    with RunStore.open_for_reading(tmp_path) as store:
      assert store.server_state() == b's'
  finally:
    kill(process)
  RunStore.open_or_create(tmp_path, {}).close()


def test_second_store_of_one_process_is_refused(tmp_path):
  with RunStore.create(tmp_path, {}) as store:
    commit(store, 0)
    assert f'pid {os.getpid()}' in run_error(
      RunStore.open_or_create, tmp_path, {}
    )
  RunStore.open_or_create(tmp_path, {}).close()


def test_reader_sees_commits_and_cannot_write(store, tmp_path):
  commit(store, 0)
  with RunStore.open_for_reading(tmp_path) as reader:
    commit(store, 1, clients=[2])
    assert reader.history()[0]['round'] == 1
    commit(store, 2)
    assert reader.last_round == 2
    assert reader.client_states([2]) == {2: state_of(2, 1)}
    assert 'reading only' in run_error(commit, reader, 3)
    with pytest.raises(sqlite3.OperationalError, match='readonly'):
      reader._connection.execute('DELETE FROM rounds')
  commit(store, 3)


def test_closed_run_is_a_single_file(tmp_path):
  start_run(tmp_path)
  # Also after a reader has looked at it.
  RunStore.open_for_reading(tmp_path).close()
  assert sorted(os.listdir(tmp_path)) == [
    directory_lock.LOCK_NAME,
    run_store.FILE_NAME,
  ]


def test_run_on_a_read_only_disk_can_be_read(tmp_path, monkeypatch):
  start_run(tmp_path)
  monkeypatch.setattr(os, 'access', lambda path, mode: mode != os.W_OK)
  with RunStore.open_for_reading(tmp_path) as store:
    assert store.server_state() == state_of(10**6, 0)
    assert not os.path.exists(tmp_path / (run_store.FILE_NAME + '-wal'))


def test_kill_in_the_middle_of_a_commit_loses_only_that_round(tmp_path):
  process = start(
    """
class Slow(dict):
  # The transaction is open while the store asks for the states.
  def items(self):
    for client in range(400):
      yield client, state_of(client, 2, 20000)
    print('ready', flush=True)
    sys.stdin.read()

store = RunStore.create(directory, {})
for n in range(2):
  store.commit_round(
    n,
    server_state=state_of(-n % 7, n),
    client_states={c: state_of(c, n) for c in range(10)},
    metrics={'loss': 1.0})
store.commit_round(2, server_state=b'x' * 2000000, client_states=Slow(),
                   metrics={'loss': 2.0})
""",
    tmp_path,
  )
  try:
    assert process.stdout.readline() == 'ready\n'
    # The states exceed SQLite's cache: part of the round is on the disk.
    log_size = os.path.getsize(tmp_path / (run_store.FILE_NAME + '-wal'))
    assert log_size > 4_000_000
    with RunStore.open_for_reading(tmp_path) as reader:
      assert reader.last_round == 1
  finally:
    kill(process)

  with RunStore.open_or_create(tmp_path, {}) as store:
    assert store.last_round == 1
    assert store.server_state() == state_of(6, 1)
    assert store.client_states(range(400)) == {
      c: state_of(c, 1) for c in range(10)
    }
    assert [row['loss'] for row in store.history()] == [1.0]
    commit(store, 2, clients=[1])
    assert store.last_round == 2
  check = sqlite3.connect(tmp_path / run_store.FILE_NAME)
  assert check.execute('PRAGMA integrity_check').fetchall() == [('ok',)]
  check.close()


def test_kill_at_any_time_leaves_a_whole_round(tmp_path):
  process = start(
    """
store = RunStore.create(directory, {})
for n in range(100000):
  store.commit_round(
    n,
    server_state=state_of(99, n),
    client_states={c: state_of(c, n) for c in range(n % 3, 30, 3)},
    metrics={'n': n})
  print(n, flush=True)
""",
    tmp_path,
  )
  announced = -1
  try:
    while announced < 20:
      announced = int(process.stdout.readline())
  finally:
    kill(process)

  with RunStore.open_or_create(tmp_path, {}) as store:
    last = store.last_round
    assert last >= announced
    assert store.server_state() == state_of(99, last)
    for client, state in store.client_states(range(30)).items():
      newest = last - (last - client) % 3
      assert state == state_of(client, newest)
    assert [row['n'] for row in store.history()] == list(range(1, last + 1))


def test_disk_full_while_committing_loses_only_that_round(tmp_path):
  with RunStore.create(tmp_path, _CONFIG) as store:
    commit(store, 0, clients=[1])
    commit(store, 1, clients=[1])
    pages = store._connection.execute('PRAGMA page_count').fetchone()[0]
    store._connection.execute(f'PRAGMA max_page_count = {pages + 2}')

    text = run_error(
      store.commit_round,
      2,
      server_state=b's' * 10_000,
      client_states={c: b'c' * 20_000 for c in range(50)},
      metrics={'loss': 0.0},
    )

    assert 'disk full' in text
    assert 'everything up to round 1 is safe' in text
    assert '`resume`' in text
    assert store.last_round == 1
    assert store.server_state() == state_of(10**6, 1)
    assert store.client_states(range(50)) == {1: state_of(1, 1)}
    # Once there is room, the same store goes on.
    store._connection.execute(f'PRAGMA max_page_count = {pages + 1000}')
    commit(store, 2, clients=range(50))

  with RunStore.open_or_create(tmp_path, _CONFIG) as store:
    assert store.last_round == 2
    assert len(store.client_states(range(60))) == 50


def test_interrupt_while_committing_loses_only_that_round(store):
  class Interrupted(dict):
    def items(self):
      yield 1, b'new'
      raise KeyboardInterrupt

  commit(store, 0, clients=[1])
  with pytest.raises(KeyboardInterrupt):
    store.commit_round(
      1, server_state=b'new', client_states=Interrupted(), metrics={}
    )
  assert store.last_round == 0
  assert store.client_states([1]) == {1: state_of(1, 0)}


@pytest.mark.parametrize(
  'damage',
  [
    lambda content: content[: len(content) // 2],
    lambda content: b'not a database at all, but long enough' * 100,
    lambda content: content[:100] + b'\xff' * (len(content) - 100),
  ],
  ids=['truncated', 'other_file', 'overwritten'],
)
def test_damaged_file_is_one_line_and_left_alone(tmp_path, damage):
  with RunStore.create(tmp_path, _CONFIG) as store:
    commit(store, 0, clients=range(100))
  path = tmp_path / run_store.FILE_NAME
  damaged = damage(path.read_bytes())
  path.write_bytes(damaged)

  assert 'damaged' in run_error(RunStore.open_or_create, tmp_path, _CONFIG)
  assert 'damaged' in run_error(RunStore.open_for_reading, tmp_path)
  run_error(RunStore.create, tmp_path, _CONFIG)

  assert path.read_bytes() == damaged


@pytest.fixture(scope='module', name='evaluated')
def _evaluated(tmp_path_factory):
  """The file of a run of four rounds, two of them with an evaluation."""
  directory = tmp_path_factory.mktemp('run')
  with RunStore.create(directory, _CONFIG) as store:
    for number in range(5):
      scores = {'accuracy': 0.25 * number}
      rows = [{'client': c, 'accuracy': 0.5} for c in 'abc']
      commit(
        store,
        number,
        clients=[number],
        **({'evaluation': scores, 'per_client': rows} if number % 2 else {}),
      )
  return (directory / run_store.FILE_NAME).read_bytes()


def write_changed(directory, content, statement):
  """Writes the content of a run's file, changed by a statement of SQL."""
  path = directory / run_store.FILE_NAME
  path.write_bytes(content)
  with contextlib.closing(sqlite3.connect(path)) as connection:
    connection.execute(statement)
    connection.commit()
  return path


def test_a_changed_byte_of_settings_or_metrics_is_found_on_opening(
  tmp_path, evaluated
):
  path = tmp_path / run_store.FILE_NAME
  for text, changed in (
    (b'"head_learning_rate":0.1', b'"head_learning_rate":0.2'),
    (b'"loss":2.0', b'"loss":3.0'),
    (b'"accuracy":0.25', b'"accuracy":0.35'),
    (b'"client":"b","accuracy":0.5', b'"client":"b","accuracy":0.4'),
    # No text any more.
    (b'"loss":2.0', b'"loss":\xff.0'),
    # Another round.
    (b'{"loss":4.0}', b'{"loss":3.0}'),
  ):
    assert evaluated.count(text) == 1
    path.write_bytes(evaluated.replace(text, changed))
    for open_run in (
      lambda: RunStore.open_for_reading(tmp_path),
      lambda: RunStore.open_or_create(tmp_path, _CONFIG),
    ):
      message = run_error(open_run)
      assert 'run.sqlite is damaged' in message
      assert 'restore it from a backup' in message


@pytest.mark.parametrize(
  'statement, words',
  [
    ('DELETE FROM rounds WHERE round = 2', 'round 2 is missing'),
    ('DELETE FROM rounds WHERE round = 0', 'round 0 is missing'),
    ('DELETE FROM rounds WHERE round = 4', 'not that of the last round'),
    ('DELETE FROM evaluations WHERE round = 1', 'round 1 has another checksum'),
    ('DELETE FROM per_client WHERE row = 2', 'scores of clients'),
    ('DELETE FROM config', 'settings are missing'),
    ('DROP TABLE config', 'no such table: config'),
    ('UPDATE rounds SET metrics = NULL WHERE round = 3', 'round 3'),
    ("UPDATE server_state SET state = x'00'", 'not that of the last round'),
    ('UPDATE rounds SET metrics = \'{"a" 1}\'', 'round 0 has another'),
  ],
)
def test_a_damaged_run_is_not_resumed_and_not_changed(
  tmp_path, evaluated, statement, words
):
  path = write_changed(tmp_path, evaluated, statement)
  damaged = path.read_bytes()
  message = run_error(
    RunStore.open_or_create, tmp_path, {**_CONFIG, 'num_rounds': 9}
  )
  assert words in message
  assert 'run.sqlite is damaged' in message
  assert path.read_bytes() == damaged


def test_a_state_that_is_not_of_the_last_round_is_not_read(tmp_path, evaluated):
  write_changed(tmp_path, evaluated, "UPDATE server_state SET state = x'00'")
  with RunStore.open_for_reading(tmp_path) as store:
    assert 'not that of the last' in run_error(store.server_state)


def test_a_refused_resumption_leaves_the_files_of_a_killed_run(tmp_path):
  killed = tmp_path / 'killed'
  killed.mkdir()
  with RunStore.create(tmp_path / 'run', _CONFIG) as store:
    commit(store, 0)
    commit(store, 1)
    # As they lie there when a process is killed.
    for suffix in ('', '-wal'):
      name = run_store.FILE_NAME + suffix
      (killed / name).write_bytes((tmp_path / 'run' / name).read_bytes())
  names = [run_store.FILE_NAME, run_store.FILE_NAME + '-wal']
  before = [(killed / name).read_bytes() for name in names]
  for open_run, given in (
    (RunStore.open_or_create, {**_CONFIG, 'algorithm': 'fed_avg'}),
    (RunStore.open_or_create, {**_CONFIG, 'num_rounds': 0}),
    (RunStore.create, _CONFIG),
  ):
    run_error(open_run, killed, given)
    assert [(killed / name).read_bytes() for name in names] == before
  with RunStore.open_or_create(killed, _CONFIG) as store:
    assert store.last_round == 1


@pytest.mark.parametrize('open_run', [RunStore.create, RunStore.open_or_create])
@pytest.mark.parametrize('content', [b'', None])
def test_a_lost_store_is_not_replaced_where_its_metrics_are(
  tmp_path, open_run, content
):
  path = tmp_path / run_store.FILE_NAME
  if content is not None:
    path.write_bytes(content)
  (tmp_path / 'metrics.jsonl').write_text('{"round":1}\n')
  message = run_error(open_run, tmp_path, _CONFIG)
  assert 'restore run.sqlite from a backup, remove metrics.jsonl' in message
  assert content == (path.read_bytes() if path.exists() else None)


def test_database_of_another_program_is_left_alone(tmp_path):
  path = tmp_path / run_store.FILE_NAME
  with sqlite3.connect(path) as connection:
    connection.execute('CREATE TABLE precious (x)')
  connection.close()
  assert 'not made by tff_pfl' in run_error(
    RunStore.open_or_create, tmp_path, {}
  )
  run_error(RunStore.create, tmp_path, {})
  with sqlite3.connect(path) as connection:
    assert connection.execute('SELECT * FROM precious').fetchall() == []
  connection.close()


@pytest.mark.parametrize('version', [1, 2, 99])
def test_run_of_another_version_is_refused(tmp_path, version):
  with RunStore.create(tmp_path, _CONFIG) as store:
    commit(store, 0)
    store._connection.execute(f'PRAGMA user_version = {version}')
  message = run_error(RunStore.open_or_create, tmp_path, _CONFIG)
  assert f'version {version}' in message
  message = run_error(RunStore.open_for_reading, tmp_path)
  assert f'version {version}' in message
  assert 'use the tff_pfl that made it' in message


def test_directory_that_is_a_file_is_one_line(tmp_path):
  path = tmp_path / 'file'
  path.write_text('x')
  assert str(path) in run_error(RunStore.create, path, _CONFIG)
