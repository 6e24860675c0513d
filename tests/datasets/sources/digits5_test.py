"""Tests of the reader of digits of several origins."""

import gzip

import numpy as np
import pytest
import scipy.io
from absl import logging

from tests.datasets import shared
from tff_pfl import datasets
from tff_pfl.datasets.sources import digits5

_SIZES = {
  'mnist': (28, 28),
  'mnist_m': (32, 32, 3),
  'svhn': (32, 32, 3),
  'usps': (16, 16),
  'synth_digits': (32, 32, 3),
}


def _images(name, num_train=40, num_test=20):
  rng = np.random.default_rng(digits5.DOMAINS.index(name))
  return {
    'x_train': rng.integers(0, 256, (num_train, *_SIZES[name]), np.uint8),
    'y_train': np.arange(num_train, dtype=np.uint8) % 10,
    'x_test': rng.integers(0, 256, (num_test, *_SIZES[name]), np.uint8),
    'y_test': np.arange(num_test, dtype=np.uint8) % 10,
  }


def _write_npz(folder, name, file=None, **images):
  np.savez(folder / (file or f'{name}.npz'), **{**_images(name), **images})


def _write_mats(folder, name, zero=10):
  prefix = 'synth_' if name == 'synth_digits' else ''
  images = _images(name)
  for split in ('train', 'test'):
    y = images[f'y_{split}']
    scipy.io.savemat(
      folder / f'{prefix}{split}_32x32.mat',
      {
        'X': images[f'x_{split}'].transpose(1, 2, 3, 0),
        'y': np.where(y == 0, zero, y)[:, np.newaxis],
      },
    )


def _write_idx(folder):
  folder.mkdir(exist_ok=True)
  images = _images('mnist')
  for split, prefix in (('train', 'train'), ('test', 't10k')):
    for kind, name in (('x', 'images-idx3'), ('y', 'labels-idx1')):
      content = gzip.compress(shared.idx(images[f'{kind}_{split}']))
      (folder / f'{prefix}-{name}-ubyte.gz').write_bytes(content)


def _load(folder, **kwargs):
  return digits5.load_digits5(str(folder), **kwargs)


def test_all_five_domains_are_read_from_their_published_files(tmp_path):
  _write_idx(tmp_path / 'mnist_idx')
  _write_npz(tmp_path, 'mnist_m')
  _write_mats(tmp_path, 'svhn')
  _write_npz(tmp_path, 'usps')
  _write_mats(tmp_path, 'synth_digits', zero=0)
  arrays = _load(tmp_path, image_size=32)
  assert arrays.domain_names == digits5.DOMAINS
  assert arrays.x.shape == (200, 32, 32, 3) and arrays.x.dtype == np.uint8
  assert arrays.x_test.shape == (100, 32, 32, 3)
  for number, name in enumerate(digits5.DOMAINS):
    expected = _images(name)
    for x, y, domain, split in (
      (arrays.x, arrays.y, arrays.domain, 'train'),
      (arrays.x_test, arrays.y_test, arrays.domain_test, 'test'),
    ):
      np.testing.assert_array_equal(y[domain == number], expected[f'y_{split}'])
      if _SIZES[name] == (32, 32, 3):
        np.testing.assert_array_equal(
          x[domain == number], expected[f'x_{split}']
        )


def test_any_subset_is_numbered_in_the_order_given(tmp_path):
  for name in ('usps', 'mnist', 'svhn'):
    _write_npz(tmp_path, name)
  assert _load(tmp_path).domain_names == ('mnist', 'svhn', 'usps')
  arrays = _load(tmp_path, domains=['usps', 'svhn'])
  assert arrays.domain_names == ('usps', 'svhn')
  assert np.bincount(arrays.domain).tolist() == [40, 40]
  np.testing.assert_array_equal(
    arrays.x[arrays.domain == 1],
    digits5.to_common_size(_images('svhn')['x_train'], 28),
  )


@pytest.mark.parametrize('file', ['usps.npz', 'usps_subset.npz'])
def test_files_may_be_in_a_folder_called_like_the_domain(tmp_path, file):
  (tmp_path / 'usps').mkdir()
  (tmp_path / 'svhn').mkdir()
  _write_npz(tmp_path / 'usps', 'usps', file)
  _write_mats(tmp_path / 'svhn', 'svhn')
  assert _load(tmp_path).domain_names == ('svhn', 'usps')


def test_clients_have_floats_of_one_shape_and_both_labels(tmp_path):
  _write_npz(tmp_path, 'usps')
  _write_npz(tmp_path, 'mnist')
  dataset = datasets.load_dataset(
    'digits5',
    num_clients=4,
    partition='domain_mixture:0.3:20',
    data_dir=str(tmp_path),
  )
  assert dataset.name == 'digits5'
  assert dataset.num_classes == 10
  assert dataset.element_spec == shared.spec(28, 28, 3, domain=True)
  assert dataset.domain_counts().sum(axis=0).tolist() == [40, 40]
  assert dataset.domain_counts().sum(axis=1).tolist() == [20] * 4
  part = dataset.train('client_0')
  assert 0 <= part.x.min() < 0.1 and 0.9 < part.x.max() <= 1


def test_images_are_resampled_with_antialiasing():
  stripes = np.zeros((1, 32, 32, 3), np.uint8)
  stripes[:, :, ::2] = 200
  x = digits5.to_common_size(stripes, 8)
  assert x.shape == (1, 8, 8, 3)
  np.testing.assert_allclose(x[:, :, 1:-1].astype(float), 100, atol=10)
  # Gray images have three equal channels.
  even = np.full((3, 16, 16), 77, np.uint8)
  assert (digits5.to_common_size(even, 28) == 77).all()
  gray = _images('usps')['x_train']
  np.testing.assert_array_equal(
    digits5.to_common_size(gray, 16), np.stack([gray] * 3, axis=-1)
  )


