import contextlib
import csv
import dataclasses
import json
import os

import pytest
import tensorflow as tf

from binaries.papers import runner
from tff_pfl import errors
from tff_pfl.experiments import paper as experiment


class _Laboratory:
  """Makes experiments, and tells which have run with which settings."""

  def __init__(self, directory):
    self.settings = experiment.Settings(
      str(directory), fast=True, show_progress=False
    )
    self.directory = directory
    self.ran = []

  def experiment(self, name, *measured, fail=None, uses_images=False):
    """One whose claims are that each of `measured` is above 0."""

    def run(settings):
      self.ran.append((name, settings))
      os.makedirs(settings.run_dir('fed_avg'), exist_ok=True)
      if fail is not None:
        raise fail
      return experiment.Result(
        claims=[
          experiment.above(f'{value} is large', 'Figure 1', value, 0)
          for value in measured
        ],
        rows=[{'round': 1, 'loss': 0.5}, {'round': 2, 'loss': 0.25}],
        setup={'num_rounds': 2, 'dataset': 'digits'},
        draw=lambda figure: figure.add_subplot().plot([1, 2]),
      )

    return experiment.Experiment(
      name, f'summary of {name}', 'Figure 1', uses_images, run
    )

  def read(self, *path):
    return json.loads(self.directory.joinpath(*path).read_text())


@pytest.fixture
def laboratory(tmp_path):
  return _Laboratory(tmp_path)


def test_an_experiment_leaves_figure_numbers_and_claims(laboratory):
  settings = laboratory.settings._replace(seed=3)
  result = runner.run(laboratory.experiment('one', 1.5, -1.0), settings)
  folder = laboratory.directory / 'one'
  assert (folder / 'figure.png').read_bytes().startswith(b'\x89PNG')
  with open(folder / 'numbers.csv') as file:
    rows = list(csv.DictReader(file))
  assert rows == [
    {'round': '1', 'loss': '0.5'},
    {'round': '2', 'loss': '0.25'},
  ]
  assert laboratory.read('one', 'numbers.json') == {
    'setup': {'num_rounds': 2, 'dataset': 'digits'},
    'rows': [{'round': 1, 'loss': 0.5}, {'round': 2, 'loss': 0.25}],
  }
  summary = laboratory.read('one', 'summary.json')
  assert summary == result
  assert summary.pop('seconds') >= 0
  assert summary.pop('versions')['tensorflow']
  assert summary == {
    'experiment': 'one',
    'summary': 'summary of one',
    'paper': 'Figure 1',
    'passed': False,
    'claims': [
      {
        'claim': '1.5 is large',
        'paper': 'Figure 1',
        'measured': 1.5,
        'threshold': '> 0',
        'passed': True,
      },
      {
        'claim': '-1.0 is large',
        'paper': 'Figure 1',
        'measured': -1.0,
        'threshold': '> 0',
        'passed': False,
      },
    ],
    'setup': {'num_rounds': 2, 'dataset': 'digits'},
    'fast': True,
    'dataset': 'digits',
    'seed': 3,
    'runtime': None,
    'claims_should_hold': True,
  }
  # What it was run with, in a folder of its own.
  assert laboratory.ran == [('one', settings._replace(directory=str(folder)))]


@pytest.mark.parametrize('measured', [1.0, -1.0, float('nan')])
def test_what_was_run_is_not_run_again(laboratory, measured, capsys):
  one = laboratory.experiment('one', measured)
  first = runner.run(one, laboratory.settings)
  # What executes does not change what is found.
  moved = laboratory.settings._replace(runtime='native')
  assert runner.run(one, moved) == first
  assert len(laboratory.ran) == 1
  assert 'one has been run' in capsys.readouterr().err


