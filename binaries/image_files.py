"""Reads the published files of image sets that `prepare` converts to .npz.

A reader takes a file and its part, 'train' or 'test', and returns images
`[n, height, width, ...]`, their labels `[n]` and, for FEMNIST, their writers.
"""

import collections
import functools
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple, Optional

import numpy as np
import scipy.io

from tff_pfl import errors
from tff_pfl.datasets import files
from tff_pfl.datasets.sources import image_sets
from tff_pfl.system import folders

_Arrays = Iterable[np.ndarray]


def _read_idx(path: str) -> np.ndarray:
  with files.reading(path, 'an idx file as long as its header says'):
    content = files.read_bytes(path)
    # The fourth byte is the number of axes; their lengths follow.
    shape = np.frombuffer(content, '>u4', content[3], 4)
    values = np.frombuffer(content, np.uint8, offset=4 + shape.nbytes)
    return values.reshape(shape)


def _idx(path: str, _: str) -> _Arrays:
  labels = path.replace('images-idx3', 'labels-idx1')
  return _read_idx(path), _read_idx(labels)


def _binary(label_bytes: int, path: str, _: str) -> _Arrays:
  """Reads CIFAR's records: labels (the last one is used), then 3 colors."""
  content = files.read_bytes(path)
  size = label_bytes + 3 * 32 * 32
  if len(content) % size:
    raise files.file_error(
      path, f'a file of {size} bytes an image', f'{len(content)} bytes'
    )
  records = np.frombuffer(content, np.uint8).reshape(-1, size)
  colors = records[:, label_bytes:].reshape(-1, 3, 32, 32)
  return colors.transpose(0, 2, 3, 1), records[:, label_bytes - 1]


_cifar10 = functools.partial(_binary, 1)
_cifar100 = functools.partial(_binary, 2)


def _mat(path: str, _: str) -> _Arrays:
  with files.reading(path, 'a .mat file with X (height, width, 3, n) and y'):
    content = scipy.io.loadmat(path, variable_names=('X', 'y'))
    y = content['y'].ravel()
    return content['X'].transpose(3, 0, 1, 2), np.where(y == 10, 0, y)


def _npz(path: str, part: str) -> _Arrays:
  return files.read_npz(path, (f'x_{part}', f'y_{part}')).values()


def _npz_by_writer(path: str, _: str) -> _Arrays:
  return files.read_npz(path, ('x', 'y', 'client_id')).values()


class _Form(NamedTuple):
  """The files of training and test images, and the function that reads one."""

  train: Sequence[str]
  test: Sequence[str]
  read: Callable[[str, str], _Arrays]


def _idx_form(*parts: str) -> _Form:
  train, test = ([f'{part}-images-idx3-ubyte.gz'] for part in parts)
  return _Form(train, test, _idx)


def _one_npz(name: str) -> list[_Form]:
  files_of_both = ([f'{name}_subset.npz'], [f'{name}.npz'])
  return [_Form(both, both, _npz) for both in files_of_both]


# The forms of each set. The first one with an existing training file is read.
_FORMS: dict[str, list[_Form]] = {
  'mnist': [_idx_form('train', 't10k'), *_one_npz('mnist')],
  'fashion_mnist': [_idx_form('train', 't10k'), *_one_npz('fashion_mnist')],
  'cifar10': [
    _Form(
      [f'data_batch_{i}.bin' for i in range(1, 6)], ['test_batch.bin'], _cifar10
    ),
    _Form([f'train_batch_{i}.npz' for i in range(1, 6)], ['test*.npz'], _npz),
  ],
  'cifar100': [
    _Form(['train.bin'], ['test.bin'], _cifar100),
    _Form(['train.npz'], ['test*.npz'], _npz),
  ],
  'emnist_letters': [_idx_form('emnist-letters-train', 'emnist-letters-test')],
  'emnist_byclass': [_idx_form('emnist-byclass-train', 'emnist-byclass-test')],
  'femnist': [
    _Form(['femnist_*.npz'], [], _npz_by_writer),
    _Form(['femnist.npz'], [], _npz_by_writer),
  ],
  'mnist_m': _one_npz('mnist_m'),
  'svhn': [
    _Form(['train_32x32.mat'], ['test_32x32.mat'], _mat),
    *_one_npz('svhn'),
  ],
  'usps': _one_npz('usps'),
  'synth_digits': [
    _Form(['synth_train_32x32.mat'], ['synth_test_32x32.mat'], _mat),
    *_one_npz('synth_digits'),
  ],
}
# Folders that are not named after the set.
_FOLDERS = {
  'mnist': 'mnist_idx',
  'fashion_mnist': 'fashion_mnist_idx',
  'cifar10': 'cifar-10-batches-bin',
  'cifar100': 'cifar-100-binary',
  'emnist_letters': 'gzip',
  'emnist_byclass': 'gzip',
}


