"""Accuracies that papers report, to be put beside those of a comparison.

A published figure is worth comparing with only where the setting is the same:
the data set, the number of clients and how the classes are divided among them.
Other differences (the network, the number of rounds, the choice of a learning
rate) are told by a `Source` in words.

References:
  Collins, Hassani, Mokhtari, Shakkottai, Exploiting Shared Representations for
    Personalized Federated Learning, ICML 2021, table 1.
  Wang, Tang, Li, Factor-Assisted Federated Learning for Personalized
    Optimization with Heterogeneous Data, 2023, table 2.
  Zhong, He, Ren, Li, Li, FedDAR: Federated Domain-Aware Representation
    Learning, ICLR 2023, table 1.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Optional

import pandas as pd

_LAST_10 = 'personal_accuracy_last_10'
_LAST = 'personal_accuracy'


class Column(NamedTuple):
  """The data that a column's figures were measured on.

  Attributes:
    dataset: A key of `datasets.DATASETS`, or a name for one that is not there.
    partitions: The start of the specification of the partition, such as
      'shards:2' for two classes a client in equal shards, or 'natural' where
      clients come with the data; several, joined by ' or ', where the paper
      and its authors' code differ.
    note: Differences of the paper's data from those of a comparison with these
      settings; empty where there are none.
    metric: A name of `metrics.by_name`; None for the table's, or after the last
      round where models are fine-tuned then, which have no earlier rounds.
  """

  dataset: str
  num_clients: int
  partitions: str
  note: str = ''
  metric: Optional[str] = None

  def matches(self, dataset: Any, num_clients: Any, partition: Any) -> bool:
    """True if a comparison of these settings is on such data.

    Args:
      dataset: A key of `datasets.DATASETS`.
      num_clients: Number of clients.
      partition: Specification of the partition, such as 'shards:2'.
    """
    if (dataset, num_clients) != (self.dataset, self.num_clients):
      return False
    for wanted in self.partitions.split(' or '):
      arguments = wanted.split(':')
      # Arguments beyond these are the partition's fine print.
      given = str(partition).split(':')[: len(arguments)]
      if len(given) == len(arguments) and all(map(_equal, arguments, given)):
        return True
    return False


class Source(NamedTuple):
  """A published table of figures.

  Attributes:
    paper: Short name and venue.
    table: Its number, such as 'table 1'.
    protocol: The paper's way to its figures, in one or two sentences.
    columns: Columns of the table.
    metric: A name of `metrics.by_name`, for columns that have none and models
      that are not fine-tuned after the last round.
    rows: Rows of the table: method|key of the algorithm|figures in percent, '-'
      for those that the paper, or our copy of it, does not have. Where the head
      is fine-tuned, the method's name ends in '+FT'.
  """

  paper: str
  table: str
  protocol: str
  columns: Sequence[Column]
  rows: str
  metric: str = _LAST_10

  def figures(self, places: Sequence[int]) -> Iterator[dict[str, Any]]:
    """The figures of some columns, row by row; see `reference`.

    Args:
      places: Indices of the columns.
    """
    for line in self.rows.strip().splitlines():
      method, algorithm, values = map(str.strip, line.split('|'))
      # Where the method itself does not fine-tune, leaving it out is the same.
      variants, metric = ('method', 'none'), self.metric
      if algorithm == 'per_fed_avg':
        # As the authors' code scores it.
        variants, metric = ('trained', 'method'), _LAST
      elif method.endswith('+FT'):
        variants, metric = ('head',), _LAST
      for place in places:
        percent = values.split()[place]
        yield {
          'source': f'{self.paper}, {self.table}',
          'note': f'{self.protocol} {self.columns[places[0]].note}'.strip(),
          'method': method,
          'algorithm': algorithm,
          'variants': variants,
          'metric': self.columns[place].metric or metric,
          # Four decimals are all that the papers give.
          'value': None if percent == '-' else round(float(percent) / 100, 4),
        }


# The rows of SCAFFOLD are left out: our copy of the paper has three and four
# figures of the seven, and does not say of which columns. Of the six figures of
# Local Only in our copy the first is lost: with two classes a client they
# cannot be below those with five.
_FED_REP = Source(
  'FedRep (Collins et al., ICML 2021)',
  'table 1',
  'SGD with momentum 0.5, learning rate 0.01, batches of 10 (Sent140: 4), a '
  'tenth of the clients in each round; a 5-layer CNN on CIFAR. Mean over '
  'clients and the last 10 rounds, five repetitions; +FT: the head fine-tuned '
  'for 10 epochs after training. How long Local Only trains it does not say.',
  columns=(
    Column('cifar10', 100, 'shards:2'),
    Column('cifar10', 100, 'shards:5'),
    Column('cifar10', 1000, 'shards:2'),
    Column('cifar100', 100, 'shards:5'),
    Column('cifar100', 100, 'shards:20'),
    Column(
      'sentiment',
      183,
      'natural',
      'The paper has 183 users of Sent140 with 50 tweets or more each, and a '
      'pre-trained embedding. Figures can be compared only if the texts here '
      'are those of Sent140.',
    ),
    Column(
      'emnist_letters',
      150,
      'lognormal_classes:3',
      'The paper has letters of FEMNIST, 148 images a client on average.',
    ),
  ),
  rows="""
