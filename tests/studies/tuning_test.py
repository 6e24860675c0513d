"""Sweeps with made-up trials, whose accuracy is their learning rate."""

import os
import sqlite3

import numpy as np
import optuna
import pytest
import sqlalchemy

import tff_pfl as pfl
from tests.studies import made_up_trials
from tff_pfl import errors
from tff_pfl.runs import report, summary
from tff_pfl.studies import execution, trial, tuning

_RATES = pfl.Range(1e-3, 1.0, log=True)


def _tune(directory, grid, **changes):
  study = made_up_trials.study(methods=['fed_avg'], tune=grid, **changes)
  place = {'num_processes': 0, 'show_progress': False}
  study = study.with_settings(num_rounds=1)
  chosen, (actual,), failures = tuning.tune(study, str(directory), **place)
  assert chosen == {('', 'fed_avg'): _chosen(actual)}
  return actual, failures


def _chosen(found):
  points = [p['hparams'] for p in found['points'] if p['chosen']]
  return points[0] if points else None


def _search(directory, **space):
  grid = {'learning_rate': _RATES, **space}
  return _tune(directory, grid, num_search_trials=6)


def _of(found, name):
  return [point[name] for point in found['points']]


@pytest.fixture(name='run', autouse=True)
def _run(monkeypatch):
  run = made_up_trials.Ran()
  monkeypatch.setattr(trial, 'run_trial', run)
  return run


def _change(directory, rate, **changes):
  """Changes the summary of a trial of `_tune`."""
  name = f'tune-fed_avg-learning_rate={rate}'
  folder = execution.trial_folder(directory, name)
  path = os.path.join(folder, report.SUMMARY_NAME)
  summary.write_json(path, {**summary.read_json(path), **changes})


def test_the_best_point_of_a_grid_is_chosen_and_the_first_of_equals(
  tmp_path, run
):
  grid = {'learning_rate': (0.5, 0.75, 0.25), 'momentum': (0.5, 0.75)}
  actual, failures = _tune(tmp_path, grid)
  assert not failures
  assert _of(actual, 'score') == [0.5, 0.5, 0.75, 0.75, 0.25, 0.25]
  assert _of(actual, 'chosen') == [i == 2 for i in range(6)]
  assert _chosen(actual) == {'learning_rate': 0.75, 'momentum': 0.5}
  assert (actual['method'], actual['num_rounds']) == ('fed_avg', 1)
  # They are not run again.
  assert len(run.taken()) == 6
  arrays = {'learning_rate': np.array([0.5, 0.75, 0.25])}
  _tune(tmp_path, {**arrays, 'momentum': [np.float64(0.5), 0.75]})
  assert not run.names
  message = r'holds a grid of fed_avg among learning_rate=\(0.5, 0.75, 0.25\)'
  with pytest.raises(errors.RunError, match=message):
    _tune(tmp_path, {'learning_rate': (0.5, 1.0)})


def test_another_metric_decides_by_what_is_better_of_it(tmp_path):
  scores = {0.1: 0.75, 0.2: 0.25, 0.3: 0.5}
  grid = {'learning_rate': tuple(scores)}
  _tune(tmp_path, grid)
  for is_higher_better, best in ((False, 0.25), (True, 0.75)):
    for rate, score in scores.items():
      primary = {'name': 'mae', 'higher_is_better': is_higher_better}
      primary.update({'personal': {'last_10_mean': score}, 'global': None})
      _change(tmp_path, rate, primary_metric=primary)
    actual, _ = _tune(tmp_path, grid)
    assert _of(actual, 'score') == [*scores.values()]
    assert scores[_chosen(actual)['learning_rate']] == best


def test_failed_and_diverged_points_are_not_chosen_and_say_why(tmp_path, run):
  grid = {'learning_rate': (0.25, 0.75, 0.5)}
  run.fails = ('tune-fed_avg-learning_rate=0.5',)
  _tune(tmp_path, grid)
  _change(tmp_path, 0.75, loss=None, non_finite_clients=3)
  actual, (failure,) = _tune(tmp_path, grid)
  assert _of(actual, 'chosen') == [True, False, False]
  assert _of(actual, 'score') == [0.25, 0.75, None]
  good, diverged, failed = _of(actual, 'failure')
  assert (good, failed) == (None, 'no memory')
  assert '3 of its clients' in diverged
  assert failure['trial'] == 'tune-fed_avg-learning_rate=0.5'
  assert failure['reason'] == 'no memory'
  # A method of which no point can be chosen is among the failures.
  _change(tmp_path, 0.25, loss=None, non_finite_clients=3)
  actual, (failure, _) = _tune(tmp_path, grid)
  assert not any(_of(actual, 'chosen'))
  assert failure['trial'] == 'tune-fed_avg-learning_rate=0.25'
  assert failure['reason'] == diverged


