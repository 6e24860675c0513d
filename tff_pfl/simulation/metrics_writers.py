"""Writes a run's metrics where people look for them.

Every round becomes a line of `metrics.jsonl`, a row of `metrics.csv`, and a
point of each curve that TensorBoard shows from the folder `tensorboard`. The
metrics of an evaluation stand in the row of the round that they followed; in
other rounds these cells are empty. Nested metrics get names like
"evaluation/accuracy", the same in all three.

The run store is the source of truth. On starting or resuming a run, the files
are written anew from its history, so that no round is ever missing or doubled.
"""

import contextlib
import csv
import glob
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Union

import tensorflow as tf

from tff_pfl import errors
from tff_pfl.simulation import summary, value_codec

JSONL_NAME = 'metrics.jsonl'
CSV_NAME = 'metrics.csv'
TENSORBOARD_NAME = 'tensorboard'

_Row = dict[str, Any]


class MetricsWriters:
  """Writes rows of metrics as JSONL, as CSV and for TensorBoard.

  Every method raises `RunError` if a file cannot be written.
  """

  def __init__(
    self,
    directory: Union[str, 'os.PathLike[str]'],
    history: Iterable[Mapping[str, Any]] = (),
  ):
    """Replaces the files of an earlier process by `history`.

    Args:
      directory: The run's output directory; made if missing.
      history: The committed rows, as `RunStore.history` yields them.
    """
    self._directory = os.fspath(directory)
    self._files = []
    with self._translated():
      os.makedirs(self._directory, exist_ok=True)
      for kind, name in (
        (_Jsonl, JSONL_NAME),
        (_Csv, CSV_NAME),
        (_TensorBoard, TENSORBOARD_NAME),
      ):
        self._files.append(kind(os.path.join(self._directory, name)))
    for row in history:
      self._write(row)
    self._flush()

  def write(self, row: Mapping[str, Any]) -> None:
    """Writes the metrics of a round; they are on file when this returns.

    Args:
      row: "round", the number of the round, above that of the row before it,
        and the metrics, nested as need be, of the types that
        `value_codec.to_json` takes.
    """
    self._write(row)
    self._flush()

  def close(self) -> None:
    """Closes the files."""
    with self._translated(), contextlib.ExitStack() as stack:
      for file in self._files:
        stack.callback(file.close)

  def __enter__(self) -> 'MetricsWriters':
    return self

  def __exit__(self, *_: Any) -> None:
    self.close()

  def _write(self, row: Mapping[str, Any]) -> None:
    flat = value_codec.flatten(value_codec.to_json(row))
    round_number = flat.pop('round')
    # The parts of a process that have no metrics report an empty tuple.
    flat = {name: value for name, value in flat.items() if value != []}
    with self._translated():
      for file in self._files:
        file.write(round_number, flat)

  def _flush(self) -> None:
    with self._translated():
      for file in self._files:
        file.flush()

  @contextlib.contextmanager
  def _translated(self) -> Iterator[None]:
    """Turns errors of the file system and of TensorFlow into a `RunError`."""
    try:
      yield
    except (OSError, tf.errors.OpError) as error:
      if isinstance(error, OSError):
        reason = errors.os_reason(error)
      else:
        # The first line says which file and why; the rest is TensorFlow's own.
        reason = error.message.strip().partition('\n')[0]
      raise errors.RunError(
        f'Cannot write the metrics to {self._directory}: {reason}; the'
        ' committed rounds are safe; mend it and pass `resume`.'
      ) from error


class _Jsonl:
  """One line of JSON for each round."""

  def __init__(self, path: str):
    self._file = open(path, 'w', encoding='utf-8')

  def write(self, round_number: int, row: _Row) -> None:
    self._file.write(summary.json_text({'round': round_number, **row}) + '\n')

  def flush(self) -> None:
    self._file.flush()

  def close(self) -> None:
    self._file.close()


class _Csv:
  """One row for each round, under one header.

  A metric that was not there before, such as those of the first evaluation,
  gets a new column at the end. As the header is the first line, the file is
  then replaced by one with the wider header.
  """

  def __init__(self, path: str):
    self._path = path
    self._columns: list[str] = []
    self._open('w')

  def write(self, round_number: int, row: _Row) -> None:
    row = {'round': round_number, **row}
    known = set(self._columns)
    added = [name for name in row if name not in known]
    if added:
      self._add_columns(added)
    self._writer.writerow(
      [summary.csv_cell(row.get(name)) for name in self._columns]
    )

  def flush(self) -> None:
    self._file.flush()

  def close(self) -> None:
    self._file.close()

  def _open(self, mode: str) -> None:
    self._file = open(self._path, mode, encoding='utf-8', newline='')
    self._writer = summary.csv_writer(self._file)

  def _add_columns(self, names: list[str]) -> None:
    if not self._columns:
      self._columns = names
      self._writer.writerow(map(summary.csv_cell, names))
      return
    self._file.close()
    self._columns += names
    with open(self._path, encoding='utf-8', newline='') as old:
      rows = csv.reader(old)
      next(rows, None)
      with summary.atomic_file(self._path) as new:
        writer = summary.csv_writer(new)
        writer.writerow(map(summary.csv_cell, self._columns))
        writer.writerows(row + [''] * len(names) for row in rows)
    self._open('a')


class _TensorBoard:
  """Scalars, with the round as the step.

  A metric without a group of its own is shown in the group "round".
  """

  def __init__(self, folder: str):
    os.makedirs(folder, exist_ok=True)
    # TensorBoard joins all event files of a folder: those of an earlier process
    # would show its rounds a second time.
    pattern = os.path.join(glob.escape(folder), 'events.out.tfevents.*')
    for path in glob.glob(pattern):
      os.remove(path)
    # Not by `tf.summary`: it makes tensors, each of which costs memory for ever
    # in Python 3.11. Nobody else writes here, so the time is name enough.
    self._writer = tf.io.TFRecordWriter(
      os.path.join(folder, f'events.out.tfevents.{time.time():017.6f}')
    )
    self._write(file_version='brain.Event:2')

  def write(self, round_number: int, row: _Row) -> None:
    summary_proto = tf.compat.v1.Summary()
    for name, value in row.items():
      if isinstance(value, (int, float)):
        tag = name if '/' in name else f'round/{name}'
        summary_proto.value.add(tag=tag, simple_value=value)
    self._write(step=round_number, summary=summary_proto)

  def _write(self, **content: Any) -> None:
    event = tf.compat.v1.Event(wall_time=time.time(), **content)
    self._writer.write(event.SerializeToString())

  def flush(self) -> None:
    self._writer.flush()

  def close(self) -> None:
    self._writer.close()
