"""Central examples, before they become clients, and how they are obtained."""

import concurrent.futures
import contextlib
import dataclasses
import glob
import gzip
import io
import os
import urllib.error
import urllib.request
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Sequence
from typing import (
  Optional,
  Union,
)

import numpy as np
import tensorflow as tf

from tff_pfl import errors
from tff_pfl.datasets import array_checks, federated_dataset, partitioning
from tff_pfl.datasets import examples as examples_lib

# A file that unpacks to more than this and to more than so many times its own
# size is no data set but a mistake, or made to fill the memory.
_MAX_UNPACKED = 2**30
_MAX_EXPANSION = 20
_READ_SIZE = 2**20
_MEMBER_READ_SIZE = 2**14


@dataclasses.dataclass(frozen=True, eq=False)
class Arrays:
  """All training and test examples of a data set with classes.

  Making one checks the labels; the inputs are not copied. Do not modify them.

  Attributes:
    name: What the data set is called.
    x: Training inputs, `[n, ...]`, in their compact form: uint8 in [0, 255]
      with `to_unit_interval` as the transform, or float32.
    y: Training labels, int32 `[n]`, in `[0, num_classes)`.
    x_test: Test inputs, `[m, ...]`, of the same kind.
    y_test: Test labels, int32 `[m]`.
    num_classes: Number of classes.
    transform: What makes float32 inputs of `[k, ...]` compact ones; None where
      they are what they should be.
    domain: Domain ids of the training examples, int32 `[n]`, in
      `[0, len(domain_names))`; None for a data set without domains.
    domain_test: Likewise of the test examples, int32 `[m]`.
    domain_names: What the domains are called, distinct; None for `domain_0`, …
      up to the largest id where there is `domain`. It may be a fixed vocabulary
      with domains that have no examples.
  """

  name: str
  x: np.ndarray
  y: np.ndarray
  x_test: np.ndarray
  y_test: np.ndarray
  num_classes: int
  transform: Optional[examples_lib.Transform] = None
  domain: Optional[np.ndarray] = None
  domain_test: Optional[np.ndarray] = None
  domain_names: Optional[tuple[str, ...]] = None

  def __post_init__(self):
    for x_name, y_name in (('x', 'y'), ('x_test', 'y_test')):
      y = array_checks.check_targets(
        getattr(self, y_name), y_name, self.num_classes
      )
      x = getattr(self, x_name)
      array_checks.check_equal_lengths(x, y, x_name, y_name)
      object.__setattr__(self, y_name, y)
    names = ('domain', 'domain_test', 'domain_names')
    checked = array_checks.check_domains(
      *(getattr(self, name) for name in names), len(self.y), len(self.y_test)
    )
    for name, value in zip(names, checked):
      object.__setattr__(self, name, value)

  def of_classes(self, classes: Iterable[int]) -> 'Arrays':
    """Returns only the examples of some classes, in their order.

    Labels and `num_classes` stay as they are, and so do domains, so that a
    model of all classes fits these examples too.

    Args:
      classes: At least one, distinct, each in `[0, num_classes)`.

    Raises:
      ValueError: There is no class, one occurs twice or is out of range.
    """
    classes = list(classes)
    errors.expect(
      classes
      and len(set(classes)) == len(classes)
      and set(classes) <= set(range(self.num_classes)),
      'classes',
      f'distinct integers in [0, {self.num_classes}), at least one',
      classes,
    )
    chosen, test_chosen = (np.isin(y, classes) for y in (self.y, self.y_test))
    return dataclasses.replace(
      self,
      x=self.x[chosen],
      y=self.y[chosen],
      x_test=self.x_test[test_chosen],
      y_test=self.y_test[test_chosen],
      domain=_of(self.domain, chosen),
      domain_test=_of(self.domain_test, test_chosen),
    )

  def as_floats(self) -> 'Arrays':
    """Returns the same with all inputs transformed, as float32.

    That takes four times the memory of uint8; clients made by `to_clients` do
    not need it.
    """
    if self.transform is None:
      return self
    return dataclasses.replace(
      self,
      x=self.transform(self.x),
      x_test=self.transform(self.x_test),
      transform=None,
    )

  def to_clients(
    self,
    num_clients: int,
    partition: Union[str, partitioning.Partitioner] = 'shards:2',
    *,
    seed: int = 0,
  ) -> federated_dataset.FederatedDataset:
    """Deals the examples to clients.

    Args:
      num_clients: At least 1.
      partition: A partitioner or its specification.
      seed: Of the partition, non-negative.

    Returns:
      A dataset whose inputs are transformed when a client is asked for.

    Raises:
      ValueError: An argument is out of range, or the partition is impossible.
    """
    return federated_dataset.FederatedDataset.from_arrays(
      self.x,
      self.y,
      x_test=self.x_test,
      y_test=self.y_test,
      num_clients=num_clients,
      partition=partition,
      num_classes=self.num_classes,
      transform=self.transform,
      name=self.name,
      seed=seed,
      domain=self.domain,
      domain_test=self.domain_test,
      domain_names=self.domain_names,
    )


