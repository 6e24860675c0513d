"""FedFac under the protocol of its authors' code, which differs from the paper.

* `fedfac_equal_clients` (tables 2 and 8): FedAvg, FedPer, FedRep and forms of
  FedFac on clients of equal size: under which conditions is FedFac ahead?
* `fedfac_large_budget`: the same for five methods, with five times the local
  epochs; `fedfac_long_training` for four, with five times the rounds, too.
* `fedfac_equal_clients_resnet`: all but FedAvg with a small ResNet-18 and fewer
  rounds.
* `fedfac_pretrained` (tables 2 and 8): from random weights, and from a network
  that was trained on other classes before, what do the methods gain by that?
* `fedfac_statistics` (tables 2 and 3): do moving statistics of batch
  normalization that stay on the clients explain FedAvg's accuracies on clients
  that were trained and on new ones? `fedfac_statistics_resnet`: the same with a
  small ResNet-18 and fewer rounds.

In the authors' code (ffair/FedFac on GitHub, at 76101b38) clients have equal
numbers of examples, with classes drawn for each client from a Dirichlet
distribution of one parameter pi for each class (here `client_dirichlet:` ten
times pi, which is the sum); the statistics of batch normalization are never
averaged, in FedAvg neither, and each client is scored with its own; at pi = 0.1
tau is infinite on the two deepest divided layers, so that all of their units
are personal; factors are those of weights.

Its networks start from ImageNet weights. In `fedfac_pretrained` a network is
trained centrally on the first half of the classes and clients have the others;
its body is taken, and the head starts at random.

Deviations from that: networks are a CNN of two convolutions, or a ResNet-18 of
8 to 64 channels in place of 64 to 512, and start at random but for the above;
whole layers are divided, biases included; the statistics of batch normalization
are averaged (`fedfac_statistics` has both kinds, which forget as fast as the
authors', by 0.9 a step); rounds and epochs are fewer. The test set is 17% of
each client's examples. There is no weight decay, factors are found by the
paper's iteration, tau is not the 5% quantile for pi = 1. For the time that they
take, the 200 rounds of five epochs and the ResNet are of pi = 0.1 only, the
former without factors of updates, the latter with one budget and from random
weights.

A new client of `fedfac_statistics` has either the initial statistics or those
of its own examples: the code does not tell which.

References:
  Wang, Tang, Li: Factor-Assisted Federated Learning for Personalized
  Optimization with Heterogeneous Data, arXiv:2312.04281, section 5.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from binaries.papers import fed_fac
from binaries.papers.engine import claims, panels, paper, trials

_FED_AVG, _FED_PER, _FED_REP = 'FedAvg', 'FedPer', 'FedRep'
_UPDATES, _WEIGHTS = 'FedFac, updates', 'FedFac, weights'
_RANDOM_SPLITS = tuple(split.name for split in fed_fac.RANDOM_SPLITS)
_ALL_PERSONAL = 'FedFac, all personal'
_EVERY_METHOD = (
  _FED_AVG,
  _FED_PER,
  _FED_REP,
  _UPDATES,
  _WEIGHTS,
  *_RANDOM_SPLITS,
  _ALL_PERSONAL,
)
_FORMS = (_UPDATES, _WEIGHTS, _ALL_PERSONAL)
# The share of units on their side of a partition that no longer changes.
_SETTLED = 0.95
_AVERAGED, _LOCAL = 'averaged statistics', 'local statistics'
_TRAINED, _NEW = 'trained', 'new'
_NEW_INITIAL = 'new, initial statistics'
# What counts as no difference between accuracies.
_ALIKE = 0.05
_AT_RANDOM, _PRETRAINED = 'random start', 'pre-trained start'


@dataclasses.dataclass(frozen=True)
class Sizes(fed_fac.TrainingSizes):
  """Sizes and hyperparameters.

  Attributes:
    partitions: Partitions of the data by pi, most heterogeneous first.
    layers: The layers that FedFac divides, from the first on; one by factor
      analysis, the last, and all where all units are personal.
    threshold: tau.
    methods: Names of those that are compared.
  """

  dataset_arguments: Mapping[str, Any] = dataclasses.field(
    default_factory=lambda: {'test_fraction': 0.17}
  )
  partitions: Mapping[str, str] = dataclasses.field(
    default_factory=lambda: {
      'pi = 0.1': 'client_dirichlet:1',
      'pi = 1': 'client_dirichlet:10',
    }
  )
  layers: Sequence[str] = ('conv_2', 'dense_1')
  threshold: float = 0.75
  methods: Sequence[str] = _EVERY_METHOD

  @property
  def thresholds(self) -> Mapping[str, float]:
    """Tau by partition."""
    return dict.fromkeys(self.partitions, self.threshold)


@dataclasses.dataclass(frozen=True)
class PretrainedSizes(Sizes):
  """Sizes and hyperparameters with training before, on other classes.

  Attributes:
    partitions: Partitions by pi, of half as many classes.
    classes_before: The classes of the training before.
    num_rounds_before: Its rounds; the optimizer starts anew in each.
    num_epochs_before: Its epochs in a round.
  """

  dataset_arguments: Mapping[str, Any] = dataclasses.field(
    default_factory=lambda: {'test_fraction': 0.17, 'classes': (5, 6, 7, 8, 9)}
  )
  partitions: Mapping[str, str] = dataclasses.field(
    default_factory=lambda: {
      'pi = 0.1': 'client_dirichlet:0.5',
      'pi = 1': 'client_dirichlet:5',
    }
  )
  classes_before: Sequence[int] = (0, 1, 2, 3, 4)
  num_rounds_before: int = 4
  num_epochs_before: int = 5


# Of the two, for what takes long.
_MOST_DIFFERENT = {'pi = 0.1': 'client_dirichlet:1'}
EQUAL_CLIENTS_FULL = Sizes()
LARGE_BUDGET_FULL = Sizes(
  num_epochs=5, methods=(_FED_AVG, _FED_PER, _FED_REP, _UPDATES, _WEIGHTS)
)
LONG_TRAINING_FULL = Sizes(
  partitions=_MOST_DIFFERENT,
  num_rounds=200,
  num_epochs=5,
  methods=(_FED_AVG, _FED_PER, _FED_REP, _WEIGHTS),
)
PRETRAINED_FULL = PretrainedSizes()
# The authors' network, an eighth as wide.
RESNET = {
  'model': 'resnet_18',
  'model_arguments': {'base_filters': 8, 'normalization': 'batch'},
  'layers': ('conv_16', 'conv_17'),
}
SMALL_RESNET = {
  **RESNET,
  'model_arguments': {'base_filters': 1, 'normalization': 'batch'},
}
EQUAL_CLIENTS_RESNET_FULL = dataclasses.replace(
  EQUAL_CLIENTS_FULL,
  **RESNET,
  partitions=_MOST_DIFFERENT,
  num_rounds=20,
  methods=_EVERY_METHOD[1:],
)
EQUAL_CLIENTS_FAST = Sizes(**fed_fac.SMALL, partitions=_MOST_DIFFERENT)
EQUAL_CLIENTS_RESNET_FAST = dataclasses.replace(
  EQUAL_CLIENTS_FAST, **SMALL_RESNET, methods=(_UPDATES, *_RANDOM_SPLITS)
)
PRETRAINED_FAST = PretrainedSizes(
  **fed_fac.SMALL,
  partitions={'pi = 0.1': 'client_dirichlet:0.5'},
  num_rounds_before=1,
  num_epochs_before=1,
)
STATISTICS_FULL = Sizes(
  num_new_clients=30,
  model_arguments={
    'filters': (8, 16),
    'widths': (64,),
    'normalization': 'batch',
  },
)
STATISTICS_RESNET_FULL = dataclasses.replace(
  STATISTICS_FULL, **RESNET, num_rounds=30
)
STATISTICS_FAST = dataclasses.replace(
  STATISTICS_FULL,
  **{
    **fed_fac.SMALL,
    'model_arguments': {
      **fed_fac.SMALL['model_arguments'],
      'normalization': 'batch',
    },
  },
  num_new_clients=3,
)
STATISTICS_RESNET_FAST = dataclasses.replace(STATISTICS_FAST, **SMALL_RESNET)


def _compared(sizes: Sizes) -> Sequence[trials.Method]:
  every_layer = ','.join(sizes.layers)
  every = (
    trials.Method(_FED_AVG, 'fed_avg'),
    trials.Method(_FED_PER, 'fed_per'),
    trials.Method(_FED_REP, 'fed_rep'),
    trials.Method(_UPDATES, 'fed_fac', {'analysed': 'updates'}),
    trials.Method(_WEIGHTS, 'fed_fac', {'analysed': 'weights'}),
    *fed_fac.RANDOM_SPLITS,
    trials.Method(
      _ALL_PERSONAL,
      'fed_fac',
      {'layers': every_layer, 'threshold': float('inf')},
    ),
  )
  return [m for m in every if m.name in sizes.methods]


def measure_equal_clients(context: trials.Context) -> paper.Rows:
  """Accuracies, and the stability of FedFac's partition."""
  for result in fed_fac.run(context, _compared(context.sizes)):
    unchanged = result.run.history[-1].get('unchanged_elements')
    yield {
      **result.columns(),
      'accuracy': result.accuracy(),
      'unchanged_units': unchanged and np.mean(list(unchanged.values())),
    }


