import collections

import numpy as np

from binaries.papers import fed_rep_table
from tests.papers import untrained
from tff_pfl.comparisons import claims


def test_all_methods_stand_beside_the_published_figures():
  sizes = fed_rep_table.Sizes(num_seeds=1)
  context = untrained.Context(
    sizes, lambda wanted: untrained.finished(0.5, 0.6)
  )
  rows = list(fed_rep_table.measure(context))
  assert len(rows) == 2 * 15
  published = {
    row['method']: row['published']
    for row in rows
    if row['partition'] == '5 classes'
  }
  np.testing.assert_allclose(
    [published[name] for name in ('FedAvg', 'FedAvg + FT', 'Local Only')],
    [0.5178, 0.7368, 0.7068],
  )
  assert published['FedRep'] is None  # Illegible in the copy at hand.
  by_name = {row['method']: row['accuracy'] for row in rows}
  assert (by_name['FedProx'], by_name['FedProx + FT']) == (0.5, 0.6)
  for trial in context.trials:
    # The head, for 10 epochs, where a global model is fine-tuned.
    assert set(trial.fine_tune_variants) <= {'head'}
    assert trial.config.personalization.num_epochs == 10
    assert trial.config.augmentation == 'crop:4+flip'
  epochs = collections.defaultdict(set)
  for trial in context.trials:
    config = trial.config
    name = f'num_{"body_" * (config.algorithm == "fed_rep")}epochs'
    epochs[config.partition].add(getattr(config.hparams, name))
    assert getattr(config.hparams, 'num_head_epochs', 10) == 10
  assert epochs == {'shards:2': {1}, 'shards:5': {5}}


def test_fed_rep_is_compared_with_every_other():
  table = untrained.table(
    ('partition', 'method'),
    dict.fromkeys(
      ('2 classes', '5 classes'),
      {'FedRep': 0.7, 'FedPer': 0.8, 'Local Only': 0.6},
    ),
  )
  found = fed_rep_table.make_claims(table, fed_rep_table.Sizes())
  assert [claim.verdict for claim in found] == [claims.FAILS, claims.HOLDS] * 2
