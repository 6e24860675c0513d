"""One HTML page that shows a comparison, on a phone as on a laptop.

The page stands alone: styles, script and pictures are within it. It is filled
from the Jinja templates in `templates/`, which have a file for each section;
`html_tables` and `html_pictures` prepare what the sections show as plain data,
their views.
"""

from __future__ import annotations

import os
from typing import Any, NamedTuple, Optional, Union

import jinja2

from tff_pfl.experiments import html_pictures, html_tables, presentation
from tff_pfl.experiments import results as results_lib
from tff_pfl.simulation import summary as summary_lib

REPORT_NAME = 'comparison.html'
_TEMPLATE_NAME = 'report.html.j2'

_Path = Union[str, 'os.PathLike[str]']


def write_report(results: results_lib.ComparisonResults, path: _Path) -> None:
  """Writes the page of a comparison.

  Args:
    results: What the comparison found; sections for which there is nothing to
      show are left out.
    path: The .html file; after a crash it is the old one or the new one.

  Raises:
    RunError: If the file cannot be written.
  """
  template = _environment().get_template(_TEMPLATE_NAME)
  page = template.render(header=_header(results), sections=_sections(results))
  with summary_lib.atomic_file(path) as file:
    file.write(page)


def _environment() -> jinja2.Environment:
  """Templates whose values are escaped, and of which none may be missing."""
  environment = jinja2.Environment(
    loader=jinja2.PackageLoader(__package__),
    autoescape=True,
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
  )
  environment.filters['counted'] = presentation.count
  return environment


class _Section(NamedTuple):
  """A section of the page.

  Attributes:
    key: Its id, after which its template is named.
    view: What its template shows.
  """

  key: str
  title: str
  view: Any


def _sections(results: results_lib.ComparisonResults) -> list[_Section]:
  """The sections for which there is something to show."""
  sections = [
    _Section('results', 'Results', html_tables.results_view(results)),
    _Section('domains', 'Domains', html_tables.domains_view(results)),
    _Section(
      'published', 'Published figures', html_tables.published_view(results)
    ),
    _Section('curves', 'Accuracy by round', html_pictures.curves_view(results)),
    _Section(
      'clients',
      'Accuracy over clients',
      html_pictures.distributions_view(results),
    ),
    _Section(
      'changes',
      'Before and after personalization',
      html_pictures.changes_view(results),
    ),
    _Section('partition', 'Partition', html_pictures.partition_view(results)),
    _Section('tuning', 'Tuning', html_tables.tuning_view(results)),
    _Section('failures', 'Failures', results.failures or None),
    _Section('settings', 'Settings', html_tables.settings_view(results)),
  ]
  return [section for section in sections if section.view is not None]


class _Header(NamedTuple):
  """How much was compared, and what is ahead.

  Attributes:
    num_methods: Methods, whatever the number of rows they have.
    num_failures: Runs that did not come to an end.
    best: Label of the row with the highest personal accuracy; None where none
      has one.
    best_accuracy: Its accuracy as text.
  """

  title: str
  num_methods: int
  num_seeds: int
  num_failures: int
  best: Optional[str]
  best_accuracy: Optional[str]


def _header(results):
  best = next(
    (
      method
      for method in presentation.ranked(results.methods)
      if method.metrics.get(presentation.RANKING)
    ),
    None,
  )
  accuracy = None
  if best is not None:
    accuracy = presentation.percent(best.metrics[presentation.RANKING])
  return _Header(
    title=results.title,
    num_methods=len({method.algorithm for method in results.methods}),
    num_seeds=len(results.setting('seeds') or ()),
    num_failures=len(results.failures),
    best=best.label if best is not None else None,
    best_accuracy=accuracy,
  )
