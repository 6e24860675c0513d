"""A lock that lets one process at a time write to a directory."""

import fcntl
import os

from tff_pfl import errors

LOCK_NAME = 'run.lock'


class DirectoryLock:
  """A lock on a directory that the kernel releases however the process ends.

  Entering it creates a missing directory and takes the lock. Leaving it
  releases the lock. Entering raises `RunError` if a running process holds the
  lock or the directory cannot be written to.
  """

  def __init__(self, directory: str):
    self._directory = directory

  def __enter__(self) -> 'DirectoryLock':
    try:
      os.makedirs(self._directory, exist_ok=True)
      path = os.path.join(self._directory, LOCK_NAME)
      # Not truncated when opened, because the file may name the lock's holder.
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
    # The file stays. If it were removed, one process could lock a new file of
    # this name while another process holds the old file.
    self._file.close()
