"""HTML pages of comparisons, on a phone as on a laptop.

The page of a comparison stands alone: styles, script and pictures are within
it. Their text is in `page.html.j2`; here frames become tables and pictures.
"""

from __future__ import annotations

import base64
import io
import os
import statistics
from collections.abc import Mapping
from typing import Any, Optional, Union

import jinja2
import markupsafe
import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tff_pfl import plots
from tff_pfl.comparisons import metrics as metrics_lib
from tff_pfl.comparisons import results as results_lib
from tff_pfl.models import split_model
from tff_pfl.system import folders

REPORT_NAME = 'comparison.html'
VARIANT_TITLES = {
  'method': 'As the runs were asked to',
  'none': 'Without fine-tuning',
  'head': 'With the head fine-tuned',
  'all': 'With all weights fine-tuned',
  'trained': 'As they leave training on the client',
}
_MAX_CONTEXT_ROUNDS = 50
_SVG_STYLE = {'svg.fonttype': 'none', 'svg.hashsalt': 'page', 'font.size': 8}


def write(
  found: results_lib.Results,
  path: Union[str, os.PathLike[str]],
  published: Optional[pd.DataFrame] = None,
) -> None:
  """Writes the page of a comparison, the same for the same results.

  Args:
    found: Results of the comparison; sections without content are left out.
    path: Path of the .html file; after a crash it is the old one or the new
      one.
    published: Figures to show beside ours, a row for each: `source` and `note`,
      `method` (its name there), `algorithm`, `variants` (ways to personalize,
      of which the first one that was scored counts), `metric` (a name of
      `metrics.by_name`) and `value`.

  Raises:
    RunError: If the file cannot be written.
  """
  primary, metrics = found.primary_metric, found.metrics
  settings = {one['name']: one['value'] for one in found['settings']}
  methods = found.ranked()
  scores = found.client_scores
  render(
    path,
    title=found['title'],
    methods=methods,
    primary=primary,
    figures=_figures_table(
      methods,
      [
        metric
        for name, metric in metrics.items()
        if not name.startswith(metrics_lib.DOMAIN_PREFIXES)
      ],
    ),
    domain_tables=_domain_tables(methods, primary, metrics),
    published=_published(found['methods'], settings, published),
    curves=_curve_pictures(found, methods, primary),
    boxes=_box_pictures(scores, primary),
    changes=_change_pictures(scores, methods, primary),
    partition=found['partition'],
    partition_picture=_partition_picture(found['partition']),
    tuning=_tuning_frame(found['tunings'], primary),
    failures=pd.DataFrame(found['failures']),
    settings=settings,
    hparams=_hparams_frame(methods),
  )


def render(path: Union[str, os.PathLike[str]], **content: Any) -> None:
  """Writes a page of `page.html.j2`, without sections that have no content.

  Args:
    path: Path of the .html file.
    **content: What the template shows, by name; a data frame is a table.

  Raises:
    RunError: If the file cannot be written.
  """
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
    text=_mean_std_text,
    value=_value_text,
  )
  template = environment.get_template('page.html.j2')
  html = template.render(
    methods=content.pop('methods', ()),
    primary=content.pop('primary', split_model.ACCURACY),
    **content,
  )
  with folders.atomic_file(path) as file:
    file.write(html)


def _table(
  frame: pd.DataFrame, best: Optional[pd.DataFrame] = None
) -> markupsafe.Markup:
  """A data frame as an HTML table.

  Args:
    best: Booleans of the same shape, True for cells to mark.
  """
  styler = frame.reset_index(drop=True).style
  styler.cell_ids = False
  # Styler's own `escape` leaves lists and dicts as they are.
  styler.hide(axis='index').format(
    lambda value: markupsafe.escape(_value_text(value, missing='–'))
  )
  if best is not None:
    styler.set_td_classes(
      best.reset_index(drop=True).replace({True: 'best', False: ''})
    )
  html = styler.format_index(escape='html', axis=1).to_html(table_uuid='t')
  # The style is the page's.
  table = html[html.index('<table') :].replace(' id="T_t"', '', 1)
  return markupsafe.Markup(f'<div class="scroll" tabindex="0">{table}</div>')


def _picture(
  drawn: Union[Axes, Figure], label: str, title: str = '', note: str = ''
) -> dict[str, Any]:
  """A picture, its description, and the text above it."""
  figure = drawn if isinstance(drawn, Figure) else drawn.figure
  file = io.BytesIO()
  with matplotlib.rc_context(_SVG_STYLE):
    figure.savefig(
      file, format='svg', transparent=True, metadata={'Date': None}
    )
  source = base64.b64encode(file.getvalue()).decode()
  return {
    'source': f'data:image/svg+xml;base64,{source}',
    'label': label,
    'title': title,
    'note': note,
  }


def _small(width: float, height: float) -> Axes:
  with matplotlib.rc_context(_SVG_STYLE):
    return plots.new_axes(width, height)


