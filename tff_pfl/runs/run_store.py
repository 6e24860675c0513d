"""The durable state of a run: one SQLite file in the run's output directory.

A round is committed as a whole or not at all. The server state, the states of
the clients that took part, the metrics and the evaluation go into one
transaction, which is on disk when `RunStore.commit_round` returns. A killed run
loses at most its current round. Only the newest states are kept, and the
clients' states are read on request. A run whose file is deleted, moved or
replaced ends with an error when it next uses the file.

One process at a time writes to a run, under a `directory_lock`. Any number of
processes may read meanwhile. A store belongs to the thread that opened it.

Damage causes an error and never a wrong result. Each content has a checksum of
its bytes and its place, and the store knows its number of contents. Opening a
run checks this number, the settings and the metrics. States are checked when
they are read.
"""

import ast
import collections
import contextlib
import json
import os
import pathlib
import sqlite3
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Optional, Union

from tff_pfl import errors
from tff_pfl.models import description
from tff_pfl.runs import directory_lock, metrics_writers, value_codec
from tff_pfl.system import folders

# Settings that may change when a run resumes, because they do not affect what
# any round computes.
MUTABLE_SETTINGS = (
  'rounds.num_rounds',
  'rounds.runtime',
  'rounds.keep_best',
  'settings.data.data_dir',
)

FILE_NAME = 'run.sqlite'
# Most differences that an error lists.
_MAX_DIFFERENCES = 12

_VERSION = 9
# Kinds are 'settings', 'round' (its metrics) and 'scores' (of each client, in
# the newest evaluation) as JSON, the states of the 'server' and of each
# 'client', and 'totals'. A state that is too large for SQLite is in pieces.
_SCHEMA = (
  f'PRAGMA user_version = {_VERSION}',
  'CREATE TABLE contents (kind TEXT, number INTEGER, piece INTEGER,'
  ' checksum INTEGER, content BLOB, PRIMARY KEY (kind, number, piece))',
)
_PRAGMAS = (
  # States are large, so they need fewer pages than with SQLite's 4 KiB.
  f'page_size = {16 * 1024}',
  'journal_mode = WAL',
  'synchronous = FULL',
  # The write-ahead log is cut to this size after a large round.
  f'journal_size_limit = {64 * 1024 * 1024}',
)
# A reader or writer waits this long for another's short critical section.
_BUSY_TIMEOUT_SECONDS = 30.0

_Path = Union[str, 'os.PathLike[str]']