def test_a_failed_point_is_tried_again_until_the_runs_have_begun(tmp_path, run):
  grid = {'learning_rate': (0.25, 0.5)}
  bad = 'tune-fed_avg-learning_rate=0.5'
  run.fails = (bad,)
  _tune(tmp_path, grid)
  _tune(tmp_path, grid)
  assert run.names.count(bad) == 2
  run.fails = ()
  folder = execution.trial_folder(tmp_path, 'fed_avg-seed0')
  os.makedirs(folder)
  summary.write_json(os.path.join(folder, trial.SPEC_NAME), {})
  # Also with other seeds.
  actual, (failure,) = _tune(tmp_path, grid, seeds=(1,), tuning_seed=0)
  assert run.names.count(bad) == 2
  assert _of(actual, 'chosen') == [True, False]
  assert failure['trial'] == bad
  assert failure['reason'] == actual['points'][1]['failure']
  assert failure['reason'].startswith('no memory (not tried again')
  # Before, it would have been.
  os.remove(os.path.join(folder, trial.SPEC_NAME))
  actual, failures = _tune(tmp_path, grid)
  assert _of(actual, 'chosen') == [False, True]
  assert not failures


def test_an_interrupted_search_goes_on(tmp_path, monkeypatch, run):
  epochs = pfl.Range(*np.array([1, 3]))
  space = {'num_epochs': epochs, 'optimizer': ('sgd', 'adam')}
  whole, failures = _search(tmp_path / 'whole', **space)
  assert not failures
  assert len(whole['points']) == 6
  rates = [point['learning_rate'] for point in _of(whole, 'hparams')]
  assert _of(whole, 'score') == rates
  assert _chosen(whole)['learning_rate'] == max(rates)
  for hparams in _of(whole, 'hparams'):
    assert 1e-3 <= hparams['learning_rate'] <= 1
    assert hparams['num_epochs'] in (1, 2, 3)
    assert hparams['optimizer'] in ('sgd', 'adam')

  run.taken()

  def run_but_the_sixth(*arguments, **options):
    if len(run.names) == 5:
      run.names.append('interrupted')
      raise ZeroDivisionError
    run(*arguments, **options)

  monkeypatch.setattr(trial, 'run_trial', run_but_the_sixth)
  with pytest.raises(ZeroDivisionError):
    _search(tmp_path / 'resumed', **space)
  assert _search(tmp_path / 'resumed', **space) == (whole, [])
  assert len(run.names) == 7
  with pytest.raises(errors.RunError, match='holds a search of fed_avg among'):
    _search(tmp_path / 'resumed', num_epochs=pfl.Range(1, 4))


def test_a_search_gets_no_more_points_when_the_runs_have_begun(tmp_path):
  space = {'learning_rate': _RATES}
  first = _tune(tmp_path, space, num_search_trials=2)
  # Until then it may have more.
  more = _tune(tmp_path, space, num_search_trials=4)
  assert more[0]['points'][:2] == first[0]['points']
  folder = execution.trial_folder(tmp_path, 'fed_avg-seed0')
  os.makedirs(folder)
  summary.write_json(os.path.join(folder, trial.SPEC_NAME), {})
  with pytest.raises(errors.RunError, match='give num_search_trials=4, or'):
    _tune(tmp_path, space, num_search_trials=6)
  assert _tune(tmp_path, space, num_search_trials=4) == more


@pytest.mark.parametrize(
  'wrapped', [lambda error: error, optuna.exceptions.StorageInternalError]
)
def test_a_full_disk_is_one_line(tmp_path, monkeypatch, wrapped):
  error = sqlalchemy.exc.OperationalError(
    '', {}, sqlite3.OperationalError('full')
  )

  def fail(*_, **__):
    raise wrapped(error) from error

  monkeypatch.setattr(optuna, 'create_study', fail)
  with pytest.raises(
    errors.RunError, match='Cannot use the search.*: full. Fix'
  ):
    _search(tmp_path)


def test_points_that_a_method_refuses_are_not_tried(tmp_path, run):
  # Momentum is below 1.
  actual, failures = _search(tmp_path, momentum=(0.5, 2.0))
  assert not failures
  refused = [p for p in actual['points'] if p['hparams']['momentum'] == 2]
  assert 0 < len(refused) < 6
  assert len(run.names) == 6 - len(refused)
  assert all('momentum' in point['failure'] for point in refused)
  assert _chosen(actual)['momentum'] == 0.5
  with pytest.raises(ValueError, match='among values that fed_avg takes'):
    _search(tmp_path / 'none', momentum=pfl.Range(1.5, 2.0))
