"""FedDAR: domains, components, the representation's dimension, linear theory.

* `feddar_domains` (tables 1 and 4): accuracy by domain of FedDAR with both
  aggregations and of the methods that it is compared with. The clients range
  from almost one domain each to all alike.
* `feddar_many_features` (tables 1 and 2): the same with heads that can overfit.
* `feddar_hospitals` (table 3): the same with hospitals as clients, by AUC.
* `feddar_digits` (table 5): three methods on digits of several origins with a
  CNN, and FedBN and FedAvg with its network, which has batch normalization.
* `feddar_k` (figure 2): scores by the dimension of the representation.
* `feddar_ablation` (table 2): re-weighting (RW), multi-head (MH), domain as
  input (DI), alternating training, projection and aggregation by second order
  (SA) or weighted average (WA), one after another.
* `feddar_linear` (figure 1), `feddar_linear_rate` and
  `feddar_linear_complexity` (theorem A.4): linear regression, see
  `linear.fed_dar` and `linear.complexity`.

Deviations

All studies, both scales: FedDAR-SA solves equation 8 with the library's ridge.
The row "ridge 0" has no ridge, as in the paper. Separate FedAvg has the same
warm-up as all methods. The paper's scores of its worst domain, 4 to 10% while
FedAvg's are near 40%, look like scores of models without a warm-up. Scores are
the mean of the last ten rounds (the last five in the paper on EXAM). Methods
whose clients fine-tune have the score of the last models.

FairFace (`feddar_domains` and `feddar_k` at scale `paper`): needs --data_dir
with the published files, and a GPU. The paper starts from ImageNet weights,
which --set=initial_weights=FILE sets. A client's labels have the distribution
of its domains' labels (uniform in the paper), and images are in [0, 1]. Scores
are by domain on the whole validation set. `feddar_k` has the mixture alpha = 1,
for which the authors chose k.

EXAM (`feddar_hospitals` and `feddar_ablation` at scale `paper`): the data (six
hospitals, chest X-rays of 224x224 with 22 columns of a record, race groups as
domains) are not public. --data_dir has an .npz file of x, record, y, client and
domain. The network is a ResNet-34 joined with the record, with 278 features as
in the paper. It is not the network of the data's authors, whose weights the
paper starts from (--set=initial_weights=FILE). FedMinMax uses the library's
learning rate for the domains' weights. FedAvg + separate FT has one learning
rate and half of the 20 rounds for each part. The paper does not give these
numbers of rounds.

`feddar_digits` at scale `paper`: needs --data_dir with the five files of
digits5. The network comes from FedBN's code (six layers). Momentum, the
origins' prior and the number of epochs are not in the paper. Here there is no
momentum, the origins are equally likely, and there are 5 epochs. Images are not
normalized. FedAvg's figures are illegible in our copy.

Scale `cpu`: the data are the bundled `relabelled_digits`, in which the
distribution of labels given the image depends on the domain, as in the paper's
problem. Five clients have 250 examples each (500 in the paper) and a small
network. `feddar_ablation` and `feddar_k` have fewer examples (60 per client)
and domains of unequal size (40% of the examples in the largest, 5% in the
smallest), so that components matter. `feddar_many_features` has
`relabelled_cifar10`, 1,500 examples per client, and no warm-up.
`feddar_hospitals` has heart_disease instead of EXAM: four hospitals are the
clients, and sex is the domain. It needs --data_dir with the files.
`feddar_digits` needs --data_dir with at least two of the files of digits5. Its
CNN is smaller than the paper's, with two convolutions and two dense layers, on
smaller images (16x16), for 60 rounds instead of 100. Its rate is the paper's,
with a momentum of 0.5. FedBN and one FedAvg have batch normalization, which the
other methods lack. FedBN with an MLP would be FedAvg, so it is left out.

Training at scale `cpu`: all methods have the same learning rate. Except in
`feddar_many_features`, all have the warm-up of ten rounds of FedAvg that the
paper gives each of them on digits (appendix B.2), re-weighted if the method is.
A warm-up round has five epochs, like later rounds (B.3.2 does not say how
many). In `feddar_digits` it has one, as in the paper. Clients fine-tune all
weights for one epoch at half the rate of training, as the paper does with Adam
(appendix B.3.3, which found more to be worse), with the batches and momentum of
training. FedAvg + separate FT has no extra rounds: half of all rounds are
FedAvg, and in the other half each domain's model continues by FedAvg on the
domain's data.

References:
  Zhong, He, Ren, Li, Li: FedDAR: Federated Domain-Aware Representation
  Learning, ICLR 2023, sections 5.1 to 5.3, figures 1 and 2, tables 1 to 5.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence

import numpy as np
from matplotlib.figure import Figure

from tff_pfl import errors, plots
from tff_pfl.studies import claims, measures, trial
from tff_pfl.studies.numbers import Numbers
from tff_pfl.studies.study import Method, Study

from . import panels
from .linear import complexity, theorem
from .linear import fed_dar as linear

_SA, _WA, _WITHOUT_RIDGE = 'FedDAR-SA', 'FedDAR-WA', 'FedDAR-SA, ridge 0'
_FED_AVG, _FINE_TUNED = 'FedAvg', 'FedAvg + FT'
_SEPARATE, _SEPARATE_FT = 'Separate FedAvg', 'FedAvg + separate FT'
_REWEIGHTED, _MULTI_HEAD = 'FedAvg, re-weighted', 'FedAvg + multi-head'
_DOMAIN_INPUT = 'FedAvg, domain as input'
_FED_BN, _NORMALIZED = 'FedBN', 'FedAvg, batch normalization'
_ALL_COMPONENTS, _AVERAGED = 'RW, MH, Alter, Proj, SA', 'RW, MH, Alter, WA'
_PROJECTED = 'RW, MH, Alter, Proj, WA'
_ALPHAS = ('0.1', '0.5', '1', '100')
# Scores over the domains, and the mean over the clients.
_SCORES = ('min', 'mean', 'max', 'client_mean')

_RW, _JOINT = {'reweight_domains': True}, {'alternating': False}
_AVERAGE = {'aggregation': 'weighted_average'}
_AVERAGE_ALL = {**_AVERAGE, 'projection_dim': None}
_METHODS = {
  'Local': Method('local_only'),
  _SEPARATE: Method('separate_fed_avg'),
  _FED_AVG: Method('fed_avg'),
  _FINE_TUNED: Method('fed_avg', fine_tune='all'),
  _SEPARATE_FT: Method('separate_fed_avg', num_warmup_rounds=30, num_rounds=30),
  _REWEIGHTED: Method('fed_avg', **_RW),
  _MULTI_HEAD: Method('fed_avg', **_RW, domain_model='multi_head'),
  _DOMAIN_INPUT: Method('fed_avg', **_RW, domain_model='input'),
  'FedProx': Method('fed_prox'),
  'FedProx + FT': Method('fed_prox', fine_tune='all'),
  'FedMinMax': Method('fed_min_max'),
  'FedRep': Method('fed_rep'),
  'FedPer': Method('fed_per'),
  'LG-FedAvg': Method('lg_fed_avg'),
  _WA: Method('fed_dar', **_AVERAGE_ALL),
  _SA: Method('fed_dar'),
  _WITHOUT_RIDGE: Method('fed_dar', ridge=0.0),
}
# The rows of table 2.
_COMPONENTS = {
  'nothing': Method('fed_avg'),
  'RW': Method('fed_avg', **_RW),
  'RW, DI': Method('fed_avg', **_RW, domain_model='input'),
  'RW, MH, WA': Method('fed_dar', **_JOINT, **_AVERAGE_ALL),
  'RW, MH, Proj, WA': Method('fed_dar', **_JOINT, **_AVERAGE),
  'RW, MH, Proj, SA': Method('fed_dar', **_JOINT),
  'MH, Alter, WA': Method('fed_dar', reweight_domains=False, **_AVERAGE_ALL),
  'RW, DI, Alter': Method('fed_dar', heads='domain_as_input', **_AVERAGE_ALL),
  _AVERAGED: Method('fed_dar', **_AVERAGE_ALL),
  _PROJECTED: Method('fed_dar', **_AVERAGE),
  'RW, MH, Alter, SA': Method('fed_dar', projection_dim=None),
  _ALL_COMPONENTS: Method('fed_dar'),
}
_NOT_IN_TABLE_3 = (_REWEIGHTED, _MULTI_HEAD, _DOMAIN_INPUT, _WITHOUT_RIDGE)
_BATCH = {'normalization': 'batch'}
_RESNET = {**_BATCH, 'torchvision': True}
_SMALL_CNN = {'filters': (8, 16), 'widths': (64,)}
_WITH_NORMALIZATION = {'model_arguments': {**_SMALL_CNN, **_BATCH}}

# Settings of the scales of several studies.
_CLIENTS = dict(num_clients=5, cohort_size=5, num_epochs=5, num_head_epochs=5)
_FAIRFACE = {
  'seeds': range(3),
  'settings': dict(
    **_CLIENTS,
    dataset='fairface',
    dataset_arguments={'image_size': 224},
    model='resnet_34',
    model_arguments=_RESNET,
    augmentation='flip',
    num_warmup_rounds=20,
    num_rounds=80,
    optimizer='adam',
    learning_rate=1e-4,
    learning_rate_schedule='step:40:0.1',
    batch_size=64,
  ),
}
_EXAM = {
  'seeds': [0],
  'num_folds': 5,
  'settings': dict(
    dataset='npz',
    partition='natural',
    num_clients=6,
    cohort_size=6,
    metrics=('auc',),
    model='image_and_record',
    model_arguments={**_RESNET, 'depth': 34},
    num_rounds=20,
    optimizer='adam',
    learning_rate=1e-4,
    batch_size=36,
    num_epochs=1,
    **{'fed_dar.num_head_epochs': 5, 'fed_rep.num_head_epochs': 1},
    projection_dim=16,
    fine_tune_num_epochs=1,
    fine_tune_optimizer='adam',
    fine_tune_learning_rate=5e-5,
    fine_tune_batch_size=36,
  ),
}
_CPU_ROUNDS = dict(
  num_rounds=50,
  momentum=0.5,
  fine_tune_num_epochs=1,
  fine_tune_momentum=0.5,
  fine_tune_batch_size=32,
  rounds_per_evaluation=10**6,
)
_CPU = dict(
  **_CLIENTS,
  **_CPU_ROUNDS,
  dataset='relabelled_digits',
  partition='domain_mixture:0.5:60:0.4/0.25/0.2/0.1/0.05',
  model='mlp',
  model_arguments={'widths': (128, 64)},
  num_warmup_rounds=10,
  batch_size=32,
  learning_rate=0.05,
  fine_tune_learning_rate=0.025,
  projection_dim=16,
)
_SMALL = dict(
  dataset='relabelled_digits',
  partition='domain_mixture:0.5:60',
  num_warmup_rounds=1,
)
_SMALL_NORMALIZED = dict(
  _SMALL,
  model='cnn',
  model_arguments={**_BATCH, 'filters': 2, 'widths': (4,)},
)
_SMALL_LINEAR = dict(sample_counts=(10,), dimension=8, large_dimension=16)


def _mixtures(num_examples, prior='', label='', **settings):
  """Conditions with clients that mix domains, from heterogeneous to alike."""
  return {
    f'{label}alpha={alpha}': {
      'partition': f'domain_mixture:{alpha}:{num_examples}{prior}',
      **settings,
    }
    for alpha in _ALPHAS
  }


def _rows(*names):
  return {name: _METHODS[name] for name in names}


def _by_alpha(method, *values):
  """Published figures of a method, in percent."""
  return {(method, f'alpha={a}'): v for a, v in zip(_ALPHAS, values)}


def domain_scores(
  context: measures.Context, metrics: Sequence[str] = ('auc', 'accuracy')
) -> measures.Rows:
  """Scores over domains and clients, by the first metric that exists.

  They are means over the last ten rounds, or for fine-tuned models the scores
  of the last models.
  """
  for result in context.run():
    is_own = result.variant == trial.OWN_VARIANT
    scored = result.run.summary if is_own else result.scores['evaluation']
    by_metric = scored['domains']['personal']
    scores = by_metric[next(name for name in metrics if name in by_metric)]
    values = {name: scores[name] for name in _SCORES}
    for name, value in scores['by_domain'].items():
      values[f'domain/{name}'] = value
    if is_own:
      values = {name: value['last_10_mean'] for name, value in values.items()}
    if None in (values[name] for name in _SCORES):
      # An AUC needs both classes.
      raise errors.RunError(
        f'No score of {result.method} with seed {result.seed}: no test set has '
        'both classes; other --seeds divide the data differently.'
      )
    yield {**result.columns(), **values}


def _lead(numbers, statement, column, better, worse, **options):
  """A claim about the difference of two methods, if there are both."""
  if {better, worse} <= {*numbers.distinct('method')}:
    lead = numbers.lead(column, better, worse)
    yield claims.difference(statement, lead, **options)


def best_by_seed(scores: np.ndarray) -> np.ndarray:
  """For each seed the score of the choice that is best with the other seeds.

  Args:
    scores: `[num_seeds, num_choices]`.
  """
  # A choice that diverged with a seed is none.
  ranked = np.where(np.isfinite(scores), scores, -np.inf)
  if len(scores) > 1:
    seeds = range(len(scores))
    ranked = [np.delete(ranked, seed, axis=0).mean(axis=0) for seed in seeds]
  return scores[np.arange(len(scores)), np.argmax(ranked, axis=1)]


def _lead_over_best(numbers, column, name, others):
  """A method's lead over the best other method, which other seeds choose."""
  scores = [numbers.values(column, method=other) for other in others]
  best = best_by_seed(np.stack(scores, axis=1))
  return numbers.values(column, method=name) - best