class RunStore:
  """The committed rounds of a run, see the module's docstring.

  Use `open` or `open_for_reading`, not the constructor.

  Attributes:
    directory: The run's output directory.
  """

  def __init__(
    self,
    directory: str,
    connection: sqlite3.Connection,
    on_close: contextlib.ExitStack,
  ):
    self.directory = directory
    self._connection = connection
    self._on_close = on_close
    # Path and identity of the file for writing. None for reading.
    self._file = None
    # From a content's (kind, number) to the rows that a transaction has added.
    self._added = collections.Counter()

  @classmethod
  def open(
    cls, directory: _Path, config: Mapping[str, Any], *, resume: bool = False
  ) -> 'RunStore':
    """Starts a run or continues the one in its output directory.

    Args:
      directory: The run's output directory, created if missing. A run in it
        that never committed its initial state is replaced.
      config: Settings of the run as JSON types, possibly nested. A continued
        run adopts new values of `MUTABLE_SETTINGS`.
      resume: True to continue an existing run, which is otherwise an error.

    Raises:
      RunError: If `directory` has a run and `resume` is False, is in use by a
        running process, or cannot be written to. Also if its run is damaged or
        has other settings, which the message lists with both values.
      ValueError: If the run has more rounds than `config`.
    """
    directory = os.fspath(directory)
    with contextlib.ExitStack() as on_close:
      on_close.enter_context(directory_lock.DirectoryLock(directory))
      is_there = has_run(directory)
      if is_there and not resume:
        expect_none(directory)
      with _one_line(directory, 'open the run'):
        if is_there:
          # A rejected run stays untouched, including its write-ahead log.
          with cls.open_for_reading(directory) as existing:
            existing.server_state()
            existing._check_resumable(value_codec.to_json(config))
        else:
          for suffix in ('', '-wal', '-shm', '-journal'):
            path = pathlib.Path(f'{_path_in(directory)}{suffix}')
            path.unlink(missing_ok=True)
        connection = _connect(directory, 'rw' if is_there else 'rwc')
        on_close.callback(connection.close)
        for pragma in _PRAGMAS:
          connection.execute(f'PRAGMA {pragma}')
        store = cls(directory, connection, on_close)
        path = _path_in(directory)
        store._file = path, folders.identity(path)
        with store._transaction():
          if not is_there:
            for statement in _SCHEMA:
              connection.execute(statement)
            store._write('scores', 0, _dump([]))
          store._write('settings', 0, _dump(config))
      store._on_close = on_close.pop_all()
      return store

  @classmethod
  def open_for_reading(cls, directory: _Path) -> 'RunStore':
    """Opens a run that may be in progress, to read its committed rounds.

    Each method of the store reads the state that is committed at the moment.

    Raises:
      RunError: If `directory` has no run, or a damaged one.
    """
    directory = os.fspath(directory)
    with (
      _one_line(directory, 'open the run'),
      contextlib.ExitStack() as on_close,
    ):
      version = 0
      if _path_in(directory).is_file():
        connection = _connect_for_reading(directory)
        on_close.callback(connection.close)
        version = connection.execute('PRAGMA user_version').fetchone()[0]
      if not version:
        raise errors.RunError(
          f'There is no run in {directory} (no {FILE_NAME}, or an empty one):'
          ' check the name of the folder, or restore the file from a backup.'
        )
      if version != _VERSION:
        raise errors.RunError(
          f'Cannot open the run in {directory}: its format is version'
          f' {version}, this tff_pfl reads version {_VERSION}; use the tff_pfl'
          ' that made it.'
        )
      store = cls(directory, connection, on_close)
      store._check()
      store._on_close = on_close.pop_all()
      return store

  @property
  def config(self) -> dict[str, Any]:
    """The settings of the run."""
    return json.loads(self._content('settings'))

  @property
  def last_round(self) -> int:
    """The number of committed rounds, or -1 before the initial state."""
    query = "SELECT MAX(number) FROM contents WHERE kind = 'round'"
    ((newest,),) = self._rows(query)
    return -1 if newest is None else newest

  def commit_round(
    self,
    *,
    server_state: bytes,
    client_states: Mapping[int, bytes],
    metrics: Mapping[str, Any],
    evaluation: Optional[Mapping[str, Any]] = None,
    per_client: Sequence[Mapping[str, Any]] = (),
  ) -> None:
    """Commits all changes of the next round, or none.

    The first commit, round 0, stores the initial state.

    Args:
      server_state: The server state after the round.
      client_states: The states of clients that have changed, by client index.
      metrics: The metrics of the round, possibly nested, of types that
        `value_codec.to_json` accepts. The initial state has none.
      evaluation: The metrics of an evaluation after the round, of the same
        types. None means no evaluation.
      per_client: The metrics of each client in `evaluation`.

    Raises:
      RunError: If the disk is full or fails. All earlier rounds are then still
        there, and nothing of this round is stored.
    """
    number = self.last_round + 1
    row = {'round': number, **metrics}
    if evaluation is not None:
      row['evaluation'] = evaluation
    advice = 'all rounds before it are safe: fix that and pass `resume`'
    with _one_line(self.directory, f'commit round {number}', advice):
      with self._transaction():
        self._write('server', 0, server_state)
        for client, state in client_states.items():
          self._write('client', client, state)
        self._write('round', number, _dump(row))
        if evaluation is not None:
          self._write('scores', 0, _dump(per_client))

  def server_state(self) -> bytes:
    """Returns the newest server state.

    Raises:
      RunError: If it is damaged, or no state is committed yet.
    """
    return self._content('server')

  def client_states(self, client_indices: Iterable[int]) -> dict[int, bytes]:
    """Returns the newest states by client index.

    A client whose state was never committed is absent.
    """
    return self._contents('client', [int(index) for index in client_indices])

  def history(self) -> list[dict[str, Any]]:
    """Returns the metrics of each round, from round 1.

    Each is ``{'round': round, **metrics, 'evaluation': evaluation}``, without
    'evaluation' if there was none.
    """
    _, *rounds = self._contents('round').values() or [None]
    return [json.loads(content) for content in rounds]

  def evaluations(self) -> list[dict[str, Any]]:
    """Returns ``{'round': round, **evaluation}`` for each evaluation."""
    return [
      {'round': row['round'], **row['evaluation']}
      for row in self.history()
      if 'evaluation' in row
    ]

  def per_client(self) -> list[dict[str, Any]]:
    """Returns the metrics of each client in the newest evaluation."""
    return json.loads(self._content('scores'))

  def copy_to(self, directory: _Path) -> None:
    """Replaces the run in another folder with this run as it is now.

    Raises:
      RunError: If the copy cannot be written. The old run then stays unchanged.
    """
    path = _path_in(directory)
    temporary = pathlib.Path(f'{path}.tmp')
    self._expect_in_place()
    advice = f'the committed rounds in {self.directory} are safe'
    with _one_line(directory, 'keep the best models', advice):
      path.parent.mkdir(parents=True, exist_ok=True)
      temporary.unlink(missing_ok=True)
      try:
        with contextlib.closing(sqlite3.connect(temporary)) as copy:
          self._connection.backup(copy)
          # The copy is one file without a log.
          copy.execute('PRAGMA journal_mode = DELETE')
        temporary.replace(path)
      except BaseException:
        # The disk may be full.
        for part in path.parent.glob(f'{temporary.name}*'):
          part.unlink()
        raise

  def close(self) -> None:
    """Closes the file and releases the directory. May be called again."""
    self._on_close.close()

  def __enter__(self) -> 'RunStore':
    return self

  def __exit__(self, *_: Any) -> None:
    self.close()

  @contextlib.contextmanager
  def _transaction(self) -> Iterator[None]:
    """Commits all writes of its body, or none if it raises."""
    with self._connection:
      self._connection.execute('BEGIN IMMEDIATE')
      added = self._added = collections.Counter()
      yield
      # Updating totals takes the same time for any number of clients.
      (stored,) = self._contents('totals').values() or [b'[]']
      totals = {kind: both for kind, *both in ast.literal_eval(stored.decode())}
      for (kind, number), rows in added.items():
        count, total = totals.get(kind, (0, 0.0))
        totals[kind] = count + rows, total + rows * number
      stored = [(kind, *both) for kind, both in sorted(totals.items())]
      self._write('totals', 0, repr(stored).encode())

  def _write(self, kind: str, number: int, content: bytes) -> None:
    # The limit is for a whole row, which has more than its content.
    size = self._connection.getlimit(sqlite3.SQLITE_LIMIT_LENGTH) // 2
    checksum = _checksum(kind, number, content)
    starts = range(0, max(1, len(content)), size)
    where = 'FROM contents WHERE kind = ? AND number = ?'
    count = f'SELECT COUNT(*) {where}'
    ((before,),) = self._connection.execute(count, [kind, number]).fetchall()
    self._added[kind.encode(), number] += len(starts) - before
    self._connection.executemany(
      'INSERT INTO contents VALUES (?, ?, ?, ?, ?) ON CONFLICT DO UPDATE'
      ' SET checksum = excluded.checksum, content = excluded.content',
      (
        (kind, number, piece, checksum, memoryview(content)[at : at + size])
        for piece, at in enumerate(starts)
      ),
    )
    if before > len(starts):
      self._connection.execute(
        f'DELETE {where} AND piece >= ?', [kind, number, len(starts)]
      )

  def _rows(self, query: str, *values: Any) -> list[Any]:
    # Fetches all rows, because an open query would keep the running process
    # from shortening its write-ahead log.
    self._expect_in_place()
    with _one_line(self.directory, 'read the run'):
      return self._connection.execute(query, values).fetchall()

  def _expect_in_place(self) -> None:
    """Raises `RunError` if the file for writing has lost its name."""
    if self._file is None:
      return
    path, identity = self._file
    if folders.identity(path) != identity:
      raise errors.RunError(
        f'{path} was deleted, moved or replaced during the run, so the next'
        ' rounds would be lost: restore all files of the folder and pass'
        ' `resume`, or start a new run.'
      )

  def _contents(
    self, kind: str, numbers: Optional[Sequence[int]] = None
  ) -> dict[int, bytes]:
    """Returns a kind's contents by number, all of them if `numbers` is None."""
    query = (
      "SELECT number, checksum, IFNULL(CAST(content AS BLOB), '')"
      ' FROM contents WHERE kind = ?'
    )
    values = [kind]
    if numbers is not None:
      query += ' AND number IN (SELECT value FROM json_each(?))'
      values.append(json.dumps(numbers))
    contents, checksums = {}, {}
    # One statement, so that a reader never sees states of two rounds.
    rows = self._rows(f'{query} ORDER BY number, piece', *values)
    for number, checksum, piece in rows:
      contents[number] = contents.get(number, b'') + piece
      checksums[number] = checksum
    for number, content in contents.items():
      if checksums[number] != _checksum(kind, number, content):
        raise _damaged(self.directory, f'{kind} {number} has another checksum')
    return contents

  def _content(self, kind: str) -> bytes:
    contents = self._contents(kind, [0])
    if not contents:
      raise errors.RunError(
        f'The run in {self.directory} has committed no state yet.'
      )
    return contents[0]

  def _totals(self) -> bytes:
    """Counts the contents of each kind, and sums their numbers."""
    query = (
      'SELECT kind, COUNT(*), TOTAL(number) FROM contents'
      " WHERE kind != 'totals' GROUP BY kind"
    )
    return repr(self._rows(query)).encode()

  def _check(self) -> None:
    """Raises `RunError` if a content is missing or damaged.

    States are only counted, not read.
    """
    # One transaction, because a round may be committed meanwhile.
    with self._connection:
      self._rows('BEGIN')
      for kind in ('settings', 'scores', 'round'):
        self._contents(kind)
      if self._contents('totals') != {0: self._totals()}:
        raise _damaged(
          self.directory, 'states or metrics that were committed are missing'
        )

  def _check_resumable(self, config: Mapping[str, Any]) -> None:
    """Raises an error if the run cannot continue with these settings."""
    changes = differences(self.config, config)
    if changes:
      raise errors.RunError(
        f'Cannot resume the run in {self.directory} with other settings:'
        f' {changes}. Give the same settings, or another `output_dir`.'
      )
    last_round = self.last_round
    num_rounds = config.get('rounds', {}).get('num_rounds', last_round)
    errors.expect(
      num_rounds >= last_round,
      'num_rounds',
      f'at least the {last_round} rounds that the run in {self.directory} has',
      num_rounds,
    )


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
  """Lists the forbidden differences of settings, or returns ''.

  Args:
    old: Settings as JSON types.
    new: Settings as JSON types.
  """
  old, new = (value_codec.flatten(one, '.') for one in (old, new))
  names = [
    name
    for name in dict.fromkeys([*old, *new])
    if name not in MUTABLE_SETTINGS
    and not description.is_same(name, old.get(name), new.get(name))
  ]
  # Settings explain differences of the process that they made.
  by_settings = [name for name in names if name.startswith('settings.')]
  if by_settings:
    names = [name for name in names if not name.startswith('process.')]
  # Values of the model say little if the cause of a difference is known.
  words = [name for name in names if not description.is_value(name)]
  if any(name.startswith('model.') for name in words):
    names = words
  texts = [
    f'{name.removeprefix("settings.")} was {old.get(name)!r}, now '
    f'{new.get(name)!r}'
    for name in names
  ]
  others = texts[_MAX_DIFFERENCES:]
  if others:
    texts[_MAX_DIFFERENCES:] = [f'and {len(others)} more']
  return '; '.join(texts)


