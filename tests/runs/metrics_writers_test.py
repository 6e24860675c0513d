import gc
import glob
import json
import os
import sys

import numpy as np
import pytest
import tensorflow as tf

from tff_pfl import errors
from tff_pfl.runs import metrics_writers

MetricsWriters = metrics_writers.MetricsWriters

_ROWS = [
  {'round': 1, 'loss': 0.5, 'nested': {'norm': 2.0}},
  {'round': 2, 'loss': np.float32(0.25), 'evaluation': {'accuracy': 0.75}},
  {'round': 3, 'loss': 0.125, 'nested': {'norm': 1.0}},
]


def read_jsonl(directory):
  text = (directory / metrics_writers.JSONL_NAME).read_text()
  return [json.loads(line) for line in text.splitlines()]


def read_tensorboard(directory):
  """Returns the points by tag, over all event files of the folder."""
  points = {}
  folder = directory / metrics_writers.TENSORBOARD_NAME
  for path in sorted(glob.glob(str(folder / '*'))):
    for record in tf.data.TFRecordDataset(path):
      event = tf.compat.v1.Event.FromString(record.numpy())
      for value in event.summary.value:
        number = value.simple_value
        points.setdefault(value.tag, []).append((event.step, number))
  return points


def test_both_forms_hold_every_round(tmp_path):
  with MetricsWriters(tmp_path / 'run') as writers:
    for row in _ROWS:
      writers.write(row)
      # On file at once.
      assert len(read_jsonl(tmp_path / 'run')) == row['round']
      points = read_tensorboard(tmp_path / 'run')
      assert len(points['round/loss']) == row['round']

  assert read_jsonl(tmp_path / 'run') == [
    {'round': 1, 'loss': 0.5, 'nested/norm': 2.0},
    {'round': 2, 'loss': 0.25, 'evaluation/accuracy': 0.75},
    {'round': 3, 'loss': 0.125, 'nested/norm': 1.0},
  ]
  assert read_tensorboard(tmp_path / 'run') == {
    'round/loss': [(1, 0.5), (2, 0.25), (3, 0.125)],
    'nested/norm': [(1, 2.0), (3, 1.0)],
    'evaluation/accuracy': [(2, 0.75)],
  }


def test_rounds_leave_nothing_in_memory(tmp_path):
  def blocks_after(writers, rounds):
    for n in rounds:
      writers.write(
        {'round': n, 'loss': 1 / n, 'evaluation': {'accuracy': 0.5}}
      )
    gc.collect()
    return sys.getallocatedblocks()

  with MetricsWriters(tmp_path) as writers:
    before = blocks_after(writers, range(1, 50))
    # Other threads of the process come and go: less than one block a round.
    assert blocks_after(writers, range(50, 300)) < before + 200


def test_resumed_files_equal_uninterrupted_ones(tmp_path):
  whole, resumed = tmp_path / 'whole', tmp_path / 'resumed'
  with MetricsWriters(whole) as writers:
    for row in _ROWS:
      writers.write(row)
  notes = resumed / metrics_writers.TENSORBOARD_NAME / 'notes.txt'
  notes.parent.mkdir(parents=True)
  notes.write_text('mine')
  # Rounds 2 and 3 were written and lost, round 1 was committed; the last line
  # was cut short.
  with MetricsWriters(resumed) as writers:
    for row in _ROWS:
      writers.write({**row, 'loss': 9.0, 'strange': 1})
  with open(resumed / metrics_writers.JSONL_NAME, 'a') as file:
    file.write('{"round": 4, "lo')
  with MetricsWriters(resumed, iter(_ROWS[:1])) as writers:
    assert [row['round'] for row in read_jsonl(resumed)] == [1]
    for row in _ROWS[1:]:
      writers.write(row)

  name = metrics_writers.JSONL_NAME
  assert (resumed / name).read_bytes() == (whole / name).read_bytes()
  assert notes.read_text() == 'mine'
  notes.unlink()
  assert read_tensorboard(resumed) == read_tensorboard(whole)


def test_values_that_are_no_numbers(tmp_path):
  row = {
    'round': 1,
    'loss': float('nan'),
    'counts': [1, 2],
    'note': 'a, "b"',
    'gone': None,
  }
  with MetricsWriters(tmp_path) as writers:
    # Empty metrics are left out.
    writers.write({**row, 'distributor': (), 'aggregator': {'x': ()}})

  assert read_jsonl(tmp_path) == [{**row, 'loss': None}]
  points = read_tensorboard(tmp_path)
  assert list(points) == ['round/loss']
  assert np.isnan(points['round/loss'][0][1])


@pytest.mark.skipif(
  not os.path.exists('/dev/full'), reason='needs the device /dev/full'
)
def test_full_disk_is_one_line(tmp_path):
  (tmp_path / metrics_writers.JSONL_NAME).symlink_to('/dev/full')
  with pytest.raises(errors.RunError, match='No space left') as error:
    with MetricsWriters(tmp_path) as writers:
      writers.write({'round': 1})
  assert '\n' not in str(error.value)
  assert '`resume`' in str(error.value)


def test_error_of_tensorflow_is_one_line(tmp_path):
  class Failing:
    def write(self, _):
      raise tf.errors.ResourceExhaustedError(None, None, 'disk full\n\tmore')

  writers = MetricsWriters(tmp_path)
  writers._events = Failing()
  with pytest.raises(errors.RunError, match='disk full more') as error:
    writers.write(_ROWS[0])
  assert '\n' not in str(error.value)
