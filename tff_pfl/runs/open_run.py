"""Opens the run in a folder, of the library or of the `train` program."""

from __future__ import annotations

import dataclasses
import functools
import os
from typing import Any, Optional

from tff_pfl import datasets, errors
from tff_pfl.core import personalized_process
from tff_pfl.runs import client_population, run_config, run_store, training
from tff_pfl.runs import run as run_lib
from tff_pfl.system import folders


@errors.typed
def open_run(
  directory: str,
  process: Optional[personalized_process.PersonalizedProcess] = None,
  data: Optional[datasets.FederatedDataset] = None,
  *,
  data_dir: Optional[str] = None,
) -> run_lib.Run:
  """Opens the run in a folder, which may be in progress.

  Args:
    directory: The run's folder.
    process: Process that the run was trained with, for the models of a run of
      the library, which stores no description of a user's model; None for a run
      of the `train` program, or for results alone.
    data: Data that it was trained on; given together with `process`.
    data_dir: Folder of the data set's files, if it has moved.

  Raises:
    RunError: If there is no run, or it was trained on other data, by another
      process or from other initial weights.
  """
  directory = folders.local_path(directory, 'directory')
  parent, name = os.path.split(os.path.abspath(directory))
  if name == run_lib.BEST_NAME and run_store.has_run(parent):
    return open_run(parent, process, data, data_dir=data_dir).best
  errors.expect(
    (process is None) == (data is None),
    'process',
    'given together with data',
    process,
  )
  with run_store.RunStore.open_for_reading(directory) as store:
    settings = store.config
    if data is not None:
      client_population.check_unchanged(data, store)
      training.check_unchanged(process, store)
  if process is not None:
    return run_lib.Run(
      directory,
      process=process,
      data=data,
      continue_with=functools.partial(
        training.run,
        process,
        data,
        directory,
        resume=True,
        **training.arguments_of(settings),
      ),
    )
  if 'shapes' in settings.get('model', ''):
    return run_lib.Run(directory)
  try:
    config = run_config.RunConfig.from_settings(settings)
  except errors.RunError as error:
    return run_lib.Run(directory, no_config=str(error))
  if data_dir is not None:
    config = dataclasses.replace(config, data_dir=data_dir)

  def continue_with(num_rounds: int, **options: Any) -> run_lib.Run:
    return dataclasses.replace(config, num_rounds=num_rounds).run(
      directory, resume=True, **options
    )

  return run_lib.Run(directory, config=config, continue_with=continue_with)
