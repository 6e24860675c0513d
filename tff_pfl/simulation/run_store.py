"""The durable state of a run: one SQLite file in the run's output directory.

A round is committed as a whole or not at all: the server state, the states of
the clients that took part, the metrics and the evaluation go into one
transaction that is on the disk when `RunStore.commit_round` returns. A run that
is killed at any moment thus loses at most the round it was computing. Only the
newest server state and the newest state of each client are kept, so with the
rounds the file grows by their metrics alone. Client states are read one by one
when asked for; memory does not grow with the number of clients.

```
with RunStore.open_or_create(directory, config) as store:
  if store.last_round < 0:
    store.commit_round(0, server_state=..., client_states={}, metrics={})
  for round_number in range(store.last_round + 1, num_rounds + 1):
    states = store.client_states(cohort)
    ...
    store.commit_round(round_number, server_state=..., client_states=...,
                       metrics=...)
```

One process at a time writes to a run. It holds an advisory lock on the file
`run.lock`, which the kernel releases however the process ends. Any number of
processes may read meanwhile, through `RunStore.open_for_reading`.

Settings and metrics stand behind checksums, and the rounds have no gap. All of
that is checked when a run is opened, before anything is written to it.

A store belongs to the thread that opened it.
"""

import contextlib
import errno
import fcntl
import json
import operator
import os
import sqlite3
import urllib.parse
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import (
  Any,
  Optional,
  Union,
)

from tff_pfl import errors
from tff_pfl.simulation import metrics_writers, value_codec

FILE_NAME = 'run.sqlite'
LOCK_NAME = 'run.lock'

# What may differ between a run and its resumption unless the caller says
# otherwise: it does not change what any round computes.
MUTABLE_SETTINGS = ('num_rounds', 'data_dir', 'runtime')

# Marks a SQLite file as ours ("tfpf"), with the version of the tables below.
_APPLICATION_ID = 0x74667066
_SCHEMA_VERSION = 3
_SCHEMA = (
  # One row: the settings of the run.
  'CREATE TABLE config (id INTEGER PRIMARY KEY CHECK (id = 0), json TEXT)',
  # The newest server state, in pieces: SQLite limits the size of one value.
  'CREATE TABLE server_state (piece INTEGER PRIMARY KEY, state BLOB)',
  'CREATE TABLE client_states'
  ' (client INTEGER PRIMARY KEY, round INTEGER, state BLOB)',
  'CREATE TABLE rounds (round INTEGER PRIMARY KEY, metrics TEXT)',
  'CREATE TABLE evaluations (round INTEGER PRIMARY KEY, metrics TEXT)',
  # One row for each client in the newest evaluation.
  'CREATE TABLE per_client (row INTEGER PRIMARY KEY, metrics TEXT)',
)
# States are large: with pages larger than SQLite's 4 KiB they take fewer.
_PAGE_SIZE = 16 * 1024
_PIECE_SIZE = 128 * 1024 * 1024
# The write-ahead log is cut to this size when a large round has swollen it.
_JOURNAL_SIZE_LIMIT = 64 * 1024 * 1024
# A reader or writer waits this long for another's short critical section.
_BUSY_TIMEOUT_SECONDS = 30.0
_ROWS_PER_READ = 1000
# In SQLite's messages.
_SIGNS_OF_DAMAGE = (
  'malformed',
  'not a database',
  'no such table',
  'no such column',
  'Could not decode',
  "codec can't decode",
)

_Path = Union[str, 'os.PathLike[str]']


