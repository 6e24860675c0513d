"""Pictures of a comparison, small enough for a page that a phone shows, too.

Many methods in one picture cannot be told apart, so each has a panel of its
own, with the others in gray behind it. A panel is as wide as a phone; the page
puts as many side by side as there is room for.
"""

from __future__ import annotations

import html
import io
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Optional

import markupsafe
import matplotlib
import numpy as np
from matplotlib import ticker
from matplotlib.axis import Axis
from matplotlib.figure import Figure

from tff_pfl.datasets import partition_plot
from tff_pfl.evaluation import fairness
from tff_pfl.experiments import results as results_lib
from tff_pfl.models import split_model
from tff_pfl.simulation import picture_style

VARIANT_TITLES = {
  'method': 'As the runs were asked to',
  'none': 'Without fine-tuning',
  'head': 'With the head fine-tuned',
  'all': 'With all weights fine-tuned',
}
PERSONAL_COLOR = picture_style.COLORS[0]
HURT_COLOR = picture_style.COLORS[1]
GLOBAL_COLOR = picture_style.COLORS[4]
CONTEXT_COLOR = '#c4c4c4'
# As many as there are colors to tell apart.
_MAX_OVERVIEW_METHODS = len(picture_style.COLORS)
# Of a picture that stands alone, in inches.
_WIDE = 9.0
# Where the axes of a panel are in it.
_PANEL = (0.17, 0.2, 0.8, 0.76)
# Beyond these a picture grows larger, not clearer.
_MAX_CURVE_POINTS = 50
_MAX_SCATTER_POINTS = 150
_MAX_PARTITION_CLIENTS = 200
_LONGEST_NAME = 12
_COLORED = ('axes.label', 'axes.edge', 'text.', 'xtick.', 'ytick.')
_STYLE = {
  **picture_style.PLAIN_TEXT,
  **{f'{name}color': picture_style.TEXT_COLOR for name in _COLORED},
  'font.size': 8,
  'axes.titlesize': 8,
  'axes.linewidth': 0.6,
  'xtick.major.size': 2,
  'ytick.major.size': 2,
}
_styled = matplotlib.rc_context(_STYLE)
# What a document of its own has and an element of a page has not.
_TO_ELEMENT = tuple(
  (re.compile(pattern, re.DOTALL), replacement)
  for pattern, replacement in (
    (r'^.*?(?=<svg)', ''),
    (r'<metadata>.*?</metadata>|<defs>\s*<style.*?</defs>', ''),
    (r'\s*\n\s*', ' '),
    # Ids that repeat from picture to picture; nothing refers to them.
    (r'<g id="[^"]*"', '<g'),
    (r'(<\w+) xlink:', r'\1 '),
    # The font is the page's.
    (r'font-family: [^;"]*;? ?', ''),
  )
)
_DRAWN_ATTRIBUTE = re.compile(r' (?:d|x|y|transform)="[^"]*"')
# A tenth of a point is less than a pixel.
_NEEDLESS_DIGITS = re.compile(r'(?<=\.\d)\d+')

_Methods = Sequence[results_lib.Method]
_Primary = split_model.PrimaryMetric


class Picture(NamedTuple):
  """A picture, and what stands above it.

  Attributes:
    label: What it shows, for those who cannot see it; unique on a page.
  """

  figure: Figure
  label: str
  title: str = ''
  note: str = ''

  @property
  def svg(self) -> markupsafe.Markup:
    """An `svg` element that can stand in an HTML page."""
    file = io.StringIO()
    # The ids within the picture are hashes with this salt.
    options = {'svg.fonttype': 'none', 'svg.hashsalt': self.label}
    with matplotlib.rc_context({**_STYLE, **options}):
      self.figure.savefig(
        file, format='svg', transparent=True, metadata={'Date': None}
      )
    text = file.getvalue()
    for pattern, replacement in _TO_ELEMENT:
      text = pattern.sub(replacement, text)
    text = _DRAWN_ATTRIBUTE.sub(lambda m: _NEEDLESS_DIGITS.sub('', m[0]), text)
    view_box = re.search('viewBox="[^"]*"', text)[0]
    label = html.escape(self.label)
    start = f'<svg {view_box} role="img" aria-label="{label}">'
    return markupsafe.Markup(start + text.partition('>')[2].strip())


class Curve(NamedTuple):
  """The primary metric over rounds, over seeds.

  Attributes:
    rounds: Rounds with an evaluation in every run, `[n]`.
    mean: Mean over seeds `[n]`; NaN where a seed has no finite value.
    band: One standard deviation below and above, `[2, n]`; of fractions within
      [0, 1].
  """

  rounds: np.ndarray
  mean: np.ndarray
  band: np.ndarray


