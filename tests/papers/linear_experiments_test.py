"""The studies of the linear theory, at tiny sizes."""

import dataclasses

import numpy as np
import pytest
from matplotlib.figure import Figure

from binaries import papers
from binaries.papers.linear import fed_dar, fed_rep
from tests.papers import untrained
from tff_pfl.studies.numbers import Numbers


def _measured(name, **parameters):
  """A study with other parameters at its small scale, and its numbers."""
  study = papers.STUDIES[name].at('small').with_settings(**parameters)
  return study, Numbers(list(study.measure(untrained.context(study))))


def test_samples_needed_are_those_from_which_on_errors_are_small():
  # The second is small once before it is large again.
  errors = [(0.5, 0.009, 0.001), (0.001, 0.5, 0.001), [0.5] * 3, [0.001] * 3]
  columns = ('method', 'seed', 'num_samples', 'relative_error')
  table = Numbers(
    dict(zip(columns, ('FedRep', seed, num_samples, error)))
    for seed, values in enumerate(errors)
    for num_samples, error in zip((1, 2, 4), values)
  )
  np.testing.assert_array_equal(
    fed_rep.samples_needed(table, 'FedRep'), [2, 4, np.inf, 1]
  )


def test_convergence_has_the_bound_and_the_best_of_the_rates():
  parameters = {'nums_clients': (40,), 'learning_rates': (1e-6, 0.3, 1e6)}
  study, table = _measured('fedrep_linear_convergence', **parameters)
  assert table.distinct('round') == [0, 10, 20]
  methods = 'FedRep, all clients in a round', "theorem's bound", 'FedRep'
  (of_all,), (bounds,), (of_few,) = (
    table.curve('distance', 'round', method=method) for method in methods
  )
  sizes = dataclasses.replace(study.parameters, num_clients=40)
  heads = fed_rep._problem(sizes, 0).heads
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
  methods = {'FedDAR-SA': fed_dar.Parameters().methods()['FedDAR-SA']}
  monkeypatch.setattr(fed_dar.Parameters, 'methods', lambda self: methods)
  study = papers.STUDIES['feddar_linear'].at('small').select(seeds=[3])
  rows = list(study.measure(untrained.context(study)))
  assert [row['round'] for row in rows] == 2 * [0, 50, 100, 150]
  assert {row['seed'] for row in rows} == {3}
  assert [row['error'] is None for row in rows] == 2 * [True, True, True, False]
  assert rows[3]['error'] < 1e-4
  study.draw(Numbers(rows), study, Figure())


def test_the_rate_is_beside_that_of_the_theorem():
  study, table = _measured('feddar_linear_rate')
  within, faster, line = fed_dar.rate_claims(table, study)
  (bounds,) = table.curve('distance', 'round', method="theorem's bound")
  (distances,) = table.curve('distance', 'round', method='FedDAR-SA')
  assert within.measured == pytest.approx((distances / bounds)[1:].max())
  assert within.measured < 1
  # (1 - eta E_0 s^2 / 2)^(T / 2), where the heads' singular values are all 1.
  factor = 1 - 0.2 * (1 - bounds[0] ** 2) / 2
  assert bounds[-1] / bounds[0] == pytest.approx(factor**20)
  last = table.where(round=40)
  # From a distance of 0.5 on.
  rate_of_fit = -np.log(1 - 0.2 * 0.75 / 2) / 2
  rates = last.values('rate', method='FedDAR-SA')
  assert faster.measured == pytest.approx(rates[0] / rate_of_fit)
  assert line.measured == last.values('r_squared', method='FedDAR-SA')[0]
