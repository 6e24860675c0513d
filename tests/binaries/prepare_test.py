"""Tests of the readers of published files of image sets."""

import gzip

import numpy as np
import pytest
import scipy.io

from binaries import image_files
from tests.datasets import shared
from tff_pfl import datasets

TRAIN_IMAGES = 'emnist-letters-train-images-idx3-ubyte.gz'
TRAIN_LABELS = 'emnist-letters-train-labels-idx1-ubyte.gz'
_SIZES = 60, 12
_BINARY_FILES = {
  'cifar10': (*(f'data_batch_{i}.bin' for i in range(1, 6)), 'test_batch.bin'),
  'cifar100': ('train.bin', 'test.bin'),
}
_NPZ_FILES = {
  'cifar10': tuple(f'train_batch_{i}.npz' for i in range(1, 6)),
  'cifar100': ('train.npz',),
}
_SHAPES = {
  'mnist': (28, 28),
  'fashion_mnist': (28, 28),
  'emnist_letters': (28, 28),
  'emnist_byclass': (28, 28),
  'mnist_m': (32, 32, 3),
  'svhn': (32, 32, 3),
  'usps': (16, 16),
  'synth_digits': (32, 32, 3),
}


def _images(name, seed=0, num_classes=10):
  rng = np.random.default_rng(seed)
  shape, images = _SHAPES.get(name, (32, 32, 3)), {}
  for split, n in zip(('train', 'test'), _SIZES):
    images[f'x_{split}'] = rng.integers(0, 256, (n, *shape), np.uint8)
    images[f'y_{split}'] = rng.integers(0, num_classes, n, np.uint8)
    # The least and the most.
    images[f'y_{split}'][:2] = 0, num_classes - 1
  return images


def _idx(array):
  sizes = np.array(array.shape, '>u4').tobytes()
  return bytes([0, 0, 8, array.ndim]) + sizes + array.astype(np.uint8).tobytes()


def _write_idx(folder, name='mnist', seed=0):
  """Of EMNIST, rows and columns are exchanged, and letters begin at 1."""
  is_emnist = name.startswith('emnist')
  images = _images(name, seed, num_classes=26 if is_emnist else 10)
  for split, prefix in (('train', 'train'), ('test', 't10k')):
    x, y = images[f'x_{split}'], images[f'y_{split}']
    if is_emnist:
      prefix = f'{name.replace("_", "-")}-{split}'
      x, y = x.transpose(0, 2, 1), y + (name == 'emnist_letters')
    for file, array in (('images-idx3', x), ('labels-idx1', y)):
      path = folder / f'{prefix}-{file}-ubyte.gz'
      path.write_bytes(gzip.compress(_idx(array)))
  return images


def _write_npz(folder, name, file=None):
  images = _images(name)
  np.savez(folder / (file or f'{name}.npz'), **images)
  return images


def _write_mats(folder, name):
  prefix = 'synth_' if name == 'synth_digits' else ''
  images = _images(name)
  for split in ('train', 'test'):
    y = images[f'y_{split}']
    scipy.io.savemat(
      folder / f'{prefix}{split}_32x32.mat',
      {
        'X': images[f'x_{split}'].transpose(1, 2, 3, 0),
        'y': np.where(y == 0, 10, y)[:, np.newaxis],
      },
    )
  return images


def _cifar_batches(name):
  """Returns all images, and those of each file; the last are for test."""
  images = _images(name, num_classes=int(name.removeprefix('cifar')))
  num_train = len(_NPZ_FILES[name])
  x, y = (np.split(images[f'{k}_train'], num_train) for k in 'xy')
  return images, [*zip(x, y), (images['x_test'], images['y_test'])]


def _write_binary(folder, name='cifar10'):
  images, batches = _cifar_batches(name)
  # Of CIFAR-100, the coarse label comes first; 19 is not the class.
  coarse = b'\x13' if name == 'cifar100' else b''
  for file, (x, y) in zip(_BINARY_FILES[name], batches):
    content = b''.join(
      coarse + bytes([label]) + image.transpose(2, 0, 1).tobytes()
      for image, label in zip(x, y)
    )
    (folder / file).write_bytes(content)
  return images


def _write_batches(folder, name='cifar10'):
  images, batches = _cifar_batches(name)
  for file, (x, y) in zip(_NPZ_FILES[name], batches):
    np.savez_compressed(folder / file, x_train=x, y_train=y)
  x, y = batches[-1]
  np.savez_compressed(folder / 'test_some.npz', x_test=x, y_test=y)
  return images


