"""Measures: numbers of a study beyond the scores of its trials.

A measure is a function from a `Context` to rows, which are mappings with a
`seed`. It runs the study's trials and examines their models:

    def measure(context):
      for result in context.run():
        run = result.open()
        yield {**result.columns(), 'norm': norm(run.global_weights())}

In a study without methods, it computes its rows from the study's parameters and
a seed. Running trials is its only side effect.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Optional

import numpy as np
import tqdm

from tff_pfl import datasets, errors
from tff_pfl import runtime as runtime_lib
from tff_pfl.runtime import base as runtime_base
from tff_pfl.studies import results as results_lib
from tff_pfl.studies import trials

if TYPE_CHECKING:
  from tff_pfl.studies import study as study_lib

# The result of a measure.
Rows = Iterator[Mapping[str, Any]]


class Context:
  """A study that is measured, and functions to run its trials.

  Attributes:
    study: The study, at its scale.
    directory: The study's folder.
    place: The place where trials run.
    results: Results of the study's own trials, or None before they ran.
  """

  def __init__(
    self, study: study_lib.Study, directory: str, place: trials.Place
  ):
    self.study = study
    self.directory = directory
    self.place = place
    self.results: Optional[results_lib.Results] = None

  @property
  def seeds(self) -> tuple[int, ...]:
    """The study's seeds."""
    return self.study.seeds

  @property
  def parameters(self) -> Any:
    """The study's parameters."""
    return self.study.parameters

  def run(self, study: Optional[study_lib.Study] = None) -> results_lib.Results:
    """Runs the unfinished trials, in the study's folder.

    Args:
      study: Another study, with other methods, conditions or seeds, such as
        `context.study.select(seeds=...)`. None runs the study.

    Returns:
      The results, to iterate over by method, condition and seed.

    Raises:
      RunError: If a trial failed.
    """
    results = trials.run_trials(study or self.study, self.directory, self.place)
    if study is None:
      self.results = results
    for one in results.failures[:1]:
      raise errors.RunError(
        f'{len(results.failures)} trials failed, such as {one["trial"]}: '
        f'{one["reason"]}'
      )
    return results

  def progress(self, items: Iterable[Any]) -> Iterable[Any]:
    """The items, with a progress bar that disappears at the end."""
    return tqdm.tqdm(
      list(items),
      unit='run',
      disable=not self.place.show_progress,
      leave=False,
      mininterval=0.1 if sys.stderr.isatty() else 10,
      dynamic_ncols=True,
    )

  def each(self, *cases: Iterable[Any]) -> Iterable[tuple]:
    """Every combination of cases and seeds, with a progress bar."""
    return self.progress(itertools.product(*cases, self.seeds))

  def create_runtime(self) -> runtime_base.Runtime:
    """Creates the study's runtime, which is a context manager."""
    name = self._setting('runtime') or runtime_lib.DEFAULT
    return runtime_lib.create_runtime(
      name, **(self.place.runtime_options or {})
    )

  def _setting(self, name):
    return {**self.study.settings, **self.study.overrides}.get(name)

  def load_arrays(
    self, dataset: str, *, normalize: bool = False
  ) -> datasets.Arrays:
    """All examples of a dataset, see `Arrays.normalized`."""
    takes_folder = datasets.DATASETS[dataset].takes_data_dir
    data_dir = self._setting('data_dir') if takes_folder else None
    arrays = datasets.load_arrays(dataset, data_dir)
    return arrays.normalized() if normalize else arrays


def test_images(arrays: datasets.Arrays) -> np.ndarray:
  """All test images of a dataset, in the form that models take."""
  images = arrays.x_test
  return images if arrays.transform is None else arrays.transform(images)
