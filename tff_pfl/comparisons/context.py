"""Context of papers' experiments: their trials, seeds, data and runtime."""

from __future__ import annotations

import dataclasses
import sys
import types
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Optional

import tqdm

from tff_pfl import datasets, errors
from tff_pfl import runtime as runtime_lib
from tff_pfl.comparisons import cluster as cluster_lib
from tff_pfl.comparisons import execution, plan, trial
from tff_pfl.core import personalization
from tff_pfl.methods import registry
from tff_pfl.runs import run_config
from tff_pfl.runtime import base as runtime_base


class Settings(NamedTuple):
  """Settings that experiments are run with.

  Attributes:
    directory: Folder in which each experiment gets one of its name.
    fast: True for sizes of minutes and bundled data.
    dataset: A data set instead of the experiment's own; only for experiments
      on data sets.
    data_dir: Folder of the data sets' files; None for each data set's default.
    seed: The first seed, non-negative.
    num_seeds: Number of seeds from there on, at least 1; None for the
      experiment's own number.
    sizes: Other values of fields of the experiment's sizes.
    num_processes: Runs at the same time; None for one on each usable core, 0
      for one after another in this process.
    cluster: Cluster to run them on, instead of this machine.
    runtime: A key of `runtime.RUNTIMES`.
    runtime_options: The keyword arguments of that runtime's class.
    show_progress: True for progress bars on stderr.
  """

  directory: str
  fast: bool = False
  dataset: Optional[str] = None
  data_dir: Optional[str] = None
  seed: int = 0
  num_seeds: Optional[int] = None
  sizes: Optional[Mapping[str, Any]] = None
  num_processes: Optional[int] = None
  cluster: Optional[cluster_lib.Cluster] = None
  runtime: str = runtime_lib.DEFAULT
  runtime_options: Mapping[str, Any] = types.MappingProxyType({})
  show_progress: bool = True


class Method(NamedTuple):
  """A method of an experiment.

  Attributes:
    name: Its name in tables and figures.
    algorithm: A key of `registry.ALGORITHMS`.
    hparams: Hyperparameters of its own.
    config: Fields of `RunConfig` of its own.
    fine_tuned: Name of the same method with the last models fine-tuned on the
      client; None to leave that out.
    fine_tuned_scope: Weights that are fine-tuned, one of `trial.VARIANTS`.
  """

  name: str
  algorithm: str
  hparams: Mapping[str, Any] = types.MappingProxyType({})
  config: Mapping[str, Any] = types.MappingProxyType({})
  fine_tuned: Optional[str] = None
  fine_tuned_scope: str = 'all'


def hparams_of(
  algorithm: str, shared: Mapping[str, Any], own: Mapping[str, Any]
) -> Any:
  """A method's hyperparameters.

  Args:
    algorithm: A key of `registry.ALGORITHMS`.
    shared: Hyperparameters of all methods of an experiment, of which a method
      takes those that it has. Names are those of grids: `learning_rate` is
      both of FedRep's rates.
    own: Hyperparameters of the method alone, which go before these.
  """
  given = {
    target: value
    for name, value in shared.items()
    for target in plan.grid_targets(algorithm, name)
  }
  exact = {name: shared[name] for name in shared if name in given}
  hparams = registry.get_algorithm(algorithm).hparams
  return hparams(**{**given, **exact, **own})


def sgd(sizes: Any) -> dict[str, Any]:
  """The fields of an experiment's sizes that SGD has in all methods."""
  return {
    name: getattr(sizes, name)
    for name in ('learning_rate', 'momentum', 'batch_size')
  }


class Context:
  """The settings and sizes of an experiment, and functions to run its trials.

  Attributes:
    settings: Settings of the experiment; `directory` is its own folder.
    sizes: Sizes and hyperparameters of the experiment, a dataclass.
  """

  def __init__(self, settings: Settings, sizes: Any):
    self.settings = settings
    self.sizes = sizes

  @property
  def seeds(self) -> Sequence[int]:
    """The seeds, each with clients, initial weights and cohorts of its own."""
    first = self.settings.seed
    return range(first, first + self.sizes.num_seeds)

  def progress(self, items: Iterable[Any]) -> Iterable[Any]:
    """The items, behind a progress bar that goes when they have."""
    return tqdm.tqdm(
      list(items),
      unit='run',
      disable=not self.settings.show_progress,
      leave=False,
      mininterval=0.1 if sys.stderr.isatty() else 10,
      dynamic_ncols=True,
    )

  def create_runtime(self) -> runtime_base.Runtime:
    """Creates the runtime of the settings, a context manager."""
    settings = self.settings
    return runtime_lib.create_runtime(
      settings.runtime, **settings.runtime_options
    )

  def load_arrays(self, dataset: str) -> datasets.Arrays:
    """All examples of a data set."""
    return datasets.load_arrays(dataset, self._data_dir(dataset))

  def trial(
    self,
    method: Method,
    shared: Mapping[str, Any],
    *,
    seed: int,
    label: str = '',
    num_new_clients: int = 0,
    **config: Any,
  ) -> trial.Trial:
    """A trial: one run of a method.

    Args:
      method: The method.
      shared: Hyperparameters that all methods share (see `hparams_of`), and of
        their fine-tuning.
      label: Text that tells the run from others of the method and seed.
      num_new_clients: Clients besides `num_clients` that are not trained.
      **config: Fields of `RunConfig`; the defaults are the fields of `sizes`
        with their names. The method's own go before.
    """
    names = [field.name for field in dataclasses.fields(run_config.RunConfig)]
    size_fields = {n: v for n, v in vars(self.sizes).items() if n in names}
    config = {**size_fields, **config}
    if 'personalization' not in config:
      fields = {
        field.name: shared[field.name]
        for field in dataclasses.fields(personalization.Personalization)
        if field.name in shared
      }
      config['personalization'] = personalization.Personalization(**fields)
    config = {**config, **method.config}
    return trial.Trial(
      name=_slug(f'{label}-{method.name}-{seed}'),
      config=run_config.RunConfig(
        algorithm=method.algorithm,
        hparams=hparams_of(method.algorithm, shared, method.hparams),
        data_dir=self._data_dir(config['dataset']),
        seed=seed,
        runtime=self.settings.runtime,
        **config,
      ),
      fine_tune_variants=(
        (method.fine_tuned_scope,) if method.fine_tuned else ()
      ),
      num_new_clients=num_new_clients,
    )

  def run(
    self, trials: Mapping[Hashable, trial.Trial]
  ) -> Mapping[Hashable, trial.FinishedTrial]:
    """Runs the trials that are not finished.

    Args:
      trials: Trials by any key; their names are distinct.

    Returns:
      The finished trials by the same keys.

    Raises:
      RunError: If one failed.
    """
    settings = self.settings
    failed = execution.run_trials(
      list(trials.values()),
      settings.directory,
      num_processes=settings.num_processes,
      cluster=settings.cluster,
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
      key: trial.FinishedTrial(
        execution.trial_folder(settings.directory, wanted.name),
        wanted.config.data_dir,
      )
      for key, wanted in trials.items()
    }

  def _data_dir(self, dataset):
    """The folder, if the data set takes one: it may be for others' data."""
    takes = datasets.DATASETS[dataset].takes_data_dir
    return self.settings.data_dir if takes else None


def _slug(text):
  """A name for a trial from any text."""
  kept = (c if c.isalnum() or c in '.-=' else '_' for c in text.lower())
  return ''.join(kept).strip('-')
