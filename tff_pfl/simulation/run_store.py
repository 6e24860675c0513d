"""The durable state of a run: one SQLite file in the run's output directory.

A round is committed as a whole or not at all: the server state, the states of
the clients that took part, the metrics and the evaluation go into one
transaction that is on the disk when `RunStore.commit_round` returns. A run that
is killed at any moment thus loses at most the round it was computing. Only the
newest server state and the newest state of each client are kept, so with the
rounds the file grows by their metrics alone. Client states are read one by one
when asked for; memory does not grow with the number of clients.

One process at a time writes to a run. It holds an advisory lock on the file
`run.lock`, which the kernel releases however the process ends. Any number of
processes may read meanwhile, through `RunStore.open_for_reading`.

Settings and metrics stand behind checksums, and the rounds have no gap. All of
that is checked when a run is opened, before anything is written to it.

A store belongs to the thread that opened it.
"""

import contextlib
import json
import os
import sqlite3
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Optional, Union

from tff_pfl import errors
from tff_pfl.simulation import directory_lock, run_file, value_codec

# What may differ between a run and its resumption: it does not change what any
# round computes.
MUTABLE_SETTINGS = ('num_rounds', 'data_dir', 'runtime')

FILE_NAME = run_file.FILE_NAME

_Path = Union[str, 'os.PathLike[str]']


