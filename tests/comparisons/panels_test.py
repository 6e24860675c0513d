"""Figures of experiments; what is drawn in them is tested with `plots`."""

import types

import pytest
from matplotlib.figure import Figure

from tff_pfl.comparisons import panels, tables

_TABLE = tables.Table.from_rows(
  {
    'method': method,
    'partition': partition,
    'round': r,
    'accuracy': 0.1 * r + seed / 10,
    'seed': seed,
  }
  for method in ('FedRep', 'FedAvg')
  for partition in ('iid', 'shards:2')
  for r in (1, 2)
  for seed in (0, 1)
)


def _drawn(draw, num_seeds=2):
  figure = Figure(layout='constrained')
  draw(_TABLE, types.SimpleNamespace(num_seeds=num_seeds), figure)
  return figure


@pytest.mark.parametrize('num_seeds', [1, 2])
def test_a_figure_of_curves_says_what_its_bars_are(num_seeds):
  draw = panels.curves('accuracy', over='round', y_label='Score', width=3)
  figure = _drawn(draw, num_seeds)
  (axes,) = figure.axes
  assert axes.get_ylabel() == 'Score'
  assert figure.get_figwidth() == 3
  assert ('over 2 seeds' in figure.get_suptitle()) == (num_seeds == 2)


def test_there_is_a_panel_for_each_value_of_a_column():
  draw = panels.accuracy_bars(panel='partition', title='as {}'.format)
  figure = _drawn(draw)
  titles = [axes.get_title('left') for axes in figure.axes]
  assert titles == ['as iid', 'as shards:2']
  assert figure.axes[0].get_ylabel() == 'Test accuracy'
