import pytest

from tff_pfl.experiments import trial, tuning
from tff_pfl.simulation import run_config


def _choose(summaries, failures=None):
  tried = [
    ({'learning_rate': 0.1 * i}, summary, failure)
    for i, (summary, failure) in enumerate(
      zip(summaries, failures or [None] * len(summaries))
    )
  ]
  one = trial.Trial('x', run_config.RunConfig(seed=3, num_rounds=5))
  return tuning.table('fed_avg', [one], tried)


def _summary(accuracy, loss=1.0, non_finite_clients=0):
  return {
    'accuracy': None if accuracy is None else {'last_10_mean': accuracy},
    'global_accuracy': None,
    'loss': loss,
    'non_finite_clients': non_finite_clients,
  }


def test_the_highest_accuracy_is_chosen_and_the_first_of_equals():
  found = _choose([_summary(0.5, 0.1), _summary(0.7, 9.0), _summary(0.7, 0.2)])
  assert [point.chosen for point in found.points] == [False, True, False]
  assert [point.score for point in found.points] == [0.5, 0.7, 0.7]
  assert tuning.chosen_point(found) == {'learning_rate': 0.1}
  assert (found.algorithm, found.seed, found.num_rounds) == ('fed_avg', 3, 5)


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
  assert [point.chosen for point in found.points].index(True) == best
  assert [point.score for point in found.points] == [0.75, 0.25, 0.5]


def test_without_accuracies_the_lowest_finite_loss_is_chosen():
  found = _choose([_summary(None, None), _summary(None, 2), _summary(None, 1)])
  assert [point.chosen for point in found.points] == [False, False, True]


def test_a_point_at_which_a_client_diverged_is_not_chosen_and_says_so():
  found = _choose([_summary(0.9, None, 2), _summary(0.5)])
  assert [point.chosen for point in found.points] == [False, True]
  assert '2 of its clients' in found.points[0].failure
  assert found.points[0].score == 0.9
  assert tuning.chosen_point(_choose([_summary(0.9, None, 1)] * 2)) is None


def test_failed_points_are_not_chosen_and_say_why():
  found = _choose([None, _summary(0.1)], ['too fast', None])
  assert [point.chosen for point in found.points] == [False, True]
  assert [point.failure for point in found.points] == ['too fast', None]
  assert found.points[0].score is None
  nothing = _choose([None, None], ['a', 'b'])
  assert tuning.chosen_point(nothing) is None
