"""FedDAR's ablations, without their training."""

import numpy as np
import pytest

from binaries.papers import fed_dar, fed_dar_components
from tests.papers import untrained
from tff_pfl.comparisons import claims, tables


def test_each_aggregation_has_its_own_best_dimension():
  scores = {
    'FedDAR-SA': {2: 0.7, 4: 0.6},
    'FedDAR-WA': {2: 0.5, 4: 0.65},
  }
  table = untrained.table(('method', 'dimension'), scores, 'mean')
  (claim,) = fed_dar_components.k_claims(table, fed_dar.FAST)
  assert claim.measured == pytest.approx(0.05)
  assert claim.verdict == claims.HOLDS


def test_the_ablation_compares_with_and_without():
  values = {
    'nothing': 0.5,
    'RW': 0.4,
    'RW, DI': 0.45,
    'RW, DI, Alter': 0.42,
    'RW, MH, WA': 0.6,
    'RW, MH, Alter, WA': 0.65,
    'RW, MH, Alter, Proj, SA': 0.7,
  }
  table = untrained.table(['method'], values, 'min', 'mean')
  found = fed_dar_components.ablation_claims(table, fed_dar.FAST)
  verdicts = {c.statement.split(':')[0]: c.verdict for c in found}
  assert verdicts == {
    'All components serve the domains better': claims.HOLDS,
    'All components serve the worst domain better': claims.HOLDS,
    "Re-weighting helps FedAvg's worst domain": claims.FAILS,
    'Heads beat the domain as input': claims.HOLDS,
    'Alternating training helps heads': claims.HOLDS,
    'It does not fit the domain as input': claims.HOLDS,
    'With it heads beat that, too': claims.HOLDS,
    'Second order and projection beat averages': claims.HOLDS,
    'Heads alone, without alternating training, do not help': claims.FAILS,
  }


def test_the_ridge_is_compared_with_others_and_tells_the_directions_left():
  def finish(trial):
    second_order = trial.config.hparams.aggregation == 'second_order'
    ranks = [{}, {'effective_rank': {'a': 3.0, 'b': 5.0}}]
    return untrained.finished(
      0.8 - trial.config.hparams.ridge,
      history=ranks if second_order else [{}],
    )

  context = untrained.Context(fed_dar.Sizes(), finish)
  table = tables.Table.from_rows(fed_dar_components.measure_ridge(context))
  assert len(context.trials) == 2 * 5 * 5
  ranks = table.where(partition='few examples, unequal domains', seed=0)
  np.testing.assert_array_equal(
    ranks.columns()['effective_rank'], [4, 4, 4, 4, np.nan]
  )
  found = list(fed_dar_components.ridge_claims(table, fed_dar.Sizes()))
  np.testing.assert_allclose(
    [claim.measured for claim in found],
    2 * [0.009, -0.0009, -0.00099, 0],
    atol=1e-9,
  )
  assert {claim.verdict for claim in found} == {claims.HOLDS}
