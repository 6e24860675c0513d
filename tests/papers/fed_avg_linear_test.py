import pytest

from binaries.papers import fed_avg_linear
from tff_pfl.comparisons import claims, tables


def _row(start, method, seed, round_number, distance, norm):
  return {
    'start': start,
    'method': method,
    'seed': seed,
    'round': round_number,
    'distance': distance,
    'gradient_norm': norm,
    'r_squared': 1.0,
  }


def test_shares_are_of_the_initial_values():
  rows = []
  for start in ('random', 'close'):
    for seed in range(5):
      rows += [
        _row(start, 'FedAvg', seed, 0, 0.8, 1.0 + seed),
        _row(start, 'FedAvg', seed, 1000, 1e-9, 0.5),
        _row(start, 'D-GD', seed, 0, 0.8, 1.0 + seed),
        _row(start, 'D-GD', seed, 1000, 0.6 - 0.01 * seed, 1e-5 * seed),
      ]
  for seed in range(5):
    rows += [
      _row('random', 'FedAvg, 50% of clients', seed, 1000, 1e-7, 0.5),
      _row('random', 'D-GD, 50% of clients', seed, 0, 0.8, 1.0),
      _row('random', 'D-GD, 50% of clients', seed, 1000, 0.6, 0.5),
    ]
  found = list(
    fed_avg_linear.representation_claims(
      tables.Table.from_rows(rows), fed_avg_linear.REPRESENTATION_FULL
    )
  )
  assert [claim.measured for claim in found] == pytest.approx(
    # The last two are ratios of means: 2e-5 / 3 and 0.5 / 3.
    [1e-9, 0.7, 1e-9, 0.7, 1e-7, 0.75, 1.0, 2e-5 / 3, 0.5 / 3]
  )
  assert [claim.verdict for claim in found[4:]] == [claims.HOLDS] * 5
