"""Figures of experiments: curves and bars, with spreads over seeds.

`curves` and `bars` make what draws a whole figure. The other functions draw on
`axes` that the caller made, so that a figure can have panels of many kinds:

    left, right = figure.subplots(1, 2)
    panels.draw_curves(left, table, 'distance', over='round', ...)
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Optional

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tff_pfl.experiments import tables
from tff_pfl.simulation import picture_style

# Up to this many points a curve has markers, and its spread error bars.
_MAX_MARKED_POINTS = 20
_LINE_WIDTH = 1.8
_MARKER_SIZE = 4
_CAP_SIZE = 3
_BAND_ALPHA = 0.18
# The share of a group's place that its bars take.
_GROUP_WIDTH = 0.8
_BAR_LABEL_ROTATION = 30
# More, or longer, names under the bars than this run into each other.
_MAX_LEVEL_CHARACTERS = 36

Draw = Callable[[tables.Table, Any, Figure], None]


def curves(column: str, **options: Any) -> Draw:
  """A figure of curves, as `paper.Experiment.draw` takes it.

  Args:
    **options: Those of `draw_curves`, and of `_draw_panels`.
  """
  return functools.partial(_draw_panels, draw_curves, column, **options)


def bars(column: str, **options: Any) -> Draw:
  """A figure of groups of bars, as `paper.Experiment.draw` takes it.

  Args:
    **options: Those of `draw_groups`, and of `_draw_panels`.
  """
  return functools.partial(_draw_panels, draw_groups, column, **options)


# Of the test accuracies of methods.
accuracy_bars = functools.partial(
  bars, 'accuracy', group='method', y_label='Test accuracy'
)


def _draw_panels(
  draw_panel: Callable[..., None],
  column: str,
  table: tables.Table,
  sizes: Any,
  figure: Figure,
  *,
  width: float = 6.4,
  panel: Optional[str] = None,
  title: Callable[[Any], str] = str,
  sharey: bool = False,
  shared_legend: bool = False,
  **options: Any,
) -> None:
  """Draws a figure of one panel, or of one for each value of a column.

  Args:
    sizes: With `num_seeds`.
    width: A panel's width, in inches.
    panel: The column with a panel for each of its values.
    title: From such a value to the panel's title.
    sharey: Whether all panels have the same vertical axis.
    shared_legend: Whether one legend serves all, which have the same curves.
    **options: Of `draw_panel`.
  """
  parts = {'': table}
  if panel is not None:
    parts = {
      title(value): table.where(**{panel: value})
      for value in table.distinct(panel)
    }
  prepare(figure, width * len(parts), 4.4, sizes.num_seeds)
  all_axes = figure.subplots(1, len(parts), sharey=sharey, squeeze=False)[0]
  for axes, (name, part) in zip(all_axes, parts.items()):
    draw_panel(axes, part, column, title=name, **options)
  if shared_legend:
    share_legend(figure)


def prepare(
  figure: Figure,
  width: float,
  height: float,
  num_seeds: int,
) -> None:
  """Sizes a figure and says below its top what its error bars or bands are.

  Args:
    figure: An empty figure.
    width: In inches.
    height: In inches.
    num_seeds: Seeds that the values are means over.
  """
  figure.set_size_inches(width, height)
  if num_seeds > 1:
    figure.suptitle(
      f'Mean and standard deviation over {num_seeds} seeds',
      fontsize='small',
      color=picture_style.TEXT_COLOR,
    )


def draw_curves(
  axes: Axes,
  table: tables.Table,
  column: str,
  *,
  over: str,
  by: str = 'method',
  x_label: str,
  y_label: str,
  log_x: bool = False,
  log_y: bool = False,
  title: str = '',
) -> None:
  """Draws means and spreads over seeds of a table's column.

  The spread is error bars for a few points, a band for many. What is not finite
  leaves a gap, as does what a logarithmic axis cannot show.

  Args:
    column: What is drawn.
    over: The column of the horizontal axis.
    by: The column that has the names of the curves.
  """
  for index, name in enumerate(table.distinct(by)):
    x, values = table.curve(column, over, **{by: name})
    y, spread = tables.mean_and_spread(values)
    _draw_line(axes, index, str(name), x, y, spread, log_y)
  # After the curves, whose limits would else include the empty axes'.
  axes.set(
    xscale='log' if log_x else 'linear',
    yscale='log' if log_y else 'linear',
    xlabel=x_label,
    ylabel=y_label,
  )
  _finish(axes, title)
  axes.legend(frameon=False)


def share_legend(figure: Figure) -> None:
  """One legend below all panels, which have the same curves."""
  handles, labels = figure.axes[-1].get_legend_handles_labels()
  for axes in figure.axes:
    axes.get_legend().remove()
  figure.legend(
    handles, labels, loc='outside lower center', ncols=4, frameon=False
  )


def draw_groups(
  axes: Axes,
  table: tables.Table,
  column: str,
  *,
  group: str,
  by: str = 'method',
  y_label: str,
  title: str = '',
) -> None:
  """Draws bars of means and spreads over seeds of a table's column.

  Args:
    column: What is drawn.
    group: The column that has the names of the groups.
    by: The column that has the names of the bars of a group. The place of one
      that a group lacks stays empty.
  """
  groups, names = table.distinct(group), table.distinct(by)
  width = _GROUP_WIDTH / len(names)
  for index, name in enumerate(names):
    of_name = table.where(**{by: name})
    present = of_name.distinct(group)
    places = np.array([groups.index(value) for value in present])
    means, spreads = np.transpose(
      [
        tables.mean_and_spread(of_name.values(column, **{group: value}))
        for value in present
      ]
    )
    axes.bar(
      places + (index - (len(names) - 1) / 2) * width,
      means,
      0.92 * width,
      yerr=spreads if np.any(spreads > 0) else None,
      label=str(name),
      color=picture_style.color(index),
      hatch=picture_style.hatch(index),
      # Of the hatch.
      edgecolor='white',
      linewidth=0,
      ecolor=picture_style.TEXT_COLOR,
      capsize=_CAP_SIZE,
    )
  axes.set_ylabel(y_label)
  levels = list(map(str, groups))
  # Aslant where the names would not fit.
  crowded = sum(map(len, levels)) > _MAX_LEVEL_CHARACTERS
  aslant = {'rotation': _BAR_LABEL_ROTATION, 'ha': 'right'} if crowded else {}
  axes.set_xticks(range(len(levels)), levels, **aslant)
  _finish(axes, title)
  axes.grid(visible=False, axis='x')
  if len(names) > 1:
    # Above the bars, which leave no place within.
    picture_style.legend_above(axes, min(len(names), 3))
    if title:
      num_legend_rows = -(-len(names) // 3)
      axes.set_title(title, loc='left', pad=8 + 15 * num_legend_rows)


def _draw_line(axes, index, name, x, y, spread, log_y):
  """Draws one curve in the style of its place among the curves."""
  color = picture_style.color(index)
  marked = x.size <= _MAX_MARKED_POINTS
  style = {
    'label': name,
    'color': color,
    'linestyle': picture_style.line_style(index),
    'linewidth': _LINE_WIDTH,
    'marker': 'o' if marked else '',
    'markersize': _MARKER_SIZE,
  }
  if log_y:
    y = np.where(y > 0, y, np.nan)
  # A spread down to zero would reach down for ever there: a decade shows it.
  below = np.minimum(spread, 0.9 * y) if log_y else spread
  if marked:
    axes.errorbar(
      x, y, (below, spread), capsize=_CAP_SIZE, elinewidth=1, **style
    )
  else:
    axes.plot(x, y, **style)
    axes.fill_between(
      x, y - below, y + spread, color=color, alpha=_BAND_ALPHA, linewidth=0
    )


def _finish(axes, title):
  picture_style.tidy(axes)
  axes.set_title(title, loc='left')
