import math
from xml.etree import ElementTree

import numpy as np
import pytest

from tests.experiments import example_comparison
from tff_pfl.experiments import pictures
from tff_pfl.models import split_model

_ACCURACY = split_model.ACCURACY


def _curve(rounds, personal, global_model=None, seed=0):
  return {
    'seed': seed,
    'rounds': list(rounds),
    'personal': list(personal),
    'global_model': global_model,
  }


def _with_accuracies(before, after):
  """A method of clients with these accuracies."""
  method = example_comparison.make_results(('fed_avg',))['methods'][0]
  clients = [
    {**method['clients'][0], 'accuracy_before': b, 'accuracy_after': a}
    for b, a in zip(before, after)
  ]
  return {**method, 'clients': clients, 'new_clients': []}


def _partition(sizes, domain_counts=None):
  """That of a regression."""
  return {
    'client_ids': list('abc')[: len(sizes)],
    'num_new_clients': 0,
    'class_counts': None,
    'num_train_examples': sizes,
    'domain_counts': domain_counts,
  }


def _lines(axes, color):
  return [line for line in axes.lines if line.get_color() == color]


@pytest.fixture(name='methods', scope='module')
def _methods():
  return example_comparison.make_results(
    ('fed_avg', 'fed_rep', 'ditto'), variants=('method',)
  )['methods']


def _mean_curve(curves, which='personal'):
  return pictures.mean_curve(curves, which, _ACCURACY)


def test_mean_curve_is_over_the_seeds_on_the_rounds_that_all_have():
  curve = _mean_curve(
    [
      _curve([1, 2, 3], [0.2, 0.4, 0.6]),
      _curve([2, 3, 4], [0.6, 0.6, 0.9], seed=1),
    ]
  )
  np.testing.assert_array_equal(curve.rounds, [2, 3])
  np.testing.assert_allclose(curve.mean, [0.5, 0.6])
  std = [0.1 * math.sqrt(2), 0]
  np.testing.assert_allclose(curve.band, [curve.mean - std, curve.mean + std])
  # Of one seed it has no spread, and gaps.
  curve = _mean_curve([_curve([1, 2], [None, 0.4])])
  np.testing.assert_array_equal(curve.mean, [np.nan, 0.4])
  np.testing.assert_array_equal(curve.band, [curve.mean, curve.mean])


@pytest.mark.parametrize(
  'curves',
  [[], [_curve([1, 2], [0.1, 0.2])], [_curve([1], [0.1], (None,))]],
  ids=['no_run', 'no_global_model', 'nothing_finite'],
)
def test_there_is_no_mean_curve_of_nothing(curves):
  assert _mean_curve(curves, 'global_model') is None


def test_long_curves_are_thinned_but_keep_their_ends():
  curve = _mean_curve([_curve(range(1, 1001), np.ones(1000))])
  assert len(curve.rounds) == 50
  assert (curve.rounds[0], curve.rounds[-1]) == (1, 1000)


def test_a_method_stands_before_the_others_on_the_same_axes(methods):
  panels = pictures.curve_panels(methods, _ACCURACY)
  assert [panel.title for panel in panels] == ['fed_avg', 'fed_rep', 'ditto']
  (axes,) = panels[0].figure.axes
  (own,) = _lines(axes, pictures.PERSONAL_COLOR)
  expected = _mean_curve(methods[0]['curves'])
  np.testing.assert_allclose(own.get_ydata(), expected.mean)
  (shared,) = _lines(axes, pictures.GLOBAL_COLOR)
  expected = _mean_curve(methods[0]['curves'], 'global_model')
  np.testing.assert_allclose(shared.get_ydata(), expected.mean)
  assert len(_lines(axes, pictures.CONTEXT_COLOR)) == 2
  # The band is within the axes.
  low, high = axes.get_ylim()
  assert low < expected.band.min() < expected.band.max() < high
  assert len(axes.collections) == 2
  (next_axes,) = panels[1].figure.axes
  assert not _lines(next_axes, pictures.GLOBAL_COLOR)
  assert next_axes.get_ylim() == (low, high)


def test_a_single_evaluation_is_a_point_at_its_round():
  methods = example_comparison.make_results(
    variants=('method',), rounds=range(3, 4)
  )['methods']
  (axes,) = pictures.curve_panels(methods, _ACCURACY)[0].figure.axes
  for color in (pictures.PERSONAL_COLOR, pictures.CONTEXT_COLOR):
    (line,) = _lines(axes, color)
    assert (line.get_xdata(), line.get_marker()) == ([3], 'o')
  # The training began at round 0.
  assert axes.get_xlim()[0] == 0
  assert all(tick == round(tick) for tick in axes.get_xticks())


def test_the_overview_has_the_first_methods_as_many_as_there_are_colors(
  methods,
):
  many = [{**methods[0], 'label': f'm{i}'} for i in range(9)]
  (legend,) = pictures.curves_overview(many, _ACCURACY).figure.legends
  names = [text.get_text() for text in legend.get_texts()]
  assert names == ['m0', 'm1', 'm2', 'm3', 'm4', 'm5', 'm6']
  assert pictures.curves_overview([], _ACCURACY) is None


