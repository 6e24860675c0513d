"""Rules that divide central examples among clients.

A `WeightedPartitioner` computes a non-negative weight matrix
`[num_clients, num_classes]`. It deals the training examples of each class to
the clients in proportion to the weights of the class, and the test examples in
proportion to the clients' training examples. So a client's test examples follow
the distribution of its training examples, and it has no test example of a class
that it has never seen. (A class without training examples is dealt by the
weights.) No example is dealt twice. None is lost, unless there are more classes
than the clients can own together. For example, two clients with two classes
each have no place for a fifth class. Such classes are left out, with a warning.

`ClientDirichlet` and `DomainMixture` fix the clients' sizes and draw each
client's mixture of classes or domains. `FallahDigits` and `LognormalClasses`
set the number of examples of each client and class, and leave out others by
design. `by_key` follows keys that come with the examples.

Counts are rounded by largest remainders: a client gets the floor or the ceiling
of its exact share of each class. Earlier rounding losses decide which client
gets the ceiling, so that the clients' totals stay close to their exact shares.
"""

import dataclasses
import inspect
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

# Default number of clients of a dataset by name that has no clients of its own.
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
  """Makes a partitioner from a specification such as `shards:2`.

  Args:
    spec: `name` or `name:parameter[:parameter]`, where a comma may replace a
      colon. See `describe_partitioners`. A partitioner is returned unchanged.
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
  """Returns the number of clients and the rule for a dataset by name.

  Args:
    num_clients: Number of clients. None means 30, or all of the data's own.
    partition: A rule or its specification. None means natural if the examples
      name their clients, and otherwise `shards:2`.
    has_clients: True if the examples name their clients.

  Returns:
    Both. The number is None for all clients of the rule natural.
  """
  if partition is None:
    partition = Natural() if has_clients else Shards(2)
  rule = make_partitioner(partition)
  if num_clients is None and not isinstance(rule, Natural):
    num_clients = NUM_CLIENTS
  return num_clients, rule


def describe_partitioners() -> str:
  """Describes all rules in one paragraph, for `--help`."""
  rules = '; '.join(map(_description, PARTITIONERS.values()))
  return (
    f"{rules}. Every client's test examples"
    ' follow the distribution of its training examples.'
  )


def _description(rule: type[Partitioner]) -> str:
  """Returns a rule's usage, first line and parameters, without a last dot."""
  texts = [f'{rule.usage()}: {inspect.getdoc(rule).splitlines()[0]}']
  for field in dataclasses.fields(rule):
    is_set = field.default not in (dataclasses.MISSING, None)
    default = f' (default {field.default})' if is_set else ''
    help_text = fields.help_text(rule, field.name)
    texts.append(f'{field.name}{default}: {help_text}')
  return ' '.join(texts).removesuffix('.')
