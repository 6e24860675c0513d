"""Tests of the flags that say which data a run has."""

import csv
import json

import numpy as np
import pytest
from absl import flags
from absl.testing import flagsaver

from binaries import program, run_flags
from tests.binaries import tiny
from tests.runs import left_behind

FLAGS = (
  *('--dataset=table', '--data_dir=table.csv', '--dataset_client=hospital'),
  *tiny.NATURAL,
)


def write_table(programs, columns, cells):
  """Writes 40 rows of two hospitals, with `cells` after the age."""
  rows = [f'{"ab"[i % 2]},{i},{cells(i)}' for i in range(40)]
  path = programs.directory / 'table.csv'
  path.write_text('\n'.join([f'hospital,age,{columns}', *rows]) + '\n')
  return path


@pytest.fixture(name='table')
def _table(programs):
  return write_table(
    programs, 'kind,ill', lambda i: f'{"xyz"[i % 3]},{i // 2 % 2}'
  )


_PERSONALIZE = (
  'personalize --run_dir=run --num_epochs=1 --output_dir=new'.split()
)


def _predictions(programs, *flags):
  programs.succeed(
    'predict', '--run_dir=run', '--output=out.csv', '--overwrite', *flags
  )
  with open(programs.directory / 'out.csv', newline='') as file:
    return list(csv.DictReader(file))


def test_a_model_of_a_table_is_for_new_rows(programs, table):
  programs.succeed('train', *FLAGS, '--dataset_label=kind')
  summary = left_behind.summary(programs.directory / 'run')
  assert summary['dataset'] == 'table'
  assert summary['num_clients'] == 2
  # Each row by its client's model; the label is there or not.
  rows = _predictions(programs, '--input=table.csv')
  assert [row['client'] for row in rows[:3]] == ['a', 'b', 'a']
  assert [row['label'] for row in rows[:3]] == ['x', 'y', 'z']
  for row in rows:
    scores = {word: float(row[f'probability_{word}']) for word in 'xyz'}
    assert max(scores, key=scores.get) == row['prediction']
  new = [f'{i // 2 % 2},{i},{"xyz"[i % 3]}\n' for i in range(0, 20, 2)]
  (programs.directory / 'new.csv').write_text(f'ill,age,kind\n{"".join(new)}')
  programs.succeed(*_PERSONALIZE, '--clients_csv=new.csv')
  fitted = _predictions(
    programs, '--input=new.csv', '--client=client', '--personal_models=new'
  )
  # They are rows of client a, from which they got a model of their own.
  known = [row['label'] for row in rows[:20:2]]
  assert [row['label'] for row in fitted] == known
  assert fitted[0]['probability_x'] != rows[0]['probability_x']


@pytest.mark.slow
def test_several_labels_are_predicted_each(programs):
  write_table(programs, 'flu,cold', lambda i: f'{i // 2 % 2},{int(i > 9)}')
  flags = ('--dataset_label=flu,cold',)
  programs.succeed('train', *FLAGS, *flags)
  row = _predictions(programs, '--input=table.csv')[-1]
  assert (row['label_flu'], row['label_cold']) == ('1', '1')
  for label in ('flu', 'cold'):
    is_likely = float(row[f'probability_{label}']) > 0.5
    assert row[f'prediction_{label}'] == str(int(is_likely))


@pytest.mark.slow
def test_rows_that_weigh_nothing_are_not_trained_on(programs, table):
  lines = table.read_text().splitlines()
  weighted = [f'{lines[0]},share', *(f'{line},0' for line in lines[1:])]
  table.write_text('\n'.join(weighted))
  flags = '--dataset_label=kind', '--dataset_weight=share'
  programs.succeed('train', *FLAGS, *flags)
  run = programs.directory / 'run'
  (row,) = map(json.loads, (run / 'metrics.jsonl').read_text().splitlines())
  assert row['loss'] == 0
  (programs.directory / 'new.csv').write_text('\n'.join(lines))
  programs.succeed(*_PERSONALIZE, '--clients_csv=new.csv')
  arrays = {'x': np.zeros([10, 2], np.float32), 'y': np.zeros(10, int)}
  for weight in ({}, {'weight': np.ones(10)}):
    np.savez(programs.directory / 'new.npz', **arrays, **weight)
    flags = '--clients_npz=new.npz', '--overwrite'
    programs.succeed(*_PERSONALIZE, *flags)


def test_clients_of_files_of_ones_own_are_read(tmp_path):
  users = {
    user: {'x': [[i / 60] * 60 for i in range(20)], 'y': [0, 1] * 10}
    for user in 'abc'
  }
  for part in ('train', 'test'):
    (tmp_path / part).mkdir()
    content = {'users': [*users], 'num_samples': [20] * 3, 'user_data': users}
    path = tmp_path / part / 'all_data.json'
    path.write_text(json.dumps(content))

  def load(shape):
    with flagsaver.flagsaver():
      leaf = '--dataset=leaf', f'--data_dir={tmp_path}', '--num_clients=3'
      shape = f'--dataset_image_shape={shape}'
      flags.FLAGS(['train', *leaf, '--partition=natural', shape])
      try:
        return run_flags.settings_from_flags('fed_avg').load_data()
      except ValueError as error:
        return program.in_flags(str(error))

  assert load('10,6,1').num_clients == 3
  assert '--dataset_image_shape to be of as many numbers' in load('7,7')


def test_a_column_that_is_not_there_is_one_line(programs, table):
  error = programs.fail('train', *FLAGS, '--dataset_label=dead')
  assert '--dataset_label' in error
  assert '(hospital, age, kind, ill)' in error
  flags = '--dataset_label=ill', '--dataset_drop=age,name'
  error = programs.fail('train', *FLAGS, *flags)
  assert '--dataset_drop' in error and "found 'name'" in error
