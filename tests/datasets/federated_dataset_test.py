import pickle
import tracemalloc

import numpy as np
import pytest
import tensorflow as tf

from tests.datasets import shared
from tff_pfl import datasets
from tff_pfl.datasets import federated_dataset, partitioning

FederatedDataset = federated_dataset.FederatedDataset


def _dataset(n=60, **kwargs):
  x, y = shared.arrays(n)
  return FederatedDataset.from_arrays(
    **{'x': x, 'y': y, 'num_clients': 4, **kwargs}
  )


def _with_domains(**kwargs):
  return _dataset(**{'domain': np.arange(60) % 5, **kwargs})


def test_from_arrays_keeps_inputs_with_their_labels_and_converts_dtypes():
  dataset = _dataset(name='mine')
  assert dataset.name == 'mine'
  assert dataset.num_clients == 4
  assert dataset.client_ids == ('client_0', 'client_1', 'client_2', 'client_3')
  assert dataset.num_classes == 3
  assert dataset.element_spec == shared.spec(1)
  for client_id in dataset.client_ids:
    for part in (dataset.train(client_id), dataset.test(client_id)):
      assert part.x.dtype == np.float32 and part.y.dtype == np.int32
      np.testing.assert_array_equal(part.x.ravel() % 3, part.y)
  # Also what a transform makes.
  scaled = _dataset(x=np.arange(60)[:, np.newaxis], transform=lambda x: x / 5)
  assert scaled.element_spec == shared.spec(1)
  assert scaled.train('client_0').x.dtype == np.float32


def test_from_arrays_without_test_arrays_divides_each_client_by_class():
  dataset = _dataset()
  parts = shared.inputs(dataset, 'train') + shared.inputs(dataset, 'test')
  assert sorted(sum(parts, [])) == list(range(60))
  # 15 examples a client, 5 of each class: 12 and 3, 4 and 1 of each class.
  assert dataset.class_counts('train').tolist() == [[4, 4, 4]] * 4
  assert dataset.class_counts('test').tolist() == [[1, 1, 1]] * 4


