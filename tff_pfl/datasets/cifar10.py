"""CIFAR-10, 32x32 colour pictures of animals and vehicles.

Source: A. Krizhevsky, V. Nair, G. Hinton; A. Krizhevsky, Learning Multiple
Layers of Features from Tiny Images, technical report, University of Toronto,
2009. https://www.cs.toronto.edu/~kriz/cifar.html
Licence: none is stated; free for research, cite the report.
Sizes: 50,000 training and 10,000 test images of 10 classes (airplane,
automobile, bird, cat, deer, dog, frog, horse, ship, truck), 5,000 and 1,000 of
each.

The files are the published ones of the binary version (`data_batch_1.bin` …
`data_batch_5.bin`, `test_batch.bin`: per image a byte for the label, then 1,024
bytes of each of red, green and blue), or the same batches as .npz files
(`train_batch_1.npz` … `train_batch_5.npz` with `x_train` uint8
`[10000, 32, 32, 3]` and `y_train`, and one `test*.npz` with `x_test` and
`y_test`, which may hold fewer images). Both give the images in the same order;
TensorFlow Datasets, used without a data folder, has another one.

The images stay uint8 in memory (184 MB); a client's become float32 when they
are asked for.
"""

import concurrent.futures
import glob
import os
import zipfile
from typing import Dict, List, Optional, Tuple, Union

import numpy as np
from absl import logging

from tff_pfl.datasets import arrays as arrays_lib
from tff_pfl.datasets import federated_dataset, partitioning

NUM_CLASSES = 10
IMAGE_SHAPE = (32, 32, 3)
IMAGES_PER_BATCH = 10_000
_URL = 'https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz'
_FOLDERS = ('cifar-10-batches-bin', 'cifar10')
_TRAIN_FILES = tuple(f'data_batch_{i}.bin' for i in range(1, 6))
_TEST_FILE = 'test_batch.bin'
_TRAIN_NPZ_FILES = tuple(f'train_batch_{i}.npz' for i in range(1, 6))
_TEST_NPZ_PATTERN = 'test*.npz'

_Batch = Tuple[np.ndarray, np.ndarray]


def read_binary_batch(path: str) -> _Batch:
  """Reads a file of the binary version.

  Args:
    path: The file.

  Returns:
    Images uint8 `[10000, 32, 32, 3]` and labels uint8 `[10000]`.

  Raises:
    ValueError: The file is missing, or not of the expected size and labels;
      the message names it.
  """
  try:
    with open(path, 'rb') as file:
      content = file.read()
  except OSError as error:
    raise arrays_lib.unreadable_error(path, error) from None
  height, width, channels = IMAGE_SHAPE
  record_size = 1 + height * width * channels
  size = IMAGES_PER_BATCH * record_size
  if len(content) != size:
    raise arrays_lib.file_error(
      path, f'{size} bytes, {IMAGES_PER_BATCH} images', len(content)
    )
  records = np.frombuffer(content, np.uint8).reshape(-1, record_size)
  y = records[:, 0]
  arrays_lib.check_file_labels(y, path, NUM_CLASSES)
  planes = records[:, 1:].reshape(-1, channels, height, width)
  return np.ascontiguousarray(planes.transpose(0, 2, 3, 1)), y


def read_npz_batch(path: str, split: str) -> _Batch:
  """Reads a batch from an .npz file.

  Args:
    path: The file.
    split: 'train', for a full batch, or 'test', for one that may hold less.

  Returns:
    Images uint8 `[n, 32, 32, 3]` and integer labels `[n]`.

  Raises:
    ValueError: The file is missing, damaged, or its arrays are not what they
      should be; the message names it.
  """
  keys = f'x_{split}', f'y_{split}'
  x, y = _read_npz(path, keys)
  if x.dtype != np.uint8 or x.shape[1:] != IMAGE_SHAPE:
    raise arrays_lib.file_error(
      path,
      f'an .npz file with {keys[0]} uint8 of shape (n, *{IMAGE_SHAPE})',
      f'{x.dtype} of shape {x.shape}',
    )
  if y.dtype.kind not in 'iu' or y.shape != x.shape[:1]:
    raise arrays_lib.file_error(
      path,
      f'an .npz file with {keys[1]} integers of shape {x.shape[:1]}',
      f'{y.dtype} of shape {y.shape}',
    )
  least = 1 if split == 'test' else IMAGES_PER_BATCH
  if not least <= len(x) <= IMAGES_PER_BATCH:
    sizes = '1 to ' if split == 'test' else ''
    raise arrays_lib.file_error(
      path, f'an .npz file of {sizes}{IMAGES_PER_BATCH} images', len(x)
    )
  arrays_lib.check_file_labels(y, path, NUM_CLASSES)
  return x, y


def _read_npz(path: str, keys: Tuple[str, ...]) -> List[np.ndarray]:
  try:
    # For what is no archive, NumPy would try other formats.
    with zipfile.ZipFile(path), np.load(path) as content:
      arrays = {key: content[key] for key in content.files if key in keys}
      found = ', '.join(content.files)
  except OSError as error:
    raise arrays_lib.unreadable_error(path, error) from None
  # Archive, decompression and NumPy's header each have their own exceptions.
  except Exception as error:
    raise arrays_lib.file_error(
      path, 'a complete .npz file of numbers', f'a damaged one ({error})'
    ) from None
  if len(arrays) < len(keys):
    raise arrays_lib.file_error(
      path, f'an .npz file with {" and ".join(keys)}', found or 'nothing'
    )
  return [arrays[key] for key in keys]


