"""HTML pages of studies, for phones and laptops.

A page is one file with all its styles, scripts and pictures. Its text is in
`page.html.j2`. This module turns frames into tables and pictures.
"""

from __future__ import annotations

import base64
import io
import os
import pathlib
import statistics
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Optional, Union

import jinja2
import markupsafe
import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tff_pfl import plots
from tff_pfl.models import split_model
from tff_pfl.studies import claims as claims_lib
from tff_pfl.studies import metrics as metrics_lib
from tff_pfl.system import folders

if TYPE_CHECKING:
  from tff_pfl.studies import results as results_lib

PAGE_NAME, FIGURE_NAME = 'study.html', 'figure.png'
_SVG_STYLE = {'svg.fonttype': 'none', 'svg.hashsalt': 'page', 'font.size': 8}
# More columns make the table wider than a screen.
_MAX_COLUMNS = 6


def write(
  results: results_lib.Results, path: Union[str, os.PathLike[str]]
) -> None:
  """Writes the page of a study, which is the same for the same results.

  Args:
    path: Path of the .html file. After a crash, it is either the old or the new
      file.

  Raises:
    RunError: If the file cannot be written.
  """
  description = results.description
  conditions = [_condition(results, name) for name in results.conditions]
  overview = None
  if conditions and (len(conditions) > 1 or description['published']):
    overview = _table(*results.marked_overview())
  environment = jinja2.Environment(
    loader=jinja2.PackageLoader(__package__, ''),
    autoescape=True,
    trim_blocks=True,
    lstrip_blocks=True,
  )
  environment.filters.update(
    counted=_counted,
    median=statistics.median,
    table=_table,
    value=_value_text,
  )
  html = environment.get_template('page.html.j2').render(
    title=_title(results),
    study=description,
    primary=results.primary_metric,
    overview=overview,
    claims=_claims_frame(description.get('claims', [])),
    claims_count=claims_lib.count_all(description.get('claims', [])),
    num_decided=claims_lib.decided_by_holm(description.get('claims', [])),
    figure=_measured_picture(results),
    conditions=conditions,
    tuning=_tuning_frame(description['tunings'], results.primary_metric),
    failures=pd.DataFrame(description['failures']),
    settings={
      'seeds': description['seeds'],
      'num_folds': description['num_folds'],
      'num_new_clients': description['num_new_clients'],
      'scale': description['scale'],
      **description['settings'],
      **(description['parameters'] or {}),
    },
    methods=_methods_frame(description['methods']),
    condition_settings=pd.DataFrame(
      {'condition': name, 'settings': assignments(values)}
      for name, values in description['conditions'].items()
      if name
    ),
  )
  with folders.atomic_file(path) as file:
    file.write(html)


def _measured_picture(results):
  """The study's own picture, if it has a measure."""
  path = os.path.join(results.directory, FIGURE_NAME)
  if not (results.description['is_measured'] and os.path.exists(path)):
    return []
  content = pathlib.Path(path).read_bytes()
  return [_image('png', content, results.description['summary'])]


def _title(results):
  """The title of a study, in one line."""
  description = results.description
  if description['source'] or description['summary']:
    return ': '.join(
      filter(None, (description['source'], description['summary']))
    )
  settings = description['settings']
  parts = [
    str(settings[n]) for n in ('dataset', 'partition') if settings.get(n)
  ]
  numbers = {one['num_clients'] for one in description['partitions'].values()}
  if len(numbers) == 1:
    parts.append(_counted(*numbers, 'client'))
  if 'num_rounds' in settings:
    parts.append(_counted(settings['num_rounds'], 'round'))
  return ', '.join(parts) or description['name']


def _claims_frame(claims):
  """Stored claims as a table for readers."""
  return pd.DataFrame(
    {
      'claim': claim['statement'],
      'source': claim['source'],
      'measured': claims_lib.number(claim),
      'bound': claim['threshold'],
      'seeds': claim['num_seeds'],
      'verdict': claim['verdict'],
    }
    for claim in claims
  )


