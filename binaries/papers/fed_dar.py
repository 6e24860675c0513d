"""FedDAR's experiments on data with domains: baselines and components.

* `feddar_domains` (tables 1 and 3): accuracy (AUC where there are two classes)
  by domain, for mixtures of domains from almost one domain a client to all
  alike, of FedDAR with both aggregations and of all methods it is compared
  with.
* `feddar_digits` (table 5): the same of three methods on the digits of those of
  its five data sets that are at hand, with a CNN; and of FedBN, with FedAvg of
  its network beside, which has batch normalization.
* `feddar_k` (figure 2): scores by domain against the dimension of the
  representation.
* `feddar_ablation` (table 2): re-weighting, multi-head, domain as input,
  alternating training, projection and aggregation, one after another.

The data are by default the relabeled digits, which are bundled, and in which
the labels' distribution given the image is the domain's, as the paper's problem
has it; `rotated_digits`, `digits5` and `heart_disease` are others. The last two
have few examples (60 a client) and domains of unequal size (the largest has 40%
of them, the smallest 5%), as it is there that components matter.

Deviations from the paper: of its data, EXAM is not public and FairFace with its
network is too much for a CPU; five clients with 250 examples each stand for
five with 500, an MLP for its networks. One learning rate serves all methods.
All have the ten rounds of FedAvg as warm-up that the paper gives each of them
on digits (appendix B.2): of one epoch, as there, in `feddar_digits`, of five,
as later rounds, in the others (B.3.2 does not say how many); re-weighted where
the method is. "Separate FedAvg" has them, too; the paper's scores of its worst
domain, 4 to 10% where FedAvg's are near 40%, look like those of models without.
FedBN is not among those of tables 1 and 3, as that MLP has no batch
normalization, without which it is FedAvg. Methods whose clients fine-tune at
the end have that score for the last round; all others are means over the last
ten. Table 5's CNN is smaller than the paper's, with two convolutions and two
dense layers, on smaller images (16 x 16), for 60 rounds in place of 100; its
rate is the paper's 0.01, with a momentum of 0.5.

Budgets of fine-tuning: clients fine-tune all weights for one epoch at half the
rate of training, as the paper does with Adam (appendix B.3.3; it found more to
be worse), and with training's batches and momentum. "FedAvg + separate FT" has
no rounds of its own: half of them all are FedAvg's, in the other half each
domain's model goes on by FedAvg on the domain's data. The paper does not say
how many it has.

References:
  Zhong, He, Ren, Li, Li: FedDAR: Federated Domain-Aware Representation
  Learning, ICLR 2023, sections 5.2 and 5.3, tables 1, 2, 3 and 5, figure 2.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any, Optional

import numpy as np
from matplotlib.figure import Figure

from tff_pfl import errors, plots

from .engine import claims, panels, paper, trials

_SA, _WA = 'FedDAR-SA', 'FedDAR-WA'
_SA_WITHOUT_RIDGE = 'FedDAR-SA, ridge 0'
_FED_AVG, _REWEIGHTED = 'FedAvg', 'FedAvg, re-weighted'
_MULTI_HEAD = 'FedAvg + multi-head'
_FED_BN, _NORMALIZED = 'FedBN', 'FedAvg, batch normalization'
_TABLE_5 = (_FED_AVG, _MULTI_HEAD)
_ALMOST_ONE_DOMAIN = 'alpha=0.1'
_NOTHING, _ALL_COMPONENTS = 'nothing', 'RW, MH, Alter, Proj, SA'
# What a figure over rounds is where no round has it.
_NEVER = {'last': None, 'last_10_mean': None}
# Over the domains, and the mean over the clients.
_SCORES = ('min', 'mean', 'max', 'client_mean')
_FAST_METHODS = (_FED_AVG, _WA, _SA)
_WEIGHTED_AVERAGE = {'aggregation': 'weighted_average'}


@dataclasses.dataclass(frozen=True)
class Sizes:
  """Sizes and hyperparameters; all clients take part in every round.

  Attributes:
    partitions: Partitions of the data by their names in the results, from the
      most heterogeneous on.
    one_partition: The one of `feddar_k` and those after it.
    projection_dim: Features of FedDAR-SA's projection; None for no projection.
    dimensions: Dimensions of the representation that `feddar_k` compares.
    num_rounds: Rounds of training, with those of a warm-up.
    num_warmup_rounds: Rounds of them that are the warm-up, of every method.
    num_warmup_epochs: Local epochs of these; None for as many as after them.
    num_head_epochs: Epochs on the head where it is trained in turn.
    num_fine_tuning_epochs: Epochs in which clients fine-tune the last model.
    fine_tuning_rate: Learning rate of these by that of training.
  """

  dataset: str = 'relabelled_digits'
  num_clients: int = 5
  partitions: Mapping[str, str] = dataclasses.field(
    default_factory=lambda: {
      f'alpha={alpha}': f'domain_mixture:{alpha}:250'
      for alpha in ('0.1', '0.5', '1', '100')
    }
  )
  one_partition: str = 'domain_mixture:0.5:60:0.4/0.25/0.2/0.1/0.05'
  dataset_arguments: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  model: str = 'mlp'
  model_arguments: Mapping[str, Any] = dataclasses.field(
    default_factory=lambda: {'widths': (128, 64)}
  )
  projection_dim: Optional[int] = 16
  dimensions: Sequence[int] = (2, 4, 8, 16, 32)
  num_rounds: int = 60
  num_warmup_rounds: int = 10
  num_warmup_epochs: Optional[int] = None
  num_head_epochs: int = 5
  num_epochs: int = 5
  learning_rate: float = 0.05
  momentum: float = 0.5
  batch_size: int = 32
  num_fine_tuning_epochs: int = 1
  fine_tuning_rate: float = 0.5
  num_seeds: int = 5


FULL = {
  sizes.dataset: sizes
  for sizes in (
    Sizes(),
    Sizes(dataset='rotated_digits'),
    Sizes(
      dataset='digits5',
      partitions={
        f'alpha={alpha}': f'domain_mixture:{alpha}:500:uniform'
        for alpha in ('0.1', '0.5', '1', '100')
      },
      one_partition='domain_mixture:0.5:500:uniform',
      dataset_arguments={'image_size': 16, 'max_train_per_domain': 3000},
    ),
    Sizes(
      dataset='heart_disease',
      num_clients=4,
      partitions={'hospitals': 'natural'},
      one_partition='natural',
      model_arguments={'widths': (32, 16)},
      projection_dim=4,
      dimensions=(2, 4, 8, 16),
      learning_rate=0.02,
    ),
  )
}
DIGITS_FULL = dataclasses.replace(
  FULL['digits5'],
  model='cnn',
  model_arguments={'filters': (8, 16), 'widths': (64,)},
  num_warmup_epochs=1,
  learning_rate=0.01,
)
FAST = Sizes(
  partitions={'alpha=0.5': 'domain_mixture:0.5:250'},
  projection_dim=8,
  dimensions=(4,),
  num_rounds=3,
  num_warmup_rounds=1,
  num_seeds=1,
)


def _fed_dar(sizes: Sizes) -> Sequence[trials.Method]:
  """FedDAR with both aggregations, and without the ridge, as in the paper."""
  projection = {'projection_dim': sizes.projection_dim}
  return [
    trials.Method(_WA, 'fed_dar', _WEIGHTED_AVERAGE),
    trials.Method(_SA, 'fed_dar', projection),
    trials.Method(_SA_WITHOUT_RIDGE, 'fed_dar', {**projection, 'ridge': 0.0}),
  ]


def _baselines(sizes: Sizes) -> Sequence[trials.Method]:
  """All methods of tables 1 and 3, but FedBN."""
  # Trained as after it, and not as a warm-up that all methods have.
  half = {
    'num_warmup_rounds': sizes.num_rounds // 2,
    'num_warmup_epochs': None,
  }
  reweighted = {'reweight_domains': True}
  multi_head = {**reweighted, 'domain_model': 'multi_head'}
  domain_input = {**reweighted, 'domain_model': 'input'}
  return [
    trials.Method('Local', 'local_only'),
    trials.Method('Separate FedAvg', 'separate_fed_avg'),
    trials.Method(_FED_AVG, 'fed_avg', fine_tuned='FedAvg + FT'),
    trials.Method('FedAvg + separate FT', 'separate_fed_avg', half),
    trials.Method(_REWEIGHTED, 'fed_avg', reweighted),
    trials.Method(_MULTI_HEAD, 'fed_avg', multi_head),
    trials.Method('FedAvg, domain as input', 'fed_avg', domain_input),
    trials.Method('FedProx', 'fed_prox', fine_tuned='FedProx + FT'),
    trials.Method('FedMinMax', 'fed_min_max'),
    trials.Method('FedRep', 'fed_rep'),
    trials.Method('FedPer', 'fed_per'),
    trials.Method('LG-FedAvg', 'lg_fed_avg'),
  ]


def _run(
  context: trials.Context,
  compared: Sequence[trials.Method],
  partitions: Mapping[str, str],
) -> paper.Rows:
  """The rows of all methods on all partitions."""
  sizes = context.sizes

  def with_warm_up(method):
    own = {'num_warmup_rounds': sizes.num_warmup_rounds, **method.settings}
    # Rounds of a warm-up are a part of all rounds.
    own['num_rounds'] = sizes.num_rounds - own['num_warmup_rounds']
    return method._replace(settings=own)

  conditions = {
    name: trials.Condition(
      list(map(with_warm_up, compared)), {'partition': partition}
    )
    for name, partition in partitions.items()
  }
  results = context.run(
    conditions,
    cohort_size=sizes.num_clients,
    fine_tune_num_epochs=sizes.num_fine_tuning_epochs,
    fine_tune_learning_rate=sizes.learning_rate * sizes.fine_tuning_rate,
  )
  return map(_row, results)


def _row(result: trials.Result) -> Mapping[str, Any]:
  """A table's row of a method's result.

  Scores are means over the last ten rounds, or the last models' after
  fine-tuning.
  A score is the area under the curve where there is one, else the accuracy; of
  a test set without both classes there is none.
  """
  if result.is_fine_tuned:
    by_metric = result.scores['evaluation']['domains']
  else:
    by_metric = result.run.summary['domains']
  by_metric = by_metric['personal']
  scores = by_metric['auc' if 'auc' in by_metric else 'accuracy']
  if any(scores[name] in (None, _NEVER) for name in _SCORES):
    raise errors.RunError(
      f'No score of {result.method} with seed {result.seed}: no test set has '
      'both classes; another --seed divides the data differently.'
    )
  values = {
    **{name: scores[name] for name in _SCORES},
    **{f'domain/{name}': v for name, v in scores['by_domain'].items()},
  }
  if not result.is_fine_tuned:
    values = {name: value['last_10_mean'] for name, value in values.items()}
  return {**result.columns(), **values}


def measure_domains(context: trials.Context) -> paper.Rows:
  """The scores of FedDAR and all baselines on mixtures of domains."""
  sizes = context.sizes
  compared = [*_baselines(sizes), *_fed_dar(sizes)]
  if context.settings.fast:
    compared = [m for m in compared if m.name in _FAST_METHODS]
  yield from _run(context, compared, sizes.partitions)


def domains_claims(table: paper.Table, sizes: Sizes) -> paper.Claims:
  """Claims on tables 1 and 3: means over partitions, and the worst of each."""
  source = 'FedDAR, tables 1 and 3'
  names = table.distinct('method')
  ours = (_SA, _WA, _SA_WITHOUT_RIDGE)
  others = [name for name in names if name not in ours]

  def score(column, method):
    """The scores by seed and partition."""
    return table.curve(column, 'partition', method=method)

  def mean(column, method):
    return score(column, method).mean(axis=1)

  for own in (_SA, _WA):
    for other in others:
      yield claims.difference(
        f'{own} serves the domains better on average than {other}',
        source,
        mean('mean', own) - mean('mean', other),
      )
    for column, what in (
      ('min', 'the worst domain'),
      ('client_mean', 'the clients'),
    ):
      best = max(others, key=lambda name: mean(column, name).mean())
      yield claims.difference(
        f'{own} serves {what} better than the best baseline, {best}',
        source,
        mean(column, own) - mean(column, best),
      )
  harms = "Clients' fine-tuning harms"
  for better, worse, statement, where in (
    (_SA, _WA, 'FedDAR-SA is better on average than FedDAR-WA', source),
    (_FED_AVG, 'FedAvg + FT', f'{harms} FedAvg', 'FedDAR, table 3'),
    ('FedProx', 'FedProx + FT', f'{harms} FedProx', 'FedDAR, table 3'),
  ):
    if {better, worse} <= set(names):
      yield claims.difference(
        statement, where, mean('mean', better) - mean('mean', worse)
      )
  if len(sizes.partitions) > 1:
    for partition in table.distinct('partition'):
      here = table.where(partition=partition)
      best = max(
        (name for name in names if name not in (_SA, _SA_WITHOUT_RIDGE)),
        key=lambda name: here.values('min', method=name).mean(),
      )
      yield claims.difference(
        f'With {partition} FedDAR-SA serves the worst domain better than the '
        f'best other method, {best}',
        'FedDAR, table 1',
        here.lead('min', _SA, best),
      )
    ranges = [np.ptp(score('mean', name), axis=1) for name in (_SA, _FED_AVG)]
    yield claims.difference(
      'How heterogeneous the clients are matters less to FedDAR-SA than to '
      "FedAvg: the difference of the means' ranges over alpha",
      'FedDAR, table 1',
      ranges[0] - ranges[1],
      below=0,
    )


def draw_domains(table: paper.Table, sizes: Sizes, figure: Figure) -> None:
  """The mean over domains and the worst one, by partition and method."""
  panels.prepare(figure, 11, 7.6, sizes.num_seeds)
  titles = {'mean': 'Mean over domains', 'min': 'Worst domain'}
  for axes, (column, title) in zip(figure.subplots(2, 1), titles.items()):
    plots.bars(
      table.frame,
      ax=axes,
      y=column,
      x='method',
      by='partition',
      y_label='Test accuracy or AUC',
      title=title,
    )


def measure_digits(context: trials.Context) -> paper.Rows:
  """The scores of table 5's methods, and of FedBN."""
  sizes = context.sizes
  normalized = {
    'model_arguments': {**sizes.model_arguments, 'normalization': 'batch'}
  }
  compared = [
    *(method for method in _baselines(sizes) if method.name in _TABLE_5),
    _fed_dar(sizes)[0],
    trials.Method(_NORMALIZED, 'fed_avg', normalized),
    trials.Method(_FED_BN, 'fed_bn', normalized),
  ]
  yield from _run(context, compared, sizes.partitions)


