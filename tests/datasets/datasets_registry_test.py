import numpy as np
import pytest

import tff_pfl as pfl
from tests.datasets import shared
from tff_pfl import datasets

_NUMBERED = tuple(f'client_{i:02}' for i in range(30))


@pytest.mark.parametrize(
  'partition, num_classes',
  [('shards:3', 3), ('classes_per_client:1', 1), ('iid', 10)],
)
def test_synthetic_by_name_has_the_classes_asked_for(partition, num_classes):
  dataset = datasets.load_dataset(
    'synthetic', num_clients=4, partition=partition
  )
  assert ((dataset.class_counts() > 0).sum(axis=1) == num_classes).all()


def test_arguments_of_a_dataset_s_own_reach_its_loader():
  dataset = shared.load(
    'rotated_digits', None, 3, 'domain_mixture:0.5:50', num_rotations=2
  )
  assert dataset.domain_names == ('rotation_0', 'rotation_180')
  assert dataset.domain_counts().sum(axis=1).tolist() == [50] * 3
  for name, known in (('rotations', 'num_rotations'), ('clients', 'num_cli')):
    with pytest.raises(TypeError, match=f'no argument `{name}`. .* {known}'):
      datasets.load_dataset('rotated_digits', **{name: 2})


def test_descriptions_are_the_loaders_docstrings_up_to_their_arguments():
  entry = datasets.DATASETS['table']
  assert entry.description.startswith('Any table, with columns that you name')
  assert entry.description.endswith('The partition is natural or any other')
  text = datasets.describe_datasets()
  assert f'; table: {entry.description}; heart_disease: 920 patients' in text
  assert 'emnist_letters, emnist_byclass, svhn: Images with labels' in text
  assert all(entry.description for entry in datasets.DATASETS.values())


def test_test_fraction_of_data_by_client_is_their_loader_s_own(tmp_path):
  path = tmp_path / 'table.csv'
  rows = [f'{i % 2},{i}' for i in range(40)]
  path.write_text('\n'.join(['label,age', *rows]))
  dataset = shared.load('table', path, partition='iid', test_fraction=0.5)
  assert dataset.class_counts('test').sum(axis=1).tolist() == [10, 10]
  pooled = datasets.load_dataset(
    'digits', num_clients=10, partition='iid', test_fraction=1 / 6
  )
  assert pooled.class_counts('test').sum(axis=1).tolist() == [30] * 10
  assert dataset.load_again().fingerprint == dataset.fingerprint
  with pytest.raises(TypeError, match='no argument `test_fraction`'):
    datasets.load_dataset('synthetic', num_clients=2, test_fraction=0.5)


@pytest.mark.parametrize('normalize', [False, True])
def test_arrays_by_name_are_dealt_like_the_dataset(normalize):
  arrays = datasets.load_arrays('digits')
  assert (arrays.name, arrays.num_classes) == ('digits', 10)
  dataset = datasets.load_dataset(
    'digits', num_clients=4, seed=2, normalize=normalize
  )
  if normalize:
    arrays = arrays.normalized()
  dealt = arrays.to_clients(4, seed=2)
  assert dealt.name == dataset.name
  assert dealt.fingerprint == dataset.fingerprint
  with shared.one_line_error('one of digits, .*found .shakespeare.'):
    datasets.load_arrays('shakespeare')


@pytest.mark.parametrize(
  'has_clients, kwargs, ids, partition',
  [
    (True, {}, ('a', 'b', 'c'), 'natural'),
    (True, dict(partition='natural'), ('a', 'b', 'c'), 'natural'),
    (True, dict(num_clients=2, seed=1), ('a', 'b'), 'natural'),
    (True, dict(partition='iid'), _NUMBERED, 'iid'),
    (False, {}, _NUMBERED, 'shards:2'),
    (False, dict(num_clients=2), ('client_0', 'client_1'), 'shards:2'),
  ],
)
def test_clients_are_all_of_the_file_s_or_30(
  has_clients, kwargs, ids, partition, tmp_path
):
  arrays = dict(x=np.zeros([90, 2]), y=np.arange(90) % 3)
  if has_clients:
    arrays['client'] = np.array(list('abc'))[np.arange(90) % 3]
  path = str(tmp_path / 'own.npz')
  np.savez(path, **arrays)
  dataset = datasets.load_dataset('npz', data_dir=path, **kwargs)
  assert (dataset.client_ids, dataset.partition) == (ids, partition)
  settings = pfl.Settings(dataset='npz', data_dir=path, **kwargs)
  assert settings.load_data().client_ids == ids
  assert settings.rounds.cohorts(len(ids), 0).cohort_size == min(10, len(ids))


def test_files_may_be_named_from_the_home_folder(tmp_path, monkeypatch):
  monkeypatch.setenv('HOME', str(tmp_path))
  np.savez(tmp_path / 'own.npz', x=np.zeros([9, 2]), y=np.arange(9) % 3)
  dataset = datasets.load_dataset('npz', data_dir='~/own.npz', num_clients=1)
  assert dataset.load_again().fingerprint == dataset.fingerprint
  assert len(datasets.load_arrays('npz', '~/own.npz').y) == 9


