"""Pictures of a run: a metric by round, and over clients and domains.

The figures are drawn without a display and without pyplot's global state, and
written by `picture_style.save`.
"""

import math
import os
from collections.abc import Mapping, Sequence
from typing import Optional, Union

import matplotlib
import numpy as np
from matplotlib import ticker
from matplotlib.figure import Figure

from tff_pfl.models import split_model
from tff_pfl.simulation import picture_style

_BEFORE_COLOR = '#999999'
_AFTER_COLOR = picture_style.COLORS[0]
_HURT_COLOR = picture_style.COLORS[1]
# Of bars: the global model and the personal one, which may be alone.
_MODEL_COLORS = (_BEFORE_COLOR, _AFTER_COLOR)
# In square points, as all areas of markers.
_LARGEST_AREA = 300.0

_Path = Union[str, 'os.PathLike[str]']


@matplotlib.rc_context(picture_style.PLAIN_TEXT)
def plot_by_round(
  path: _Path,
  series: Mapping[str, tuple[Sequence[int], Sequence[float]]],
  metric: split_model.PrimaryMetric = split_model.ACCURACY,
  *,
  title: str = '',
) -> None:
  """Draws a metric over the rounds of training as a PNG file.

  Args:
    series: By name, at least one, the rounds after which there was an
      evaluation, at least one, and the metric at each.
  """
  figure = Figure(figsize=(8.0, 4.2), layout='constrained')
  axes = figure.add_subplot()
  for i, (name, (rounds, values)) in enumerate(series.items()):
    axes.plot(
      rounds,
      values,
      label=f'{name}  ({metric.text(values[-1])})',
      color=picture_style.color(i),
      linestyle=picture_style.line_style(i),
      linewidth=1.8,
      # Markers would run into each other on a long run.
      marker='o' if len(rounds) <= 40 else '',
      markersize=4,
    )
  axes.set_title(title, loc='left')
  axes.set_xlabel('Round')
  axes.set_ylabel(metric.label(', mean over clients'))
  axes.xaxis.set_major_locator(
    ticker.MaxNLocator(integer=True, steps=[1, 2, 5, 10])
  )
  # Where the training began, whenever the first evaluation was.
  axes.set_xlim(left=0)
  _use_unit(axes, 'y', metric, *axes.get_ylim())
  picture_style.tidy(axes)
  axes.legend(
    title='Series (last value)',
    frameon=False,
    loc='center left',
    bbox_to_anchor=(1.0, 0.5),
    alignment='left',
  )
  picture_style.save(figure, path)


@matplotlib.rc_context(picture_style.PLAIN_TEXT)
def plot_client_distribution(
  path: _Path,
  before: Sequence[float],
  after: Sequence[float],
  labels: tuple[str, str],
  metric: split_model.PrimaryMetric = split_model.ACCURACY,
  *,
  title: str = '',
) -> None:
  """Draws how a metric is distributed over clients, as a PNG file.

  The left panel sorts the clients by their metric, so that it shows every
  quantile and the clients that are worst off. The right panel has a point for
  each client, orange where it is worse after than before; it is left out where
  nothing changed. Clients whose metric is not finite are left out.

  Args:
    before: The metric of each client before personalization.
    after: The metric of each client after personalization, in the same order.
    labels: What `before` and `after` are called.
  """
  values = np.array([before, after], float)
  before, after = values[:, np.isfinite(values).all(axis=0)]
  if not before.size:
    return
  groups = [
    # The wider line stays visible where the other lies on it.
    (labels[0], before, _BEFORE_COLOR, 2.8),
    (labels[1], after, _AFTER_COLOR, 1.8),
  ]
  if np.array_equal(before, after):
    figure = Figure(figsize=(6.4, 4.8), layout='constrained')
    groups = [(' and '.join(labels), *groups[1][1:])]
    _draw_sorted(figure.subplots(), groups, metric)
  else:
    figure = Figure(figsize=(10.4, 4.8), layout='constrained')
    left, right = figure.subplots(1, 2)
    _draw_sorted(left, groups, metric)
    _draw_scatter(right, before, after, labels, metric)
  figure.suptitle(title)
  picture_style.save(figure, path)


@matplotlib.rc_context(picture_style.PLAIN_TEXT)
def plot_domains(
  path: _Path,
  panels: Mapping[
    split_model.PrimaryMetric, Mapping[str, Mapping[str, Optional[float]]]
  ],
  *,
  title: str = '',
) -> None:
  """Draws scores by domain as a PNG file, a bar for each model and domain.

  Args:
    panels: From a metric to a dict from name of a model to its value in each
      domain; None leaves a gap. There is at least one panel, all have the same
      domains, and of models there are at most two.
  """
  num_models = max(map(len, panels.values()))
  first_panel = next(iter(panels.values()))
  names = list(next(iter(first_panel.values())))
  figure = Figure(
    figsize=(
      2.0 + 4.2 * len(panels),
      max(2.6, 1.3 + len(names) * (0.15 + 0.21 * num_models)),
    ),
    layout='constrained',
  )
  columns = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
  for axes, (metric, models) in zip(columns, panels.items()):
    _draw_bars(axes, models, metric)
    axes.set_xlabel(metric.label(' of the domain'))
  columns[0].set_yticks(range(len(names)), names)
  columns[0].invert_yaxis()
  figure.suptitle(title)
  picture_style.save(figure, path)


