"""A picture of a partition: how many examples of each class a client holds.

In a dataset with domains, it can be of each domain instead.
"""

import os
from collections.abc import Sequence
from typing import Any, Optional

import matplotlib
import numpy as np
from matplotlib import colors, figure, ticker
from matplotlib.backends import backend_agg

from tff_pfl import errors
from tff_pfl.datasets import federated_dataset

_SPLIT_TITLES = {'train': 'Training examples', 'test': 'Test examples'}
_BAR_COLORS = {'train': '#4a90c4', 'test': '#e8873a'}
# From one example to the most: neither end is lost against page or grid.
_COLOR_MAPS = {
  split: colors.LinearSegmentedColormap.from_list(
    split, matplotlib.colormaps[name](np.linspace(0.2, 0.9, 64))
  )
  for split, name in (('train', 'Blues'), ('test', 'Oranges'))
}
_EMPTY_CELL = '#f4f4f4'
_GRID = '#ffffff'
_TEXT = '#333333'
# Cells that are narrower than this many points would drown in grid lines.
_MIN_CELL_FOR_GRID = 5
# The names of more domains than this would not be read.
_MAX_NAMED_COLUMNS = 16
# Names in the data are no formulas between dollar signs.
_plain_text = matplotlib.rc_context({'text.parse_math': False})


@_plain_text
def plot_partition(
  dataset: federated_dataset.FederatedDataset, path: str, **options: Any
) -> None:
  """Writes a picture of clients × classes, training and test side by side.

  Args:
    path: The .png file to write; it replaces an existing one.
    **options: See `partition_figure`.

  Raises:
    ValueError: `path` does not end in .png, or an option is out of range.
    OSError: The file cannot be written.
  """
  errors.expect(os.fspath(path).endswith('.png'), 'path', 'a .png file', path)
  partition_figure(dataset, **options).savefig(path, dpi=150)


@_plain_text
def partition_figure(
  dataset: federated_dataset.FederatedDataset,
  *,
  title: Optional[str] = None,
  max_clients: int = 200,
  by: str = 'class',
) -> figure.Figure:
  """Returns the picture as a figure of its own canvas.

  Color tells the number of a client's examples of a class, bars beside it the
  client's total; a regression dataset has the bars only, unless its domains are
  drawn. Beyond `max_clients`, equidistant clients stand for all.

  Args:
    max_clients: Most clients to draw, at least 1.
    by: 'class', or 'domain' for a picture of clients × domains.

  Raises:
    ValueError: `max_clients` is not positive, or `by` is unknown or 'domain'
      for a dataset without domains.
  """
  errors.expect(
    isinstance(max_clients, int) and max_clients >= 1,
    'max_clients',
    'a positive integer',
    max_clients,
  )
  errors.expect(
    by == 'class' or (by == 'domain' and dataset.num_domains),
    'by',
    "'class', or 'domain' for a dataset with domains",
    by,
  )
  shown = equidistant(dataset.num_clients, max_clients)
  counts = {
    split: _counts(dataset, split, shown, by) for split in _SPLIT_TITLES
  }
  sampled = len(shown) < dataset.num_clients
  has_map = by == 'domain' or dataset.num_classes is not None
  height = float(np.clip(2.0 + 0.085 * len(shown), 3.6, 10.5))
  num_columns = counts['train'].shape[1]
  widths = [float(np.clip(0.36 * num_columns, 1.6, 6.0)), 1.1]
  if not has_map:
    widths = [3.5]
  size = 2.4 + 2 * sum(widths), height
  fig = figure.Figure(figsize=size, layout='constrained')
  backend_agg.FigureCanvasAgg(fig)
  subfigures = fig.subfigures(1, 2, wspace=0.04)
  for panel, (split, split_title) in zip(subfigures, _SPLIT_TITLES.items()):
    of_shown = ' of the clients shown' if sampled else ''
    panel.suptitle(
      f'{split_title}{of_shown}: {counts[split].sum():,}',
      fontsize=10,
      color=_TEXT,
    )
    axes = panel.subplots(
      1, len(widths), sharey=True, width_ratios=widths, squeeze=False
    )[0]
    if has_map:
      cell = 72 * min((height - 1.5) / len(shown), widths[0] / num_columns)
      image = _draw_map(axes[0], counts[split], split, cell, by)
      if by == 'domain' and num_columns <= _MAX_NAMED_COLUMNS:
        _name_columns(axes[0], dataset.domain_names)
      _draw_scale(panel, image, axes, by)
    _draw_bars(axes[-1], counts[split].sum(axis=1), split)
    axes[0].set_ylabel('client', fontsize=9, color=_TEXT)
    _label_clients(axes[0], shown)

  clients = f'{dataset.num_clients:,} clients'
  if sampled:
    clients += f', of which {len(shown):,} evenly spaced ones are shown'
  fig.suptitle(
    f'{dataset.name if title is None else title} – {clients}',
    fontsize=11,
    color=_TEXT,
  )
  return fig


