"""Plots of data frames with seaborn: curves, bars, clients and partitions.

Most functions draw a tidy frame on `ax`, with a `title`, and return the axes.
If `ax` is None, they make a new pyplot figure. Several seeds appear as their
mean with the sample standard deviation. `save` writes a figure.
"""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Callable, Mapping
from typing import Any, Optional, Union

import matplotlib
import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib import colors, ticker
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tff_pfl import datasets, fields
from tff_pfl.models import split_model
from tff_pfl.system import folders

_Path = Union[str, 'os.PathLike[str]']
_Metric = split_model.PrimaryMetric
# Its first colors are distinct to color-blind readers.
_PALETTE = 'colorblind'
BEFORE, AFTER, HURT = '#949494', '#0173b2', '#d55e00'
_TEXT = '#555555'
# Curves with at most this many points have markers and error bars.
_MAX_MARKED = 20
# Beyond this, colors repeat, so curves also have dashes.
_MAX_COLORS = 8
# Names under bars would overlap if they had more characters in total.
_MAX_LEVEL_CHARACTERS = 36
# Scales are logarithmic if the largest count exceeds this many medians.
_MOST_OF_MEDIAN = 20
# Most clients in a plot of a partition.
_MAX_CLIENTS = 200
_LONGEST_NAME = 16
_SPLITS = {'train': 'training', 'test': 'test'}
# Labels possible fractions only, because axes extend slightly beyond them.
_PERCENT = ticker.FuncFormatter(
  lambda value, _: f'{100 * value:.6g}' if -1e-9 < value < 1 + 1e-9 else ''
)
_PLAIN = ticker.FuncFormatter(lambda value, _: f'{value:g}')
_STYLE = {
  # Dollar signs in the names of data are not formulas.
  'text.parse_math': False,
  'axes.titlelocation': 'left',
  'legend.frameon': False,
  'savefig.dpi': 150,
}


def _styled(draw: Callable[..., Any]) -> Callable[..., Any]:
  @fields.checked_call
  @functools.wraps(draw)
  def drawn(*args, **kwargs):
    with matplotlib.rc_context(_STYLE):
      return draw(*args, **kwargs)

  return drawn


@_styled
def new_axes(
  width: float = 6.4, height: float = 4.4, *shape: int, **options: Any
) -> Any:
  """Makes a figure outside pyplot, which is freed with its axes.

  Args:
    width: Width of the figure in inches.
    height: Height in inches.
    *shape: Numbers of rows and columns of axes, 1 and 1 by default.
    **options: Options of `Figure.subplots`.

  Returns:
    The axes, or an array of them.
  """
  return Figure((width, height), layout='constrained').subplots(
    *shape, **options
  )


@_styled
def curves(
  frame: pd.DataFrame,
  *,
  x: str = 'round',
  y: str = 'value',
  by: Optional[str] = 'method',
  style: Optional[str] = None,
  metric: Optional[_Metric] = None,
  x_label: Optional[str] = None,
  y_label: Optional[str] = None,
  log_x: bool = False,
  log_y: bool = False,
  title: str = '',
  ax: Optional[Axes] = None,
  **options: Any,
) -> Axes:
  """Draws curves.

  Args:
    frame: A frame with the columns below. Rows with the same `x` and curve are
      seeds.
    x: The column of the horizontal axis.
    y: The column of the vertical axis. Points at which a seed is not finite, or
      not positive on a logarithmic axis, are left out.
    by: The column with the curves' names.
    style: A column that dash patterns show.
    metric: The metric of `y`, for the label and for fractions in percent.
    x_label: Label of the horizontal axis. None uses the column's name.
    y_label: Label of the vertical axis. None uses the name of the metric or the
      column.
    log_x: True for a logarithmic horizontal axis.
    log_y: True for a logarithmic vertical axis.
    **options: Further options of `seaborn.lineplot`.
  """
  ax = ax or pyplot_axes()
  values = frame[y].astype(float)
  shown = np.isfinite(values) & ((values > 0) | (not log_y))
  keys = [x, *(name for name in dict.fromkeys([by, style]) if name)]
  frame = frame[shown.groupby([frame[key] for key in keys]).transform('all')]
  marked = frame[x].nunique() <= _MAX_MARKED
  names = [] if by is None else list(frame[by].unique())
  dashed = by if len(names) > _MAX_COLORS and style is None else style
  if names and 'palette' not in options and 'color' not in options:
    options['palette'] = sns.color_palette(_PALETTE, len(names))
  sns.lineplot(
    frame,
    x=x,
    y=y,
    hue=by,
    style=dashed,
    errorbar=_positive_spread if log_y else 'sd',
    err_style='bars' if marked else 'band',
    err_kws={'capsize': 3, 'elinewidth': 1} if marked else {},
    marker='o' if marked else None,
    markersize=5,
    ax=ax,
    **options,
  )
  ax.set(
    xscale='log' if log_x else 'linear',
    yscale='log' if log_y else 'linear',
    xlabel=x_label or x.replace('_', ' ').capitalize(),
    ylabel=y_label or (metric.label() if metric else y),
    title=title,
  )
  for axis, is_log in ((ax.xaxis, log_x), (ax.yaxis, log_y)):
    if is_log:
      _use_plain_numbers(axis)
  if x == 'round':
    ax.xaxis.set_major_locator(
      ticker.MaxNLocator(integer=True, steps=[1, 2, 5, 10], min_n_ticks=1)
    )
    # Shows the start of training even without an evaluation there.
    ax.set_xlim(left=0)
  _use_unit(ax.yaxis, metric)
  if ax.get_legend():
    ax.get_legend().set_title('')
  _finish(ax)
  return ax


