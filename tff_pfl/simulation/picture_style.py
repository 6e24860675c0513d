"""The style of all pictures: colors, a quiet frame, how they are written."""

import math
import os
from typing import Any, Optional, Union

import numpy as np
from matplotlib import ticker
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.legend import Legend

from tff_pfl.simulation import summary

# Okabe and Ito's colors, which color-blind readers can tell apart.
COLORS = (
  '#0072B2',
  '#D55E00',
  '#009E73',
  '#CC79A7',
  '#E69F00',
  '#56B4E9',
  '#000000',
)
# For when the colors start again.
LINE_STYLES = ('-', '--', ':')
HATCHES = ('', '///', '...')
TEXT_COLOR = '#555555'
GRID_COLOR = '#dddddd'
# For `matplotlib.rc_context`: names in the data, such as those of domains, are
# no formulas between dollar signs.
PLAIN_TEXT = {'text.parse_math': False}
_DOTS_PER_INCH = 150


def color(index: int) -> str:
  """Returns the color of the series at `index`; after the last, the first."""
  return COLORS[index % len(COLORS)]


def line_style(index: int) -> str:
  """Returns the line style that goes with `color(index)`."""
  return LINE_STYLES[index // len(COLORS) % len(LINE_STYLES)]


def hatch(index: int) -> str:
  """Returns the hatch of bars that goes with `color(index)`."""
  return HATCHES[index // len(COLORS) % len(HATCHES)]


def tidy(axes: Axes) -> None:
  """Leaves the frame to what is read, with a light grid behind the data."""
  axes.spines[['top', 'right']].set_visible(False)
  axes.grid(color=GRID_COLOR, linewidth=0.6)
  axes.set_axisbelow(True)


def legend_above(axes: Axes, num_columns: int, **options: Any) -> Legend:
  """Puts the legend above the axes, where it hides no data.

  Args:
    num_columns: Entries beside one another.
    **options: Others of `Axes.legend`.
  """
  return axes.legend(
    frameon=False,
    loc='lower left',
    bbox_to_anchor=(0.0, 1.0),
    ncols=num_columns,
    borderaxespad=0.2,
    **options,
  )


class _FractionLocator(ticker.MaxNLocator):
  """Places for ticks, none where no fraction can be."""

  def tick_values(self, vmin: float, vmax: float) -> np.ndarray:
    ticks = np.asarray(super().tick_values(vmin, vmax))
    return ticks[(ticks >= -1e-9) & (ticks <= 1 + 1e-9)]


def use_percent(axis: Axis, num_ticks: int = 5) -> None:
  """Labels an axis of fractions as percentages, the unit left to its label.

  Args:
    axis: Its limits, which may be beyond [0, 1], can be changed later.
    num_ticks: Intervals between ticks, at most.
  """
  axis.set_major_locator(
    _FractionLocator(nbins=num_ticks, steps=[1, 2, 2.5, 5, 10])
  )
  axis.set_major_formatter(
    ticker.FuncFormatter(lambda value, _: f'{100 * value:.6g}')
  )


def coinciding(
  before: np.ndarray,
  after: np.ndarray,
  max_points: Optional[int] = None,
  step: float = 0.01,
) -> tuple[np.ndarray, np.ndarray]:
  """Groups clients whose scores are the same, as those on few examples are.

  Args:
    before: A score of each client, such as the accuracy, `[n]`.
    after: Another, `[n]`.
    max_points: How many points there may be; if there are more, those close
      together become one, on the same side of the diagonal. None for any
      number.
    step: How close, to begin with.

  Returns:
    The distinct points (before, after), `[points, 2]`, and the number of
    clients at each.
  """
  distinct, counts = np.unique(
    np.stack([before, after], axis=1), axis=0, return_counts=True
  )
  digits = 4 - math.floor(math.log10(step))
  while max_points is not None and len(distinct) > max_points:
    place = np.round(np.asarray(before) / step) * step
    change = np.subtract(after, before)
    # Away from the diagonal, so that no loss is hidden.
    change = np.sign(change) * np.ceil(np.abs(change) / step) * step
    merged = np.stack([place, place + change], axis=1).round(digits)
    distinct, counts = np.unique(merged, axis=0, return_counts=True)
    step *= 2
  return distinct, counts


def save(figure: Figure, path: Union[str, 'os.PathLike[str]']) -> None:
  """Writes a figure, of layout "constrained", as a PNG `atomic_file`."""
  figure.get_layout_engine().set(w_pad=0.1, h_pad=0.1)
  with summary.atomic_file(path, 'wb') as file:
    figure.savefig(file, format='png', dpi=_DOTS_PER_INCH)