class RunStore:
  """The committed rounds of a run; see the module's docstring.

  Use `create`, `resume`, `open_or_create` or `open_for_reading`, not the
  constructor. Every method raises `RunError` where the file is damaged or the
  disk fails, and says what is safe.
  """

  def __init__(
    self,
    directory: str,
    connection: sqlite3.Connection,
    lock: Optional['DirectoryLock'],
  ):
    self._directory = directory
    self._connection = connection
    self._lock = lock

  @classmethod
  def create(cls, directory: _Path, config: Mapping[str, Any]) -> 'RunStore':
    """Starts a run.

    Args:
      directory: The run's output directory; made if missing. A run in it that
        never committed its initial state is replaced.
      config: The settings of the run: what JSON can hold, nested as need be.

    Returns:
      The store, open for writing, with no round committed.

    Raises:
      RunError: If `directory` has a run, is in use by a running process, or
        cannot be written to.
    """
    directory = os.fspath(directory)
    config_json = _dump(config)
    with contextlib.ExitStack() as on_error:
      lock = on_error.enter_context(DirectoryLock(directory))
      path = os.path.join(directory, FILE_NAME)
      if _has_run(path):
        raise errors.RunError(
          f'There is a run in {directory} already: pass --resume to go on with'
          ' it, or another --output_dir.'
        )
      with _translated(directory, 'create the run'):
        for suffix in ('', '-wal', '-shm', '-journal'):
          with contextlib.suppress(FileNotFoundError):
            os.remove(path + suffix)
        connection = on_error.enter_context(
          contextlib.closing(_connect(path, 'rwc'))
        )
        connection.execute(f'PRAGMA page_size = {_PAGE_SIZE}')
        _prepare_for_writing(connection)
        with _transaction(connection):
          connection.execute(f'PRAGMA application_id = {_APPLICATION_ID}')
          connection.execute(f'PRAGMA user_version = {_SCHEMA_VERSION}')
          for statement in _SCHEMA:
            connection.execute(statement)
          connection.execute(
            'INSERT INTO config VALUES (0, ?)', [_seal(config_json)]
          )
      on_error.pop_all()
      return cls(directory, connection, lock)

  @classmethod
  def resume(
    cls,
    directory: _Path,
    config: Mapping[str, Any],
    *,
    mutable: Sequence[str] = MUTABLE_SETTINGS,
  ) -> 'RunStore':
    """Goes on with a run.

    Args:
      directory: The run's output directory.
      config: The settings given now, as for `create`.
      mutable: Settings that may differ from those of the run, by their dotted
        names (``hparams.num_epochs``) or those of a group (``hparams``). The
        run takes on the values given now.

    Returns:
      The store, open for writing, at the last committed round.

    Raises:
      RunError: If `directory` has no run, is in use by a running process, or
        its run is damaged or has other settings than `config`; the message
        gives each such setting with both values.
    """
    directory = os.fspath(directory)
    config_json = _dump(config)
    path = os.path.join(directory, FILE_NAME)
    _expect_file(directory, path)
    with contextlib.ExitStack() as on_error:
      lock = on_error.enter_context(DirectoryLock(directory))
      with _translated(directory, 'open the run'):
        # Whoever can write changes the file by closing it, if only by moving
        # the write-ahead log of a killed process into it.
        with contextlib.closing(_connect_read_only(path)) as connection:
          _check_schema(connection, directory)
          store = cls(directory, connection, None)
          store._check()
          store._state()
          store._check_resumable(json.loads(config_json), mutable)
        connection = on_error.enter_context(
          contextlib.closing(_connect(path, 'rw'))
        )
        _prepare_for_writing(connection)
        connection.execute('UPDATE config SET json = ?', [_seal(config_json)])
      on_error.pop_all()
      return cls(directory, connection, lock)

  @classmethod
  def open_or_create(
    cls,
    directory: _Path,
    config: Mapping[str, Any],
    *,
    mutable: Sequence[str] = MUTABLE_SETTINGS,
  ) -> 'RunStore':
    """Goes on with the run in `directory` or, without one, starts it.

    Args:
      directory: As for `resume`.
      config: As for `resume`.
      mutable: As for `resume`.

    Returns:
      The store, open for writing.

    Raises:
      RunError: As `resume` and `create`.
    """
    directory = os.fspath(directory)
    if _has_run(os.path.join(directory, FILE_NAME)):
      return cls.resume(directory, config, mutable=mutable)
    return cls.create(directory, config)

  @classmethod
  def open_for_reading(cls, directory: _Path) -> 'RunStore':
    """Opens a run that may be in progress, to read what it has committed.

    Args:
      directory: The run's output directory.

    Returns:
      The store. Each of its methods reads what is committed at that moment.

    Raises:
      RunError: If `directory` has no run, or a damaged one.
    """
    directory = os.fspath(directory)
    path = os.path.abspath(os.path.join(directory, FILE_NAME))
    _expect_file(directory, path)
    with contextlib.ExitStack() as on_error:
      with _translated(directory, 'open the run'):
        connection = on_error.enter_context(
          contextlib.closing(_connect_for_reading(path))
        )
        _check_schema(connection, directory)
      store = cls(directory, connection, None)
      store._check()
      on_error.pop_all()
      return store

  @property
  def directory(self) -> str:
    """The run's output directory."""
    return self._directory

  @property
  def config(self) -> dict[str, Any]:
    """The settings of the run."""
    rows = self._read('SELECT json FROM config')
    if not rows:
      raise _damaged(self._directory, 'its settings are missing')
    return self._json('its settings', rows[0][0])

  @property
  def last_round(self) -> int:
    """The number of rounds committed; -1 before the initial state is."""
    ((newest,),) = self._read('SELECT MAX(round) FROM rounds')
    return -1 if newest is None else newest

  def commit_round(
    self,
    round_number: int,
    *,
    server_state: bytes,
    client_states: Mapping[int, bytes],
    metrics: Mapping[str, Any],
    evaluation: Optional[Mapping[str, Any]] = None,
    per_client: Optional[Sequence[Mapping[str, Any]]] = None,
  ) -> None:
    """Commits all that a round has changed, or nothing.

    Args:
      round_number: The round, `last_round` + 1; 0 for the initial state.
      server_state: The server state after the round.
      client_states: The states of clients that have changed, by client index.
      metrics: The metrics of the round, nested as need be, of the types that
        `value_codec.to_json` takes; "round" and "evaluation" are taken names.
      evaluation: The metrics of an evaluation after the round, likewise; None
        if none took place.
      per_client: With `evaluation`, the metrics of each client.

    Raises:
      ValueError: If the round is not the next one, or `metrics`, `evaluation`
        or `per_client` are not as above.
      TypeError: If a state is not `bytes`.
      RunError: If the disk is full or fails. Nothing of the round is stored
        then, and all rounds before it are still there.
    """
    self._expect_writable()
    last_round = self.last_round
    round_number = operator.index(round_number)
    errors.expect(
      round_number == last_round + 1,
      'round_number',
      f'the next round, {last_round + 1}',
      round_number,
    )
    errors.expect(
      per_client is None or evaluation is not None,
      'per_client',
      'given together with `evaluation`',
      '`evaluation` is None',
    )
    for name in ('round', 'evaluation'):
      errors.expect(
        name not in metrics,
        'metrics',
        f'without {name!r}, which the history adds',
        list(metrics),
      )
    errors.expect(
      evaluation is None or 'round' not in evaluation,
      'evaluation',
      "without 'round', which is added",
      evaluation,
    )
    errors.expect_type(server_state, bytes, 'server_state', 'bytes')
    evaluation_json = None if evaluation is None else _dump(evaluation)
    clients = per_client or ()
    what = f'commit round {round_number}'
    with _translated(self._directory, what, safe_round=last_round):
      with _transaction(self._connection) as connection:
        connection.execute('DELETE FROM server_state')
        connection.executemany(
          'INSERT INTO server_state VALUES (?, ?)',
          enumerate(_pieces(server_state)),
        )
        connection.executemany(
          'INSERT OR REPLACE INTO client_states VALUES (?, ?, ?)',
          _client_rows(round_number, client_states),
        )
        metrics_json = _checksum(server_state) + _dump(metrics)
        connection.execute(
          'INSERT INTO rounds VALUES (?, ?)',
          [round_number, _seal(metrics_json, round_number, evaluation_json)],
        )
        if evaluation is not None:
          connection.execute(
            'INSERT INTO evaluations VALUES (?, ?)',
            [round_number, evaluation_json],
          )
          connection.execute('DELETE FROM per_client')
          connection.executemany(
            'INSERT INTO per_client VALUES (?, ?)',
            (
              (i, _seal(_dump(row), i, len(clients)))
              for i, row in enumerate(clients)
            ),
          )

  def server_state(self) -> bytes:
    """Returns the newest server state.

    Raises:
      RunError: If the initial state is not committed yet, or cannot be read.
    """
    state = self._state()
    if state is None:
      raise errors.RunError(
        f'The run in {self._directory} has committed no state yet.'
      )
    return state

  def client_states(self, client_indices: Iterable[int]) -> dict[int, bytes]:
    """Returns the newest states of the given clients.

    Args:
      client_indices: The clients asked for.

    Returns:
      States by client index, in the order asked for. A client whose state was
      never committed is absent.

    Raises:
      RunError: If they cannot be read.
    """
    states = {}
    query = 'SELECT state FROM client_states WHERE client = ?'
    with _translated(self._directory, 'read the run'):
      # One transaction, so that a reader never sees states of two rounds.
      with _transaction(self._connection, 'DEFERRED') as connection:
        for index in client_indices:
          index = operator.index(index)
          row = connection.execute(query, [index]).fetchone()
          if row is not None:
            states[index] = row[0]
    return states

  def num_client_states(self) -> int:
    """Returns the number of clients that have a state."""
    ((number,),) = self._read('SELECT COUNT(*) FROM client_states')
    return number

  def metrics(self) -> Iterator[dict[str, Any]]:
    """Yields ``{'round': round, **metrics}`` for each round from 1 on."""
    for number, metrics, _ in self._rounds():
      if number > 0:
        yield {'round': number, **metrics}

  def evaluations(self) -> list[dict[str, Any]]:
    """Returns ``{'round': round, **evaluation}`` for each evaluation."""
    return [
      {'round': number, **evaluation}
      for number, _, evaluation in self._rounds()
      if evaluation is not None
    ]

  def history(self) -> Iterator[dict[str, Any]]:
    """Yields all that is known of each round, as the metrics writers take it.

    Yields:
      ``{'round': round, **metrics, 'evaluation': evaluation}``, the last only
      where there was one. The initial state is round 0; it is left out where
      it has neither metrics nor evaluation.
    """
    for number, metrics, evaluation in self._rounds():
      merged = {'round': number, **metrics}
      if evaluation is not None:
        merged['evaluation'] = evaluation
      if len(merged) > 1 or number > 0:
        yield merged

  def per_client(self) -> list[dict[str, Any]]:
    """Returns the metrics of each client in the newest evaluation."""
    rows = self._read('SELECT metrics FROM per_client ORDER BY row')
    return [
      self._json('its scores of clients', *row, i, len(rows))
      for i, row in enumerate(rows)
    ]

  def close(self) -> None:
    """Closes the file and lets go of the directory; may be called again."""
    self._connection.close()
    if self._lock is not None:
      self._lock.release()

  def __enter__(self) -> 'RunStore':
    return self

  def __exit__(self, *_: Any) -> None:
    self.close()

  def _expect_writable(self) -> None:
    if self._lock is None:
      raise errors.RunError(
        f'The run in {self._directory} is open for reading only.'
      )

  def _read(self, query: str, parameters: Sequence[Any] = ()) -> list[Any]:
    with _translated(self._directory, 'read the run'):
      return self._connection.execute(query, parameters).fetchall()

  def _state(self) -> Optional[bytes]:
    """Returns the newest server state, or None where there is none."""
    # One statement, as a round may be committed meanwhile.
    rows = self._read(
      'SELECT state, (SELECT substr(metrics, 9, 8) FROM rounds'
      ' ORDER BY round DESC LIMIT 1) FROM server_state ORDER BY piece'
    )
    if not rows and self.last_round < 0:
      return None
    try:
      state = b''.join(row[0] for row in rows)
    except TypeError as error:
      raise _damaged(self._directory, f'server state: {error}') from error
    if not rows or rows[0][1] != _checksum(state):
      raise _damaged(self._directory, 'its state is not that of the last round')
    return state

  def _rounds(self) -> Iterator[Any]:
    """Yields (round, metrics, evaluation or None) as they were committed."""
    # Read in batches: a query that stays open while its rows are consumed would
    # keep the running process from shortening its write-ahead log.
    last = -1
    while True:
      rows = self._read(
        'SELECT round, rounds.metrics, evaluations.metrics FROM rounds'
        ' LEFT JOIN evaluations USING (round)'
        ' WHERE round > ? ORDER BY round LIMIT ?',
        [last, _ROWS_PER_READ],
      )
      for number, metrics, evaluation in rows:
        last += 1
        if number != last:
          raise _damaged(self._directory, f'round {last} is missing')
        metrics = self._unseal(f'round {number}', metrics, number, evaluation)
        yield (
          number,
          # Behind the checksum of the state.
          json.loads(metrics[8:]),
          None if evaluation is None else json.loads(evaluation),
        )
      if len(rows) < _ROWS_PER_READ:
        return

  def _json(self, what: str, text: Any, *context: Any) -> Any:
    """Returns the value that `_seal` was given as JSON, with `context`."""
    return json.loads(self._unseal(what, text, *context))

  def _unseal(self, what: str, text: Any, *context: Any) -> str:
    """Returns what `_seal` was given."""
    if isinstance(text, str) and text == _seal(text[8:], *context):
      return text[8:]
    raise _damaged(self._directory, f'{what} has another checksum')

  def _check(self) -> None:
    """Raises `RunError` unless settings and metrics are as committed.

    States are checked as they are read.
    """
    # Reading them checks them.
    for _ in self._rounds():
      pass
    _ = self.config, self.per_client()

  def _check_resumable(
    self, given: Mapping[str, Any], mutable: Sequence[str]
  ) -> None:
    """Raises `RunError` if the run cannot go on with the settings given."""
    _check_config(self._directory, self.config, given, mutable)
    last_round = self.last_round
    if given.get('num_rounds', last_round) < last_round:
      raise errors.RunError(
        errors.message(
          'num_rounds',
          f'at least the {last_round} rounds that the run in '
          f'{self._directory} has',
          given['num_rounds'],
        )
      )