def test_boxes_show_quartiles_mean_and_worst_tenth_from_the_top():
  values = [i / 20 for i in range(21)]
  first = {**_with_accuracies(values, values), 'label': 'a'}
  second = {**_with_accuracies([1, 1], [0.5, 0.7]), 'label': 'b'}
  (picture,) = pictures.client_boxes([first, second], _ACCURACY)
  (axes,) = picture.figure.axes
  assert [t.get_text() for t in axes.get_yticklabels()] == ['a', 'b']
  assert axes.yaxis_inverted()
  box = axes.patches[0].get_bbox()
  assert (box.x0, box.x1) == pytest.approx((0.25, 0.75))
  means, worst = axes.lines
  np.testing.assert_allclose(means.get_xdata(), [0.5, 0.6])
  # Of 21 clients the worst three, of 2 the worst one.
  np.testing.assert_allclose(worst.get_xdata(), [0.05, 0.5])
  low, high = axes.get_xlim()
  assert low < 0 < 1 < high


def test_clients_that_are_hurt_stand_out_and_coinciding_ones_are_larger():
  method = _with_accuracies([0.5, 0.5, 0.5, 0.6], [0.7, 0.7, 0.5, 0.4])
  ((panel,),) = pictures.change_panels([method], _ACCURACY).values()
  (axes,) = panel.figure.axes
  (hurt,) = _lines(axes, pictures.HURT_COLOR)
  assert (hurt.get_xdata(), hurt.get_ydata()) == ([0.6], [0.4])
  once, twice = _lines(axes, pictures.PERSONAL_COLOR)
  assert (once.get_ydata(), twice.get_ydata()) == ([0.5], [0.7])
  area = (twice.get_markersize() / once.get_markersize()) ** 2
  assert area == pytest.approx(2)
  assert panel.note == '1 of 4 hurt'


def test_many_clients_share_points_without_hiding_who_is_hurt():
  rng = np.random.default_rng(0)
  before = rng.uniform(0.2, 0.8, 3000)
  # Changes smaller than what is told apart.
  after = before + rng.choice([-1e-4, 1e-4], 3000, p=[0.1, 0.9])
  method = _with_accuracies(before, after)
  ((panel,),) = pictures.change_panels([method], _ACCURACY).values()
  (axes,) = panel.figure.axes
  num_points = [
    len(line.get_xdata()) for line in axes.lines if line.get_marker() == 'o'
  ]
  assert 0 < sum(num_points) <= 150
  assert panel.note == f'{sum(after < before)} of 3,000 hurt'


@pytest.mark.parametrize('num_clients', [30, 300])
def test_partition_shows_which_classes_a_client_has(num_clients):
  partition = example_comparison.make_results(
    variants=(), num_clients=num_clients
  )['partition']
  totals, classes = pictures.partition_picture(partition).figure.axes
  (image,) = classes.images
  counts = np.asarray(partition['class_counts'])
  num_shown = min(200, num_clients + 4)
  shown = counts[np.arange(num_shown) * (num_clients + 4) // num_shown]
  np.testing.assert_array_equal(image.get_array().filled(0), shown.T)
  heights = [bar.get_height() for bar in totals.patches]
  np.testing.assert_array_equal(heights, shown.sum(axis=1))
  assert totals.get_title('right') == 'new clients'


def test_a_partition_shows_domains_and_a_huge_client_hides_no_other():
  partition = _partition(
    [3, 5, 4000], {'sea': [1, 2, 4000], 'hills': [2, 3, 0]}
  )
  totals, domains = pictures.partition_picture(partition).figure.axes
  assert totals.get_yscale() == 'log'
  (image,) = domains.images
  np.testing.assert_array_equal(
    image.get_array().filled(0), [[1, 2, 4000], [2, 3, 0]]
  )
  assert image.norm(3) > 0.1
  labels = domains.get_yticklabels(), domains.get_xticklabels()
  assert [[text.get_text() for text in some] for some in labels] == [
    ['sea', 'hills'],
    ['a', 'b', 'c'],
  ]
  # Of a regression without domains there are the totals only.
  (axes,) = pictures.partition_picture(_partition([3, 5])).figure.axes
  assert [bar.get_height() for bar in axes.patches] == [3, 5]
  assert not axes.get_title('right')


def test_a_picture_is_an_element_that_says_what_it_shows(methods):
  label = 'a "$\\frac$" & <b>'
  methods = [{**methods[0], 'label': label}, *methods[1:]]
  overview = pictures.curves_overview(methods, _ACCURACY)
  svg = overview.svg
  root = ElementTree.fromstring(svg)
  assert (root.tag, root.get('role')) == ('svg', 'img')
  assert label in root.get('aria-label')
  # Names are no formulas, and in the font of the page.
  texts = [''.join(text.itertext()) for text in root.iter('text')]
  assert label in texts
  assert 'font-family' not in svg
  assert '<style' not in svg
  own = [element.get('id') for element in root.iter() if element.get('id')]
  assert len(own) == len(set(own))
  # The same methods give the same picture; others share no ids with it.
  assert pictures.curves_overview(methods, _ACCURACY).svg == svg
  other = ElementTree.fromstring(
    pictures.curves_overview(methods[1:], _ACCURACY).svg
  )
  assert not set(own) & {element.get('id') for element in other.iter()}
