"""Folders of results: where they are, and what they hold."""

from __future__ import annotations

import glob
import os
from typing import Optional, Union

from tff_pfl import errors

RUN, COMPARISON = 'a run', 'a comparison'
EXPERIMENT, EXPERIMENTS = 'an experiment of a paper', "papers' experiments"
# What a folder holds, by the first of these that is in it. An experiment has
# runs as a comparison has.
_MARKS = {
  'run.sqlite': RUN,
  'numbers.json': EXPERIMENT,
  'claims.html': EXPERIMENTS,
  'comparison.json': COMPARISON,
}
_RUNS = 'trials/*/trial.json'
_REMOTE = ('abfs', 'abfss', 'az', 'gcs', 'gs', 'hdfs', 's3', 's3a', 'wasbs')


def local_path(path: Union[str, os.PathLike[str]], name: str) -> str:
  """A path of the file system, with `~` for the home folder.

  Args:
    name: That of the argument.

  Raises:
    ValueError: If it is an address of a store of objects.
  """
  path = os.fspath(path)
  errors.expect(
    path.partition('://')[0] not in _REMOTE,
    name,
    'a path of the file system, into which such a store can be mounted',
    path,
  )
  return os.path.expanduser(path)


def results_folder(
  path: Union[str, os.PathLike[str]], kind: str, name: str = 'output_dir'
) -> str:
  """The `local_path` of a folder that may be there, with results of a kind.

  Raises:
    RunError: If it holds other results.
  """
  path = local_path(path, name)
  found = kind_of(path)
  if found not in (None, kind):
    raise errors.RunError(
      f'{path} holds {found}: choose another output folder for {kind}.'
    )
  return path


def kind_of(path: str) -> Optional[str]:
  """The kind of results in a folder; None if there are none of ours."""
  for mark, kind in _MARKS.items():
    if os.path.exists(os.path.join(path, mark)):
      return kind
  if glob.glob(os.path.join(glob.escape(path), _RUNS)):
    is_experiment = os.path.exists(os.path.join(path, 'settings.json'))
    return EXPERIMENT if is_experiment else COMPARISON
  return None
