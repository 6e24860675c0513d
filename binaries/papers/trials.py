"""Runs of an experiment as the trials of a comparison: each its own process.

TensorFlow never gives back the memory of the programs it compiled, so that
experiments of many runs have them in processes of their own. A trial that has
ended is not run again.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, NamedTuple, Optional

from binaries.papers import repeats, training
from tff_pfl import errors
from tff_pfl.experiments import comparison as plan
from tff_pfl.experiments import execution, trial
from tff_pfl.experiments import paper as experiment
from tff_pfl.simulation import report, run_config
from tff_pfl.templates import personalization

# How models of the last round are fine-tuned besides.
FINE_TUNED = 'all'


class Method(NamedTuple):
  """A row of a table.

  Attributes:
    name: What the table calls it.
    algorithm: A key of `registry.ALGORITHMS`.
    hparams: Hyperparameters that the methods of the experiment do not share.
    config: Fields of `RunConfig` that they do not share.
    fine_tuned: If given, the name of the same with fine-tuning on the client.
  """

  name: str
  algorithm: str
  hparams: Mapping[str, Any] = {}
  config: Mapping[str, Any] = {}
  fine_tuned: Optional[str] = None


@dataclasses.dataclass(frozen=True)
class Sizes:
  """Sizes and hyperparameters that all methods of an experiment share.

  Attributes:
    num_clients: Clients, new ones included.
    partitions: How the data are divided, by what the results call it.
    num_epochs: Local epochs of a round and of fine-tuning.
    num_head_epochs: Epochs on the head where it is trained in turn.
    learning_rate: The same for all methods.
    num_seeds: Seeds, from that of the settings on.
  """

  num_clients: int
  partitions: Mapping[str, str]
  num_rounds: int
  num_epochs: int
  num_head_epochs: int
  learning_rate: float
  batch_size: int
  num_seeds: int

  @property
  def optimizer(self) -> Mapping[str, Any]:
    """What an optimizer takes besides the learning rate."""
    raise NotImplementedError

  def hparams_of(self, method: Method) -> Any:
    """The method's hyperparameters: its own, and those that all share."""
    shared = {
      'num_epochs': self.num_epochs,
      'num_body_epochs': self.num_epochs,
      'num_head_epochs': self.num_head_epochs,
      'learning_rate': self.learning_rate,
      'head_learning_rate': self.learning_rate,
      'body_learning_rate': self.learning_rate,
      'batch_size': self.batch_size,
      **self.optimizer,
    }
    return training.hparams_of(method.algorithm, shared, method.hparams)

  def setup(self, dataset: str) -> Mapping[str, Any]:
    """The setup of an experiment on a data set."""
    return {'dataset': dataset, **dataclasses.asdict(self)}


def make_trial(
  method: Method,
  label: str,
  seed: int,
  sizes: Sizes,
  settings: experiment.Settings,
  *,
  dataset: str,
  num_new_clients: int = 0,
  **config: Any,
) -> plan.Trial:
  """A run of a method.

  Args:
    method: The method; its `config` is not read.
    label: What the results call the partition of the data.
    seed: The seed of partition and run.
    num_new_clients: How many of the clients are not trained.
    **config: Further fields of `RunConfig`.
  """
  return plan.Trial(
    name=slug(f'{label}-{method.name}-{seed}'),
    config=run_config.RunConfig(
      algorithm=method.algorithm,
      hparams=sizes.hparams_of(method),
      dataset=dataset,
      data_dir=training.data_dir_for(dataset, settings),
      num_clients=sizes.num_clients - num_new_clients,
      personalization=personalization.Personalization(
        learning_rate=sizes.learning_rate,
        batch_size=sizes.batch_size,
        num_epochs=sizes.num_epochs,
        **sizes.optimizer,
      ),
      rounds_per_evaluation=sizes.num_rounds,
      seed=seed,
      runtime=settings.runtime,
      **config,
    ),
    fine_tune_variants=(FINE_TUNED,) if method.fine_tuned else (),
    num_new_clients=num_new_clients,
  )


def run_methods(
  methods: Mapping[str, Sequence[Method]],
  make: Callable[[Method, str, int], plan.Trial],
  num_seeds: int,
  settings: experiment.Settings,
) -> Mapping[tuple, Sequence[str]]:
  """Runs methods with every seed.

  Args:
    methods: By the name of a partition.
    make: From a method, the name of a partition and a seed to the trial.
    num_seeds: Seeds, from that of the settings on.

  Returns:
    The folders of all seeds' runs, by name of partition and method.
  """
  seeds = repeats.seeds(settings, num_seeds)
  keys = [(label, m) for label, several in methods.items() for m in several]
  folders = run(
    {
      (label, method.name, seed): make(method, label, seed)
      for label, method in keys
      for seed in seeds
    },
    settings,
  )
  return {
    (label, method.name): [folders[label, method.name, seed] for seed in seeds]
    for label, method in keys
  }


def run(
  trials: Mapping[Hashable, plan.Trial], settings: experiment.Settings
) -> Mapping[Hashable, str]:
  """Runs the trials that have not ended.

  Args:
    trials: By any key; their names are distinct.

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
  """What a JSON file of a trial's folder holds."""
  with open(os.path.join(folder, name), encoding='utf-8') as file:
    return json.load(file)


def summary_of(folder: str) -> Mapping[str, Any]:
  """The summary of a trial's run."""
  return read(folder, report.SUMMARY_NAME)


def scores_of(folder: str, variant: str = plan.OWN_VARIANT) -> Any:
  """A trial's scores with one way to personalize its last models."""
  return read(folder, trial.SCORES_NAME)['variants'][variant]


def slug(text: str) -> str:
  """A name for a trial from any text."""
  return ''.join(c if c.isalnum() or c in '.-=' else '_' for c in text.lower())