def _write_femnist(folder, name='femnist'):
  content = dict(
    x=np.random.default_rng(0).integers(0, 256, (60, 28, 28), np.uint8),
    y=np.arange(60, dtype=np.uint8),
    client_id=np.repeat([3, 1, 20], 20),
  )
  np.savez(folder / f'{name}_some.npz', **content)
  return content


_SET_OF = {
  _write_idx: 'emnist_letters',
  _write_binary: 'cifar10',
  _write_batches: 'cifar10',
  _write_mats: 'svhn',
  _write_femnist: 'femnist',
}


def _prepare(folder, *names, **kwargs):
  return list(image_files.prepare(str(folder), names=names, **kwargs))


@pytest.mark.parametrize(
  'name, folder, write',
  [
    ('mnist', 'mnist', _write_idx),
    ('mnist', '.', _write_npz),
    ('fashion_mnist', 'fashion_mnist_idx', _write_idx),
    ('cifar10', 'cifar-10-batches-bin', _write_binary),
    ('cifar10', 'cifar10', _write_batches),
    ('cifar100', 'cifar-100-binary', _write_binary),
    ('cifar100', '.', _write_batches),
    ('emnist_letters', 'gzip', _write_idx),
    ('emnist_byclass', 'emnist_byclass', _write_idx),
    ('svhn', 'svhn', _write_mats),
    ('usps', 'usps', _write_npz),
    ('synth_digits', '.', _write_mats),
  ],
)
def test_images_keep_their_order_and_labels(tmp_path, name, folder, write):
  source, output_dir = tmp_path / folder, tmp_path / 'made'
  source.mkdir(exist_ok=True)
  images = write(source, name)
  (line,) = _prepare(tmp_path, output_dir=str(output_dir))
  path = output_dir / f'{name}.npz'
  assert line == f'{name}: 60 + 12 images, {path}'
  with np.load(path) as arrays:
    assert set(arrays) == {'x', 'y', 'x_test', 'y_test'}
    for split, suffix in (('train', ''), ('test', '_test')):
      x = images[f'x_{split}']
      channels = x if x.ndim == 4 else x[..., np.newaxis]
      np.testing.assert_array_equal(arrays[f'x{suffix}'], channels)
      np.testing.assert_array_equal(arrays[f'y{suffix}'], images[f'y_{split}'])
      assert arrays[f'x{suffix}'].dtype == np.uint8


def test_writers_are_kept(tmp_path):
  content = _write_femnist(tmp_path)
  (line,) = _prepare(tmp_path)
  assert line.startswith('femnist: 60 images, ')
  # The second time what the first one made is there, too.
  _prepare(tmp_path, overwrite=True)
  with np.load(tmp_path / 'femnist.npz') as arrays:
    np.testing.assert_array_equal(arrays['x'][..., 0], content['x'])
    np.testing.assert_array_equal(arrays['y'], content['y'])
    np.testing.assert_array_equal(arrays['client'], content['client_id'])


def test_the_program_makes_all_that_the_others_read(programs):
  folder = programs.directory / 'downloaded'
  (folder / 'mnist_idx').mkdir(parents=True)
  (folder / 'fashion_mnist_idx').mkdir()
  _write_idx(folder / 'mnist_idx')
  _write_idx(folder / 'fashion_mnist_idx', 'fashion_mnist', seed=1)
  _write_npz(folder, 'usps', 'usps_subset.npz')
  arguments = 'prepare', f'--data_dir={folder}', '--output_dir=data'
  result = programs.succeed(*arguments)
  assert result.out.splitlines() == [
    f'{name}: 60 + 12 images, data/{name}.npz'
    for name in ('mnist', 'fashion_mnist', 'usps')
  ]
  for name in ('mnist', 'fashion_mnist', 'digits5'):
    arrays = datasets.load_arrays(name, str(programs.directory / 'data'))
    assert len(arrays.x) == (120 if name == 'digits5' else 60)
  path = programs.directory / 'data' / 'usps.npz'
  made = path.stat().st_mtime_ns
  again = programs.succeed(*arguments, '--datasets=usps')
  assert again.out.startswith('usps: data/usps.npz is there already')
  assert path.stat().st_mtime_ns == made
  anew = programs.succeed(*arguments, '--datasets=usps', '--overwrite')
  assert '60 + 12' in anew.out and path.stat().st_mtime_ns > made
  message = programs.fail(*arguments, '--datasets=usps,emnist')
  assert '--datasets to be one of mnist, ' in message


