"""Reads clients of `tff.simulation.datasets.ClientData`."""

import collections
from collections.abc import Mapping, Sequence
from typing import Any, Optional

import numpy as np
import tensorflow as tf
import tree

from tff_pfl import errors
from tff_pfl import tff_api as tff
from tff_pfl.datasets import array_checks
from tff_pfl.datasets import examples as examples_lib

# Maximum number of a client's examples if `tf.data` does not know their number.
_MAX_EXAMPLES = 10**6
# Number of clients that are read twice to compare their examples.
_NUM_READ_TWICE = 10
_FIELDS = ('x', 'y', 'weight', 'domain')


def _fields(element: Any) -> dict[str, Any]:
  """Returns the fields of an element or its spec, or {} for other forms."""
  if isinstance(element, tuple) and len(element) == 2:
    element = dict(zip(_FIELDS, element))
  if isinstance(element, dict) and {'x', 'y'} <= set(element) <= {*_FIELDS}:
    return {name: element[name] for name in _FIELDS if name in element}
  return {}


def _none_of(specs: dict[str, Any]) -> dict[str, Any]:
  """Returns the fields of zero examples."""
  return tree.map_structure(
    lambda spec: np.zeros([0, *spec.shape], spec.dtype.as_numpy_dtype), specs
  )


class ClientDataSource:
  """A loader that reads a client's dataset on each call.

  Attributes:
    spec: Specs of one example: ordered `x`, `y` and, if elements have them,
      `weight` and `domain`. Float inputs, regression targets and weights are
      float32. Labels and domain ids are int32.
  """

  def __init__(
    self,
    splits: Mapping[str, tff.simulation.datasets.ClientData],
    num_classes: Optional[int],
    num_domains: Optional[int],
  ):
    """Makes a source but reads no client yet.

    Args:
      splits: 'train' and 'test' data, with single examples `(x, y)` or dicts as
        elements. Clients that a split lacks have no examples there.
      num_classes: Number of classes. None means regression.
      num_domains: Number of domains. None means no domains.
    """
    self._splits = splits
    self._checks = array_checks.field_checks(num_classes, num_domains)
    specs = {name: self._spec(name) for name in splits}
    self.spec = specs['train']
    errors.expect(
      specs['test'] == self.spec,
      'test',
      f'of {dict(self.spec)}',
      dict(specs['test']),
    )
    self._known = {name: {*split.client_ids} for name, split in splits.items()}

  def _spec(self, split: str) -> 'collections.OrderedDict[str, Any]':
    """Returns the specs of one example after the checks."""
    structure = self._splits[split].element_type_structure
    specs = _fields(structure)
    errors.expect(
      specs
      and all(
        isinstance(spec, tf.TensorSpec) and spec.shape.is_fully_defined()
        for spec in tree.flatten(specs)
      ),
      split,
      'single examples (x, y) or {"x": …, "y": …}, possibly with "weight" and'
      ' "domain", of a fixed shape',
      structure,
    )
    return tree.map_structure(
      lambda array: tf.TensorSpec(array.shape[1:], array.dtype),
      self._checked(_none_of(specs), split).as_dict(),
    )

  def _checked(
    self, fields: dict[str, Any], name: str
  ) -> examples_lib.Examples:
    return examples_lib.Examples(
      **{
        field: self._checks[field](value, f'{name}.{field}')
        for field, value in fields.items()
      }
    )

  def expect_repeatable(self, client_ids: Sequence[str]) -> None:
    """Raises `ValueError` if clients' examples differ when read again."""
    spread = np.linspace(0, len(client_ids) - 1, _NUM_READ_TWICE, dtype=int)
    for split in self._splits:
      for client_id in (client_ids[place] for place in np.unique(spread)):
        examples, again = (self(client_id, split) for _ in range(2))
        errors.expect(
          [*examples.content()] == [*again.content()],
          split,
          'the same each time it is read (give `shuffle` and random changes a'
          ' seed and `reshuffle_each_iteration=False`)',
          f'client {client_id!r} with other examples',
        )

  def __call__(self, client_id: str, split: str) -> examples_lib.Examples:
    """Reads and checks a client's examples."""
    name = f'{split}[{client_id!r}]'
    fields = _none_of(dict(self.spec))
    if client_id in self._known[split]:
      data = self._splits[split].create_tf_dataset_for_client(client_id)
      size = int(data.cardinality())
      is_endless = size == tf.data.INFINITE_CARDINALITY
      limit = size if size > 0 else _MAX_EXAMPLES
      batches = []
      if not is_endless:
        batches = list(data.batch(limit).take(2).as_numpy_iterator())
      errors.expect(
        not is_endless and len(batches) < 2,
        name,
        'of a limited number of examples (leave out `repeat`, or declare a'
        ' large number with `tf.data.experimental.assert_cardinality`)',
        f'more than {limit}',
      )
      fields = _fields(batches[0]) if batches else fields
    return self._checked(fields, name)
