"""A trial of a study: an ordinary run, scored in several ways.

The folder of a trial has its description `trial.json`, the files of a run (see
`runs.loop`) and `scores.json`, which is written last and marks a finished
trial. An interrupted trial continues where its run ended. Each trial has its
own process, because TensorFlow never frees the memory of compiled programs.
"""

from __future__ import annotations

# Before modules that import TensorFlow.
from tff_pfl.system import tf_import  # noqa: F401  # isort: skip

import dataclasses
import functools
import itertools
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Optional

import numpy as np
import pydantic
import tensorflow as tf
from absl import logging

from tff_pfl import datasets, errors, fields
from tff_pfl import runtime as runtime_lib
from tff_pfl.core import personalization as personalization_lib
from tff_pfl.datasets import validation
from tff_pfl.runs import (
  client_population,
  report,
  run_store,
)
from tff_pfl.runs import evaluation as evaluation_lib
from tff_pfl.runs import run as run_lib
from tff_pfl.runs import settings as settings_lib
from tff_pfl.runs import summary as summary_lib
from tff_pfl.system import cores, shutdown, user_modules

SPEC_NAME = 'trial.json'
SCORES_NAME = 'scores.json'
# The start of the line that says why a trial failed.
ERROR_START = 'error: '
# The random stream of a seed that draws the new clients.
_NEW_CLIENTS = b'new_clients'


# The models as the run itself personalizes them.
OWN_VARIANT = ''


@fields.dataclass
class Trial:
  """One run: a method with all its hyperparameters, and a seed.

  Attributes:
    name: Name of the trial and its folder, unique in a study.
    settings: Settings of the run.
    variants: Further personalizations of the last round's models, by name.
    num_new_clients: Number of clients that get data in addition to the run's
      clients, and are scored after the run (but not in a sweep).
    validation_fraction: Fraction of each client's training examples that
      replaces its test examples, in a sweep. None scores on the test examples.
    fold: Number of a fold and the number of folds. Each client's test set is
      this fold of all its examples (see `validation.fold_view`). None keeps the
      test set of the data.
    modules: Modules, or .py files, to import before the run.
  """

  name: str
  settings: settings_lib.Settings
  variants: Mapping[str, personalization_lib.Personalization] = (
    dataclasses.field(default_factory=dict)
  )
  num_new_clients: fields.CountOrZero = 0
  validation_fraction: Optional[fields.InnerShare] = None
  fold: Optional[tuple[int, int]] = None
  modules: Annotated[
    fields.Words,
    # A study may be opened from another folder.
    pydantic.AfterValidator(
      lambda names: tuple(map(user_modules.absolute, names))
    ),
  ] = ()


def load_data(
  trial: Trial,
) -> tuple[datasets.FederatedDataset, Optional[datasets.FederatedDataset]]:
  """Divides the data among the clients of a trial, trained and new.

  New clients are drawn at random, because the order of a dataset's own clients
  may have a meaning, such as the domain of their texts. The draw depends only
  on the seed, the number of clients and the number of new clients. So all
  methods, and the sweep before them, train the same clients.

  Returns:
    The clients of the run, and the clients to score after it. The latter are
    None if there are none, and in a sweep, which scores no client on test
    examples.
  """
  settings = trial.settings
  trained, new = settings.load_data(trial.num_new_clients), None
  if trial.fold is not None:
    trained = validation.fold_view(trained, *trial.fold, settings.seed)
  if trial.num_new_clients:
    rng = np.random.default_rng([settings.seed, *_NEW_CLIENTS])
    is_new = np.zeros(trained.num_clients, bool)
    is_new[rng.permutation(len(is_new))[: trial.num_new_clients]] = True
    trained, new = (
      trained.subset(itertools.compress(trained.client_ids, chosen))
      for chosen in (~is_new, is_new)
    )
  if trial.validation_fraction is not None:
    fraction = trial.validation_fraction
    trained = validation.validation_view(trained, fraction, settings.seed)
    new = None
  for part in filter(None, (trained, new)):
    client_population.check_test_examples(part)
  return trained, new


def run_trial(
  trial: Trial,
  directory: str,
  *,
  runtime_options: Optional[Mapping[str, Any]] = None,
) -> None:
  """Runs the unfinished part of a trial.

  Args:
    trial: The trial.
    directory: Folder of the trial.
    runtime_options: Options of the runtime, see `loop.run`.

  Raises:
    RunError: If the run cannot start or continue.
  """
  settings = trial.settings
  trained, new = load_data(trial)
  record = None
  fold = {} if trial.fold is None else {'fold': list(trial.fold)}
  if new is not None or trial.validation_fraction is not None or fold:
    # Without these, it would look like a run on all clients' data.
    record = {
      'trial': {
        'num_new_clients': trial.num_new_clients,
        'validation_fraction': trial.validation_fraction,
        **fold,
      }
    }
  process = settings.run(
    directory,
    data=trained,
    record=record,
    runtime_options=runtime_options,
    resume=True,
    show_progress=False,
    # A study draws pictures of all trials.
    pictures=False,
  ).process
  with runtime_lib.create_runtime(
    settings.rounds.runtime, **(runtime_options or {})
  ) as runtime:
    scores = _scores(trial, process, trained, new, runtime, directory)
  summary_lib.write_json(os.path.join(directory, SCORES_NAME), scores)


