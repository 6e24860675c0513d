import numpy as np
import pytest

from tests.experiments import poisoned_examples
from tff_pfl import datasets
from tff_pfl.experiments import trial, tuning, validation
from tff_pfl.simulation import run_config


@pytest.fixture(name='data')
def _data():
  """Clients with 0, 1, 2 and 20 training examples, all different."""
  keys = np.repeat([0, 1, 2], [1, 2, 20])
  return datasets.FederatedDataset.from_arrays(
    np.arange(23.0)[:, np.newaxis],
    np.arange(23) % 3,
    x_test=np.full([4, 1], 99.0),
    y_test=np.zeros(4, int),
    keys=keys,
    keys_test=[0, 1, 2, 3],
    num_classes=3,
  )


def _views(data, **changes):
  return validation.validation_view(
    data, **{'fraction': 0.3, 'seed': 0, **changes}
  )


def test_the_training_examples_are_divided_and_nothing_else(data):
  view = _views(poisoned_examples.poisoned(data))
  for client_id in data.client_ids:
    train, test = view.train(client_id), view.test(client_id)
    whole = data.train(client_id)
    np.testing.assert_array_equal(
      np.sort(np.concatenate([train.x, test.x]), axis=0), whole.x
    )
    labels = dict(zip(whole.x[:, 0], whole.y))
    for part in (train, test):
      assert [labels[x] for x in part.x[:, 0]] == part.y.tolist()
    assert view.num_train_examples(client_id) == len(train.y)
    assert view.num_test_examples(client_id) == len(test.y)
  np.testing.assert_array_equal(
    view.class_counts('train') + view.class_counts('test'),
    data.class_counts('train'),
  )


def test_both_parts_have_an_example_where_there_are_two(data):
  view = _views(data)
  sizes = [
    (view.num_train_examples(i), view.num_test_examples(i))
    for i in view.client_ids
  ]
  assert sorted(sizes) == [(0, 0), (1, 0), (1, 1), (14, 6)]
  for fraction in (0.001, 0.999):
    view = _views(data, fraction=fraction)
    two = data.client_ids[1]
    assert view.num_train_examples(two) == view.num_test_examples(two) == 1


def test_the_seed_decides(data):
  client_id = data.client_ids[2]
  first, again, other = (
    _views(data, seed=seed).test(client_id).x.tolist() for seed in (1, 1, 2)
  )
  assert first == again
  assert first != other


def test_the_partitions_random_numbers_are_not_used_again(data):
  # A client's position is no stream of the partition's.
  for position, client_id in enumerate(data.client_ids):
    view = _views(data, seed=3)
    available = data.num_train_examples(client_id)
    rng = np.random.default_rng([3, position])
    order = rng.permutation(available)[: view.num_test_examples(client_id)]
    if available > 2:
      assert view.test(client_id).x.tolist() != (
        data.train(client_id).x[np.sort(order)].tolist()
      )


def test_of_examples_that_overlap_the_last_are_held_out_after_a_gap():
  data = datasets.FederatedDataset.from_arrays(
    np.arange(26.0)[:, np.newaxis],
    np.zeros(26, int),
    x_test=np.zeros([2, 1]),
    y_test=np.zeros(2, int),
    # Those of the second client are too few to be divided.
    keys=np.repeat([0, 1], [20, 6]),
    keys_test=[0, 1],
    num_classes=1,
    num_overlapping=5,
  )
  view = _views(data, fraction=0.2)
  long, short = data.client_ids
  assert view.train(long).x[:, 0].tolist() == list(range(11))
  assert view.test(long).x[:, 0].tolist() == [16, 17, 18, 19]
  assert view.num_train_examples(long) == 11
  assert view.num_train_examples(short) == 6
  assert view.num_test_examples(short) == 0
  # However much is asked for, one is left.
  assert _views(data, fraction=0.99).num_train_examples(long) == 1