def ranked(methods: _Methods, primary: _Primary) -> list[results_lib.Method]:
  """Methods from best to worst, those without a figure last, else as given."""

  def key(method):
    # Every way to personalize has this figure.
    spread = method['metrics'].get(f'personal_{primary.name}')
    return math.inf if spread is None else -primary.merit(spread['mean'])

  return sorted(methods, key=key)


def mean_curve(
  curves: Sequence[Mapping[str, Any]],
  which: str,
  primary: _Primary,
) -> Optional[Curve]:
  """Mean and spread of the runs of a method; None where there are no figures.

  Args:
    which: 'personal' or 'global_model'.
  """
  runs = [
    dict(zip(curve['rounds'], curve[which]))
    for curve in curves
    if curve[which] is not None
  ]
  if not runs:
    return None
  rounds = np.array(sorted(set.intersection(*map(set, runs))), int)
  num_points = min(len(rounds), _MAX_CURVE_POINTS)
  rounds = rounds[
    np.linspace(0, len(rounds) - 1, num_points).round().astype(int)
  ]
  values = np.array([[run[r] for r in rounds] for run in runs], float)
  if not np.isfinite(values).any():
    return None
  mean = values.mean(axis=0)
  std = values.std(axis=0, ddof=1) if len(runs) > 1 else np.zeros_like(mean)
  band = np.array([mean - std, mean + std])
  return Curve(rounds, mean, band.clip(0, 1) if primary.is_fraction else band)


@_styled
def curves_overview(methods: _Methods, primary: _Primary) -> Optional[Picture]:
  """The curves of the first methods, a few; None where no method has any."""
  curves = _curves(methods, 'personal', primary)
  shown = list(curves)[:_MAX_OVERVIEW_METHODS]
  if not shown:
    return None
  figure, axes = _figure(_WIDE, 3.4)
  for index, label in enumerate(shown):
    _draw_curve(axes, curves[label], picture_style.color(index), label=label)
  _finish_curves(axes, [curves[label] for label in shown], primary)
  figure.legend(loc='outside lower center', ncols=2, frameon=False)
  return Picture(
    figure, f'Personal {primary.title} by round of {", ".join(shown)}.'
  )


def curve_panels(methods: _Methods, primary: _Primary) -> list[Picture]:
  """For each method its curves before those of the others, on the same axes."""
  personal = _curves(methods, 'personal', primary)
  shared = _curves(methods, 'global_model', primary)
  return [_curve_panel(label, personal, shared, primary) for label in personal]


@_styled
def _curve_panel(label, personal, shared, primary):
  figure, axes = _figure(3.0, 2.1, _PANEL)
  for other, curve in personal.items():
    if other != label:
      _draw_curve(axes, curve, CONTEXT_COLOR, 0.6, has_band=False)
  _draw_curve(axes, personal[label], PERSONAL_COLOR)
  if label in shared:
    # Dashed and on top, so that both show where they are the same.
    _draw_curve(axes, shared[label], GLOBAL_COLOR, linestyle='--')
  _finish_curves(axes, [*personal.values(), *shared.values()], primary)
  title = primary.heading
  return Picture(figure, f'{title} of {label} by round.', label)


def client_boxes(methods: _Methods, primary: _Primary) -> list[Picture]:
  """How clients differ, a picture for each variant."""
  groups = {}
  for prefix, which in (('', 'clients'), ('New clients. ', 'new_clients')):
    for title, of_variant in _by_variant(methods).items():
      rows = {
        method['label']: values
        for method in of_variant
        if (values := _scores(method[which], primary))
      }
      if rows:
        groups[prefix + title] = rows
  limits = _limits(
    (v for rows in groups.values() for v in rows.values()), primary
  )
  width = _WIDE if len(groups) == 1 else _WIDE / 2
  return [
    _boxes(title, rows, limits, primary, width)
    for title, rows in groups.items()
  ]


@_styled
def _boxes(title, rows, limits, primary, width):
  """Draws a box for each row, the first on top."""
  figure, axes = _figure(width, 0.6 + 0.2 * len(rows))
  places, values = np.arange(len(rows)), list(rows.values())
  low, first, median, third, high = np.transpose(
    [np.percentile(row, (5, 25, 50, 75, 95)) for row in values]
  )
  means = [np.mean(row) for row in values]
  worst = [fairness.worst_10_percent(row, primary) for row in values]
  color = {'color': PERSONAL_COLOR}
  axes.hlines(places, low, high, linewidth=0.8, **color)
  axes.barh(places, third - first, 0.6, left=first, alpha=0.3, **color)
  axes.vlines(median, places - 0.3, places + 0.3, linewidth=1.5, **color)
  axes.plot(means, places, 'o', markersize=3.5, **color)
  axes.plot(worst, places, 'x', markersize=4, color=HURT_COLOR)
  axes.set_yticks(places, rows)
  axes.invert_yaxis()
  axes.grid(visible=False, axis='y')
  axes.set(
    xlim=limits, xlabel=_axis_label(primary, axes.xaxis, ' of the client')
  )
  label = f'Distribution of {primary.title} over clients. {title}.'
  return Picture(figure, label, title)


