"""The SQLite file of a run: its tables, transactions, checksums and errors.

What goes wrong with it is a `RunError` of one line that says what is safe.
"""

import contextlib
import errno
import os
import sqlite3
import urllib.parse
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Optional

from tff_pfl import errors
from tff_pfl.simulation import metrics_writers

FILE_NAME = 'run.sqlite'

# Marks a SQLite file as ours ("tfpf"), with the version of the tables below.
_APPLICATION_ID = 0x74667066
_SCHEMA_VERSION = 3
_SCHEMA = (
  # One row: the settings of the run.
  'CREATE TABLE config (id INTEGER PRIMARY KEY CHECK (id = 0), json TEXT)',
  # The newest server state, in pieces.
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
# SQLite limits the size of one value.
_PIECE_SIZE = 128 * 1024 * 1024
# The write-ahead log is cut to this size when a large round has swollen it.
_JOURNAL_SIZE_LIMIT = 64 * 1024 * 1024
# A reader or writer waits this long for another's short critical section.
_BUSY_TIMEOUT_SECONDS = 30.0
# In SQLite's messages.
_SIGNS_OF_DAMAGE = (
  'malformed',
  'not a database',
  'no such table',
  'no such column',
  'Could not decode',
  "codec can't decode",
)


def path_in(directory: str) -> str:
  """The path of the file in a run's output directory."""
  return os.path.abspath(os.path.join(directory, FILE_NAME))


def create(directory: str, settings: str) -> sqlite3.Connection:
  """Makes a file without rounds in place of what is there."""
  for suffix in ('', '-wal', '-shm', '-journal'):
    with contextlib.suppress(FileNotFoundError):
      os.remove(path_in(directory) + suffix)
  connection = _connect(directory, 'rwc')
  connection.execute(f'PRAGMA page_size = {_PAGE_SIZE}')
  _prepare_for_writing(connection)
  with transaction(connection):
    connection.execute(f'PRAGMA application_id = {_APPLICATION_ID}')
    connection.execute(f'PRAGMA user_version = {_SCHEMA_VERSION}')
    for statement in _SCHEMA:
      connection.execute(statement)
    connection.execute('INSERT INTO config VALUES (0, ?)', [seal(settings)])
  return connection


def open_for_writing(directory: str, settings: str) -> sqlite3.Connection:
  """Opens a file and gives it new settings."""
  connection = _connect(directory, 'rw')
  _prepare_for_writing(connection)
  connection.execute('UPDATE config SET json = ?', [seal(settings)])
  return connection


def open_for_reading(directory: str) -> sqlite3.Connection:
  """Opens a file so that no statement can change what it holds."""
  path = path_in(directory)
  if os.access(path, os.W_OK) and os.access(os.path.dirname(path), os.W_OK):
    # Whoever closes the file last moves the write-ahead log into it and removes
    # the log, for which it must be able to write.
    connection = _connect(directory, 'rw')
    connection.execute('PRAGMA query_only = ON')
    return connection
  return open_unchanged(directory)


def open_unchanged(directory: str) -> sqlite3.Connection:
  """Opens a file so that not a byte of it changes."""
  # SQLite keeps an index of the log beside the file. Where none can be made, as
  # on a read-only disk, and there is no log, the file alone tells all.
  has_log = os.path.exists(path_in(directory) + '-wal')
  return _connect(directory, 'ro' if has_log else 'ro&immutable=1')


def _connect(directory: str, mode: str) -> sqlite3.Connection:
  """Opens a file; transactions are begun and ended by statements."""
  uri = f'file:{urllib.parse.quote(path_in(directory))}?mode={mode}'
  return sqlite3.connect(
    uri, uri=True, timeout=_BUSY_TIMEOUT_SECONDS, isolation_level=None
  )


def _prepare_for_writing(connection: sqlite3.Connection) -> None:
  """Makes commits durable and quick."""
  connection.execute('PRAGMA journal_mode = WAL')
  connection.execute('PRAGMA synchronous = FULL')
  connection.execute(f'PRAGMA journal_size_limit = {_JOURNAL_SIZE_LIMIT}')


@contextlib.contextmanager
def transaction(
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


def insert_round(
  connection: sqlite3.Connection,
  round_number: int,
  server_state: bytes,
  client_states: Mapping[int, bytes],
  metrics: str,
  evaluation: Optional[str],
  per_client: Sequence[str],
) -> None:
  """Writes all that a round has changed, within a transaction.

  Args:
    server_state: Replaces the one before.
    client_states: By client; each replaces the client's one before.
    metrics: As JSON.
    evaluation: As JSON, if there is one.
    per_client: With an evaluation, the scores of each client as JSON. They
      replace those before.
  """
  connection.execute('DELETE FROM server_state')
  connection.executemany(
    'INSERT INTO server_state VALUES (?, ?)', enumerate(_pieces(server_state))
  )
  connection.executemany(
    'INSERT OR REPLACE INTO client_states VALUES (?, ?, ?)',
    ((client, round_number, s) for client, s in client_states.items()),
  )
  sealed = seal(checksum(server_state) + metrics, round_number, evaluation)
  connection.execute('INSERT INTO rounds VALUES (?, ?)', [round_number, sealed])
  if evaluation is not None:
    connection.execute(
      'INSERT INTO evaluations VALUES (?, ?)', [round_number, evaluation]
    )
    connection.execute('DELETE FROM per_client')
    connection.executemany(
      'INSERT INTO per_client VALUES (?, ?)',
      # Sealed so that none can be missing.
      ((i, seal(r, i, len(per_client))) for i, r in enumerate(per_client)),
    )


def _pieces(state: bytes) -> Iterator[memoryview]:
  """Yields a state in pieces; an empty state is one empty piece."""
  view = memoryview(state)
  for start in range(0, max(len(state), 1), _PIECE_SIZE):
    yield view[start : start + _PIECE_SIZE]


@contextlib.contextmanager
def translated_errors(
  directory: str, what: str, safe_round: Optional[int] = None
) -> Iterator[None]:
  """Turns errors of SQLite and of the file system into a one-line `RunError`.

  Args:
    directory: The run's output directory.
    what: What is attempted, read after "Cannot".
    safe_round: The last committed round, where a commit is attempted.
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
          ' `resume`'
        )
      raise errors.RunError(f'{start}: {reason}; {mend}.') from error
    if any(sign in text for sign in _SIGNS_OF_DAMAGE):
      raise damaged(directory, text, what) from error
    safe = '' if safe_round is None else f'; round {safe_round} is safe'
    raise errors.RunError(f'{start}: {text}{safe}.') from error


def damaged(
  directory: str, reason: str, what: str = 'read the run'
) -> errors.RunError:
  """The error for a file that does not hold what was committed."""
  return errors.RunError(
    f'Cannot {what} in {directory}: {FILE_NAME} is damaged or not a run'
    f' ({reason}); restore it from a backup, or start a run in another folder.'
  )


def has_run(directory: str) -> bool:
  """Returns whether there is anything that a new run must not replace."""
  if os.path.isfile(path_in(directory)):
    try:
      with contextlib.closing(open_unchanged(directory)) as connection:
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
  name = metrics_writers.JSONL_NAME
  if os.path.exists(os.path.join(directory, name)):
    raise errors.RunError(
      f'Cannot start a run in {directory}: {FILE_NAME} has no rounds, and'
      f' {name} of a run lies beside it; restore {FILE_NAME} from a backup,'
      f' remove {name}, or start the run in another folder.'
    )
  return False


def check_schema(connection: sqlite3.Connection, directory: str) -> None:
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
      ' tff_pfl; pass another `output_dir`.'
    )
  if version != _SCHEMA_VERSION:
    raise errors.RunError(
      f'Cannot open the run in {directory}: its format is version {version},'
      f' this tff_pfl reads version {_SCHEMA_VERSION}; use the tff_pfl that'
      ' made it.'
    )


def seal(text: str, *context: Any) -> str:
  """Returns a text behind a checksum of it and of where it belongs."""
  return checksum('\n'.join(map(str, (text, *context))).encode()) + text


def unseal(directory: str, what: str, text: Any, *context: Any) -> str:
  """Returns what `seal` was given; raises `RunError` if it was not this."""
  if not isinstance(text, str) or text != seal(text[8:], *context):
    raise damaged(directory, f'{what} has another checksum')
  return text[8:]


def checksum(content: bytes) -> str:
  """Returns the CRC-32 as eight digits."""
  return f'{zlib.crc32(content):08x}'