@_styled
def bars(
  frame: pd.DataFrame,
  *,
  x: str,
  y: str = 'value',
  by: Optional[str] = 'method',
  metric: Optional[_Metric] = None,
  y_label: Optional[str] = None,
  title: str = '',
  ax: Optional[Axes] = None,
) -> Axes:
  """Draws groups of bars with their spread over seeds.

  Args:
    frame: A frame with the columns below. Rows of the same bar are seeds.
    x: The column of the groups.
    y: The column of the numbers. For horizontal bars, `y` is the column of the
      groups, which are words, and `x` is the column of the numbers.
    by: The column with the names of the bars in a group.
    metric: The metric of the numbers, for the label and for fractions in
      percent.
    y_label: Label of the numbers. None uses the name of the metric or the
      column.
  """
  ax = ax or pyplot_axes()
  # Only `y` decides, because groups may also be numbers.
  is_horizontal = not pd.api.types.is_numeric_dtype(frame[y])
  names = [] if by is None else list(frame[by].unique())
  sns.barplot(
    frame,
    x=x,
    y=y,
    hue=by,
    orient='h' if is_horizontal else 'v',
    errorbar='sd',
    capsize=0.2,
    err_kws={'color': _TEXT, 'linewidth': 1},
    palette=sns.color_palette(_PALETTE, len(names)) if names else None,
    ax=ax,
  )
  label = y_label or (metric.label() if metric else None)
  numbers, groups = (
    (ax.xaxis, ax.yaxis) if is_horizontal else (ax.yaxis, ax.xaxis)
  )
  numbers.set_label_text(label or (x if is_horizontal else y))
  groups.set_label_text('')
  _finish(ax)
  groups.grid(False)
  _use_unit(numbers, metric)
  levels = [tick.get_text() for tick in groups.get_ticklabels()]
  if not is_horizontal and sum(map(len, levels)) > _MAX_LEVEL_CHARACTERS:
    ax.set_xticks(ax.get_xticks(), levels, rotation=30, ha='right')
  ax.set_title(title)
  # Seaborn adds no legend if the bars are the groups.
  if ax.get_legend() and len(names) > 1:
    legend_above(ax, min(len(names), 4))
  elif ax.get_legend():
    ax.get_legend().remove()
  return ax


