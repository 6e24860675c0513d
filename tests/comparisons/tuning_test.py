import pytest

from tff_pfl.comparisons import tuning
from tff_pfl.runs import run_config


def _choose(summaries, failures=None):
  tried = [
    ({'learning_rate': 0.1 * i}, summary, failure)
    for i, (summary, failure) in enumerate(
      zip(summaries, failures or [None] * len(summaries))
    )
  ]
  config = run_config.RunConfig(algorithm='fed_avg', seed=3, num_rounds=5)
  return tuning.table(config, tried)


def _of(found, name):
  return [point[name] for point in found['points']]


def _summary(accuracy, loss=1.0, non_finite_clients=0):
  return {
    'accuracy': {'last_10_mean': accuracy},
    'global_accuracy': None,
    'loss': loss,
    'non_finite_clients': non_finite_clients,
  }


def test_the_highest_accuracy_is_chosen_and_the_first_of_equals():
  found = _choose([_summary(0.5, 0.1), _summary(0.7, 9.0), _summary(0.7, 0.2)])
  assert _of(found, 'chosen') == [False, True, False]
  assert _of(found, 'score') == [0.5, 0.7, 0.7]
  assert tuning.chosen_point(found) == {'learning_rate': 0.1}
  del found['points']
  assert found == {'algorithm': 'fed_avg', 'seed': 3, 'num_rounds': 5}


@pytest.mark.parametrize('higher_is_better, best', [(False, 1), (True, 0)])
def test_another_metric_decides_by_what_is_better_of_it(higher_is_better, best):
  summaries = [
    {
      **_summary(None, loss),
      'primary_metric': {
        'name': 'mae',
        'higher_is_better': higher_is_better,
        'personal': {'last_10_mean': score},
        'global': None,
      },
    }
    for loss, score in ((1.0, 0.75), (2.0, 0.25), (0.5, 0.5))
  ]
  found = _choose(summaries)
  assert _of(found, 'chosen').index(True) == best
  assert _of(found, 'score') == [0.75, 0.25, 0.5]


def test_failed_and_diverged_points_are_not_chosen_and_say_why():
  found = _choose(
    [None, _summary(0.9, None, 2), _summary(0.1)], ['too fast', None, None]
  )
  assert _of(found, 'chosen') == [False, False, True]
  assert _of(found, 'score') == [None, 0.9, 0.1]
  fast, diverged, good = _of(found, 'failure')
  assert (fast, good) == ('too fast', None)
  assert '2 of its clients' in diverged
  nothing = _choose([None, _summary(0.9, None, 1)], ['a', None])
  assert tuning.chosen_point(nothing) is None