def _curve_pictures(found, methods, primary):
  """Those of the best methods, then each with the others in gray behind it."""
  frame = found.curves
  labels = [m['label'] for m in methods if m['label'] in set(frame['label'])]
  personal = frame[frame['model'] == 'personal']
  rounds = sorted(personal['round'].unique())
  # More would make the page larger, not clearer.
  rounds = rounds[:: -(-len(rounds) // _MAX_CONTEXT_ROUNDS) or 1]
  means = personal[personal['round'].isin(rounds)]
  means = means.groupby(['label', 'round'], as_index=False)['value'].mean()
  pictures = []
  if len(labels) > 1:
    overview = found.plot(_small(9, 3.4))
    pictures.append(
      _picture(overview, f'Personal {primary.title} by round of the best.')
    )
  for label in labels:
    ax = _small(3, 2.2)
    if len(labels) > 1:
      plots.curves(
        means[means['label'] != label],
        ax=ax,
        units='label',
        estimator=None,
        color='#c4c4c4',
        linewidth=0.6,
        by=None,
      )
    own = frame[frame['label'] == label]
    plots.curves(
      own,
      by='model',
      metric=primary,
      style='model',
      palette={'personal': plots.AFTER, 'global': plots.GLOBAL},
      ax=ax,
      legend=False,
    )
    pictures.append(
      _picture(ax, f'{primary.heading} of {label} by round.', label)
    )
  return pictures


def _box_pictures(scores, primary):
  """Distributions over clients, a picture for each variant."""
  if scores.empty:
    return []
  pictures = []
  for (is_new, variant), part in scores.groupby(
    ['is_new', 'variant'], sort=False
  ):
    part = part.dropna(subset=f'after/{primary.name}')
    if part.empty:
      continue
    title = ('New clients. ' if is_new else '') + VARIANT_TITLES[variant]
    ax = plots.boxes(
      part,
      primary,
      x=f'after/{primary.name}',
      y='label',
      ax=_small(6, 0.8 + 0.22 * part['label'].nunique()),
    )
    ax.set_xlim(_limits(scores[f'after/{primary.name}']))
    label = f'Distribution of {primary.title} over clients. {title}.'
    pictures.append(_picture(ax, label, title))
  return pictures


def _change_pictures(scores, methods, primary):
  """Pictures of clients before and after personalization, by variant."""
  if scores.empty:
    return {}
  names = [f'before/{primary.name}', f'after/{primary.name}']
  limits = _limits(scores[names])
  pictures = {}
  for method in methods:
    own = scores[(scores['label'] == method['label']) & ~scores['is_new']]
    both = own[names].dropna()
    if both.empty:
      continue
    before, after = primary.merit(both).T
    note = f'{(after < before).sum():,} of {len(both):,} worse after'
    if (both.iloc[:, 0] == both.iloc[:, 1]).all():
      note = 'nothing changed'
    if not method['has_global_model']:
      note += '; no global model'
    ax = plots.changes(own, primary, title='', ax=_small(2.6, 2.5))
    ax.set(xlim=limits, ylim=limits)
    pictures.setdefault(VARIANT_TITLES[method['variant']], []).append(
      _picture(
        ax,
        f'{primary.heading} of clients before and after personalization, '
        f'{method["label"]}.',
        method['label'],
        note,
      )
    )
  return pictures


def _limits(values):
  """Limits on which all that is finite can be seen, of several pictures."""
  finite = np.asarray(values, float)
  finite = finite[np.isfinite(finite)]
  if not finite.size:
    return None
  margin = 0.04 * np.ptp(finite) or 0.02
  return finite.min() - margin, finite.max() + margin


def _partition_picture(partition):
  ids = partition['client_ids']
  maps = {}
  if partition['class_counts'] is not None:
    maps['class'] = pd.DataFrame(partition['class_counts'], ids)
  if partition['domain_counts'] is not None:
    maps['domain'] = pd.DataFrame(partition['domain_counts'], ids)
  with matplotlib.rc_context(_SVG_STYLE):
    figure = plots.partition_counts(
      pd.Series(partition['num_train_examples'], ids),
      maps,
      num_new_clients=partition['num_new_clients'],
    )
  return _picture(figure, 'Training examples by client, class and domain.')


def assignments(values: Mapping[str, Any]) -> str:
  """Settings with their names, in one line."""
  texts = [f'{name} = {_value_text(value)}' for name, value in values.items()]
  return ', '.join(texts) or 'none'


def _value_text(value: Any, missing: str = 'none') -> Any:
  """A JSON value as text; numbers with six digits."""
  if value is None or value is pd.NA or value is pd.NaT:
    return missing
  if isinstance(value, Mapping):
    return assignments(value)
  if isinstance(value, (list, tuple)):
    return ', '.join(map(_value_text, value)) or 'none'
  if isinstance(value, float):
    return missing if pd.isna(value) else f'{value:.6g}'
  return value if isinstance(value, str) else str(value)


def _mean_std_text(
  spread: Mapping[str, Any], metric: split_model.PrimaryMetric, unit: str = '%'
) -> str:
  """The mean of a metric over seeds and, after ±, its deviation if any."""
  text = _score_text(spread['mean'], metric)
  if metric.is_fraction:
    text += unit
  if spread['std'] is not None:
    text += f' ± {_score_text(spread["std"], metric)}'
  return text


def _score_text(value: float, metric: split_model.PrimaryMetric) -> str:
  """A value of a metric, of a fraction in percent without the sign."""
  return f'{100 * value:.1f}' if metric.is_fraction else metric.text(value)


def _counted(number: int, noun: str) -> str:
  """A number of things, such as "1 run" or "1,000 runs"."""
  return f'{number:,} {noun}{"" if number == 1 else "s"}'


def _figures_table(methods, metrics, domain_figures=()):
  """The figures of methods as a table, and the meaning of its columns.

  Args:
    metrics: Metrics of the columns; one that no method has is left out.
    domain_figures: Further metrics, each with the figures of the methods.

  Returns:
    The table, with the best of each column marked, and descriptions of columns
    by title. None without any figure.
  """
  columns = results_lib.columns_of(methods, metrics, domain_figures)
  if not columns:
    return None
  titles = {'method': 'What was run.'}
  lead = {'method': [method['label'] for method in methods]}
  if len({method['variant'] for method in methods}) > 1:
    titles['personalized'] = 'How the models of the last round were fine-tuned.'
    lead['personalized'] = [VARIANT_TITLES[m['variant']] for m in methods]
  cells, best = results_lib.cells(methods, columns)
  titles.update(zip(cells, (metric.description for metric, _ in columns)))
  lead = pd.DataFrame(lead)
  return _table(
    pd.concat([lead, cells], axis=1),
    pd.concat([lead.astype(bool) & False, best], axis=1),
  ), titles


def _domain_tables(methods, primary, metrics):
  """Tables of domains' scores, and of scores over domains and clients."""
  scores = [score for method in methods for score in method['domains']]
  tables = {}
  for key, title, over_clients in (
    (primary.name, primary.heading, f'personal_{primary.name}'),
    ('auc', 'AUC', 'client_auc'),
  ):
    if all(score[key] is None for score in scores):
      continue
    over_all = [
      metric
      for start in (f'domain_{key}_', over_clients)
      for name, metric in metrics.items()
      if name.startswith(start)
    ]
    domain_figures = []
    for domain in dict.fromkeys(score['domain'] for score in scores):
      description = (
        f"{title} of the personal models on all clients' test examples of the "
        'domain, after the last round.'
      )
      metric = over_all[0]._replace(title=domain, description=description)
      spreads = [
        results_lib.mean_std(
          [s[key] for s in method['domains'] if s['domain'] == domain]
        )
        for method in methods
      ]
      domain_figures.append((metric, spreads))
    tables[title] = _figures_table(methods, over_all, domain_figures)[0]
  return tables


def _published(methods, settings, published):
  """Tables of published figures beside ours, by source and note."""
  if published is None or published.empty:
    return {}
  asked = settings.get('fine_tune', 'method')
  # The rows that the runs were asked for come first, and count.
  by_variant = {
    (m['algorithm'], asked if m['variant'] == 'method' else m['variant']): m
    for m in reversed(methods)
  }

  def row(figure):
    ours = [by_variant.get((figure.algorithm, v)) for v in figure.variants]
    method = next(filter(None, ours), None)
    spread = method and method['metrics'].get(figure.metric)
    is_known = not pd.isna(figure.value)
    return {
      'in the paper': figure.method,
      'here': method['label'] if method else '',
      'here (%)': _mean_std_text(spread, split_model.ACCURACY, '')
      if spread
      else '',
      'published (%)': f'{100 * figure.value:.2f}' if is_known else '',
      'difference': f'{100 * (spread["mean"] - figure.value):+.1f}'
      if spread and is_known
      else '',
      'figure': metrics_lib.by_name()[figure.metric].title,
    }

  return {
    key: pd.DataFrame(map(row, of_source.itertuples()))
    for key, of_source in published.groupby(['source', 'note'], sort=False)
  }


def _tuning_frame(tunings, primary):
  """A row for each point of each sweep."""
  return pd.DataFrame(
    {
      'method': tuning['algorithm'],
      'hyperparameters': assignments(point['hparams']),
      'rounds': str(tuning['num_rounds'] or 'not tried'),
      'seed': str(tuning['seed']),
      f'validation {primary.title}': None
      if point[primary.name] is None
      else _score_text(point[primary.name], primary),
      'loss': point['loss'],
      '': 'chosen' if point['chosen'] else point['failure'] or '',
    }
    for tuning in tunings
    for point in tuning['points']
  )


def _hparams_frame(methods):
  """Hyperparameters; variants have those of their method."""
  rows = pd.DataFrame(
    {
      'method': m['algorithm'],
      'what it is': m['summary'],
      'hyperparameters': assignments(m['hparams']),
    }
    for m in methods
  )
  return rows.drop_duplicates()