def equal_clients_claims(table: paper.Table, sizes: Sizes) -> paper.Claims:
  """Claims on the order in tables 2 and 8, and on the authors' scripts."""
  forms = [name for name in _FORMS if name in sizes.methods]
  others = [name for name in sizes.methods if name not in forms]
  for partition, form in itertools.product(sizes.partitions, forms):
    for worse in others:
      yield claims.difference(
        f'{partition}: {form}, is more accurate than {worse}',
        'FedFac, table 8' if worse in _RANDOM_SPLITS else 'FedFac, table 2',
        table.lead('accuracy', form, worse, partition=partition),
      )
    if form != _ALL_PERSONAL:
      yield claims.difference(
        f'{partition}: {form}: nearly all units keep their side in the last '
        'round: their share',
        'FedFac, figure 7',
        table.values('unchanged_units', method=form, partition=partition),
        above=_SETTLED,
      )
  for partition in sizes.partitions:
    for other, words in (
      (_ALL_PERSONAL, 'with all units of the last hidden layers personal'),
      (_WEIGHTS, 'by factor analysis of weights'),
    ):
      if not {other, _UPDATES} <= set(sizes.methods):
        continue
      yield claims.difference(
        f'{partition}: {words} it is at most 0.01 less accurate than by factor '
        'analysis of updates',
        "the authors' code",
        table.lead('accuracy', other, _UPDATES, partition=partition),
        above=-0.01,
      )


