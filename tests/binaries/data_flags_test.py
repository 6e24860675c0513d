"""Tests of the flags that say which data a run has."""

import json

import pytest


@pytest.fixture(name='table')
def _table(programs):
  rows = [f'{"ab"[i % 2]},{i},{"xyz"[i % 3]},{i // 2 % 2}' for i in range(40)]
  path = programs.directory / 'table.csv'
  path.write_text('\n'.join(['hospital,age,kind,ill', *rows]) + '\n')
  return path


_FLAGS = (
  '--dataset=tabular',
  '--csv=table.csv',
  '--dataset_client_column=hospital',
  '--partition=natural',
  '--num_clients=2',
  '--cohort_size=2',
  '--num_rounds=1',
  '--num_final_evaluations=1',
  '--model=linear',
  '--algorithm=fed_avg',
  '--output_dir=run',
)


def test_a_table_is_named_by_csv_and_its_columns(programs, table):
  programs.succeed('train', *_FLAGS, '--dataset_label_column=ill')
  summary = json.loads(
    (programs.directory / 'run' / 'summary.json').read_text()
  )
  assert summary['dataset'] == 'tabular'
  assert summary['num_clients'] == 2


def test_a_column_that_is_not_there_is_one_line(programs, table):
  error = programs.fail('train', *_FLAGS, '--dataset_label_column=dead')
  assert '--dataset_label_column' in error
  assert '(hospital, age, kind, ill)' in error
  error = programs.fail(
    'train',
    *_FLAGS,
    '--dataset_label_column=ill',
    '--dataset_drop_columns=age,name',
  )
  assert '--dataset_drop_columns' in error and "found 'name'" in error
