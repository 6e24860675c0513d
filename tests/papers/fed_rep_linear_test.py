import dataclasses

import numpy as np

from binaries.papers import fed_rep_linear
from tests.papers import untrained
from tff_pfl.comparisons import claims, paper, tables
from tff_pfl.comparisons import context as context_lib

_SAMPLES, _NEW_CLIENT = fed_rep_linear.EXPERIMENTS


def test_it_runs_from_seeds_to_claims(tmp_path):
  tiny = dataclasses.replace(
    fed_rep_linear.NEW_CLIENT_FAST,
    num_rounds=60,
    fed_sgd_num_rounds=5,
    num_new_clients=20,
  )
  entry = dataclasses.replace(_NEW_CLIENT, fast=tiny)
  summary = paper.run(
    entry, context_lib.Settings(str(tmp_path), fast=True, show_progress=False)
  )
  assert [claim['verdict'] for claim in summary['claims']] == [claims.HOLDS] * 3


def test_few_samples_and_one_model_for_all_do_not_do():
  errors = {
    'FedRep': (1e-6, 1e-6, 1e-6),
    'FedSGD': (0.9, 0.9, 0.9),
    'Local only': (1e-7, 0.5, 1e-4),
  }
  counts = (5, 10, 40)
  table = untrained.table(
    ('method', 'num_samples'),
    {method: dict(zip(counts, values)) for method, values in errors.items()},
    'relative_error',
  )
  sizes = dataclasses.replace(fed_rep_linear.SAMPLES_FULL, sample_counts=counts)
  found = list(_SAMPLES.claims(table, sizes))
  # Accurate, not accurate; then alone with 5, 10 and 40 samples.
  np.testing.assert_allclose(
    [claim.measured for claim in found],
    [1e-6, 0.9, -1, np.log10(5e5), np.log10(1 / 9000)],
  )
  assert [claim.verdict == claims.HOLDS for claim in found] == [
    True, True, False, True, True
  ]  # fmt: skip


def test_samples_needed_are_those_from_which_on_errors_are_small():
  errors = {
    0: (0.5, 0.009, 0.001),
    # Small once before it is large again.
    1: (0.001, 0.5, 0.001),
    2: (0.5, 0.5, 0.5),
    3: (0.001, 0.001, 0.001),
  }
  table = tables.Table.from_rows(
    {
      'method': 'FedRep',
      'seed': seed,
      'num_samples': num_samples,
      'relative_error': error,
    }
    for seed, values in errors.items()
    for num_samples, error in zip((1, 2, 4), values)
  )
  np.testing.assert_array_equal(
    fed_rep_linear.samples_needed(table, 'FedRep'), [2, 4, np.inf, 1]
  )
