import dataclasses

import pytest

from binaries.papers import fed_avg_linear
from tff_pfl.experiments import claims, laboratory, paper, tables

_REPRESENTATION, _NEW_CLIENT = fed_avg_linear.EXPERIMENTS


@pytest.mark.slow
@pytest.mark.parametrize(
  'entry', fed_avg_linear.EXPERIMENTS, ids=lambda entry: entry.name
)
def test_it_runs_from_seeds_to_claims(entry, tmp_path):
  tiny = dataclasses.replace(
    fed_avg_linear.FAST, num_rounds=400, num_seeds=1, num_fine_tuning_steps=20
  )
  summary = paper.run(
    dataclasses.replace(entry, fast=tiny),
    laboratory.Settings(str(tmp_path), fast=True, show_progress=False),
  )
  verdicts = [claim['verdict'] for claim in summary['claims']]
  assert claims.FAILS not in verdicts
  assert verdicts.count(claims.HOLDS) == (5 if entry is _REPRESENTATION else 0)
  assert all(c['measured'] > 0 for c in summary['claims'])


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
  found = list(
    fed_avg_linear.representation_claims(
      tables.Table.from_rows(rows), fed_avg_linear.FULL
    )
  )
  assert [claim.measured for claim in found] == pytest.approx(
    # The last two are ratios of means: 2e-5 / 3 and 0.5 / 3.
    [1e-9, 0.7, 1e-9, 0.7, 1.0, 2e-5 / 3, 0.5 / 3]
  )
  assert [claim.verdict for claim in found[5:]] == [claims.HOLDS] * 2


def test_full_sizes_are_those_of_the_paper():
  sizes = fed_avg_linear.FULL
  assert (sizes.dimension, sizes.rank, sizes.num_clients) == (100, 5, 40)
  assert (sizes.num_local_steps, sizes.num_seeds) == (2, 10)
  assert sizes.num_fine_tuning_steps == 200
  assert sizes.noise_std**2 == pytest.approx(0.01)
