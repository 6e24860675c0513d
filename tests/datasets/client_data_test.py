import collections

import numpy as np
import pytest
import tensorflow as tf
import tree

from tests.datasets import shared
from tff_pfl import tff_api as tff
from tff_pfl.datasets import client_data, federated_dataset

FederatedDataset = federated_dataset.FederatedDataset


def _dataset(**domains):
  x = np.arange(40, dtype=np.float32).reshape(20, 2)
  return FederatedDataset.from_arrays(
    x, np.arange(20) % 4, num_clients=3, **domains
  )


_DOMAINS = dict(domain=np.arange(20) % 2, domain_names=['even', 'odd'])


@pytest.fixture(autouse=True)
def _two_clients_are_read_twice(monkeypatch):
  monkeypatch.setattr(client_data, '_NUM_READ_TWICE', 2)


def _client_data(**clients):
  return shared.client_data(
    {client_id: dict(x=x, y=y) for client_id, (x, y) in clients.items()}
  )


def _elements(**fields):
  return shared.client_data({'a': fields})


def _client_data_of(dataset, split='train'):
  """TFF's form of a split."""
  read = getattr(dataset, split)
  return shared.client_data(
    {client_id: read(client_id).as_dict() for client_id in dataset.client_ids}
  )


def test_client_data_keep_everything():
  dataset = _dataset(weight=np.arange(20) / 8, **_DOMAINS)
  back = FederatedDataset.from_client_data(
    _client_data_of(dataset, 'train'),
    _client_data_of(dataset, 'test'),
    num_classes=4,
    name='back',
    domain_names=dataset.domain_names,
  )
  assert back.name == 'back'
  assert back.client_ids == dataset.client_ids
  assert back.element_spec == dataset.element_spec
  assert back.domain_names == dataset.domain_names
  # Of every example's fields.
  assert back.fingerprint == dataset.fingerprint


def test_clients_of_either_split_are_known_and_may_lack_the_other():
  # Whole floats are labels where there are classes.
  train = _client_data(a=([[1.0]], [0.0]), b=([[2.0]], [1.0]))
  test = _client_data(b=([[3.0]], [1]), c=([[4.0]], [0]))
  dataset = FederatedDataset.from_client_data(train, test, num_classes=2)
  assert dataset.client_ids == ('a', 'b', 'c')
  assert dataset.num_test_examples('a') == 0
  assert dataset.test('a').x.shape == (0, 1)
  assert dataset.train('c').y.shape == (0,)
  assert dataset.class_counts('train').tolist() == [[1, 0], [0, 1], [0, 0]]
  assert dataset.class_counts('test').tolist() == [[0, 0], [0, 1], [1, 0]]
  assert dataset.subset(['c']).test('c').x.tolist() == [[4.0]]


def test_clients_are_read_only_when_asked_for(monkeypatch):
  """But for a fingerprint, which reads some of them."""
  monkeypatch.setattr(federated_dataset, '_NUM_FINGERPRINTED', 5)
  read = []

  def load(client_id):
    read.append(client_id)
    return tf.data.Dataset.from_tensor_slices(
      collections.OrderedDict(x=np.zeros((3, 2)), y=np.zeros(3, np.int64))
    )

  def lazy(client_ids):
    data = tff.simulation.datasets.ClientData.from_clients_and_tf_fn(
      client_ids, load
    )
    dataset = FederatedDataset.from_client_data(data, data, num_classes=1)
    # To see whether it is the same each time.
    assert len(set(read)) == 2
    read.clear()
    return dataset

  client_ids = [str(i) for i in range(50)]
  dataset = lazy(client_ids)
  assert dataset.train('7').x.dtype == np.float32
  assert dataset.num_train_examples('7') == 3
  assert read == ['7']
  read.clear()
  fingerprint = dataset.fingerprint
  assert set(read) == {'0', '12', '24', '36', '49'}
  read.clear()
  other = lazy([*client_ids[:11], 'another', *client_ids[12:]])
  assert other.fingerprint != fingerprint
  assert len(set(read)) == 5 and 'another' not in read