def digits_claims(table: paper.Table, sizes: Sizes) -> paper.Claims:
  """Claims of appendix B.2 on table 5, and table 3's order of FedBN."""
  source = 'FedDAR, table 5'
  for partition in sizes.partitions:
    here = table.where(partition=partition)
    ahead, behind = _WA, _FED_AVG
    if partition == _ALMOST_ONE_DOMAIN:
      ahead, behind = behind, ahead
    yield claims.difference(
      f'With {partition} {ahead} is better on average than {behind}',
      source,
      here.lead('mean', ahead, behind),
    )
    for column, what in (
      ('mean', 'on average'),
      ('min', 'in its worst domain'),
    ):
      yield claims.difference(
        f'With {partition} heads that are trained jointly are worse {what} '
        f'than {_WA}: the difference',
        source,
        here.lead(column, _MULTI_HEAD, _WA),
        below=0,
      )
    for better, words in (
      (_WA, f'{_WA} is better on average than {_FED_BN}, of another network'),
      (_NORMALIZED, f'FedAvg of the same network is better than {_FED_BN}'),
    ):
      yield claims.difference(
        f'With {partition} {words}',
        'FedDAR, table 3',
        here.lead('mean', better, _FED_BN),
      )


def _components(sizes: Sizes) -> Sequence[trials.Method]:
  """The rows of table 2, first those without alternating training."""
  rw = {'reweight_domains': True}
  projection = {'projection_dim': sizes.projection_dim}
  wa = _WEIGHTED_AVERAGE
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
    trials.Method(_NOTHING, 'fed_avg'),
    trials.Method('RW', 'fed_avg', rw),
    trials.Method('RW, DI', 'fed_avg', {**rw, 'domain_model': 'input'}),
    *(trials.Method(name, 'fed_dar', hparams) for name, hparams in own.items()),
  ]