class DirectoryLock:
  """A lock on a directory that is released when the process ends, at any rate.

  Entered, it makes the directory, if missing, and takes the lock; left, it
  releases it. Entering raises `RunError` if a running process holds the lock or
  the directory cannot be written to.
  """

  def __init__(self, directory: str):
    self._directory = directory
    self._file = None

  def __enter__(self) -> 'DirectoryLock':
    path = os.path.join(self._directory, LOCK_NAME)
    try:
      os.makedirs(self._directory, exist_ok=True)
      # Not truncated on opening: the file may tell who holds the lock.
      self._file = open(path, 'a+', encoding='utf-8')
    except OSError as error:
      raise errors.RunError(
        f'Cannot write to the output directory {self._directory}:'
        f' {errors.os_reason(error)}.'
      ) from error
    try:
      fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
      self._file.seek(0)
      holder = self._file.read().strip() or 'unknown'
      self._file.close()
      if not isinstance(error, BlockingIOError):
        raise errors.RunError(
          f'Cannot lock the output directory {self._directory}:'
          f' {errors.os_reason(error)}.'
        ) from error
      raise errors.RunError(
        f'The output directory {self._directory} is in use by a running process'
        f' (pid {holder}): wait for it to end, or pass another --output_dir.'
      ) from error
    try:
      self._write(str(os.getpid()))
    except OSError as error:
      self.release()
      raise errors.RunError(
        f'Cannot write to the output directory {self._directory}:'
        f' {errors.os_reason(error)}.'
      ) from error
    return self

  def __exit__(self, *_: Any) -> None:
    self.release()

  def release(self) -> None:
    """Releases the lock; may be called again."""
    # The file stays: if it were removed, another process could lock a new file
    # of this name while a third one holds the old.
    if not self._file.closed:
      with contextlib.suppress(OSError):
        self._write('')
      with contextlib.suppress(OSError):
        self._file.close()

  def _write(self, text: str) -> None:
    self._file.seek(0)
    self._file.truncate()
    self._file.write(text)
    self._file.flush()


