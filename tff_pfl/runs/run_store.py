"""The durable state of a run: one SQLite file in the run's output directory.

A round is committed as a whole or not at all: the server state, the states of
the clients that took part, the metrics and the evaluation go into one
transaction that is on the disk when `RunStore.commit_round` returns. A run that
is killed at any moment thus loses at most the round it was computing. Only the
newest server state and the newest state of each client are kept, so with the
rounds the file grows by their metrics alone. Client states are read when asked
for; memory does not grow with the number of clients.

One process at a time writes to a run. It holds an advisory lock on the file
`run.lock`, which the kernel releases however the process ends. Any number of
processes may read meanwhile, through `RunStore.open_for_reading`.

All content stands behind a checksum of it and of where it belongs, and the
rounds have no gap. Of settings and metrics that is checked when a run is
opened, of states when they are read, and of the server's before anything is
written. Failures are a `RunError` of one line, which tells what is safe.

A store belongs to the thread that opened it.
"""

import contextlib
import json
import os
import sqlite3
import urllib.parse
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Optional, Union

from tff_pfl import errors
from tff_pfl.runs import directory_lock, metrics_writers, value_codec

# What may differ between a run and its resumption: it does not change what any
# round computes.
MUTABLE_SETTINGS = ('num_rounds', 'data_dir', 'runtime')

FILE_NAME = 'run.sqlite'