def test_large_domains_can_be_cut_to_a_fixed_random_choice(tmp_path):
  _write_npz(tmp_path, 'usps')
  _write_npz(
    tmp_path,
    'svhn',
    **{key: value[:15] for key, value in _images('svhn').items()},
  )
  arrays = _load(tmp_path, max_train_per_domain=25, image_size=16)
  assert np.bincount(arrays.domain).tolist() == [15, 25]
  assert np.bincount(arrays.domain_test).tolist() == [15, 20]
  chosen = arrays.x[arrays.domain == 1][..., 0]
  everything = _images('usps')['x_train']
  where = [
    np.flatnonzero((everything == image).all(axis=(1, 2))) for image in chosen
  ]
  where = np.concatenate(where)
  assert len(where) == 25 and (np.diff(where) > 0).all()
  assert where[-1] >= 25
  np.testing.assert_array_equal(arrays.y[arrays.domain == 1], where % 10)
  again = _load(tmp_path, max_train_per_domain=25, image_size=16)
  np.testing.assert_array_equal(again.x, arrays.x)


def test_a_warning_tells_of_mnist_m_in_another_order(tmp_path, monkeypatch):
  warnings = []
  monkeypatch.setattr(
    logging, 'warning', lambda text, *args: warnings.append(text % args)
  )
  _write_npz(tmp_path, 'mnist')
  _write_npz(tmp_path, 'mnist_m')
  _load(tmp_path)
  assert not warnings
  _write_npz(tmp_path, 'mnist_m', y_test=_images('mnist_m')['y_test'][::-1])
  _load(tmp_path)
  assert len(warnings) == 1
  assert "MNIST-M's test images are not in the order" in warnings[0]


@pytest.mark.parametrize('present', [(), ('usps',)])
def test_fewer_than_two_domains_are_an_error_that_says_what_to_bring(
  tmp_path, present
):
  for name in present:
    _write_npz(tmp_path, name)
  with pytest.raises(ValueError, match='two or more domains') as error:
    _load(tmp_path)
  for file in ('mnist_m.npz', 'train_32x32.mat', 'synth_test_32x32.mat'):
    assert file in str(error.value)
  assert '\n' not in str(error.value)


def test_a_domain_that_is_asked_for_and_absent_is_an_error(tmp_path):
  _write_npz(tmp_path, 'usps')
  _write_npz(tmp_path, 'mnist')
  with pytest.raises(
    ValueError, match='hold usps and svhn, .*found no svhn in .*train_32x32.mat'
  ):
    _load(tmp_path, domains=['usps', 'svhn'])


@pytest.mark.parametrize(
  'images, match',
  [
    (dict(x_test=np.zeros((20, 16, 16, 4), np.uint8)), 'x_test, uint8 of'),
    (dict(x_test=np.zeros((20, 256), np.uint8)), 'x_test, uint8 of shape'),
    (dict(y_test=np.full(20, 10, np.uint8)), r'labels in \[0, 10\), found 10'),
    (dict(x_test=np.zeros((0, 16, 16), np.uint8)), 'with images x_test'),
  ],
)
def test_npz_files_of_another_form_are_named(tmp_path, images, match):
  _write_npz(tmp_path, 'mnist')
  _write_npz(tmp_path, 'usps', **images)
  with shared.one_line_error(f'usps.npz` .*{match}'):
    _load(tmp_path)


def test_mat_files_of_another_form_are_named(tmp_path):
  path = tmp_path / 'train_32x32.mat'
  _write_npz(tmp_path, 'usps')
  _write_mats(tmp_path, 'svhn')
  content = path.read_bytes()
  for damaged in (b'', b'no MATLAB file' * 100, content[:-1000]):
    path.write_bytes(damaged)
    with pytest.raises(ValueError, match='32x32.mat` to be a complete .mat'):
      _load(tmp_path)
  scipy.io.savemat(path, {'X': np.zeros((2, 2))})
  with pytest.raises(ValueError, match='a .mat file with X of shape'):
    _load(tmp_path)
  path.unlink()
  with pytest.raises(ValueError, match='32x32.mat` to be a file, found none'):
    _load(tmp_path)


@pytest.mark.parametrize(
  'kwargs, match',
  [
    (dict(domains=['usps']), '`domains` to be two or more of mnist, mnist_m'),
    (dict(domains=['usps', 'usps']), '`domains` .*each once'),
    (dict(domains=['usps', 'emnist']), "`domains` .*'emnist'"),
    (dict(image_size=7), '`image_size`'),
    (dict(max_train_per_domain=0), '`max_train_per_domain`'),
  ],
)
def test_bad_arguments_are_one_line_errors(tmp_path, kwargs, match):
  with pytest.raises(ValueError, match=match):
    _load(tmp_path, **kwargs)


def test_real_files_of_three_domains(monkeypatch, real_data):
  warnings = []
  monkeypatch.setattr(
    logging, 'warning', lambda text, *args: warnings.append(text % args)
  )
  arrays = _load(real_data, max_train_per_domain=1000)
  assert arrays.domain_names == ('mnist', 'mnist_m', 'usps')
  assert not warnings
  assert arrays.x.shape == (3000, 28, 28, 3)
  assert np.bincount(arrays.domain_test).tolist() == [10_000, 1000, 2007]
  classes = [
    np.bincount(arrays.y[arrays.domain == i], minlength=10) for i in range(3)
  ]
  assert np.min(classes) > 50
  # White digits on black, of which most is background, and photographs.
  means = [arrays.x[arrays.domain == i].mean() for i in range(3)]
  assert means[0] < means[2] < means[1]
