"""The studies of the linear theory, at tiny sizes."""

import dataclasses

import numpy as np
import pytest
from matplotlib.figure import Figure

from binaries import papers
from binaries.papers.linear import complexity, fed_avg, fed_dar, fed_rep
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
  study, both = _measured('fedrep_linear_convergence', **parameters)
  assert both.distinct('num_samples') == [5, 20]
  # Theorem 1 alone is checked with more samples, too.
  assert both.distinct('method', num_samples=20) == [
    'FedRep, all clients in a round',
    "theorem's bound",
  ]
  table = both.where(num_samples=5)
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
  assert [row['round'] for row in rows] == 3 * [0, 50, 100, 150]
  assert [row['domains'] for row in rows[::4]] == [
    *('unequal', 'equal', 'equal, many inputs'),
  ]
  assert {row['seed'] for row in rows} == {3}
  assert [row['error'] is None for row in rows] == 3 * [True, True, True, False]
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


def test_fed_rep_is_ahead_only_where_it_comes_near():
  parameters = {'nums_clients': (10, 100), 'num_rounds': 20}
  study, table = _measured('fedrep_linear_convergence', **parameters)
  study = study.with_settings(sample_counts=())
  frame = table.frame[table.frame['num_samples'] == 5].copy()
  is_fed_rep = frame['method'] == 'FedRep'
  for num_clients, rounds in ((10, 20), (100, 12)):
    is_here = is_fed_rep & (frame['num_clients'] == num_clients)
    frame.loc[is_here, 'rounds_to_near'] = rounds
  frame.loc[~is_fed_rep, 'rounds_to_near'] = 20
  actual = fed_rep.convergence_claims(Numbers(frame), study)
  fewer = {
    claim.statement: claim.measured
    for claim in actual
    if claim.statement.startswith('FedRep needs fewer rounds')
  }
  leads = [lead for words, lead in fewer.items() if 'GD-GD' in words]
  np.testing.assert_array_equal(leads, 2 * [np.nan, 8])
  (gain,) = (lead for words, lead in fewer.items() if 'GD-GD' not in words)
  assert gain == 8


def test_samples_needed_are_the_first_that_suffice():
  parameters = {'dimensions': (8,), 'nums_clients': (10, 20), 'num_rounds': 100}
  study, table = _measured('fedrep_linear_complexity', **parameters)
  sizes, rows = study.parameters, table.frame.set_index('method')
  assert rows.loc['a client alone', 'samples_needed'] == 8
  assert rows.loc['a new client', 'samples_needed'] <= 4
  needed = rows.loc['10 clients', 'samples_needed']
  assert rows.loc['20 clients', 'samples_needed'] <= needed
  for number, is_found in ((needed, True), (needed // 2, False)):
    _, history = complexity._run(
      'FedRep', 0, 100, 10, 8, 2, samples_per_client=int(number)
    )
    assert (history.distance[-1] < 0.01) == is_found
  assert needed in sizes.sample_counts


def test_rates_that_grow_as_the_theorem_says_are_found():
  study = papers.STUDIES['fedavg_linear_rate'].at('cpu')
  rows = [
    {
      'method': f'step size {alpha:g}',
      'num_local_steps': tau,
      'seed': seed,
      'rate': (1 + seed) * alpha**2 * tau,
    }
    for alpha, nums in ((0.1, (2, 4, 8, 16)), (0.2, (2,)))
    for tau in nums
    for seed in study.seeds
  ]
  *ratios, by_steps, by_size = fed_avg.rate_claims(Numbers(rows), study)
  assert [claim.measured for claim in ratios] == pytest.approx([2, 2, 2])
  assert by_steps.measured == pytest.approx(0, abs=1e-9)
  assert by_size.measured == pytest.approx(0, abs=1e-9)
