"""FedDAR's components, and the dimension of its representation.

* `feddar_k` (figure 2): scores by domain against the dimension.
* `feddar_ablation` (table 2): re-weighting, multi-head, domain as input,
  alternating training, projection and aggregation, one after another;
  `feddar_ablation_small_alpha` with clients of almost one domain each.
* `feddar_ridge`: what the ridge of second-order aggregation costs, which the
  paper does not have, and in how many directions it leaves it.

They have few examples (60 a client) and domains of unequal size (the largest
has 40% of them, the smallest 5%), as it is there that components matter. The
ridge has 250 a client and equal domains, too.

Deviations from the paper: those of `fed_dar`.

References:
  Zhong, He, Ren, Li, Li: FedDAR: Federated Domain-Aware Representation
  Learning, ICLR 2023, section 5.3, table 2, figure 2.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence

import numpy as np

from binaries.papers import fed_dar
from tff_pfl.comparisons import claims, panels, paper
from tff_pfl.comparisons import context as context_lib
from tff_pfl.methods import fed_dar as algorithm

_NOTHING, _ALL_COMPONENTS = 'nothing', 'RW, MH, Alter, Proj, SA'
_RIDGES = (1e-2, 1e-3, 1e-4, 1e-5)
_RIDGE = 'ridge {:g}'.format
_FEW, _MANY = 'few examples, unequal domains', 'more examples, equal domains'
_SMALL_ALPHA = fed_dar.Sizes(
  one_partition='domain_mixture:0.1:60:0.4/0.25/0.2/0.1/0.05'
)


def components(sizes: fed_dar.Sizes) -> Sequence[context_lib.Method]:
  """The rows of table 2, first those without alternating training."""
  rw = {'reweight_domains': True}
  projection = {'projection_dim': sizes.projection_dim}
  wa = fed_dar.WEIGHTED_AVERAGE
  jointly = {'alternating': False}
  own = {
    'RW, MH, WA': {**jointly, **wa},
    'RW, MH, Proj, WA': {**jointly, **wa, **projection},
    'RW, MH, Proj, SA': {**jointly, **projection},
    'MH, Alter, WA': {**wa, 'reweight_domains': False},
    'RW, DI, Alter': {**wa, 'heads': 'domain_as_input'},
    'RW, MH, Alter, WA': wa,
    'RW, MH, Alter, Proj, WA': {**wa, **projection},
    'RW, MH, Alter, SA': {},
    _ALL_COMPONENTS: projection,
  }
  return [
    context_lib.Method(_NOTHING, 'fed_avg'),
    context_lib.Method('RW', 'fed_avg', config=rw),
    context_lib.Method(
      'RW, DI', 'fed_avg', config={**rw, 'domain_model': 'input'}
    ),
    *(
      context_lib.Method(name, 'fed_dar', hparams)
      for name, hparams in own.items()
    ),
  ]


def measure_k(context: context_lib.Context) -> paper.Rows:
  """FedDAR's scores by aggregation and dimension of the representation."""
  dimensions = {}
  for k in context.sizes.dimensions:
    own = {'projection_dim': k}
    for name, hparams in (
      (fed_dar.SA, own),
      (fed_dar.WA, {**own, **fed_dar.WEIGHTED_AVERAGE}),
    ):
      method = context_lib.Method(f'{name}, k={k}', 'fed_dar', hparams)
      dimensions[method.name] = method, {'method': name, 'dimension': k}
  compared = [method for method, _ in dimensions.values()]
  for row in fed_dar.run(
    context, compared, {'one': context.sizes.one_partition}
  ):
    yield {**row, **dimensions[row['method']][1]}


def k_claims(table: paper.Table, sizes: fed_dar.Sizes) -> paper.Claims:
  """Claims on figure 2, each aggregation with its best dimension over seeds."""
  best = []
  for method in (fed_dar.SA, fed_dar.WA):
    _, scores = table.curve('mean', 'dimension', method=method)
    best.append(scores[:, np.argmax(scores.mean(axis=0))])
  yield claims.difference(
    'With the best dimension of the representation FedDAR-SA is better than '
    'FedDAR-WA with its own best',
    'FedDAR, figure 2',
    best[0] - best[1],
  )


