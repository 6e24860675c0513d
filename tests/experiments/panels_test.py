import numpy as np
import pytest
from matplotlib import colors
from matplotlib.container import ErrorbarContainer
from matplotlib.figure import Figure

from tff_pfl.experiments import panels as figures
from tff_pfl.simulation import picture_style


@pytest.fixture
def axes():
  figure = Figure(layout='constrained')
  yield figure.add_subplot()
  # What was drawn can be shown.
  figure.canvas.draw()


def _lines(axes, series, **options):
  figures.draw_lines(axes, series, x_label='Round', y_label='Error', **options)


def _legend_texts(axes):
  return [text.get_text() for text in axes.get_legend().get_texts()]


def test_each_curve_has_its_values_its_color_and_its_name(axes):
  _lines(axes, {'a': ([1, 2], [3, 4]), 'b': ([1, 2], [5, 6])}, title='Panel')
  first, second = axes.get_lines()
  np.testing.assert_array_equal(first.get_xydata(), [[1, 3], [2, 4]])
  np.testing.assert_array_equal(second.get_ydata(), [5, 6])
  assert first.get_color() == picture_style.color(0)
  assert second.get_color() == picture_style.color(1)
  assert _legend_texts(axes) == ['a', 'b']
  assert axes.get_title(loc='left') == 'Panel'
  assert (axes.get_xlabel(), axes.get_ylabel()) == ('Round', 'Error')


def test_one_curve_without_a_spread_needs_no_legend(axes):
  _lines(axes, {'a': ([1, 2], [3, 4])})
  assert axes.get_legend() is None


def test_logarithmic_axes_show_all_positive_values(axes):
  _lines(axes, {'a': ([1, 10, 100], [1e-8, 0.0, 1.0])}, log_x=True, log_y=True)
  assert (axes.get_xscale(), axes.get_yscale()) == ('log', 'log')
  low, high = axes.get_ylim()
  assert 1e-9 < low < 1e-8 < 1 < high < 10
  assert 0.1 < axes.get_xlim()[0] < 1
  np.testing.assert_array_equal(
    axes.get_lines()[0].get_ydata(), [1e-8, np.nan, 1.0]
  )


@pytest.mark.parametrize('log_y', [False, True])
def test_the_spread_of_few_points_is_error_bars(axes, log_y):
  _lines(axes, {'a': ([1, 2], [3.0, 4.0], [1.0, 8.0])}, log_y=log_y)
  ((bars,),) = [container[2] for container in axes.containers]
  first, second = bars.get_segments()
  np.testing.assert_allclose(first[:, 1], [2, 4])
  # Down to -4 does not exist on a logarithmic axis.
  np.testing.assert_allclose(second[:, 1], [0.4 if log_y else -4, 12])


@pytest.mark.parametrize('log_y', [False, True])
def test_the_spread_of_many_points_is_a_band(axes, log_y):
  x = np.arange(100)
  _lines(axes, {'a': (x, np.full(100, 2.0), np.full(100, 3.0))}, log_y=log_y)
  assert not axes.containers
  (band,) = axes.collections
  heights = band.get_paths()[0].vertices[:, 1]
  assert heights.max() == 5
  assert heights.min() == pytest.approx(0.2 if log_y else -1)


@pytest.mark.parametrize(
  'series,words',
  [
    ({}, 'at least one series'),
    ({'FedRep': ([1, 2], [3])}, "'FedRep'"),
    ({'FedRep': ([1, 2], [3, 4], [1])}, "'FedRep'"),
  ],
)
def test_impossible_curves_are_named(axes, series, words):
  with pytest.raises(ValueError, match=words):
    _lines(axes, series)


def test_a_matrix_has_its_colors_and_numbers(axes):
  figures.draw_matrix(
    axes,
    [[1.0, 0.25], [np.nan, 0.5]],
    title='tau = 10',
    labels=['cat', 'dog'],
    low=0,
    high=1,
  )
  (image,) = axes.images
  assert image.get_clim() == (0, 1)
  assert [text.get_text() for text in axes.texts] == ['1.00', '0.25', '0.50']
  assert [t.get_text() for t in axes.get_yticklabels()] == ['cat', 'dog']
  rgba = image.cmap(image.norm(image.get_array()))
  # What is not known is told from any value.
  np.testing.assert_allclose(rgba[1, 0, :3], colors.to_rgb('#eeeeee'))
  assert axes.get_title(loc='left') == 'tau = 10'


def test_a_large_matrix_has_no_numbers(axes):
  figures.draw_matrix(
    axes, np.eye(50), title='', labels=range(50), low=0, high=1
  )
  assert not axes.texts


def test_an_impossible_matrix_is_refused(axes):
  with pytest.raises(ValueError, match=r'`matrix`.*\(2, 2\).*\(2, 3\)'):
    figures.draw_matrix(
      axes, np.ones((2, 3)), title='', labels='ab', low=0, high=1
    )
  with pytest.raises(ValueError, match='`high`'):
    figures.draw_matrix(axes, np.eye(2), title='', labels='ab', low=1, high=1)


def test_bars_stand_in_groups_with_their_spread(axes):
  figures.draw_bars(
    axes,
    {
      'tau = 4': {'FedAvg': (0.5, 0.1), 'Per-FedAvg': (0.7, 0.2)},
      'tau = 10': {'Per-FedAvg': (0.8, 0.0)},
    },
    y_label='Accuracy',
    title='MNIST',
  )
  bars = {
    round(patch.get_x() + patch.get_width() / 2, 3): patch.get_height()
    for patch in axes.patches
  }
  # FedAvg's place in the second group stays empty.
  assert bars == {-0.2: 0.5, 0.2: 0.7, 1.2: 0.8}
  assert _legend_texts(axes) == ['FedAvg', 'Per-FedAvg']
  assert [t.get_text() for t in axes.get_xticklabels()] == [
    'tau = 4',
    'tau = 10',
  ]
  spreads = [
    segment[:, 1]
    for container in axes.containers
    if isinstance(container, ErrorbarContainer)
    for segment in container[2][0].get_segments()
  ]
  np.testing.assert_allclose(spreads, [[0.4, 0.6], [0.5, 0.9], [0.8, 0.8]])


def test_no_bars_at_all_are_refused(axes):
  with pytest.raises(ValueError, match='`values`'):
    figures.draw_bars(axes, {'tau = 4': {}}, y_label='Accuracy')
