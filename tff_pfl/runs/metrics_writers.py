"""Writes a run's metrics where people look for them.

Every round becomes a line of `metrics.jsonl` and a point of each curve that
TensorBoard shows from the folder `tensorboard`. The metrics of an evaluation
stand in the row of the round that they followed, with names like
"evaluation/personal/accuracy".

The run store is the source of truth. On starting or resuming a run, the files
are written anew from its history, so that no round is ever missing or doubled.
"""

import contextlib
import glob
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Union

import tensorflow as tf

from tff_pfl import errors
from tff_pfl.runs import summary

JSONL_NAME = 'metrics.jsonl'
TENSORBOARD_NAME = 'tensorboard'


class MetricsWriters:
  """Writes rows of metrics as JSONL and for TensorBoard.

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
    with self._translated():
      events = os.path.join(self._directory, TENSORBOARD_NAME)
      os.makedirs(events, exist_ok=True)
      self._jsonl = open(
        os.path.join(self._directory, JSONL_NAME), 'w', encoding='utf-8'
      )
      # TensorBoard joins all event files of a folder: those of an earlier
      # process would show its rounds a second time.
      name = 'events.out.tfevents.'
      for path in glob.glob(os.path.join(glob.escape(events), f'{name}*')):
        os.remove(path)
      # Not by `tf.summary`: it makes tensors, each of which costs memory for
      # ever in Python 3.11. Nobody else writes here: the time is name enough.
      self._events = tf.io.TFRecordWriter(
        os.path.join(events, f'{name}{time.time():017.6f}')
      )
      self._write_event(file_version='brain.Event:2')
    self.write(*history)

  def write(self, *rows: Mapping[str, Any]) -> None:
    """Writes the metrics of rounds; they are on file when this returns.

    Args:
      *rows: "round", the number of the round, above that of the row before it,
        and the metrics, nested as need be, of the types that
        `value_codec.to_json` takes.
    """
    with self._translated():
      for row in map(summary.flat, rows):
        self._jsonl.write(f'{summary.json_text(row)}\n')
        values = [
          # A metric without a group is shown in the group "round".
          tf.compat.v1.Summary.Value(
            tag=name if '/' in name else f'round/{name}', simple_value=value
          )
          for name, value in row.items()
          if isinstance(value, (int, float)) and name != 'round'
        ]
        self._write_event(
          step=row['round'], summary=tf.compat.v1.Summary(value=values)
        )
      self._jsonl.flush()
      self._events.flush()

  def __enter__(self) -> 'MetricsWriters':
    return self

  def __exit__(self, *_: Any) -> None:
    # Each is closed, even if the other cannot be.
    with self._translated(), self._events, self._jsonl:
      pass

  def _write_event(self, **content: Any) -> None:
    event = tf.compat.v1.Event(wall_time=time.time(), **content)
    self._events.write(event.SerializeToString())

  @contextlib.contextmanager
  def _translated(self) -> Iterator[None]:
    """Turns errors of the file system and of TensorFlow into a `RunError`."""
    try:
      yield
    except (OSError, tf.errors.OpError) as error:
      raise errors.RunError(
        f'Cannot write the metrics to {self._directory}; the committed rounds'
        f' are safe, mend it and pass `resume`: {errors.reason(error)}'
      ) from error