def _draw_bars(axes, models, metric):
  """Draws a group of bars for each domain, a bar of it for each model."""
  height = 0.8 / len(models)
  for i, (label, values) in enumerate(models.items()):
    known = np.array([math.nan if v is None else v for v in values.values()])
    bars = axes.barh(
      np.arange(known.size) + (i - (len(models) - 1) / 2) * height,
      known,
      height=0.9 * height,
      label=label,
      color=_MODEL_COLORS[i - len(models)],
    )
    axes.bar_label(
      bars,
      ['' if math.isnan(v) else metric.text(v) for v in known],
      padding=3,
      fontsize='small',
      color=picture_style.TEXT_COLOR,
    )
  # Room for the labels and, as bars begin at 0, for all of [0, 1].
  if metric.is_fraction:
    axes.set_xlim(0, 1.12)
    picture_style.use_percent(axes.xaxis)
  else:
    axes.margins(x=0.15)
  picture_style.tidy(axes)
  axes.grid(visible=False, axis='y')
  axes.tick_params(axis='y', length=0)
  picture_style.legend_above(axes, len(models))


def _draw_sorted(axes, groups, metric):
  """Draws clients from worst to best: label, values, color and line width."""
  num_clients = groups[0][1].size
  # Client i of n stands in the middle of the i-th of n equal parts.
  position = (np.arange(num_clients) + 0.5) / num_clients
  for label, values, color, width in groups:
    axes.plot(
      position,
      values[np.argsort(metric.merit(values))],
      label=f'{label}\n(mean {metric.text(np.mean(values))})',
      color=color,
      drawstyle='steps-mid',
      linewidth=width,
      marker='o' if num_clients <= 40 else '',
      markersize=4,
    )
  if num_clients >= 10:
    worst = math.ceil(num_clients / 10) / num_clients
    axes.axvspan(0, worst, color='#000000', alpha=0.06, linewidth=0)
    axes.annotate(
      'worst 10%',
      (worst, 0.02),
      xytext=(4, 0),
      textcoords='offset points',
      xycoords=('data', 'axes fraction'),
      fontsize='small',
      color=picture_style.TEXT_COLOR,
    )
  noun = 'client' if num_clients == 1 else 'clients'
  axes.set_xlabel(f'{num_clients:,} {noun}, from worst to best (%)')
  axes.set_ylabel(metric.label(' of the client'))
  axes.set_xlim(0, 1)
  picture_style.use_percent(axes.xaxis, num_ticks=7)
  _use_unit(axes, 'y', metric, *axes.get_ylim())
  picture_style.tidy(axes)
  picture_style.legend_above(axes, 2)


def _draw_scatter(axes, before, after, labels, metric):
  """Draws a point for each client, with the diagonal where nothing changed."""
  # The area of a point is the number of clients it stands for.
  points, counts = picture_style.coinciding(before, after)
  hurt = metric.merit(points[:, 1]) < metric.merit(points[:, 0])
  area = min(40.0, 200.0 / math.sqrt(before.size))
  margin = 0.06 * (points.max() - points.min())
  limits = (points.min() - margin, points.max() + margin)
  for axis_name in 'xy':
    _use_unit(axes, axis_name, metric, *limits)
  axes.axline(
    (0, 0), slope=1, color=picture_style.TEXT_COLOR, linewidth=1, linestyle='--'
  )
  groups = (
    (~hurt, _AFTER_COLOR, 'not worse'),
    (hurt, _HURT_COLOR, 'worse after'),
  )
  for chosen, color, name in groups:
    share = counts[chosen].sum() / before.size
    axes.scatter(
      points[chosen, 0],
      points[chosen, 1],
      s=np.minimum(area * counts[chosen], _LARGEST_AREA),
      color=color,
      alpha=0.6,
      edgecolors='white',
      linewidths=0.4,
      label=f'{name}: {counts[chosen].sum():,} ({share:.0%})',
    )
  axes.set_xlabel(metric.label(f' {labels[0]}'))
  axes.set_ylabel(metric.label(f' {labels[1]}'))
  axes.set_aspect('equal')
  if counts.max() > 1:
    axes.text(
      0.98,
      0.02,
      'area: number of clients',
      transform=axes.transAxes,
      ha='right',
      fontsize='small',
      color=picture_style.TEXT_COLOR,
    )
  picture_style.tidy(axes)
  legend = picture_style.legend_above(axes, 2, handletextpad=0.2)
  for handle in legend.legend_handles:
    handle.set_sizes([40])


def _use_unit(axes, axis_name, metric, low, high):
  """Gives an axis of a metric limits, and percentages where it has these.

  Of percentages the limits are at least ten points apart.
  """
  if metric.is_fraction:
    missing = max(0.1 - (high - low), 0.0)
    low = max(low - missing / 2, -0.03)
    high = min(high + missing / 2, 1.03)
    picture_style.use_percent(getattr(axes, f'{axis_name}axis'), num_ticks=7)
  if low < high:
    axes.set(**{f'{axis_name}lim': (low, high)})
