"""The experiments of the papers, by name."""

from __future__ import annotations

from collections.abc import Mapping

from . import (
  fed_avg,
  fed_avg_linear,
  fed_dar,
  fed_dar_linear,
  fed_fac,
  fed_fac_protocol,
  fed_fac_simulation,
  fed_fac_units,
  fed_rep,
  fed_rep_linear,
  fed_split,
  per_fed_avg,
  per_fed_avg_theorem,
  privacy,
)
from .engine import paper

# In the order in which `all` runs them: those on generated data are fastest.
EXPERIMENTS: Mapping[str, paper.Experiment] = {
  entry.name: entry
  for module in (
    fed_rep_linear,
    fed_avg_linear,
    fed_dar_linear,
    fed_split,
    per_fed_avg_theorem,
    fed_fac_simulation,
    fed_avg,
    per_fed_avg,
    fed_rep,
    fed_dar,
    fed_fac,
    fed_fac_protocol,
    fed_fac_units,
    privacy,
  )
  for entry in module.EXPERIMENTS
}
