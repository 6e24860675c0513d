"""Published files of image sets, and the .npz files made of them.

`prepare` says which. An image set is one of `image_sets`.
"""

import concurrent.futures
import functools
import io
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple, Optional

import numpy as np
import scipy.io
from absl import logging

from tff_pfl import errors
from tff_pfl.datasets import files
from tff_pfl.datasets.sources import image_sets
from tff_pfl.system import folders

_IDX_BYTES = 0x0800
# Training images, and test images of which fewer may be there.
_CIFAR_SIZES = 50_000, 10_000


class _Part(NamedTuple):
  """Images `[n, height, width, channels]` and labels of a file.

  Of several the last has the test images.
  """

  path: str
  x: np.ndarray
  y: np.ndarray
  client: Optional[np.ndarray] = None


_Reader = Callable[[str], list[_Part]]


def _is_prepared(path: str) -> bool:
  """Returns True for a file that this program wrote."""
  try:
    with np.load(path) as arrays:
      return 'x' in arrays and 'client_id' not in arrays
  # No file, or none of arrays.
  except Exception:
    return False


def _published(folder: str, pattern: str) -> list[str]:
  """The files of a pattern that this program did not write."""
  found = files.matching(folder, pattern)
  return sorted(path for path in found if not _is_prepared(path))


def _with_channels(x: np.ndarray) -> np.ndarray:
  return x[..., np.newaxis] if x.ndim == 3 else x


def _read_idx(path: str, *shape: int) -> np.ndarray:
  """Reads an idx file of bytes, `[n, *shape]`, n at least 1."""
  content = files.read_bytes(path)
  start = 8 + 4 * len(shape)
  n, rest = divmod(len(content) - start, math.prod(shape))
  header = np.array([_IDX_BYTES + 1 + len(shape), max(n, 0), *shape], '>u4')
  if n < 1 or rest or content[:start] != header.tobytes():
    raise files.file_error(
      path,
      f'an idx file of bytes of shape ({", ".join(map(str, ("n", *shape)))}), n'
      ' at least 1, and as long as its header says',
      f'{len(content)} bytes with the header {content[:start].hex()}',
    )
  return np.frombuffer(content, np.uint8, offset=start).reshape(n, *shape)


def _idx_files(*prefixes: str) -> dict[str, str]:
  return {
    f'{prefix}-images-idx3-ubyte.gz': f'{prefix}-labels-idx1-ubyte.gz'
    for prefix in prefixes
  }


_IDX_FILES = _idx_files('train', 't10k')


def _read_idx_files(
  folder: str, names: Mapping[str, str] = _IDX_FILES
) -> list[_Part]:
  parts = []
  for images, labels in names.items():
    path = os.path.join(folder, labels)
    x = _read_idx(os.path.join(folder, images), 28, 28)
    parts.append(_Part(path, _with_channels(x), _read_idx(path)))
  return parts


def _read_emnist(name: str, folder: str) -> list[_Part]:
  upright = image_sets.IMAGE_SETS[name].from_published
  return [
    _Part(part.path, *upright(part.x, part.y))
    for part in _read_idx_files(folder, _emnist_files(name))
  ]


def _emnist_files(name: str) -> dict[str, str]:
  prefix = name.replace('_', '-')
  return _idx_files(f'{prefix}-train', f'{prefix}-test')


def _check_cifar(parts: Sequence[_Part]) -> None:
  num_train, num_test = _CIFAR_SIZES
  *train, test = parts
  for part in parts:
    size, found = num_train // len(train), len(part.x)
    if part is test:
      size = num_test
    if found > size or (found < size and part is not test):
      raise files.file_error(part.path, f'a file of {size} images', found)
  if len(test.x) < num_test:
    logging.warning(
      'Only %d of the %d test images are in %s.',
      len(test.x),
      num_test,
      test.path,
    )


def _read_binary(
  names: Sequence[str], label_bytes: int, folder: str
) -> list[_Part]:
  """Reads CIFAR's binary version: of each image labels, then its colors.

  Args:
    names: The files, that of test images last.
    label_bytes: Number of an image's labels, of which the last is its class.
  """
  record_size = label_bytes + 3 * 32 * 32
  parts = []
  for name in names:
    path = os.path.join(folder, name)
    content = files.read_bytes(path)
    if len(content) % record_size:
      raise files.file_error(
        path, f'a file of {record_size} bytes an image', f'{len(content)} bytes'
      )
    records = np.frombuffer(content, np.uint8).reshape(-1, record_size)
    planes = records[:, label_bytes:].reshape(-1, 3, 32, 32)
    parts.append(
      _Part(path, planes.transpose(0, 2, 3, 1), records[:, label_bytes - 1])
    )
  return parts


def _read_splits(path: str, *splits: str) -> list[_Part]:
  """Reads images and labels of the splits that a file has, train or test."""
  keys = [f'{kind}_{split}' for split in splits for kind in 'xy']
  arrays = files.read_npz(path, keys)
  return [
    _Part(path, _with_channels(arrays[f'x_{split}']), arrays[f'y_{split}'])
    for split in splits
  ]


