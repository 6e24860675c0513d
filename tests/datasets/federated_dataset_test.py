"""Tests of `FederatedDataset` and of the checks of users' arrays."""

import pickle
import tracemalloc

import numpy as np
import pytest
import tensorflow as tf

from tests.datasets import shared
from tff_pfl import datasets
from tff_pfl.datasets import examples as examples_lib
from tff_pfl.datasets import federated_dataset, partitioning

FederatedDataset = federated_dataset.FederatedDataset


def _all_inputs(dataset, split):
  read = dataset.train if split == 'train' else dataset.test
  return [
    read(client_id).x.ravel().tolist() for client_id in dataset.client_ids
  ]


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


def test_from_arrays_without_test_arrays_divides_each_client_by_class():
  dataset = _dataset()
  parts = _all_inputs(dataset, 'train') + _all_inputs(dataset, 'test')
  assert sorted(sum(parts, [])) == list(range(60))
  # 15 examples a client, 5 of each class: 12 and 3, 4 and 1 of each class.
  assert dataset.class_counts('train').tolist() == [[4, 4, 4]] * 4
  assert dataset.class_counts('test').tolist() == [[1, 1, 1]] * 4


def test_from_arrays_with_test_arrays_deals_them_by_the_same_rule():
  x_test, y_test = shared.arrays(30)
  dataset = _dataset(
    x_test=x_test, y_test=y_test, num_clients=6, partition='shards:1'
  )
  assert sorted(sum(_all_inputs(dataset, 'train'), [])) == list(range(60))
  assert sorted(sum(_all_inputs(dataset, 'test'), [])) == list(range(30))
  train, test = dataset.class_counts('train'), dataset.class_counts('test')
  assert set(train.ravel()) == {0, 10}
  np.testing.assert_array_equal(test, train // 2)


def test_from_arrays_by_key_makes_one_client_per_key():
  x, y = shared.arrays(6)
  keys = ['ann', 'bob', 'ann', 'bob', 'bob', 'cid']
  dataset = FederatedDataset.from_arrays(x, y, keys=keys, test_fraction=0)
  assert dataset.client_ids == ('ann', 'bob', 'cid')
  assert _all_inputs(dataset, 'train') == [[0, 2], [1, 3, 4], [5]]
  assert dataset.num_test_examples('ann') == 0
  with_test = FederatedDataset.from_arrays(
    x, y, keys=keys, x_test=x[:1], y_test=y[:1], keys_test=['bob']
  )
  assert _all_inputs(with_test, 'test') == [[], [0], []]


def test_from_arrays_takes_a_partitioner_and_client_ids():
  dataset = _dataset(
    num_clients=2,
    partition=partitioning.ClassesPerClient(2),
    client_ids=['left', 'right'],
  )
  assert dataset.client_ids == ('left', 'right')
  assert ((dataset.class_counts() > 0).sum(axis=1) == 2).all()


def test_examples_overlap_only_where_their_source_says_so():
  with pytest.raises(ValueError, match='`num_overlapping` to be 0 where there'):
    _dataset(num_overlapping=1)
  assert _dataset().num_overlapping == 0
  x_test, y_test = shared.arrays()
  windows = _dataset(x_test=x_test, y_test=y_test, num_overlapping=3)
  assert windows.num_overlapping == 3
  assert windows.subset(windows.client_ids[:1]).num_overlapping == 3


def test_float_targets_make_a_regression_dataset():
  options = dict(domain=np.arange(20) % 2, partition='domain_mixture:100')
  dataset = _dataset(20, y=np.arange(20) / 7, num_clients=2, **options)
  assert dataset.num_classes is None
  assert dataset.element_spec['y'] == tf.TensorSpec([], tf.float32)
  assert dataset.num_train_examples('client_0') == 8
  assert dataset.domain_counts().sum() == 16
  with pytest.raises(ValueError, match='regression'):
    dataset.class_counts()


def test_whole_floats_are_labels_where_num_classes_says_so():
  dataset = _dataset(20, y=np.arange(20.0) % 3, num_clients=2, num_classes=5)
  assert dataset.num_classes == 5
  assert dataset.train('client_0').y.dtype == np.int32
  assert dataset.class_counts().shape == (2, 5)


def test_sequence_labels_are_counted_label_by_label():
  x = np.zeros((4, 3), np.int64)
  y = np.array([[0, 1, 1], [2, 2, 2], [0, 0, 0], [1, 1, 1]])
  dataset = FederatedDataset.from_arrays(
    x, y, keys=[0, 0, 1, 1], test_fraction=0
  )
  assert dataset.element_spec['y'] == tf.TensorSpec([3], tf.int32)
  assert dataset.element_spec['x'].dtype == tf.int64
  assert dataset.class_counts().tolist() == [[1, 2, 3], [3, 3, 0]]


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
  with pytest.raises(ValueError, match="found 'client_0'"):
    subset.train('client_0')


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
  loaded = datasets.load_dataset('digits', num_clients=5).joining(
    {'client_3': 2}
  )
  again = pickle.loads(pickle.dumps(loaded))
  assert len(pickle.dumps(loaded)) < 2000
  assert again.join_round == {'client_3': 2}


@pytest.mark.parametrize(
  'join_round, match',
  [
    ({'nobody': 2}, "found 'nobody'"),
    ({'client_0': 0}, '`join_round` to be an integer at least 1, found 0'),
    ({'client_0': '2'}, "found '2'"),
  ],
)
def test_wrong_rounds_to_join_in_are_refused(join_round, match):
  with pytest.raises(ValueError, match=match):
    _dataset(num_clients=6).joining(join_round)


@pytest.mark.parametrize(
  'client_ids, match',
  [
    ([], 'at least one id'),
    (['client_1', 'client_1'], "`client_ids` to be unique, found 'client_1'"),
    (['nobody'], "found 'nobody'"),
  ],
)
def test_subset_of_wrong_clients_is_an_error(client_ids, match):
  dataset = _dataset(num_clients=6)
  with pytest.raises(ValueError, match=match):
    dataset.subset(client_ids)


@pytest.mark.parametrize('client_id', ['client_9', 0, None, [1]])
def test_unknown_client_is_a_value_error_that_names_it(client_id):
  dataset = _dataset(num_clients=6)
  for method in (
    dataset.train,
    dataset.test,
    dataset.num_train_examples,
    dataset.num_test_examples,
  ):
    with pytest.raises(ValueError, match='`client_id` to be one of the 6') as e:
      method(client_id)
    assert repr(client_id) in str(e.value)


def test_a_hundred_thousand_clients_cost_little():
  x = np.zeros((200_000, 4), np.uint8)
  y = np.zeros(200_000, np.int32)
  dataset = FederatedDataset.from_arrays(
    x,
    y,
    num_clients=100_000,
    test_fraction=0.5,
    transform=lambda x: x.astype(np.float32),
  )
  counts = dataset.class_counts()
  assert counts.shape == (100_000, 1) and (counts == 1).all()
  tracemalloc.start()
  assert dataset.train('client_54321').x.shape == (1, 4)
  _, peak = tracemalloc.get_traced_memory()
  tracemalloc.stop()
  assert peak < 100_000


def test_domains_stay_with_their_examples():
  dataset = _with_domains(domain_names=list('abcde'))
  assert dataset.domain_names == ('a', 'b', 'c', 'd', 'e')
  assert dataset.num_domains == 5
  assert list(dataset.element_spec) == ['x', 'y', 'domain']
  assert dataset.element_spec['domain'] == tf.TensorSpec((), tf.int32)
  assert "domain_names=('a', 'b', 'c', 'd', 'e')" in repr(dataset)
  for client_id in dataset.client_ids:
    for part in (dataset.train(client_id), dataset.test(client_id)):
      assert part.domain.dtype == np.int32
      np.testing.assert_array_equal(part.domain, part.x.ravel() % 5)


def test_dataset_without_domains_has_none():
  dataset = _dataset()
  assert dataset.domain_names is None and dataset.num_domains == 0
  assert dataset.train('client_0').domain is None
  assert 'domain' not in repr(dataset)
  with pytest.raises(ValueError, match='`data` to be a dataset with domains'):
    dataset.domain_counts()


def test_domain_counts_are_those_of_the_clients_and_read_only():
  dataset = _with_domains(partition='domain_mixture:0.5')
  assert dataset.domain_names == tuple(f'domain_{i}' for i in range(5))
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
    with pytest.raises(ValueError, match='`split` to be .*found .validation.'):
      count('validation')


def test_every_rule_takes_examples_with_domains():
  for spec in ('shards:2', 'dirichlet:1', 'iid', 'lognormal:1'):
    dataset = _with_domains(partition=spec)
    assert dataset.domain_counts().sum() == dataset.class_counts().sum()
  by_key = _with_domains(num_clients=None, keys=np.arange(60) % 5)
  counts = by_key.domain_counts() + by_key.domain_counts('test')
  np.testing.assert_array_equal(counts, 12 * np.eye(5))


def test_domain_without_training_examples_is_named_in_a_warning(caplog):
  with caplog.at_level('WARNING', logger='absl'):
    dataset = _with_domains(domain_names=list('abcdefg'), name='mine')
  assert dataset.num_domains == 7
  assert dataset.domain_counts()[:, 5:].tolist() == [[0, 0]] * 4
  assert "'mine': there is no training example of the domains ['f', 'g']" in (
    caplog.text
  )
  caplog.clear()
  _with_domains()
  assert not caplog.text
  # There is an example, but no client has it.
  _with_domains(
    partition='domain_mixture:1e9,10,1/0', domain=[0] * 59 + [1], seed=1
  )
  assert "of the domains ['domain_1']" in caplog.text


def test_clients_without_training_examples_are_counted_in_a_warning(caplog):
  x, y = shared.arrays()
  options = dict(keys=y, x_test=x, y_test=y, num_clients=None, name='mine')
  _dataset(keys_test=y, **options)
  assert not caplog.text
  _dataset(keys_test=y + 1, **options)
  assert "'mine': 1 of 4 clients have no training examples" in caplog.text


def test_classes_that_are_only_tested_on_are_named_in_a_warning(caplog):
  x, y = shared.arrays()
  options = dict(x_test=x, num_classes=5, name='mine')
  _dataset(y_test=y, **options)
  assert not caplog.text
  _dataset(y_test=y + 1, **options)
  assert "'mine': 20 test examples are of the classes [3]" in caplog.text


def test_spec_and_names_of_domains_must_agree():
  for dataset, names in ((_dataset(), ['a']), (_with_domains(), None)):
    with pytest.raises(ValueError, match='`element_spec` to be with an int32'):
      FederatedDataset(
        name='mine',
        client_ids=dataset.client_ids,
        element_spec=dataset.element_spec,
        num_classes=3,
        load=dataset._load,
        domain_names=names,
      )


def test_classes_and_domains_are_counted_of_any_examples():
  def load(client_id, split):
    ids = np.arange('abc'.index(client_id) + 1, dtype=np.int32)
    return examples_lib.Examples(np.zeros([len(ids), 1]), ids, ids)

  dataset = FederatedDataset(
    name='mine',
    client_ids='abc',
    element_spec=_with_domains().element_spec,
    num_classes=3,
    load=load,
    domain_names=list('wxyz'),
  ).subset('ca')
  assert dataset.domain_counts().tolist() == [[1, 1, 1, 0], [1, 0, 0, 0]]
  assert dataset.class_counts().tolist() == [[1, 1, 1], [1, 0, 0]]


def test_fingerprint_covers_every_example():
  """Also of the clients' many more than 20, as of lazy datasets."""

  def fingerprint(client_ids=None, shape=(4,), **changed):
    arrays = dict(
      x=np.arange(480.0).reshape(120, *shape),
      y=np.zeros(120, int),
      domain=np.arange(120) % 2,
    )
    for name, place in changed.items():
      arrays[name][place] = 1 - arrays[name][place]
    dataset = FederatedDataset.from_arrays(
      **arrays,
      keys=np.arange(120) // 2,
      num_classes=2,
      domain_names=['a', 'b'],
      client_ids=client_ids,
    )
    return dataset.fingerprint

  found = [
    fingerprint(**{name: i})
    for name in ('x', 'y', 'domain')
    for i in range(120)
  ]
  found += [fingerprint([f'client {i}' for i in range(60)])]
  assert len({fingerprint(), *found}) == 362
  assert fingerprint(shape=(2, 2)) != fingerprint()
  assert fingerprint() == fingerprint()