def _connect(
  path: str, mode: str, immutable: bool = False
) -> sqlite3.Connection:
  """Opens a SQLite file; transactions are begun and ended by statements."""
  uri = f'file:{urllib.parse.quote(os.path.abspath(path))}?mode={mode}'
  if immutable:
    uri += '&immutable=1'
  return sqlite3.connect(
    uri, uri=True, timeout=_BUSY_TIMEOUT_SECONDS, isolation_level=None
  )


def _connect_for_reading(path: str) -> sqlite3.Connection:
  """Opens a SQLite file so that no statement can change what it holds."""
  if os.access(path, os.W_OK) and os.access(os.path.dirname(path), os.W_OK):
    # Whoever closes the file last moves the write-ahead log into it and removes
    # the log, for which it must be able to write.
    connection = _connect(path, 'rw')
    connection.execute('PRAGMA query_only = ON')
    return connection
  return _connect_read_only(path)


def _connect_read_only(path: str) -> sqlite3.Connection:
  """Opens a SQLite file so that not a byte of it changes."""
  # SQLite keeps an index of the log beside the file. Where none can be made, as
  # on a read-only disk, and there is no log, the file alone tells all.
  return _connect(path, 'ro', immutable=not os.path.exists(path + '-wal'))


def _prepare_for_writing(connection: sqlite3.Connection) -> None:
  """Makes commits durable and quick."""
  connection.execute('PRAGMA journal_mode = WAL')
  connection.execute('PRAGMA synchronous = FULL')
  connection.execute(f'PRAGMA journal_size_limit = {_JOURNAL_SIZE_LIMIT}')


