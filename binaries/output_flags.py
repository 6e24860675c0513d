"""The flag that lets a program replace what it wrote before."""

import os

from absl import flags

from tff_pfl import errors
from tff_pfl.system import folders

_OVERWRITE = flags.DEFINE_bool(
  'overwrite', False, 'Replace the output if it is there already.'
)


def new_path(path: str, name: str) -> str:
  """Checks the path of an output, which must be new or may be replaced.

  Args:
    path: Path of a file or folder; a folder without files is new.
    name: Name of its flag.

  Raises:
    RunError: If it is there, and --overwrite is not given.
  """
  path = folders.output_path(path, name)
  is_there = os.path.exists(path)
  if os.path.isdir(path):
    is_there = any(files for _, _, files in os.walk(path))
  if is_there and not _OVERWRITE.value:
    raise errors.RunError(
      f'{path} is there already: give another {name}, or --overwrite.'
    )
  return path
