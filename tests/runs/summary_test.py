import json
import math
import os

import numpy as np
import pandas as pd
import pytest

from tff_pfl import errors
from tff_pfl.models import split_model
from tff_pfl.runs import summary
from tff_pfl.system import folders


@pytest.mark.parametrize(
  'rounds, values, final_round, metric, expected',
  [
    # The last ten rounds are 16 to 25.
    (
      [5, 10, 15, 20, 25],
      [0.5, 0.9, 0.75, 0.5, 0.25],
      25,
      split_model.ACCURACY,
      [0.375, 2, 0.9, 10, None, 0.25],
    ),
    # They end with the training, not with the evaluations.
    ([5, 10], [0.5, 1], 18, split_model.ACCURACY, [1, 1, 1, 10, None, 1]),
    ([5, 10], [0.5, 1], 30, split_model.ACCURACY, [None, 0, 1, 10, None, 1]),
    # The best round is the first of equals; NaN is never best, and not hidden.
    ([1, 2], [1, 1], 50, split_model.ACCURACY, [None, 0, 1, 1, None, 1]),
    (
      [1, 2, 3],
      [0.5, 0.25, np.nan],
      50,
      split_model.LOSS,
      [None, 0, 0.25, 2, None, np.nan],
    ),
    # Of the ten rounds to the 10th the mean is 0.55, to the 11th 0.45, to the
    # 12th 0.4; the ten to the 14th were not all evaluated.
    (
      [*range(1, 13), 14],
      [1, *[0.5] * 9, 0, 0, 1],
      14,
      split_model.ACCURACY,
      [(6 * 0.5 + 1) / 9, 9, 1, 1, 0.55, 1],
    ),
    # Of errors the least counts, and a diverged one does not.
    (
      [*range(1, 14)],
      [np.nan, 4, 2, *[1] * 9, 3],
      13,
      split_model.LOSS,
      [1.2, 10, 1, 4, 1.1, 3],
    ),
    (
      [1, 2],
      [None] * 2,
      2,
      split_model.LOSS,
      [None, 0, None, None, None, None],
    ),
  ],
)
def test_figures_over_rounds_are_those_computed_by_hand(
  rounds, values, final_round, metric, expected
):
  actual = summary.over_rounds(rounds, values, final_round, metric)
  names = ['last_10_mean', 'num_last_10', 'best', 'best_round']
  names += ['best_10_mean', 'last']
  assert list(actual) == names
  assert list(actual.values()) == pytest.approx(expected, nan_ok=True)


def test_json_file_is_strict_and_readable(tmp_path):
  path = tmp_path / 'summary.json'
  summary.write_json(
    path,
    {
      'name': 'é',
      'accuracy': {'best': np.float32(0.5), 'last': math.nan},
      'list': [1, math.inf],
    },
  )
  text = path.read_text(encoding='utf-8')
  assert 'NaN' not in text
  assert json.loads(text) == {
    'name': 'é',
    'accuracy': {'best': 0.5, 'last': None},
    'list': [1, None],
  }
  assert os.listdir(tmp_path) == ['summary.json']


def test_failed_write_is_one_line_and_leaves_the_old_file(
  tmp_path, monkeypatch
):
  path = tmp_path / 'summary.json'
  summary.write_json(path, {'a': 1})
  with pytest.raises(TypeError):
    summary.write_json(path, {'a': object()})
  with pytest.raises(KeyboardInterrupt):
    with folders.atomic_file(path) as file:
      file.write('half')
      file.flush()
      raise KeyboardInterrupt

  def fail(_):
    raise OSError(28, 'No space left on device')

  monkeypatch.setattr(os, 'fsync', fail)
  with pytest.raises(errors.RunError, match=f'{path}.*No space') as error:
    summary.write_json(path, {'a': 2})
  assert '\n' not in str(error.value)
  assert json.loads(path.read_text()) == {'a': 1}
  assert os.listdir(tmp_path) == ['summary.json']


def test_a_frame_has_the_columns_of_all_rows(tmp_path):
  path = tmp_path / 'per_client.csv'
  table = summary.frame(
    [
      {'client': 'a,b', 'accuracy': np.float64(0.5), 'parts': ()},
      {'client': 'c', 'accuracy': None, 'global': {'accuracy': 1 / 3}},
    ]
  )
  assert list(table) == ['client', 'accuracy', 'global/accuracy']
  summary.write_csv(path, table)
  assert path.read_text() == (
    f'client,accuracy,global/accuracy\n"a,b",0.5,\nc,,{1 / 3!r}\n'
  )
  with pytest.raises(errors.RunError, match='No such file'):
    summary.write_csv(tmp_path / 'missing' / 'x.csv', table)


def test_tidy_scores_have_one_number_a_row():
  wide = summary.frame(
    [
      {
        'client': 'a',
        'num_rounds': 3,
        'before': {'loss': 2.0},
        'after': {'loss': 1.0},
        'domains': {'sea/x': {'num_test_examples': 4, 'after': {'loss': 0.5}}},
      }
    ]
  )
  rows = summary.tidy(wide).to_dict('records')
  assert [list(row.values())[:2] for row in rows] == [['a', 3]] * 3
  assert [
    (
      None if pd.isna(row['domain']) else row['domain'],
      row['when'],
      row['value'],
    )
    for row in rows
  ] == [(None, 'before', 2.0), (None, 'after', 1.0), ('sea/x', 'after', 0.5)]
  assert {row['metric'] for row in rows} == {'loss'}


def test_a_table_aligns_numbers_and_marks_what_is_missing():
  rows = [
    ['FedRep', 0.97123, 3, None],
    ['FedAvg', 1.0, 12, None],
    ['x', None, 100000, None],
    ['0.50', np.float32(12345.6), 1, None],
  ]
  table = summary.format_table(rows, ['method', 'accuracy', 'rounds', 'none'])
  assert table.splitlines() == [
    'method      accuracy    rounds  none',
    '--------  ----------  --------  ------',
    'FedRep        0.9712         3  –',
    'FedAvg        1             12  –',
    'x             –         100000  –',
    '0.50      12346              1  –',
  ]
  assert summary.format_table([], ['a', 'b']).split()[:2] == ['a', 'b']
  frame = pd.DataFrame({'method': ['a'], 'personal accuracy': [math.nan]})
  assert [
    line.split() for line in summary.format_table(frame, width=8).splitlines()
  ] == [['method', 'personal'], ['accuracy'], ['-' * 8, '-' * 10], ['a', '–']]
