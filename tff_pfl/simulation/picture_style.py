"""What all pictures share: colours, a quiet frame, and how they are written."""

import os
from typing import Union

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tff_pfl.simulation import summary

# Okabe and Ito's colours, which colour-blind readers can tell apart.
COLORS = (
  '#0072B2',
  '#D55E00',
  '#009E73',
  '#CC79A7',
  '#E69F00',
  '#56B4E9',
  '#000000',
)
# For when the colours start again.
LINE_STYLES = ('-', '--', ':')
TEXT_COLOR = '#555555'
_DOTS_PER_INCH = 150


def color(index: int) -> str:
  """Returns the colour of the series at `index`; after the last, the first."""
  return COLORS[index % len(COLORS)]


def line_style(index: int) -> str:
  """Returns the line style that goes with `color(index)`."""
  return LINE_STYLES[index // len(COLORS) % len(LINE_STYLES)]


def tidy(axes: Axes) -> None:
  """Leaves the frame to what is read, with a light grid behind the data."""
  axes.spines[['top', 'right']].set_visible(False)
  axes.grid(color='#DDDDDD', linewidth=0.6)
  axes.set_axisbelow(True)


def save(figure: Figure, path: Union[str, 'os.PathLike[str]']) -> None:
  """Writes a figure as a PNG file.

  Args:
    figure: The figure, of layout "constrained".
    path: The file; after a crash it is the old one or the new one.

  Raises:
    RunError: If the file cannot be written.
  """
  figure.get_layout_engine().set(w_pad=0.1, h_pad=0.1)
  with summary.atomic_file(path, 'wb') as file:
    figure.savefig(file, format='png', dpi=_DOTS_PER_INCH)
