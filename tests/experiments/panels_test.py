import types

import numpy as np
import pytest
from matplotlib.container import ErrorbarContainer
from matplotlib.figure import Figure

from tff_pfl.experiments import panels, tables
from tff_pfl.simulation import picture_style


@pytest.fixture
def axes():
  figure = Figure(layout='constrained')
  yield figure.add_subplot()
  # What was drawn can be shown.
  figure.canvas.draw()


def _table(values):
  """Rows of two seeds, one as far below the mean as the other is above.

  Args:
    values: By method and round the mean, and how far the seeds are from it.
  """
  return tables.Table.from_rows(
    {
      'method': method,
      'round': r,
      'error': mean + sign * half,
      'seed': sign,
    }
    for (method, r), (mean, half) in values.items()
    for sign in (-1, 1)
  )


def _curves(axes, values, **options):
  panels.draw_curves(
    axes,
    _table(values),
    'error',
    over='round',
    x_label='Round',
    y_label='Error',
    **options,
  )


def _legend_texts(axes):
  return [text.get_text() for text in axes.get_legend().get_texts()]


def test_each_curve_has_its_values_its_color_and_its_name(axes):
  values = {
    ('a', 1): (3, 0),
    ('a', 2): (4, 0),
    ('b', 1): (5, 0),
    ('b', 2): (6, 0),
  }
  _curves(axes, values, title='Panel')
  first, second = (container[0] for container in axes.containers)
  np.testing.assert_array_equal(first.get_xydata(), [[1, 3], [2, 4]])
  np.testing.assert_array_equal(second.get_ydata(), [5, 6])
  assert first.get_color() == picture_style.color(0)
  assert second.get_color() == picture_style.color(1)
  assert _legend_texts(axes) == ['a', 'b']
  assert axes.get_title(loc='left') == 'Panel'
  assert (axes.get_xlabel(), axes.get_ylabel()) == ('Round', 'Error')


def test_logarithmic_axes_show_all_positive_values(axes):
  values = {('a', 1): (1e-8, 0), ('a', 10): (0, 0), ('a', 100): (1, 0)}
  _curves(axes, values, log_x=True, log_y=True)
  assert (axes.get_xscale(), axes.get_yscale()) == ('log', 'log')
  low, high = axes.get_ylim()
  assert 1e-9 < low < 1e-8 < 1 < high < 10
  assert 0.1 < axes.get_xlim()[0] < 1
  np.testing.assert_array_equal(
    axes.containers[0][0].get_ydata(), [1e-8, np.nan, 1.0]
  )


# Of two values the sample's deviation is so many times half their distance.
_ROOT = 2**0.5


@pytest.mark.parametrize('log_y', [False, True])
def test_the_spread_of_few_points_is_error_bars(axes, log_y):
  values = {('a', 1): (3, 1 / _ROOT), ('a', 2): (4, 8 / _ROOT)}
  _curves(axes, values, log_y=log_y)
  ((bars,),) = [container[2] for container in axes.containers]
  first, second = bars.get_segments()
  np.testing.assert_allclose(first[:, 1], [2, 4])
  # Down to -4 does not exist on a logarithmic axis.
  np.testing.assert_allclose(second[:, 1], [0.4 if log_y else -4, 12])


@pytest.mark.parametrize('log_y', [False, True])
def test_the_spread_of_many_points_is_a_band(axes, log_y):
  values = {('a', place): (2, 3 / _ROOT) for place in range(100)}
  _curves(axes, values, log_y=log_y)
  assert not axes.containers
  (band,) = axes.collections
  heights = band.get_paths()[0].vertices[:, 1]
  assert heights.max() == pytest.approx(5)
  assert heights.min() == pytest.approx(0.2 if log_y else -1)


def test_bars_stand_in_groups_with_their_spread(axes):
  values = {
    ('FedAvg', 4): (0.5, 0.1 / _ROOT),
    ('Per-FedAvg', 4): (0.7, 0.2 / _ROOT),
    ('Per-FedAvg', 10): (0.8, 0),
  }
  panels.draw_groups(
    axes,
    _table(values),
    'error',
    group='round',
    y_label='Accuracy',
    title='MNIST',
  )
  bars = {
    round(patch.get_x() + patch.get_width() / 2, 3): patch.get_height()
    for patch in axes.patches
  }
  # FedAvg's place in the second group stays empty.
  assert bars == pytest.approx({-0.2: 0.5, 0.2: 0.7, 1.2: 0.8})
  assert _legend_texts(axes) == ['FedAvg', 'Per-FedAvg']
  assert [t.get_text() for t in axes.get_xticklabels()] == ['4', '10']
  spreads = [
    segment[:, 1]
    for container in axes.containers
    if isinstance(container, ErrorbarContainer)
    for segment in container[2][0].get_segments()
  ]
  np.testing.assert_allclose(spreads, [[0.4, 0.6], [0.5, 0.9], [0.8, 0.8]])


def test_no_two_of_many_bars_look_alike(axes):
  values = {(name, 1): (0.5, 0) for name in 'abcdefghijkl'}
  panels.draw_groups(axes, _table(values), 'error', group='round', y_label='')
  looks = {(p.get_facecolor(), p.get_hatch()) for p in axes.patches}
  assert len(looks) == len(axes.patches) == 12


def test_a_figure_has_a_panel_for_each_value_of_a_column():
  figure = Figure(layout='constrained')
  draw = panels.curves(
    'error',
    over='round',
    by='seed',
    x_label='Round',
    y_label='Error',
    width=3,
    panel='method',
    title='Of {}'.format,
  )
  values = {('a', 1): (3, 1), ('b', 1): (5, 1)}
  draw(_table(values), types.SimpleNamespace(num_seeds=2), figure)
  assert [one.get_title(loc='left') for one in figure.axes] == ['Of a', 'Of b']
  assert figure.get_size_inches()[0] == 6
  assert figure.get_suptitle() == 'Mean and standard deviation over 2 seeds'
