"""The studies of the papers, by name."""

import importlib

# INTERIM while modules are converted (papers helper): the last version imports
# all and raises.
STUDIES = {}
for _module in (
  'fed_rep', 'fed_avg', 'fed_dar', 'fed_split', 'per_fed_avg', 'fed_fac',
  'privacy',
):
  try:
    _studies = importlib.import_module(f'binaries.papers.{_module}').STUDIES
    STUDIES.update({study.name: study for study in _studies})
  except (ImportError, AttributeError):
    pass