def test_an_interrupted_experiment_goes_on(laboratory):
  interrupted = laboratory.experiment('one', fail=KeyboardInterrupt())
  with pytest.raises(KeyboardInterrupt):
    runner.run(interrupted, laboratory.settings)
  assert not (laboratory.directory / 'one' / 'summary.json').exists()
  assert runner.run(laboratory.experiment('one', 1.0), laboratory.settings)[
    'passed'
  ]
  # Its training runs are still there.
  assert (laboratory.directory / 'one' / 'runs' / 'fed_avg').is_dir()


@pytest.mark.parametrize('is_finished', [True, False])
@pytest.mark.parametrize(
  'change', [{'seed': 1}, {'fast': False}, {'dataset': 'mnist'}], ids=str
)
def test_a_folder_is_for_one_kind_of_settings(laboratory, change, is_finished):
  fail = None if is_finished else KeyboardInterrupt()
  one = laboratory.experiment('one', 1.0, fail=fail, uses_images=True)
  with contextlib.suppress(KeyboardInterrupt):
    runner.run(one, laboratory.settings)
  other = laboratory.settings._replace(**change)
  ((name, value),) = change.items()
  for run in (runner.run, lambda one, other: runner.run_all([one], other)):
    with pytest.raises(errors.RunError, match=f'not {name}={value}') as error:
      run(one, other)
    assert 'choose another output folder' in str(error.value)
  assert len(laboratory.ran) == 1


def test_what_is_no_experiment_is_not_touched(laboratory):
  (laboratory.directory / 'one').mkdir()
  (laboratory.directory / 'one' / 'summary.json').write_text('{}')
  one = laboratory.experiment('one', 1.0)
  for rerun in (False, True):
    with pytest.raises(errors.RunError, match='holds no experiment'):
      runner.run(one, laboratory.settings, rerun=rerun)
  assert laboratory.read('one', 'summary.json') == {}


def test_rerun_starts_anew_with_any_settings(laboratory):
  runner.run(laboratory.experiment('one', -1.0), laboratory.settings)
  settings = laboratory.settings._replace(seed=1)
  old_run = laboratory.directory / 'one' / 'runs' / 'fed_avg' / 'run.sqlite'
  old_run.write_text('')
  other = laboratory.directory / 'one' / 'notes.txt'
  other.write_text('mine')
  again = runner.run(laboratory.experiment('one', 2.0), settings, rerun=True)
  assert again['passed']
  assert again['seed'] == 1
  assert not old_run.exists()
  assert other.read_text() == 'mine'


def test_a_damaged_summary_is_one_line(laboratory):
  one = laboratory.experiment('one', 1.0)
  runner.run(one, laboratory.settings)
  (laboratory.directory / 'one' / 'summary.json').write_text('{')
  with pytest.raises(errors.RunError, match='one/summary.json cannot be read'):
    runner.run(one, laboratory.settings)


@pytest.mark.parametrize('name', ['dataset', 'data_dir'])
def test_data_are_for_experiments_with_images(laboratory, name):
  settings = laboratory.settings._replace(**{name: 'mnist'})
  with pytest.raises(ValueError, match=f'`{name}`.*unset for one'):
    runner.run(laboratory.experiment('one', 1.0), settings)
  both = [
    laboratory.experiment('one', 1.0),
    laboratory.experiment('two', 1.0, uses_images=True),
  ]
  runner.run_all(both, settings)
  assert [getattr(ran, name) for _, ran in laboratory.ran] == [None, 'mnist']


