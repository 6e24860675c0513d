import dataclasses

import numpy as np
import pytest

from binaries.papers import fed_rep_convergence
from tff_pfl.comparisons import claims, tables
from tff_pfl.comparisons import context as context_lib


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
      # A rate of about 1 / 190, and the same distances.
      ("theorem's bound", (190, 190)),
    )
    for num_clients, number in zip((50, 200), numbers)
  }
  table = _table({**rounds, **changes})
  sizes = fed_rep_convergence.FAST
  return list(fed_rep_convergence.make_claims(table, sizes))


@pytest.mark.parametrize(
  'changes, failing',
  [
    ({}, set()),
    # No faster with more clients, so that no method gains less from them.
    ({('FedRep', 200): 100}, {8, 11, 14, 17}),
    ({('GD-GD', 50): 90}, {9}),
    ({('10GD-GD', 200): 40}, {13, 14}),
    # A rate of 1 / 200, where the bound's is 1 / 190.
    ({('FedRep', 50): 200}, {1, 9, 12, 15}),
    # A random start costs both methods as much, or FedRep some of its rate.
    ({('GD-GD', 50): 246}, {16}),
    ({('FedRep, random start', 50): 130}, {15}),
    # A run that needs all of the rounds has not come close.
    ({('FedRep, 10% of clients', 50): 450}, {3}),
  ],
)
def test_claims_of_convergence_compare_rounds_by_seed(changes, failing):
  verdicts = [claim.verdict for claim in _claims(changes)]
  assert len(verdicts) == 19
  assert {
    i for i, verdict in enumerate(verdicts) if verdict != claims.HOLDS
  } == failing


def test_convergence_has_the_bound_and_a_run_of_small_cohorts(tmp_path):
  sizes = dataclasses.replace(
    fed_rep_convergence.FAST, nums_clients=(40,), num_rounds=20
  )
  settings = context_lib.Settings(str(tmp_path), show_progress=False)
  table = tables.Table.from_rows(
    fed_rep_convergence.measure(context_lib.Context(settings, sizes))
  )

  assert table.distinct('round') == [0, 10, 20]
  (distances,), (bounds,) = (
    table.curve('distance', 'round', method=method)[1]
    for method in ('FedRep', "theorem's bound")
  )
  # The heads' singular values are all 1.
  factor = 1 - 0.2 * (1 - distances[0] ** 2) / 2
  np.testing.assert_allclose(
    bounds, distances[0] * factor ** np.array([0, 5, 10])
  )
  # The cohorts are others than all clients.
  partial = table.where(method='FedRep, 10% of clients')
  (others,) = partial.curve('distance', 'round')[1]
  assert others[0] == distances[0]
  assert others[2] != distances[2]
