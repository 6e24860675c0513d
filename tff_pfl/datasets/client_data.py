"""Conversion from and to `tff.simulation.datasets.ClientData`."""

import collections
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Optional

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff
import tree

from tff_pfl import errors
from tff_pfl.datasets import array_checks
from tff_pfl.datasets import examples as examples_lib

_READ_BATCH = 1024
# Limits of a client whose size `tf.data` does not know.
_MAX_EXAMPLES, _MAX_BYTES = 10**6, 2**31
# Examples that are read twice at the start, and the number of their clients.
_NUM_EXAMPLES_TWICE, _LEAST_CLIENTS, _MOST_CLIENTS = 20, 5, 20
_FIELDS = ('x', 'y', 'weight', 'domain')


def _fields(element: Any) -> Optional[dict[str, Any]]:
  """Returns the `_FIELDS` of an element or its spec; None for other parts."""
  if isinstance(element, tuple) and len(element) == 2:
    return dict(zip(_FIELDS, element))
  if isinstance(element, dict) and {'x', 'y'} <= set(element) <= {*_FIELDS}:
    return {name: element[name] for name in _FIELDS if name in element}
  return None


def _element_specs(
  client_data: tff.simulation.datasets.ClientData,
  num_classes: Optional[int],
  name: str,
) -> 'collections.OrderedDict[str, tf.TensorSpec]':
  """Returns the specs of one example of the federated dataset."""
  structure = client_data.element_type_structure
  specs = _fields(structure)
  if specs is None or not all(
    isinstance(spec, tf.TensorSpec) and spec.shape.is_fully_defined()
    for spec in tree.flatten(specs)
  ):
    raise ValueError(
      f'Expected `{name}` to have single examples (x, y) or'
      ' {"x": …, "y": …}, possibly with "weight" and "domain", of a fixed'
      f' shape, found {structure!r}.'
    )
  x, y = specs['x'], specs['y']
  errors.expect(
    num_classes is not None or y.dtype.is_floating,
    'num_classes',
    'given for integer labels',
    num_classes,
  )
  if isinstance(x, Mapping):
    x = collections.OrderedDict(sorted(x.items()))
  return examples_lib.element_spec(
    tree.map_structure(
      lambda spec: tf.TensorSpec(
        spec.shape, tf.float32 if spec.dtype.is_floating else spec.dtype
      ),
      x,
    ),
    tf.TensorSpec(y.shape, tf.float32 if num_classes is None else tf.int32),
    has_domain='domain' in specs,
    has_weight='weight' in specs,
  )