def _of(
  domain: Optional[np.ndarray], chosen: np.ndarray
) -> Optional[np.ndarray]:
  return None if domain is None else domain[chosen]


def to_unit_interval(x: np.ndarray) -> np.ndarray:
  """Returns float32 in [0, 1] for bytes in [0, 255]."""
  return np.divide(x, 255, dtype=np.float32)


def resize_images(x: np.ndarray, size: int) -> np.ndarray:
  """Returns images resampled bilinearly, as bytes.

  Args:
    x: Bytes `[..., height, width, channels]`, one image or several.
    size: Height and width of the result; with antialiasing where images become
      smaller.
  """
  floats = tf.image.resize(x, (size, size), antialias=True)
  return np.clip(np.round(floats), 0, 255).astype(np.uint8)


def find_folder(
  name: str,
  data_dir: str,
  folders: Sequence[str],
  files: Sequence[str],
  contents: str,
) -> str:
  """Returns the folder that holds a data set's files.

  A folder under `data_dir` that is named after the data set goes before
  `data_dir` itself.

  Args:
    name: The data set's.
    data_dir: The files' folder or its parent.
    folders: The names that the files' folder may have under `data_dir`.
    files: The data set's files, any of which marks its folder.
    contents: What the folder has to hold, in words.

  Raises:
    ValueError: There is no such folder, none has the files, or more than one
      of `folders` has.
  """
  errors.expect(
    os.path.isdir(data_dir), 'data_dir', 'an existing folder', data_dir
  )

  def held(folder: str) -> bool:
    return any(os.path.exists(os.path.join(folder, file)) for file in files)

  named = [
    folder
    for folder in (os.path.join(data_dir, sub) for sub in folders)
    if held(folder)
  ]
  if len(named) > 1:
    raise ValueError(
      f'Expected `data_dir` to hold {name} once, found it in {named[0]!r} and'
      f' {named[1]!r}; pass one of them as `data_dir`.'
    )
  if named:
    return named[0]
  if not held(data_dir):
    raise ValueError(
      f'Expected `data_dir` to hold {contents}, itself or in'
      f' {" or ".join(sub + os.sep for sub in folders)}, found none of them in'
      f' {data_dir!r}.'
    )
  return data_dir


def find_file(name: str, data_dir: str, patterns: Sequence[str]) -> str:
  """Returns the one file that holds a data set.

  A folder under `data_dir` that is called like the data set goes before
  `data_dir` itself.

  Args:
    name: The data set's.
    data_dir: The file itself, its folder, or the parent of a folder called
      `name`.
    patterns: What the file's name looks like, such as `*.csv`.

  Raises:
    ValueError: There is no such file, or more than one.
  """
  if os.path.isfile(data_dir):
    return data_dir
  errors.expect(
    os.path.isdir(data_dir), 'data_dir', 'an existing file or folder', data_dir
  )
  for folder in (os.path.join(data_dir, name), data_dir):
    found = sorted(
      {
        path
        for pattern in patterns
        for path in glob.glob(os.path.join(glob.escape(folder), pattern))
      }
    )
    if len(found) > 1:
      raise ValueError(
        f'Expected `data_dir` to hold {name} once, found'
        f' {" and ".join(map(repr, found))}; pass one of them as `data_dir`.'
      )
    if found:
      return found[0]
  raise ValueError(
    f'Expected `data_dir` to be the file of {name} or to hold'
    f' {" or ".join(patterns)}, itself or in {name}{os.sep}, found none in'
    f' {data_dir!r}.'
  )