def _test_npz(folder: str) -> str:
  """Returns the one file of test images in a folder of .npz files."""
  found = sorted(
    glob.glob(os.path.join(glob.escape(folder), _TEST_NPZ_PATTERN))
  )
  if len(found) != 1:
    raise ValueError(
      f'Expected `{folder}` to hold one file of test images,'
      f' {_TEST_NPZ_PATTERN}, found'
      f' {", ".join(map(os.path.basename, found)) or "none"}.'
    )
  return found[0]


def _read_npz_folder(folder: str) -> Tuple[List[_Batch], _Batch]:
  test_path = _test_npz(folder)
  paths = [os.path.join(folder, file) for file in _TRAIN_NPZ_FILES]
  # Decompressing takes seconds a file, and releases Python's lock.
  with concurrent.futures.ThreadPoolExecutor() as pool:
    test = pool.submit(read_npz_batch, test_path, 'test')
    train = list(pool.map(read_npz_batch, paths, ['train'] * len(paths)))
  num_test = len(test.result()[0])
  if num_test < IMAGES_PER_BATCH:
    logging.warning(
      'Only %d of the %d CIFAR-10 test images are in %s.',
      num_test,
      IMAGES_PER_BATCH,
      test_path,
    )
  return train, test.result()


def _read_binary_folder(folder: str) -> Tuple[List[_Batch], _Batch]:
  *train, test = [
    read_binary_batch(os.path.join(folder, file))
    for file in (*_TRAIN_FILES, _TEST_FILE)
  ]
  return train, test


def read_arrays(data_dir: str) -> Dict[str, np.ndarray]:
  """Reads and checks the files of a folder, of either form.

  Args:
    data_dir: The files' folder, or its parent if it is called
      `cifar-10-batches-bin` or `cifar10`.

  Returns:
    `x` and `x_test`, uint8 `[n, 32, 32, 3]`, `y` and `y_test`, integers.

  Raises:
    ValueError: A file is missing or damaged, or the folder has files of both
      forms.
  """
  binary_files = (*_TRAIN_FILES, _TEST_FILE)
  folder = arrays_lib.find_folder(
    'cifar10',
    data_dir,
    _FOLDERS,
    (*binary_files, *_TRAIN_NPZ_FILES),
    'data_batch_1.bin to data_batch_5.bin and test_batch.bin, or'
    ' train_batch_1.npz to train_batch_5.npz and test*.npz',
  )
  is_binary, is_npz = (
    any(os.path.exists(os.path.join(folder, file)) for file in files)
    for files in (binary_files, _TRAIN_NPZ_FILES)
  )
  if is_binary and is_npz:
    raise ValueError(
      f'Expected `{folder}` to hold cifar10 once, found .bin and .npz files;'
      ' move one kind to another folder.'
    )
  read = _read_binary_folder if is_binary else _read_npz_folder
  train, (x_test, y_test) = read(folder)
  x, y = (np.concatenate(part) for part in zip(*train))
  return dict(x=x, y=y, x_test=x_test, y_test=y_test)


def load_cifar10_arrays(data_dir: Optional[str] = None) -> arrays_lib.Arrays:
  """Returns CIFAR-10, `x` uint8 `[50000, 32, 32, 3]`.

  Args:
    data_dir: As for `load_cifar10`.

  Raises:
    ValueError: The files are missing or damaged.
    RunError: TensorFlow Datasets cannot get the data.
  """
  if data_dir is None:
    arrays = arrays_lib.from_tensorflow_datasets(
      'cifar10', 'its six .bin files', _URL
    )
  else:
    arrays = read_arrays(data_dir)
  return arrays_lib.Arrays(
    name='cifar10',
    num_classes=NUM_CLASSES,
    transform=arrays_lib.to_unit_interval,
    **arrays,
  )


def load_cifar10(
  num_clients: int,
  partition: Union[str, partitioning.Partitioner] = 'shards:2',
  *,
  data_dir: Optional[str] = None,
  seed: int = 0,
) -> federated_dataset.FederatedDataset:
  """Returns CIFAR-10, dealt to clients.

  A folder of .npz files may lack test images; a warning then says how many
  there are.

  Args:
    num_clients: At least 1.
    partition: A partitioner or its specification.
    data_dir: Folder of the six .bin files or of the .npz files, or its parent
      if it is called `cifar-10-batches-bin` or `cifar10`; None for TensorFlow
      Datasets.
    seed: Of the partition, non-negative.

  Returns:
    Dataset with `x` float32 `[32, 32, 3]` in [0, 1] and `y` int32, 10 classes.

  Raises:
    ValueError: The files are missing or damaged, or the partition is
      impossible.
    RunError: TensorFlow Datasets cannot get the data.
  """
  return load_cifar10_arrays(data_dir).to_clients(
    num_clients, partition, seed=seed
  )
