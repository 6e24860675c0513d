"""Tests of FedFac's experiments on images."""

import types

import numpy as np
from matplotlib.figure import Figure

from binaries.papers import fed_fac
from tests.papers import untrained
from tff_pfl.comparisons import claims, tables
from tff_pfl.comparisons import context as context_lib


def test_new_clients_have_local_training_and_the_ensemble():
  def finish(trial):
    def scores(accuracies):
      return [{'after': {'accuracy': value}} for value in accuracies]

    def variant(name):
      if name == 'all':
        return {'new_clients': scores([0.7, 0.9])}
      return {
        'new_clients': scores([0.2, 0.4]),
        'new_clients_by_ensemble': scores([0.5, 0.7]),
      }

    return types.SimpleNamespace(variant=variant)

  context = untrained.Context(fed_fac.FAST, finish)
  rows = list(fed_fac.measure_new_clients(context))
  np.testing.assert_allclose(
    [row['accuracy'] for row in rows],
    [0.3, 0.8, 0.3, 0.8, 0.6, 0.3, 0.3, 0.3, 0.6],
  )
  assert [row['method'] for row in rows] == [
    'FedAvg',
    'FedAvg, after local training',
    'FedProx',
    'FedProx, after local training',
    'LG-FedAvg, ensemble',
    'FedEM',
    'FedRep',
    'FedFac, local training',
    'FedFac, ensemble',
  ]
  assert {t.config.num_clients + t.num_new_clients for t in context.trials} == {
    10
  }


def test_the_comparison_tells_where_each_lead_is_and_how_it_grows():
  # By partition, of five seeds that differ alike for all methods.
  accuracies = {'shards:2': 0.8, 'shards:5': 0.6}
  table = tables.Table.from_rows(
    {
      'partition': partition,
      'method': name,
      'seed': seed,
      'round': 40,
      'accuracy': accuracy + 0.1 * seed + 0.01 * (seed + 1) * lead,
      'seconds_per_round': seconds + seed,
      'client_median': 0.5 + 0.1 * lead,
      'client_std': 0.1 + 0.1 * lead,
      'training_loss': 2 - lead * (1 if partition == 'shards:2' else 0.5),
      'loss_change': 0.1,
    }
    for partition, accuracy in accuracies.items()
    for name, lead, seconds in (
      *((m.name, 0, 2) for m in fed_fac.BASELINES if m.name != 'LG-FedAvg'),
      ('FedAvg, after local training', 0, 2),
      ('FedProx, after local training', 0, 2),
      ('LG-FedAvg', -1 if partition == 'shards:5' else 0, 2),
      ('FedFac, static', 0, 2),
      ('FedFac, dynamic, weights', 2, 4),
      ('FedFac, dynamic', 1, 4),
    )
    for seed in range(5)
  )
  sizes = fed_fac.Sizes(thresholds=dict.fromkeys(accuracies, 0.5))
  found = {c.statement: c for c in fed_fac.comparison_claims(table, sizes)}
  lead = found['shards:2: FedFac, dynamic is more accurate than FedRep']
  np.testing.assert_allclose(lead.measured, 0.03)
  assert lead.verdict == claims.HOLDS
  (growth,) = (c for name, c in found.items() if 'alike' in name)
  np.testing.assert_allclose(growth.measured, 0.03)
  slower = found['shards:5: it takes less time than one of FedEM, in seconds']
  assert (slower.measured, slower.verdict) == (2, claims.FAILS)
  (ratio,) = (c for name, c in found.items() if '5: a round' in name)
  # The ratios are 4 / 2, 5 / 3, ..., 8 / 6.
  np.testing.assert_allclose(ratio.measured, 1.58)
  assert ratio.verdict == claims.HOLDS
  lead = found[
    'shards:2: FedFac, dynamic, weights is more accurate than FedRep'
  ]
  np.testing.assert_allclose(lead.measured, 0.06)
  # Nine and ten leads, four numbers of clients and rounds and two times for
  # each partition, and the growth of two leads.
  assert len(found) == 2 * 25 + 2
  of_figures = [c for c in found.values() if 'figure' in c.source]
  np.testing.assert_allclose(
    [c.measured for c in of_figures],
    [0.1, 0.1, -1, 0, 0.1, 0.1, -0.5, 0, 0.5],
    atol=1e-12,
  )
  verdicts = [c.verdict for c in of_figures[:4]]
  assert verdicts == [
    claims.HOLDS, claims.FAILS, claims.HOLDS, claims.UNDECIDED
  ]  # fmt: skip


def test_the_comparison_has_the_loss_by_round_and_the_clients_quantiles():
  def finish(trial):
    accuracies = np.arange(21) / 20
    of_clients = [{'after': {'accuracy': value}} for value in accuracies]
    scores = {
      'clients': of_clients,
      'evaluation': {'personal': {'accuracy': 1}},
    }
    return untrained.finished(0.5, variant=lambda name: scores)

  context = untrained.Context(fed_fac.FAST, finish)
  table = tables.Table.from_rows(fed_fac.measure_comparison(context))
  of_fed_avg = table.where(method='FedAvg').rows()
  assert [row['loss'] for row in of_fed_avg] == [1, 0.5]
  (last,) = table.where(method='FedAvg', round=2).rows()
  shares = [value for name, value in last.items() if name.startswith('client_')]
  np.testing.assert_allclose(shares[:5], [0.05, 0.25, 0.5, 0.75, 0.95])
  # What is trained further has no losses of its own.
  (tuned,) = table.where(method='FedAvg, after local training').rows()
  assert (tuned['round'], tuned['accuracy']) == (2, 1)
  figure = Figure()
  fed_fac.draw_comparison(table, fed_fac.FAST, figure)
  _, boxes, curves = figure.axes
  names = [label.get_text() for label in boxes.get_yticklabels()]
  assert names == table.distinct('method')
  assert len(curves.get_legend().get_texts()) == len(names) - 2


def test_the_ensemble_is_compared_with_all_where_clients_are_alike():
  names = ('FedAvg', 'FedAvg, after local training', 'FedProx',
           'FedProx, after local training', 'LG-FedAvg, ensemble',
           'FedFac, local training', 'FedFac, ensemble')  # fmt: skip
  table = untrained.table(
    ('partition', 'method'),
    dict.fromkeys('ab', {name: 0.1 * i for i, name in enumerate(names)}),
  )
  sizes = fed_fac.Sizes(thresholds={'a': 0.5, 'b': 0.5})
  statements = [c.statement for c in fed_fac.new_clients_claims(table, sizes)]
  assert len(statements) == 2 + 1 + 2 + 5
  assert 'b: FedFac, ensemble is more accurate than FedProx' in statements
  assert 'a: FedFac, ensemble is more accurate than FedProx' not in statements


def test_methods_have_the_partitions_hyperparameters():
  context = untrained.Context(fed_fac.FAST)
  compared = (*fed_fac.BASELINES, context_lib.Method('FedFac', 'fed_fac'))
  assert list(fed_fac.run(context, {'dirichlet:0.5': compared}, 2))
  for method, made in zip(compared, context.trials):
    config, hparams = made.config, made.config.hparams
    assert (config.algorithm, config.partition) == (
      method.algorithm, 'dirichlet:0.5'
    )  # fmt: skip
    assert (hparams.optimizer, hparams.batch_size) == ('adam', 50)
    assert config.personalization.optimizer == 'adam'
    assert config.num_clients + 2 == fed_fac.FAST.num_clients
    assert bool(made.fine_tune_variants) == bool(method.fine_tuned)
  assert (hparams.layers, hparams.threshold) == ('dense_1', 0.75)