def _read_batches(names: Sequence[str], folder: str) -> list[_Part]:
  """Reads CIFAR's training images in some .npz files, test images in one."""
  tests = files.matching(folder, 'test*.npz')
  if len(tests) != 1:
    raise ValueError(
      f'Expected `{folder}` to hold one file of test images, test*.npz, found'
      f' {", ".join(sorted(map(os.path.basename, tests))) or "none"}.'
    )
  paths = [os.path.join(folder, name) for name in names] + tests
  splits = ['train'] * len(names) + ['test']
  # Decompressing releases Python's lock.
  with concurrent.futures.ThreadPoolExecutor() as pool:
    return [part for (part,) in pool.map(_read_splits, paths, splits)]


def _read_femnist(folder: str) -> list[_Part]:
  paths = _published(folder, '*femnist*.npz')
  if len(paths) > 1:
    raise ValueError(
      f'Expected `{folder}` to hold femnist once, found'
      f' {" and ".join(map(repr, paths))}; move one to another folder.'
    )
  x, y, writers = files.read_npz(paths[0], ('x', 'y', 'client_id')).values()
  if writers.dtype.kind not in 'iuU' or writers.shape != y.shape:
    raise files.file_error(
      paths[0],
      f'an .npz file with client_id integers or strings of shape {y.shape}',
      f'{writers.dtype} of shape {writers.shape}',
    )
  return [_Part(paths[0], _with_channels(x), y, writers)]


def _read_mat(path: str) -> _Part:
  """Reads `X` `[height, width, 3, n]` and `y` `[n, 1]`, where 10 stands for 0.

  SVHN and SynthDigits are published so.
  """
  file = io.BytesIO(files.read_bytes(path))
  try:
    content = scipy.io.loadmat(file, variable_names=('X', 'y'))
  # SciPy's reader lets through whatever a damaged file makes it do.
  except Exception as error:
    raise files.file_error(
      path, "a complete .mat file of MATLAB's version 5", f'{error}'
    ) from None
  if not {'X', 'y'} <= set(content) or content['X'].ndim != 4:
    raise files.file_error(
      path, 'a .mat file with X of shape (height, width, 3, n) and y', 'others'
    )
  y = np.where(content['y'] == 10, 0, content['y']).ravel()
  return _Part(path, content['X'].transpose(3, 0, 1, 2), y)


def _read_mats(names: Sequence[str], folder: str) -> list[_Part]:
  return [_read_mat(os.path.join(folder, name)) for name in names]


def _read_both(name: str, folder: str) -> list[_Part]:
  return _read_splits(os.path.join(folder, name), 'train', 'test')


def _forms_in_one(name: str) -> dict[tuple[str, ...], _Reader]:
  return {
    (file,): functools.partial(_read_both, file)
    for file in (f'{name}.npz', f'{name}_subset.npz')
  }


def _cifar_forms(binary_files, label_bytes, npz_files):
  return {
    binary_files: functools.partial(_read_binary, binary_files, label_bytes),
    npz_files: functools.partial(_read_batches, npz_files),
  }


def _mat_forms(name, prefix=''):
  mats = tuple(f'{prefix}{split}_32x32.mat' for split in ('train', 'test'))
  return {mats: functools.partial(_read_mats, mats), **_forms_in_one(name)}


# By set: folders that the published files may lie in, and by form its files,
# any of which marks it, and what reads a folder of them.
_PUBLISHED = {
  **{
    name: (
      (f'{name}_idx', name),
      {
        tuple(sum(_IDX_FILES.items(), ())): _read_idx_files,
        **_forms_in_one(name),
      },
    )
    for name in ('mnist', 'fashion_mnist')
  },
  'cifar10': (
    ('cifar-10-batches-bin', 'cifar10'),
    _cifar_forms(
      (*(f'data_batch_{i}.bin' for i in range(1, 6)), 'test_batch.bin'),
      1,
      tuple(f'train_batch_{i}.npz' for i in range(1, 6)),
    ),
  ),
  'cifar100': (
    ('cifar-100-binary', 'cifar100'),
    # A coarse label goes before the class.
    _cifar_forms(('train.bin', 'test.bin'), 2, ('train.npz',)),
  ),
  **{
    name: (
      ('gzip', name),
      {
        tuple(sum(_emnist_files(name).items(), ())): functools.partial(
          _read_emnist, name
        )
      },
    )
    for name in ('emnist_letters', 'emnist_byclass')
  },
  'femnist': (('femnist',), {('*femnist*.npz',): _read_femnist}),
  'mnist_m': (('mnist_m',), _forms_in_one('mnist_m')),
  'svhn': (('svhn',), _mat_forms('svhn')),
  'usps': (('usps',), _forms_in_one('usps')),
  'synth_digits': (('synth_digits',), _mat_forms('synth_digits', 'synth_')),
}


