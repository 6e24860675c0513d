"""A picture of a partition: how many examples of each class a client holds.

And of each domain, where there are any.
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
# Where the most is more than so many times the median, scales are logarithmic.
_MOST_OF_MEDIAN = 20
# Of more clients, evenly spaced ones stand for all.
_MAX_CLIENTS = 200
# More classes have numbers, as words would run into each other.
_MAX_CLASS_WORDS = 30
_LONGEST_WORD = 16
# A data set's name is no formula between dollar signs.
_plain_text = matplotlib.rc_context({'text.parse_math': False})


@_plain_text
def plot_partition(
  dataset: federated_dataset.FederatedDataset, path: str
) -> None:
  """Writes a picture of clients × classes and clients × domains.

  Args:
    path: The .png file to write; it replaces an existing one.

  Raises:
    ValueError: `path` does not end in .png.
    OSError: The file cannot be written.
  """
  errors.expect(os.fspath(path).endswith('.png'), 'path', 'a .png file', path)
  partition_figure(dataset).savefig(path, dpi=150)


@_plain_text
def partition_figure(
  dataset: federated_dataset.FederatedDataset,
) -> figure.Figure:
  """Returns the picture as a figure of its own canvas.

  Training and test are side by side. Color tells the number of a client's
  examples of a class or domain, bars beside it the client's total; a regression
  dataset without domains has the bars only.
  """
  shown = equidistant(dataset.num_clients, _MAX_CLIENTS)
  subset = dataset.subset([dataset.client_ids[i] for i in shown])
  totals = {split: _totals(subset, split) for split in _SPLIT_TITLES}
  maps = {split: _maps(subset, split) for split in _SPLIT_TITLES}
  sampled = len(shown) < dataset.num_clients
  height = float(np.clip(2.0 + 0.085 * len(shown), 3.6, 10.5))
  widths = [
    float(np.clip(0.36 * counts.shape[1], 1.6, 6.0))
    for counts in maps['train'].values()
  ]
  widths.append(1.1 if widths else 3.5)
  size = 2.4 + 2 * sum(widths), height
  fig = figure.Figure(figsize=size, layout='constrained')
  backend_agg.FigureCanvasAgg(fig)
  subfigures = fig.subfigures(1, 2, wspace=0.04)
  for panel, (split, split_title) in zip(subfigures, _SPLIT_TITLES.items()):
    of_shown = ' of the clients shown' if sampled else ''
    panel.suptitle(
      f'{split_title}{of_shown}: {totals[split].sum():,}',
      fontsize=10,
      color=_TEXT,
    )
    axes = panel.subplots(
      1, len(widths), sharey=True, width_ratios=widths, squeeze=False
    )[0]
    image = None
    of_all = [counts.ravel() for counts in maps[split].values()]
    scale = norm(np.concatenate(of_all)) if of_all else None
    for column, (kind, counts) in enumerate(maps[split].items()):
      cell = 72 * min(
        (height - 1.5) / len(shown), widths[column] / counts.shape[1]
      )
      image = _draw_map(axes[column], counts, split, cell, scale)
      axes[column].set_xlabel(kind, fontsize=9, color=_TEXT)
      words = _column_words(dataset, kind)
      if words is not None and len(words) <= _MAX_CLASS_WORDS:
        axes[column].set_xticks(
          range(len(words)), map(_shortened, words), rotation=90
        )
    if image is not None:
      _draw_scale(panel, image, axes, ' or '.join(maps[split]))
    _draw_bars(axes[-1], totals[split], split)
    axes[0].set_ylabel('client', fontsize=9, color=_TEXT)
    _label_clients(axes[0], subset.client_ids)

  clients = f'{dataset.num_clients:,} clients'
  if sampled:
    clients += f', of which {len(shown):,} evenly spaced ones are shown'
  fig.suptitle(f'{dataset.name} – {clients}', fontsize=11, color=_TEXT)
  return fig


def _shortened(word: str) -> str:
  return word if len(word) <= _LONGEST_WORD else f'{word[: _LONGEST_WORD - 1]}…'


def equidistant(num_clients: int, max_clients: int) -> np.ndarray:
  """Returns the positions of at most `max_clients` evenly spaced clients."""
  num_shown = min(num_clients, max_clients)
  return np.arange(num_shown) * num_clients // num_shown


def _totals(
  dataset: federated_dataset.FederatedDataset, split: str
) -> np.ndarray:
  """Returns the number of examples of each client, `[clients]`."""
  count = dataset.num_train_examples
  if split == 'test':
    count = dataset.num_test_examples
  return np.array([count(client_id) for client_id in dataset.client_ids])


def _maps(
  dataset: federated_dataset.FederatedDataset, split: str
) -> dict[str, np.ndarray]:
  """Returns counts `[clients, classes]` and `[clients, domains]`, as known."""
  maps = {}
  if dataset.num_classes is not None:
    maps['class'] = dataset.class_counts(split)
  if dataset.domain_names is not None:
    maps['domain'] = dataset.domain_counts(split)
  return maps


def _column_words(
  dataset: federated_dataset.FederatedDataset, kind: str
) -> Optional[Sequence[str]]:
  """Returns what classes or domains are called; None where it is not known."""
  if kind == 'domain':
    return dataset.domain_names
  return dataset.encoding and dataset.encoding.classes


def is_skewed(counts: Any) -> bool:
  """Whether a few counts would wash out a linear scale of all."""
  counts = np.asarray(counts)
  positive = counts[counts > 0]
  return bool(
    positive.size and positive.max() > _MOST_OF_MEDIAN * np.median(positive)
  )


def norm(counts: Any) -> colors.Normalize:
  """A scale of colors for counts, which 0 is not on where it is logarithmic."""
  most = max(np.max(counts), 1)
  return (
    colors.LogNorm(1, most) if is_skewed(counts) else colors.Normalize(0, most)
  )


def _draw_map(
  axes: Any,
  counts: np.ndarray,
  split: str,
  cell: float,
  scale: colors.Normalize,
) -> Any:
  num_shown, num_columns = counts.shape
  axes.set_facecolor(_EMPTY_CELL)
  image = axes.imshow(
    np.ma.masked_equal(counts, 0),
    aspect='auto',
    interpolation='nearest',
    norm=scale,
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
  axes.spines[:].set_visible(False)
  return image


def _draw_scale(panel: Any, image: Any, axes: Any, kinds: str) -> None:
  """Draws which color stands for how many examples."""
  bar = panel.colorbar(
    image, ax=list(axes), location='bottom', shrink=0.6, aspect=30, pad=0.02
  )
  bar.set_label(f'examples of a {kinds}', fontsize=8, color=_TEXT)
  if isinstance(image.norm, colors.LogNorm):
    use_plain_powers(bar.ax.xaxis)
  else:
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
  if is_skewed(totals):
    axes.set(xscale='log', xlim=(0.5, totals.max() * 1.5))
    use_plain_powers(axes.xaxis)
  else:
    axes.set_xlim(0, max(totals.max() * 1.05, 1))
    axes.xaxis.set_major_locator(ticker.MaxNLocator(2, integer=True))
  axes.tick_params(axis='x', labelsize=7, colors=_TEXT, length=2)
  axes.tick_params(axis='y', labelsize=7, colors=_TEXT)
  axes.tick_params(axis='y', which='both', length=0)
  axes.set_xlabel('total', fontsize=9, color=_TEXT)
  axes.spines[['top', 'right', 'left']].set_visible(False)
  axes.spines['bottom'].set_color('#bbbbbb')


def use_plain_powers(axis: Any) -> None:
  """Labels a logarithmic axis of counts without formulas."""
  axis.set_major_locator(ticker.LogLocator(numticks=4))
  axis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f'{value:,g}'))
  axis.set_minor_formatter(ticker.NullFormatter())


def _label_clients(axes: Any, client_ids: Sequence[str]) -> None:
  """Labels rows with the clients' names, as many as there is room for."""
  step = max(1, -(-len(client_ids) // 20))
  if step > 2:
    # Steps that people count in.
    step = next(s for s in (5, 10, 20, 50, 100, 10**9) if s >= step)
  rows = np.arange(0, len(client_ids), step)
  axes.set_yticks(rows, [_shortened(client_ids[row]) for row in rows])
