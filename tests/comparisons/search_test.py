"""Searches by Optuna, with made-up trials whose accuracy is their rate."""

import pytest

from tests.comparisons import made_up_trials
from tff_pfl import errors
from tff_pfl.comparisons import plan, trial, tuning
from tff_pfl.runs import run_config

_RATES = plan.Range(1e-3, 1.0, log=True)


def _tune(directory, **search):
  comparison = plan.Comparison(
    base=run_config.RunConfig(
      dataset='synthetic',
      num_clients=4,
      model='linear',
      num_rounds=1,
      cohort_size=2,
    ),
    algorithms=('fed_avg',),
    grid={'*': {'learning_rate': _RATES, **search}},
    num_search_trials=6,
  )
  (found,), failures = tuning.tune(
    comparison, str(directory), num_processes=0, show_progress=False
  )
  return found, failures


@pytest.fixture(autouse=True)
def _made_up(monkeypatch):
  monkeypatch.setattr(trial, 'run', made_up_trials.run)


def test_the_best_point_is_chosen_and_an_interrupted_search_goes_on(
  tmp_path, monkeypatch
):
  search = {'num_epochs': plan.Range(1, 3), 'optimizer': ('sgd', 'adam')}
  whole, failures = _tune(tmp_path / 'whole', **search)
  assert not failures
  assert len(whole['points']) == 6
  rates = [point['hparams']['learning_rate'] for point in whole['points']]
  assert [point['score'] for point in whole['points']] == rates
  assert tuning.chosen_point(whole)['learning_rate'] == max(rates)
  for point in whole['points']:
    assert 1e-3 <= point['hparams']['learning_rate'] <= 1
    assert point['hparams']['num_epochs'] in (1, 2, 3)
    assert point['hparams']['optimizer'] in ('sgd', 'adam')

  num_runs = 0

  def run_but_the_sixth(*arguments, **options):
    nonlocal num_runs
    num_runs += 1
    if num_runs == 6:
      raise ZeroDivisionError
    made_up_trials.run(*arguments, **options)

  monkeypatch.setattr(trial, 'run', run_but_the_sixth)
  with pytest.raises(ZeroDivisionError):
    _tune(tmp_path / 'resumed', **search)
  assert _tune(tmp_path / 'resumed', **search) == (whole, [])
  assert num_runs == 7
  with pytest.raises(errors.RunError, match='a search of fed_avg among'):
    _tune(tmp_path / 'resumed', num_epochs=plan.Range(1, 4))


def test_points_that_fail_or_are_refused_are_not_chosen(tmp_path, monkeypatch):
  failed = []

  def fail_the_first(wanted, folder, **options):
    failed.append(wanted.name)
    if wanted.name == failed[0]:
      raise errors.RunError('no memory')
    made_up_trials.run(wanted, folder, **options)

  monkeypatch.setattr(trial, 'run', fail_the_first)
  # Momentum is below 1.
  found, (failure,) = _tune(tmp_path, momentum=(0.5, 2.0))
  assert failure['trial'] == failed[0]
  assert [point['failure'] for point in found['points']].count('no memory') == 1
  assert 1 < len(found['points']) < 6
  assert {point['hparams']['momentum'] for point in found['points']} == {0.5}
  assert tuning.chosen_point(found) != found['points'][0]['hparams']


def test_what_is_searched_is_read():
  texts = [
    'learning_rate=0.001:1:log',
    'num_epochs=1:3',
    'fed_rep.optimizer=sgd,adam',
  ]
  assert plan.parse_grid(texts, ('fed_avg', 'fed_rep'), 'search') == {
    '*': {'learning_rate': _RATES, 'num_epochs': plan.Range(1, 3)},
    'fed_rep': {'optimizer': ('sgd', 'adam')},
  }
  for text in ('momentum=a:b', 'momentum=0:1:lin', 'optimizer=a:b'):
    with pytest.raises(ValueError, match=f'found {text!r}'):
      plan.parse_grid([text], ('fed_avg',), 'search')
