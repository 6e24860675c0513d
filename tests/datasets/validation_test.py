import numpy as np
import pytest

from tests.studies import poisoned_examples
from tff_pfl import datasets
from tff_pfl.datasets import validation


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


def _folds(data, num_folds=5, seed=0):
  return [
    validation.fold_view(data, fold, num_folds, seed)
    for fold in range(num_folds)
  ]


def test_each_example_is_tested_in_one_fold_and_trained_on_in_the_others():
  x, x_test = np.arange(60.0)[:, np.newaxis], np.arange(60, 73.0)[:, np.newaxis]
  data = datasets.FederatedDataset.from_arrays(
    x,
    np.arange(60) % 3,
    x_test=x_test,
    y_test=np.arange(13) % 3,
    domain=np.arange(60) % 2,
    domain_test=np.arange(13) % 2,
    # The second client has fewer examples than there are folds.
    keys=np.repeat([0, 1], [57, 3]),
    keys_test=np.zeros(13, int),
    weight=np.arange(60.0),
    num_classes=3,
  )
  folds = _folds(data)
  for client_id, size in zip(data.client_ids, (70, 3)):
    pooled = np.concatenate([data.train(client_id).x, data.test(client_id).x])
    tested = [view.test(client_id) for view in folds]
    np.testing.assert_array_equal(
      np.sort(np.concatenate([part.x for part in tested]), axis=0), pooled
    )
    for view, part in zip(folds, tested):
      assert len(part) in (size // 5, size // 5 + 1)
      together = np.concatenate([view.train(client_id).x, part.x])
      np.testing.assert_array_equal(np.sort(together, axis=0), pooled)
      # They keep their labels and domains.
      numbers = part.x[:, 0].astype(int)
      places = np.where(numbers < 60, numbers, numbers - 60)
      np.testing.assert_array_equal(part.y, places % 3)
      np.testing.assert_array_equal(part.domain, places % 2)
    # Of each class and domain as many in every fold, up to one.
    for strata in ([part.y for part in tested], [p.domain for p in tested]):
      counts = np.array([np.bincount(one, minlength=3) for one in strata])
      assert np.ptp(counts, axis=0).max() <= 2
  assert len({view.fingerprint for view in folds}) == 5
  again, other = _folds(data)[0], _folds(data, seed=1)[0]
  assert again.fingerprint == folds[0].fingerprint != other.fingerprint


def test_folds_of_examples_that_overlap_are_ranges_between_gaps():
  data = datasets.FederatedDataset.from_arrays(
    np.arange(16.0)[:, np.newaxis],
    np.zeros(16, int),
    x_test=np.arange(16.0, 20)[:, np.newaxis],
    y_test=np.zeros(4, int),
    keys=np.zeros(16, int),
    keys_test=np.zeros(4, int),
    num_classes=1,
    num_overlapping=2,
  )
  (client,) = data.client_ids
  first, second, *_, last = _folds(data)
  assert second.test(client).x[:, 0].tolist() == [4, 5, 6, 7]
  assert second.train(client).x[:, 0].tolist() == [0, 1, *range(10, 20)]
  assert first.train(client).x[:, 0].tolist() == list(range(6, 20))
  assert last.train(client).x[:, 0].tolist() == list(range(14))


def test_dealt_examples_that_overlap_are_divided_in_their_order():
  data = datasets.FederatedDataset.from_arrays(
    np.arange(60.0)[:, np.newaxis],
    np.zeros(60, int),
    x_test=np.arange(100.0, 120)[:, np.newaxis],
    y_test=np.zeros(20, int),
    num_clients=2,
    num_classes=1,
    num_overlapping=2,
  )
  for view in (_views(data), *_folds(data)):
    for client in data.client_ids:
      train, test = view.train(client).x, view.test(client).x
      assert np.abs(train - test.T).min() > 2
