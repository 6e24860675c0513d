"""Paths and kinds of result folders, and atomic writes."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from typing import IO, Any, Optional, Union

from tff_pfl import errors

RUN, STUDY = 'a run', 'a study'
# File name to the kind of results in its folder.
_MARKS = {
  'run.sqlite': RUN,
  'study.json': STUDY,
}
_ADDRESS = re.compile(r'[A-Za-z][A-Za-z0-9+.-]*://')


def local_path(path: Union[str, os.PathLike[str]], name: str) -> str:
  """Returns a path of the file system, with `~` expanded.

  Args:
    path: The path.
    name: Name of the argument, for the message.
  """
  errors.expect_type(path, (str, os.PathLike), name, 'a path')
  path = os.fspath(path)
  errors.expect(
    path and not _ADDRESS.match(path),
    name,
    'a path of the file system (an object store can be mounted into it)',
    path,
  )
  return os.path.expanduser(path)


def output_path(path: Union[str, os.PathLike[str]], name: str) -> str:
  """Returns the `local_path` of an output, which must not be the root."""
  path = local_path(path, name)
  errors.expect(
    os.path.abspath(path).strip(os.sep),
    name,
    'a path below the root of the file system',
    path,
  )
  return path


def results_folder(path: Union[str, os.PathLike[str]], kind: str) -> str:
  """Returns the `output_path` of a folder for one kind of results.

  Args:
    path: The folder, which need not exist.
    kind: `RUN` or `STUDY`.

  Raises:
    RunError: If the folder holds results of another kind.
  """
  path = output_path(path, 'output_dir')
  for mark, other in _MARKS.items():
    if other != kind and os.path.exists(os.path.join(path, mark)):
      raise errors.RunError(
        f'{path} holds {other}: choose another output folder for {kind}.'
      )
  return path


def identity(
  path: Union[str, os.PathLike[str]],
) -> Optional[tuple[int, int]]:
  """Returns a path's device and inode, which differ if it was replaced.

  None means that there is no such file or folder.
  """
  try:
    status = os.stat(path)
  except (FileNotFoundError, NotADirectoryError):
    return None
  return status.st_dev, status.st_ino


@contextlib.contextmanager
def atomic_file(
  path: Union[str, os.PathLike[str]], mode: str = 'w'
) -> Iterator[IO[Any]]:
  """Opens a file that replaces `path` once all of it is on the disk.

  An exception in the block, or a crash, leaves `path` unchanged.

  Args:
    path: The file to write.
    mode: "w" for UTF-8 text, "wb" for bytes.

  Raises:
    RunError: If the file cannot be written.
  """
  path = os.fspath(path)
  directory, name = os.path.split(path)
  temporary = os.path.join(directory, f'.{name}.tmp')
  text_options = {} if 'b' in mode else {'encoding': 'utf-8', 'newline': ''}
  try:
    try:
      with open(temporary, mode, **text_options) as file:
        yield file
        file.flush()
        os.fsync(file.fileno())
      os.replace(temporary, path)
    except BaseException:
      with contextlib.suppress(OSError):
        os.remove(temporary)
      raise
    # The new name must also be on the disk.
    descriptor = os.open(directory or '.', os.O_RDONLY)
    try:
      os.fsync(descriptor)
    finally:
      os.close(descriptor)
  except OSError as error:
    raise errors.RunError(
      f'Cannot write {path}: {errors.os_reason(error)}.'
    ) from error