def domains_claims(numbers: Numbers, study: Study) -> Iterator[claims.Claim]:
  """Claims about tables 1, 3 and 4, for each kind of label."""
  labels = numbers.frame['condition'].str.extract(r'^(\w+: )?', expand=False)
  for label, frame in numbers.frame.groupby(labels.fillna(''), sort=False):
    for claim in _label_claims(label, Numbers(frame)):
      yield claim._replace(statement=label + claim.statement)


def _label_claims(label, numbers):
  """Claims about means over conditions, and about each worst domain."""
  names, conditions = map(numbers.distinct, ('method', 'condition'))
  rivals = [name for name in names if name not in (_SA, _WITHOUT_RIDGE)]
  baselines = [name for name in rivals if name != _WA]
  by_run = numbers.frame.groupby(['method', 'seed'], sort=False)
  means = Numbers(by_run.mean(numeric_only=True).reset_index())
  served = {'min': 'the worst domain', 'client_mean': 'the clients'}
  for own in (_SA, _WA):
    for other in baselines:
      words = f'{own} serves the domains better on average than {other}'
      yield from _lead(means, words, 'mean', own, other)
    for column, what in served.items():
      if own in names and baselines:
        yield claims.difference(
          f'{own} serves {what} better than the best baseline, which for each '
          'seed the other seeds choose',
          _lead_over_best(means, column, own, baselines),
        )
  harms, table_3 = "Clients' fine-tuning harms", 'FedDAR, table 3'
  for place, words, better, worse in (
    ('', f'{_SA} is better on average than {_WA}', _SA, _WA),
    (table_3, f'{harms} FedAvg', _FED_AVG, _FINE_TUNED),
    (table_3, f'{harms} FedProx', 'FedProx', 'FedProx + FT'),
  ):
    yield from _lead(means, words, 'mean', better, worse, source=place)
  if len(conditions) == 1:
    return
  for condition in conditions:
    here = numbers.where(condition=condition)
    if _SA in names and rivals:
      yield claims.difference(
        f'With {condition.removeprefix(label)} {_SA} serves the worst domain '
        'better than the best other method, which for each seed the other '
        'seeds choose',
        _lead_over_best(here, 'min', _SA, rivals),
        source='FedDAR, table 1',
      )
  if {_SA, _FED_AVG} <= {*names}:
    sa, fed_avg = (
      np.ptp(numbers.curve('mean', 'condition', method=name), axis=1)
      for name in (_SA, _FED_AVG)
    )
    yield claims.difference(
      'How heterogeneous the clients are matters less to FedDAR-SA than to '
      "FedAvg: the difference of the means' ranges over alpha",
      sa - fed_avg,
      source='FedDAR, table 1',
      below=0,
    )