def test_regression_client_data():
  data = _client_data(a=([[1.0], [2.0]], [0.5, 0.25]))
  dataset = FederatedDataset.from_client_data(data, data, num_classes=None)
  assert dataset.num_classes is None
  assert dataset.train('a').y.tolist() == [0.5, 0.25]
  labels = _client_data(a=([[1.0], [2.0]], [0, 1]))
  with pytest.raises(ValueError, match='`num_classes` to be given for integer'):
    FederatedDataset.from_client_data(labels, labels, num_classes=None)


def test_several_inputs_come_through():
  x = collections.OrderedDict(b=np.ones([9, 2], np.float32), a=np.arange(9))
  y = np.arange(9) % 2
  dataset = FederatedDataset.from_arrays(
    x, y, keys=['a'] * 9, test_fraction=0.0
  )
  data = _elements(**x, y=y).preprocess(
    lambda d: d.map(lambda e: ({name: e[name] for name in x}, e['y']))
  )
  back = FederatedDataset.from_client_data(data, data, num_classes=2)
  assert back.element_spec == dataset.element_spec
  tree.map_structure(
    np.testing.assert_array_equal,
    back.train('a').as_dict(),
    dataset.train('a').as_dict(),
  )


@pytest.mark.parametrize(
  'change, match',
  [
    (lambda data: data.shuffle(100), "same each time .*seed.*'client_0'"),
    (lambda data: data.repeat(), r"`train\['client_0'\]` .* limited number"),
    (lambda data: data.filter(lambda e: e['y'] >= 0).repeat(), 'limited'),
  ],
)
def test_what_has_no_end_or_does_not_repeat_is_refused(
  change, match, monkeypatch
):
  monkeypatch.setattr(client_data, '_MAX_EXAMPLES', 100)
  data = _client_data_of(_dataset())
  with shared.one_line_error(match):
    FederatedDataset.from_client_data(
      data.preprocess(change), data, num_classes=4
    )


def test_bad_examples_are_errors_that_name_the_client():
  clients = {str(i): (np.ones([5, 1]), [0] * 5) for i in range(30)}
  good = _client_data(**clients)
  clients.update({'10': ([[np.nan]], [0]), '11': ([[1.0]], [5])})
  bad = _client_data(**clients)
  dataset = FederatedDataset.from_client_data(bad, good, num_classes=2)
  with pytest.raises(ValueError, match=r"`train\['10'\].x\[0, 0\]` to be"):
    dataset.train('10')
  with pytest.raises(ValueError, match=r"`train\['11'\].y\[0\]` .* found 5"):
    dataset.train('11')
  data = _client_data_of(_dataset(**_DOMAINS))
  with shared.one_line_error(r"train\['client_0'\].domain\[\d\]` .*\[0, 1\)"):
    FederatedDataset.from_client_data(
      data, data, num_classes=4, domain_names=['even']
    )


_GOOD = _elements(x=[[1.0]], y=[0])


def _of_domain(domain):
  return _elements(x=[[1.0]], y=[0], domain=domain)


@pytest.mark.parametrize(
  'train, test, domain_names, match',
  [
    (_GOOD, [1], None, '`test` to be of type ClientData'),
    (_elements(pixels=[1.0], label=[0]), _GOOD, None, 'examples.*pixels'),
    (_GOOD.preprocess(lambda d: d.batch(2)), _GOOD, None, 'of a fixed shape'),
    (_GOOD, _elements(x=[[1.0, 2.0]], y=[0]), None, '`test` to be of'),
    (_GOOD, _GOOD, ['a'], 'if and only if there are `domain_names`'),
    (_of_domain([0]), _of_domain([0]), None, 'there are `domain_names`'),
    (_of_domain([[0]]), _of_domain([[0]]), ['a'], 'one number per example'),
  ],
)
def test_client_data_of_another_form_is_an_error(
  train, test, domain_names, match
):
  with pytest.raises((TypeError, ValueError), match=match):
    FederatedDataset.from_client_data(
      train, test, num_classes=2, domain_names=domain_names
    )
