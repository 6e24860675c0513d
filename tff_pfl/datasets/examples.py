"""A client's examples, and where a federated dataset takes them from."""

import abc
import collections
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Optional

import numpy as np
import tensorflow as tf
import tree

from tff_pfl import errors

Transform = Callable[[Any], Any]
_INT32_SCALAR = tf.TensorSpec((), tf.int32)


class Examples(NamedTuple):
  """Examples of one client, in memory.

  As for every tuple, `len` counts the fields; use `num_examples` to count the
  examples.

  Attributes:
    x: Inputs, `[n, ...]`, or several kinds of them by name.
    y: Labels (int32) or targets (float32), `[n, ...]`.
    domain: Domain ids, int32 `[n]`; None in a dataset without domains.
  """

  x: Any
  y: np.ndarray
  domain: Optional[np.ndarray] = None

  def as_dict(self) -> 'collections.OrderedDict[str, Any]':
    """Returns the fields that there are by name, `domain` only if it is."""
    return collections.OrderedDict(
      (name, array)
      for name, array in self._asdict().items()
      if array is not None
    )

  def select(self, indices: np.ndarray) -> 'Examples':
    """Returns some of the examples.

    Args:
      indices: Their positions, int `[k]`, or a mask, bool `[n]`.
    """
    return Examples(
      **tree.map_structure(lambda array: array[indices], self.as_dict())
    )


def num_examples(examples: Examples) -> int:
  """Returns how many examples there are (`len` would count the fields)."""
  return len(examples.y)


def element_spec(
  x: Any, y: tf.TensorSpec = _INT32_SCALAR, has_domain: bool = False
) -> 'collections.OrderedDict[str, Any]':
  """Returns the spec of one example, without a batch dimension.

  Args:
    x: What the input is, or each of several by name.
    y: What the label or target is; by default a class label.
    has_domain: Whether there is a domain id, int32.
  """
  domain = {'domain': _INT32_SCALAR} if has_domain else {}
  return collections.OrderedDict(x=x, y=y, **domain)


class ExampleSource(abc.ABC):
  """One split (train or test) of all clients, addressed by client position.

  A source reads, slices or generates a client's examples when it is asked and
  keeps none of them.

  Attributes:
    in_memory: Whether the examples are at hand, so that reading all of them
      takes seconds.
    num_overlapping: Up to how many examples before it, and as many after it,
      may share content with an example of the same client, as windows on a
      text do. Where it is above 0, a client's examples are to be divided in
      their order, and so many left out between the parts.
  """

  in_memory: bool = False
  num_overlapping: int = 0

  @abc.abstractmethod
  def examples(self, position: int) -> Examples:
    """Returns the examples of the client at `position`."""

  @abc.abstractmethod
  def num_examples(self, position: int) -> int:
    """Returns the number of examples of the client at `position`."""

  def labels(self, position: int) -> np.ndarray:
    """Returns only `y`; overridden by sources that need not touch `x`."""
    return self.examples(position).y

  def domains(self, position: int) -> Optional[np.ndarray]:
    """Returns only `domain`, None without; overridden as `labels` is."""
    return self.examples(position).domain

  def content(self, position: int) -> Iterator[bytes]:
    """Yields the content of a client's examples, for a checksum."""
    for name, arrays in self.examples(position).as_dict().items():
      for path, array in tree.flatten_with_path(arrays):
        yield f'{"/".join((name, *path))} {array.dtype} {array.shape}'.encode()
        yield array.tobytes()


class ReadSource(ExampleSource):
  """Reads a client's examples each time it is asked; keeps only the counts."""

  def __init__(
    self,
    read: Callable[[int], Examples],
    num_overlapping: int = 0,
    in_memory: bool = False,
  ):
    self._read = read
    self._counts: dict[int, int] = {}
    self.num_overlapping = num_overlapping
    self.in_memory = in_memory

  def examples(self, position: int) -> Examples:
    """Reads the client's examples."""
    result = self._read(position)
    self._counts[position] = num_examples(result)
    return result

  def num_examples(self, position: int) -> int:
    """Returns the number, reading the examples once to count them."""
    if position not in self._counts:
      self.examples(position)
    return self._counts[position]


@dataclasses.dataclass(frozen=True, eq=False)
class ArraySource(ExampleSource):
  """Clients as index arrays into central arrays, of which nothing is copied.

  Attributes:
    x: Inputs of all clients, `[n, ...]`, or several kinds of them by name.
    y: Labels of all clients, `[n, ...]`.
    indices: Per client an integer array of positions in `x` and `y`.
    domain: Domain ids of all clients' examples, int32 `[n]`; None without.
    transform: Applied to a client's `[k, ...]` inputs when they are asked for,
      so that `x` can stay in its compact form; to those for training and for
      tests alike, once for all rounds. So it is no place for random changes,
      see `models.augmentation`. It must work example by example. None for the
      inputs as they are. One that reads files has a method
      `content` that yields the bytes of those of inputs `[k, ...]`.
  """

  x: Any
  y: np.ndarray
  indices: Sequence[np.ndarray]
  domain: Optional[np.ndarray] = None
  transform: Optional[Transform] = None
  num_overlapping: int = 0
  in_memory = True

  def examples(self, position: int) -> Examples:
    """Slices and transforms the client's examples."""
    indices = self.indices[position]
    x = tree.map_structure(lambda array: array[indices], self.x)
    if self.transform is not None:
      x = tree.map_structure(np.asarray, self.transform(x))
      for array in tree.flatten(x):
        errors.expect(
          array.shape[:1] == (len(indices),),
          'transform(x)',
          f'{len(indices)} examples, as many as it was given',
          array.shape,
        )
    return Examples(x, self.y[indices], self.domains(position))

  def content(self, position: int) -> Iterator[bytes]:
    """Yields the bytes of arrays, and of files before they are decoded."""
    if not hasattr(self.transform, 'content'):
      yield from super().content(position)
      return
    indices = self.indices[position]
    yield from self.transform.content(self.x[indices])
    yield self.y[indices].tobytes()
    if self.domain is not None:
      yield self.domain[indices].tobytes()

  def labels(self, position: int) -> np.ndarray:
    """Returns the client's labels."""
    return self.y[self.indices[position]]

  def num_examples(self, position: int) -> int:
    """Returns the number of the client's indices."""
    return len(self.indices[position])

  def domains(self, position: int) -> Optional[np.ndarray]:
    """Returns the client's domain ids."""
    if self.domain is None:
      return None
    return self.domain[self.indices[position]]