def digits_claims(numbers: Numbers, study: Study) -> Iterator[claims.Claim]:
  """Claims of appendix B.2 about table 5, and FedBN's place in table 3."""
  for condition in numbers.distinct('condition'):
    claim = functools.partial(_lead, numbers.where(condition=condition))
    ahead, behind = _WA, _FED_AVG
    if condition == f'alpha={_ALPHAS[0]}':
      # Almost one domain per client.
      ahead, behind = behind, ahead
    words = f'With {condition} {ahead} is better on average than {behind}'
    yield from claim(words, 'mean', ahead, behind)
    for column, what in (
      ('mean', 'on average'),
      ('min', 'in its worst domain'),
    ):
      words = (
        f'With {condition} heads that are trained jointly are worse {what} '
        f'than {_WA}: the difference'
      )
      where = (column, _MULTI_HEAD, _WA)
      yield from claim(words, *where, below=0)
    for better, what in (
      (_WA, f'{_WA} is better on average than {_FED_BN}, of another network'),
      (_NORMALIZED, f'FedAvg of the same network is better than {_FED_BN}'),
    ):
      words, where = f'With {condition} {what}', ('mean', better, _FED_BN)
      ours = {'source': 'FedDAR, table 3', 'is_ours': True}
      yield from claim(words, *where, **ours)