def change_panels(
  methods: _Methods, primary: _Primary
) -> dict[str, list[Picture]]:
  """By variant, each method's clients before and after personalization."""
  scores = {}
  for method in methods:
    pairs = [
      [c[f'{primary.name}_{when}'] for when in ('before', 'after')]
      for c in method['clients']
    ]
    pairs = [pair for pair in pairs if None not in pair]
    if pairs:
      scores[method['label']] = np.array(pairs)
  limits = _limits(scores.values(), primary)
  panels = {
    title: [
      _change_panel(method, scores[method['label']], limits, primary)
      for method in of_variant
      if method['label'] in scores
    ]
    for title, of_variant in _by_variant(methods).items()
  }
  return {title: drawn for title, drawn in panels.items() if drawn}


@_styled
def _change_panel(method, scores, limits, primary):
  """Draws a point for each client.

  Scores on few examples coincide: the area of a point is the number of clients
  it stands for.
  """
  figure, axes = _figure(2.6, 2.5, _PANEL)
  diagonal = {'color': picture_style.TEXT_COLOR, 'linewidth': 0.6}
  axes.axline((limits[0],) * 2, slope=1, linestyle='--', **diagonal)
  points, counts = picture_style.coinciding(
    *scores.T,
    _MAX_SCATTER_POINTS,
    0.01 if primary.is_fraction else 0.01 * (limits[1] - limits[0]),
  )
  hurt = np.less(*primary.merit(points).T[::-1])
  size = min(4.0, 40.0 / math.sqrt(len(scores)))
  for chosen, color in ((~hurt, PERSONAL_COLOR), (hurt, HURT_COLOR)):
    for count in np.unique(counts[chosen]):
      # Markers, as `scatter` would write the outline of each point.
      axes.plot(
        *points[chosen & (counts == count)].T,
        'o',
        markersize=min(size * math.sqrt(count), 14.0),
        markeredgewidth=0,
        color=color,
        alpha=0.5,
      )
  unit = ' (%)' if primary.is_fraction else ''
  if primary.is_fraction:
    for axis in (axes.xaxis, axes.yaxis):
      picture_style.use_percent(axis)
  axes.set(xlim=limits, ylim=limits)
  axes.set(xlabel=f'Before{unit}', ylabel=f'After{unit}')
  axes.set_aspect('equal')
  note = f'{counts[hurt].sum():,} of {len(scores):,} hurt'
  if not np.diff(scores).any():
    note = 'nothing changed'
  if not method['has_global_model']:
    note += '; no global model'
  return Picture(
    figure,
    f'{primary.heading} of clients before and after '
    f'personalization, {method["label"]}.',
    method['label'],
    note,
  )


@_styled
def partition_picture(partition: Mapping[str, Any]) -> Picture:
  """How many training examples, of which classes and domains, clients hold.

  Args:
    partition: The partition; beyond 200 clients, evenly spaced ones are shown.
  """
  totals = np.asarray(partition['num_train_examples'])
  shown = partition_plot.equidistant(len(totals), _MAX_PARTITION_CLIENTS)
  maps = {}
  if partition['class_counts'] is not None:
    maps['Class'] = np.asarray(partition['class_counts'])[shown]
  if partition['domain_counts'] is not None:
    by_domain = list(partition['domain_counts'].values())
    maps['Domain'] = np.transpose(by_domain)[shown]
  heights = [1, *(2 if kind == 'Class' else 1 for kind in maps)]
  figure = Figure((_WIDE, 0.7 + 0.8 * sum(heights)), layout='constrained')
  rows = figure.subplots(
    len(heights), sharex=True, squeeze=False, height_ratios=heights
  )[:, 0]
  rows[0].bar(np.arange(len(shown)), totals[shown], color=PERSONAL_COLOR)
  rows[0].set_ylabel('Examples')
  if partition_plot.is_skewed(totals):
    rows[0].set(yscale='log', ylim=(0.5, None))
    partition_plot.use_plain_powers(rows[0].yaxis)
  else:
    rows[0].yaxis.set_major_locator(ticker.MaxNLocator(3, integer=True))
  picture_style.tidy(rows[0])
  for axes, (kind, counts) in zip(rows[1:], maps.items()):
    _draw_counts(axes, kind, counts)
  if 'Domain' in maps:
    names = [name[:_LONGEST_NAME] for name in partition['domain_counts']]
    rows[-1].set_yticks(range(len(names)), names)
  first_new = np.searchsorted(shown, len(totals) - partition['num_new_clients'])
  if first_new < len(shown):
    for axes in rows:
      axes.axvline(first_new - 0.5, color=HURT_COLOR, linewidth=1)
    rows[0].set_title('new clients', loc='right', color=HURT_COLOR)
  places = np.arange(0, len(shown), math.ceil(len(shown) / 6))
  names = [partition['client_ids'][place] for place in shown[places]]
  rows[-1].set_xticks(places, [name[:_LONGEST_NAME] for name in names])
  rows[-1].set(xlabel='Client', xlim=(-0.5, len(shown) - 0.5))
  return Picture(figure, 'Training examples by client, class and domain.')


