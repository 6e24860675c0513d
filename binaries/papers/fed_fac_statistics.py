"""FedAvg with statistics of batch normalization that are averaged, or local.

`fedfac_statistics` (FedFac's tables 2 and 3): do moving statistics that stay on
the clients, as in the code of FedFac's authors, explain FedAvg's accuracies on
clients that were trained and on new ones? `fedfac_statistics_resnet`: the same
with a small ResNet-18 and fewer rounds.

Data, deviations and references are those of `fed_fac_protocol`; the CNN has
batch normalization, whose moving statistics forget as fast as the authors', by
0.9 a step. A new client has either the initial statistics or those of its own
examples: the code does not tell which.
"""

from __future__ import annotations

import dataclasses
import functools

import numpy as np

from binaries.papers import fed_fac, fed_fac_protocol
from tff_pfl.comparisons import claims, panels, paper
from tff_pfl.comparisons import context as context_lib

_AVERAGED, _LOCAL = 'averaged statistics', 'local statistics'
_TRAINED, _NEW = 'trained', 'new'
_NEW_INITIAL = 'new, initial statistics'
# What counts as no difference between accuracies.
_ALIKE = 0.05

FULL = fed_fac_protocol.Sizes(
  num_new_clients=30,
  model_arguments={
    'filters': (8, 16),
    'widths': (64,),
    'normalization': 'batch',
  },
)
RESNET_FULL = dataclasses.replace(
  FULL, **fed_fac_protocol.RESNET, num_rounds=30
)
FAST = dataclasses.replace(
  FULL,
  **{
    **fed_fac.SMALL,
    'model_arguments': {
      **fed_fac.SMALL['model_arguments'],
      'normalization': 'batch',
    },
  },
  num_new_clients=3,
)
RESNET_FAST = dataclasses.replace(FAST, **fed_fac_protocol.SMALL_RESNET)


def measure(context: context_lib.Context) -> paper.Rows:
  """FedAvg's accuracy on trained and on new clients."""
  compared = (
    context_lib.Method(_AVERAGED, 'fed_avg'),
    context_lib.Method(_LOCAL, 'fed_avg', config={'statistics': 'local'}),
  )
  for result in fed_fac_protocol.run(context, compared):
    # Before they are fitted they have what the server has: the statistics of
    # the initial network.
    accuracies = {_TRAINED: result.accuracy()}
    for clients, when in ((_NEW, 'after'), (_NEW_INITIAL, 'before')):
      accuracies[clients] = np.mean(
        [row[when]['accuracy'] for row in result.scores['new_clients']]
      )
    for clients, accuracy in accuracies.items():
      yield {**result.columns(), 'clients': clients, 'accuracy': accuracy}


def make_claims(
  table: paper.Table, sizes: fed_fac_protocol.Sizes
) -> paper.Claims:
  """Tables 2 and 3: 80% on trained, 40% on new clients; 68% on both."""
  source = 'FedFac, tables 2 and 3'
  first, *_, last = sizes.partitions

  def gain(partition):
    """The gain of trained clients by local statistics."""
    return table.paired_difference(
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


_experiment = functools.partial(
  paper.Experiment,
  paper='FedFac, tables 2 and 3',
  measure=measure,
  claims=make_claims,
  draw=panels.accuracy_bars(group='clients', panel='partition', sharey=True),
)
EXPERIMENTS = (
  _experiment(
    name='fedfac_statistics',
    summary='FedAvg with statistics of batch normalization of its own on each '
    'client, and with averaged ones',
    full={'cifar10': FULL},
    fast=FAST,
  ),
  _experiment(
    name='fedfac_statistics_resnet',
    summary='The same with a ResNet',
    full={'cifar10': RESNET_FULL},
    fast=RESNET_FAST,
  ),
)
