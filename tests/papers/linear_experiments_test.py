"""The experiments on the linear theory, at tiny sizes."""

import dataclasses

import numpy as np
import pytest
from matplotlib.figure import Figure

from binaries.papers import fed_dar_linear, fed_rep_linear
from binaries.papers.engine import claims, tables
from tests.papers import untrained


def test_samples_needed_are_those_from_which_on_errors_are_small():
  errors = [
    (0.5, 0.009, 0.001),
    # Small once before it is large again.
    (0.001, 0.5, 0.001),
    (0.5, 0.5, 0.5),
    (0.001, 0.001, 0.001),
  ]
  columns = ('method', 'seed', 'num_samples', 'relative_error')
  table = tables.Table(
    dict(zip(columns, ('FedRep', seed, num_samples, error)))
    for seed, values in enumerate(errors)
    for num_samples, error in zip((1, 2, 4), values)
  )
  np.testing.assert_array_equal(
    fed_rep_linear.samples_needed(table, 'FedRep'), [2, 4, np.inf, 1]
  )


def test_convergence_has_the_bound_and_the_best_of_the_rates():
  sizes = dataclasses.replace(
    fed_rep_linear.CONVERGENCE_FAST,
    nums_clients=(40,),
    num_rounds=20,
    learning_rates=(1e-6, 0.3, 1e6),
  )
  table = tables.Table(
    fed_rep_linear.measure_convergence(untrained.context(sizes))
  )
  assert table.distinct('round') == [0, 10, 20]
  (of_all,), (bounds,), (of_few,) = (
    table.curve('distance', 'round', method=method)
    for method in (
      'FedRep, all clients in a round',
      "theorem's bound",
      'FedRep',
    )
  )
  heads = fed_rep_linear._problem(sizes, 0, num_clients=40).heads
  largest, smallest = np.linalg.svd(heads / np.sqrt(40), compute_uv=False)
  share = (smallest / largest) ** 2 / 4
  factor = 1 - share * (1 - of_all[0] ** 2) / 2
  np.testing.assert_allclose(bounds, of_all[0] * factor ** np.array([0, 5, 10]))
  # The cohorts are others than all clients.
  assert of_few[0] == of_all[0]
  assert of_few[2] != of_all[2]
  # The largest rate diverges.
  rates = table.where(round=20).distinct('learning_rate')
  assert [rate for rate in rates if not np.isnan(rate)] == [0.3]


def test_rows_are_of_records_and_the_last_has_the_error(monkeypatch):
  methods = {'FedDAR-SA': fed_dar_linear.FAST.methods()['FedDAR-SA']}
  monkeypatch.setattr(fed_dar_linear.Sizes, 'methods', lambda self: methods)
  sizes = dataclasses.replace(
    fed_dar_linear.FAST, num_clients=20, dimension=8, num_rounds=150
  )
  rows = list(fed_dar_linear.measure(untrained.context(sizes, seed=3)))
  assert [row['round'] for row in rows] == 2 * [0, 50, 100, 150]
  assert {row['seed'] for row in rows} == {3}
  assert [row['error'] is None for row in rows] == 2 * [True, True, True, False]
  assert rows[3]['error'] < 1e-4
  fed_dar_linear.draw(tables.Table(rows), sizes, Figure())


def test_the_rate_is_beside_that_of_the_theorem():
  sizes = dataclasses.replace(
    fed_dar_linear.RATE_FAST, num_clients=40, dimension=8, num_rounds=40
  )
  table = tables.Table(fed_dar_linear.measure_rate(untrained.context(sizes)))
  within, faster, line = fed_dar_linear.rate_claims(table, sizes)
  (bounds,) = table.curve('distance', 'round', method="theorem's bound")
  (distances,) = table.curve('distance', 'round', method='FedDAR-SA')
  assert within.measured == pytest.approx((distances / bounds)[1:].max())
  assert within.verdict == claims.HOLDS
  # (1 - eta E_0 s^2 / 2)^(T / 2), where the heads' singular values are all 1.
  factor = 1 - 0.2 * (1 - bounds[0] ** 2) / 2
  assert bounds[-1] / bounds[0] == pytest.approx(factor**20)
  last = table.where(round=40)
  # From a distance of 0.5 on.
  rate_of_fit = -np.log(1 - 0.2 * 0.75 / 2) / 2
  rates = last.values('rate', method='FedDAR-SA')
  assert faster.measured == pytest.approx(rates[0] / rate_of_fit)
  assert line.measured == last.values('r_squared', method='FedDAR-SA')[0]
