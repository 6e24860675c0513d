"""Runs of an experiment as the trials of a comparison: each its own process.

TensorFlow never gives back the memory of the programs it compiled, so that
experiments of many runs have them in processes of their own. A trial that has
ended is not run again.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Hashable, Mapping
from typing import Any, NamedTuple, Optional

from tff_pfl import errors
from tff_pfl.algorithms import registry
from tff_pfl.comparison import execution, plan
from tff_pfl.reproduction import experiment


class Method(NamedTuple):
  """A row of a table.

  Attributes:
    name: What the table calls it.
    algorithm: A key of `registry.ALGORITHMS`.
    hparams: Those that all methods of the experiment do not share.
    config: Fields of `RunConfig` that they do not share.
    fine_tuned: If given, the name of the same with fine-tuning on the client.
  """

  name: str
  algorithm: str
  hparams: Mapping[str, Any] = {}
  config: Mapping[str, Any] = {}
  fine_tuned: Optional[str] = None


def run(
  trials: Mapping[Hashable, plan.Trial], settings: experiment.Settings
) -> Mapping[Hashable, str]:
  """Runs the trials that have not ended.

  Args:
    trials: By any key; their names are distinct.
    settings: Of the experiment.

  Returns:
    The trials' folders by key.

  Raises:
    RunError: If one failed.
  """
  directory = settings.run_dir('')
  failed = execution.run_trials(
    list(trials.values()),
    directory,
    runtime_options=settings.runtime_options,
    show_progress=settings.show_progress,
    description='runs',
  )
  if failed:
    name, reason = next(iter(failed.items()))
    raise errors.RunError(
      f'{len(failed)} of {len(trials)} runs failed, such as {name}: {reason}'
    )
  return {
    key: execution.trial_folder(directory, trial.name)
    for key, trial in trials.items()
  }


def read(folder: str, name: str) -> Any:
  """What a JSON file of a trial's folder holds.

  Args:
    folder: The folder.
    name: Of the file, such as `report.SUMMARY_NAME`.
  """
  with open(os.path.join(folder, name), encoding='utf-8') as file:
    return json.load(file)


def slug(text: str) -> str:
  """A name for a trial from any text."""
  return ''.join(c if c.isalnum() or c in '.-=' else '_' for c in text.lower())


def hparams_of(
  algorithm: str, shared: Mapping[str, Any], own: Mapping[str, Any]
) -> Any:
  """A method's hyperparameters.

  Args:
    algorithm: A key of `registry.ALGORITHMS`.
    shared: Of all methods of an experiment; it takes those that it has.
    own: Its own, which go before these.
  """
  of_class = registry.get_algorithm(algorithm).hparams
  names = {field.name for field in dataclasses.fields(of_class)}
  taken = {name: value for name, value in shared.items() if name in names}
  return of_class(**{**taken, **own})
