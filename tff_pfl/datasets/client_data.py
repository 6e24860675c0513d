"""Conversion from and to `tff.simulation.datasets.ClientData`."""

import collections
from collections.abc import Callable, Sequence
from typing import Any, Optional

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_pfl import errors
from tff_pfl.datasets import array_checks
from tff_pfl.datasets import examples as examples_lib

_READ_BATCH = 1024
_FIELDS = examples_lib.Examples._fields


def _fields(element: Any) -> Optional[dict[str, Any]]:
  """Returns x, y and possibly domain of an element or its spec, in this order.

  It is None if the element has other parts.
  """
  if isinstance(element, tuple) and len(element) == 2:
    return dict(zip(_FIELDS, element))
  if isinstance(element, dict) and set(element) in ({'x', 'y'}, {*_FIELDS}):
    return {name: element[name] for name in _FIELDS if name in element}
  return None


def _element_specs(
  client_data: tff.simulation.datasets.ClientData,
  num_classes: Optional[int],
  name: str,
  num_domains: int,
) -> 'collections.OrderedDict[str, tf.TensorSpec]':
  """Returns the specs of one example as the federated dataset gives it."""
  structure = client_data.element_type_structure
  specs = _fields(structure)
  if specs is None or not all(
    isinstance(spec, tf.TensorSpec) and spec.shape.is_fully_defined()
    for spec in specs.values()
  ):
    raise ValueError(
      f'Expected `{name}` to have single examples (x, y) or'
      ' {"x": …, "y": …}, or {"x": …, "y": …, "domain": …}, of a fixed shape,'
      f' found {structure!r}; bring it into this form with its `preprocess`.'
    )
  x, y = specs['x'], specs['y']
  errors.expect(
    num_classes is not None or y.dtype.is_floating,
    'num_classes',
    'given for integer labels',
    num_classes,
  )
  errors.expect(
    ('domain' in specs) == (num_domains > 0),
    'domain_names',
    'given if and only if elements have a domain',
    f'elements of {list(specs)} in `{name}`',
  )
  if 'domain' in specs:
    errors.expect(
      specs['domain'].shape.rank == 0 and specs['domain'].dtype.is_integer,
      name,
      'of elements whose domain is an integer',
      specs['domain'],
    )
  return examples_lib.element_spec(
    tf.TensorSpec(x.shape, tf.float32 if x.dtype.is_floating else x.dtype),
    tf.TensorSpec(y.shape, tf.float32 if num_classes is None else tf.int32),
    has_domain='domain' in specs,
  )


class ClientDataSource(examples_lib.ReadSource):
  """Reads a client's dataset each time it is asked.

  Attributes:
    specs: Ordered `x`, `y` and, with domains, `domain` of one example; float
      inputs and regression targets are float32, labels and domain ids int32.
  """

  def __init__(
    self,
    client_data: tff.simulation.datasets.ClientData,
    client_ids: Sequence[str],
    num_classes: Optional[int],
    name: str,
    num_domains: int,
  ):
    """Makes a source; no dataset is read yet.

    Args:
      client_data: Its elements are single examples, (x, y) or a dictionary.
      client_ids: The clients by position. One that `client_data` does not know
        has no examples.
      num_classes: Bound on labels; None for regression.
      name: What messages call `client_data`.
      num_domains: Bound on domain ids; 0 without domains.

    Raises:
      ValueError: The elements are of another form.
    """
    super().__init__(self._read_checked)
    self._client_data = client_data
    self._client_ids = client_ids
    self._known = frozenset(client_data.client_ids)
    self._name = name
    self.specs = _element_specs(client_data, num_classes, name, num_domains)
    self._checks = {
      'x': array_checks.check_inputs,
      'y': lambda y, name: array_checks.check_targets(y, name, num_classes),
      'domain': lambda ids, name: array_checks.check_domain_ids(
        ids, name, num_domains
      ),
    }

  def _read_checked(self, position: int) -> examples_lib.Examples:
    client_id = self._client_ids[position]
    arrays = {
      name: np.zeros([0, *spec.shape], spec.dtype.as_numpy_dtype)
      for name, spec in self.specs.items()
    }
    if client_id in self._known:

      def in_order(*element):
        # `map` hands over a dict as one argument, a pair as two.
        fields = _fields(element if len(element) > 1 else element[0])
        return tuple(fields.values())

      dataset = self._client_data.create_tf_dataset_for_client(client_id)
      batches = dataset.map(in_order).batch(_READ_BATCH).as_numpy_iterator()
      arrays.update(zip(arrays, map(np.concatenate, zip(*batches))))
    return examples_lib.Examples(
      **{
        name: self._checks[name](array, f'{self._name}[{client_id!r}].{name}')
        for name, array in arrays.items()
      }
    )


def to_client_data(
  client_ids: Sequence[str],
  element_spec: 'collections.OrderedDict[str, tf.TensorSpec]',
  examples_of: Callable[[str], examples_lib.Examples],
) -> tff.simulation.datasets.ClientData:
  """Returns clients' examples as TFF's `ClientData`.

  Inside a `tf.function` the examples come through `tf.py_function`, so that
  nothing is copied into the graph; such a graph runs in this process only, not
  on a remote worker. Pass the datasets of `create_tf_dataset_for_client` there
  instead.

  Args:
    element_spec: The spec of one example.
    examples_of: From a client id to its examples; asked for those of the first
      client at once.
  """

  def fields_of(client_id: tf.Tensor) -> list[np.ndarray]:
    return tf.nest.flatten(examples_of(client_id.numpy().decode()).as_dict())

  def dataset_of(client_id: Any) -> tf.data.Dataset:
    specs = tf.nest.flatten(element_spec)
    dtypes = [spec.dtype for spec in specs]
    fields = tf.py_function(fields_of, [client_id], dtypes)
    for field, spec in zip(fields, specs):
      field.set_shape([None, *spec.shape])
    return tf.data.Dataset.from_tensor_slices(
      tf.nest.pack_sequence_as(element_spec, fields)
    )

  return tff.simulation.datasets.ClientData.from_clients_and_tf_fn(
    client_ids, dataset_of
  )