@contextlib.contextmanager
def _transaction(
  connection: sqlite3.Connection, kind: str = 'IMMEDIATE'
) -> Iterator[sqlite3.Connection]:
  """Commits what its body has done; if that raises, nothing has been done."""
  connection.execute(f'BEGIN {kind}')
  try:
    yield connection
    connection.execute('COMMIT')
  except BaseException:
    # After some errors SQLite has rolled back by itself.
    if connection.in_transaction:
      with contextlib.suppress(sqlite3.Error):
        connection.execute('ROLLBACK')
    raise


@contextlib.contextmanager
def _translated(
  directory: str, what: str, safe_round: Optional[int] = None
) -> Iterator[None]:
  """Turns errors of SQLite and of the file system into a one-line `RunError`.

  Args:
    directory: The run's output directory.
    what: What is attempted, read after "Cannot".
    safe_round: The last committed round, where a commit is attempted.

  Yields:
    Nothing.

  Raises:
    RunError: If the body fails so.
  """
  try:
    yield
  # Damaged names in SQLite's messages need not be text.
  except (sqlite3.Error, OSError, UnicodeDecodeError) as error:
    text = ' '.join(str(error).split())
    start = f'Cannot {what} in {directory}'
    full = 'disk is full' in text or getattr(error, 'errno', 0) == errno.ENOSPC
    if full or 'disk I/O error' in text:
      reason = f'disk full ({text})' if full else text
      if safe_round is None:
        mend = 'free space and try again'
      elif safe_round < 0:
        mend = 'nothing was committed yet; free space and start again'
      else:
        mend = (
          f'everything up to round {safe_round} is safe; free space and pass'
          ' --resume'
        )
      raise errors.RunError(f'{start}: {reason}; {mend}.') from error
    if any(sign in text for sign in _SIGNS_OF_DAMAGE):
      raise _damaged(directory, text, what) from error
    safe = '' if safe_round is None else f'; round {safe_round} is safe'
    raise errors.RunError(f'{start}: {text}{safe}.') from error