def _condition(results, name):
  """The values of a condition on the page."""
  primary, metrics = results.primary_metric, results.metrics
  methods = results.ranked(name)
  partition = results.description['partitions'].get(str(name))
  scores = results.client_scores
  scores = scores[scores['condition'] == name]
  shown = [
    metric
    for key, metric in metrics.items()
    if not key.startswith(metrics_lib.DOMAIN_PREFIXES)
  ]
  best, *_ = methods
  frame = results.figures_by_seed
  frame = frame[(frame['condition'] == name) & (frame['method'] == best)]
  values = frame[f'personal_{primary.name}']
  return {
    'name': name,
    'best': best,
    'best_score': metrics_lib.mean_text(values, primary.is_fraction),
    'figures': _figures_table(results, name, methods, shown),
    'domain_tables': _domain_tables(results, name, methods),
    'curves': _curve_pictures(results, name),
    'boxes': _box_pictures(scores, primary),
    'partition': partition,
    'partition_picture': partition and _partition_picture(partition),
    'test_sizes': scores[scores['seed'] == partition['seed']]
    .drop_duplicates('client')['num_test_examples']
    .tolist()
    if partition
    else [],
  }


def _table(
  frame: pd.DataFrame, marks: Optional[pd.DataFrame] = None
) -> markupsafe.Markup:
  """A data frame as an HTML table.

  Args:
    marks: CSS classes of the cells, of the same shape.
  """
  styler = frame.reset_index(drop=True).style
  styler.cell_ids = False
  # Styler's own `escape` does not escape lists and dicts.
  styler.hide(axis='index').format(
    lambda value: markupsafe.escape(_value_text(value, missing='–'))
  )
  if marks is not None:
    styler.set_td_classes(marks.reset_index(drop=True))
  html = styler.format_index(escape='html', axis=1).to_html(table_uuid='t')
  # The page has its own style.
  table = html[html.index('<table') :].replace(' id="T_t"', '', 1)
  return markupsafe.Markup(f'<div class="scroll" tabindex="0">{table}</div>')


def _picture(
  drawn: Union[Axes, Figure], label: str, title: str = ''
) -> dict[str, Any]:
  """A picture, its description, and the text above it."""
  figure = drawn if isinstance(drawn, Figure) else drawn.figure
  file = io.BytesIO()
  with matplotlib.rc_context(_SVG_STYLE):
    figure.savefig(
      file, format='svg', transparent=True, metadata={'Date': None}
    )
  return _image('svg+xml', file.getvalue(), label, title)


def _image(kind, content, label, title=''):
  source = f'data:image/{kind};base64,{base64.b64encode(content).decode()}'
  return {'source': source, 'label': label, 'title': title}


def _small(width: float, height: float) -> Axes:
  with matplotlib.rc_context(_SVG_STYLE):
    return plots.new_axes(width, height)


def _curve_pictures(results, condition):
  """The curves of the best methods, if there are any."""
  if not (results.curves['condition'] == condition).any():
    return []
  drawn = results.plot(_small(4.8, 3), condition=condition)
  title = results.primary_metric.title
  return [_picture(drawn, f'Personal {title} by round of the best.')]


def _box_pictures(scores, primary):
  """Pictures of distributions over trained clients and over new clients."""
  column = f'after/{primary.name}'
  pictures = []
  for is_new, part in scores.groupby('is_new', sort=False):
    part = part.dropna(subset=column) if column in part else part[:0]
    if part.empty:
      continue
    name = 'New clients' if is_new else 'Trained clients'
    ax = plots.boxes(
      part,
      primary,
      x=column,
      y='method',
      ax=_small(6, 0.8 + 0.22 * part['method'].nunique()),
    )
    ax.set_xlim(_limits(scores[column]))
    label = f'Distribution of {primary.title} over clients. {name}.'
    pictures.append(_picture(ax, label, name))
  return pictures


def _limits(values):
  """Common limits for pictures, which show all finite values."""
  finite = np.asarray(values, float)
  finite = finite[np.isfinite(finite)]
  if not finite.size:
    return None
  margin = 0.04 * np.ptp(finite) or 0.02
  return finite.min() - margin, finite.max() + margin


def _partition_picture(partition):
  with matplotlib.rc_context(_SVG_STYLE):
    figure = plots.draw_partition(
      partition, num_new_clients=partition['num_new_clients']
    )
  return _picture(figure, 'Training examples by client, class and domain.')


