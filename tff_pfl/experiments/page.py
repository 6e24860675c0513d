"""HTML pages of comparisons and of papers' claims, on a phone as on a laptop.

The page of a comparison stands alone: styles, script and pictures are within
it. What pages say is in `page.html.j2`; here figures become rows of tables.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Mapping, Sequence
from typing import Any, Union

import jinja2
from markupsafe import Markup

from tff_pfl.experiments import claims as claims_lib
from tff_pfl.experiments import metrics as metrics_lib
from tff_pfl.experiments import pictures, published
from tff_pfl.experiments import results as results_lib
from tff_pfl.models import split_model
from tff_pfl.simulation import summary as summary_lib

REPORT_NAME = 'comparison.html'
# By the unit of a metric: what its column is in, the factor and the decimals.
_UNITS = {
  'fraction': (' (%)', 100.0, 1),
  'bytes': (' (kB)', 1e-3, 1),
  'seconds': (' (s)', 1.0, 3),
  'loss': ('', 1.0, 3),
  'score': ('', 1.0, None),
}


def write(
  found: results_lib.Results, path: Union[str, os.PathLike[str]]
) -> None:
  """Writes the page of a comparison, the same for the same results.

  Args:
    found: What the comparison found; sections for which there is nothing to
      show are left out.
    path: The .html file; after a crash it is the old one or the new one.

  Raises:
    RunError: If the file cannot be written.
  """
  primary, metrics = (
    results_lib.primary_metric(found),
    results_lib.metrics(found),
  )
  settings = {one['name']: one['value'] for one in found['settings']}
  methods = pictures.ranked(found['methods'], primary)
  _render(
    path,
    title=found['title'],
    methods=methods,
    primary=primary,
    figures=_figures_table(
      methods,
      [
        metric
        for name, metric in metrics.items()
        if not name.startswith(metrics_lib.OF_DOMAINS)
      ],
    ),
    domain_tables=_domain_tables(methods, primary, metrics),
    published=_published(found['methods'], settings),
    partition=found['partition'],
    tuning=_tuning_rows(found['tunings'], primary),
    failures=[list(failure.values()) for failure in found['failures']],
    settings=settings,
    # Variants have the hyperparameters of their method.
    hparams=list(
      {
        m['algorithm']: [
          m['algorithm'],
          m['summary'],
          assignments(m['hparams']),
        ]
        for m in found['methods']
      }.values()
    ),
  )


def write_claims(
  summaries: Sequence[Mapping[str, Any]],
  path: Union[str, os.PathLike[str]],
) -> None:
  """Writes the page of the papers' experiments: their claims and figures.

  Args:
    summaries: As `paper.run_all` returns them.
    path: The .html file, in the folder that has the experiments' folders.

  Raises:
    RunError: If the file cannot be written.
  """
  rows = [
    [
      summary['experiment'],
      claim['statement'],
      claim['source'],
      claim['measured'],
      None if claim['low'] is None else [claim['low'], claim['high']],
      claim['threshold'],
      claim['num_seeds'],
      claim['verdict'],
    ]
    for summary in summaries
    for claim in summary['claims']
  ]
  _render(
    path,
    title="The papers' experiments",
    claims=rows,
    claims_count=claims_lib.count(row[-1] for row in rows),
    experiments=[summary for summary in summaries if 'error' not in summary],
    failures=[
      [summary['experiment'], None, None, summary['error']]
      for summary in summaries
      if 'error' in summary
    ],
  )


def _render(path, **content):
  """Writes the page of what is given; other sections have nothing to show."""
  environment = jinja2.Environment(
    loader=jinja2.PackageLoader(__package__, ''),
    autoescape=True,
    trim_blocks=True,
    lstrip_blocks=True,
  )
  environment.filters.update(
    counted=_counted,
    median=statistics.median,
    text=_spread_text,
    value=_value_text,
  )
  template = environment.get_template('page.html.j2')
  html = template.render(
    methods=content.pop('methods', ()),
    primary=content.pop('primary', split_model.ACCURACY),
    pictures=pictures,
    **content,
  )
  with summary_lib.atomic_file(path) as file:
    file.write(html)


def assignments(values: Mapping[str, Any]) -> str:
  """Settings with their names, in one line."""
  texts = [f'{name} = {_value_text(value)}' for name, value in values.items()]
  return ', '.join(texts) or 'none'


def _value_text(value: Any) -> str:
  """A JSON value as text; numbers with six digits."""
  if value is None:
    return 'none'
  if isinstance(value, Mapping):
    return assignments(value)
  if isinstance(value, (list, tuple)):
    return ', '.join(map(_value_text, value)) or 'none'
  if isinstance(value, float):
    return f'{value:.6g}'
  return value if isinstance(value, str) else str(value)


def _spread_text(
  spread: Mapping[str, Any], metric: split_model.PrimaryMetric, unit: str = '%'
) -> str:
  """A metric over seeds, with its spread if there is one."""
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


def _figures_table(methods, metrics, of_domains=()):
  """A table of the figures of methods.

  Args:
    metrics: Those of the columns; one that no method has is left out.
    of_domains: Further metrics, each with the figures of the methods.

  Returns:
    By the title of each column what it holds, first the methods; and for each
    method the cells of a row. None without any figure.
  """
  titles = {'method': 'What was run.'}
  cells = [[method['label'] for method in methods]]
  if len({method['variant'] for method in methods}) > 1:
    titles['personalized'] = 'How the models of the last round were fine-tuned.'
    cells.append([pictures.VARIANT_TITLES[m['variant']] for m in methods])
  columns = [
    (m, [one['metrics'].get(m.name) for one in methods]) for m in metrics
  ]
  columns = [*of_domains, *(column for column in columns if any(column[1]))]
  for metric, spreads in columns:
    titles[metric.title + _UNITS[metric.unit][0]] = metric.description
    cells.append(_figure_cells(methods, metric, spreads))
  return (titles, list(zip(*cells))) if columns else None


def _figure_cells(methods, metric, spreads):
  """The cells of a column of figures, the best one marked."""
  unit, factor, decimals = _UNITS[metric.unit]

  def shown(value):
    if decimals is None:
      return summary_lib.format_cell(value)
    return f'{factor * value:.{decimals}f}'

  means = {shown(spread['mean']) for spread in spreads if spread}
  best = None
  if len(means) > 1 and metric.higher_is_better is not None:
    best = (max if metric.higher_is_better else min)(means, key=float)
  cells = []
  for method, spread in zip(methods, spreads):
    if spread is None:
      cells.append(None)
      continue
    mean, note = shown(spread['mean']), ''
    # What is counted, as bytes are, is the same for all seeds.
    if spread['std'] is not None and (spread['std'] > 0 or '%' in unit):
      note += f' ± {shown(spread["std"])}'
    num_seeds = results_lib.num_seeds(method)
    if spread['num_seeds'] < num_seeds:
      note += f' ({spread["num_seeds"]} of {_counted(num_seeds, "seed")})'
    cell = Markup('<mark>{}</mark>' if mean == best else '{}').format(mean)
    cells.append(cell + Markup('<small>{}</small>').format(note))
  return cells


def _domain_tables(methods, primary, metrics):
  """By title the scores of the domains, then those over domains and clients."""
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
    of_domains = []
    for domain in dict.fromkeys(score['domain'] for score in scores):
      description = (
        f"{title} of the personal models on all clients' test examples of the "
        'domain, after the last round.'
      )
      metric = over_all[0]._replace(title=domain, description=description)
      spreads = [
        results_lib.spread(
          [s[key] for s in method['domains'] if s['domain'] == domain]
        )
        for method in methods
      ]
      of_domains.append((metric, spreads))
    tables[title] = _figures_table(methods, over_all, of_domains)
  return tables


def _published(methods, settings):
  """By source, published figures of this very setting beside ours."""
  figures = published.matching_figures(
    *(settings.get(name) for name in ('dataset', 'num_clients', 'partition'))
  )
  asked = settings.get('personalization', {}).get('fine_tune', 'method')
  # The rows that the runs were asked for come first, and count.
  by_variant = {
    (m['algorithm'], asked if m['variant'] == 'method' else m['variant']): m
    for m in reversed(methods)
  }

  def row(figure):
    ours = [by_variant.get((figure.algorithm, v)) for v in figure.variants]
    method = next(filter(None, ours), None)
    spread = method and method['metrics'].get(figure.metric)
    difference = theirs = ''
    if figure.value is not None:
      theirs = f'{100 * figure.value:.2f}'
      if spread:
        difference = f'{100 * (spread["mean"] - figure.value):+.1f}'
    return [
      figure.method,
      method['label'] if method else '',
      _spread_text(spread, split_model.ACCURACY, '') if spread else '',
      theirs,
      difference,
      metrics_lib.by_name()[figure.metric].title,
    ]

  return {
    source: (note, list(map(row, of_source)))
    for source, (note, of_source) in figures.items()
  }


def _tuning_rows(tunings, primary):
  """For each point of each sweep the cells of a table."""
  return [
    [
      tuning['algorithm'],
      assignments(point['hparams']),
      tuning['num_rounds'] or 'not tried',
      tuning['seed'],
      None
      if point[primary.name] is None
      else _score_text(point[primary.name], primary),
      point['loss'],
      Markup('<mark>chosen</mark>')
      if point['chosen']
      else point['failure'] or '',
    ]
    for tuning in tunings
    for point in tuning['points']
  ]
