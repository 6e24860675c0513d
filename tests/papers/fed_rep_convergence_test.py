import dataclasses

import numpy as np
import pytest
from matplotlib.figure import Figure

from binaries.papers import fed_rep_convergence
from tff_pfl.experiments import claims, laboratory, tables


def _table(rounds):
  """A table of two numbers of clients and five seeds.

  Args:
    rounds: By method and number of clients the rounds to either distance.
  """
  return tables.Table.from_rows(
    {
      'num_clients': num_clients,
      'method': method,
      'seed': seed,
      'round': round_number,
      'distance': 1e-9 if round_number and number < 450 else 0.9,
      'rate': 1 / (number + seed),
      'bound': 0.5,
      'bound_rate': 1 / 190,
      'r_squared': 0.99,
      'rounds_to_near': number + seed,
      'rounds_to_close': number + seed,
    }
    for (method, num_clients), number in rounds.items()
    for seed in range(5)
    for round_number in (0, 450)
  )


def _claims(changes):
  rounds = {
    (method, num_clients): number
    for method, numbers in (
      ('FedRep', (100, 50)),
      ('GD-GD', (200, 180)),
      ('10GD-GD', (150, 140)),
      ('FedRep, noisy labels', (100, 50)),
      ('FedRep, 10% of clients', (120, 70)),
      # Rates are 1 / (number + seed).
      ('FedRep, random start', (104, 52)),
      ('GD-GD, random start', (250, 220)),
    )
    for num_clients, number in zip((50, 200), numbers)
  }
  table = _table({**rounds, **changes})
  sizes = fed_rep_convergence.FAST
  fed_rep_convergence.draw(table, sizes, Figure())
  return list(fed_rep_convergence.make_claims(table, sizes))


@pytest.mark.parametrize(
  'changes, failing',
  [
    ({}, set()),
    # No faster with more clients, so that no method gains less from them.
    ({('FedRep', 200): 100}, {4, 7, 10, 13}),
    ({('GD-GD', 50): 90}, {5}),
    ({('10GD-GD', 200): 40}, {9, 10}),
    # A rate of 1 / 200, where the bound's is 1 / 190.
    ({('FedRep', 50): 200}, {2, 5, 8, 11}),
    # A random start costs both methods as much, or FedRep some of its rate.
    ({('GD-GD', 50): 246}, {12}),
    ({('FedRep, random start', 50): 130}, {11}),
    # A run that needs all of the rounds has not come close.
    ({('FedRep, 10% of clients', 50): 450}, {3}),
  ],
)
def test_claims_of_convergence_compare_rounds_by_seed(changes, failing):
  verdicts = [claim.verdict for claim in _claims(changes)]
  assert len(verdicts) == 15
  assert {
    i for i, verdict in enumerate(verdicts) if verdict != claims.HOLDS
  } == failing


def test_convergence_has_the_bound_and_a_run_of_small_cohorts(tmp_path):
  sizes = dataclasses.replace(
    fed_rep_convergence.FAST, nums_clients=(40,), num_rounds=20
  )
  settings = laboratory.Settings(str(tmp_path), show_progress=False)
  table = tables.Table.from_rows(
    fed_rep_convergence.measure(laboratory.Laboratory(settings, sizes))
  )

  assert table.distinct('round') == [0, 10, 20]
  of_fed_rep = table.where(method='FedRep')
  (distances,), (bounds,) = (
    of_fed_rep.curve(column, 'round')[1] for column in ('distance', 'bound')
  )
  rate = of_fed_rep.values('bound_rate', round=20)
  np.testing.assert_allclose(bounds, distances[0] * np.exp(-rate * [0, 10, 20]))
  # The cohorts are others than all clients.
  partial = table.where(method='FedRep, 10% of clients')
  (others,) = partial.curve('distance', 'round')[1]
  assert others[0] == distances[0]
  assert others[2] != distances[2]