def measure_k(context: trials.Context) -> paper.Rows:
  """FedDAR's scores by aggregation and dimension of the representation."""
  dimensions = {}
  for k in context.sizes.dimensions:
    own = {'projection_dim': k}
    for name, hparams in ((_SA, own), (_WA, {**own, **_WEIGHTED_AVERAGE})):
      method = trials.Method(f'{name}, k={k}', 'fed_dar', hparams)
      dimensions[method.name] = method, {'method': name, 'dimension': k}
  compared = [method for method, _ in dimensions.values()]
  for row in _run(context, compared, {'one': context.sizes.one_partition}):
    yield {**row, **dimensions[row['method']][1]}


def k_claims(table: paper.Table, sizes: Sizes) -> paper.Claims:
  """Claims on figure 2, each aggregation with its best dimension over seeds."""
  best = []
  for method in (_SA, _WA):
    scores = table.curve('mean', 'dimension', method=method)
    best.append(scores[:, np.argmax(scores.mean(axis=0))])
  yield claims.difference(
    'With the best dimension of the representation FedDAR-SA is better than '
    'FedDAR-WA with its own best',
    'FedDAR, figure 2',
    best[0] - best[1],
  )


def measure_ablation(context: trials.Context) -> paper.Rows:
  """The scores with components of FedDAR."""
  compared = _components(context.sizes)
  if context.settings.fast:
    compared = [compared[0], compared[-1]]
  yield from _run(context, compared, {'one': context.sizes.one_partition})


