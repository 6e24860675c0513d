import dataclasses
import math

import numpy as np
import pytest

from tests.experiments import example_comparison
from tff_pfl.experiments import figures, inline_svg, results


def _curve(rounds, personal, global_model=None, seed=0):
  return results.AccuracyCurve(
    seed, tuple(rounds), tuple(personal), global_model
  )


def _lines(axes, color):
  """The lines of a color that are to be seen."""
  return [
    line
    for line in axes.lines
    if line.get_color() == color and line.get_visible()
  ]


def test_mean_curve_is_over_the_seeds_on_the_rounds_that_all_have():
  curve = figures.mean_curve(
    [
      _curve([1, 2, 3], [0.2, 0.4, 0.6]),
      _curve([2, 3, 4], [0.6, 0.6, 0.9], seed=1),
    ],
    'personal',
  )
  np.testing.assert_array_equal(curve.rounds, [2, 3])
  np.testing.assert_allclose(curve.mean, [0.5, 0.6])
  np.testing.assert_allclose(curve.std, [0.1 * math.sqrt(2), 0], atol=1e-12)


def test_mean_curve_of_one_seed_has_no_spread_and_leaves_gaps():
  curve = figures.mean_curve([_curve([1, 2], [None, 0.4])], 'personal')
  np.testing.assert_array_equal(curve.mean, [np.nan, 0.4])
  np.testing.assert_array_equal(curve.std, [0, 0])


@pytest.mark.parametrize(
  'curves',
  [
    [],
    [_curve([1, 2], [0.1, 0.2])],
    [_curve([1], [0.1], (None,))],
  ],
  ids=['no_run', 'no_global_model', 'nothing_finite'],
)
def test_there_is_no_mean_curve_of_nothing(curves):
  assert figures.mean_curve(curves, 'global_model') is None


def test_long_curves_are_thinned_but_keep_their_ends():
  rounds = range(1, 1001)
  curve = figures.mean_curve([_curve(rounds, np.ones(1000))], 'personal')
  assert len(curve.rounds) == 100
  assert (curve.rounds[0], curve.rounds[-1]) == (1, 1000)


def test_a_method_stands_before_the_others():
  methods = [
    m
    for m in example_comparison.make_results(
      ('fed_avg', 'fed_rep', 'ditto')
    ).methods
    if m.curves
  ]
  panel = figures.CurvePanel(methods)
  (axes,) = panel.show(methods[0]).axes
  (own,) = _lines(axes, figures.PERSONAL_COLOR)
  expected = figures.mean_curve(methods[0].curves, 'personal')
  np.testing.assert_allclose(own.get_ydata(), expected.mean)
  (shared,) = _lines(axes, figures.GLOBAL_COLOR)
  expected = figures.mean_curve(methods[0].curves, 'global_model')
  np.testing.assert_allclose(shared.get_ydata(), expected.mean)
  assert len(_lines(axes, figures.CONTEXT_COLOR)) == 2
  # The band is within the axes.
  low, high = axes.get_ylim()
  assert low < np.min(expected.mean - expected.std)
  assert high > np.max(expected.mean + expected.std)
  assert len(axes.collections) == 2


def test_a_panel_of_curves_shows_the_next_method_on_the_same_axes():
  methods = [m for m in example_comparison.make_results().methods if m.curves]
  panel = figures.CurvePanel(methods)
  (axes,) = panel.show(methods[0]).axes
  limits = axes.get_ylim()
  (axes,) = panel.show(methods[1]).axes
  assert not _lines(axes, figures.GLOBAL_COLOR)
  (own,) = _lines(axes, figures.PERSONAL_COLOR)
  (context,) = _lines(axes, figures.CONTEXT_COLOR)
  for line, method in ((own, methods[1]), (context, methods[0])):
    expected = figures.mean_curve(method.curves, 'personal')
    np.testing.assert_allclose(line.get_ydata(), expected.mean)
  assert len(axes.collections) == 1
  assert axes.get_ylim() == limits


def test_a_single_evaluation_is_a_point_at_its_round():
  methods = example_comparison.make_results(
    variants=('method',), rounds=range(3, 4)
  ).methods
  figure = figures.CurvePanel(methods).show(methods[0])
  (axes,) = figure.axes
  for color in (figures.PERSONAL_COLOR, figures.CONTEXT_COLOR):
    (line,) = _lines(axes, color)
    assert (line.get_xdata(), line.get_marker()) == ([3], 'o')
  low, high = axes.get_xlim()
  assert [t for t in axes.get_xticks() if low <= t <= high] == [3]