def file_error(path: str, constraint: str, found: object) -> ValueError:
  """Returns the error that every check of a file raises.

  Args:
    path: The file.
    constraint: What it must be, read after "to be".
    found: What it is, in words or as a number.
  """
  return ValueError(
    f'Expected `{path}` to be {constraint}, found {found}; download or copy the'
    ' file again.'
  )


def unreadable_error(path: str, error: OSError) -> ValueError:
  """Returns the error for a file that the system cannot open or read.

  Args:
    path: The file.
    error: What the system said.
  """
  if isinstance(error, FileNotFoundError):
    return file_error(path, 'a file', 'none')
  return file_error(path, 'a readable file', error.strerror or str(error))


class _UnpacksToTooMuchError(ValueError):
  """A compressed file may be made to fill the memory."""


def _check_unpacked(path: str, num_bytes: int) -> None:
  """Raises `_UnpacksToTooMuchError` if a compressed file does so."""
  limit = max(_MAX_UNPACKED, _MAX_EXPANSION * os.path.getsize(path))
  if num_bytes > limit:
    raise _UnpacksToTooMuchError(
      f'Expected `{path}` to unpack to at most {limit:,} bytes, found more; if'
      ' that is right, store it with less compression.'
    )


def read_bytes(path: str) -> bytes:
  """Returns what a file holds, unpacked if its name ends in `.gz`.

  Args:
    path: The file.

  Raises:
    ValueError: The file is missing or damaged, or unpacks to more than 1 GiB
      and 20 times its size; the message names it.
  """
  try:
    if not path.endswith('.gz'):
      with open(path, 'rb') as file:
        return file.read()
    content = io.BytesIO()
    with gzip.open(path, 'rb') as file:
      while part := file.read(_READ_SIZE):
        content.write(part)
        _check_unpacked(path, content.tell())
    return content.getvalue()
  except (EOFError, gzip.BadGzipFile, zlib.error) as error:
    raise file_error(
      path, 'a complete gzip file', f'a damaged one ({error})'
    ) from None
  except OSError as error:
    raise unreadable_error(path, error) from None


def read_all_npz(path: str) -> dict[str, np.ndarray]:
  """Returns all arrays of an .npz file by name; see `read_npz`."""
  members = _decompress(path)
  return dict(zip(members, _parse(path, list(members), members)))


def read_npz(path: str, keys: Sequence[str]) -> list[np.ndarray]:
  """Returns arrays of an .npz file.

  Args:
    path: The file.
    keys: The arrays' names; others in the file are not read.

  Raises:
    ValueError: The file is missing or damaged or lacks one, or unpacks to more
      than 1 GiB and 20 times its size; the message names it.
  """
  (arrays,) = read_npz_files([path], [keys])
  return arrays


def read_npz_files(
  paths: Sequence[str], keys: Sequence[Sequence[str]]
) -> list[list[np.ndarray]]:
  """Returns arrays of some .npz files, read side by side.

  Args:
    paths: The files.
    keys: Of each, as for `read_npz`.

  Raises:
    ValueError: As `read_npz`, of the first file of which that is true.
  """
  # Decompressing takes seconds a file, and releases Python's lock. Headers are
  # read one after the other: NumPy parses them as Python, at which threads of
  # Python 3.11 get into each other's way (python/cpython#106905).
  with concurrent.futures.ThreadPoolExecutor() as pool:
    return [
      _parse(path, wanted, members)
      for path, wanted, members in zip(
        paths, keys, pool.map(_decompress, paths, keys)
      )
    ]


def _decompress(
  path: str, keys: Optional[Sequence[str]] = None
) -> dict[str, bytes]:
  """Returns the .npy files in an .npz file by name, those not wanted empty."""
  with _naming_npz(path), zipfile.ZipFile(path) as archive:
    members = {
      info.filename.removesuffix('.npy'): info for info in archive.infolist()
    }
    wanted = members.keys() if keys is None else members.keys() & keys
    _check_unpacked(path, sum(members[key].file_size for key in wanted))
    return {
      key: _read_member(archive, info) if key in wanted else b''
      for key, info in members.items()
    }


