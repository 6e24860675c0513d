"""A lock by which one process at a time writes into a directory."""

import fcntl
import os

from tff_pfl import errors

LOCK_NAME = 'run.lock'


class DirectoryLock:
  """A lock on a directory that the kernel releases however the process ends.

  Entered, it makes the directory, if missing, and takes the lock; left, it
  releases it. Entering raises `RunError` if a running process holds the lock or
  the directory cannot be written to.
  """

  def __init__(self, directory: str):
    self._directory = directory

  def __enter__(self) -> 'DirectoryLock':
    try:
      os.makedirs(self._directory, exist_ok=True)
      path = os.path.join(self._directory, LOCK_NAME)
      # Not truncated on opening: the file may tell who holds the lock.
      self._file = open(path, 'a+', encoding='utf-8')
      fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
      self._file.truncate(0)
      self._file.write(str(os.getpid()))
      self._file.flush()
    except BlockingIOError as error:
      with self._file as file:
        file.seek(0)
        holder = file.read() or 'unknown'
      raise errors.RunError(
        f'The output directory {self._directory} is in use by a running process'
        f' (pid {holder}): wait for it to end, or pass another `output_dir`.'
      ) from error
    except OSError as error:
      raise errors.RunError(
        f'Cannot write to the output directory {self._directory}:'
        f' {errors.os_reason(error)}.'
      ) from error
    return self

  def __exit__(self, *_: object) -> None:
    # The file stays: if it were removed, another process could lock a new file
    # of this name while a third one holds the old.
    self._file.close()
