import dataclasses

import numpy as np

from binaries.papers import per_fed_avg_theorem
from tff_pfl import runtime as runtime_lib
from tff_pfl.comparisons import claims, tables

_SIZES = dataclasses.replace(
  per_fed_avg_theorem.FAST, num_clients=3, num_examples=8, num_inputs=2
)


def test_a_step_with_exact_gradients_is_down_the_slope_of_the_meta_loss():
  clients = per_fed_avg_theorem.make_clients(_SIZES, 1.0, seed=0)
  loss, gradient = per_fed_avg_theorem.meta_loss(clients, np.zeros(2), 1.0)
  differences = [
    per_fed_avg_theorem.meta_loss(clients, sign * 1e-5 * unit, 1.0)[0]
    for unit in np.eye(2)
    for sign in (1, -1)
  ]
  np.testing.assert_allclose(
    gradient, -np.diff(np.reshape(differences, [2, 2]))[:, 0] / 2e-5, rtol=1e-6
  )
  sizes = dataclasses.replace(_SIZES, num_rounds=2)
  condition = per_fed_avg_theorem.Condition(num_steps=1)
  with runtime_lib.create_runtime('in_process') as runtime:
    (first, second) = per_fed_avg_theorem.norms(
      sizes, condition, clients, 0, runtime
    )
  np.testing.assert_allclose(first, (loss, gradient @ gradient))
  after = -sizes.learning_rate * gradient
  loss, gradient = per_fed_avg_theorem.meta_loss(clients, after, 1.0)
  np.testing.assert_allclose(second, (loss, gradient @ gradient), rtol=1e-5)


def test_floors_are_compared_in_powers_of_ten():
  floors = {
    'exact gradients, tau = 1': 1e-9,
    'exact gradients': 4e-4,
    'exact gradients, beta / 2': 1e-4,
    'exact gradients, tau = 2': 1e-4,
    'batches of 8, beta / 2': 1e-2,
  }
  table = tables.Table.from_rows(
    {
      'setting': condition,
      'seed': seed,
      'round': 59,
      'share': 1e-8,
      'floor': floors.get(condition, 1e-3),
      'floor_share': floors.get(condition, 1e-3),
      'of_bound': 0.5,
    }
    for condition in per_fed_avg_theorem.CONDITIONS
    for seed in range(5)
  )
  found = list(per_fed_avg_theorem.make_claims(table, per_fed_avg_theorem.FAST))
  np.testing.assert_allclose(
    [claim.measured for claim in found],
    [0.5, 1e-8, 1e-2, 0, np.log10(4), -1, 0, 0, np.log10(0.4)],
    atol=1e-12,
  )
  assert [claim.verdict == claims.HOLDS for claim in found] == (
    [True] * 4 + [False] * 5
  )
