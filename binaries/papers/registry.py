"""All experiments by name."""

from __future__ import annotations

from collections.abc import Mapping

from binaries.papers import (
  fedavg_images,
  feddar_images,
  feddar_linear,
  fedfac_images,
  fedfac_simulation,
  fedrep_images,
  fedsplit_convergence,
  linear_experiments,
  per_fed_avg_images,
)
from tff_pfl import errors
from tff_pfl.experiments import paper as experiment

# In the order in which `all` runs them: the linear ones are the fastest.
_MODULES = (
  linear_experiments,
  feddar_linear,
  fedsplit_convergence,
  fedfac_simulation,
  fedavg_images,
  per_fed_avg_images,
  fedrep_images,
  feddar_images,
  fedfac_images,
)

EXPERIMENTS: Mapping[str, experiment.Experiment] = {
  entry.name: entry for module in _MODULES for entry in module.EXPERIMENTS
}


def get_experiment(name: str) -> experiment.Experiment:
  """Returns the experiment called `name`.

  Raises:
    ValueError: If there is none; the message lists those there are.
  """
  errors.expect(
    name in EXPERIMENTS, 'experiment', f'one of {", ".join(EXPERIMENTS)}', name
  )
  return EXPERIMENTS[name]