def _first(folder: str, pattern: str) -> str:
  """The first file that matches a pattern, or else the pattern's own path."""
  path = os.path.join(folder, pattern)
  return min(files.matching(folder, pattern), default=path)


def _find(name: str, data_dir: str) -> Optional[_Form]:
  """Returns the form in which a set exists, with the paths of its files."""
  for train, test, read in _FORMS[name]:
    for folder in (_FOLDERS.get(name, name), name, ''):
      # Fashion-MNIST's idx files have the same names as MNIST's, so only the
      # folder tells which set they are.
      if folder or read is not _idx:
        folder = os.path.join(data_dir, folder)
        train_paths = [_first(folder, file) for file in train]
        if any(map(os.path.exists, train_paths)):
          return _Form(train_paths, [_first(folder, f) for f in test], read)
  return None


def _arrays(name: str, form: _Form) -> dict[str, np.ndarray]:
  """Reads the files of a set and joins their arrays."""
  parts = collections.defaultdict(list)
  every = [(path, 'train', '') for path in form.train]
  every += [(path, 'test', '_test') for path in form.test]
  for path, part, suffix in every:
    x, y, *client = form.read(path, part)
    x = x[..., np.newaxis] if x.ndim == 3 else x
    image_sets.IMAGE_SETS[name].check(path, x, y)
    for key, array in zip('xy', image_sets.upright(name, x, y)):
      parts[key + suffix].append(array)
    if client:
      parts['client'] += client
  return {key: np.concatenate(arrays) for key, arrays in parts.items()}


def prepare(
  data_dir: str,
  output_dir: Optional[str] = None,
  names: Sequence[str] = (),
  overwrite: bool = False,
) -> Iterator[str]:
  """Writes the files of image sets and yields a line about each.

  Args:
    data_dir: Folder of the published files.
    output_dir: Folder for the .npz files. None uses `data_dir`.
    names: Keys of `IMAGE_SETS`. If empty, all sets with published files.
    overwrite: True to replace existing files. Files that are read stay.

  Raises:
    ValueError: If a set is missing or damaged.
    RunError: If a file cannot be written.
  """
  data_dir = folders.local_path(data_dir, 'data_dir')
  output_dir = data_dir if output_dir is None else output_dir
  output_dir = folders.output_path(output_dir, 'output_dir')
  for name in names:
    errors.expect_one_of('datasets', name, _FORMS)
  forms = {name: _find(name, data_dir) for name in names or _FORMS}
  missing = [name for name, form in forms.items() if form is None]
  if missing and (names or len(missing) == len(forms)):
    raise ValueError(
      f'Expected `data_dir` to hold published files of {", ".join(missing)},'
      f' found none in {data_dir!r} (--help has their names and folders).'
    )
  os.makedirs(output_dir, exist_ok=True)
  for name, form in forms.items():
    path = os.path.join(output_dir, f'{name}.npz')
    if form and os.path.realpath(path) in map(os.path.realpath, form.train):
      yield (
        f'{name}: {path} stays, as it may be the published file (give another'
        ' --output_dir)'
      )
    elif form and os.path.exists(path) and not overwrite:
      yield f'{name}: {path} is there already (--overwrite makes it anew)'
    elif form:
      arrays = _arrays(name, form)
      with folders.atomic_file(path, 'wb') as file:
        np.savez(file, **arrays)
      counts = [f'{len(arrays[x]):,}' for x in arrays if x.startswith('x')]
      yield f'{name}: {" + ".join(counts)} images, {path}'
