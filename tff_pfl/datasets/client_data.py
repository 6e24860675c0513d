"""Conversion from and to `tff.simulation.datasets.ClientData`."""

from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_pfl import errors
from tff_pfl.datasets import array_checks
from tff_pfl.datasets import examples as examples_lib

_READ_BATCH = 1024


def _split_element(element: Any) -> Optional[Tuple[Any, Any]]:
  """Returns `(x, y)` of an element or its spec, None if it has other parts."""
  if isinstance(element, dict) and set(element) == {'x', 'y'}:
    return element['x'], element['y']
  if isinstance(element, tuple) and len(element) == 2:
    return element[0], element[1]
  return None


def element_specs(
  client_data: tff.simulation.datasets.ClientData,
  num_classes: Optional[int],
  name: str,
) -> Tuple[tf.TensorSpec, tf.TensorSpec]:
  """Returns the specs of one example's x and y, as the federated dataset gives.

  Args:
    client_data: Of unbatched elements.
    num_classes: Number of classes; None for regression.
    name: The argument's name for messages.

  Returns:
    Specs without a batch dimension; float inputs and regression targets are
    float32, labels int32.

  Raises:
    TypeError: It is not a `ClientData`.
    ValueError: Its elements are not x and y of a fixed shape, or `num_classes`
      is missing for integer y.
  """
  errors.expect_type(
    client_data,
    tff.simulation.datasets.ClientData,
    name,
    'a tff.simulation.datasets.ClientData',
  )
  structure = client_data.element_type_structure
  specs = _split_element(structure)
  if specs is None or not all(
    isinstance(spec, tf.TensorSpec) and spec.shape.is_fully_defined()
    for spec in specs
  ):
    raise ValueError(
      f'Expected `{name}` to have single examples (x, y) or'
      f' {{"x": …, "y": …}} of a fixed shape, found {structure!r}; bring it'
      ' into this form with its `preprocess`.'
    )
  x, y = specs
  x_dtype = tf.float32 if x.dtype.is_floating else x.dtype
  errors.expect(
    num_classes is not None or y.dtype.is_floating,
    'num_classes',
    'given for integer labels',
    num_classes,
  )
  y_dtype = tf.float32 if num_classes is None else tf.int32
  return tf.TensorSpec(x.shape, x_dtype), tf.TensorSpec(y.shape, y_dtype)


class ClientDataSource(examples_lib.ExampleSource):
  """Reads a client's dataset each time it is asked; keeps only the counts."""

  def __init__(
    self,
    client_data: tff.simulation.datasets.ClientData,
    client_ids: Sequence[str],
    num_classes: Optional[int],
    name: str,
  ):
    """Makes a source; no dataset is read yet.

    Args:
      client_data: Where the examples are, see `element_specs`.
      client_ids: The clients by position. One that `client_data` does not know
        has no examples.
      num_classes: Bound on labels; None for regression.
      name: Of `client_data`, for messages.
    """
    self._client_data = client_data
    self._client_ids = client_ids
    self._known = frozenset(client_data.client_ids)
    self._num_classes = num_classes
    self._name = name
    self._specs = element_specs(client_data, num_classes, name)
    self._counts: Dict[int, int] = {}

  def _read(
    self, position: int, select: Callable[[Any], Any]
  ) -> List[List[np.ndarray]]:
    """Returns lists of batches, one list for each tensor `select` keeps."""
    dataset = self._client_data.create_tf_dataset_for_client(
      self._client_ids[position]
    )

    def selected(*element):
      # `map` hands over a dict as one argument, a pair as two.
      return select(_split_element(element if len(element) > 1 else element[0]))

    batches = dataset.map(selected).batch(_READ_BATCH)
    return list(zip(*batches.as_numpy_iterator()))

  def _field(self, position: int, field: int, batches: Any) -> np.ndarray:
    spec = self._specs[field]
    if not batches:
      return np.zeros([0, *spec.shape], spec.dtype.as_numpy_dtype)
    array = np.concatenate(batches)
    name = f'{self._name}[{self._client_ids[position]!r}].{"xy"[field]}'
    if field == 0:
      return array_checks.check_inputs(array, name)
    return array_checks.check_targets(array, name, self._num_classes)

  def examples(self, position: int) -> examples_lib.Examples:
    """Reads, converts and checks the client's dataset."""
    x, y = (), ()
    if self._client_ids[position] in self._known:
      x, y = self._read(position, lambda pair: pair) or ((), ())
    result = examples_lib.Examples(
      self._field(position, 0, x), self._field(position, 1, y)
    )
    self._counts[position] = len(result.y)
    return result

  def labels(self, position: int) -> np.ndarray:
    """Reads, converts and checks the labels of the client's dataset."""
    batches = ((),)
    if self._client_ids[position] in self._known:
      batches = self._read(position, lambda pair: (pair[1],)) or ((),)
    labels = self._field(position, 1, batches[0])
    self._counts[position] = len(labels)
    return labels

  def num_examples(self, position: int) -> int:
    """Returns the number, reading the labels once to count them."""
    if position not in self._counts:
      self.labels(position)
    return self._counts[position]


class FederatedClientData(tff.simulation.datasets.ClientData):
  """One split of a federated dataset as TFF's `ClientData`.

  Elements are `OrderedDict(x=…, y=…)`. Inside a `tf.function` the examples come
  through `tf.numpy_function`, so that nothing is copied into the graph; such a
  graph runs in this process only, not on a remote worker. Pass the datasets of
  `create_tf_dataset_for_client` there instead.
  """

  def __init__(
    self,
    client_ids: Sequence[str],
    element_spec: Dict[str, tf.TensorSpec],
    examples_fn: Callable[[str], examples_lib.Examples],
  ):
    """Makes a view; no examples are read.

    Args:
      client_ids: All clients.
      element_spec: Ordered `x` and `y` of one example.
      examples_fn: From a client id to its examples.
    """
    self._client_ids = list(client_ids)
    self._element_spec = element_spec
    self._examples_fn = examples_fn

  @property
  def client_ids(self) -> List[str]:
    """All clients."""
    return self._client_ids

  @property
  def element_type_structure(self) -> Dict[str, tf.TensorSpec]:
    """Ordered `x` and `y` of one example."""
    return self._element_spec

  def create_tf_dataset_for_client(self, client_id: str) -> tf.data.Dataset:
    """Returns a dataset of the client's examples, to use eagerly."""
    return self._to_dataset(*self._examples_fn(client_id))

  @property
  def serializable_dataset_fn(self) -> Callable[[Any], tf.data.Dataset]:
    """From a client id, possibly a string tensor, to its dataset."""
    return self._traceable_dataset

  def _traceable_dataset(self, client_id: Any) -> tf.data.Dataset:
    specs = list(self._element_spec.values())

    def read(encoded_id: bytes) -> examples_lib.Examples:
      return tuple(self._examples_fn(encoded_id.decode()))

    tensors = tf.numpy_function(
      read, [client_id], [spec.dtype for spec in specs]
    )
    for tensor, spec in zip(tensors, specs):
      tensor.set_shape([None, *spec.shape])
    return self._to_dataset(*tensors)

  def _to_dataset(self, x: Any, y: Any) -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices(
      type(self._element_spec)(x=x, y=y)
    )
