import collections
import dataclasses

import numpy as np
import pytest
from matplotlib.figure import Figure

from binaries.papers import fed_dar_linear
from tff_pfl.comparisons import claims, tables
from tff_pfl.comparisons import context as context_lib

_SIZES = fed_dar_linear.FULL


def _claims(changes):
  """Claims of errors that are 1, of FedDAR-SA 1e-7, but for the changes."""
  errors = collections.defaultdict(lambda: 1.0, changes)
  keys = [
    (domains, method, count)
    for domains in ('unequal', 'equal')
    for method in _SIZES.methods()
    for count in _SIZES.sample_counts
  ]
  for key in keys:
    if key[1] == 'FedDAR-SA' and key not in changes:
      errors[key] = 1e-7
  table = tables.Table.from_rows(
    {
      'domains': domains,
      'method': method,
      'num_samples': count,
      'seed': seed,
      'round': round_number,
      'distance': 0.5,
      'error': errors[domains, method, count] * (1 + seed / 1e3),
    }
    for domains, method, count in keys
    for seed in range(5)
    for round_number in (0, _SIZES.num_rounds)
  )
  fed_dar_linear.draw(table, _SIZES, Figure())
  return list(fed_dar_linear.make_claims(table, _SIZES))


@pytest.mark.parametrize(
  'changes, failing',
  [
    ({}, set()),
    # Of the mean over four numbers of samples one alone decides nothing.
    ({('unequal', 'FedRep', 5): 1e-7}, set()),
    ({('unequal', 'FedRep', n): 9e-6 for n in (5, 10, 15, 20)}, {2}),
    ({('equal', 'Separate FedAvg', n): 9e-4 for n in (5, 10, 15, 20)}, {7}),
    ({('equal', 'FedDAR-SA', 10): 2e-5}, {8}),
    ({('unequal', 'FedDAR-WA', 10): 9e-6}, {9}),
    ({('equal', 'FedDAR-WA, nearest to broadcast', 20): 9e-6}, {10}),
  ],
)
def test_each_claim_is_about_its_numbers(changes, failing):
  found = _claims(changes)
  assert len(found) == 11
  assert {
    i for i, claim in enumerate(found) if claim.verdict == claims.FAILS
  } == failing


def test_rows_are_of_records_and_the_last_has_the_error(tmp_path, monkeypatch):
  methods = {'FedDAR-SA': fed_dar_linear.FAST.methods()['FedDAR-SA']}
  monkeypatch.setattr(fed_dar_linear.Sizes, 'methods', lambda self: methods)
  sizes = dataclasses.replace(
    fed_dar_linear.FAST, num_clients=20, dimension=8, num_rounds=150
  )
  settings = context_lib.Settings(str(tmp_path), seed=3, show_progress=False)
  rows = list(fed_dar_linear.measure(context_lib.Context(settings, sizes)))
  assert [row['round'] for row in rows] == 2 * [0, 50, 100, 150]
  assert {row['seed'] for row in rows} == {3}
  assert [row['error'] is None for row in rows] == 2 * [True, True, True, False]
  assert rows[3]['error'] < 1e-4


def test_the_rate_is_beside_that_of_the_theorem(tmp_path):
  sizes = dataclasses.replace(
    fed_dar_linear.RATE_FAST, num_clients=40, dimension=8, num_rounds=40
  )
  settings = context_lib.Settings(str(tmp_path), show_progress=False)
  context = context_lib.Context(settings, sizes)
  table = tables.Table.from_rows(fed_dar_linear.measure_rate(context))
  within, faster, line = fed_dar_linear.rate_claims(table, sizes)
  _, (bounds,) = table.curve('distance', 'round', method="theorem's bound")
  _, (distances,) = table.curve('distance', 'round', method='FedDAR-SA')
  assert within.measured == pytest.approx((distances / bounds)[1:].max())
  assert within.verdict == claims.HOLDS
  # (1 - eta E_0 s^2 / 2)^(T / 2), where the heads' singular values are all 1.
  factor = 1 - 0.2 * (1 - bounds[0] ** 2) / 2
  assert bounds[-1] / bounds[0] == pytest.approx(factor**20)
  last = table.where(round=40)
  rates = last.values('rate', method='FedDAR-SA')
  # From a distance of 0.5 on.
  rate_of_fit = -np.log(1 - 0.2 * 0.75 / 2) / 2
  assert faster.measured == pytest.approx(rates[0] / rate_of_fit)
  assert line.measured == last.values('r_squared', method='FedDAR-SA')[0]
