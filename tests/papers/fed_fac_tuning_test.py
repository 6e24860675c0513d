"""Tests of FedFac's tuning, without its training."""

import dataclasses

import numpy as np

from binaries.papers import fed_fac, fed_fac_tuning
from tests.papers import untrained


def test_tuning_goes_on_from_the_best():
  best = {'layers': 'conv_2', 'threshold': 0.9, 'explained_variance': 0.75}

  def finish(trial):
    hparams = trial.config.hparams
    hits = [getattr(hparams, name) == value for name, value in best.items()]
    # One seed disagrees, but not the mean.
    accuracy = 0.1 * sum(hits) * (1 if trial.config.seed > 2 else -0.5)
    return untrained.finished(accuracy)

  sizes = dataclasses.replace(fed_fac.FAST, num_seeds=2)
  context = untrained.Context(sizes, finish)
  rows = list(fed_fac_tuning.measure(context))
  assert len(rows) == 2 * (3 + 2 + 2)
  tried = {
    name: [t.config.hparams for t in context.trials[start:end]]
    for name, start, end in (('threshold', 6, 10), ('variance', 10, 14))
  }
  assert {hparams.layers for hparams in tried['threshold']} == {'conv_2'}
  assert {hparams.threshold for hparams in tried['variance']} == {0.9}
  # The seeds are none of those that the other experiments report.
  assert {row['seed'] for row in rows} == {2, 3}
  # The point that an earlier sweep chose is the same trial.
  assert {t.name for t in context.trials[2:4]} <= {
    t.name for t in context.trials[6:10]
  }


def test_what_is_said_of_tuning_is_taken_seed_by_seed():
  swept = {
    'layers': {'conv_1': 0.1, 'conv_2': 0.3, 'dense_1': 0.5},
    'threshold': {0.25: 0.4, 0.5: 0.5, 0.75: 0.6, 0.95: 0.5},
    'explained_variance': {0.5: 0.5, 0.9: 0.6},
  }
  # Where clients are alike, few personal neurons are best.
  alike = {name: -value for name, value in swept['threshold'].items()}
  of_partitions = {'a': swept, 'b': {**swept, 'threshold': alike}}
  table = untrained.table(
    ('partition', 'hyperparameter', 'value'),
    of_partitions,
  )
  sizes = fed_fac.Sizes(thresholds={'a': 0.5, 'b': 0.5})
  found = list(fed_fac_tuning.make_claims(table, sizes))
  np.testing.assert_allclose(
    [claim.measured for claim in found],
    # Ranges: 0.4 - 0.2 and 0.2 - 0.1. Then the layers, and the best tau.
    [0.2, 0.1, 0.4, 0.2, 0.4, 0.2, 0.75, 0.75 - 0.25],
  )
  assert {claim.num_seeds for claim in found} == {5}
