"""The flag that lets a program replace what it wrote before."""

import os

from absl import flags

from tff_pfl import errors

_OVERWRITE = flags.DEFINE_bool(
  'overwrite', False, 'Replace the output if it is there already.'
)


def expect_new(path: str, name: str) -> None:
  """Raises `RunError` if an output is there and --overwrite is not given.

  Args:
    path: A file or folder; an empty folder is new.
    name: That of the flag.
  """
  is_there = os.path.exists(path)
  if os.path.isdir(path):
    is_there = bool(os.listdir(path))
  if is_there and not _OVERWRITE.value:
    raise errors.RunError(
      f'{path} is there already: give another {name}, or --overwrite.'
    )