def test_the_overview_names_its_methods_and_takes_no_more_than_colors():
  methods = example_comparison.make_results(variants=('method',)).methods
  (legend,) = figures.curves_overview(methods).legends
  names = [text.get_text() for text in legend.get_texts()]
  assert names == ['fed_avg', 'fed_rep']
  with pytest.raises(ValueError, match='`methods` to be 1 to 7'):
    figures.curves_overview(methods * 4)


def test_names_are_not_taken_for_formulas():
  name = '$\\frac$'
  methods = example_comparison.make_results(variants=('method',)).methods
  overview = figures.curves_overview(
    [dataclasses.replace(methods[0], label=name), methods[1]]
  )
  for figure in (overview, figures.box_panel([(name, [0.5])], (0, 1))):
    assert f'>{name}</text>' in inline_svg.inline_svg(figure, '', 'a')


def test_boxes_show_quartiles_mean_and_worst_tenth_from_the_top():
  values = [i / 20 for i in range(21)]
  (axes,) = figures.box_panel([('a', values), ('b', [0.5, 0.7])], (0, 1)).axes
  assert [t.get_text() for t in axes.get_yticklabels()] == ['a', 'b']
  assert axes.yaxis_inverted()
  box = axes.patches[0].get_path().vertices
  assert (box[:, 0].min(), box[:, 0].max()) == pytest.approx((0.25, 0.75))
  (crosses,) = _lines(axes, figures.HURT_COLOR)
  # Of 21 clients the worst three, of 2 the worst one.
  np.testing.assert_allclose(crosses.get_xdata(), [0.05, 0.5])


def test_clients_that_are_hurt_stand_out_and_coinciding_ones_are_larger():
  panel = figures.ScatterPanel((0, 1))
  (axes,) = panel.show([0.5, 0.5, 0.5, 0.6], [0.7, 0.7, 0.5, 0.4]).axes
  (hurt,) = _lines(axes, figures.HURT_COLOR)
  assert (hurt.get_xdata(), hurt.get_ydata()) == ([0.6], [0.4])
  once, twice = _lines(axes, figures.PERSONAL_COLOR)
  assert (once.get_ydata(), twice.get_ydata()) == ([0.5], [0.7])
  area = (twice.get_markersize() / once.get_markersize()) ** 2
  assert area == pytest.approx(2)


def test_a_panel_of_points_shows_the_next_clients_only():
  panel = figures.ScatterPanel((0, 1))
  panel.show([0.5, 0.6], [0.7, 0.4])
  (axes,) = panel.show([0.2], [0.3]).axes
  assert not _lines(axes, figures.HURT_COLOR)
  (points,) = _lines(axes, figures.PERSONAL_COLOR)
  assert (points.get_xdata(), points.get_ydata()) == ([0.2], [0.3])


def test_many_clients_share_points_without_hiding_who_is_hurt():
  rng = np.random.default_rng(0)
  before = rng.uniform(0.2, 0.8, 3000)
  # Changes smaller than what is told apart.
  after = before + rng.choice([-1e-4, 1e-4], 3000, p=[0.1, 0.9])
  (axes,) = figures.ScatterPanel((0, 1)).show(before, after).axes
  hurt = _lines(axes, figures.HURT_COLOR)
  points = [
    len(line.get_xdata()) for line in axes.lines if line.get_marker() == 'o'
  ]
  assert hurt
  assert 0 < sum(points) <= 300


@pytest.mark.parametrize('num_clients', [30, 1000])
def test_partition_shows_which_classes_a_client_has(num_clients):
  partition = example_comparison.make_results(
    num_clients=num_clients, num_new_clients=10
  ).partition
  totals, classes = figures.partition_panel(partition).axes
  (image,) = classes.images
  opacity = image.get_array()[..., 3]
  counts = np.asarray(partition.class_counts)
  shown = min(200, num_clients + 10)
  rows = np.arange(shown) * (num_clients + 10) // shown
  np.testing.assert_array_equal(opacity > 0, counts[rows].T > 0)
  heights = [bar.get_height() for bar in totals.patches]
  np.testing.assert_array_equal(heights, counts[rows].sum(axis=1))
  assert [t.get_text() for t in totals.texts] == ['new clients']


def test_partition_of_a_regression_has_the_totals_only():
  partition = results.Partition(0, ('a', 'b'), 0, None, (3, 5))
  (axes,) = figures.partition_panel(partition).axes
  assert [bar.get_height() for bar in axes.patches] == [3, 5]
  assert not axes.texts


def test_common_limits_hold_everything_within_a_margin():
  assert figures.common_limits([[0.5, math.nan], [0.75]]) == pytest.approx(
    (0.48, 0.77)
  )
  assert figures.common_limits([[0.0], [1.0]]) == (-0.03, 1.03)
  low, high = figures.common_limits([[]])
  assert low < high