class RunStore:
  """The committed rounds of a run; see the module's docstring.

  Use `create`, `open_or_create` or `open_for_reading`, not the constructor.
  Every method raises `RunError` where the file is damaged or the disk fails,
  and says what is safe.
  """

  def __init__(
    self,
    directory: str,
    connection: sqlite3.Connection,
    lock: Optional[directory_lock.DirectoryLock],
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

    Raises:
      RunError: If `directory` has a run, is in use by a running process, or
        cannot be written to.
    """
    directory = os.fspath(directory)
    config_json = _dump(config)
    with contextlib.ExitStack() as on_error:
      lock = on_error.enter_context(directory_lock.DirectoryLock(directory))
      if run_file.has_run(directory):
        raise errors.RunError(
          f'There is a run in {directory} already: pass `resume` to continue'
          ' it, or another `output_dir`.'
        )
      with run_file.translated_errors(directory, 'create the run'):
        connection = run_file.create(directory, config_json)
      on_error.pop_all()
      return cls(directory, connection, lock)

  @classmethod
  def open_or_create(
    cls, directory: _Path, config: Mapping[str, Any]
  ) -> 'RunStore':
    """Continues the run in `directory` or, without one, starts it.

    Args:
      directory: The run's output directory.
      config: The settings given now, as for `create`. The run takes on those of
        `MUTABLE_SETTINGS`.

    Raises:
      RunError: If `directory` is in use by a running process, or its run is
        damaged or has other settings than `config`; the message gives each such
        setting with both values.
    """
    directory = os.fspath(directory)
    if not run_file.has_run(directory):
      return cls.create(directory, config)
    config_json = _dump(config)
    with contextlib.ExitStack() as on_error:
      lock = on_error.enter_context(directory_lock.DirectoryLock(directory))
      # Whoever can write changes the file by closing it, if only by moving the
      # write-ahead log of a killed process into it.
      with cls._open_checked(directory, run_file.open_unchanged) as store:
        store.server_state()
        store._check_resumable(json.loads(config_json))
      with run_file.translated_errors(directory, 'open the run'):
        connection = run_file.open_for_writing(directory, config_json)
      on_error.pop_all()
      return cls(directory, connection, lock)

  @classmethod
  def open_for_reading(cls, directory: _Path) -> 'RunStore':
    """Opens a run that may be in progress, to read what it has committed.

    Each method of the store reads what is committed at that moment.

    Raises:
      RunError: If `directory` has no run, or a damaged one.
    """
    directory = os.fspath(directory)
    if not os.path.isfile(run_file.path_in(directory)):
      raise errors.RunError(
        f'There is no run in {directory} (no {FILE_NAME}): check the name of'
        ' the folder.'
      )
    return cls._open_checked(directory, run_file.open_for_reading)

  @classmethod
  def _open_checked(
    cls, directory: str, connect: Callable[[str], sqlite3.Connection]
  ) -> 'RunStore':
    """Opens a run for reading if settings and metrics are as committed.

    States are checked as they are read.
    """
    with contextlib.ExitStack() as on_error:
      with run_file.translated_errors(directory, 'open the run'):
        connection = on_error.enter_context(
          contextlib.closing(connect(directory))
        )
        run_file.check_schema(connection, directory)
      store = cls(directory, connection, None)
      _ = store.config, store.history(), store.per_client()
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
      raise run_file.damaged(self._directory, 'its settings are missing')
    return json.loads(
      run_file.unseal(self._directory, 'its settings', rows[0][0])
    )

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
    per_client: Sequence[Mapping[str, Any]] = (),
  ) -> None:
    """Commits all that a round has changed, or nothing.

    Args:
      round_number: The round, `last_round` + 1; 0 for the initial state.
      server_state: The server state after the round.
      client_states: The states of clients that have changed, by client index.
      metrics: The metrics of the round, nested as need be, of the types that
        `value_codec.to_json` takes; "round" and "evaluation" are taken names.
        The initial state has none.
      evaluation: The metrics of an evaluation after the round, of the same
        types; None if none took place.
      per_client: With `evaluation`, the metrics of each client.

    Raises:
      ValueError: If the round is not the next one, or `metrics` has a name that
        is taken.
      RunError: If the disk is full or fails. Nothing of the round is stored
        then, and all rounds before it are still there.
    """
    if self._lock is None:
      raise errors.RunError(
        f'The run in {self._directory} is open for reading only.'
      )
    last_round = self.last_round
    errors.expect(
      round_number == last_round + 1,
      'round_number',
      f'the next round, {last_round + 1}',
      round_number,
    )
    for name in ('round', 'evaluation'):
      errors.expect(
        name not in metrics,
        'metrics',
        f'without {name!r}, which the history adds',
        list(metrics),
      )
    with run_file.translated_errors(
      self._directory, f'commit round {round_number}', last_round
    ):
      with run_file.transaction(self._connection) as connection:
        run_file.insert_round(
          connection,
          round_number,
          server_state,
          client_states,
          _dump(metrics),
          None if evaluation is None else _dump(evaluation),
          [_dump(row) for row in per_client],
        )

  def server_state(self) -> bytes:
    """Returns the newest server state.

    Raises:
      RunError: If it is damaged, or the initial one is not committed yet.
    """
    # One statement, as a round may be committed meanwhile.
    rows = self._read(
      'SELECT state, (SELECT substr(metrics, 9, 8) FROM rounds'
      ' ORDER BY round DESC LIMIT 1) FROM server_state ORDER BY piece'
    )
    if not rows and self.last_round < 0:
      raise errors.RunError(
        f'The run in {self._directory} has committed no state yet.'
      )
    try:
      state = b''.join(row[0] for row in rows)
    except TypeError as error:
      raise run_file.damaged(
        self._directory, f'server state: {error}'
      ) from error
    if not rows or rows[0][1] != run_file.checksum(state):
      raise run_file.damaged(
        self._directory, 'its state is not that of the last round'
      )
    return state

  def client_states(self, client_indices: Iterable[int]) -> dict[int, bytes]:
    """Returns the newest states by client index, in the order asked for.

    A client whose state was never committed is absent.
    """
    states = {}
    query = 'SELECT state FROM client_states WHERE client = ?'
    with run_file.translated_errors(self._directory, 'read the run'):
      # One transaction, so that a reader never sees states of two rounds.
      with run_file.transaction(self._connection, 'DEFERRED') as connection:
        for index in client_indices:
          row = connection.execute(query, [index]).fetchone()
          if row is not None:
            states[index] = row[0]
    return states

  def history(self) -> list[dict[str, Any]]:
    """Returns all that is known of each round from 1 on.

    It is ``{'round': round, **metrics, 'evaluation': evaluation}``, the last
    only where there was one.
    """
    # Read at once: a query that stays open while its rows are consumed would
    # keep the running process from shortening its write-ahead log.
    rows = self._read(
      'SELECT round, rounds.metrics, evaluations.metrics FROM rounds'
      ' LEFT JOIN evaluations USING (round) ORDER BY round'
    )
    history = []
    for expected, (number, metrics, evaluation) in enumerate(rows):
      if number != expected:
        raise run_file.damaged(self._directory, f'round {expected} is missing')
      metrics = run_file.unseal(
        self._directory, f'round {number}', metrics, number, evaluation
      )
      # Behind the checksum of the state.
      row = {'round': number, **json.loads(metrics[8:])}
      if evaluation is not None:
        row['evaluation'] = json.loads(evaluation)
      history.append(row)
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
    rows = self._read('SELECT metrics FROM per_client ORDER BY row')
    return [
      json.loads(
        run_file.unseal(
          self._directory, 'its scores of clients', *row, i, len(rows)
        )
      )
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

  def _read(self, query: str) -> list[Any]:
    with run_file.translated_errors(self._directory, 'read the run'):
      return self._connection.execute(query).fetchall()

  def _check_resumable(self, given: Mapping[str, Any]) -> None:
    """Raises `RunError` if the run cannot go on with the settings given."""
    old, new = (
      value_codec.flatten(settings, '.') for settings in (self.config, given)
    )
    absent = object()
    differences = []
    for name in dict.fromkeys([*old, *new]):
      was, now = old.get(name, absent), new.get(name, absent)
      if name in MUTABLE_SETTINGS or was == now:
        continue
      was_text, now_text = (
        'absent' if value is absent else repr(value) for value in (was, now)
      )
      # NaN differs from itself, its text does not.
      if was_text != now_text:
        differences.append(f'{name} was {was_text}, now {now_text}')
    if differences:
      raise errors.RunError(
        f'Cannot resume the run in {self._directory} with other settings:'
        f' {"; ".join(differences)}. Give those of the run, or another'
        ' `output_dir`.'
      )
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


def _dump(value: Mapping[str, Any]) -> str:
  """Returns a nested mapping as JSON text."""
  return json.dumps(value_codec.to_json(value), separators=(',', ':'))
