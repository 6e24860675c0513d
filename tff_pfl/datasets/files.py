"""Finds and reads files of datasets, with errors that name the file."""

import contextlib
import glob
import gzip
import os
import zipfile
from collections.abc import Iterator, Sequence
from typing import Optional

import h5py
import numpy as np

from tff_pfl import errors


class FileError(ValueError):
  """Error for a missing, damaged or malformed file, which it names."""


def find_folder(
  data_dir: Optional[str],
  folders: Sequence[str],
  patterns: Sequence[str],
  contents: str,
) -> str:
  """Finds the folder that holds a dataset's files.

  Args:
    data_dir: The folder or its parent.
    folders: Possible names of the folder under `data_dir`. Such a folder takes
      precedence over `data_dir` itself.
    patterns: Patterns of file names, any of which marks the folder.
    contents: Description of the folder's contents, for messages.
  """

  def holding(names: Sequence[str]) -> list[str]:
    paths = [os.path.join(data_dir, name) for name in names]
    return [path for path in paths if any(matching(path, p) for p in patterns)]

  matches = data_dir and (holding(folders) or holding([''])) or []
  errors.expect(
    len(matches) == 1,
    'data_dir',
    f'one folder with {contents}, itself or in'
    f' {" or ".join(sub + os.sep for sub in folders)}',
    ' and '.join(matches) or data_dir,
  )
  return matches[0]


def find_file(
  name: str, data_dir: Optional[str], patterns: Sequence[str]
) -> str:
  """Finds the one file that holds a dataset.

  Args:
    name: Name of the dataset.
    data_dir: The file, its folder, or the parent of a folder called `name`,
      which takes precedence over `data_dir` itself.
    patterns: Patterns of the file name, such as `*.csv`.
  """
  if data_dir and os.path.isfile(data_dir):
    return data_dir
  errors.expect(
    data_dir is None or os.path.exists(data_dir),
    'data_dir',
    'an existing file or folder',
    data_dir,
  )
  folder = find_folder(
    data_dir, (name,), patterns, f'a file {" or ".join(patterns)}'
  )
  paths = sorted({path for p in patterns for path in matching(folder, p)})
  errors.expect(
    len(paths) == 1, 'data_dir', 'one of these files', ' and '.join(paths)
  )
  return paths[0]


def matching(folder: str, pattern: str) -> list[str]:
  """Returns the files of a folder whose names match a pattern."""
  return glob.glob(os.path.join(glob.escape(folder), pattern))


def file_error(path: str, constraint: str, found: object) -> FileError:
  """Returns the error for a file that fails a check; see `errors.message`."""
  # Names in a file may have line breaks.
  found = ' '.join(str(found).split())
  return FileError(
    f'Expected `{path}` to be {constraint}, found {found}; download or copy the'
    ' file again.'
  )


@contextlib.contextmanager
def reading(path: str, form: str) -> Iterator[None]:
  """Turns all errors in reading a file into a `FileError`.

  Args:
    path: The file.
    form: Description of a valid file.
  """
  try:
    yield
  except FileError:
    raise
  except FileNotFoundError:
    raise file_error(path, 'a file', 'none') from None
  except OSError as error:
    reason = error.strerror or str(error)
    raise file_error(path, 'a readable file', reason) from None
  # Archives, compression and parsers each have their own exceptions, some with
  # many lines.
  except Exception as error:
    (reason, *_) = str(error).splitlines() or ['']
    raise file_error(
      path, form, f'another or a damaged one ({type(error).__name__}: {reason})'
    ) from None


def read_bytes(path: str) -> bytes:
  """Reads a file and unpacks it if its name ends in `.gz`."""
  open_file = gzip.open if path.endswith('.gz') else open
  with reading(path, 'a complete file'), open_file(path, 'rb') as file:
    return file.read()


def read_npz(
  path: str, keys: Optional[Sequence[str]] = None
) -> dict[str, np.ndarray]:
  """Reads arrays of an .npz file.

  Args:
    path: The file.
    keys: Names of the arrays to read, in the order of the result. None means
      all.
  """
  with reading(path, 'a complete .npz file of numbers or text'):
    with zipfile.ZipFile(path) as archive:
      names = [name.removesuffix('.npy') for name in archive.namelist()]
      keys = names if keys is None else keys
      if not set(keys) <= set(names):
        raise file_error(
          path,
          f'an .npz file with {" and ".join(keys)}',
          ', '.join(names) or 'nothing',
        )
      arrays = {}
      for key in keys:
        with archive.open(f'{key}.npy') as file:
          arrays[key] = np.lib.format.read_array(file, allow_pickle=False)
      return arrays


def expect_all_within(file: h5py.File, path: str) -> None:
  """Raises `FileError` if a part of an HDF5 file lies in another file.

  Otherwise, an untrusted file could make the library read any of the user's
  files. Soft links within the file, which valid files lack, are also rejected.

  Args:
    file: The open file.
    path: Name of the file for the message.
  """

  def elsewhere(name, link):
    if not isinstance(link, h5py.HardLink):
      return f'link {name!r}'
    item = file[name]
    if isinstance(item, h5py.Dataset) and (item.is_virtual or item.external):
      return f'virtual or external dataset {name!r}'
    return None

  part = file.visititems_links(elsewhere)
  if part:
    raise FileError(
      f'Expected `{path}` to be an HDF5 file that holds all of its content,'
      f' found the {part}, which is not read as it may point to any file.'
    )
