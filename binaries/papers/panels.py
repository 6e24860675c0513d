"""Functions for `Study.draw` that draw curves and bars."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Optional

from matplotlib.figure import Figure

from tff_pfl import plots
from tff_pfl.studies.numbers import Numbers

Draw = Callable[[Numbers, Any, Figure], None]


def curves(column: str, *, over: str, **options: Any) -> Draw:
  """A function that draws a figure of curves.

  Args:
    column: Column to draw.
    over: Column of the x axis.
    **options: Options of `plots.curves`, and of the panels: `panel`, a column
      with a panel for each value, `width` of a panel in inches, `title`, a
      function of the value, `sharey`, for one vertical axis, and
      `shared_legend`, for panels with the same curves.
  """
  return functools.partial(_draw, plots.curves, y=column, x=over, **options)


def bars(column: str, *, group: str, **options: Any) -> Draw:
  """A function that draws a figure of groups of bars.

  Args:
    column: Column to draw.
    group: Column that groups the bars.
    **options: Options of `plots.bars`, and of the panels as for `curves`.
  """
  return functools.partial(_draw, plots.bars, y=column, x=group, **options)


# Draws the scores of methods.
score_bars = functools.partial(
  bars, 'score', group='method', by='condition', y_label='Test accuracy'
)


def _draw(
  draw_panel: Callable[..., Any],
  numbers: Numbers,
  study: Any,
  figure: Figure,
  *,
  panel: Optional[str] = None,
  width: float = 6.4,
  title: Callable[[Any], str] = str,
  sharey: bool = False,
  shared_legend: bool = False,
  **options: Any,
) -> None:
  _say_spread(figure, len(study.seeds))
  parts = {'': numbers.frame}
  if panel is not None:
    parts = {
      title(value): numbers.frame[numbers.frame[panel] == value]
      for value in numbers.frame[panel].unique()
    }
  figure.set_size_inches(width * len(parts), 4.4)
  axes = figure.subplots(1, len(parts), sharey=sharey, squeeze=False)[0]
  for ax, (name, part) in zip(axes, parts.items()):
    draw_panel(part, title=name, ax=ax, **options)
  if shared_legend:
    share_legend(figure)


def share_legend(figure: Figure) -> None:
  """Puts one legend below all panels, which have the same curves."""
  handles, labels = figure.axes[-1].get_legend_handles_labels()
  for ax in figure.axes:
    ax.get_legend().remove()
  figure.legend(
    handles, labels, loc='outside lower center', ncols=4, frameon=False
  )


def prepare(
  figure: Figure, width: float, height: float, num_seeds: int
) -> None:
  """Sizes an empty figure, in inches, and explains its error bars."""
  figure.set_size_inches(width, height)
  _say_spread(figure, num_seeds)


def _say_spread(figure, num_seeds):
  """Explains error bars and bands above a figure of several seeds."""
  if num_seeds > 1:
    figure.suptitle(
      f'Mean and standard deviation over {num_seeds} seeds',
      fontsize='small',
      color='#555555',
    )