@pytest.mark.parametrize(
  'kwargs, match',
  [
    (dict(name='imagenet'), 'one of digits, mnist, .*found .imagenet.'),
    (dict(num_clients=10**12), '`num_clients` .*most 100000000'),
    (dict(data_dir='/data'), "`data_dir` to be unset for the dataset 'digits'"),
    (dict(name='mnist', data_dir='/none'), '`data_dir` to be an existing f'),
    (dict(name='synthetic', partition='dirichlet:1'), "found 'dirichlet:1.0'"),
    (dict(name='synthetic', partition='shards:11'), '`classes_per_client`'),
    (dict(seed=-2), '`seed`'),
    (dict(name='synthetic', normalize=True), '`normalize` .*come by client'),
    (dict(partition='natural'), 'deals pooled examples'),
    (dict(name='shakespeare', partition='iid'), "natural .*roles, found 'iid'"),
    (dict(name='leaf'), "`data_dir` to be a folder of LEAF's"),
    (dict(name='npz'), '`data_dir` to be one folder with a file'),
    (dict(name='heart_disease'), '`data_dir` to be one folder with processed'),
    (dict(name='digits5'), '`data_dir` to be a folder with the files of two'),
    (dict(name='fairface'), '`data_dir` to be one folder with fairface'),
    *(
      (dict(name=name, partition='natural', **{argument: value}), match)
      for name, argument, value, match in (
        ('rotated_digits', 'num_rotations', 13, 'at most 12'),
        ('relabelled_digits', 'num_domains', 6, 'at most 5'),
        ('shakespeare', 'sequence_length', 0, '`sequence_length`'),
        ('shakespeare', 'stride', 0, '`stride`'),
        ('sentiment', 'vocabulary_size', 1, '`vocabulary_size`'),
        ('sentiment', 'max_words', 0, '`max_words`'),
        ('stackoverflow', 'vocabulary_size', 2, '`vocabulary_size`'),
        ('stackoverflow', 'max_sentences', 0, '`max_sentences`'),
        ('digits5', 'domains', ['usps', 'usps'], '`domains` .*each once'),
        ('digits5', 'domains', ['usps', 'emnist'], "`domains` .*'emnist'"),
        ('digits5', 'image_size', 7, '`image_size`'),
        ('digits5', 'max_train_per_domain', 0, '`max_train_per_domain`'),
        ('fairface', 'label', 'race', '`label` to be one of age, gender'),
        ('heart_disease', 'domain_column', 'cp', 'one of sex, age, site'),
        ('image_folder', 'channels', 2, '`channels` to be one of 1 or 3'),
      )
    ),
  ],
)
def test_bad_arguments_are_one_line_errors(kwargs, match):
  kwargs = {'name': 'digits', 'num_clients': 2, **kwargs}
  with shared.one_line_error(match):
    datasets.load_dataset(**kwargs)


@pytest.mark.usefixtures('registers')
def test_functions_of_ones_own_are_datasets_by_their_names():
  @datasets.dataset
  def pooled(*, shift: float = 0.0):
    """Two classes of points."""
    x = np.arange(20, dtype=np.float32)[:, np.newaxis] + shift
    return datasets.Arrays(name='pooled', x=x, y=np.arange(20) % 2)

  @datasets.dataset
  def by_client(num_clients, partition, *, seed):
    """Clients with examples of their own."""
    assert partition is None
    x = np.full([12, 1], seed, np.float32)
    keys = np.arange(12) % (num_clients or 4)
    return datasets.FederatedDataset.from_arrays(
      x, np.arange(12) % 3, keys=keys
    )

  data = datasets.load_dataset(
    'pooled', num_clients=2, partition='iid', shift=100.0
  )
  assert data.num_clients == 2
  assert data.train(data.client_ids[0]).x.min() >= 100
  assert len(datasets.load_arrays('pooled').y) == 20
  # Other machines do not know it by its name.
  assert data.load_again is None
  assert 'pooled, ' not in datasets.describe_datasets()
  assert 'pooled: Two classes of points' in datasets.describe_datasets()
  clients = datasets.load_dataset('by_client', num_clients=3, seed=7)
  assert clients.num_clients == 3
  assert set(clients.train(clients.client_ids[0]).x.ravel()) == {7}
  assert datasets.load_dataset('by_client').num_clients == 4


@pytest.mark.usefixtures('registers')
def test_functions_that_are_no_datasets_are_refused():
  def digits():
    """Has the name of a dataset of the library."""

  for function, match in (
    (lambda *, shift=1: None, 'a type for its argument shift'),
    (lambda year: None, 'own arguments'),
    (lambda *, seed: None, '`seed` if it has `num_clients`'),
    (lambda num_clients, partition: None, '`seed` if it has `num_clients`'),
    (digits, "another name.*found 'digits'"),
  ):
    with pytest.raises(ValueError, match=match):
      datasets.dataset(function)

  @datasets.dataset
  def nothing():
    """Returns nothing."""

  @datasets.dataset
  def three(num_clients, partition, *, seed):
    """Always has three clients."""
    x = np.zeros([6, 1], np.float32)
    keys = np.arange(6) % 3
    return datasets.FederatedDataset.from_arrays(x, np.arange(6) % 2, keys=keys)

  with pytest.raises(TypeError, match='`nothing` to be .*Arrays'):
    datasets.load_dataset('nothing')
  with pytest.raises(ValueError, match="`num_clients` to be None or 3 for 'th"):
    datasets.load_dataset('three', num_clients=5)
