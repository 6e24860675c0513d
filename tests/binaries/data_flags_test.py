"""Tests of the flags that say which data a run has."""

import csv
import json

import numpy as np
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


def _predictions(programs, *flags):
  programs.succeed(
    'predict', '--run_dir=run', '--output=out.csv', '--overwrite', *flags
  )
  with open(programs.directory / 'out.csv', newline='') as file:
    return list(csv.DictReader(file))


def test_a_model_of_a_table_is_for_new_rows(programs, table):
  programs.succeed('train', *_FLAGS, '--dataset_label_column=kind')
  summary = json.loads(
    (programs.directory / 'run' / 'summary.json').read_text()
  )
  assert summary['dataset'] == 'tabular'
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
  programs.succeed(
    'personalize',
    '--run_dir=run',
    '--clients_csv=new.csv',
    '--num_epochs=1',
    '--output_dir=new',
  )
  fitted = _predictions(
    programs, '--input=new.csv', '--client=client', '--personal_models=new'
  )
  # They are rows of client a, from which they got a model of their own.
  known = [row['label'] for row in rows[:20:2]]
  assert [row['label'] for row in fitted] == known
  assert fitted[0]['probability_x'] != rows[0]['probability_x']


@pytest.mark.slow
def test_several_labels_are_predicted_each(programs):
  rows = [f'{"ab"[i % 2]},{i},{i // 2 % 2},{int(i > 9)}' for i in range(40)]
  path = programs.directory / 'table.csv'
  path.write_text('\n'.join(['hospital,age,flu,cold', *rows]) + '\n')
  programs.succeed(
    'train',
    *_FLAGS,
    '--dataset_task=multilabel',
    '--dataset_label_column=flu,cold',
  )
  row = _predictions(programs, '--input=table.csv')[-1]
  assert (row['label_flu'], row['label_cold']) == ('1', '1')
  for label in ('flu', 'cold'):
    is_likely = float(row[f'probability_{label}']) > 0.5
    assert row[f'prediction_{label}'] == str(int(is_likely))


def test_rows_that_weigh_nothing_are_not_trained_on(programs, table):
  lines = table.read_text().splitlines()
  weighted = [f'{lines[0]},share', *(f'{line},0' for line in lines[1:])]
  table.write_text('\n'.join(weighted))
  flags = _FLAGS, '--dataset_label_column=kind', '--dataset_weight_column=share'
  programs.succeed('train', *flags[0], *flags[1:])
  run = programs.directory / 'run'
  (row,) = map(json.loads, (run / 'metrics.jsonl').read_text().splitlines())
  assert row['loss'] == 0
  (programs.directory / 'new.csv').write_text('\n'.join(lines))
  programs.succeed(
    *('personalize', '--run_dir=run', '--clients_csv=new.csv'),
    *('--num_epochs=1', '--output_dir=new'),
  )
  arrays = {'x': np.zeros([10, 2], np.float32), 'y': np.zeros(10, int)}
  for weight in ({}, {'weight': np.ones(10)}):
    np.savez(programs.directory / 'new.npz', **arrays, **weight)
    programs.succeed(
      *('personalize', '--run_dir=run', '--clients_npz=new.npz'),
      *('--num_epochs=1', '--output_dir=new', '--overwrite'),
    )


def test_clients_of_files_of_ones_own_train(programs):
  users = {
    user: {'x': [[i / 60] * 60 for i in range(20)], 'y': [0, 1] * 10}
    for user in 'abc'
  }
  for part in ('train', 'test'):
    (programs.directory / part).mkdir()
    content = {'users': [*users], 'num_samples': [20] * 3, 'user_data': users}
    path = programs.directory / part / 'all_data.json'
    path.write_text(json.dumps(content))
  flags = ('--dataset=leaf', '--data_dir=.', '--num_clients=3', *_FLAGS[3:4])
  programs.succeed('train', *flags, *_FLAGS[5:], '--dataset_image_shape=10,6,1')
  summary = json.loads(
    (programs.directory / 'run' / 'summary.json').read_text()
  )
  assert (summary['dataset'], summary['num_clients']) == ('leaf', 3)
  error = programs.fail(
    'train',
    *flags,
    *_FLAGS[5:-1],
    '--output_dir=x',
    '--dataset_image_shape=7,7',
  )
  assert '--dataset_image_shape to be of as many numbers' in error


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
