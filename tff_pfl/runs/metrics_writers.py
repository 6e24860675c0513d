"""Writes a run's metrics as JSON lines and for TensorBoard.

Every round becomes a line of `metrics.jsonl` and a point on each curve that
TensorBoard shows from the folder `tensorboard`. The metrics of an evaluation
are in the row of the round before it, with names like
"evaluation/personal/accuracy".

The run store is the source of truth. When a run starts or resumes, the files
are rewritten from its history, so no round is ever missing or duplicated.
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
    """Replaces the files of an earlier process with `history`.

    Args:
      directory: The run's output directory, created if missing.
      history: The committed rows, from `RunStore.history`.
    """
    self._directory = os.fspath(directory)
    with self._translated():
      events = os.path.join(self._directory, TENSORBOARD_NAME)
      os.makedirs(events, exist_ok=True)
      self._jsonl = open(
        os.path.join(self._directory, JSONL_NAME), 'w', encoding='utf-8'
      )
      # TensorBoard joins all event files of a folder. Files of an earlier
      # process would show its rounds a second time.
      name = 'events.out.tfevents.'
      for path in glob.glob(os.path.join(glob.escape(events), f'{name}*')):
        os.remove(path)
      # `tf.summary` makes tensors, which are never freed in Python 3.11, so it
      # is not used. No other process writes here, so the time is a unique name.
      self._events = tf.io.TFRecordWriter(
        os.path.join(events, f'{name}{time.time():017.6f}')
      )
      self._write_event(file_version='brain.Event:2')
    self.write(*history)

  def write(self, *rows: Mapping[str, Any]) -> None:
    """Writes the metrics of rounds, and flushes the files.

    Args:
      *rows: The number of the round as "round", in ascending order, and the
        metrics, possibly nested, of types that `value_codec.to_json` accepts.
    """
    with self._translated():
      for row in map(summary.flat, rows):
        self._jsonl.write(f'{summary.json_text(row)}\n')
        values = [
          # Metrics without a group appear in the group "round".
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
    # Closes each file even if closing the other fails.
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
        f'Cannot write the metrics to {self._directory}. The committed rounds'
        f' are safe. Fix this and pass `resume`: {errors.reason(error)}'
      ) from error