class ClientDataSource:
  """A loader that reads a client's dataset each time it is called.

  Attributes:
    spec: Specs of one example: ordered `x`, `y` and, if elements have them,
      `weight` and `domain`. Float inputs, regression targets and weights are
      float32, labels and domain ids int32.
  """

  def __init__(
    self,
    splits: Mapping[str, tff.simulation.datasets.ClientData],
    num_classes: Optional[int],
    num_domains: Optional[int],
  ):
    """Makes a source; reads nothing yet.

    Args:
      splits: 'train' and 'test', of single examples, `(x, y)` or a dictionary.
        Clients that a split lacks have no examples there.
      num_classes: Bound on labels; None for regression.
      num_domains: Bound on domain ids; None without domains.
    """
    specs = {
      name: _element_specs(split, num_classes, name)
      for name, split in splits.items()
    }
    self.spec = specs['train']
    errors.expect(
      specs['test'] == self.spec,
      'test',
      f'of {dict(self.spec)}',
      dict(specs['test']),
    )
    self._splits = splits
    self._known = {name: {*split.client_ids} for name, split in splits.items()}
    self._checks = {
      'x': array_checks.check_inputs,
      'y': lambda y, name: array_checks.check_targets(y, name, num_classes),
      'weight': array_checks.check_weights,
      'domain': lambda ids, name: array_checks.check_domain_ids(
        ids, name, num_domains
      ),
    }

  def expect_repeatable(self, client_ids: Sequence[str]) -> None:
    """Raises `ValueError` if clients' examples differ when read again."""
    # Spread evenly, a few of them first.
    places = np.linspace(0, len(client_ids) - 1, _LEAST_CLIENTS, dtype=int)
    more = np.linspace(0, len(client_ids) - 1, _MOST_CLIENTS, dtype=int)
    chosen = dict.fromkeys(client_ids[i] for i in [*places, *more])
    for split in self._splits:
      num_read = 0
      for number, client_id in enumerate(chosen, 1):
        examples, again = (self(client_id, split) for _ in range(2))
        errors.expect(
          [*examples.content()] == [*again.content()],
          split,
          'the same each time it is read (give `shuffle` and random changes a'
          ' seed and `reshuffle_each_iteration=False`)',
          f'client {client_id!r} with other examples',
        )
        num_read += len(examples)
        if num_read >= _NUM_EXAMPLES_TWICE and number >= _LEAST_CLIENTS:
          break

  def __call__(self, client_id: str, split: str) -> examples_lib.Examples:
    """Reads and checks a client's examples."""
    name = f'{split}[{client_id!r}]'
    fields = tree.map_structure(
      lambda spec: np.zeros([0, *spec.shape], spec.dtype.as_numpy_dtype),
      dict(self.spec),
    )
    if client_id in self._known[split]:
      data = self._splits[split].create_tf_dataset_for_client(client_id)
      if batches := list(_batches(data, name)):
        fields = _fields(
          tree.map_structure(lambda *parts: np.concatenate(parts), *batches)
        )
    return examples_lib.Examples(
      **{
        field: self._checks[field](value, f'{name}.{field}')
        for field, value in fields.items()
      }
    )


def _batches(dataset: tf.data.Dataset, name: str) -> Iterator[Any]:
  """Yields a client's examples; raises `ValueError` if they do not end."""
  size = dataset.cardinality()
  num_read = num_bytes = 0
  for batch in dataset.batch(_READ_BATCH).as_numpy_iterator():
    arrays = tree.flatten(batch)
    num_read += len(arrays[0])
    num_bytes += sum(array.nbytes for array in arrays)
    errors.expect(
      size != tf.data.INFINITE_CARDINALITY
      and (size >= 0 or num_read <= _MAX_EXAMPLES and num_bytes <= _MAX_BYTES),
      name,
      'of a limited number of examples (leave out `repeat`, or tell a large'
      ' number by `tf.data.experimental.assert_cardinality`)',
      f'more than {num_read - 1}',
    )
    yield batch


def to_client_data(
  client_ids: Sequence[str],
  element_spec: 'collections.OrderedDict[str, tf.TensorSpec]',
  examples_of: Callable[[str], examples_lib.Examples],
) -> tff.simulation.datasets.ClientData:
  """Returns clients' examples as TFF's `ClientData`.

  Inside a `tf.function` the examples come through `tf.py_function`, so that
  nothing is copied into the graph. Such a graph runs in this process only; pass
  a remote worker the datasets of `create_tf_dataset_for_client` instead.

  Args:
    client_ids: Ids of the clients.
    element_spec: Spec of one example.
    examples_of: Function from a client id to its examples; called for the first
      client at once.
  """

  def fields_of(client_id: tf.Tensor) -> list[np.ndarray]:
    return tf.nest.flatten(examples_of(client_id.numpy().decode()).as_dict())

  def dataset_of(client_id: Any) -> tf.data.Dataset:
    client_id = tf.convert_to_tensor(client_id)
    if tf.inside_function():
      specs = tf.nest.flatten(element_spec)
      dtypes = [spec.dtype for spec in specs]
      fields = tf.py_function(fields_of, [client_id], dtypes)
      for field, spec in zip(fields, specs):
        field.set_shape([None, *spec.shape])
    else:
      # TensorFlow never forgets a `py_function`, 40 kB each.
      fields = fields_of(client_id)
    return tf.data.Dataset.from_tensor_slices(
      tf.nest.pack_sequence_as(element_spec, fields)
    )

  return tff.simulation.datasets.ClientData.from_clients_and_tf_fn(
    client_ids, dataset_of
  )
