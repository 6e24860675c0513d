"""What an experiment of a paper is: settings in, numbers and claims out."""

from __future__ import annotations

import dataclasses
import os
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Optional

import numpy as np
from matplotlib.figure import Figure

from tff_pfl import datasets as datasets_lib
from tff_pfl import runtime as runtime_lib
from tff_pfl.runtime import base as runtime_base


class Claim(NamedTuple):
  """A statement of a paper, and whether the experiment bears it out.

  Attributes:
    paper: Where it stands, such as 'FedRep, figure 3'.
    threshold: What `measured` was compared with, such as '> 0.98'.
  """

  claim: str
  paper: str
  measured: float
  threshold: str
  passed: bool


def above(claim: str, paper: str, measured: float, bound: float) -> Claim:
  """A claim that holds if `measured` is larger than `bound`."""
  measured = float(measured)
  # NaN is above nothing.
  return Claim(claim, paper, measured, f'> {bound:g}', measured > bound)


def below(claim: str, paper: str, measured: float, bound: float) -> Claim:
  """A claim that holds if `measured` is smaller than `bound`."""
  measured = float(measured)
  return Claim(claim, paper, measured, f'< {bound:g}', measured < bound)


def spread(values: Any) -> Any:
  """The sample standard deviation over the first axis, 0 for a single value.

  Args:
    values: `[n, ...]`, such as one for each seed.
  """
  values = np.asarray(values, float)
  deviation = np.std(values, axis=0, ddof=min(1, len(values) - 1))
  return deviation if deviation.ndim else float(deviation)


class Settings(NamedTuple):
  """How an experiment is run.

  Attributes:
    directory: The experiment's own folder, for runs that can be resumed.
    fast: Whether to take the test suite's sizes instead of the full ones.
    dataset: A data set instead of the experiment's own; only for experiments
      with images.
    data_dir: Folder of the data sets' files; None for what each does by itself.
    seed: Seed of everything random, non-negative.
    runtime: A key of `runtime.RUNTIMES`.
    runtime_options: The keyword arguments of that runtime's class.
  """

  directory: str
  fast: bool = False
  dataset: Optional[str] = None
  data_dir: Optional[str] = None
  seed: int = 0
  runtime: str = runtime_lib.DEFAULT
  runtime_options: Mapping[str, Any] = types.MappingProxyType({})
  show_progress: bool = True

  def create_runtime(self) -> runtime_base.Runtime:
    """The runtime; a context manager that closes it."""
    return runtime_lib.create_runtime(self.runtime, **self.runtime_options)

  def run_dir(self, name: str) -> str:
    """The folder of one of the experiment's runs."""
    return os.path.join(self.directory, 'runs', name)


class Result(NamedTuple):
  """What an experiment found.

  Attributes:
    claims: The paper's claims that it checks.
    rows: The numbers of the figure, one mapping per point or per curve and
      point, for CSV.
    setup: Sizes and hyperparameters, as JSON types.
    draw: Draws the figure: it gets an empty one, whose size it may set.
  """

  claims: Sequence[Claim]
  rows: Sequence[Mapping[str, Any]]
  setup: Mapping[str, Any]
  draw: Callable[[Figure], None]


@dataclasses.dataclass(frozen=True)
class Experiment:
  """An experiment of a paper.

  Attributes:
    name: What `--experiment` takes.
    summary: One line on what it shows.
    paper: Which figure of which paper it reproduces.
    uses_images: Whether it trains networks on a data set of images.
    run: From the settings to the result; pure but for the runs it stores.
    claims_hold_fast: Whether its claims should hold at the fast size, too.
    datasets: What `Settings.dataset` may be; by default, for experiments with
      images, all data sets whose examples do not come by client.
  """

  name: str
  summary: str
  paper: str
  uses_images: bool
  run: Callable[[Settings], Result]
  claims_hold_fast: bool = True
  datasets: Sequence[str] = ()

  def takes(self, dataset: Optional[str]) -> bool:
    """Whether `Settings.dataset` may be this."""
    if dataset is None or not self.uses_images:
      return dataset is None
    if self.datasets:
      return dataset in self.datasets
    return datasets_lib.DATASETS[dataset].load_arrays is not None