# Marks a SQLite file as ours ("tfpf"), with the version of the tables.
_APPLICATION_ID = 0x74667066
_VERSION = 6
_SCHEMA = (
  f'PRAGMA application_id = {_APPLICATION_ID}',
  f'PRAGMA user_version = {_VERSION}',
  # The settings, the server's state and the scores of each client, in pieces.
  'CREATE TABLE newest'
  ' (name TEXT, piece INTEGER, content BLOB, PRIMARY KEY (name, piece))',
  'CREATE TABLE client_states (client INTEGER PRIMARY KEY, content BLOB)',
  # Metrics and evaluation, as JSON.
  'CREATE TABLE rounds (round INTEGER PRIMARY KEY, content BLOB)',
)
# States are large: with pages larger than SQLite's 4 KiB they take fewer.
_PAGE_SIZE = 16 * 1024
# The write-ahead log is cut to this size when a large round has swollen it.
_JOURNAL_SIZE_LIMIT = 64 * 1024 * 1024
# A reader or writer waits this long for another's short critical section.
_BUSY_TIMEOUT_SECONDS = 30.0
_CHECKSUM_SIZE = 4
# SQLite takes no value of more than 10**9 bytes, and the states of optimizers
# are larger than models.
_PIECE_SIZE = 2**28

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
    on_close.callback(connection.close)

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
    with contextlib.ExitStack() as on_error:
      on_error.enter_context(directory_lock.DirectoryLock(directory))
      is_there = has_run(directory)
      if is_there and not resume:
        raise errors.RunError(
          f'There is a run in {directory} already: pass `resume` to continue'
          ' it, or another `output_dir`.'
        )
      with _one_line(directory, 'open the run'):
        if is_there:
          # What is refused is left as it is, its write-ahead log too.
          with cls.open_for_reading(directory) as found:
            found.server_state()
            found._check_resumable(value_codec.to_json(config))
        else:
          for suffix in ('', '-wal', '-shm', '-journal'):
            with contextlib.suppress(FileNotFoundError):
              os.remove(_path_in(directory) + suffix)
        mode = 'rw' if is_there else 'rwc'
        store = cls(directory, _connect(directory, mode), on_error)
        for pragma in (
          f'page_size = {_PAGE_SIZE}',
          'journal_mode = WAL',
          'synchronous = FULL',
          f'journal_size_limit = {_JOURNAL_SIZE_LIMIT}',
        ):
          store._connection.execute(f'PRAGMA {pragma}')
        with _transaction(store._connection):
          if not is_there:
            for statement in _SCHEMA:
              store._connection.execute(statement)
            store._write_newest('per_client', _dump([]))
          store._write_newest('config', _dump(config))
      store._on_close = on_error.pop_all()
      return store

  @classmethod
  def open_for_reading(cls, directory: _Path) -> 'RunStore':
    """Opens a run that may be in progress, to read its committed rounds.

    Each method of the store reads the state that is committed at that moment.

    Raises:
      RunError: If `directory` has no run, or a damaged one.
    """
    directory = os.fspath(directory)
    if not os.path.isfile(_path_in(directory)):
      raise errors.RunError(
        f'There is no run in {directory} (no {FILE_NAME}): check the name of'
        ' the folder.'
      )
    with contextlib.ExitStack() as on_error:
      with _one_line(directory, 'open the run'):
        store = cls(directory, _connect_for_reading(directory), on_error)
        store._check()
      store._on_close = on_error.pop_all()
      return store

  @property
  def config(self) -> dict[str, Any]:
    """The settings of the run."""
    return json.loads(self._newest('config'))

  @property
  def last_round(self) -> int:
    """The number of rounds committed; -1 before the initial state is."""
    ((newest,),) = self._read('SELECT MAX(round) FROM rounds')
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
    last_round = self.last_round
    number = last_round + 1
    row = {'round': number, **metrics}
    if evaluation is not None:
      row['evaluation'] = evaluation
    advice = 'mend that and start again'
    if number:
      advice = (
        f'everything up to round {last_round} is safe: mend that and pass'
        ' `resume`'
      )
    with _one_line(self.directory, f'commit round {number}', advice):
      with _transaction(self._connection):
        self._write_newest('server_state', server_state, number)
        self._connection.executemany(
          'INSERT OR REPLACE INTO client_states VALUES (?, ?)',
          (
            (client, _seal(state, 'client', client))
            for client, state in client_states.items()
          ),
        )
        self._connection.execute(
          'INSERT INTO rounds VALUES (?, ?)',
          [number, _seal(_dump(row), 'round', number)],
        )
        if evaluation is not None:
          self._write_newest('per_client', _dump(per_client))

  def server_state(self) -> bytes:
    """Returns the newest server state.

    Raises:
      RunError: If it is damaged, or the initial one is not committed yet.
    """
    if self.last_round < 0:
      raise errors.RunError(
        f'The run in {self.directory} has committed no state yet.'
      )
    return self._newest('server_state')

  def client_states(self, client_indices: Iterable[int]) -> dict[int, bytes]:
    """Returns the newest states by client index, in the order asked for.

    A client whose state was never committed is absent.
    """
    indices = [int(index) for index in client_indices]
    # One statement, so that a reader never sees states of two rounds.
    found = dict(
      self._read(
        'SELECT client, content FROM client_states'
        ' WHERE client IN (SELECT value FROM json_each(?))',
        json.dumps(indices),
      )
    )
    return {
      index: self._unseal(found[index], 'client', index)
      for index in indices
      if index in found
    }

  def history(self) -> list[dict[str, Any]]:
    """Returns the metrics of each round from 1 on.

    It is ``{'round': round, **metrics, 'evaluation': evaluation}``, the last
    only where there was one.
    """
    history = []
    rows = self._read('SELECT round, content FROM rounds ORDER BY round')
    for expected, (number, content) in enumerate(rows):
      if number != expected:
        raise _damaged(self.directory, f'round {expected} is missing')
      history.append(json.loads(self._unseal(content, 'round', number)))
    # Without the initial state.
    return history[1:]

  def evaluations(self) -> list[dict[str, Any]]:
    """Returns ``{'round': round, **evaluation}`` for each evaluation."""
    return [
      {'round': row['round'], **row['evaluation']}
      for row in self.history()
      if 'evaluation' in row
    ]

  def per_client(self) -> list[dict[str, Any]]:
    """Returns the metrics of each client in the newest evaluation."""
    return json.loads(self._newest('per_client'))

  def copy_to(self, directory: _Path) -> None:
    """Makes the run in another folder this one, as it is now.

    Raises:
      RunError: If it cannot be written. What was there is then as it was.
    """
    path = _path_in(directory)
    advice = f'what is committed in {self.directory} is safe'
    with _one_line(directory, 'keep the best models', advice):
      os.makedirs(directory, exist_ok=True)
      temporary = f'{path}.tmp'
      with contextlib.suppress(FileNotFoundError):
        os.remove(temporary)
      with contextlib.closing(sqlite3.connect(temporary)) as copy:
        self._connection.backup(copy)
        # Without a log beside it.
        copy.execute('PRAGMA journal_mode = DELETE')
      os.replace(temporary, path)

  def close(self) -> None:
    """Closes the file and lets go of the directory; may be called again."""
    self._on_close.close()

  def __enter__(self) -> 'RunStore':
    return self

  def __exit__(self, *_: Any) -> None:
    self.close()

  def _read(self, query: str, *values: Any) -> list[Any]:
    # At once: an open query would keep the running process from shortening its
    # write-ahead log.
    with _one_line(self.directory, 'read the run'):
      return self._connection.execute(query, values).fetchall()

  def _newest(self, name: str) -> bytes:
    # One statement, as a round may be committed meanwhile.
    rows = self._read(
      'SELECT content, (SELECT MAX(round) FROM rounds) FROM newest'
      ' WHERE name = ? ORDER BY piece',
      name,
    )
    if not rows:
      raise _damaged(self.directory, f'its {name} is missing')
    pieces, (last_round, *_) = zip(*rows)
    context = [last_round] if name == 'server_state' else []
    are_bytes = all(isinstance(piece, bytes) for piece in pieces)
    return self._unseal(are_bytes and b''.join(pieces), name, *context)

  def _write_newest(self, name: str, content: bytes, *context: Any) -> None:
    sealed = memoryview(_seal(content, name, *context))
    starts = range(0, len(sealed), _PIECE_SIZE)
    self._connection.execute('DELETE FROM newest WHERE name = ?', [name])
    self._connection.executemany(
      'INSERT INTO newest VALUES (?, ?, ?)',
      ((name, start, sealed[start : start + _PIECE_SIZE]) for start in starts),
    )

  def _unseal(self, sealed: Any, *context: Any) -> bytes:
    """Returns what `_seal` was given; raises `RunError` if it was not this."""
    if isinstance(sealed, bytes):
      content = sealed[_CHECKSUM_SIZE:]
      if sealed == _seal(content, *context):
        return content
    what = ' '.join(map(str, context))
    raise _damaged(self.directory, f'{what} has another checksum')

  def _check(self) -> None:
    """Raises `RunError` unless settings and metrics are as committed."""

    def pragma(name):
      return self._connection.execute(f'PRAGMA {name}').fetchone()[0]

    if not pragma('schema_version'):
      raise errors.RunError(
        f'There is no run in {self.directory} ({FILE_NAME} is empty): it has'
        ' not begun, or the file is to be restored from a backup.'
      )
    if pragma('application_id') != _APPLICATION_ID:
      raise errors.RunError(
        f'Cannot open the run in {self.directory}: {FILE_NAME} was not made by'
        ' tff_pfl; pass another `output_dir`.'
      )
    if pragma('user_version') != _VERSION:
      raise errors.RunError(
        f'Cannot open the run in {self.directory}: its format is version'
        f' {pragma("user_version")}, this tff_pfl reads version {_VERSION}; use'
        ' the tff_pfl that made it.'
      )
    _ = self.config, self.history(), self.per_client()

  def _check_resumable(self, given: Mapping[str, Any]) -> None:
    """Raises `RunError` if the run cannot go on with the settings given."""
    found = differences(self.config, given)
    if found:
      raise errors.RunError(
        f'Cannot resume the run in {self.directory} with other settings:'
        f' {found}. Give those of the run, or another `output_dir`.'
      )
    last_round = self.last_round
    if given.get('num_rounds', last_round) < last_round:
      raise errors.RunError(
        errors.message(
          'num_rounds',
          f'at least the {last_round} rounds that the run in '
          f'{self.directory} has',
          given['num_rounds'],
        )
      )


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
  """Lists differences of settings, as JSON types, that may not be; or ''."""
  old, new = (value_codec.flatten(settings, '.') for settings in (old, new))
  return '; '.join(
    f'{name} was {old.get(name)!r}, now {new.get(name)!r}'
    for name in dict.fromkeys([*old, *new])
    # As texts: NaN is not equal to itself.
    if name not in MUTABLE_SETTINGS
    and json.dumps(old.get(name)) != json.dumps(new.get(name))
  )


