"""An experiment's repetitions over seeds: their progress, mean and spread."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import tqdm

from tff_pfl.experiments import paper as experiment


def seeds(settings: experiment.Settings, count: int) -> Sequence[int]:
  """`count` seeds from the settings' on."""
  return range(settings.seed, settings.seed + count)


def with_progress(
  items: Iterable[Any], settings: experiment.Settings
) -> Iterable[Any]:
  """The items, behind a progress bar that goes when they have."""
  return tqdm.tqdm(
    list(items),
    unit='run',
    disable=not settings.show_progress,
    leave=False,
    mininterval=0.1 if sys.stderr.isatty() else 10,
    dynamic_ncols=True,
  )


def mean_and_std(values: Any) -> tuple[Any, Any]:
  """The mean and the sample standard deviation over the first axis."""
  return np.mean(values, axis=0), experiment.spread(values)


def by_round(values: np.ndarray) -> tuple[range, Any, Any]:
  """Rounds from 0 on, mean and deviation of `[num_seeds, num_rounds + 1]`."""
  return range(values.shape[1]), *mean_and_std(values)


def accuracy_columns(values: Any) -> Mapping[str, Any]:
  """Columns of a table that sum up the accuracies of all seeds."""
  return {
    'mean_accuracy': float(np.mean(values)),
    'std_over_seeds': experiment.spread(values),
    'of_seeds': [float(value) for value in values],
  }