@pytest.mark.parametrize('fraction', [0, 1, -0.5])
def test_a_fraction_outside_is_refused(data, fraction):
  with pytest.raises(ValueError, match='between 0 and 1'):
    _views(data, fraction=fraction)


def _choose(summaries, failures=None):
  points = [{'learning_rate': 0.1 * i} for i in range(len(summaries))]
  one = trial.Trial('x', run_config.RunConfig(seed=3, num_rounds=5))
  return tuning.choose(
    'fed_avg',
    [one] * len(points),
    points,
    summaries,
    failures or [None] * len(points),
  )


def _summary(accuracy, loss=1.0, non_finite_clients=0):
  return {
    'accuracy': None if accuracy is None else {'last_10_mean': accuracy},
    'loss': loss,
    'non_finite_clients': non_finite_clients,
  }


def test_the_highest_accuracy_is_chosen_and_the_first_of_equals():
  found = _choose([_summary(0.5, 0.1), _summary(0.7, 9.0), _summary(0.7, 0.2)])
  assert [point.chosen for point in found.points] == [False, True, False]
  assert [point.accuracy for point in found.points] == [0.5, 0.7, 0.7]
  assert tuning.chosen_point(found) == {'learning_rate': 0.1}
  assert (found.algorithm, found.seed, found.num_rounds) == ('fed_avg', 3, 5)


def test_without_accuracies_the_lowest_finite_loss_is_chosen():
  found = _choose([_summary(None, None), _summary(None, 2), _summary(None, 1)])
  assert [point.chosen for point in found.points] == [False, False, True]


def test_a_point_at_which_a_client_diverged_is_not_chosen_and_says_so():
  found = _choose([_summary(0.9, None, 2), _summary(0.5)])
  assert [point.chosen for point in found.points] == [False, True]
  assert '2 of its clients' in found.points[0].failure
  assert found.points[0].accuracy == 0.9
  assert tuning.chosen_point(_choose([_summary(0.9, None, 1)] * 2)) is None


def test_refused_points_are_told_after_the_others():
  refused = [({'learning_rate': -1.0}, 'too low')]
  one = trial.Trial('x', run_config.RunConfig())
  found = tuning.choose(
    'fed_avg',
    [one],
    [{'learning_rate': 0.1}],
    [_summary(0.5)],
    [None],
    refused,
  )
  assert [point.chosen for point in found.points] == [True, False]
  assert found.points[1].hparams == {'learning_rate': -1.0}
  assert found.points[1].failure == 'too low'


def test_a_single_point_that_is_allowed_is_taken_untried():
  refused = [({'learning_rate': -1.0}, 'too low')]
  found = tuning.without_choice('fed_avg', 3, {'learning_rate': 0.1}, refused)
  assert tuning.chosen_point(found) == {'learning_rate': 0.1}
  assert [point.failure for point in found.points] == [None, 'too low']
  assert (found.seed, found.num_rounds) == (3, 0)


def test_failed_points_are_not_chosen_and_say_why():
  found = _choose([None, _summary(0.1)], ['too fast', None])
  assert [point.chosen for point in found.points] == [False, True]
  assert [point.failure for point in found.points] == ['too fast', None]
  assert found.points[0].accuracy is None
  nothing = _choose([None, None], ['a', 'b'])
  assert tuning.chosen_point(nothing) is None


def test_division_keeps_the_examples_domains():
  data = datasets.FederatedDataset.from_arrays(
    np.arange(40.0)[:, np.newaxis],
    np.arange(40) % 3,
    num_clients=2,
    domain=np.arange(40) % 4,
  )
  view = _views(data)
  assert view.domain_names == data.domain_names
  for client_id in view.client_ids:
    for part in (view.train(client_id), view.test(client_id)):
      np.testing.assert_array_equal(part.domain, part.x[:, 0] % 4)
  np.testing.assert_array_equal(
    view.domain_counts('train') + view.domain_counts('test'),
    data.domain_counts('train'),
  )