def _read_member(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> bytes:
  """Returns no more than the size that a member of an archive says it has."""
  # At once, zipfile would unpack all that there is before it looks.
  with archive.open(info) as member:
    return b''.join(iter(lambda: member.read(_MEMBER_READ_SIZE), b''))


def _parse(
  path: str, keys: Sequence[str], members: dict[str, bytes]
) -> list[np.ndarray]:
  """Returns the wanted arrays of what `_decompress` returned."""
  if not set(keys) <= set(members):
    raise file_error(
      path,
      f'an .npz file with {" and ".join(keys)}',
      ', '.join(members) or 'nothing',
    )
  with _naming_npz(path):
    return [
      np.lib.format.read_array(io.BytesIO(members[key]), allow_pickle=False)
      for key in keys
    ]


@contextlib.contextmanager
def _naming_npz(path: str) -> Iterator[None]:
  """Makes what is wrong with an .npz file an error that names it."""
  try:
    yield
  except _UnpacksToTooMuchError:
    raise
  except OSError as error:
    raise unreadable_error(path, error) from None
  # Archive, decompression and NumPy's header each have their own exceptions.
  except Exception as error:
    raise file_error(
      path,
      'a complete .npz file of numbers or text',
      f'a damaged one ({error})',
    ) from None


def check_npz_labels(
  y: np.ndarray, path: str, key: str, shape: tuple[int, ...]
) -> None:
  """Raises `ValueError` unless an array has one integer per example.

  Args:
    y: The array.
    path: The .npz file.
    key: What the array is called there.
    shape: What its shape must be.
  """
  if y.dtype.kind not in 'iu' or y.shape != shape:
    raise file_error(
      path,
      f'an .npz file with {key} integers of shape {shape}',
      f'{y.dtype} of shape {y.shape}',
    )


def check_file_labels(y: np.ndarray, path: str, num_classes: int) -> None:
  """Raises `ValueError`, naming the file, unless its labels are in range.

  Args:
    y: Labels, integers `[n]`.
    path: Where they come from.
    num_classes: Labels must be below.
  """
  bad = np.flatnonzero((y < 0) | (y >= num_classes))
  if len(bad):
    raise ValueError(
      f'Expected `{path}` to hold labels in [0, {num_classes}), found'
      f' {y[bad[0]]} at index {bad[0]}.'
    )


def _expect_reachable(url: str) -> None:
  """Raises `OSError` unless a server answers, through a proxy if one is set.

  TFDS would try for minutes.
  """
  request = urllib.request.Request(url, method='HEAD')
  try:
    urllib.request.urlopen(request, timeout=10).close()
  except urllib.error.HTTPError:
    pass  # An answer, if only that the address is no page.


def first_line(error: Exception) -> str:
  """What a downloader raised: its type and the first line of its message."""
  lines = str(error).strip().splitlines() or ['']
  return f'{type(error).__name__}: {lines[0][:200]}'.rstrip(': ')


def from_tensorflow_datasets(
  name: str, files: str, url: Optional[str] = None
) -> dict[str, np.ndarray]:
  """Gets a data set through TensorFlow Datasets, downloading it if needed.

  Args:
    name: The data set's, as TensorFlow Datasets calls it.
    files: What the folder for `--data_dir` has to hold, for the message.
    url: Where it is downloaded from; None where its builder says so.

  Returns:
    The arrays `x`, `y`, `x_test` and `y_test`.

  Raises:
    RunError: It cannot be had.
  """
  import tensorflow_datasets as tfds  # Slow to import; rarely needed.

  try:
    builder = tfds.builder(name)
    if not builder.is_prepared():
      _expect_reachable(builder.URL if url is None else url)
      builder.download_and_prepare()
    splits = builder.as_dataset(split=['train', 'test'], as_supervised=True)
    (x, y), (x_test, y_test) = (
      [np.concatenate(part) for part in zip(*tfds.as_numpy(split.batch(1000)))]
      for split in splits
    )
  # Whatever TFDS and its downloader raise, the user's remedy is the same.
  except Exception as error:
    raise errors.RunError(
      f'{name} could not be obtained through TensorFlow Datasets'
      f' ({first_line(error)}); pass --data_dir with the folder of {files}.'
    ) from error
  return dict(x=x, y=y, x_test=x_test, y_test=y_test)
