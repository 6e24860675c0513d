import functools

import numpy as np
import pytest

from tests.datasets import shared
from tff_pfl.datasets.sources import image_sets

_GRAY, _COLOR = (28, 28, 1), (32, 32, 3)


_load = functools.partial(shared.load, 'mnist', partition='iid')


@pytest.mark.parametrize(
  'name, num_classes, place',
  [('cifar100', 100, 'folder'), ('cifar10', 10, 'file')],
)
def test_all_images_arrive_in_order_with_their_labels(
  tmp_path, name, num_classes, place
):
  folder = tmp_path / (name if place == 'folder' else '.')
  folder.mkdir(exist_ok=True)
  expected = shared.write_image_set(
    folder, name, _COLOR, y=np.arange(40) % num_classes
  )
  data_dir = folder / f'{name}.npz' if place == 'file' else tmp_path
  arrays = image_sets.load(name, str(data_dir))
  assert arrays.name == name and arrays.num_classes == num_classes
  assert arrays.x.dtype == np.uint8 and arrays.y.dtype == np.int32
  for field, values in expected.items():
    np.testing.assert_array_equal(getattr(arrays, field), values)
  np.testing.assert_allclose(
    arrays.transform(arrays.x), expected['x'] / 255, rtol=1e-6
  )


@pytest.mark.parametrize(
  'changes, match',
  [
    (dict(x=np.zeros((40, 28, 28, 1))), 'uint8 .*28, 28, 1.*found float64'),
    (dict(x_test=np.zeros((0, *_GRAY), np.uint8)), 'at least one'),
    (dict(y=np.zeros(41, int)), r'label each.*\(41,\)'),
    (dict(y_test=np.zeros(20)), 'integer label each, found .*float64'),
    (dict(y=10 * (np.arange(40) == 17)), r'y\[17\]. .* in \[0, 10\), found 10'),
  ],
)
def test_files_of_the_wrong_form_are_named(tmp_path, changes, match):
  shared.write_image_set(tmp_path, 'mnist', _GRAY, **changes)
  with shared.one_line_error(f'mnist.npz.*{match}'):
    _load(tmp_path)


def test_published_files_are_an_error_that_says_what_makes_the_file(tmp_path):
  with shared.one_line_error('a file mnist.npz, .* program prepare makes'):
    _load(tmp_path)
  x = np.zeros((5, 28, 28), np.uint8)
  np.savez(tmp_path / 'mnist.npz', x_train=x)  # As of Keras.
  with shared.one_line_error('arrays x and .*x_train in .* program prepare'):
    _load(tmp_path)


def test_real_mnist_has_the_published_class_counts(real_data):
  dataset = _load(real_data('mnist'), 100, partition='shards:2')
  train, test = dataset.class_counts('train'), dataset.class_counts('test')
  assert train.sum(axis=0).tolist() == [
    5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949,
  ]  # fmt: skip
  assert test.sum(axis=0).tolist() == [
    980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009,
  ]  # fmt: skip
  assert ((train > 0).sum(axis=1) == 2).all()
  assert np.array_equal(train > 0, test > 0)
  sizes = train.sum(axis=1)
  assert sizes.min() > 550 and sizes.max() < 650
  # The published mean of the training pixels.
  mean = np.mean([dataset.train(c).x.mean() for c in dataset.client_ids])
  assert abs(mean - 0.1307) < 0.002


@pytest.mark.slow  # The published files are slow to decompress.
def test_real_cifar10_has_the_published_class_counts_and_means(real_data):
  arrays = image_sets.load('cifar10', real_data('cifar10'))
  assert arrays.x.shape == (50_000, 32, 32, 3)
  assert np.bincount(arrays.y).tolist() == [5000] * 10
  assert arrays.x_test.shape[1:] == (32, 32, 3)
  assert set(arrays.y_test.tolist()) == set(range(10))
  # The published means of red, green and blue.
  means = arrays.x.mean(axis=(0, 1, 2)) / 255
  np.testing.assert_allclose(means, [0.4914, 0.4822, 0.4465], atol=1e-4)
