"""The durable state of a run: one SQLite file in the run's output directory.

A round is committed as a whole or not at all: the server state, the states of
the clients that took part, the metrics and the evaluation go into one
transaction that is on the disk when `RunStore.commit_round` returns. A run that
is killed thus loses at most the round it was computing. Only the newest states
are kept; those of clients are read when asked for. A run whose file is deleted,
moved or replaced meanwhile ends with an error when it next uses the file.

One process at a time writes to a run, under a `directory_lock`; any number may
read meanwhile. A store belongs to the thread that opened it.

Damage is an error and never a wrong result: each content has a checksum of it
and of where it belongs, and the numbers of contents are known. These, settings
and metrics are checked when a run is opened, and states when they are read.
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

# What may differ between a run and its resumption: it does not change what any
# round computes.
MUTABLE_SETTINGS = (
  'rounds.num_rounds',
  'rounds.runtime',
  'rounds.keep_best',
  'settings.data.data_dir',
)

FILE_NAME = 'run.sqlite'
# Of differences that an error lists.
_MAX_DIFFERENCES = 12

_VERSION = 9
# Kinds are 'settings', 'round' (its metrics), 'scores' (of each client, in the
# newest evaluation), as JSON, the states of the 'server' and of each 'client',
# and 'totals'. A state that SQLite does not take whole is in pieces.
_SCHEMA = (
  f'PRAGMA user_version = {_VERSION}',
  'CREATE TABLE contents (kind TEXT, number INTEGER, piece INTEGER,'
  ' checksum INTEGER, content BLOB, PRIMARY KEY (kind, number, piece))',
)
_PRAGMAS = (
  # States are large: with pages larger than SQLite's 4 KiB they take fewer.
  f'page_size = {16 * 1024}',
  'journal_mode = WAL',
  'synchronous = FULL',
  # The write-ahead log is cut to this when a large round has swollen it.
  f'journal_size_limit = {64 * 1024 * 1024}',
)
# A reader or writer waits this long for another's short critical section.
_BUSY_TIMEOUT_SECONDS = 30.0

_Path = Union[str, 'os.PathLike[str]']


class RunStore:
  """The committed rounds of a run; see the module's docstring.

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
    # Path and identity of the file that is written to; None for reading.
    self._file = None
    # Of contents (kind, number): how many rows a transaction has added.
    self._added = collections.Counter()

  @classmethod
  def open(
    cls, directory: _Path, config: Mapping[str, Any], *, resume: bool = False
  ) -> 'RunStore':
    """Starts a run or continues the one in its output directory.

    Args:
      directory: The run's output directory; made if missing. A run in it that
        never committed its initial state is replaced.
      config: Settings of the run as JSON types, which may be nested. A run that
        is continued takes on those of `MUTABLE_SETTINGS`.
      resume: True to continue a run that is there, which is otherwise an
        error.

    Raises:
      RunError: If `directory` has a run or is in use by a running process, or
        cannot be written to; or if its run is damaged or has other settings
        than `config`, each of which the message gives with both values.
    """
    directory = os.fspath(directory)
    with contextlib.ExitStack() as on_close:
      on_close.enter_context(directory_lock.DirectoryLock(directory))
      is_there = has_run(directory)
      if is_there and not resume:
        expect_none(directory)
      with _one_line(directory, 'open the run'):
        if is_there:
          # What is refused is left as it is, its write-ahead log too.
          with cls.open_for_reading(directory) as found:
            found.server_state()
            found._check_resumable(value_codec.to_json(config))
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

    Each method of the store reads the state that is committed at that moment.

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
    """The number of rounds committed; -1 before the initial state is."""
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
    """Commits all that the next round has changed, or nothing.

    The first commit, round 0, is that of the initial state.

    Args:
      server_state: The server state after the round.
      client_states: The states of clients that have changed, by client index.
      metrics: The metrics of the round, nested as need be, of the types that
        `value_codec.to_json` takes. The initial state has none.
      evaluation: The metrics of an evaluation after the round, of the same
        types; None if none took place.
      per_client: With `evaluation`, the metrics of each client.

    Raises:
      RunError: If the disk is full or fails. Nothing of the round is stored
        then, and all rounds before it are still there.
    """
    number = self.last_round + 1
    row = {'round': number, **metrics}
    if evaluation is not None:
      row['evaluation'] = evaluation
    advice = 'all rounds before it are safe: mend that and pass `resume`'
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
      RunError: If it is damaged, or the initial one is not committed yet.
    """
    return self._content('server')

  def client_states(self, client_indices: Iterable[int]) -> dict[int, bytes]:
    """Returns the newest states by client index.

    A client whose state was never committed is absent.
    """
    return self._contents('client', [int(index) for index in client_indices])

  def history(self) -> list[dict[str, Any]]:
    """Returns the metrics of each round from 1 on.

    It is ``{'round': round, **metrics, 'evaluation': evaluation}``, the last
    only where there was one.
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
    """Makes the run in another folder this one, as it is now.

    Raises:
      RunError: If it cannot be written. What was there is then as it was.
    """
    path = _path_in(directory)
    temporary = pathlib.Path(f'{path}.tmp')
    self._expect_in_place()
    advice = f'what is committed in {self.directory} is safe'
    with _one_line(directory, 'keep the best models', advice):
      path.parent.mkdir(parents=True, exist_ok=True)
      temporary.unlink(missing_ok=True)
      with contextlib.closing(sqlite3.connect(temporary)) as copy:
        self._connection.backup(copy)
        # Without a log beside it.
        copy.execute('PRAGMA journal_mode = DELETE')
      temporary.replace(path)

  def close(self) -> None:
    """Closes the file and lets go of the directory; may be called again."""
    self._on_close.close()

  def __enter__(self) -> 'RunStore':
    return self

  def __exit__(self, *_: Any) -> None:
    self.close()

  @contextlib.contextmanager
  def _transaction(self) -> Iterator[None]:
    """Commits what its body writes; if that raises, nothing is written."""
    with self._connection:
      self._connection.execute('BEGIN IMMEDIATE')
      added = self._added = collections.Counter()
      yield
      # To count all would take the longer the more clients there are.
      (stored,) = self._contents('totals').values() or [b'[]']
      totals = {kind: both for kind, *both in ast.literal_eval(stored.decode())}
      for (kind, number), rows in added.items():
        count, total = totals.get(kind, (0, 0.0))
        totals[kind] = count + rows, total + rows * number
      stored = [(kind, *both) for kind, both in sorted(totals.items())]
      self._write('totals', 0, repr(stored).encode())

  def _write(self, kind: str, number: int, content: bytes) -> None:
    # The limit is that of a row, which has more than its content.
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
    # At once: an open query would keep the running process from shortening its
    # write-ahead log.
    self._expect_in_place()
    with _one_line(self.directory, 'read the run'):
      return self._connection.execute(query, values).fetchall()

  def _expect_in_place(self) -> None:
    """Raises `RunError` if the file that is written to has lost its name."""
    if self._file is None:
      return
    path, identity = self._file
    if folders.identity(path) != identity:
      raise errors.RunError(
        f'{path} was deleted, moved or replaced while the run went on, whose'
        ' next rounds would be lost: bring back all files of the folder and'
        ' pass `resume`, or start the run anew.'
      )

  def _contents(
    self, kind: str, numbers: Optional[Sequence[int]] = None
  ) -> dict[int, bytes]:
    """Returns contents by their numbers, of all numbers for None."""
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
    """Counts the contents of each kind, and adds up their numbers."""
    query = (
      'SELECT kind, COUNT(*), TOTAL(number) FROM contents'
      " WHERE kind != 'totals' GROUP BY kind"
    )
    return repr(self._rows(query)).encode()

  def _check(self) -> None:
    """Raises `RunError` unless all but the states is as committed."""
    # At one moment, as a round may be committed meanwhile.
    with self._connection:
      self._rows('BEGIN')
      for kind in ('settings', 'scores', 'round'):
        self._contents(kind)
      if self._contents('totals') != {0: self._totals()}:
        raise _damaged(
          self.directory, 'states or metrics that were committed are missing'
        )

  def _check_resumable(self, given: Mapping[str, Any]) -> None:
    """Raises an error if the run cannot go on with the settings given."""
    found = differences(self.config, given)
    if found:
      raise errors.RunError(
        f'Cannot resume the run in {self.directory} with other settings:'
        f' {found}. Give those of the run, or another `output_dir`.'
      )
    last_round = self.last_round
    num_rounds = given.get('rounds', {}).get('num_rounds', last_round)
    errors.expect(
      num_rounds >= last_round,
      'num_rounds',
      f'at least the {last_round} rounds that the run in {self.directory} has',
      num_rounds,
    )


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
  """Lists differences of settings, as JSON types, that may not be; or ''."""
  old, new = (value_codec.flatten(one, '.') for one in (old, new))
  names = [
    name
    for name in dict.fromkeys([*old, *new])
    if name not in MUTABLE_SETTINGS
    and not description.is_same(name, old.get(name), new.get(name))
  ]
  # A process differs by the settings that made it.
  by_settings = [name for name in names if name.startswith('settings.')]
  if by_settings:
    names = [name for name in names if not name.startswith('process.')]
  # Values say little beside the reason why they differ.
  words = [name for name in names if not description.is_value(name)]
  if any(name.startswith('model.') for name in words):
    names = words
  found = [
    f'{name.removeprefix("settings.")} was {old.get(name)!r}, now '
    f'{new.get(name)!r}'
    for name in names
  ]
  others = found[_MAX_DIFFERENCES:]
  if others:
    found[_MAX_DIFFERENCES:] = [f'and {len(others)} more']
  return '; '.join(found)