def measure_ridge(context: context_lib.Context) -> paper.Rows:
  """FedDAR's scores by the ridge of second-order aggregation.

  `effective_rank` is the mean over domains and rounds.
  """
  own = {'projection_dim': context.sizes.projection_dim}
  compared = [
    *(
      context_lib.Method(_RIDGE(ridge), 'fed_dar', {**own, 'ridge': ridge})
      for ridge in _RIDGES
    ),
    context_lib.Method(
      fed_dar.WA, 'fed_dar', {**own, **fed_dar.WEIGHTED_AVERAGE}
    ),
  ]
  partitions = {
    _FEW: context.sizes.one_partition,
    _MANY: context.sizes.partitions['alpha=0.5'],
  }
  if context.settings.fast:
    # The default and the next one.
    compared = compared[1:3]
  for result in fed_dar.results(context, compared, partitions):
    ranks = [
      list(metrics['effective_rank'].values())
      for metrics in result.run.history
      if 'effective_rank' in metrics
    ]
    yield {
      **fed_dar.row(result),
      'effective_rank': np.mean(ranks) if ranks else None,
    }


def ridge_claims(table: paper.Table, sizes: fed_dar.Sizes) -> paper.Claims:
  """Claims on the cost of the default ridge."""
  default = _RIDGE(algorithm.FedDarHParams().ridge)
  others = [name for name in table.distinct('method') if name != default]
  for partition, other in itertools.product(
    table.distinct('partition'), others
  ):
    yield claims.difference(
      f'{partition}: {default} costs at most 0.01 against {other}',
      'FedDAR, equation 8',
      table.paired_difference('mean', default, other, partition=partition),
      above=-0.01,
    )


def measure_ablation(context: context_lib.Context) -> paper.Rows:
  """The scores with components of FedDAR."""
  compared = components(context.sizes)
  if context.settings.fast:
    compared = [compared[0], compared[-1]]
  yield from fed_dar.run(
    context, compared, {'one': context.sizes.one_partition}
  )


def ablation_claims(table: paper.Table, sizes: fed_dar.Sizes) -> paper.Claims:
  """Claims of section 5.3 on table 2."""
  present = set(table.distinct('method'))
  full, averaged = _ALL_COMPONENTS, 'RW, MH, Alter, WA'
  for statement, column, more, less in (
    ('All components serve the domains better', 'mean', full, _NOTHING),
    ('All components serve the worst domain better', 'min', full, _NOTHING),
    ("Re-weighting helps FedAvg's worst domain", 'min', 'RW', _NOTHING),
    ("It helps FedDAR's worst domain", 'min', averaged, 'MH, Alter, WA'),
    ('Heads beat the domain as input', 'mean', 'RW, MH, WA', 'RW, DI'),
    ('Alternating training helps heads', 'mean', averaged, 'RW, MH, WA'),
    ('It does not fit the domain as input', 'mean', 'RW, DI', 'RW, DI, Alter'),
    ('With it heads beat that, too', 'mean', averaged, 'RW, DI, Alter'),
    ('Second order and projection beat averages', 'mean', full, averaged),
    (
      'With projection second order beats averages',
      'mean',
      full,
      'RW, MH, Alter, Proj, WA',
    ),
    ('Projection helps second order', 'mean', full, 'RW, MH, Alter, SA'),
  ):
    if {more, less} <= present:
      yield claims.difference(
        f'{statement}: ({more}) against ({less})',
        'FedDAR, table 2',
        table.paired_difference(column, more, less),
      )
  if {'RW', 'RW, MH, WA'} <= present:
    yield claims.difference(
      'Heads alone, without alternating training, do not help: what they add '
      'to re-weighting',
      'FedDAR, table 2',
      table.paired_difference('mean', 'RW, MH, WA', 'RW'),
      below=0.01,
    )


_experiment = functools.partial(
  paper.Experiment, full=fed_dar.FULL, fast=fed_dar.FAST
)
_ablation_experiment = functools.partial(
  _experiment,
  paper='FedDAR, table 2',
  measure=measure_ablation,
  claims=ablation_claims,
  draw=fed_dar.draw_domains,
)
EXPERIMENTS = (
  _experiment(
    name='feddar_k',
    summary='FedDAR against the dimension of the representation',
    paper='FedDAR, figure 2',
    measure=measure_k,
    claims=k_claims,
    draw=panels.curves(
      'mean',
      over='dimension',
      x_label='Dimension of the representation (k)',
      y_label='Mean over domains of test accuracy or AUC',
      log_x=True,
    ),
  ),
  _experiment(
    name='feddar_ridge',
    summary='Second-order aggregation with larger and smaller ridges',
    paper='FedDAR, equation 8',
    measure=measure_ridge,
    claims=ridge_claims,
    draw=fed_dar.draw_domains,
    full={fed_dar.Sizes().dataset: fed_dar.Sizes()},
  ),
  _ablation_experiment(
    name='feddar_ablation',
    summary="FedDAR's components, one after another",
  ),
  _ablation_experiment(
    name='feddar_ablation_small_alpha',
    summary='The same where clients have almost one domain each',
    full={_SMALL_ALPHA.dataset: _SMALL_ALPHA},
  ),
)