@_styled
def clients(
  scores: pd.DataFrame,
  metric: _Metric = split_model.ACCURACY,
  *,
  labels: tuple[str, str] = ('before', 'after'),
  title: str = '',
  ax: Optional[Axes] = None,
) -> Axes:
  """Draws the cumulative share of clients by score, before and after.

  Clients whose scores are not finite are left out.

  Args:
    scores: `Run.scores`.
    metric: The metric to draw.
    labels: Names of the scores before and after personalization.
  """
  ax = ax or pyplot_axes()
  both = _before_and_after(scores, metric)
  curves_of = dict(zip(labels, (both['before'], both['after'])))
  if both['before'].equals(both['after']):
    curves_of = {' and '.join(labels): both['after']}
  for values, color in zip(
    curves_of.values(), (BEFORE, AFTER)[-len(curves_of) :]
  ):
    if len(values):
      sns.ecdfplot(values, color=color, ax=ax)
  ax.set(
    xlabel=metric.label(' of the client'),
    ylabel=f'Share of the {len(both):,} clients (%)',
    title=title,
  )
  if ax.lines:
    ax.legend(
      ax.lines,
      [
        f'{label} (mean {metric.text(values.mean())})'
        for label, values in curves_of.items()
      ],
    )
    legend_above(ax, 1)
  if len(both) >= 10 and metric.higher_is_better:
    ax.axhspan(0, 0.1, color='#000000', alpha=0.06, linewidth=0)
    ax.text(
      1, 0.02, 'worst 10% ', transform=ax.transAxes, ha='right', color=_TEXT
    )
  _use_unit(ax.xaxis, metric)
  ax.yaxis.set_major_formatter(_PERCENT)
  _finish(ax)
  return ax


@_styled
def changes(
  scores: pd.DataFrame,
  metric: _Metric = split_model.ACCURACY,
  *,
  title: Optional[str] = None,
  ax: Optional[Axes] = None,
) -> Axes:
  """Draws each client's score before and after personalization.

  Larger points stand for more clients. Clients whose scores are not finite are
  left out.

  Args:
    scores: `Run.scores`.
    metric: The metric to draw.
    title: Title. None shows the number of clients that are worse after.
  """
  ax = ax or pyplot_axes()
  both = _before_and_after(scores, metric)
  points = both.value_counts().rename('clients').reset_index()
  merit = metric.merit(points[['before', 'after']])
  is_hurt = merit[:, 1] < merit[:, 0]
  ax.axline((0, 0), slope=1, color=_TEXT, linewidth=0.8, linestyle='--')
  if len(points):
    sns.scatterplot(
      points.assign(is_hurt=is_hurt),
      x='before',
      y='after',
      hue='is_hurt',
      palette={False: AFTER, True: HURT},
      size='clients',
      sizes=(15, 15 * min(math.sqrt(points['clients'].max()), 8)),
      alpha=0.6,
      legend=False,
      rasterized=True,
      ax=ax,
    )
    low, high = both.min(axis=None), both.max(axis=None)
    margin = 0.05 * (high - low) or 0.05
    limits = (low - margin, high + margin)
    ax.set(xlim=limits, ylim=limits)
  if title is None:
    num_hurt = points.loc[is_hurt, 'clients'].sum()
    title = f'{num_hurt:,} of {len(both):,} worse after'
  ax.set(
    xlabel=metric.label(' before'),
    ylabel=metric.label(' after'),
    title=title,
    aspect='equal',
  )
  _use_unit(ax.xaxis, metric)
  _use_unit(ax.yaxis, metric)
  _finish(ax)
  return ax


@_styled
def boxes(
  frame: pd.DataFrame,
  metric: _Metric = split_model.ACCURACY,
  *,
  x: str = 'value',
  y: str = 'method',
  title: str = '',
  ax: Optional[Axes] = None,
) -> Axes:
  """Draws boxes over clients: quartiles, 5th and 95th percentiles, mean.

  Args:
    frame: A frame with a row for each client and box.
    metric: The metric of the scores.
    x: The column of the scores.
    y: The column with the names of the boxes.
  """
  ax = ax or pyplot_axes()
  frame = frame[np.isfinite(frame[x].astype(float))]
  sns.boxplot(
    frame,
    x=x,
    y=y,
    orient='h',
    whis=(5, 95),
    showfliers=False,
    showmeans=True,
    meanprops={
      'marker': 'o',
      'markerfacecolor': HURT,
      'markeredgecolor': HURT,
      'markersize': 4,
    },
    width=0.6,
    color='#9ecae1',
    linewidth=0.8,
    ax=ax,
  )
  ax.set(xlabel=metric.label(' of the client'), ylabel='', title=title)
  _use_unit(ax.xaxis, metric)
  _finish(ax)
  ax.grid(visible=False, axis='y')
  return ax