def measure_pretrained(context: trials.Context) -> paper.Rows:
  """Accuracies from a random start and from a pre-trained one.

  `accuracy_before` is the pre-trained network's, on its own classes.
  """
  sizes = context.sizes
  # Central training on the classes that the clients do not have.
  others = {**sizes.dataset_arguments, 'classes': sizes.classes_before}
  central = trials.Condition(
    [trials.Method('before', 'fed_avg')],
    hparams={'num_epochs': sizes.num_epochs_before},
  )
  before = {
    result.seed: result.run
    for result in context.run(
      {'': central},
      dataset_arguments=others,
      partition='iid',
      num_clients=1,
      cohort_size=1,
      num_rounds=sizes.num_rounds_before,
      num_final_evaluations=1,
    )
  }
  pretrained = {
    'initial_run': lambda seed: before[seed].directory,
    'initial_run_part': 'body',
  }
  for start, config in ((_AT_RANDOM, {}), (_PRETRAINED, pretrained)):
    for result in fed_fac.run(context, _compared(sizes), label=start, **config):
      yield {
        **result.columns(),
        'start': start,
        'accuracy': result.accuracy(),
        'accuracy_before': before[result.seed].summary['accuracy'][
          'last_10_mean'
        ],
      }


def pretrained_claims(table: paper.Table, sizes: Sizes) -> paper.Claims:
  """Claims on the order in tables 2 and 8, from pre-trained networks."""

  def gain(method, partition):
    return table.lead(
      'accuracy',
      _PRETRAINED,
      _AT_RANDOM,
      by='start',
      method=method,
      partition=partition,
    )

  for partition, form in itertools.product(sizes.partitions, _FORMS):
    for worse in (_FED_PER, _FED_REP, *_RANDOM_SPLITS):
      yield claims.difference(
        f'{partition}: from a pre-trained start {form}, is more accurate than '
        f'{worse}',
        'FedFac, table 8' if worse in _RANDOM_SPLITS else 'FedFac, table 2',
        table.lead(
          'accuracy', form, worse, partition=partition, start=_PRETRAINED
        ),
      )
    yield claims.difference(
      f'{partition}: {form}, gains more from the pre-trained start than FedPer '
      'does',
      "the authors' code",
      gain(form, partition) - gain(_FED_PER, partition),
    )


def measure_statistics(context: trials.Context) -> paper.Rows:
  """FedAvg's accuracy on trained and on new clients."""
  compared = (
    trials.Method(_AVERAGED, 'fed_avg'),
    trials.Method(_LOCAL, 'fed_avg', config={'statistics': 'local'}),
  )
  for result in fed_fac.run(
    context, compared, num_new_clients=context.sizes.num_new_clients
  ):
    # Before they are fitted they have what the server has: the statistics of
    # the initial network.
    accuracies = {_TRAINED: result.accuracy()}
    for clients, when in ((_NEW, 'after'), (_NEW_INITIAL, 'before')):
      accuracies[clients] = np.mean(
        [row[when]['accuracy'] for row in result.scores['new_clients']]
      )
    for clients, accuracy in accuracies.items():
      yield {**result.columns(), 'clients': clients, 'accuracy': accuracy}