def equidistant(num_clients: int, max_clients: int) -> np.ndarray:
  """Returns the positions of at most `max_clients` evenly spaced clients."""
  num_shown = min(num_clients, max_clients)
  return np.arange(num_shown) * num_clients // num_shown


def _counts(
  dataset: federated_dataset.FederatedDataset,
  split: str,
  shown: np.ndarray,
  by: str,
) -> np.ndarray:
  """Returns counts `[shown, classes or domains]`; one column without any."""
  subset = dataset.subset([dataset.client_ids[i] for i in shown])
  if by == 'domain':
    return subset.domain_counts(split)
  if dataset.num_classes is not None:
    return subset.class_counts(split)
  count = subset.num_train_examples
  if split == 'test':
    count = subset.num_test_examples
  return np.array([[count(client_id)] for client_id in subset.client_ids])


def _draw_map(
  axes: Any, counts: np.ndarray, split: str, cell: float, by: str
) -> Any:
  num_shown, num_columns = counts.shape
  axes.set_facecolor(_EMPTY_CELL)
  image = axes.imshow(
    np.ma.masked_equal(counts, 0),
    aspect='auto',
    interpolation='nearest',
    norm=colors.Normalize(0, max(counts.max(), 1)),
    cmap=_COLOR_MAPS[split],
  )
  if cell >= _MIN_CELL_FOR_GRID:
    axes.set_xticks(np.arange(1, num_columns) - 0.5, minor=True)
    axes.set_yticks(np.arange(1, num_shown) - 0.5, minor=True)
    axes.grid(which='minor', color=_GRID, linewidth=0.8)
  axes.tick_params(which='minor', length=0)
  axes.tick_params(labelsize=7, colors=_TEXT, length=2)
  axes.xaxis.set_major_locator(ticker.MaxNLocator(10, integer=True))
  axes.set_xlim(-0.5, num_columns - 0.5)
  axes.set_xlabel(by, fontsize=9, color=_TEXT)
  axes.spines[:].set_visible(False)
  return image


def _name_columns(axes: Any, names: Sequence[str]) -> None:
  axes.set_xticks(
    range(len(names)), names, rotation=45, ha='right', rotation_mode='anchor'
  )


def _draw_scale(panel: Any, image: Any, axes: Any, by: str) -> None:
  """Draws which color stands for how many examples."""
  bar = panel.colorbar(
    image, ax=list(axes), location='bottom', shrink=0.6, aspect=30, pad=0.02
  )
  bar.set_label(f'examples of a {by}', fontsize=8, color=_TEXT)
  bar.locator = ticker.MaxNLocator(4, integer=True)
  bar.update_ticks()
  bar.ax.tick_params(labelsize=7, colors=_TEXT, length=2)
  bar.outline.set_visible(False)


def _draw_bars(axes: Any, totals: np.ndarray, split: str) -> None:
  axes.barh(
    np.arange(len(totals)),
    totals,
    height=0.8 if len(totals) <= 100 else 1.0,
    color=_BAR_COLORS[split],
  )
  axes.set_ylim(len(totals) - 0.5, -0.5)
  axes.set_xlim(0, max(totals.max() * 1.05, 1))
  axes.xaxis.set_major_locator(ticker.MaxNLocator(2, integer=True))
  axes.tick_params(axis='x', labelsize=7, colors=_TEXT, length=2)
  axes.tick_params(axis='y', labelsize=7, colors=_TEXT)
  axes.tick_params(axis='y', which='both', length=0)
  axes.set_xlabel('total', fontsize=9, color=_TEXT)
  axes.spines[['top', 'right', 'left']].set_visible(False)
  axes.spines['bottom'].set_color('#bbbbbb')


def _label_clients(axes: Any, shown: np.ndarray) -> None:
  """Labels rows with the clients' numbers, whichever clients are shown."""
  step = max(1, -(-len(shown) // 20))
  if step > 2:
    # Steps that people count in.
    step = next(s for s in (5, 10, 20, 50, 100, 10**9) if s >= step)
  rows = np.arange(0, len(shown), step)
  axes.set_yticks(rows, [f'{shown[row]:,}' for row in rows])