def ablation_claims(table: paper.Table, sizes: Sizes) -> paper.Claims:
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
        table.lead(column, more, less),
      )
  if {'RW', 'RW, MH, WA'} <= present:
    yield claims.difference(
      'Heads alone, without alternating training, do not help: what they add '
      'to re-weighting',
      'FedDAR, table 2',
      table.lead('mean', 'RW, MH, WA', 'RW'),
      below=0.01,
    )


_experiment = functools.partial(paper.Experiment, full=FULL, fast=FAST)
EXPERIMENTS = (
  _experiment(
    name='feddar_domains',
    summary='FedDAR and all baselines by domain, over mixtures of domains',
    paper='FedDAR, tables 1 and 3',
    measure=measure_domains,
    claims=domains_claims,
    draw=draw_domains,
  ),
  _experiment(
    name='feddar_digits',
    summary='FedDAR, FedAvg, joint heads and FedBN on digits of any origin',
    paper='FedDAR, table 5',
    measure=measure_digits,
    claims=digits_claims,
    draw=draw_domains,
    full={'digits5': DIGITS_FULL},
    fast=dataclasses.replace(
      FAST,
      dataset='rotated_digits',
      model='cnn',
      model_arguments={'filters': 2, 'widths': (8,)},
    ),
  ),
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
    name='feddar_ablation',
    summary="FedDAR's components, one after another",
    paper='FedDAR, table 2',
    measure=measure_ablation,
    claims=ablation_claims,
    draw=draw_domains,
  ),
)