def expect_none(directory: _Path) -> None:
  """Raises `RunError` if there is a run in a folder."""
  if has_run(directory):
    raise errors.RunError(
      f'There is a run in {directory} already: pass `resume` to continue it, or'
      ' another `output_dir`.'
    )


def has_run(directory: _Path) -> bool:
  """Returns True if there is a file that a new run must not replace.

  Raises:
    RunError: If there are metrics of a run whose rounds are lost.
  """
  path = _path_in(directory)
  if path.is_file():
    try:
      with contextlib.closing(_connect_for_reading(directory)) as connection:
        if connection.execute('PRAGMA schema_version').fetchone()[0]:
          query = "SELECT 1 FROM contents WHERE kind = 'round'"
          if connection.execute(query).fetchone():
            return True
    except (sqlite3.Error, UnicodeDecodeError):
      # An unknown file must not be deleted.
      return True
  # A process that was killed while it created the run also leaves no round. But
  # metrics are only written after a round is committed.
  name = metrics_writers.JSONL_NAME
  if path.with_name(name).exists():
    raise errors.RunError(
      f'Cannot start a run in {directory}: {FILE_NAME} has no rounds, but the'
      f' folder has the {name} of a run: restore {FILE_NAME} from a backup,'
      f' remove {name}, or start the run in another folder.'
    )
  return False


