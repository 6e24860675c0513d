import numpy as np
import pytest
from matplotlib.figure import Figure

from tff_pfl.simulation import picture_style


@pytest.mark.parametrize(
  ('limits', 'labels'),
  [
    ((-0.03, 1.03), ['0', '25', '50', '75', '100']),
    ((0.9, 1.02), ['90', '92.5', '95', '97.5', '100']),
    ((0.412, 0.418), ['41.2', '41.4', '41.6', '41.8']),
  ],
)
def test_fractions_are_labeled_as_percentages_between_0_and_100(limits, labels):
  axes = Figure().add_subplot()
  picture_style.use_percent(axes.yaxis)
  axes.set_ylim(*limits)
  low, high = limits
  shown = [
    label.get_text()
    for tick, label in zip(axes.get_yticks(), axes.get_yticklabels())
    if low - 1e-9 <= tick <= high + 1e-9
  ]
  assert shown == labels
  assert all(-1e-9 <= tick <= 1 + 1e-9 for tick in axes.get_yticks())


def test_clients_with_the_same_accuracies_are_one_point():
  points, counts = picture_style.coinciding(
    np.array([0.5, 0.25, 0.5, 0.5]), np.array([0.75, 0.25, 0.75, 0.5])
  )
  np.testing.assert_array_equal(points, [[0.25, 0.25], [0.5, 0.5], [0.5, 0.75]])
  np.testing.assert_array_equal(counts, [1, 1, 2])


def test_points_are_merged_until_there_are_few_on_their_side_of_the_diagonal():
  rng = np.random.default_rng(0)
  before, after = rng.uniform(0, 1, (2, 5000))
  points, counts = picture_style.coinciding(before, after, max_points=50)
  assert len(points) <= 50
  assert counts.sum() == 5000
  hurt = points[:, 1] < points[:, 0]
  assert counts[hurt].sum() == (after < before).sum()
  everything, _ = picture_style.coinciding(before, after)
  assert len(everything) == 5000
