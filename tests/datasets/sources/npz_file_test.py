import functools

import numpy as np
import pytest

from tests.datasets import shared


def _write(tmp_path, **changes):
  x, y = shared.arrays(40)
  arrays = dict(x=x, y=y, client=np.repeat(['d', 'c', 'b', 'a'], 10))
  arrays.update(changes)
  path = tmp_path / 'mine.npz'
  np.savez(path, **{k: v for k, v in arrays.items() if v is not None})
  return str(path)


_load = functools.partial(shared.load, 'npz', num_clients=4)


def _numbers(data, split, client_id):
  """Which examples a client has; each input tells its own number."""
  return getattr(data, split)(client_id).x[:, 0].tolist()


def test_clients_have_their_own_examples_domains_and_weights(tmp_path):
  domain = np.arange(40) % 2
  path = _write(tmp_path, domain=domain, weight=np.arange(40) / 8)
  data = _load(path)
  assert data.client_ids == ('a', 'b', 'c', 'd')
  assert data.domain_names == ('domain_0', 'domain_1')
  for first, client_id in zip((30, 20, 10, 0), data.client_ids):
    own = _numbers(data, 'train', client_id) + _numbers(data, 'test', client_id)
    assert sorted(own) == list(range(first, first + 10))
    train = data.train(client_id)
    numbers = train.x[:, 0].astype(int)
    np.testing.assert_array_equal(train.y, numbers % 3)
    np.testing.assert_array_equal(train.domain, domain[numbers])
    np.testing.assert_array_equal(train.weight, numbers / 8)
    assert len(train.y) == 8
  assert data.load_again().fingerprint == data.fingerprint
  # Some are drawn, as ever with a seed; or they have a folder to themselves.
  assert len(_load(str(tmp_path), num_clients=2).client_ids) == 2


def test_records_are_beside_their_images(tmp_path):
  rng = np.random.default_rng(0)
  image = rng.integers(0, 256, (40, 4, 4, 1)).astype(np.uint8)
  record = np.stack([np.arange(40), rng.integers(0, 9, 40)], axis=1)
  path = _write(tmp_path, x=image, record=record)
  data = _load(path)
  assert list(data.element_spec['x']) == ['image', 'record']
  for client_id in data.client_ids:
    x = data.train(client_id).x
    numbers = x['record'][:, 0].astype(int)
    np.testing.assert_array_equal(x['record'], record[numbers])
    np.testing.assert_allclose(x['image'], image[numbers] / 255, rtol=1e-6)
  # Some classes; training and test examples are pooled; all are normalized.
  path = _write(
    tmp_path,
    x=image,
    record=record,
    x_test=image,
    y_test=np.ones(40, int),
    record_test=record,
    client=None,
  )
  data = _load(
    path, partition='iid', classes=(0, 1), test_fraction=0.5, normalize=True
  )
  parts = [
    getattr(data, s)(c) for c in data.client_ids for s in ('train', 'test')
  ]
  numbers = np.concatenate([part.x['record'][:, 0] for part in parts])
  kept = np.flatnonzero(np.arange(40) % 3 < 2)
  pooled = np.concatenate([kept, np.arange(40)])
  np.testing.assert_allclose(
    np.sort(numbers), np.sort((pooled - 19.5) / np.arange(40).std()), rtol=1e-4
  )
  assert parts[0].x['image'].dtype == parts[0].x['record'].dtype == np.float32


def test_test_examples_of_a_file_are_those_tested(tmp_path):
  path = _write(
    tmp_path,
    client=np.repeat([2, 10], 20),
    x_test=np.array([[100.0], [101.0], [102.0]]),
    y_test=np.array([0, 1, 2]),
    client_test=np.array([10, 2, 10]),
    weight=np.arange(40) / 8,
  )
  data = _load(path, num_clients=2)
  assert data.client_ids == ('2', '10')
  assert _numbers(data, 'train', '2') == list(range(20))
  assert _numbers(data, 'test', '2') == [101]
  assert _numbers(data, 'test', '10') == [100, 102]
  # Which scores do not look at.
  assert data.test('10').weight.tolist() == [1, 1]
  pooled = _load(path, num_clients=2, test_fraction=0.5)
  own = _numbers(pooled, 'train', '2') + _numbers(pooled, 'test', '2')
  assert sorted(own) == [*range(20), 101]
  assert len(pooled.test('2').y) == 10


def test_any_rule_deals_examples_and_warns_of_their_clients(tmp_path, caplog):
  data = _load(
    _write(tmp_path, client=None),
    num_clients=5,
    partition='classes_per_client:1',
  )
  assert ((data.class_counts() > 0).sum(axis=1) == 1).all()
  with_clients = _load(
    _write(tmp_path), num_clients=5, partition='classes_per_client:1'
  )
  assert with_clients.fingerprint == data.fingerprint
  assert 'left aside, as classes_per_client:1 deals' in caplog.text
  some = _load(_write(tmp_path), num_clients=4, classes=[1, 2])
  assert some.class_counts()[:, 0].tolist() == [0] * 4
  assert some.class_counts()[:, 1:].all()


@pytest.mark.parametrize('shape', [(8, 8), (8, 8, 3)])
def test_images_of_bytes_are_scaled_unless_told_otherwise(tmp_path, shape):
  x = np.full((40, *shape), 51, np.uint8)
  path = _write(tmp_path, x=x)
  data = _load(path)
  assert data.element_spec == shared.spec(*shape)
  np.testing.assert_allclose(data.train('a').x, 0.2)
  assert _load(path, scale=False).train('a').x.dtype == np.uint8


def test_floats_are_targets_and_columns_are_no_images(tmp_path):
  x = np.arange(80, dtype=np.uint8).reshape(40, 2)
  data = _load(_write(tmp_path, x=x, y=np.linspace(0, 1, 40)))
  assert data.num_classes is None
  assert data.train('a').x.dtype == np.uint8


@pytest.mark.parametrize(
  'changes, match',
  [
    ({'y': None}, r'`data_dir` .*arrays x and y, .*found .x, client in .*mine'),
    ({'client_id': np.arange(40)}, r'no others than x, y, .*, client_id in'),
    ({'client': np.arange(4)}, r'mine.npz: .*`client` .*shape \(4,\)'),
    ({'y': np.arange(3)}, r'mine.npz: .*`y` to be as long as `x`'),
    (
      {'x_test': np.zeros((2, 1)), 'y_test': np.array([0, 1])},
      r'mine.npz: .*`client_test` to be 2 integers or strings',
    ),
    ({'record': np.zeros(40)}, r'numbers record .*found .float64 of shape'),
    ({'x': np.array([{}] * 40)}, r'mine.npz` to be a complete .npz file'),
  ],
)
def test_files_of_another_form_are_named(tmp_path, changes, match):
  with shared.one_line_error(match):
    _load(_write(tmp_path, **changes))


def test_examples_of_clients_by_nature_are_not_normalized(tmp_path):
  with shared.one_line_error('`normalize` to be false with the partition nat'):
    _load(_write(tmp_path), normalize=True)