def _damaged(
  directory: str, reason: str, what: str = 'read the run'
) -> errors.RunError:
  """The error for a file that does not hold what was committed."""
  return errors.RunError(
    f'Cannot {what} in {directory}: {FILE_NAME} is damaged or not a run'
    f' ({reason}); restore it from a backup, or start a run in another folder.'
  )


def _expect_file(directory: str, path: str) -> None:
  """Raises `RunError` unless `path` is a file."""
  if not os.path.isfile(path):
    raise errors.RunError(
      f'There is no run in {directory} (no {FILE_NAME}): check the name of the'
      ' folder.'
    )


def _has_run(path: str) -> bool:
  """Returns whether there is anything that a new run must not replace."""
  if os.path.isfile(path):
    try:
      with contextlib.closing(_connect_read_only(path)) as connection:
        tables = connection.execute('SELECT COUNT(*) FROM sqlite_master')
        if tables.fetchone()[0] > 0:
          rounds = connection.execute('SELECT COUNT(*) FROM rounds')
          if rounds.fetchone()[0] > 0:
            return True
    except sqlite3.Error:
      # Whatever it is, it is not ours to delete.
      return True
  # A process that was killed while it created the run leaves no round, too, but
  # metrics are written once one is committed.
  directory, name = os.path.dirname(path), metrics_writers.JSONL_NAME
  if os.path.exists(os.path.join(directory, name)):
    raise errors.RunError(
      f'Cannot start a run in {directory}: {FILE_NAME} has no rounds, and'
      f' {name} of a run lies beside it; restore {FILE_NAME} from a backup,'
      f' remove {name}, or start the run in another folder.'
    )
  return False