def test_all_go_on_after_a_failure_and_are_summed_up(laboratory, capsys):
  experiments = [
    laboratory.experiment('one', 1.0, -1.0),
    laboratory.experiment('two', fail=errors.RunError('No\ndata.')),
    laboratory.experiment('three', 3.0),
  ]
  summaries = runner.run_all(experiments, laboratory.settings)
  assert [name for name, _ in laboratory.ran] == ['one', 'two', 'three']
  assert [summary['passed'] for summary in summaries] == [False, False, True]
  total = laboratory.read('summary.json')
  assert total['passed'] is False
  assert [(c['experiment'], c['passed']) for c in total['claims']] == [
    ('one', True),
    ('one', False),
    ('three', True),
  ]
  assert total['errors'] == {'two': 'No data.'}
  err = capsys.readouterr().err
  assert 'one: 1 of 2 claims passed' in err
  assert 'two: did not run: No data.' in err
  assert 'three: 1 of 1 claims passed' in err
  table = runner.claims_table(summaries).splitlines()
  assert table[0].split() == [
    'experiment',
    'claim',
    'paper',
    'measured',
    'threshold',
    'passed',
  ]
  assert ' '.join(table[2].split()) == 'one 1.0 is large Figure 1 1.000 > 0 yes'
  assert table[3].split()[-4:] == ['-1.000', '>', '0', 'NO']
  with pytest.raises(errors.RunError) as error:
    runner.expect_passed(summaries)
  assert str(error.value) == (
    '1 of 2 claims of one failed: "-1.0 is large" (measured -1, expected > 0). '
    'two did not run: No data.'
  )


def test_all_go_on_where_they_were_stopped(laboratory):
  one = laboratory.experiment('one', 1.0)
  stopped = laboratory.experiment('two', fail=KeyboardInterrupt())
  with pytest.raises(KeyboardInterrupt):
    runner.run_all([one, stopped], laboratory.settings)
  assert not (laboratory.directory / 'summary.json').exists()
  summaries = runner.run_all(
    [one, laboratory.experiment('two', 1.0)], laboratory.settings
  )
  assert [name for name, _ in laboratory.ran] == ['one', 'two', 'two']
  runner.expect_passed(summaries)
  assert laboratory.read('summary.json')['passed'] is True


def test_a_number_that_is_none_fails_its_claim(laboratory):
  summary = runner.run(
    laboratory.experiment('one', float('nan')), laboratory.settings
  )
  assert 'nan' in runner.claims_table([summary])
  with pytest.raises(errors.RunError, match='measured nothing'):
    runner.expect_passed([summary])


@pytest.mark.parametrize(
  'error',
  [
    ValueError('wrong value'),
    TypeError('wrong type'),
    errors.RunError('failed run'),
    tf.errors.ResourceExhaustedError(None, None, 'out of memory'),
  ],
)
def test_all_go_on_after_any_expected_error(laboratory, error):
  failing = laboratory.experiment('one', fail=error)
  after = laboratory.experiment('two', 1.0)
  summaries = runner.run_all([failing, after], laboratory.settings)
  assert [name for name, _ in laboratory.ran] == ['one', 'two']
  assert laboratory.read('summary.json')['passed'] is False
  with pytest.raises(errors.RunError, match='one did not run'):
    runner.expect_passed(summaries)


def test_settings_that_were_the_mistake_do_not_bind_the_folder(laboratory):
  def refuse(settings):
    raise ValueError('no such files')

  experiment = dataclasses.replace(
    laboratory.experiment('one', 1.0), run=refuse
  )
  with pytest.raises(ValueError, match='no such files'):
    runner.run(experiment, laboratory.settings._replace(seed=7))
  runner.run(laboratory.experiment('one', 1.0), laboratory.settings)


def test_claims_that_need_the_full_size_do_not_count_in_a_fast_run(laboratory):
  experiment = dataclasses.replace(
    laboratory.experiment('one', 0.0), claims_hold_fast=False
  )
  summaries = runner.run_all(
    [experiment], laboratory.settings._replace(fast=True)
  )
  assert not summaries[0]['passed']
  runner.expect_passed(summaries)
  assert laboratory.read('summary.json')['passed'] is True


def test_an_unexpected_error_is_not_hidden(laboratory):
  broken = laboratory.experiment('one', fail=ZeroDivisionError())
  with pytest.raises(ZeroDivisionError):
    runner.run_all([broken], laboratory.settings)