def k_claims(numbers: Numbers, study: Study) -> Iterator[claims.Claim]:
  """The claim about figure 2, with the best dimension of each method."""
  if {_SA, _WA} <= {*numbers.distinct('method')}:
    sa, wa = (
      best_by_seed(numbers.curve('mean', 'condition', method=method))
      for method in (_SA, _WA)
    )
    yield claims.difference(
      'With the best dimension of the representation FedDAR-SA is better than '
      'FedDAR-WA with its own best, which for each seed the other seeds choose',
      sa - wa,
    )


def ablation_claims(numbers: Numbers, study: Study) -> Iterator[claims.Claim]:
  """Claims of section 5.3 about table 2."""
  full, nothing = _ALL_COMPONENTS, 'nothing'
  claim = functools.partial(_lead, numbers)
  for statement, column, more, less in (
    ('All components serve the domains better', 'mean', full, nothing),
    ('All components serve the worst domain better', 'min', full, nothing),
    ("Re-weighting helps FedAvg's worst domain", 'min', 'RW', nothing),
    ("It helps FedDAR's worst domain", 'min', _AVERAGED, 'MH, Alter, WA'),
    ('Heads beat the domain as input', 'mean', 'RW, MH, WA', 'RW, DI'),
    ('Alternating training helps heads', 'mean', _AVERAGED, 'RW, MH, WA'),
    ('It does not fit the domain as input', 'mean', 'RW, DI', 'RW, DI, Alter'),
    ('With it heads beat that, too', 'mean', _AVERAGED, 'RW, DI, Alter'),
    ('Second order and projection beat averages', 'mean', full, _AVERAGED),
    ('With projection second order beats averages', 'mean', full, _PROJECTED),
    ('Projection helps second order', 'mean', full, 'RW, MH, Alter, SA'),
  ):
    words = f'{statement}: ({more}) against ({less})'
    yield from claim(words, column, more, less)
  words = (
    'Heads alone, without alternating training, do not help: what they add to '
    're-weighting'
  )
  yield from claim(words, 'mean', 'RW, MH, WA', 'RW', below=0.01)