def test_from_arrays_with_test_arrays_deals_them_by_the_same_rule():
  x_test, y_test = shared.arrays(30)
  dataset = _dataset(
    x_test=x_test,
    y_test=y_test,
    num_clients=6,
    partition=partitioning.Shards(1),
  )
  assert sorted(sum(shared.inputs(dataset, 'train'), [])) == list(range(60))
  assert sorted(sum(shared.inputs(dataset, 'test'), [])) == list(range(30))
  train, test = dataset.class_counts('train'), dataset.class_counts('test')
  assert set(train.ravel()) == {0, 10}
  np.testing.assert_array_equal(test, train // 2)


def test_float_targets_make_a_regression_dataset():
  options = dict(domain=np.arange(20) % 2, partition='domain_mixture:100')
  dataset = _dataset(20, y=np.arange(20) / 7, num_clients=2, **options)
  assert dataset.num_classes is None
  assert dataset.element_spec['y'] == tf.TensorSpec([], tf.float32)
  assert dataset.num_train_examples('client_0') == 8
  assert dataset.domain_counts().sum() == 16
  labels = _dataset(20, y=np.arange(20.0) % 3, num_clients=2, num_classes=5)
  assert labels.train('client_0').y.dtype == np.int32
  assert labels.class_counts().shape == (2, 5)


def test_sequence_labels_are_counted_label_by_label():
  x = np.zeros((4, 3), np.int64)
  y = np.array([[0, 1, 1], [2, 2, 2], [0, 0, 0], [1, 1, 1]])
  dataset = FederatedDataset.from_arrays(
    x, y, keys=[0, 0, 1, 1], test_fraction=0
  )
  assert dataset.element_spec['y'] == tf.TensorSpec([3], tf.int32)
  assert dataset.element_spec['x'].dtype == tf.int64
  assert dataset.class_counts().tolist() == [[1, 2, 3], [3, 3, 0]]


@pytest.mark.parametrize(
  ('given', 'client_id'),
  [
    ('client_3', 'client_03'),
    ('client_003', 'client_03'),
    ('client_13', 'client_13'),
    ('7', '7'),
    ('8', '008'),
    ('07', None),
    ('client_1', None),
    ('0.5', None),
    ('site_2', None),
    ('nobody', None),
  ],
)
def test_a_client_is_found_without_padding_where_that_is_clear(
  given, client_id
):
  ids = 'client_03', 'client_13', '7', '007', '008', '0.05', 'site_02x'
  x, y = shared.arrays(len(ids))
  dataset = FederatedDataset.from_arrays(x, y, keys=ids, test_fraction=0)
  if client_id is not None:
    assert dataset.find_client(given) == client_id
    return
  words = f"`client_id` to be a client of .*, such as '.*', found '{given}'"
  with pytest.raises(ValueError, match=words):
    dataset.find_client(given)


def test_subset_is_a_view_in_the_order_given():
  dataset = _with_domains(num_clients=6)
  subset = dataset.subset(['client_4', 'client_1'])
  nested = subset.subset(['client_1'])
  assert subset.client_ids == ('client_4', 'client_1')
  for split in ('train', 'test'):
    np.testing.assert_array_equal(
      getattr(nested, split)('client_1').x,
      getattr(dataset, split)('client_1').x,
    )
  np.testing.assert_array_equal(
    subset.class_counts(), dataset.class_counts()[[4, 1]]
  )
  assert subset.domain_names == dataset.domain_names
  np.testing.assert_array_equal(
    subset.domain_counts('test'), dataset.domain_counts('test')[[4, 1]]
  )


def test_joining_is_a_view_that_tells_from_which_round_on_clients_are_there():
  dataset = _dataset(num_clients=6)
  joining = dataset.joining({'client_4': 9, 'client_1': 3, 'client_2': 1})
  assert not dataset.join_round
  assert joining.client_ids == dataset.client_ids
  assert joining.join_round == {'client_1': 3, 'client_4': 9}
  assert joining.subset(['client_4', 'client_0']).join_round == {'client_4': 9}
  # It adds to what was said before, and what says nothing changes nothing.
  assert joining.joining({}).fingerprint == joining.fingerprint
  later = joining.joining({'client_0': 2, 'client_1': 1})
  assert later.join_round == {'client_0': 2, 'client_4': 9}
  assert dataset.joining({'client_0': 1}).fingerprint == dataset.fingerprint
  others = [{'client_1': 4, 'client_4': 9}, {'client_4': 9}]
  prints = [dataset.joining(rounds).fingerprint for rounds in others]
  assert len({joining.fingerprint, dataset.fingerprint, *prints}) == 4


def test_views_of_a_loaded_dataset_are_loaded_again():
  loaded = datasets.load_dataset('digits', num_clients=5)
  loaded = loaded.subset(['client_3', 'client_0'])
  loaded = loaded.joining({'client_3': 2, 'client_0': 2})
  loaded = loaded.joining({'client_0': 1})
  again = pickle.loads(pickle.dumps(loaded))
  assert len(pickle.dumps(loaded)) < 2000
  assert again.client_ids == ('client_3', 'client_0')
  assert again.join_round == {'client_3': 2}


def test_domains_stay_with_their_examples_and_are_counted():
  dataset = _with_domains(
    domain_names=list('abcde'), partition='domain_mixture:0.5'
  )
  assert dataset.num_domains == 5
  assert list(dataset.element_spec) == ['x', 'y', 'domain']
  assert dataset.element_spec['domain'] == tf.TensorSpec((), tf.int32)
  assert "domain_names=('a', 'b', 'c', 'd', 'e')" in repr(dataset)
  assert _with_domains().domain_names == tuple(f'domain_{i}' for i in range(5))
  for client_id in dataset.client_ids:
    for part in (dataset.train(client_id), dataset.test(client_id)):
      assert part.domain.dtype == np.int32
      np.testing.assert_array_equal(part.domain, part.x.ravel() % 5)
  for split, read in (('train', dataset.train), ('test', dataset.test)):
    counts = dataset.domain_counts(split)
    assert counts.dtype == np.int64
    np.testing.assert_array_equal(
      counts,
      [np.bincount(read(i).domain, minlength=5) for i in dataset.client_ids],
    )
  for count in (dataset.domain_counts, dataset.class_counts):
    with pytest.raises(ValueError, match='read-only'):
      count()[0, 0] = 7


def test_many_clients_cost_little():
  dataset = FederatedDataset.from_arrays(
    np.zeros((40_000, 4), np.uint8),
    np.zeros(40_000, np.int32),
    num_clients=20_000,
    test_fraction=0.5,
    transform=lambda x: x.astype(np.float32),
  )
  assert (dataset.class_counts() == np.ones((20_000, 1))).all()
  tracemalloc.start()
  assert dataset.train('client_04321').x.shape == (1, 4)
  assert tracemalloc.get_traced_memory()[1] < 100_000
  tracemalloc.stop()


_X, _Y = shared.arrays()


@pytest.mark.parametrize(
  'options, warning',
  [
    (
      dict(x_test=_X, y_test=_Y, domain=_Y, domain_test=_Y + 1),
      'test examples have `domain` [3], which no training example has',
    ),
    (
      dict(x_test=_X, y_test=_Y + 1, num_classes=5),
      'test examples have `y` [3], which no training example has',
    ),
    (dict(domain=_Y, x_test=_X, y_test=_Y, domain_test=_Y), None),
  ],
)
def test_what_is_never_trained_is_named_in_a_warning(options, warning, caplog):
  _dataset(name='mine', **options)
  if warning is None:
    assert not caplog.text
  else:
    assert f"'mine': {warning}" in caplog.text


@pytest.mark.parametrize(
  'call, match',
  [
    (lambda d: d.joining({'nobody': 2}), "found 'nobody'"),
    (lambda d: d.joining({'client_0': 0}), 'integer at least 1, found 0'),
    (lambda d: d.joining({'client_0': '2'}), "found '2'"),
    (lambda d: d.joining(5), '`join_round` to be of type Mapping, found 5'),
    (lambda d: d.subset([]), 'at least one'),
    (lambda d: d.subset(['client_1'] * 2), "distinct, .*'client_1', 'client_1"),
    (lambda d: d.replaced(client_ids=range(3)), 'at least one, all strings'),
    (lambda d: d.subset(['client_2']).train('client_0'), "found 'client_0'"),
    (lambda d: d.train([1]), r'one of the 4 clients .*found \[1\]'),
    (lambda d: d.num_test_examples('x'), "one of the 4 clients .*found 'x'"),
    (lambda d: d.domain_counts(), '`data` to be a dataset with domains'),
    (lambda d: d.class_counts('all'), "`split` to be .*found 'all'"),
    (lambda d: d.replaced(num_classes=None).class_counts(), 'with classes'),
    (lambda d: d.replaced(num_classes=0), '`num_classes` to be an integer'),
    (lambda d: d.replaced(domain_names=['a']), '`element_spec` to be with an'),
  ],
)
def test_mistakes_are_one_line_errors(call, match):
  with shared.one_line_error(match, (ValueError, TypeError)):
    call(_dataset())


def test_fingerprint_covers_every_example():
  """Also of the clients' many more than 20, as of lazy datasets."""

  def fingerprint(client_ids=None, shape=(4,), **changed):
    arrays = dict(
      x=np.arange(240.0).reshape(60, *shape),
      y=np.zeros(60, int),
      domain=np.arange(60) % 2,
    )
    for name, place in changed.items():
      arrays[name][place] = 1 - arrays[name][place]
    return FederatedDataset.from_arrays(
      **arrays,
      keys=np.arange(60) // 2,
      num_classes=2,
      domain_names=['a', 'b'],
      client_ids=client_ids,
    ).fingerprint

  actual = [fingerprint(y=i) for i in range(60)]
  actual += [fingerprint(**{n: i}) for n in ('x', 'domain') for i in (0, 59)]
  actual += [fingerprint([f'client {i}' for i in range(30)])]
  actual += [fingerprint(shape=(2, 2))]
  assert len({fingerprint(), *actual}) == 67
  assert fingerprint() == fingerprint()
