"""FedFac's hyperparameters: Lambda, then tau, then kappa (tables 4 to 6).

`fedfac_tuning` takes the divided layer Lambda, then the threshold tau, then the
share kappa, each with the best of what came before. As in the paper, what is
best has the highest test accuracy, here with seeds that the other experiments
of FedFac do not report. Other deviations are those of `fed_fac`.

References:
  Wang, Tang, Li: Factor-Assisted Federated Learning for Personalized
  Optimization with Heterogeneous Data, arXiv:2312.04281, section 5.3.
"""

from __future__ import annotations

import numpy as np

from binaries.papers import fed_fac
from tff_pfl.comparisons import claims, panels, paper
from tff_pfl.comparisons import context as context_lib

_TUNED = {
  'layers': 'Divided layer (Lambda)',
  'threshold': 'Threshold (tau)',
  'explained_variance': 'Explained variance (kappa)',
}


def measure(context: context_lib.Context) -> paper.Rows:
  """Accuracy with each value of one hyperparameter after another."""
  sizes = context.sizes
  # None of those that the other experiments report.
  seeds = [seed + sizes.num_seeds for seed in context.seeds]
  start = {
    'layers': sizes.layers[-1],
    'threshold': 0.5,
    'explained_variance': sizes.explained_variance,
  }
  chosen = {partition: start for partition in sizes.partitions}
  swept = (sizes.layers, sizes.swept_thresholds, sizes.swept_variances)
  for hparam, values in zip(_TUNED, swept):
    compared = {
      partition: [
        context_lib.Method('-'.join(map(str, tried.values())), 'fed_fac', tried)
        for tried in ({**own, hparam: value} for value in values)
      ]
      for partition, own in chosen.items()
    }
    found = paper.Table.from_rows(
      {
        'partition': result.condition,
        'hyperparameter': hparam,
        'value': result.hparams[hparam],
        'seed': result.seed,
        'accuracy': result.accuracy(),
      }
      for result in fed_fac.run(context, compared, seeds=seeds)
    )
    yield from found.rows()
    for partition, hparams in chosen.items():
      _, accuracies = found.curve('accuracy', 'value', partition=partition)
      best = values[accuracies.mean(axis=0).argmax()]
      chosen[partition] = {**hparams, hparam: best}


def make_claims(table: paper.Table, sizes: fed_fac.Sizes) -> paper.Claims:
  """Claims on tables 4 and 5, and on the order of the hyperparameters."""

  def accuracies(hparam, partition):
    """The values, and the accuracies `[num_seeds, num_values]`."""
    return table.curve(
      'accuracy', 'value', hyperparameter=hparam, partition=partition
    )

  def influence(hparam):
    ranges = [
      np.ptp(accuracies(hparam, p)[1], axis=1) for p in sizes.partitions
    ]
    return np.mean(ranges, axis=0)

  def best_threshold(partition):
    values, of_values = accuracies('threshold', partition)
    return values[of_values.argmax(axis=1)]

  names = list(_TUNED)
  for more, less in zip(names, names[1:]):
    yield claims.difference(
      f'{_TUNED[more]} counts more than {_TUNED[less]}: the difference of the '
      'ranges of accuracy, means over partitions',
      'FedFac, section 5.3',
      influence(more) - influence(less),
    )
  # On handwritten digits, the text has it, shallow layers are preferable.
  source, best = 'FedFac, table 4', sizes.layers[-1]
  if not sizes.dataset.startswith('cifar'):
    source, best = 'FedFac, section 5.3', sizes.layers[0]
  of_layers = table.where(hyperparameter='layers')
  pairs = [(best, layer) for layer in sizes.layers if layer != best]
  yield from claims.more_accurate(
    of_layers, source, pairs, by='value', partition=sizes.partitions
  )
  first, last = sizes.partitions[0], sizes.partitions[-1]
  yield claims.difference(
    f'{first}: more than half of the neurons are personal with the best tau',
    'FedFac, table 5',
    best_threshold(first),
    above=0.5,
  )
  if first != last:
    yield claims.difference(
      f'The best tau is larger for {first} than for {last}',
      'FedFac, table 5',
      best_threshold(first) - best_threshold(last),
    )


EXPERIMENTS = (
  paper.Experiment(
    name='fedfac_tuning',
    summary="FedFac's divided layer, threshold and explained variance in turn",
    paper='FedFac, tables 4 to 6',
    measure=measure,
    claims=make_claims,
    draw=panels.accuracy_bars(
      group='value',
      by='partition',
      panel='hyperparameter',
      title=_TUNED.get,
      sharey=True,
    ),
    full=fed_fac.FULL,
    fast=fed_fac.FAST,
  ),
)