def _scores(trial, process, trained, new, runtime, directory):
  """The content of `scores.json`."""
  settings, rounds = trial.settings, trial.settings.rounds
  with run_store.RunStore.open_for_reading(directory) as store:

    def server_state(of):
      return client_population.server_state(of, runtime, store)

    def client_states(of):
      return client_population.client_states(of, runtime, store)

    def new_clients(of):
      """Scores of new clients, with models fitted to their training data."""
      if new is None:
        return []
      states = evaluation_lib.new_states(of, runtime, trained.num_clients)
      return evaluation_lib.evaluate(
        of, runtime, server_state(of), states, new
      ).rows

    def new_clients_by_ensemble():
      """Scores of new clients by the ensemble of the last cohort's models."""
      if new is None or not process.has_local_weights:
        return []
      try:
        return evaluation_lib.evaluate_by_ensemble(
          process,
          runtime,
          server_state(process),
          client_states(process),
          trained,
          new,
          rounds.cohorts(trained.num_clients, settings.seed).sample(
            rounds.num_rounds
          ),
        )
      except evaluation_lib.NoModelsError as error:
        # All clients diverged, as the other scores show.
        logging.warning('%s', error)
        return []

    variants = {
      OWN_VARIANT: {
        'evaluation': store.evaluations()[-1],
        'clients': store.per_client(),
        'new_clients': new_clients(process),
        'new_clients_by_ensemble': new_clients_by_ensemble(),
      }
    }
    for name, options in trial.variants.items():
      variant = _variant(process, options)
      variants[name] = None
      if variant is not None:
        evaluation = evaluation_lib.evaluate(
          variant,
          runtime,
          server_state(variant),
          client_states(variant),
          trained,
          client_indices=rounds.evaluated_clients(variant, trained),
        )
        variants[name] = {
          'evaluation': evaluation.summary,
          'clients': evaluation.rows,
          'new_clients': new_clients(variant),
        }
  return {
    'bytes_per_round': process.bytes_per_round._asdict(),
    'variants': variants,
  }


def _variant(process, options):
  """The process with other fine-tuning, or None if it has no such models."""
  if options.fine_tune == 'trained' and not process.has_trained_models:
    return None
  return process.with_personalization(options)


class FinishedTrial:
  """The results of a finished trial, from its folder."""

  def __init__(self, directory: str, data_dir: Optional[str] = None):
    """Reads the results.

    Args:
      data_dir: Folder of the dataset's files, if it has moved.

    Raises:
      RunError: If a file of the trial cannot be read, or the run was continued.
    """
    self.directory = directory
    self._data_dir = data_dir
    self.scores = summary_lib.read_json(os.path.join(directory, SCORES_NAME))
    self.summary = summary_lib.read_json(
      os.path.join(directory, report.SUMMARY_NAME)
    )
    self._spec = read_spec(directory)['trial']
    planned = self._spec['settings']['rounds']['num_rounds']
    if self.summary['num_rounds'] != planned:
      raise errors.RunError(
        f'The run in {directory} was continued to {self.summary["num_rounds"]} '
        f'rounds, and its study has {planned}: restore or delete the folder.'
      )

  @functools.cached_property
  def settings(self) -> settings_lib.Settings:
    """The settings of the run."""
    user_modules.load(self._spec['modules'])
    return fields.from_json(Trial, self._spec).settings

  @property
  def evaluations(self) -> Sequence[Mapping[str, Any]]:
    """The scores after each evaluated round, see `RunStore.evaluations`."""
    with run_store.RunStore.open_for_reading(self.directory) as store:
      return store.evaluations()

  @property
  def history(self) -> Sequence[Mapping[str, Any]]:
    """The metrics of each round, see `RunStore.history`."""
    with run_store.RunStore.open_for_reading(self.directory) as store:
      return store.history()

  def variant(self, name: str = OWN_VARIANT) -> Mapping[str, Any]:
    """The last models' scores with a personalization.

    Args:
      name: `OWN_VARIANT`, or one of the trial's `variants`.
    """
    return self.scores['variants'][name]

  def open(self) -> run_lib.Run:
    """The run with its models, for a trial without new clients."""
    dataset = datasets.DATASETS[self.settings.data.name]
    # The folder may be for the datasets of other conditions.
    data_dir = self._data_dir if dataset.takes_data_dir else None
    return settings_lib.open_run(self.directory, data_dir=data_dir)


def read_spec(directory: str) -> dict[str, Any]:
  """The content of `trial.json`: the `trial` and its `runtime_options`."""
  return summary_lib.read_json(os.path.join(directory, SPEC_NAME))


def run_folder(directory: str) -> None:
  """Runs the trial that `trial.json` in a folder describes, see `run_trial`."""
  spec = read_spec(directory)
  user_modules.load(spec['trial']['modules'])
  run_trial(
    fields.from_json(Trial, spec['trial']),
    directory,
    runtime_options=spec['runtime_options'],
  )


def main(argv: Sequence[str]) -> None:
  """Runs the trial in a folder, as a separate process.

  Expected errors end the process with one line on stderr and status 1.

  Args:
    argv: This module's name and the folder.
  """
  # So that the environment decides, not the process of which this is a fork.
  tf.config.threading.set_intra_op_parallelism_threads(0)
  cores.divide()
  try:
    with shutdown.stopping_on_signals():
      run_folder(argv[1])
  except errors.EXPECTED as error:
    print(f'{ERROR_START}{errors.reason(error)}', file=sys.stderr)
    sys.exit(1)