def test_a_published_file_of_that_name_is_never_replaced(tmp_path):
  _write_npz(tmp_path, 'mnist')
  published = (tmp_path / 'mnist.npz').read_bytes()
  for overwrite in (False, True):
    (line,) = _prepare(tmp_path, overwrite=overwrite)
    assert line.endswith('be the published file (give another --output_dir)')
  assert (tmp_path / 'mnist.npz').read_bytes() == published
  # In its own folder, it is beside the prepared file, which is the one read.
  (tmp_path / 'mnist').mkdir()
  (tmp_path / 'mnist.npz').rename(tmp_path / 'mnist' / 'mnist.npz')
  for overwrite in (False, True):
    (line,) = _prepare(tmp_path, overwrite=overwrite)
    assert line.startswith('mnist: 60 + 12 images')
    assert len(datasets.load_arrays('mnist', str(tmp_path)).x) == 60


def test_a_set_that_is_not_there_is_an_error(tmp_path):
  with shared.one_line_error('hold published files of mnist, fashion_mnist'):
    _prepare(tmp_path)
  # Idx files without a folder's name may be those of Fashion-MNIST.
  _write_idx(tmp_path)
  _write_npz(tmp_path, 'usps')
  with shared.one_line_error('hold published files of mnist, found none'):
    _prepare(tmp_path, 'usps', 'mnist')


def test_the_first_form_counts_and_test_images_may_be_few(tmp_path):
  (tmp_path / 'cifar-10-batches-bin').mkdir()
  images = _write_binary(tmp_path / 'cifar-10-batches-bin')
  (tmp_path / 'cifar-10-batches-bin' / 'test_batch.bin').write_bytes(
    bytes(4 * 3073)
  )
  np.savez(tmp_path / 'train_batch_1.npz')
  (line,) = _prepare(tmp_path)
  assert line.startswith('cifar10: 60 + 4 images')
  with np.load(tmp_path / 'cifar10.npz') as arrays:
    np.testing.assert_array_equal(arrays['x'], images['x_train'])


def _zeros(*shape):
  return np.zeros(shape, np.uint8)


@pytest.mark.parametrize(
  'write, file, content, match',
  [
    (_write_idx, TRAIN_IMAGES, b'', 'as its header says, .*IndexError'),
    (_write_idx, TRAIN_LABELS, _idx(_zeros(60)) + b'0', 'array of size 61'),
    (_write_idx, TRAIN_LABELS, None, 'a file, found none'),
    (_write_idx, TRAIN_IMAGES, _idx(_zeros(9, 28, 28)), r'each, .*\(60'),
    (_write_binary, 'data_batch_1.bin', None, 'a file, found none'),
    (_write_binary, 'data_batch_1.bin', bytes(12 * 3073 - 1), '3073 bytes an'),
    (_write_batches, 'train_batch_4.npz', {}, 'y_train, found nothing'),
    (
      _write_batches,
      'train_batch_4.npz',
      {'x_train': _zeros(12, 32, 32, 3), 'y_train': np.array([{}] * 12)},
      'a damaged one .*allow_pickle',
    ),
    (_write_mats, 'train_32x32.mat', b'none' * 500, 'a .mat file with X'),
    (_write_mats, 'train_32x32.mat', {'X': _zeros(2, 2)}, "KeyError: 'y'"),
    (_write_mats, 'test_32x32.mat', None, 'a file, found none'),
    (_write_femnist, 'femnist_some.npz', {'x': _zeros(2)}, 'and client_id'),
  ],
)
def test_damaged_files_are_named(tmp_path, write, file, content, match):
  name = _SET_OF[write]
  folder = tmp_path / name
  folder.mkdir()
  write(folder, name)
  path = folder / file
  if content is None:
    path.unlink()
  elif isinstance(content, dict):
    if path.suffix == '.mat':
      scipy.io.savemat(path, content)
    else:
      np.savez(path, **content)
  else:
    path.write_bytes(
      gzip.compress(content) if path.suffix == '.gz' else content
    )
  output_dir = tmp_path / 'made'
  with shared.one_line_error(f'{file}`.*{match}'):
    _prepare(tmp_path, output_dir=str(output_dir))
  assert not list(output_dir.iterdir())
