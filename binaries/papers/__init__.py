"""The studies of the papers, by name."""

from __future__ import annotations

from collections.abc import Mapping

from tff_pfl.studies.study import Study

from . import fed_avg, fed_dar, fed_fac, fed_rep, per_fed_avg, privacy

_ALL = [
  study
  for module in (fed_avg, per_fed_avg, fed_rep, fed_dar, fed_fac, privacy)
  for study in module.STUDIES
]
# In the order in which --study=all runs them: studies without training runs are
# fastest.
STUDIES: Mapping[str, Study] = {
  study.name: study for study in sorted(_ALL, key=lambda one: bool(one.methods))
}
