"""Pictures of a comparison, small enough for a page that a phone shows, too.

Many methods in one picture cannot be told apart, so each has a panel of its
own, with the others in gray behind it. A panel is as wide as a phone; the page
puts as many side by side as there is room for.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple, Optional

import matplotlib
import numpy as np
from matplotlib import colors, ticker
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tff_pfl import errors
from tff_pfl.datasets import partition_plot
from tff_pfl.evaluation import fairness
from tff_pfl.experiments import presentation
from tff_pfl.experiments import results as results_lib
from tff_pfl.simulation import picture_style

# Colors that a page may replace where its background is dark.
TEXT_COLOR = picture_style.TEXT_COLOR.lower()
CONTEXT_COLOR = '#c4c4c4'
PERSONAL_COLOR = picture_style.COLORS[0].lower()
GLOBAL_COLOR = picture_style.COLORS[4].lower()
HURT_COLOR = picture_style.COLORS[1].lower()
# As many as there are colors to tell apart.
MAX_OVERVIEW_METHODS = len(picture_style.COLORS)
# Beyond these a picture grows larger, not clearer.
_MAX_CURVE_POINTS = 100
_MAX_SCATTER_POINTS = 300
_MAX_PARTITION_CLIENTS = 200

# Inches; on a page these are relative to the size of the text.
_PANEL_SIZE = (3.0, 2.1)
_WIDE = 4.2
_BOX_ROW = 0.2
_LARGEST_MARKER = 14.0
_STYLE = {
  **picture_style.PLAIN_TEXT,
  'font.size': 8,
  'axes.titlesize': 8,
  'axes.labelcolor': TEXT_COLOR,
  'axes.edgecolor': TEXT_COLOR,
  'axes.linewidth': 0.6,
  'text.color': TEXT_COLOR,
  'xtick.color': TEXT_COLOR,
  'ytick.color': TEXT_COLOR,
  'xtick.major.size': 2,
  'ytick.major.size': 2,
  'legend.labelcolor': TEXT_COLOR,
}
_BAND_ALPHA = 0.15
_SMALLEST_SHADE = 0.15


class Curve(NamedTuple):
  """An accuracy over rounds, over seeds.

  Attributes:
    rounds: Rounds with an evaluation in every run, `[n]`.
    mean: Mean over seeds `[n]`; NaN where a seed has no finite value.
    std: Standard deviation over seeds `[n]`, 0 for a single one.
  """

  rounds: np.ndarray
  mean: np.ndarray
  std: np.ndarray


def mean_curve(
  curves: Sequence[results_lib.AccuracyCurve], which: str
) -> Optional[Curve]:
  """Mean and spread of the runs of a method.

  Args:
    which: 'personal' or 'global_model'.

  Returns:
    The curve over the rounds that all runs evaluated, or None where there is
    none.
  """
  by_round = [
    dict(zip(curve.rounds, getattr(curve, which)))
    for curve in curves
    if getattr(curve, which) is not None
  ]
  if not by_round:
    return None
  rounds = sorted(set.intersection(*map(set, by_round)))
  if len(rounds) > _MAX_CURVE_POINTS:
    kept = np.linspace(0, len(rounds) - 1, _MAX_CURVE_POINTS).round()
    rounds = [rounds[int(i)] for i in kept]
  values = np.array(
    [
      [math.nan if run[r] is None else run[r] for r in rounds]
      for run in by_round
    ],
    float,
  )
  if not np.isfinite(values).any():
    return None
  many = len(by_round) > 1
  return Curve(
    rounds=np.array(rounds),
    mean=values.mean(axis=0),
    std=values.std(axis=0, ddof=1) if many else np.zeros(len(rounds)),
  )


def with_curves(
  methods: Sequence[results_lib.MethodResult],
) -> Sequence[results_lib.MethodResult]:
  """The methods that have an accuracy by round, best ones first."""
  return [
    method
    for method in presentation.ranked(methods)
    if mean_curve(method.curves, 'personal') is not None
  ]


@matplotlib.rc_context(_STYLE)
def curves_overview(methods: Sequence[results_lib.MethodResult]) -> Figure:
  """Draws the curves of a few methods into one picture.

  Args:
    methods: At most `MAX_OVERVIEW_METHODS`, with curves.

  Raises:
    ValueError: If there are none or too many.
  """
  errors.expect(
    1 <= len(methods) <= MAX_OVERVIEW_METHODS,
    'methods',
    f'1 to {MAX_OVERVIEW_METHODS}',
    len(methods),
  )
  figure = Figure(figsize=(_WIDE, 3.4), layout='constrained')
  axes = figure.add_subplot()
  for index, method in enumerate(methods):
    _draw_curve(
      axes,
      mean_curve(method.curves, 'personal'),
      picture_style.color(index),
      label=method.label,
    )
  _finish_curves(axes, [mean_curve(m.curves, 'personal') for m in methods])
  figure.legend(
    loc='outside lower center', ncols=2, frameon=False, handlelength=1.5
  )
  return figure


class CurvePanel:
  """The curves of one method before those of all others.

  The picture is the same for all methods but for a few lines, and making its
  axes is most of the work: it is made once and changed for each of them.
  """

  @matplotlib.rc_context(_STYLE)
  def __init__(self, methods: Sequence[results_lib.MethodResult]):
    """Draws what the panels of all methods have in common.

    Args:
      methods: All methods with curves of personal models; the limits of the
        axes are theirs. Each has another label.
    """
    self._figure = Figure(figsize=_PANEL_SIZE, layout='constrained')
    self._axes = self._figure.add_subplot()
    self._curves = {
      method.label: (
        mean_curve(method.curves, 'personal'),
        mean_curve(method.curves, 'global_model'),
      )
      for method in methods
    }
    self._context = {
      label: self._axes.plot(
        *personal[:2],
        color=CONTEXT_COLOR,
        linewidth=0.6,
        marker=_marker(personal),
        markersize=2,
      )
      for label, (personal, _) in self._curves.items()
    }
    _finish_curves(
      self._axes, [curve for both in self._curves.values() for curve in both]
    )
    _fix_layout(self._figure)
    self._own = []

  @matplotlib.rc_context(_STYLE)
  def show(self, method: results_lib.MethodResult) -> Figure:
    """Returns the figure, which from now on shows this method.

    Args:
      method: One of the methods: the curves of its personal models and, where
        it has one, of its global model are before those of the others.
    """
    for label, lines in self._context.items():
      lines[0].set_visible(label != method.label)
    _remove(self._own)
    personal, global_model = self._curves[method.label]
    self._own = [
      *_draw_curve(self._axes, personal, PERSONAL_COLOR),
      # Dashed and on top, so that both show where they are the same.
      *_draw_curve(self._axes, global_model, GLOBAL_COLOR, dashed=True),
    ]
    return self._figure


@matplotlib.rc_context(_STYLE)
def box_panel(
  groups: Sequence[tuple[str, Sequence[float]]], limits: tuple[float, float]
) -> Figure:
  """Draws how accuracies are distributed over clients, a row for each group.

  A box reaches from the first to the third quartile, its whiskers from the 5th
  to the 95th percentile; the line is the median, the dot the mean, and the
  cross the mean over the worst tenth.

  Args:
    groups: Name and values of each group, at least one, the first on top.
    limits: Limits of the axis.
  """
  figure = Figure(
    figsize=(_WIDE, 0.6 + _BOX_ROW * len(groups)), layout='constrained'
  )
  axes = figure.add_subplot()
  drawn = axes.boxplot(
    [values for _, values in groups],
    vert=False,
    widths=0.6,
    whis=(5, 95),
    showfliers=False,
    showmeans=True,
    patch_artist=True,
    boxprops={'facecolor': PERSONAL_COLOR, 'alpha': 0.3, 'linewidth': 0},
    medianprops={'color': PERSONAL_COLOR, 'linewidth': 1.5},
    whiskerprops={'color': PERSONAL_COLOR, 'linewidth': 0.8},
    capprops={'linewidth': 0},
    meanprops={
      'marker': 'o',
      'markersize': 3.5,
      'markerfacecolor': PERSONAL_COLOR,
      'markeredgewidth': 0,
    },
  )
  places = [mean.get_ydata()[0] for mean in drawn['means']]
  axes.plot(
    [fairness.worst_10_percent(values) for _, values in groups],
    places,
    linestyle='',
    marker='x',
    markersize=4,
    color=HURT_COLOR,
  )
  axes.set_yticks(places, [name for name, _ in groups])
  axes.invert_yaxis()
  picture_style.tidy(axes)
  axes.grid(visible=False, axis='y')
  axes.tick_params(axis='y', length=0)
  picture_style.use_percent(axes.xaxis)
  axes.set_xlim(*limits)
  axes.set_xlabel('Test accuracy of the client (%)')
  return figure


class ScatterPanel:
  """A point for each client of a method: its accuracy before and after.

  Accuracies on few examples coincide: the area of a point is the number of
  clients it stands for. Below the diagonal are those that lost accuracy.

  As with `CurvePanel`, the picture is made once and changed for each method.
  """

  @matplotlib.rc_context(_STYLE)
  def __init__(self, limits: tuple[float, float]):
    """Draws what the panels of all methods have in common.

    Args:
      limits: Limits of both axes.
    """
    self._figure = Figure(figsize=(2.6, 2.5), layout='constrained')
    self._axes = self._figure.add_subplot()
    self._axes.axline(
      (0, 0), slope=1, color=TEXT_COLOR, linewidth=0.6, linestyle='--'
    )
    for axis in (self._axes.xaxis, self._axes.yaxis):
      picture_style.use_percent(axis)
    self._axes.set(
      xlim=limits,
      ylim=limits,
      aspect='equal',
      xlabel='Before (%)',
      ylabel='After (%)',
    )
    picture_style.tidy(self._axes)
    _fix_layout(self._figure)
    self._points = []

  @matplotlib.rc_context(_STYLE)
  def show(self, before: Sequence[float], after: Sequence[float]) -> Figure:
    """Returns the figure, which from now on shows these clients.

    Args:
      before: Accuracies before personalization, finite, `[n]`.
      after: After it, in the same order.
    """
    _remove(self._points)
    points, counts = picture_style.coinciding(
      before, after, _MAX_SCATTER_POINTS
    )
    hurt = points[:, 1] < points[:, 0]
    size = min(4.0, 40.0 / math.sqrt(len(before)))
    self._points = []
    for chosen, color in ((~hurt, PERSONAL_COLOR), (hurt, HURT_COLOR)):
      for count in np.unique(counts[chosen]):
        # Markers, as `scatter` would write the outline of each point.
        self._points += self._axes.plot(
          *points[chosen & (counts == count)].T,
          linestyle='',
          marker='o',
          markersize=min(size * math.sqrt(count), _LARGEST_MARKER),
          markeredgewidth=0,
          color=color,
          alpha=0.5,
        )
    return self._figure


@matplotlib.rc_context(_STYLE)
def partition_panel(partition: results_lib.Partition) -> Figure:
  """Draws how many training examples, and of which classes, clients hold.

  Args:
    partition: The partition; beyond 200 clients, evenly spaced ones are shown.
  """
  totals = np.asarray(partition.num_train_examples)
  shown = partition_plot.equidistant(len(totals), _MAX_PARTITION_CLIENTS)
  has_classes = partition.class_counts is not None
  figure = Figure(
    figsize=(_WIDE, 2.9 if has_classes else 1.5), layout='constrained'
  )
  rows = figure.subplots(
    1 + has_classes,
    1,
    sharex=True,
    squeeze=False,
    height_ratios=[1, 2][: 1 + has_classes],
  )[:, 0]
  rows[-1].set_xlabel('Client')
  rows[0].bar(np.arange(len(shown)), totals[shown], color=PERSONAL_COLOR)
  rows[0].set_ylabel('Examples')
  rows[0].yaxis.set_major_locator(ticker.MaxNLocator(3, integer=True))
  picture_style.tidy(rows[0])
  if has_classes:
    _draw_classes(rows[1], np.asarray(partition.class_counts)[shown])
  first_new = np.searchsorted(shown, len(totals) - partition.num_new_clients)
  if first_new < len(shown):
    for axes in rows:
      axes.axvline(first_new - 0.5, color=HURT_COLOR, linewidth=1)
    rows[0].annotate(
      'new clients',
      (first_new - 0.5, 1),
      xycoords=('data', 'axes fraction'),
      xytext=(2, 2),
      textcoords='offset points',
      color=HURT_COLOR,
    )
  rows[-1].set_xlim(-0.5, len(shown) - 0.5)
  rows[-1].xaxis.set_major_locator(
    ticker.MaxNLocator(8, integer=True, steps=[1, 2, 5, 10])
  )
  rows[-1].xaxis.set_major_formatter(
    lambda x, _: f'{shown[int(x)]:,}' if 0 <= x < len(shown) else ''
  )
  return figure


def common_limits(values: Iterable[Sequence[float]]) -> tuple[float, float]:
  """Limits of an axis of accuracies on which all `values` are to be seen."""
  finite = [v for several in values for v in several if math.isfinite(v)]
  low, high = min(finite, default=0.0), max(finite, default=1.0)
  margin = max(0.04 * (high - low), 0.02)
  return max(low - margin, -0.03), min(high + margin, 1.03)


def _fix_layout(figure: Figure) -> None:
  """Arranges a figure now instead of whenever it is written."""
  figure.get_layout_engine().execute(figure)
  figure.set_layout_engine(None)


def _remove(artists: Iterable[Artist]) -> None:
  for artist in artists:
    artist.remove()


def _draw_curve(
  axes: Axes,
  curve: Optional[Curve],
  color: str,
  *,
  label: str = '',
  dashed: bool = False,
) -> list[Artist]:
  """Draws a curve, if there is one, and returns what was drawn."""
  if curve is None:
    return []
  drawn = axes.plot(
    curve.rounds,
    curve.mean,
    label=label,
    color=color,
    linewidth=1.4,
    linestyle='--' if dashed else '-',
    marker=_marker(curve),
    markersize=3,
  )
  if np.any(curve.std > 0):
    band = axes.fill_between(
      curve.rounds,
      np.maximum(curve.mean - curve.std, 0),
      np.minimum(curve.mean + curve.std, 1),
      color=color,
      alpha=_BAND_ALPHA,
      linewidth=0,
    )
    drawn.append(band)
  return drawn


def _marker(curve: Curve) -> str:
  """A point for a single evaluation, which is no line."""
  return 'o' if len(curve.rounds) == 1 else ''


def _finish_curves(axes: Axes, curves: Sequence[Optional[Curve]]) -> None:
  axes.set_ylim(
    common_limits(
      np.clip(curve.mean + sign * curve.std, 0, 1)
      for curve in curves
      if curve is not None
      for sign in (-1, 1)
    )
  )
  axes.set_xlabel('Round')
  axes.set_ylabel('Test accuracy (%)')
  axes.xaxis.set_major_locator(
    ticker.MaxNLocator(5, integer=True, steps=[1, 2, 5, 10], min_n_ticks=1)
  )
  picture_style.use_percent(axes.yaxis)
  picture_style.tidy(axes)


def _draw_classes(axes: Axes, counts: np.ndarray) -> None:
  """Draws the number of examples by class and client, darker for more."""
  most = max(counts.max(), 1)
  shades = np.where(
    counts > 0, _SMALLEST_SHADE + (1 - _SMALLEST_SHADE) * counts / most, 0.0
  )
  image = np.empty(counts.T.shape + (4,))
  image[..., :3] = colors.to_rgb(PERSONAL_COLOR)
  # Shades are opacity, so that they show on any background.
  image[..., 3] = shades.T
  # Not resampled: the browser scales the few pixels that there are.
  axes.imshow(image, aspect='auto', interpolation='none')
  axes.set_ylabel('Class')
  axes.yaxis.set_major_locator(ticker.MaxNLocator(10, integer=True))
  axes.spines[:].set_visible(False)
  axes.set_title(f'Training examples of a class: none to {most:,}', loc='left')
