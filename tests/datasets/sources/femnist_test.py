import functools

import numpy as np
import pytest

from tests.datasets import shared
from tff_pfl import tff_api as tff

_load = functools.partial(shared.load, 'femnist')


def _content(num_classes=10, **changes):
  rng = np.random.default_rng(0)
  content = dict(
    x=rng.integers(0, 256, (60, 28, 28, 1), dtype=np.uint8),
    y=np.arange(60, dtype=np.uint8) % num_classes,
    client=np.repeat([3, 1, 20], 20),
  )
  # Each image tells its place.
  content['x'][:, 0, 0, 0] = np.arange(60)
  return {**content, **changes}


def _write(tmp_path, num_classes=10, **changes):
  np.savez(tmp_path / 'femnist.npz', **_content(num_classes, **changes))
  return str(tmp_path)


def _places(examples):
  return [255 - round(255 * v) for v in examples.x[:, 0, 0, 0].tolist()]


def test_writers_are_clients_and_images_are_inverted(tmp_path):
  content = _content()
  dataset = _load(_write(tmp_path), 3)
  assert dataset.client_ids == ('1', '3', '20')
  assert dataset.num_classes == 10
  assert dataset.element_spec == shared.spec(28, 28, 1)
  for client_id, first in (('3', 0), ('1', 20), ('20', 40)):
    train, test = dataset.train(client_id), dataset.test(client_id)
    assert (len(train.y), len(test.y)) == (16, 4)
    places = _places(train) + _places(test)
    assert sorted(places) == list(range(first, first + 20))
    for examples in (train, test):
      own = _places(examples)
      assert examples.y.tolist() == content['y'][own].tolist()
      np.testing.assert_allclose(
        examples.x, 1 - content['x'][own] / 255, atol=1e-6
      )


def test_fewer_writers_are_a_seeded_choice(tmp_path):
  data_dir = _write(tmp_path, client=np.arange(60) % 15)
  chosen = [_load(data_dir, 5, seed=seed).client_ids for seed in (0, 1, 0)]
  assert chosen[0] == chosen[2] != chosen[1]
  with pytest.raises(ValueError, match='at most 15, the number of clients'):
    _load(data_dir, 16)
  # Writers may have names, and a file with letters has all classes.
  names = np.repeat(['f_b', 'f_a'], 30)
  dataset = _load(_write(tmp_path, 62, client=names))
  assert dataset.client_ids == ('f_a', 'f_b')
  assert dataset.num_classes == 62
  by_rule = _load(data_dir, 6, 'classes_per_client:3')
  assert ((shared.all_labels(by_rule) > 0).sum(axis=1) == 3).all()


@pytest.mark.parametrize(
  'changes, match',
  [
    (dict(x=np.zeros((60, 28, 28), np.uint8)), r'uint8 .*\(60, 28, 28\)'),
    (dict(y=np.full(60, 62)), r'in \[0, 62\), found 62'),
    (dict(client=np.zeros(7, int)), 'client'),
  ],
)
def test_files_of_the_wrong_form_are_named(tmp_path, changes, match):
  data_dir = _write(tmp_path, **changes)
  with shared.one_line_error(f'femnist.npz.*{match}'):
    _load(data_dir)


def _client_data(seeds):
  def client(seed):
    rng = np.random.default_rng(seed)
    return dict(
      label=rng.integers(0, 62, 6, dtype=np.int32),
      pixels=rng.random((6, 28, 28), np.float32),
    )

  return shared.client_data(
    {name: client(seed) for name, seed in seeds.items()}
  )


def test_without_data_dir_the_writers_come_through_tff(monkeypatch):
  train = _client_data(dict(a=0, b=1, c=2, d=3))
  test = _client_data(dict(a=4, b=5, c=6, e=7))
  asked = []

  def load(only_digits):
    asked.append(only_digits)
    return train, test

  monkeypatch.setattr(tff.simulation.datasets.emnist, 'load_data', load)
  dataset = _load(num_clients=3)
  assert asked == [False]
  assert dataset.client_ids == ('a', 'b', 'c')
  assert dataset.num_classes == 62
  assert dataset.element_spec == shared.spec(28, 28, 1)
  (source,) = train.create_tf_dataset_for_client('b').batch(6)
  examples = dataset.train('b')
  np.testing.assert_array_equal(examples.y, source['label'])
  np.testing.assert_allclose(examples.x[..., 0], 1 - source['pixels'])
  assert dataset.class_counts('test').sum() == 18
  with pytest.raises(ValueError, match="natural for .*found 'iid'"):
    _load(partition='iid')


def test_the_real_subset_of_digits(real_data):
  dataset = _load(real_data('femnist'), 12)
  assert dataset.num_classes == 10
  counts = shared.all_labels(dataset)
  assert counts.sum(axis=0).tolist() == [
    593, 702, 591, 607, 621, 565, 615, 559, 560, 584,
  ]  # fmt: skip
  assert counts.sum(axis=1).min() == 454 and counts.sum(axis=1).max() == 544
  # White on black, as in MNIST.
  x = dataset.train('0').x
  assert np.median(x) == 0 and x.mean() < 0.2 and x.max() > 0.9