def num_rounds(directory: _Path) -> int:
  """Returns the number of committed rounds, 0 without a run to read.

  The run may be in progress. This takes the same time for any size of a run.
  """
  query = "SELECT MAX(number) FROM contents WHERE kind = 'round'"
  with (
    contextlib.suppress(sqlite3.Error, UnicodeDecodeError),
    contextlib.closing(_connect_for_reading(directory)) as connection,
  ):
    return connection.execute(query).fetchone()[0] or 0
  return 0


def _path_in(directory: _Path) -> pathlib.Path:
  return pathlib.Path(os.path.abspath(directory), FILE_NAME)


def _connect(directory: _Path, mode: str) -> sqlite3.Connection:
  """Opens a file, in which statements begin and end transactions."""
  connection = sqlite3.connect(
    f'{_path_in(directory).as_uri()}?mode={mode}',
    uri=True,
    timeout=_BUSY_TIMEOUT_SECONDS,
    isolation_level=None,
  )
  # Damaged text may not be valid text.
  connection.text_factory = bytes
  return connection


def _connect_for_reading(directory: _Path) -> sqlite3.Connection:
  """Opens a file so that no statement can change its content."""
  path = _path_in(directory)
  # The last process to close the file moves the write-ahead log into it and
  # removes the log, so it must be able to write.
  mode = 'rw'
  if not all(os.access(p, os.W_OK) for p in (path, path.parent)):
    # SQLite keeps an index of the log next to the file. If it cannot make one,
    # as on a read-only disk, and there is no log, the file alone is complete.
    mode = 'ro' if os.path.exists(f'{path}-wal') else 'ro&immutable=1'
  connection = _connect(directory, mode)
  connection.execute('PRAGMA query_only = ON')
  return connection


@contextlib.contextmanager
def _one_line(
  directory: _Path, action: str, advice: str = 'fix that and try again'
) -> Iterator[None]:
  """Turns errors of SQLite and of the file system into a `RunError`."""
  try:
    yield
  # Damaged names in SQLite's messages may not be valid text.
  except (sqlite3.Error, OSError, UnicodeDecodeError) as error:
    text = ' '.join(str(error).split())
    if type(error) in (sqlite3.DatabaseError, UnicodeDecodeError):
      raise _damaged(directory, text) from error
    raise errors.RunError(
      f'Cannot {action} in {directory}: {text}; {advice}.'
    ) from error


def _damaged(directory: _Path, reason: str) -> errors.RunError:
  """The error for a damaged file."""
  return errors.RunError(
    f'Cannot read the run in {directory}: {FILE_NAME} is damaged or not a run'
    f' ({reason}); restore it from a backup, or start a run in another folder.'
  )


def _checksum(kind: str, number: int, content: bytes) -> int:
  """Returns the checksum of a content with its kind and number."""
  return zlib.crc32(content, zlib.crc32(f'{kind} {number}'.encode()))


def _dump(value: Any) -> bytes:
  return json.dumps(value_codec.to_json(value), separators=(',', ':')).encode()