Local Only|local_only |    - 70.68 78.30 75.29 41.29 69.88 60.86
FedAvg    |fed_avg    |42.65 51.78 44.31 23.94 31.97 52.75 51.64
FedAvg+FT |fed_avg    |87.65 73.68 82.04     - 55.44 71.92 72.41
FedProx   |fed_prox   |39.92 50.99 21.93 20.17 28.52 52.33 18.89
FedProx+FT|fed_prox   |85.81 72.75 75.41 78.52 55.09 71.21 53.54
Fed-MTL   |fed_mtl    |80.46 58.31 76.53 71.47 41.25 71.20 54.11
PerFedAvg |per_fed_avg|82.27 67.20 67.36 72.05 52.49 68.45 71.51
LG-FedAvg |lg_fed_avg |84.14 63.02 77.48 72.44 38.76 70.37 62.08
L2GD      |l2gd       |81.04 59.98 71.96 72.13 42.84 70.67 66.18
APFL      |apfl       |83.77 72.29 82.39 78.20 55.44 69.87 70.74
Ditto     |ditto      |85.39 70.34 80.36 78.91     - 71.04 68.28
FedPer    |fed_per    |87.13 73.84 81.73 76.00 55.68 72.12 76.91
FedRep    |fed_rep    |    -     -     - 79.15 56.10     -     -
""",
)
_FED_FAC = Source(
  'FedFac (Wang et al., 2023)',
  'table 2',
  'Adam with learning rate 0.001; ResNet-18 on CIFAR-10, VGG-16 on CIFAR-100. '
  'A fifth of each client is its test set; accuracies are weighted by the '
  'sizes of the clients, the best mean over 10 consecutive rounds.',
  columns=(
    Column('cifar10', 100, 'dirichlet:0.1 or client_dirichlet:1'),
    Column('cifar10', 100, 'dirichlet:0.5 or client_dirichlet:5'),
    Column('cifar10', 100, 'dirichlet:1 or client_dirichlet:10'),
    Column('cifar100', 100, 'shards:5'),
    Column('cifar100', 100, 'shards:10'),
    Column('cifar100', 100, 'shards:30'),
    Column('femnist', 1079, 'natural'),
    Column('shakespeare', 778, 'natural'),
  ),
  rows="""
FedAvg          |fed_avg       |80.33 70.39 68.49  7.10 30.11 45.13 76.80 49.96
FedProx         |fed_prox      |80.58 71.96 70.07 20.93 33.13 46.58 81.07 49.92
FedPer          |fed_per       |76.24 71.30 68.70 67.73 66.43 59.94 71.23 50.14
LG-FedAvg       |lg_fed_avg    |77.10 55.44 47.02 65.86 24.35 22.43 76.53 36.36
FedEM           |fed_em        |57.22 57.08 53.31 52.24 51.89 61.83 79.49 35.33
FedRep          |fed_rep       |66.94 39.32 30.72 21.53 17.25 11.07 69.65 40.95
FedFac (static) |fed_fac_static|83.07 74.83 70.47 71.38 68.97 61.07 81.39 49.83
FedFac (dynamic)|fed_fac       |83.07 74.87 71.53 71.36 69.32 62.75 83.01 50.29
""",
  metric='weighted_accuracy_best_10',
)
_FED_DAR = Source(
  'FedDAR (Zhong et al., ICLR 2023)',
  'table 1',
  'Age on FairFace, 500 examples a client, 7 domains mixed by a Dirichlet '
  'distribution of concentration 0.5; ResNet-34 pre-trained on ImageNet, 100 '
  'rounds of Adam with 20 of FedAvg as a warm-up; FedDAR-SA with k = 8. Mean '
  'over the last 10 rounds.',
  columns=tuple(
    Column(
      'fairface',
      5,
      'domain_mixture:0.5',
      metric=f'domain_accuracy_{name}_last_10',
    )
    for name in ('max', 'min', 'mean')
  ),
  rows="""
FedDAR-SA|fed_dar   | 50.0  40.6  43.4
FedDAR-WA|fed_dar_wa| 49.9  40.0  42.9
FedAvg   |fed_avg   | 45.7  38.8  41.6
""",
)
SOURCES = (_FED_REP, _FED_FAC, _FED_DAR)


def _equal(a: str, b: str) -> bool:
  """True if two parts of a specification are the same name or number."""
  try:
    return float(a) == float(b)
  except ValueError:
    return a == b


def reference(dataset: Any, num_clients: Any, partition: Any) -> pd.DataFrame:
  """The published figures for such data, as `page.write` takes them.

  Args:
    dataset: A key of `datasets.DATASETS`.
    num_clients: Number of clients.
    partition: Specification of the partition, such as 'shards:2'.

  Returns:
    A row for each figure, none where nothing was published: `source` and
    `note`, the `method` in the paper, the `algorithm` (a key of
    `registry.ALGORITHMS`, or a name for one that is not there), `variants` (the
    ways to personalize that are the paper's, of which the first that a
    comparison has counts), `metric` (a name of `metrics.by_name`) and `value`
    in [0, 1], None where there is none.
  """
  found = []
  for source in SOURCES:
    places = [
      place
      for place, column in enumerate(source.columns)
      if column.matches(dataset, num_clients, partition)
    ]
    if places:
      found += source.figures(places)
  return pd.DataFrame(found)


def value(
  paper: str, method: str, dataset: Any, num_clients: Any, partition: Any
) -> Optional[float]:
  """The figure of a method in a paper; None where it has none.

  Args:
    paper: Start of its name in `Source`.
    method: Name of the method in the paper's words or ours: only letters and
      digits count.
  """
  for row in reference(dataset, num_clients, partition).itertuples():
    if row.source.startswith(paper) and _plain(row.method) == _plain(method):
      return None if pd.isna(row.value) else row.value
  return None


def _plain(name):
  return ''.join(c for c in name.lower() if c.isalnum())
