"""Finding and reading data sets' files, with errors that name the file."""

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
  """A file is missing, damaged or of another form; the message names it."""


def find_folder(
  data_dir: Optional[str],
  folders: Sequence[str],
  patterns: Sequence[str],
  contents: str,
) -> str:
  """Finds the folder that holds a data set's files.

  Args:
    data_dir: The files' folder or its parent.
    folders: Names of the files' folder under `data_dir`; one of these goes
      before `data_dir` itself.
    patterns: Patterns of the files' names, any of which marks the folder.
    contents: Description of the folder's contents, for messages.
  """

  def holding(names: Sequence[str]) -> list[str]:
    paths = [os.path.join(data_dir, name) for name in names]
    return [path for path in paths if any(matching(path, p) for p in patterns)]

  found = data_dir and (holding(folders) or holding([''])) or []
  errors.expect(
    len(found) == 1,
    'data_dir',
    f'one folder with {contents}, itself or in'
    f' {" or ".join(sub + os.sep for sub in folders)}',
    ' and '.join(found) or data_dir,
  )
  return found[0]


def find_file(
  name: str, data_dir: Optional[str], patterns: Sequence[str]
) -> str:
  """Finds the one file that holds a data set.

  Args:
    name: Name of the data set.
    data_dir: The file itself, its folder, or the parent of a folder called
      `name`, which goes before `data_dir` itself.
    patterns: Patterns of the file's name, such as `*.csv`.
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
  found = sorted({path for p in patterns for path in matching(folder, p)})
  errors.expect(
    len(found) == 1, 'data_dir', 'one of these files', ' and '.join(found)
  )
  return found[0]


def matching(folder: str, pattern: str) -> list[str]:
  """Returns the files of a folder whose names match a pattern."""
  return glob.glob(os.path.join(glob.escape(folder), pattern))


def file_error(path: str, constraint: str, found: object) -> FileError:
  """Returns the error that checks of a file raise; see `errors.message`."""
  # Names in a file may have line breaks.
  found = ' '.join(str(found).split())
  return FileError(
    f'Expected `{path}` to be {constraint}, found {found}; download or copy the'
    ' file again.'
  )


@contextlib.contextmanager
def reading(path: str, form: str) -> Iterator[None]:
  """Raises a `FileError` for whatever goes wrong while a file is read.

  Args:
    path: The file.
    form: Description of the file as it should be.
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
  # Archives, compression and parsers each have their own exceptions, some of
  # them of many lines.
  except Exception as error:
    (reason, *_) = str(error).splitlines() or ['']
    raise file_error(
      path, form, f'another or a damaged one ({type(error).__name__}: {reason})'
    ) from None


def read_bytes(path: str) -> bytes:
  """Reads a file; unpacks it if its name ends in `.gz`."""
  open_file = gzip.open if path.endswith('.gz') else open
  with reading(path, 'a complete file'), open_file(path, 'rb') as file:
    return file.read()


def read_npz(
  path: str, keys: Optional[Sequence[str]] = None
) -> dict[str, np.ndarray]:
  """Reads arrays of an .npz file.

  Args:
    path: The file.
    keys: Names of the arrays to read, in the order of the result; None for all.
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

  Opening a file of a stranger could else read any file of the user. Links
  within the file, which nobody writes here, are refused with the others.

  Args:
    file: The file, open.
    path: Name of the file, for the message.
  """

  def elsewhere(name, link):
    if not isinstance(link, h5py.HardLink):
      return f'link {name!r}'
    item = file[name]
    if isinstance(item, h5py.Dataset) and (item.is_virtual or item.external):
      return f'virtual or external data set {name!r}'
    return None

  found = file.visititems_links(elsewhere)
  if found:
    raise FileError(
      f'Expected `{path}` to be an HDF5 file that holds all of its content,'
      f' found the {found}, which is not read as it can be of any file.'
    )