def expect_none(directory: _Path) -> None:
  """Raises `RunError` if there is a run in a folder."""
  if has_run(directory):
    raise errors.RunError(
      f'There is a run in {directory} already: pass `resume` to continue it, or'
      ' another `output_dir`.'
    )


def has_run(directory: _Path) -> bool:
  """Returns True if there is anything that a new run must not replace.

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
      # Whatever it is, it is not ours to delete.
      return True
  # A process that was killed while it created the run leaves no round, too, but
  # metrics are written once one is committed.
  name = metrics_writers.JSONL_NAME
  if path.with_name(name).exists():
    raise errors.RunError(
      f'Cannot start a run in {directory}: {FILE_NAME} has no rounds, and'
      f' {name} of a run lies beside it; restore {FILE_NAME} from a backup,'
      f' remove {name}, or start the run in another folder.'
    )
  return False


def _path_in(directory: _Path) -> pathlib.Path:
  return pathlib.Path(os.path.abspath(directory), FILE_NAME)


def _connect(directory: _Path, mode: str) -> sqlite3.Connection:
  """Opens a file; transactions are begun and ended by statements."""
  connection = sqlite3.connect(
    f'{_path_in(directory).as_uri()}?mode={mode}',
    uri=True,
    timeout=_BUSY_TIMEOUT_SECONDS,
    isolation_level=None,
  )
  # Damaged text need not be text.
  connection.text_factory = bytes
  return connection


def _connect_for_reading(directory: _Path) -> sqlite3.Connection:
  """Opens a file so that no statement can change what it holds."""
  path = _path_in(directory)
  # Whoever closes the file last moves the write-ahead log into it and removes
  # the log, for which it must be able to write.
  mode = 'rw'
  if not all(os.access(p, os.W_OK) for p in (path, path.parent)):
    # SQLite keeps an index of the log beside the file. Where none can be made,
    # as on a read-only disk, and there is no log, the file alone tells all.
    mode = 'ro' if os.path.exists(f'{path}-wal') else 'ro&immutable=1'
  connection = _connect(directory, mode)
  connection.execute('PRAGMA query_only = ON')
  return connection


@contextlib.contextmanager
def _one_line(
  directory: _Path, action: str, advice: str = 'mend that and try again'
) -> Iterator[None]:
  """Turns errors of SQLite and of the file system into a `RunError`."""
  try:
    yield
  # Damaged names in SQLite's messages need not be text.
  except (sqlite3.Error, OSError, UnicodeDecodeError) as error:
    text = ' '.join(str(error).split())
    if type(error) in (sqlite3.DatabaseError, UnicodeDecodeError):
      raise _damaged(directory, text) from error
    raise errors.RunError(
      f'Cannot {action} in {directory}: {text}; {advice}.'
    ) from error


def _damaged(directory: _Path, reason: str) -> errors.RunError:
  """The error for a file that does not hold what was committed."""
  return errors.RunError(
    f'Cannot read the run in {directory}: {FILE_NAME} is damaged or not a run'
    f' ({reason}); restore it from a backup, or start a run in another folder.'
  )


def _checksum(kind: str, number: int, content: bytes) -> int:
  """Returns the checksum of a content and of where it belongs."""
  return zlib.crc32(content, zlib.crc32(f'{kind} {number}'.encode()))


def _dump(value: Any) -> bytes:
  return json.dumps(value_codec.to_json(value), separators=(',', ':')).encode()
