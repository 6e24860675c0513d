"""FedFac under its authors' protocol, on made-up numbers."""

import dataclasses

import numpy as np

from binaries.papers import fed_fac_protocol
from tests.papers import untrained
from tff_pfl.comparisons import claims


def test_each_form_is_compared_with_the_others():
  accuracies = {
    'FedAvg': 0.2,
    'FedPer': 0.6,
    'FedRep': 0.7,
    'FedFac, updates': 0.65,
    'FedFac, weights': 0.66,
    'random split': 0.6,
    'FedFac, all personal': 0.6,
  }
  sizes = fed_fac_protocol.EQUAL_CLIENTS_FAST
  table = untrained.table(
    ('partition', 'method'),
    {'pi = 0.1': accuracies},
    *('accuracy', 'unchanged_units'),
  )
  found = list(fed_fac_protocol.equal_clients_claims(table, sizes))
  # The leads over the four others, and what keeps its side.
  np.testing.assert_allclose(
    [claim.measured for claim in found],
    [0.45, 0.05, -0.05, 0.05, 0.65]
    + [0.46, 0.06, -0.04, 0.06, 0.66]
    + [0.4, 0.0, -0.1, 0.0]
    + [-0.05, 0.01],
    atol=1e-12,
  )
  assert [claim.verdict == claims.HOLDS for claim in found] == (
    [True, True, False, True, False] * 2
    + [True, False, False, False]
    + [False, True]
  )


def test_pretrained_networks_are_trained_first_on_the_other_classes():
  def finish(trial):
    return untrained.finished(0.5, directory=f'/runs/{trial.name}')

  sizes = dataclasses.replace(fed_fac_protocol.PRETRAINED_FAST, num_seeds=2)
  context = untrained.Context(sizes, finish)
  rows = list(fed_fac_protocol.measure_pretrained(context))
  methods = sizes.methods
  assert len(methods) == 7
  assert {row['accuracy_before'] for row in rows} == {0.5}
  assert [(row['start'], row['method'], row['seed']) for row in rows] == [
    (start, method, seed)
    for start in ('random start', 'pre-trained start')
    for method in methods
    for seed in range(2)
  ]
  before, at_random, pretrained = np.split(np.array(context.trials), [2, 16])
  assert len({trial.name for trial in context.trials}) == len(context.trials)
  for trial in before:
    assert trial.config.algorithm == 'fed_avg'
    assert trial.config.num_clients == 1
    assert trial.config.dataset_arguments['classes'] == (0, 1, 2, 3, 4)
  for plain, trial in zip(at_random, pretrained):
    config = trial.config
    assert config.dataset_arguments['classes'] == (5, 6, 7, 8, 9)
    assert config.initial_run == f'/runs/{before[config.seed].name}'
    assert config.initial_run_part == 'body'
    # Nothing else differs.
    assert plain.config == dataclasses.replace(
      config, initial_run=None, initial_run_part='all'
    )


def test_what_is_gained_by_a_pretrained_start_is_told_by_method():
  accuracies = {
    method: {'random start': at_random, 'pre-trained start': pretrained}
    for method, at_random, pretrained in (
      ('FedPer', 0.5, 0.6),
      ('FedRep', 0.5, 0.7),
      ('FedFac, updates', 0.4, 0.65),
      ('FedFac, weights', 0.6, 0.8),
      ('FedFac, all personal', 0.6, 0.6),
      ('random split', 0.4, 0.65),
    )
  }
  sizes = fed_fac_protocol.PRETRAINED_FAST
  table = untrained.table(
    ('partition', 'method', 'start'),
    {'pi = 0.1': accuracies},
  )
  found = list(fed_fac_protocol.pretrained_claims(table, sizes))
  np.testing.assert_allclose(
    [claim.measured for claim in found],
    [0.05, -0.05, 0, 0.15, 0.2, 0.1, 0.15, 0.1, 0, -0.1, -0.05, -0.1],
    atol=1e-12,
  )
  assert [claim.verdict == claims.HOLDS for claim in found] == [
    True, False, False, True, *[True] * 4, *[False] * 4
  ]  # fmt: skip
