import json
import math

import numpy as np
import pytest

from tff_pfl.models import split_model
from tff_pfl.runs import fairness


def test_figures_are_those_computed_by_hand():
  summary = fairness.fairness_summary(
    personal=[1.0, 0.5, 0.0, 0.5],
    weights=[10, 20, 30, 40],
    # The second client is equal, which is not hurt.
    reference=[0.5, 0.5, 0.25, 0.75],
  )
  # Deviations from the mean 0.5: 0.5, 0, -0.5, 0; variance 0.5 / 4.
  assert summary == {
    'mean': 0.5,
    'weighted_mean': pytest.approx((10 + 10 + 0 + 20) / 100),
    'std': pytest.approx(0.125**0.5),
    'min': 0.0,
    'max': 1.0,
    'worst_10_percent': 0.0,
    'fraction_hurt': 0.5,
  }
  # Nothing of NumPy, for rows are stored as JSON.
  assert json.loads(json.dumps(summary)) == summary


def test_of_an_error_the_highest_are_the_worst():
  summary = fairness.fairness_summary(
    personal=[1.0, 0.5, 3.0, math.nan],
    weights=[1, 1, 1, 1],
    reference=[0.5, 0.75, 3.0, 9.0],
    metric=split_model.LOSS,
  )
  assert summary['fraction_hurt'] == 0.5
  assert math.isnan(summary['worst_10_percent'])
  summary = fairness.fairness_summary(
    range(20), np.ones(20), metric=split_model.LOSS
  )
  assert summary['worst_10_percent'] == 18.5


@pytest.mark.parametrize(
  ('num_clients', 'expected'),
  [(1, 0.0), (9, 0.0), (10, 0.0), (11, 0.5), (20, 0.5), (21, 1.0)],
)
def test_worst_tenth_is_rounded_up_to_whole_clients(num_clients, expected):
  values = np.random.default_rng(0).permutation(num_clients)
  summary = fairness.fairness_summary(values, np.ones(num_clients))
  assert summary['worst_10_percent'] == expected
  assert summary['fraction_hurt'] is None