def assignments(values: Mapping[str, Any]) -> str:
  """Settings with their names, in one line."""
  texts = [f'{name} = {_value_text(value)}' for name, value in values.items()]
  return ', '.join(texts) or 'none'


def _value_text(value: Any, missing: str = 'none') -> Any:
  """A JSON value as text, with six digits for numbers."""
  if value is None or value is pd.NA or value is pd.NaT:
    return missing
  if isinstance(value, Mapping):
    return assignments(value)
  if isinstance(value, (list, tuple)):
    return ', '.join(map(_value_text, value)) or 'none'
  if isinstance(value, float):
    return missing if pd.isna(value) else f'{value:.6g}'
  return value if isinstance(value, str) else str(value)


def _score_text(value: float, metric: split_model.PrimaryMetric) -> str:
  """A value of a metric as text, a fraction in percent without the sign."""
  return f'{100 * value:.1f}' if metric.is_fraction else metric.text(value)


def _counted(number: int, noun: str) -> str:
  """A number of things, such as "1 run" or "1,000 runs"."""
  return f'{number:,} {noun}{"" if number == 1 else "s"}'


def _figures_table(results, condition, methods, metrics):
  """Two tables of methods' figures: the first columns, and all columns.

  The second is None if it has no more columns. Without any figure, the result
  is None.
  """
  texts, marks = results.cells(condition, methods, metrics)
  if texts.empty:
    return None
  labels = [results.label(condition, name) for name in methods]
  for frame, values in ((texts, labels), (marks, '')):
    frame.insert(0, 'method', values)
  shown = {metric.title for metric in metrics if metric.on_screen}
  short = [n for n in texts if n.rsplit(' (', 1)[0] in shown or n in shown]
  short = ['method', *short[:_MAX_COLUMNS]]
  full = None if len(short) == len(texts.columns) else _table(texts, marks)
  return _table(texts[short], marks[short]), full


def _domain_tables(results, condition, methods):
  """Tables of scores by domain, over domains and over clients."""
  primary, metrics = results.primary_metric, results.metrics
  scores = results.domain_scores
  if scores.empty:
    return {}
  scores = scores[scores['condition'] == condition]
  tables = {}
  for key, heading, over_clients in (
    (primary.name, primary.heading, f'personal_{primary.name}'),
    ('auc', 'AUC', 'client_auc'),
  ):
    if key not in scores or scores[key].isna().all():
      continue
    domains = scores.pivot_table(
      key,
      ['method', 'domain'],
      [name for name in ('seed', 'fold') if name in scores],
      'first',
      sort=False,
    )
    table = pd.DataFrame({'method': methods})
    metric = split_model.PrimaryMetric('AUC', True) if key == 'auc' else primary
    for domain in dict.fromkeys(scores['domain']):
      table[domain + ' (%)' * metric.is_fraction] = [
        metrics_lib.mean_text(domains.loc[method, domain], metric.is_fraction)
        if (method, domain) in domains.index
        else None
        for method in methods
      ]
    over_all = [
      metric
      for start in (f'domain_{key}_', over_clients)
      for name, metric in metrics.items()
      if name.startswith(start)
    ]
    texts, _ = results.cells(condition, methods, over_all)
    tables[heading] = _table(pd.concat([table, texts], axis=1))
  return tables


def _tuning_frame(tunings, primary):
  """A row for each point of each sweep."""
  return pd.DataFrame(
    {
      **(
        {'condition': tuning['condition']} if tuning['condition'] != '' else {}
      ),
      'method': tuning['method'],
      'hyperparameters': assignments(point['hparams']),
      'rounds': str(tuning['num_rounds'] or 'not tried'),
      'seed': str(tuning['seed']),
      f'validation {primary.title}': None
      if point['score'] is None
      else _score_text(point['score'], primary),
      'loss': point['loss'],
      '': 'chosen' if point['chosen'] else point['failure'] or '',
    }
    for tuning in tunings
    for point in tuning['points']
  )


def _methods_frame(methods):
  """The methods and their own settings."""
  return pd.DataFrame(
    {
      'method': name,
      'what it is': f'{method["algorithm"]}: {method["summary"]}',
      'its own settings': assignments(method['settings']),
      'hyperparameters': assignments(method['hparams'] or {}),
    }
    for name, method in methods.items()
  )
