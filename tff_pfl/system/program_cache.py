"""XLA's compiled programs, kept for the next process.

Each process would otherwise compile its programs anew, which takes seconds.
TensorFlow can keep compiled programs in a folder. However, it never removes any
of them, and a damaged file ends the run. So each process has a folder of its
own, with links to the kept programs whose checksums are right. When the process
ends, its new programs are kept, and if all programs are too large together, the
ones that were not used for the longest time are removed. A process that is
killed keeps no new programs.

Programs are kept for one set of versions, hardware and settings, below
`tff_pfl/programs` in the user's cache folder. The environment variable
`TFF_PFL_PROGRAM_CACHE` names another folder. If it is empty, nothing is kept.
"""

import atexit
import contextlib
import fcntl
import glob
import hashlib
import os
import platform
import re
import shutil
import sys
import tempfile
import time
import zlib
from collections.abc import Iterator
from importlib.metadata import version
from typing import Optional

_VARIABLE = 'TFF_PFL_PROGRAM_CACHE'
_FLAGS = 'TF_XLA_FLAGS'
_FLAG = '--tf_xla_persistent_cache_directory'
_OWN = 'process-'
# A flag that this module has set, perhaps in the parent of this process.
_OWN_FLAG = re.compile(rf' ?{_FLAG}=\S*{_OWN}\w+')
_LOCK_NAME = 'lock'
_MAX_BYTES = 256 * 2**20
# Time between making a folder and locking it, at most.
_SECONDS_TO_LOCK = 60.0

# The folder of programs like this process's, and the process's own folder.
_kept: Optional[str] = None
_own: Optional[str] = None
_lock = None


def user_folder() -> Optional[str]:
  """Returns the folder in the user's cache, or None without a home."""
  home = os.environ.get('XDG_CACHE_HOME') or os.path.expanduser('~/.cache')
  return os.path.join(home, 'tff_pfl') if os.path.isabs(home) else None


def use(num_threads: int) -> None:
  """Makes TensorFlow use and keep compiled programs.

  This works only before TensorFlow's first operation. A user's own
  `TF_XLA_FLAGS` with a folder for programs stays unchanged.

  Args:
    num_threads: Number of threads for each operation, which changes programs.
  """
  global _kept, _own, _lock
  others = _OWN_FLAG.sub('', os.environ.get(_FLAGS, ''))
  root = _root()
  if not root or _FLAG in others:
    return
  kept = os.path.join(root, _key(num_threads, others))
  if kept == _kept and _own in os.environ.get(_FLAGS, ''):
    return
  # A full disk, for example, or a home that cannot be written to.
  with contextlib.suppress(OSError):
    os.makedirs(kept, exist_ok=True)
    _remove_folders_of_ended_processes(kept)
    own = tempfile.mkdtemp(prefix=_OWN, dir=kept)
    _lock = open(os.path.join(own, _LOCK_NAME), 'w')
    fcntl.flock(_lock, fcntl.LOCK_EX)
    _link_programs(kept, own)
    os.environ[_FLAGS] = f'{others} {_FLAG}={own}'.strip()
    _kept, _own = kept, own
    atexit.register(_keep, root, kept, own, os.getpid())


def leave() -> None:
  """Makes this process and its children neither use nor keep programs."""
  os.environ[_VARIABLE] = ''
  os.environ[_FLAGS] = _OWN_FLAG.sub('', os.environ.get(_FLAGS, ''))


def _root():
  if _VARIABLE in os.environ:
    return os.environ[_VARIABLE]
  folder = user_folder()
  return folder and os.path.join(folder, 'programs')


def _key(num_threads, flags):
  """Names what programs depend on besides the computation."""
  hardware = [platform.machine()]
  for path in (
    '/proc/cpuinfo',
    '/proc/driver/nvidia/version',
    *sorted(glob.glob('/proc/driver/nvidia/gpus/*/information')),
  ):
    with contextlib.suppress(OSError), open(path, encoding='utf-8') as file:
      # Lines of the first core. Others, such as its current speed, change.
      hardware += re.findall(
        r'^(?:model name|flags|Features|Model|NVRM).*', file.read(), re.M
      )[:2]
  variables = sorted(
    (name, value)
    for name, value in os.environ.items()
    if name.startswith(('TF_', 'XLA_', 'CUDA_')) and name != _FLAGS
  )
  key = (
    version('tensorflow'),
    sys.platform,
    hardware,
    os.cpu_count(),
    num_threads,
    variables,
    flags,
  )
  return hashlib.sha256(repr(key).encode()).hexdigest()[:16]


def _programs(folder: str) -> Iterator[str]:
  return glob.iglob(os.path.join(glob.escape(folder), '*.pb'))


def _checksum(path):
  # Reading a file to check it is no use of the program.
  def without_time(name, flags):
    return os.open(name, flags | getattr(os, 'O_NOATIME', 0))

  with open(path, 'rb', opener=without_time) as file:
    return f'{zlib.crc32(file.read()):08x}'


def _link_programs(kept, own):
  for path in _programs(kept):
    checksum, _, name = os.path.basename(path).partition('-')
    # Another process may have removed it.
    with contextlib.suppress(FileNotFoundError):
      try:
        if _checksum(path) != checksum:
          raise FileExistsError
        os.link(path, os.path.join(own, name))
      except FileExistsError:
        # It is damaged, or two processes compiled it at the same time.
        os.remove(path)


def _remove_folders_of_ended_processes(kept):
  for folder in glob.iglob(os.path.join(glob.escape(kept), f'{_OWN}*')):
    with contextlib.suppress(OSError):
      if time.time() - os.stat(folder).st_mtime > _SECONDS_TO_LOCK:
        with open(os.path.join(folder, _LOCK_NAME), 'w') as lock:
          # Fails while the process runs.
          fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
          shutil.rmtree(folder)


def _keep(root, kept, own, process_id):
  if os.getpid() != process_id:  # This is a fork.
    return
  with contextlib.suppress(OSError):
    for path in _programs(own):
      if os.stat(path).st_nlink == 1:
        name = f'{_checksum(path)}-{os.path.basename(path)}'
        os.replace(path, os.path.join(kept, name))
    shutil.rmtree(own)
    _remove_least_used(root)


def _remove_least_used(root):
  programs = []
  for path in glob.iglob(os.path.join(glob.escape(root), '*', '*.pb')):
    with contextlib.suppress(FileNotFoundError):
      status = os.stat(path)
      used = max(status.st_atime, status.st_mtime)
      programs.append((used, status.st_size, path))
  num_bytes = 0
  for _, size, path in sorted(programs, reverse=True):
    num_bytes += size
    if num_bytes > _MAX_BYTES:
      with contextlib.suppress(FileNotFoundError):
        os.remove(path)
  for folder in glob.iglob(os.path.join(glob.escape(root), '*')):
    with contextlib.suppress(OSError):  # It is not empty.
      os.rmdir(folder)