def has_run(directory: str) -> bool:
  """Returns True if there is anything that a new run must not replace."""
  if os.path.isfile(_path_in(directory)):
    try:
      with contextlib.closing(_connect_for_reading(directory)) as connection:
        if connection.execute('PRAGMA schema_version').fetchone()[0]:
          rounds = connection.execute('SELECT COUNT(*) FROM rounds')
          if rounds.fetchone()[0]:
            return True
    except sqlite3.Error:
      # Whatever it is, it is not ours to delete.
      return True
  # A process that was killed while it created the run leaves no round, too, but
  # metrics are written once one is committed.
  name = metrics_writers.JSONL_NAME
  if os.path.exists(os.path.join(directory, name)):
    raise errors.RunError(
      f'Cannot start a run in {directory}: {FILE_NAME} has no rounds, and'
      f' {name} of a run lies beside it; restore {FILE_NAME} from a backup,'
      f' remove {name}, or start the run in another folder.'
    )
  return False


def _path_in(directory: str) -> str:
  return os.path.abspath(os.path.join(directory, FILE_NAME))


def _connect(directory: str, mode: str) -> sqlite3.Connection:
  """Opens a file; transactions are begun and ended by statements."""
  uri = f'file:{urllib.parse.quote(_path_in(directory))}?mode={mode}'
  connection = sqlite3.connect(
    uri, uri=True, timeout=_BUSY_TIMEOUT_SECONDS, isolation_level=None
  )
  # Damaged text need not be text.
  connection.text_factory = bytes
  return connection


