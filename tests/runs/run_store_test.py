import contextlib
import functools
import os
import pathlib
import signal
import sqlite3
import subprocess
import sys

import numpy as np
import pytest

from tff_pfl import errors
from tff_pfl.runs import directory_lock, run_store

RunStore = run_store.RunStore
resume = functools.partial(RunStore.open, resume=True)

_ROOT = pathlib.Path(run_store.__file__).parents[2]
_CONFIG = {
  'algorithm': 'fed_rep',
  'num_rounds': 5,
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


@contextlib.contextmanager
def started(code, directory):
  """A process of Python code that uses `directory`, killed in the end."""
  header = f"""
import sys
sys.path.insert(0, {str(_ROOT)!r})
import numpy as np
from tff_pfl.runs.run_store import RunStore
directory = {str(directory)!r}
def state_of(client, round_number, size=2000):
  return np.random.default_rng([client, round_number]).bytes(size)
"""
  with subprocess.Popen(
    [sys.executable, '-c', header + code],
    stdin=subprocess.PIPE,
    stdout=subprocess.PIPE,
    text=True,
  ) as process:
    try:
      yield process
    finally:
      os.kill(process.pid, signal.SIGKILL)


def run_error(function, *args, **kwargs):
  """Returns the one line of the `RunError` that the call must raise."""
  with pytest.raises(errors.RunError) as error:
    function(*args, **kwargs)
  text = str(error.value)
  assert '\n' not in text
  return text


def test_what_is_larger_than_a_value_of_sqlite_is_stored_in_pieces(
  tmp_path, monkeypatch
):
  monkeypatch.setattr(run_store, '_PIECE_SIZE', 10)
  with run_store.RunStore.open(tmp_path, {}) as store:
    for state in (bytes(range(95)), bytes(range(31))):
      store.commit_round(server_state=state, client_states={}, metrics={})
      assert store.server_state() == state


def test_committed_rounds_are_there_after_resuming(tmp_path):
  directory = tmp_path / 'new' / 'run'
  with RunStore.open(directory, _CONFIG) as store:
    assert store.last_round == -1
    assert 'no state yet' in run_error(store.server_state)
    commit(store)
    assert store.last_round == 0
    commit(store, clients=[3, 5])
    commit(store, clients=[5, 7])

  with resume(directory, _CONFIG) as store:
    assert store.last_round == 2
    assert store.config == _CONFIG
    assert store.server_state() == state_of(10**6, 2)
    states = {7: state_of(7, 2), 3: state_of(3, 1), 5: state_of(5, 2)}
    assert store.client_states([7, 4, 3, 5]) == states
    assert list(store.client_states([7, 3])) == [7, 3]
    assert set(store.client_states(range(10))) == {3, 5, 7}
    store.commit_round(server_state=b'', client_states={1: b''}, metrics={})
    assert store.server_state() == store.client_states([1])[1] == b''


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


def test_create_refuses_a_directory_with_a_run(tmp_path):
  start_run(tmp_path)
  text = run_error(RunStore.open, tmp_path, _CONFIG)
  assert str(tmp_path) in text
  assert '`resume`' in text
  assert '`output_dir`' in text
  with resume(tmp_path, _CONFIG) as store:
    assert store.last_round == 0


def test_create_replaces_what_committed_nothing(tmp_path):
  # A creation that was killed.
  (tmp_path / run_store.FILE_NAME).write_bytes(b'')
  assert 'is empty' in run_error(RunStore.open_for_reading, tmp_path)
  RunStore.open(tmp_path, _CONFIG).close()
  with RunStore.open(tmp_path, {'other': 1}) as store:
    assert store.config == {'other': 1}


def test_folders_without_a_run_are_one_line(tmp_path):
  for directory in (tmp_path, tmp_path / 'missing'):
    text = run_error(RunStore.open_for_reading, directory)
    assert f'no run in {directory}' in text
  assert not (tmp_path / 'missing').exists()
  (tmp_path / 'file').write_text('x')
  text = run_error(RunStore.open, tmp_path / 'file', _CONFIG)
  assert str(tmp_path / 'file') in text


def test_resuming_with_other_settings_names_each_of_them(tmp_path):
  start_run(tmp_path)
  given = {
    'algorithm': 'fed_rep',
    'num_rounds': 50,
    'hparams': {'head_learning_rate': 0.2},
    'seed': 3,
  }
  text = run_error(resume, tmp_path, given)
  assert 'hparams.head_learning_rate was 0.1, now 0.2' in text
  assert "hparams.layers was ['head'], now None" in text
  assert 'seed was None, now 3' in text
  assert 'num_rounds' not in text
  assert 'algorithm' not in text
  # The lock is free again, and the run has its old settings.
  with resume(tmp_path, _CONFIG) as store:
    assert store.config == _CONFIG


def test_settings_are_json_and_some_take_new_values(tmp_path):
  start_run(tmp_path, {'sizes': (1, 2), 'rate': {'x': np.float64(0.5)}})
  given = {'sizes': [1, 2], 'rate': {'x': 0.5}, 'num_rounds': 9}
  for data_dir in ('here', 'moved'):
    given['data_dir'] = data_dir
    with resume(tmp_path, given) as store:
      assert store.config == given
  text = run_error(resume, tmp_path, {**given, 'num_rounds': -1})
  assert 'at least the 0 rounds' in text


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


def test_kill_in_the_middle_of_a_commit_loses_only_that_round(tmp_path):
  code = """
class Slow(dict):
  # The transaction is open while the store asks for the states.
  def items(self):
    for client in range(400):
      yield client, state_of(client, 2, 20000)
    print('ready', flush=True)
    sys.stdin.read()

store = RunStore.open(directory, {})
for n in range(2):
  store.commit_round(
    server_state=state_of(7, n),
    client_states={c: state_of(c, n) for c in range(10)},
    metrics={'loss': 1.0})
store.commit_round(server_state=b'x' * 2000000, client_states=Slow(),
                   metrics={'loss': 2.0})
"""
  with started(code, tmp_path) as process:
    assert process.stdout.readline() == 'ready\n'
    # The states exceed SQLite's cache: part of the round is on the disk.
    log_size = os.path.getsize(tmp_path / (run_store.FILE_NAME + '-wal'))
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
    assert store.server_state() == state_of(7, 1)
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


def test_kill_at_any_time_leaves_a_whole_round(tmp_path):
  code = """
store = RunStore.open(directory, {})
for n in range(100000):
  store.commit_round(
    server_state=state_of(99, n),
    client_states={c: state_of(c, n) for c in range(n % 3, 30, 3)},
    metrics={'n': n})
  print(n, flush=True)
"""
  announced = -1
  with started(code, tmp_path) as process:
    while announced < 20:
      announced = int(process.stdout.readline())

  with resume(tmp_path, {}) as store:
    last = store.last_round
    assert last >= announced
    assert store.server_state() == state_of(99, last)
    for client, state in store.client_states(range(30)).items():
      newest = last - (last - client) % 3
      assert state == state_of(client, newest)
    assert [row['n'] for row in store.history()] == list(range(1, last + 1))


def test_disk_full_while_committing_loses_only_that_round(tmp_path):
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
    assert 'everything up to round 1 is safe' in text
    assert '`resume`' in text
    assert store.last_round == 1
    assert store.server_state() == state_of(10**6, 1)
    assert store.client_states(range(50)) == {1: state_of(1, 1)}
    # Once there is room, the same store goes on.
    store._connection.execute(f'PRAGMA max_page_count = {pages + 1000}')
    commit(store, clients=range(50))

  with resume(tmp_path, _CONFIG) as store:
    assert store.last_round == 2
    assert len(store.client_states(range(60))) == 50


def test_interrupt_while_committing_loses_only_that_round(store):
  class Interrupted(dict):
    def items(self):
      yield 1, b'new'
      raise KeyboardInterrupt

  commit(store, clients=[1])
  with pytest.raises(KeyboardInterrupt):
    store.commit_round(
      server_state=b'new', client_states=Interrupted(), metrics={}
    )
  assert store.last_round == 0
  assert store.client_states([1]) == {1: state_of(1, 0)}


@pytest.fixture(scope='module', name='evaluated')
def _evaluated(tmp_path_factory):
  """The file of a run of four rounds, two of them with an evaluation."""
  directory = tmp_path_factory.mktemp('run')
  with RunStore.open(directory, _CONFIG) as store:
    for number in range(5):
      scores = {
        'evaluation': {'accuracy': 0.25 * number},
        'per_client': [{'client': c, 'accuracy': 0.5} for c in 'abc'],
      }
      commit(store, clients=range(100), **(scores if number % 2 else {}))
  return (directory / run_store.FILE_NAME).read_bytes()


@pytest.mark.parametrize(
  'damage',
  [
    lambda content: content[: len(content) // 2],
    lambda content: b'not a database at all, but long enough' * 100,
    lambda content: content[:100] + b'\xff' * (len(content) - 100),
    *(
      lambda content, text=text, changed=changed: content.replace(text, changed)
      for text, changed in (
        (b'"head_learning_rate":0.1', b'"head_learning_rate":0.2'),
        (b'"loss":2.0', b'"loss":3.0'),
        (b'"accuracy":0.25', b'"accuracy":0.35'),
        (b'"client":"b","accuracy":0.5', b'"client":"b","accuracy":0.4'),
        # No text any more.
        (b'"loss":2.0', b'"loss":\xff.0'),
      )
    ),
  ],
)
def test_damaged_file_is_one_line_and_left_alone(tmp_path, evaluated, damage):
  path = tmp_path / run_store.FILE_NAME
  damaged = damage(evaluated)
  assert damaged != evaluated
  path.write_bytes(damaged)
  for open_run in (
    lambda: RunStore.open_for_reading(tmp_path),
    lambda: resume(tmp_path, _CONFIG),
  ):
    message = run_error(open_run)
    assert 'run.sqlite is damaged' in message
    assert 'restore it from a backup' in message
  run_error(RunStore.open, tmp_path, _CONFIG)
  assert path.read_bytes() == damaged


def write_changed(directory, content, statement):
  """Writes the content of a run's file, changed by a statement of SQL."""
  path = directory / run_store.FILE_NAME
  path.write_bytes(content)
  with contextlib.closing(sqlite3.connect(path)) as connection:
    connection.execute(statement)
    connection.commit()
  return path


@pytest.mark.parametrize(
  'statement, words',
  [
    ('DELETE FROM rounds WHERE round = 2', 'round 2 is missing'),
    ('DELETE FROM rounds WHERE round = 0', 'round 0 is missing'),
    ('UPDATE rounds SET round = 9 WHERE round = 4', 'round 4 is missing'),
    ('DELETE FROM rounds WHERE round = 4', 'server_state 3 has another'),
    ("DELETE FROM newest WHERE name = 'per_client'", 'per_client is missing'),
    ("DELETE FROM newest WHERE name = 'config'", 'config is missing'),
    ('UPDATE rounds SET content = NULL WHERE round = 3', 'round 3 has another'),
    ("UPDATE newest SET content = x'00'", 'another checksum'),
    (
      'UPDATE rounds SET content ='
      ' (SELECT content FROM rounds WHERE round = 1) WHERE round = 3',
      'round 3 has another',
    ),
  ],
)
def test_a_damaged_run_is_not_resumed_and_not_changed(
  tmp_path, evaluated, statement, words
):
  path = write_changed(tmp_path, evaluated, statement)
  damaged = path.read_bytes()
  message = run_error(resume, tmp_path, {**_CONFIG, 'num_rounds': 9})
  assert words in message
  assert 'run.sqlite is damaged' in message
  assert path.read_bytes() == damaged


def test_states_that_are_not_what_was_committed_are_not_read(
  tmp_path, evaluated
):
  path = write_changed(
    tmp_path,
    evaluated,
    'UPDATE client_states SET content ='
    ' (SELECT content FROM client_states WHERE client = 1) WHERE client = 2',
  )
  with RunStore.open_for_reading(tmp_path) as store:
    assert store.client_states([1])
    assert 'client 2 has another' in run_error(store.client_states, [1, 2])
  statement = "UPDATE newest SET content = x'00' WHERE name = 'server_state'"
  write_changed(tmp_path, path.read_bytes(), statement)
  with RunStore.open_for_reading(tmp_path) as store:
    assert 'server_state 4 has another' in run_error(store.server_state)


@pytest.mark.parametrize('open_run', [RunStore.open, resume])
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


@pytest.mark.parametrize(
  'statement, words',
  [
    ('PRAGMA application_id = 7', 'not made by tff_pfl'),
    ('PRAGMA user_version = 3', 'version 3.*use the tff_pfl that made it'),
    ('DROP TABLE rounds', 'no such table'),
  ],
)
def test_files_of_other_programs_and_versions_are_left_alone(
  tmp_path, evaluated, statement, words
):
  path = write_changed(tmp_path, evaluated, statement)
  content = path.read_bytes()
  for open_run in (
    lambda: RunStore.open_for_reading(tmp_path),
    lambda: resume(tmp_path, _CONFIG),
  ):
    with pytest.raises(errors.RunError, match=words):
      open_run()
  run_error(RunStore.open, tmp_path, {})
  assert path.read_bytes() == content