def statistics_claims(table: paper.Table, sizes: Sizes) -> paper.Claims:
  """Tables 2 and 3: 80% on trained, 40% on new clients; 68% on both."""
  source = 'FedFac, tables 2 and 3'
  first, *_, last = sizes.partitions

  def gain(partition):
    """The gain of trained clients by local statistics."""
    return table.lead(
      'accuracy', _LOCAL, _AVERAGED, partition=partition, clients=_TRAINED
    )

  def gap(method, partition, new_clients):
    trained, new = (
      table.values(
        'accuracy', method=method, partition=partition, clients=clients
      )
      for clients in (_TRAINED, new_clients)
    )
    return trained - new

  yield claims.difference(
    f'{first}: FedAvg is more accurate on trained clients with local '
    'statistics than with averaged ones',
    source,
    gain(first),
  )
  yield claims.difference(
    f'{first}: with local statistics it is less accurate on new clients that '
    'have the initial statistics than on trained ones, by 0.2 or more',
    source,
    gap(_LOCAL, first, _NEW_INITIAL),
    above=0.2,
  )
  for statement, differences in (
    (
      f'{last}: on trained clients it is alike with both: the difference',
      gain(last),
    ),
    (
      f'{first}: with averaged statistics it is alike on both: the difference',
      gap(_AVERAGED, first, _NEW),
    ),
    (
      f'{last}: with local statistics it is alike on both, as the paper has '
      'it: the difference, new clients with the initial statistics',
      gap(_LOCAL, last, _NEW_INITIAL),
    ),
    (
      f'{last}: the same, new clients with the statistics of their examples',
      gap(_LOCAL, last, _NEW),
    ),
  ):
    yield claims.difference(
      statement,
      source,
      # Whichever way it is.
      differences * np.sign(differences.mean()),
      below=_ALIKE,
    )


_equal_clients = functools.partial(
  paper.Experiment,
  paper='FedFac, tables 2 and 8',
  measure=measure_equal_clients,
  claims=equal_clients_claims,
  draw=panels.accuracy_bars(by='partition', width=12),
)
_statistics = functools.partial(
  paper.Experiment,
  paper='FedFac, tables 2 and 3',
  measure=measure_statistics,
  claims=statistics_claims,
  draw=panels.accuracy_bars(group='clients', panel='partition', sharey=True),
)
EXPERIMENTS = (
  _statistics(
    name='fedfac_statistics',
    summary='FedAvg with statistics of batch normalization of its own on each '
    'client, and with averaged ones',
    full={'cifar10': STATISTICS_FULL},
    fast=STATISTICS_FAST,
  ),
  _statistics(
    name='fedfac_statistics_resnet',
    summary='The same with a ResNet',
    full={'cifar10': STATISTICS_RESNET_FULL},
    fast=STATISTICS_RESNET_FAST,
  ),
  _equal_clients(
    name='fedfac_equal_clients',
    summary='When FedFac is ahead of others on clients of equal size',
    full={'cifar10': EQUAL_CLIENTS_FULL},
    fast=EQUAL_CLIENTS_FAST,
  ),
  _equal_clients(
    name='fedfac_equal_clients_resnet',
    summary='All but FedAvg with a ResNet',
    full={'cifar10': EQUAL_CLIENTS_RESNET_FULL},
    fast=EQUAL_CLIENTS_RESNET_FAST,
  ),
  _equal_clients(
    name='fedfac_large_budget',
    summary='Five of the methods with five times the local epochs',
    full={'cifar10': LARGE_BUDGET_FULL},
    fast=dataclasses.replace(EQUAL_CLIENTS_FAST, num_epochs=5),
  ),
  _equal_clients(
    name='fedfac_long_training',
    summary='Four of the methods with five times the rounds, too',
    full={'cifar10': LONG_TRAINING_FULL},
    fast=dataclasses.replace(
      EQUAL_CLIENTS_FAST, methods=LONG_TRAINING_FULL.methods
    ),
  ),
  paper.Experiment(
    name='fedfac_pretrained',
    summary='The same methods from a network that was trained on other classes',
    paper='FedFac, tables 2 and 8',
    measure=measure_pretrained,
    claims=pretrained_claims,
    draw=panels.accuracy_bars(by='start', panel='partition', sharey=True),
    full={'cifar10': PRETRAINED_FULL},
    fast=PRETRAINED_FAST,
  ),
)
