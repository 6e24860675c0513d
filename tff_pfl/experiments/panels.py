"""Panels of the experiments' figures: curves, matrices and bars with spreads.

Each function draws on `axes` that the caller made, so that a figure can put
panels side by side:

    left, right = figure.subplots(1, 2)
    panels.draw_lines(left, {'FedRep': (rounds, distance)}, ...)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tff_pfl import errors
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
# Cells of larger matrices are too small for a number.
_MAX_ANNOTATED_ROWS = 12
_MATRIX_COLORS = 'cividis'
_MISSING_COLOR = '#eeeeee'


def draw_lines(
  axes: Axes,
  series: Mapping[str, Sequence[Any]],
  *,
  x_label: str,
  y_label: str,
  log_x: bool = False,
  log_y: bool = False,
  title: str = '',
) -> None:
  """Draws curves, with their spread where it is given.

  Args:
    series: By name, `(x, y)` or `(x, y, spread)`: sequences of one length.
      What is not finite leaves a gap, as does what a logarithmic axis cannot
      show. The spread reaches from y - spread to y + spread: error bars for a
      few points, a band for many.

  Raises:
    ValueError: If there is no series, or one's sequences differ in length.
  """
  errors.expect(series, 'series', 'at least one series', series)
  for index, (name, columns) in enumerate(series.items()):
    x, y, *spread = (np.asarray(column, float) for column in columns)
    for column in (y, *spread):
      errors.expect(
        column.shape == x.shape and x.ndim == 1,
        'series',
        f'of sequences of one length in {name!r}',
        [np.shape(column) for column in columns],
      )
    _draw_line(axes, index, name, x, y, spread[0] if spread else None, log_y)
  # After the curves, whose limits would else include the empty axes'.
  axes.set(
    xscale='log' if log_x else 'linear', yscale='log' if log_y else 'linear'
  )
  axes.set_xlabel(x_label)
  axes.set_ylabel(y_label)
  _finish(axes, title)
  if len(series) > 1 or spread:
    axes.legend(frameon=False)


def draw_curves(
  axes: Axes,
  table: tables.Table,
  column: str,
  *,
  over: str,
  by: str,
  **options: Any,
) -> None:
  """Draws means and spreads over seeds of a table's column.

  Args:
    column: What is drawn.
    over: The column of the horizontal axis.
    by: The column that has the names of the curves.
    **options: As those of `draw_lines`.
  """
  series = {}
  for name in table.distinct(by):
    places, values = table.curve(column, over, **{by: name})
    series[str(name)] = (places, *tables.mean_and_spread(values))
  draw_lines(axes, series, **options)


def draw_groups(
  axes: Axes,
  table: tables.Table,
  column: str,
  *,
  group: str,
  by: str,
  **options: Any,
) -> None:
  """Draws bars of means and spreads over seeds of a table's column.

  Args:
    column: What is drawn.
    group: The column that has the names of the groups.
    by: The column that has the names of the bars of a group.
    **options: As those of `draw_bars`.
  """
  groups = {}
  for name in table.distinct(group):
    of_group = table.where(**{group: name})
    groups[str(name)] = {
      str(bar): tables.mean_and_spread(of_group.values(column, **{by: bar}))
      for bar in of_group.distinct(by)
    }
  draw_bars(axes, groups, **options)


def prepare(
  figure: Figure,
  width: float,
  height: float,
  num_seeds: int,
  note: str = '',
) -> None:
  """Sizes a figure and says below its top what its error bars or bands are.

  Args:
    figure: An empty figure.
    width: In inches.
    height: In inches.
    num_seeds: Seeds that the values are means over.
    note: What else is to be said there, such as what the values depend on.
  """
  figure.set_size_inches(width, height)
  notes = [note] if note else []
  if num_seeds > 1:
    notes.append(f'Mean and standard deviation over {num_seeds} seeds')
  if notes:
    figure.suptitle(
      '. '.join(notes), fontsize='small', color=picture_style.TEXT_COLOR
    )


def draw_matrix(
  axes: Axes,
  matrix: Any,
  *,
  title: str,
  labels: Sequence[Any],
  low: float,
  high: float,
) -> None:
  """Draws a square matrix in colors, with its numbers where they fit.

  Args:
    matrix: Float `[n, n]`. What is not finite is left gray.
    labels: The n names of its rows, and of its columns.
    low: The value of the darkest color. Panels to be compared need the same.
    high: The value of the brightest color, larger than `low`.

  Raises:
    ValueError: If the matrix is not square, or has not as many rows as labels.
  """
  matrix = np.asarray(matrix, float)
  num_rows = len(labels)
  errors.expect(
    matrix.shape == (num_rows, num_rows),
    'matrix',
    f'of shape {(num_rows, num_rows)}, like `labels`',
    matrix.shape,
  )
  errors.expect(low < high, 'high', f'larger than `low` = {low}', high)
  colors = matplotlib.colormaps[_MATRIX_COLORS].with_extremes(
    bad=_MISSING_COLOR
  )
  image = axes.imshow(
    np.ma.masked_invalid(matrix), cmap=colors, vmin=low, vmax=high
  )
  axes.set_xticks(range(num_rows), labels)
  axes.set_yticks(range(num_rows), labels)
  axes.tick_params(length=0)
  axes.spines[:].set_visible(False)
  if title:
    axes.set_title(title, loc='left')
  axes.figure.colorbar(image, ax=axes, shrink=0.8)
  if num_rows <= _MAX_ANNOTATED_ROWS:
    _write_cells(axes, matrix, dark_below=(low + high) / 2)


def draw_bars(
  axes: Axes,
  values: Mapping[str, Mapping[str, Sequence[float]]],
  *,
  y_label: str,
  title: str = '',
) -> None:
  """Draws groups of bars with error bars.

  Args:
    values: By group and series, `(mean, spread)`: the height of the bar and
      half the length of its error bar. A series that a group lacks leaves its
      place empty.

  Raises:
    ValueError: If there is no value.
  """
  names = list(
    dict.fromkeys(name for group in values.values() for name in group)
  )
  errors.expect(names, 'values', 'at least one group with a series', values)
  width = _GROUP_WIDTH / len(names)
  for index, name in enumerate(names):
    given = [
      (place, *group[name])
      for place, group in enumerate(values.values())
      if name in group
    ]
    places, means, spreads = np.array(given, float).T
    axes.bar(
      places + (index - (len(names) - 1) / 2) * width,
      means,
      0.92 * width,
      yerr=spreads if np.any(spreads > 0) else None,
      label=name,
      color=picture_style.color(index),
      ecolor=picture_style.TEXT_COLOR,
      capsize=_CAP_SIZE,
    )
  axes.set_ylabel(y_label)
  # Aslant where the names would not fit.
  crowded = sum(map(len, values)) > _MAX_LEVEL_CHARACTERS
  aslant = {'rotation': _BAR_LABEL_ROTATION, 'ha': 'right'} if crowded else {}
  axes.set_xticks(range(len(values)), list(values), **aslant)
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
  if spread is None:
    axes.plot(x, y, **style)
    return
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


def _write_cells(axes, matrix, dark_below):
  for (row, column), value in np.ndenumerate(matrix):
    if np.isfinite(value):
      axes.text(
        column,
        row,
        f'{value:.2f}',
        ha='center',
        va='center',
        fontsize='x-small',
        color='white' if value < dark_below else 'black',
      )


def _finish(axes, title):
  picture_style.tidy(axes)
  if title:
    axes.set_title(title, loc='left')