@fields.checked_call
def partition(
  data: datasets.FederatedDataset,
  split: fields.one_of(_SPLITS) = 'train',
  *,
  title: str = '',
) -> Figure:
  """Draws the number of examples by client, class and domain.

  Args:
    data: The dataset.
    split: 'train' or 'test'.
    title: Title. The default is the name of the dataset.

  Returns:
    A figure. It shows at most 200 clients, evenly spaced.
  """
  counts = partition_counts(data, split)
  num_shown, num_clients = len(counts['client_ids']), counts['num_clients']
  default = f'{data.name}, {_SPLITS[split]} examples'
  if num_shown < num_clients:
    default += f', {num_shown} of {num_clients:,} clients'
  return draw_partition(counts, title=title or default)


@fields.checked_call
def partition_counts(
  data: datasets.FederatedDataset, split: fields.one_of(_SPLITS) = 'train'
) -> dict[str, Any]:
  """Counts the examples that `draw_partition` draws.

  Args:
    data: The dataset. No other clients are read than those in the result.
    split: 'train' or 'test'.

  Returns:
    JSON types: `num_clients` of the dataset and, of at most 200 of them, evenly
    spaced, the `places` in the dataset, `client_ids`, `num_examples`, and
    `maps`. These are from 'class' and 'domain', if the data have them, to the
    clients' numbers of examples by the name of the class or domain.
  """
  num_clients = data.num_clients
  num_shown = min(num_clients, _MAX_CLIENTS)
  places = [i * num_clients // num_shown for i in range(num_shown)]
  if num_shown < num_clients:
    data = data.subset(data.client_ids[place] for place in places)
  maps = {}
  if data.num_classes is not None:
    names = data.class_names or range(data.num_classes)
    maps['class'] = names, data.class_counts(split)
  if data.domain_names is not None:
    maps['domain'] = data.domain_names, data.domain_counts(split)
  count = getattr(data, f'num_{split}_examples')
  return {
    'num_clients': num_clients,
    'places': places,
    'client_ids': list(data.client_ids),
    'num_examples': [count(client_id) for client_id in data.client_ids],
    'maps': {
      kind: dict(zip(map(str, names), counts.T.tolist()))
      for kind, (names, counts) in maps.items()
    },
  }


@_styled
def draw_partition(
  counts: Mapping[str, Any], *, num_new_clients: int = 0, title: str = ''
) -> Figure:
  """Draws the plot of `partition` from counts.

  Args:
    counts: The result of `partition_counts`.
    num_new_clients: Number of untrained clients at the end of the dataset,
      which a line separates.
    title: Title of the figure.
  """
  totals, maps = np.array(counts['num_examples']), counts['maps']
  heights = [1.0, *(1 + 0.1 * min(len(m), 20) for m in maps.values())]
  figure = Figure((9.0, 0.8 + 1.1 * sum(heights)), layout='constrained')
  top, *rest = figure.subplots(
    len(heights), sharex=True, squeeze=False, height_ratios=heights
  )[:, 0]
  top.bar(np.arange(len(totals)) + 0.5, totals, color=AFTER)
  top.set(ylabel='Examples', title=title)
  _finish(top)
  top.grid(visible=False, axis='x')
  if _is_skewed(totals):
    top.set(yscale='log', ylim=(0.5, None))
    _use_plain_numbers(top.yaxis)
  for ax, (kind, by_name) in zip(rest, maps.items()):
    _draw_counts(ax, kind, by_name)
  if num_new_clients:
    first_new = np.searchsorted(
      counts['places'], counts['num_clients'] - num_new_clients
    )
    for ax in figure.axes[: len(heights)]:
      ax.axvline(first_new, color=HURT, linewidth=1)
    top.set_title('new clients', loc='right', color=HURT)
  step = -(-len(totals) // 12)
  last = rest[-1] if rest else top
  last.set_xticks(
    np.arange(0, len(totals), step) + 0.5,
    map(_shortened, counts['client_ids'][::step]),
    rotation=30,
    ha='right',
  )
  last.set(xlabel='Client', xlim=(0, len(totals)))
  return figure


def _draw_counts(ax, kind, by_name):
  """Draws the number of examples by class and client, darker for more."""
  values, names = np.array([*by_name.values()]), [*by_name]
  most = max(values.max(initial=0), 1)
  sns.heatmap(
    values,
    mask=values == 0,
    cmap='Blues',
    # The lower limit keeps a single example visible.
    norm=colors.LogNorm(0.2, most)
    if _is_skewed(values)
    else colors.Normalize(-most / 4, most),
    cbar=False,
    # A vector graphic would have thousands of rectangles.
    rasterized=True,
    ax=ax,
  )
  ax.grid(False)
  step = -(-len(names) // 20)
  ax.set_yticks(
    np.arange(0, len(names), step) + 0.5,
    map(_shortened, names[::step]),
    rotation=0,
  )
  ax.set_ylabel(kind.capitalize())
  ax.set_title(f'Examples of a {kind}: none to {most:,}', fontsize='small')


def legend_above(ax: Axes, num_columns: int) -> None:
  """Puts the legend above the axes, where it hides no data."""
  num_rows = -(-len(ax.get_legend().get_texts()) // num_columns)
  title = ax.get_title('left')
  sns.move_legend(
    ax,
    'lower left',
    bbox_to_anchor=(0.0, 1.0),
    ncols=num_columns,
    borderaxespad=0.2,
    frameon=False,
    title='',
  )
  ax.set_title(title, loc='left', pad=8 + 16 * num_rows)


def legend_beside(ax: Axes) -> None:
  """Puts the legend to the right of the axes, where it hides no data."""
  if ax.get_legend():
    sns.move_legend(
      ax, 'center left', bbox_to_anchor=(1.0, 0.5), frameon=False, title=''
    )


@_styled
def save(drawn: Union[Axes, Figure], path: _Path) -> None:
  """Writes a figure, or the figure of axes, as a PNG file."""
  figure = drawn if isinstance(drawn, Figure) else drawn.figure
  if figure.get_layout_engine() is not None:
    figure.get_layout_engine().set(w_pad=0.1, h_pad=0.1)
  with folders.atomic_file(path, 'wb') as file:
    figure.savefig(file, format='png')


def _positive_spread(values: pd.Series) -> tuple[float, float]:
  """Returns the ends of a spread, positive for a logarithmic axis."""
  mean, std = values.mean(), values.std()
  return max(mean - std, mean / 10), mean + std


def _finish(ax: Axes) -> None:
  """Removes needless parts of the frame and adds a light grid."""
  sns.despine(ax=ax)
  ax.grid(visible=True, color='#dddddd', linewidth=0.6)
  ax.set_axisbelow(True)


def pyplot_axes(width: float = 6.4, height: float = 4.4) -> Axes:
  """Makes axes in a new pyplot figure, which notebooks show.

  Args:
    width: Width of the figure in inches.
    height: Height in inches.
  """
  figure = plt.figure(figsize=(width, height), layout='constrained')
  return figure.subplots()


def _before_and_after(scores, metric) -> pd.DataFrame:
  """Returns clients' scores before and after, if both are finite."""
  both = pd.DataFrame(
    {
      when: scores[f'{when}/{metric.name}'].astype(float)
      for when in ('before', 'after')
    }
  )
  return both[np.isfinite(both).all(axis=1)]


def _use_unit(axis: Any, metric: Optional[_Metric]) -> None:
  """Shows an axis of fractions in percent, with a range of at least 10%."""
  if metric is None or not metric.is_fraction:
    return
  low, high = axis.get_view_interval()
  missing = max(0.1 - (high - low), 0.0) / 2
  set_limits = getattr(axis.axes, f'set_{axis.axis_name}lim')
  set_limits(max(low - missing, -0.03), min(high + missing, 1.03))
  axis.set_major_formatter(_PERCENT)


def _use_plain_numbers(axis: Any) -> None:
  """Labels a logarithmic axis without formulas."""
  axis.set_major_formatter(_PLAIN)
  # Labels minor ticks only if the axis has hardly any powers of ten.
  low, high = axis.get_view_interval()
  axis.set_minor_formatter(
    _PLAIN if high < 15 * low else ticker.NullFormatter()
  )


def _is_skewed(counts: Any) -> bool:
  """Returns True if a few large counts would spoil a linear scale."""
  counts = np.asarray(counts)
  positive = counts[counts > 0]
  return bool(
    positive.size and positive.max() > _MOST_OF_MEDIAN * np.median(positive)
  )


def _shortened(name: Any) -> str:
  name = str(name)
  return name if len(name) <= _LONGEST_NAME else f'{name[: _LONGEST_NAME - 1]}…'
