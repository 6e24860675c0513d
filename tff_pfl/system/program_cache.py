"""XLA's compiled programs, kept for the next process.

Each process would otherwise compile its programs anew, which takes seconds.
TensorFlow can keep compiled programs in a folder. However, it never removes any
of them, and a damaged file ends the run. So each process has a folder of its
own, with links to the kept programs whose checksums are right. When the process
ends, its new programs are kept, and if all programs are too large together, the
ones that were not used for the longest time are removed. A process keeps no new
programs if it is killed, or if it has changed XLA's flags in the meantime.

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
from typing import Optional

_VARIABLE = 'TFF_PFL_PROGRAM_CACHE'
_FLAGS = 'TF_XLA_FLAGS'
_FLAG = '--tf_xla_persistent_cache_directory'
_OWN = 'process-'
# A flag that this module has set, perhaps in the parent of this process.
_OWN_FLAG = re.compile(rf' ?{_FLAG}=\S*{_OWN}\w+')
_LOCK_NAME = 'lock'
_MAX_BYTES = 256 * 2**20
# A write to a full disk would end the run.
_MIN_FREE_BYTES = 2**30
# Time between making a folder and locking it, at most.
_SECONDS_TO_LOCK = 60.0
# Variables that change programs or the choice of a GPU.
_VARIABLES = (
  'XLA_FLAGS',
  'TF_ENABLE_ONEDNN_OPTS',
  'TF_DETERMINISTIC_OPS',
  'CUDA_VISIBLE_DEVICES',
  'NVIDIA_TF32_OVERRIDE',
)


class _Folder:
  """A process's own folder."""

  def __init__(self, root: str, key: str):
    """Makes the folder and links the kept programs.

    Args:
      root: Folder of all kept programs.
      key: See `_key`.

    Raises:
      OSError: If that is not possible.
    """
    self._root = root
    self._kept = os.path.join(root, key)
    self.key = key
    # XLA reads the flags only when it first compiles.
    self._variables = _variables()
    self._process_id = os.getpid()
    self.is_kept = True
    os.makedirs(self._kept, exist_ok=True)
    if shutil.disk_usage(self._kept).free < _MIN_FREE_BYTES:
      raise OSError('The disk is full.')
    _remove_folders_of_ended_processes(root)
    self.path = tempfile.mkdtemp(prefix=_OWN, dir=self._kept)
    try:
      # The lock lasts until the process ends.
      self._lock = open(os.path.join(self.path, _LOCK_NAME), 'w')
      fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
      self._link()
    except BaseException:
      shutil.rmtree(self.path, ignore_errors=True)
      raise

  def _link(self):
    for path in _programs(self._kept):
      checksum, _, name = os.path.basename(path).partition('-')
      # Another process may have removed it.
      with contextlib.suppress(FileNotFoundError):
        try:
          if _checksum(path) != checksum:
            raise FileExistsError
          os.link(path, os.path.join(self.path, name))
        except FileExistsError:
          # It is damaged, or two processes compiled it at the same time.
          os.remove(path)

  @property
  def is_own(self) -> bool:
    """True in the process that made the folder, and False in its forks."""
    return self._process_id == os.getpid()

  def abandon(self) -> None:
    """Makes this process use no kept program, and keep none."""
    self.is_kept = False
    for path in _programs(self.path):
      with contextlib.suppress(OSError):
        os.remove(path)

  def end(self) -> None:
    """Keeps the new programs if the key is right, and removes the folder."""
    if not self.is_own:
      return
    is_kept = self.is_kept and self._variables == _variables()
    with contextlib.suppress(OSError):
      for path in _programs(self.path) if is_kept else ():
        if os.stat(path).st_nlink == 1:
          name = f'{_checksum(path)}-{os.path.basename(path)}'
          os.replace(path, os.path.join(self._kept, name))
      shutil.rmtree(self.path)
      _remove_least_used(self._root)


