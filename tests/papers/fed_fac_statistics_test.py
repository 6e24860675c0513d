"""FedAvg with averaged and local statistics, on made-up numbers."""

import dataclasses
import itertools

import numpy as np
import pytest

from binaries.papers import fed_fac_protocol, fed_fac_statistics
from tests.papers import untrained
from tff_pfl.comparisons import claims


@pytest.mark.parametrize(
  'is_as_published, verdict', [(True, claims.HOLDS), (False, claims.FAILS)]
)
def test_local_statistics_explain_a_gap_where_there_is_one(
  is_as_published, verdict
):
  # With averaged statistics, with local ones: trained, new, new and initial.
  numbers = [0.4, 0.4, 0.4, 0.8, 0.6, 0.4, *[0.7] * 6]
  if not is_as_published:
    numbers = [0.4, 0.6, 0.4, 0.3, 0.3, 0.3, 0.7, 0.7, 0.7, 0.8, 0.7, 0.6]
  names = itertools.product(
    ('pi = 0.1', 'pi = 1'),
    ('averaged statistics', 'local statistics'),
    ('trained', 'new', 'new, initial statistics'),
  )
  accuracies = dict(zip(names, numbers))
  table = untrained.table(
    ('partition', 'method', 'clients'),
    accuracies,
  )
  found = list(fed_fac_statistics.make_claims(table, fed_fac_protocol.Sizes()))
  assert [claim.verdict for claim in found] == [verdict] * 6


def test_new_clients_are_scored_with_both_kinds_of_statistics():
  def finish(trial):
    new = [
      {'before': {'accuracy': 0.1 * i}, 'after': {'accuracy': 0.2 * i}}
      for i in (1, 2)
    ]
    return untrained.finished(0.9, variant=lambda name: {'new_clients': new})

  sizes = dataclasses.replace(
    fed_fac_statistics.FAST,
    partitions={'pi = 1': 'client_dirichlet:10'},
  )
  context = untrained.Context(sizes, finish)
  rows = list(fed_fac_statistics.measure(context))
  np.testing.assert_allclose(
    [row['accuracy'] for row in rows], [0.9, 0.3, 0.15] * 2
  )
  first, second = (trial.config for trial in context.trials)
  assert (first.statistics, second.statistics) == ('global', 'local')
  assert first.model_arguments['normalization'] == 'batch'
  assert first.num_clients == sizes.num_clients - sizes.num_new_clients