def _figure(width, height, place=None):
  """A figure of a size in inches, and its only axes.

  Args:
    place: Left, bottom, width and height of the axes; None to find one, which
      takes longer than to draw the figure.
  """
  figure = Figure((width, height), layout=None if place else 'constrained')
  axes = figure.add_axes(place) if place else figure.add_subplot()
  picture_style.tidy(axes)
  return figure, axes


def _limits(values: Iterable[Any], primary: _Primary) -> tuple[float, float]:
  """Limits of an axis of the metric on which all `values` are to be seen."""
  finite = [v for some in values for v in np.ravel(some) if math.isfinite(v)]
  low, high = min(finite, default=0.0), max(finite, default=1.0)
  if not primary.is_fraction:
    margin = 0.04 * (high - low) or 0.04 * abs(high) or 1.0
    return low - margin, high + margin
  margin = max(0.04 * (high - low), 0.02)
  return max(low - margin, -0.03), min(high + margin, 1.03)


def _by_variant(methods):
  """By its title, the methods of each way to personalize."""
  return {
    title: [method for method in methods if method['variant'] == variant]
    for variant, title in VARIANT_TITLES.items()
  }


def _scores(clients, primary):
  scores = [client[f'{primary.name}_after'] for client in clients]
  return [score for score in scores if score is not None]


def _curves(methods, which, primary):
  """By label the curves of the methods that have any."""
  curves = {
    m['label']: mean_curve(m['curves'], which, primary) for m in methods
  }
  return {label: curve for label, curve in curves.items() if curve is not None}


def _draw_curve(axes, curve, color, linewidth=1.4, has_band=True, **options):
  # A single evaluation is a point, which a line would not show.
  marker = 'o' if len(curve.rounds) == 1 else ''
  options.update(color=color, linewidth=linewidth, marker=marker, markersize=3)
  axes.plot(curve.rounds, curve.mean, **options)
  if has_band and np.ptp(curve.band, axis=0).any():
    axes.fill_between(curve.rounds, *curve.band, color=color, alpha=0.15, lw=0)


def _finish_curves(axes, curves, primary):
  axes.set_ylim(_limits((curve.band for curve in curves), primary))
  axes.set_xlim(left=0)
  axes.set(xlabel='Round', ylabel=_axis_label(primary, axes.yaxis))
  axes.xaxis.set_major_locator(
    ticker.MaxNLocator(5, integer=True, steps=[1, 2, 5, 10], min_n_ticks=1)
  )


def _axis_label(primary: _Primary, axis: Axis, of_what: str = '') -> str:
  """The label of an axis of the metric, which is in percent where that is."""
  if primary.is_fraction:
    picture_style.use_percent(axis)
  return primary.label(of_what)


def _draw_counts(axes, kind, counts):
  """Draws the number of examples by kind and client, darker for more."""
  scale = partition_plot.norm(counts)
  if not partition_plot.is_skewed(counts):
    # A single example is to be seen, too.
    scale.vmin = -scale.vmax / 4
  # Not resampled: the browser scales the few pixels that there are.
  axes.imshow(
    np.ma.masked_equal(counts.T, 0),
    cmap='Blues',
    norm=scale,
    aspect='auto',
    interpolation='none',
  )
  axes.set_ylabel(kind)
  axes.yaxis.set_major_locator(ticker.MaxNLocator(10, integer=True))
  axes.spines[:].set_visible(False)
  axes.set_title(
    f'Training examples of a {kind.lower()}: none to {counts.max():,}',
    loc='left',
  )
