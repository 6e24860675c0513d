"""Rules that make clients of central examples.

A `WeightedPartitioner` computes a non-negative weight matrix
`[num_clients, num_classes]`. The training examples of each class are dealt to
the clients in proportion to that class's weights, and the test examples of the
class in proportion to each client's training examples. So a client's test
examples follow the distribution of its training examples, and none is of a
class it has never seen. (A class without training examples is dealt by the
weights.) No example is dealt twice. None is lost, unless there are more classes
than the clients may own together (two clients with two classes each have no
place for a fifth class): these classes are left out, with a warning.

`ClientDirichlet` and `DomainMixture` fix the clients' sizes and draw each
client's mixture of classes or domains. `FallahDigits` and `LognormalClasses`
give certain numbers of examples and by design leave others out. `by_key`
follows keys that come with the examples.

Counts are rounded by largest remainders: a client gets the floor or the ceiling
of its exact share of each class. The loss by rounding so far decides who gets
the ceiling next, so that the clients' totals stay close to their exact shares.
"""

import dataclasses
from typing import Optional, Union

from tff_pfl import errors, fields
from tff_pfl.datasets.partitioning.base import (
  NumClients,
  Partition,
  Partitioner,
  Pool,
  hold_out,
  numbered_client_ids,
)
from tff_pfl.datasets.partitioning.by_class import (
  ClassesPerClient,
  Dirichlet,
  FallahDigits,
  Iid,
  LognormalClasses,
  LognormalSizes,
  Shards,
  WeightedPartitioner,
)
from tff_pfl.datasets.partitioning.mixtures import (
  ClientDirichlet,
  DomainMixture,
)
from tff_pfl.datasets.partitioning.natural import Natural, by_key

__all__ = [
  'PARTITIONERS',
  'ClassesPerClient',
  'ClientDirichlet',
  'Dirichlet',
  'DomainMixture',
  'FallahDigits',
  'Iid',
  'LognormalClasses',
  'LognormalSizes',
  'Natural',
  'NumClients',
  'Partition',
  'Partitioner',
  'Pool',
  'Shards',
  'WeightedPartitioner',
  'by_key',
  'defaults',
  'describe_partitioners',
  'hold_out',
  'make_partitioner',
  'numbered_client_ids',
]

# Clients of a data set by name that has none of its own.
NUM_CLIENTS = 30

PARTITIONERS: dict[str, type[Partitioner]] = {
  rule.name: rule
  for rule in (
    Shards,
    ClassesPerClient,
    Dirichlet,
    ClientDirichlet,
    LognormalSizes,
    LognormalClasses,
    Iid,
    FallahDigits,
    Natural,
    DomainMixture,
  )
}


def make_partitioner(spec: Union[str, Partitioner]) -> Partitioner:
  """Makes a partitioner of a specification such as `shards:2`.

  Args:
    spec: `name` or `name:parameter[:parameter]`, where further parameters may
      also follow a comma; see `describe_partitioners`. A partitioner is
      returned as it is.
  """
  if isinstance(spec, Partitioner):
    return spec
  errors.expect_type(
    spec, str, 'partition', 'a partitioner or a text such as shards:2'
  )
  name, *values = spec.replace(',', ':').split(':')
  usages = ', '.join(rule.usage() for rule in PARTITIONERS.values())
  errors.expect(name in PARTITIONERS, 'partition', f'one of {usages}', spec)
  rule = PARTITIONERS[name]
  parameters = dataclasses.fields(rule)
  required = [p for p in parameters if p.default is dataclasses.MISSING]
  errors.expect(
    len(required) <= len(values) <= len(parameters),
    'partition',
    rule.usage(),
    spec,
  )
  with rule.naming():
    return fields.from_texts(
      rule, {p.name: value for p, value in zip(parameters, values)}
    )


def defaults(
  num_clients: Optional[int],
  partition: Union[str, Partitioner, None],
  has_clients: bool,
) -> tuple[Optional[int], Partitioner]:
  """The number of clients and the rule of a data set by name.

  Args:
    num_clients: Number of clients; None for 30, or for all of the data's own.
    partition: A rule or its text; None for natural if the examples name their
      clients, or else `shards:2`.
    has_clients: True if the examples name their clients.

  Returns:
    Both; the number is None for all clients of the rule natural.
  """
  if partition is None:
    partition = Natural() if has_clients else Shards(2)
  rule = make_partitioner(partition)
  if num_clients is None and not isinstance(rule, Natural):
    num_clients = NUM_CLIENTS
  return num_clients, rule


def describe_partitioners() -> str:
  """Describes all rules in one paragraph, for `--help`."""
  rules = '; '.join(
    f'{rule.usage()}: {rule.summary}' for rule in PARTITIONERS.values()
  )
  return (
    f'{rules}. Every client has test examples'
    ' of the distribution of its training examples.'
  )