def _find(name: str, data_dir: str) -> list[tuple[str, _Reader]]:
  """Returns the folders of a set and what reads each.

  They are named after it; without such, `data_dir` itself is one.
  """
  folders, forms = _PUBLISHED[name]
  named = [os.path.join(data_dir, folder) for folder in folders]
  in_named, in_itself = (
    [
      (folder, read)
      for folder in places
      for patterns, read in forms.items()
      if any(_published(folder, pattern) for pattern in patterns)
    ]
    for places in (named, [data_dir])
  )
  return in_named or in_itself


def _owner(folder: str) -> Optional[str]:
  """The set that a folder is named after."""
  own_name = os.path.basename(os.path.realpath(folder))
  named = [name for name in _PUBLISHED if own_name in _PUBLISHED[name][0]]
  return named[0] if named else None


def _sources(
  data_dir: str, names: Sequence[str]
) -> dict[str, tuple[str, _Reader]]:
  """The folder of each set, and what reads it; without names, of those there.

  Raises:
    ValueError: A set is not there, or twice, or may be another one.
  """
  errors.expect(
    os.path.isdir(data_dir), 'data_dir', 'an existing folder', data_dir
  )
  sources: dict[str, tuple[str, _Reader]] = {}
  for name in dict.fromkeys(names) or _PUBLISHED:
    errors.expect_one_of('datasets', name, _PUBLISHED)
    found = _find(name, data_dir)
    if len(found) > 1:
      raise ValueError(
        f'Expected `data_dir` to hold {name} once, found two forms, in'
        f' {found[0][0]!r} and {found[1][0]!r}; move one to another folder.'
      )
    for folder, read in found:
      # MNIST's idx files are called as Fashion-MNIST's.
      owner = _owner(folder) if read is _read_idx_files else name
      if owner in (None, name):
        if (folder, read) in sources.values():
          raise ValueError(
            'Expected `datasets` to be mnist or fashion_mnist, as their files'
            f' have the same names and the folder {folder!r} has neither name.'
          )
        sources[name] = folder, read
      elif names:
        raise ValueError(
          f'Expected `data_dir` to hold {name}, found a folder of {owner} by'
          f' its name, {folder!r}.'
        )
    if names and not found:
      folders, forms = _PUBLISHED[name]
      raise ValueError(
        f'Expected `data_dir` to hold {name}, itself or in'
        f' {" or ".join(folder + os.sep for folder in folders)}, found neither'
        f' {" nor ".join(map(", ".join, forms))} in {data_dir!r}.'
      )
  return sources


def _arrays(name: str, parts: Sequence[_Part]) -> dict[str, np.ndarray]:
  """Returns the arrays that are written of a set, checked."""
  for part in parts:
    image_sets.IMAGE_SETS[name].check(part.path, part.x, part.y)
  if name.startswith('cifar'):
    _check_cifar(parts)
  num_train = max(1, len(parts) - 1)
  arrays = {}
  for suffix, chosen in (('', parts[:num_train]), ('_test', parts[num_train:])):
    if chosen:
      arrays[f'x{suffix}'] = np.concatenate([part.x for part in chosen])
      arrays[f'y{suffix}'] = np.concatenate([part.y for part in chosen])
  if parts[0].client is not None:
    arrays['client'] = parts[0].client
  return arrays


def prepare(
  data_dir: str,
  output_dir: Optional[str] = None,
  names: Sequence[str] = (),
  overwrite: bool = False,
) -> Iterator[str]:
  """Writes the files of image sets, and yields a line on each.

  Args:
    data_dir: Folder of the published files.
    output_dir: Folder for the .npz files; None for `data_dir`.
    names: Keys of `IMAGE_SETS`; empty for all whose published files are there.
    overwrite: True to make existing files anew.

  Raises:
    ValueError: A set is not there, or twice, or damaged.
    RunError: A file is there already that this did not write, or none can be
      written.
  """
  output_dir = data_dir if output_dir is None else output_dir
  output_dir = folders.output_path(output_dir, 'output_dir')
  sources = _sources(data_dir, names)
  errors.expect(
    sources,
    'data_dir',
    'a folder with published files of an image set (--help lists them)',
    data_dir,
  )
  paths = {name: os.path.join(output_dir, f'{name}.npz') for name in sources}
  there = [name for name in paths if os.path.exists(paths[name])]
  for name in there:
    if not overwrite and not _is_prepared(paths[name]):
      raise errors.RunError(
        f'{paths[name]} is there already, in another form: give another'
        ' --output_dir, or --overwrite.'
      )
  os.makedirs(output_dir, exist_ok=True)
  for name, (folder, read) in sources.items():
    if name in there and not overwrite:
      yield f'{name}: {paths[name]} is there already'
      continue
    arrays = _arrays(name, read(folder))
    with folders.atomic_file(paths[name], 'wb') as file:
      np.savez(file, **arrays)
    counts = [f'{len(arrays[x]):,}' for x in ('x', 'x_test') if x in arrays]
    yield f'{name}: {" + ".join(counts)} images, {paths[name]}'