# The folder that TensorFlow uses, in this process or in the parent of a fork.
_folder: Optional[_Folder] = None


def user_folder() -> Optional[str]:
  """Returns the folder in the user's cache, or None without a home."""
  home = os.environ.get('XDG_CACHE_HOME') or os.path.expanduser('~/.cache')
  return os.path.join(home, 'tff_pfl') if os.path.isabs(home) else None


def use(num_threads: int) -> None:
  """Makes TensorFlow use and keep compiled programs.

  The last call before TensorFlow's first operation chooses them. If a later
  call describes other programs, TensorFlow uses and keeps none. A user's own
  `TF_XLA_FLAGS` with a folder for programs stay unchanged.

  Args:
    num_threads: Number of threads for each operation, which changes programs.
  """
  global _folder
  others = _OWN_FLAG.sub('', os.environ.get(_FLAGS, ''))
  key = _key(num_threads, others)
  if _folder is not None and _folder.is_own:
    if key == _folder.key or not _folder.is_kept:
      return
    _folder.abandon()
  # Otherwise a child without a folder would write into its parent's.
  os.environ[_FLAGS] = others
  root = _root()
  if (
    not root
    or _FLAG in others
    # It names a file of flags.
    or (others and not others.startswith('-'))
    # TensorFlow divides the flags at spaces.
    or re.search(r'\s', root)
  ):
    return
  # The home is read-only or on a full disk, for example.
  with contextlib.suppress(OSError):
    _folder = _Folder(root, key)
    os.environ[_FLAGS] = f'{others} {_FLAG}={_folder.path}'.strip()
    atexit.register(_folder.end)


def abandon() -> None:
  """Makes this process use no kept program, and keep none, from now on."""
  if _folder is not None and _folder.is_own:
    _folder.abandon()


def without() -> dict[str, str]:
  """Returns the environment of a process that keeps no programs."""
  flags = _OWN_FLAG.sub('', os.environ.get(_FLAGS, ''))
  return {_VARIABLE: '', _FLAGS: flags}


def leave() -> None:
  """Makes this process and its children keep no programs.

  Call this before TensorFlow's first operation.
  """
  os.environ.update(without())


def _root():
  if _VARIABLE in os.environ:
    folder = os.path.expanduser(os.environ[_VARIABLE])
    return folder and os.path.abspath(folder)
  folder = user_folder()
  return folder and os.path.join(folder, 'programs')


def _variables():
  return [os.environ.get(name) for name in _VARIABLES]


def _key(num_threads, flags):
  """Names what programs depend on besides the computation."""
  import tensorflow as tf

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
  key = (
    tf.version.VERSION,
    tf.version.GIT_VERSION,
    sys.platform,
    hardware,
    os.cpu_count(),
    os.environ.get('TF_NUM_INTRAOP_THREADS') or str(num_threads),
    _variables(),
    flags,
  )
  return hashlib.sha256(repr(key).encode()).hexdigest()[:16]


def _programs(folder: str) -> list[str]:
  return glob.glob(os.path.join(glob.escape(folder), '*.pb'))


def _checksum(path):
  # Reading a file to check it is no use of the program.
  try:
    descriptor = os.open(path, os.O_RDONLY | getattr(os, 'O_NOATIME', 0))
  except PermissionError:  # It belongs to another user.
    descriptor = os.open(path, os.O_RDONLY)
  with open(descriptor, 'rb') as file:
    return f'{zlib.crc32(file.read()):08x}'


def _remove_folders_of_ended_processes(root):
  for folder in glob.iglob(os.path.join(glob.escape(root), '*', f'{_OWN}*')):
    with contextlib.suppress(OSError):
      if time.time() - os.stat(folder).st_mtime > _SECONDS_TO_LOCK:
        with open(os.path.join(folder, _LOCK_NAME), 'w') as lock:
          # Fails while the process runs.
          fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
          shutil.rmtree(folder)


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
