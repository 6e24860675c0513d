"""A picture of a partition: who holds how many examples of which class."""

import os
from collections.abc import Sequence
from typing import Any

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
_TEXT = '#333333'
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
  is_sampled = len(shown) < dataset.num_clients
  maps = {split: _maps(subset, split) for split in _SPLIT_TITLES}
  widths = [
    float(np.clip(0.36 * counts.shape[1], 1.6, 6.0))
    for counts in maps['train'].values()
  ]
  widths.append(1.1 if widths else 3.5)
  height = float(np.clip(2.0 + 0.085 * len(shown), 3.6, 10.5))
  fig = figure.Figure((2.4 + 2 * sum(widths), height), layout='constrained')
  backend_agg.FigureCanvasAgg(fig)
  panels = fig.subfigures(1, 2, wspace=0.04)
  for panel, (split, title) in zip(panels, _SPLIT_TITLES.items()):
    count = getattr(subset, f'num_{split}_examples')
    totals = np.array([count(client_id) for client_id in subset.client_ids])
    of_shown = ' of the clients shown' if is_sampled else ''
    panel.suptitle(
      f'{title}{of_shown}: {totals.sum():,}', fontsize=10, color=_TEXT
    )
    axes = panel.subplots(
      1, len(widths), sharey=True, width_ratios=widths, squeeze=False
    )[0]
    _draw_maps(panel, axes[:-1], maps[split], split, dataset)
    _draw_bars(axes[-1], totals, split)
    axes[0].set_ylabel('client', fontsize=9, color=_TEXT)
    rows = np.arange(0, len(shown), -(-len(shown) // 20))
    axes[0].set_yticks(rows, [_shortened(subset.client_ids[i]) for i in rows])
  clients = f'{dataset.num_clients:,} clients'
  if is_sampled:
    clients += f', of which {len(shown):,} evenly spaced ones are shown'
  fig.suptitle(f'{dataset.name} – {clients}', fontsize=11, color=_TEXT)
  return fig


def _shortened(word: str) -> str:
  return word if len(word) <= _LONGEST_WORD else f'{word[: _LONGEST_WORD - 1]}…'


def equidistant(num_clients: int, max_clients: int) -> np.ndarray:
  """Returns the positions of at most `max_clients` evenly spaced clients."""
  num_shown = min(num_clients, max_clients)
  return np.arange(num_shown) * num_clients // num_shown


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


def _draw_maps(
  panel: Any,
  all_axes: Sequence[Any],
  maps: dict[str, np.ndarray],
  split: str,
  dataset: federated_dataset.FederatedDataset,
) -> None:
  """Draws counts by class and domain, and which color is how many examples."""
  if not maps:
    return
  scale = norm(np.concatenate([counts.ravel() for counts in maps.values()]))
  words = {
    'class': dataset.encoding and dataset.encoding.classes,
    'domain': dataset.domain_names,
  }
  for axes, (kind, counts) in zip(all_axes, maps.items()):
    axes.set_facecolor(_EMPTY_CELL)
    image = axes.imshow(
      np.ma.masked_equal(counts, 0),
      aspect='auto',
      interpolation='nearest',
      norm=scale,
      cmap=_COLOR_MAPS[split],
    )
    axes.tick_params(labelsize=7, colors=_TEXT, length=2)
    axes.xaxis.set_major_locator(ticker.MaxNLocator(10, integer=True))
    axes.set_xlim(-0.5, counts.shape[1] - 0.5)
    axes.spines[:].set_visible(False)
    axes.set_xlabel(kind, fontsize=9, color=_TEXT)
    if words[kind] and len(words[kind]) <= _MAX_CLASS_WORDS:
      axes.set_xticks(
        range(len(words[kind])), map(_shortened, words[kind]), rotation=90
      )
  bar = panel.colorbar(
    image, ax=all_axes, location='bottom', shrink=0.6, aspect=30, pad=0.02
  )
  bar.set_label(f'examples of a {" or ".join(maps)}', fontsize=8, color=_TEXT)
  if isinstance(scale, colors.LogNorm):
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
