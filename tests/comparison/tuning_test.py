import numpy as np
import pytest

from tff_pfl import datasets
from tff_pfl.comparison import plan, tuning
from tff_pfl.simulation import run_config


class _Poisoned(datasets.ExampleSource):
  """Test examples that must not be read."""

  def examples(self, position):
    raise AssertionError('Test examples were read.')

  labels = examples
  num_examples = examples


def poisoned(data):
  """The same clients with test examples that cannot be read."""
  return datasets.FederatedDataset(
    name=data.name,
    client_ids=data.client_ids,
    element_spec=data.element_spec,
    num_classes=data.num_classes,
    train=data._train,
    test=_Poisoned(),
  )


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
  return tuning.validation_view(data, **{'fraction': 0.3, 'seed': 0, **changes})


def test_the_training_examples_are_divided_and_nothing_else(data):
  view = _views(poisoned(data))
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


@pytest.mark.parametrize('fraction', [0, 1, -0.5])
def test_a_fraction_outside_is_refused(data, fraction):
  with pytest.raises(ValueError, match='between 0 and 1'):
    _views(data, fraction=fraction)


def _choose(summaries, failures=None):
  points = [{'learning_rate': 0.1 * i} for i in range(len(summaries))]
  trial = plan.Trial('x', run_config.RunConfig(seed=3, num_rounds=5))
  return tuning.choose(
    'fed_avg',
    [trial] * len(points),
    points,
    summaries,
    failures or [None] * len(points),
  )


def _summary(accuracy, loss=1.0):
  return {
    'accuracy': None if accuracy is None else {'last_10_mean': accuracy},
    'loss': loss,
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


def test_failed_points_are_not_chosen_and_say_why():
  found = _choose([None, _summary(0.1)], ['too fast', None])
  assert [point.chosen for point in found.points] == [False, True]
  assert [point.failure for point in found.points] == ['too fast', None]
  assert found.points[0].accuracy is None
  nothing = _choose([None, None], ['a', 'b'])
  assert tuning.chosen_point(nothing) is None