def draw_domains(numbers: Numbers, study: Study, figure: Figure) -> None:
  """Draws the mean over domains and the worst one, by condition and method."""
  panels.prepare(figure, 11, 7.6, len(study.seeds))
  titles = {'mean': 'Mean over domains', 'min': 'Worst domain'}
  for axes, (column, title) in zip(figure.subplots(2, 1), titles.items()):
    plots.bars(
      numbers.frame,
      ax=axes,
      y=column,
      x='method',
      by='condition',
      y_label='Test accuracy or AUC',
      title=title,
    )


_study = functools.partial(
  Study,
  seeds=range(5),
  measure=domain_scores,
  metric='mean',
  draw=draw_domains,
  deviations=__doc__,
)
STUDIES = (
  _study(
    name='feddar_domains',
    summary='FedDAR and all baselines by domain, over mixtures of domains',
    source='FedDAR, tables 1 and 3',
    methods=_METHODS,
    conditions={
      **_mixtures(500, projection_dim=8),
      **_mixtures(
        500,
        label='gender: ',
        projection_dim=2,
        dataset_arguments={'image_size': 224, 'label': 'gender'},
      ),
    },
    # Accuracy even for gender, which has two classes and therefore an AUC.
    measure=functools.partial(domain_scores, metrics=('accuracy',)),
    claims=[domains_claims],
    scales={
      'paper': {
        **_FAIRFACE,
        'source': 'FedDAR, tables 1 and 4',
        'methods': _rows(
          _SEPARATE, _FED_AVG, _REWEIGHTED, _MULTI_HEAD, _WA, _SA
        ),
        'published': {
          **_by_alpha(_SA, 42.4, 43.4, 43.7, 43.6),
          **_by_alpha(_WA, 40.5, 42.9, 42.7, 42.5),
          **_by_alpha(_MULTI_HEAD, 39.8, 40.0, 40.3, 39.8),
          **_by_alpha(_REWEIGHTED, 39.9, 41.6, 40.9, 40.5),
          **_by_alpha(_FED_AVG, 40.0, 41.6, 41.1, 40.8),
          **_by_alpha(_SEPARATE, 19.3, 23.5, 23.4, 22.9),
        },
      },
      'cpu': {'settings': _CPU, 'conditions': _mixtures(250)},
      'small': _SMALL,
    },
  ),
  _study(
    name='feddar_many_features',
    summary='FedDAR where heads of many features can overfit',
    source='FedDAR, tables 1 and 2',
    settings=dict(
      _CPU,
      dataset='relabelled_cifar10',
      dataset_arguments={'normalize': True, 'test_fraction': 0.8},
      partition='domain_mixture:100:1500',
      augmentation='crop:4+flip',
      model='cnn',
      model_arguments={'filters': (8, 16), 'widths': (512,)},
      learning_rate=0.02,
      fine_tune_learning_rate=0.01,
      num_warmup_rounds=0,
      num_rounds=60,
    ),
    methods=_rows(_SEPARATE, _FED_AVG, _MULTI_HEAD, _WA, _SA),
    seeds=range(10),
    claims=[domains_claims],
    scales={'small': dict(_SMALL, dataset_arguments={}, augmentation='crop:1')},
  ),
  _study(
    name='feddar_hospitals',
    summary='FedDAR and all baselines by domain, on the data of hospitals',
    source='FedDAR, table 3',
    methods={
      **_METHODS,
      _SEPARATE_FT: Method(
        'separate_fed_avg', num_warmup_rounds=10, num_rounds=10
      ),
      _FED_BN: Method('fed_bn'),
    },
    conditions={'hospitals': {}},
    claims=[domains_claims],
    scales={
      'paper': {
        **_EXAM,
        # The other methods are rows of tables 1 and 2.
        'methods': [
          *(name for name in _METHODS if name not in _NOT_IN_TABLE_3),
          _FED_BN,
        ],
      },
      'cpu': {
        'settings': dict(
          _CPU,
          dataset='heart_disease',
          partition='natural',
          num_clients=4,
          cohort_size=4,
          model_arguments={'widths': (32, 16)},
          learning_rate=0.02,
          fine_tune_learning_rate=0.01,
          projection_dim=4,
        ),
        'methods': _METHODS,
      },
      'small': _SMALL_NORMALIZED,
    },
  ),
  _study(
    name='feddar_digits',
    summary='FedDAR, FedAvg, joint heads and FedBN on digits of any origin',
    source='FedDAR, table 5',
    settings=dict(
      **_CLIENTS,
      dataset='digits5',
      num_warmup_rounds=10,
      num_warmup_epochs=1,
      learning_rate=0.01,
      batch_size=32,
      model='cnn',
    ),
    methods={
      **_rows(_FED_AVG, _FINE_TUNED, _MULTI_HEAD, _WA),
      _NORMALIZED: Method('fed_avg', **_WITH_NORMALIZATION),
      _FED_BN: Method('fed_bn', **_WITH_NORMALIZATION),
    },
    conditions=_mixtures(500, ':uniform'),
    claims=[digits_claims],
    scales={
      'paper': {
        'seeds': range(3),
        'settings': dict(
          momentum=0.0,
          num_rounds=90,
          model_arguments={
            **_BATCH,
            'normalize_dense': True,
            'filters': (64, 64, 128),
            'num_poolings': 2,
            'padding': 'same',
            'widths': (2048, 512),
          },
        ),
        'methods': _rows(_FED_AVG, _MULTI_HEAD, _WA),
        'published': {
          **_by_alpha(_WA, 79.8, 83.1, 86.3, 86.3),
          **_by_alpha(_MULTI_HEAD, 55.9, 68.3, 74.6, 74.5),
        },
      },
      'cpu': {
        'settings': dict(
          **_CPU_ROUNDS,
          dataset_arguments={'image_size': 16, 'max_train_per_domain': 3000},
          model_arguments=_SMALL_CNN,
          fine_tune_learning_rate=0.005,
        ),
      },
      'small': _SMALL_NORMALIZED,
    },
  ),
  _study(
    name='feddar_k',
    summary='FedDAR against the dimension of the representation',
    source='FedDAR, figure 2',
    methods={_SA: Method('fed_dar'), _WA: Method('fed_dar', **_AVERAGE)},
    conditions={k: {'projection_dim': k} for k in (2, 4, 8, 16, 32, 64)},
    claims=[k_claims],
    draw=panels.curves(
      'mean',
      over='condition',
      x_label='Dimension of the representation (k)',
      y_label='Mean over domains of test accuracy or AUC',
      log_x=True,
    ),
    scales={
      'paper': {
        **_FAIRFACE,
        'partition': 'domain_mixture:1:500',
        'conditions': [4, 8, 16, 32, 64],
      },
      'cpu': {'settings': _CPU, 'conditions': [2, 4, 8, 16, 32]},
      'small': _SMALL,
    },
  ),
  _study(
    name='feddar_ablation',
    summary="FedDAR's components, one after another",
    source='FedDAR, table 2',
    settings={'projection_dim': 16},
    methods=_COMPONENTS,
    claims=[ablation_claims],
    scales={
      'paper': {
        **_EXAM,
        'published': {
          ('nothing', ''): 86.1,
          ('RW', ''): 88.1,
          ('RW, DI', ''): 88.0,
          ('RW, DI, Alter', ''): 86.7,
          (_AVERAGED, ''): 91.2,
          (_PROJECTED, ''): 91.8,
          (_ALL_COMPONENTS, ''): 91.9,
        },
      },
      'cpu': {'settings': _CPU},
      'small': _SMALL,
    },
  ),
  Study(
    name='feddar_linear',
    summary='Heads of domains by second-order aggregation find the ground '
    'truth; weighted averages and baselines do not',
    source='FedDAR, figure 1',
    parameters=linear.Parameters(),
    seeds=range(5),
    measure=linear.measure_errors,
    claims=[linear.check_claims],
    draw=linear.draw_errors,
    scales={'small': dict(**_SMALL_LINEAR, num_clients=20, num_rounds=150)},
    deviations=linear.__doc__,
  ),
  Study(
    name='feddar_linear_rate',
    summary="FedDAR-SA converges geometrically, within its theorem's bound",
    source='FedDAR, theorem A.4',
    parameters=linear.Parameters(
      sample_counts=(5, 10, 20),
      prior=(0.2,) * 5,
      noise_std=0.0,
      num_rounds=2500,
      learning_rate=0.2,
    ),
    seeds=range(5),
    measure=linear.measure_rate,
    claims=[linear.rate_claims],
    draw=theorem.curves(
      panel='num_samples', title='{} samples of a client'.format
    ),
    scales={'small': dict(**_SMALL_LINEAR, num_clients=40, num_rounds=40)},
    deviations=linear.__doc__,
  ),
  complexity.make_study(
    'FedDAR-SA',
    name='feddar_linear_complexity',
    summary='Samples that a client needs by d, n and k',
    source='FedDAR, theorem A.4',
  ),
)