def _check_schema(connection: sqlite3.Connection, directory: str) -> None:
  """Raises `RunError` unless the file is a run that this version can read."""
  application_id = connection.execute('PRAGMA application_id').fetchone()[0]
  version = connection.execute('PRAGMA user_version').fetchone()[0]
  tables = connection.execute('SELECT COUNT(*) FROM sqlite_master').fetchone()
  if tables[0] == 0:
    raise errors.RunError(
      f'There is no run in {directory} ({FILE_NAME} is empty): it has not'
      ' begun, or the file is to be restored from a backup.'
    )
  if application_id != _APPLICATION_ID:
    raise errors.RunError(
      f'Cannot open the run in {directory}: {FILE_NAME} was not made by'
      ' tff_pfl; pass another --output_dir.'
    )
  if version != _SCHEMA_VERSION:
    raise errors.RunError(
      f'Cannot open the run in {directory}: its format is version {version},'
      f' this tff_pfl reads version {_SCHEMA_VERSION}; use the tff_pfl that'
      ' made it.'
    )


def _check_config(
  directory: str,
  stored: Mapping[str, Any],
  given: Mapping[str, Any],
  mutable: Sequence[str],
) -> None:
  """Raises `RunError` if settings differ that must not."""
  stored_flat = value_codec.flatten(stored, '.')
  given_flat = value_codec.flatten(given, '.')
  absent = object()
  differences = []
  for name in dict.fromkeys([*stored_flat, *given_flat]):
    if any(name == key or name.startswith(key + '.') for key in mutable):
      continue
    old = stored_flat.get(name, absent)
    new = given_flat.get(name, absent)
    # NaN differs from itself, its text does not.
    if old != new and repr(old) != repr(new):
      old_text = 'absent' if old is absent else repr(old)
      new_text = 'absent' if new is absent else repr(new)
      differences.append(f'{name} was {old_text}, now {new_text}')
  if differences:
    raise errors.RunError(
      f'Cannot resume the run in {directory} with other settings:'
      f' {"; ".join(differences)}. Give those of the run, or another'
      ' --output_dir.'
    )


def _dump(value: Mapping[str, Any]) -> str:
  """Returns a nested mapping as JSON text."""
  return json.dumps(value_codec.to_json(value), separators=(',', ':'))


def _seal(text: str, *context: Any) -> str:
  """Returns a text behind a checksum of it and of where it belongs."""
  return _checksum('\n'.join(map(str, (text, *context))).encode()) + text


def _checksum(content: bytes) -> str:
  return f'{zlib.crc32(content):08x}'


def _pieces(state: bytes) -> Iterator[memoryview]:
  """Yields a state in pieces; an empty state is one empty piece."""
  view = memoryview(state)
  for start in range(0, max(len(state), 1), _PIECE_SIZE):
    yield view[start : start + _PIECE_SIZE]


def _client_rows(
  round_number: int, client_states: Mapping[int, bytes]
) -> Iterator[Any]:
  """Yields the rows of client states, checked."""
  for index, state in client_states.items():
    errors.expect_type(
      state, bytes, 'client_states', f'bytes for client {index}'
    )
    yield operator.index(index), round_number, state