@contextlib.contextmanager
def _transaction(connection: sqlite3.Connection) -> Iterator[None]:
  """Commits what its body has done; if that raises, nothing has been done."""
  connection.execute('BEGIN IMMEDIATE')
  try:
    yield
    connection.execute('COMMIT')
  except BaseException:
    # After some errors SQLite has rolled back by itself.
    if connection.in_transaction:
      with contextlib.suppress(sqlite3.Error):
        connection.execute('ROLLBACK')
    raise


def _connect_for_reading(directory: str) -> sqlite3.Connection:
  """Opens a file so that no statement can change what it holds."""
  path = _path_in(directory)
  # Whoever closes the file last moves the write-ahead log into it and removes
  # the log, for which it must be able to write.
  mode = 'rw'
  if not all(os.access(p, os.W_OK) for p in (path, os.path.dirname(path))):
    # SQLite keeps an index of the log beside the file. Where none can be made,
    # as on a read-only disk, and there is no log, the file alone tells all.
    mode = 'ro' if os.path.exists(f'{path}-wal') else 'ro&immutable=1'
  connection = _connect(directory, mode)
  connection.execute('PRAGMA query_only = ON')
  return connection


@contextlib.contextmanager
def _one_line(
  directory: str, action: str, advice: str = 'mend that and try again'
) -> Iterator[None]:
  """Turns errors of SQLite and of the file system into a one-line `RunError`.

  Args:
    directory: The run's output directory.
    action: Action that is attempted, read after "Cannot".
    advice: Advice to the user.
  """
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


def _damaged(directory: str, reason: str) -> errors.RunError:
  """The error for a file that does not hold what was committed."""
  return errors.RunError(
    f'Cannot read the run in {directory}: {FILE_NAME} is damaged or not a run'
    f' ({reason}); restore it from a backup, or start a run in another folder.'
  )


def _seal(content: bytes, *context: Any) -> bytes:
  """Returns bytes behind a checksum of them and of where they belong."""
  checksum = zlib.crc32(content, zlib.crc32(repr(context).encode()))
  return checksum.to_bytes(_CHECKSUM_SIZE, 'big') + content


def _dump(value: Any) -> bytes:
  """Returns a nested mapping as JSON text."""
  return json.dumps(value_codec.to_json(value), separators=(',', ':')).encode()
