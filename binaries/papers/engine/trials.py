"""Training runs of papers' experiments: methods, conditions and results."""

from __future__ import annotations

import itertools
import sys
import types
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Optional

import numpy as np
import tqdm

import tff_pfl as pfl
from tff_pfl import datasets, errors, fields
from tff_pfl import runtime as runtime_lib
from tff_pfl.comparisons import cluster as cluster_lib
from tff_pfl.comparisons import execution, trial
from tff_pfl.methods import registry
from tff_pfl.runtime import base as runtime_base

_NOTHING: Mapping[str, Any] = types.MappingProxyType({})
# The fields of an experiment's sizes that all its methods are trained with.
_TRAINING = (
  'num_epochs',
  'num_head_epochs',
  'learning_rate',
  'momentum',
  'optimizer',
  'batch_size',
)


class Settings(NamedTuple):
  """Settings that experiments are run with.

  Attributes:
    directory: Folder in which each experiment gets one of its name.
    fast: True for sizes of minutes and bundled data.
    dataset: A data set instead of the experiment's own; only for experiments
      on data sets.
    data_dir: Folder of the data sets' files; None for each data set's default.
    seed: The first seed, non-negative; None for the experiment's own, which
      `paper.run` fills in.
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
  seed: Optional[int] = None
  num_seeds: Optional[int] = None
  sizes: Optional[Mapping[str, Any]] = None
  num_processes: Optional[int] = None
  cluster: Optional[cluster_lib.Cluster] = None
  runtime: str = runtime_lib.DEFAULT
  runtime_options: Mapping[str, Any] = _NOTHING
  show_progress: bool = True


class Method(NamedTuple):
  """A method of an experiment.

  Attributes:
    name: Its name in tables and figures.
    algorithm: A key of `registry.ALGORITHMS`.
    settings: Its own hyperparameters and other settings by their names in
      `pfl.Settings`, which go before all others.
    fine_tuned: Name of the same method with the last models fine-tuned on the
      client; None to leave that out.
    fine_tuned_scope: Weights that are fine-tuned, one of `trial.VARIANTS`.
  """

  name: str
  algorithm: str
  settings: Mapping[str, Any] = _NOTHING
  fine_tuned: Optional[str] = None
  fine_tuned_scope: str = 'all'


class Condition(NamedTuple):
  """A condition for a comparison of methods, such as a partition of the data.

  Attributes:
    methods: Methods to compare.
    settings: Settings by their names in `pfl.Settings`, and hyperparameters, of
      which each method takes those that it has.
  """

  methods: Sequence[Method]
  settings: Mapping[str, Any] = _NOTHING


class Result(NamedTuple):
  """A method's result in a condition with a seed.

  Attributes:
    condition: The condition's name, or number.
    method: The method's name, or that of the same with fine-tuning.
    settings: Settings of the method alone.
    seed: Seed of the run.
    run: The run; the method with fine-tuning has the same.
    variant: `trial.OWN_VARIANT`, or the way in which models are fine-tuned.
  """

  condition: Hashable
  method: str
  settings: Mapping[str, Any]
  seed: int
  run: trial.FinishedTrial
  variant: str

  @property
  def is_fine_tuned(self) -> bool:
    """True if it is of the last models after fine-tuning."""
    return self.variant != trial.OWN_VARIANT

  @property
  def scores(self) -> Mapping[str, Any]:
    """The last models' scores; see `trial.FinishedTrial.variant`."""
    return self.run.variant(self.variant)

  def columns(self, column: str = 'partition') -> dict[str, Any]:
    """The columns that name the result in a table: condition, method and seed.

    Args:
      column: Name of the condition's column.
    """
    return {column: self.condition, 'method': self.method, 'seed': self.seed}

  def accuracy(self) -> float:
    """The mean accuracy over clients: of the last ten rounds, or fine-tuned."""
    if self.is_fine_tuned:
      return self.scores['evaluation']['personal']['accuracy']
    return self.run.summary['accuracy']['last_10_mean']


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
  hparams = pfl.ALGORITHMS[algorithm].hparams
  given = {
    target: value
    for name, value in shared.items()
    for target in registry.fields_called(name, hparams)
  }
  exact = {name: shared[name] for name in shared if name in given}
  return hparams(**{**given, **exact, **own})


def training(sizes: Any) -> dict[str, Any]:
  """The hyperparameters that methods share; see `hparams_of`.

  Args:
    sizes: An experiment's sizes, with fields such as `learning_rate`, and
      others in `hparams`.
  """
  shared = {n: getattr(sizes, n) for n in _TRAINING if hasattr(sizes, n)}
  if 'num_epochs' in shared:
    # Where body and head are trained in turn, an epoch is one on the body.
    shared['num_body_epochs'] = shared['num_epochs']
  return {**shared, **getattr(sizes, 'hparams', {})}


def test_images(arrays: datasets.Arrays) -> np.ndarray:
  """All test images of a data set, as models take them."""
  images = arrays.x_test
  return images if arrays.transform is None else arrays.transform(images)


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
    first = self.settings.seed or 0
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

  def each(self, *cases: Iterable[Any]) -> Iterable[tuple]:
    """Every combination of cases and seeds, behind a progress bar."""
    return self.progress(itertools.product(*cases, self.seeds))

  def create_runtime(self) -> runtime_base.Runtime:
    """Creates the runtime of the settings, a context manager."""
    settings = self.settings
    return pfl.create_runtime(settings.runtime, **settings.runtime_options)

  def load_arrays(
    self, dataset: str, *, normalize: bool = False
  ) -> datasets.Arrays:
    """All examples of a data set, see `Arrays.normalized`."""
    arrays = pfl.load_arrays(dataset, self._data_dir(dataset))
    return arrays.normalized() if normalize else arrays

  def run(
    self,
    conditions: Mapping[Hashable, Condition],
    *,
    seeds: Optional[Sequence[int]] = None,
    num_new_clients: int = 0,
    **settings: Any,
  ) -> Iterator[Result]:
    """Runs methods in conditions with every seed, but what is finished.

    Args:
      conditions: Conditions by name, or number.
      seeds: Seeds; None for those of the experiment.
      num_new_clients: Clients besides `num_clients` that are not trained.
      **settings: Settings of all runs by their names in `pfl.Settings`; the
        defaults are the fields of `sizes` with their names, and fine-tuning has
        the hyperparameters of training. Without `rounds_per_evaluation` only
        the first and the last rounds are evaluated.

    Yields:
      The results by condition, method and seed; for a method with `fine_tuned`
      also those with fine-tuning, after its own.

    Raises:
      RunError: If a run failed.
    """
    seeds = self.seeds if seeds is None else seeds
    wanted = {
      (name, method.name, seed): self._trial(
        method, condition, seed, name, num_new_clients, settings
      )
      for name, condition in conditions.items()
      for method in condition.methods
      for seed in seeds
    }
    runs = dict(zip(wanted, self.finish(list(wanted.values()))))
    for name, condition in conditions.items():
      for method in condition.methods:
        variants = {method.name: trial.OWN_VARIANT}
        if method.fine_tuned:
          variants[method.fine_tuned] = method.fine_tuned_scope
        for (result, variant), seed in itertools.product(
          variants.items(), seeds
        ):
          run = runs[name, method.name, seed]
          yield Result(name, result, method.settings, seed, run, variant)

  def finish(
    self, trials: Sequence[trial.Trial]
  ) -> Sequence[trial.FinishedTrial]:
    """Runs the trials, of distinct names, that are not finished."""
    settings = self.settings
    failed = execution.run_trials(
      trials,
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
    return [
      trial.FinishedTrial(
        execution.trial_folder(settings.directory, wanted.name),
        wanted.config.data.data_dir,
      )
      for wanted in trials
    ]

  def _trial(self, method, condition, seed, name, num_new_clients, settings):
    """One run of a method, whose own settings go before the condition's."""
    known = fields.flat_names(pfl.Settings)
    hparams = vars(pfl.ALGORITHMS[method.algorithm].hparams())
    of_runs, shared = _divided(condition.settings, known)
    own, more = _divided(method.settings, hparams)
    shared = {**training(self.sizes), **shared}
    settings = {
      **_divided({f'fine_tune_{n}': v for n, v in shared.items()}, known)[0],
      **_divided(vars(self.sizes), known)[0],
      **settings,
      **of_runs,
      **more,
    }
    settings.setdefault('rounds_per_evaluation', settings['num_rounds'])
    return trial.Trial(
      name=_slug(f'{name}-{method.name}-{seed}'),
      config=pfl.Settings(
        method=hparams_of(method.algorithm, shared, own),
        data_dir=self._data_dir(settings['dataset']),
        seed=seed,
        runtime=self.settings.runtime,
        **settings,
      ),
      fine_tune_variants=(
        (method.fine_tuned_scope,) if method.fine_tuned else ()
      ),
      num_new_clients=num_new_clients,
    )

  def _data_dir(self, dataset):
    """The folder, if the data set takes one: it may be for others' data."""
    takes = datasets.DATASETS[dataset].takes_data_dir
    return self.settings.data_dir if takes else None


def _divided(settings, names):
  """The settings with these names, and the others."""
  parts = {}, {}
  for name, value in settings.items():
    parts[name not in names][name] = value
  return parts


def _slug(text):
  """A name for a trial from any text."""
  kept = (c if c.isalnum() or c in '.-=' else '_' for c in text.lower())
  return ''.join(kept).strip('-')
