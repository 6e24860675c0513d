"""Examples of one client or of many clients."""

import collections
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Optional

import numpy as np
import tensorflow as tf
import tree

_INT32_SCALAR = tf.TensorSpec((), tf.int32)


class Examples:
  """Examples whose inputs may be made on first use.

  Attributes:
    y: Labels (int32) or targets (float32), `[n, ...]`.
    domain: Domain ids, int32 `[n]`. None in a dataset without domains.
    weight: Factors of the training losses, non-negative float32 `[n]`. None in
      a dataset without weights.
  """

  def __init__(
    self,
    x: Any,
    y: np.ndarray,
    domain: Optional[np.ndarray] = None,
    content: Optional[Callable[[], Iterator[bytes]]] = None,
    weight: Optional[np.ndarray] = None,
  ):
    """Stores arrays without copying them.

    Args:
      x: Inputs, `[n, ...]`, or a dict of several inputs, or a function that
        makes them on first use.
      y: See the class.
      domain: See the class.
      content: Function that yields bytes that represent `x` in a checksum, if
        that is faster than making `x`. None uses `x`.
      weight: See the class.
    """
    self._given = x
    self.y = y
    self.domain = domain
    self.weight = weight
    self._content = content

  def __len__(self) -> int:
    return len(self.y)

  @functools.cached_property
  def x(self) -> Any:
    """Inputs, `[n, ...]`, or a dict of several inputs."""
    return self._given() if callable(self._given) else self._given

  def as_dict(self) -> 'collections.OrderedDict[str, Any]':
    """Returns the fields by name, as in `element_spec`."""
    fields = {'weight': self.weight, 'domain': self.domain}
    return collections.OrderedDict(
      x=self.x, y=self.y, **{k: v for k, v in fields.items() if v is not None}
    )

  def select(self, indices: np.ndarray) -> 'Examples':
    """Returns some of the examples.

    Args:
      indices: Positions, int `[k]`, or a mask, bool `[n]`.
    """

    def content():
      yield indices.tobytes()
      yield from self._content()

    return _made(
      lambda array: array[indices], [self], content if self._content else None
    )

  def with_labels(self, y: np.ndarray) -> 'Examples':
    """Returns the examples with other labels, `[n, ...]`."""
    return Examples(lambda: self.x, y, self.domain, self._content, self.weight)

  def content(self) -> Iterator[bytes]:
    """Yields the content of all fields, for a checksum."""
    fields = {'y': self.y, 'domain': self.domain, 'weight': self.weight}
    if self._content is None:
      fields['x'] = self.x
    else:
      yield from self._content()
    for name, arrays in fields.items():
      for path, array in tree.flatten_with_path(arrays):
        if array is not None:
          yield f'{"/".join((name, *path))} {array.dtype}{array.shape}'.encode()
          yield array.tobytes()


def joined(parts: Sequence[Examples]) -> Examples:
  """Joins the examples of several parts of a dataset, in order."""

  def content():
    for part in parts:
      yield from part.content()

  return _made(lambda *arrays: np.concatenate(arrays), parts, content)


def _made(change, parts, content):
  """Applies `change` to the arrays of `parts`, to inputs on first use."""
  fields = {
    name: change(*(getattr(part, name) for part in parts))
    for name in ('y', 'domain', 'weight')
    if getattr(parts[0], name) is not None
  }
  return Examples(
    lambda: tree.map_structure(change, *(part.x for part in parts)),
    content=content,
    **fields,
  )


def element_spec(
  x: Any,
  y: tf.TensorSpec = _INT32_SCALAR,
  has_domain: bool = False,
  has_weight: bool = False,
) -> 'collections.OrderedDict[str, Any]':
  """Returns the spec of one example, without a batch dimension.

  Args:
    x: Spec of the input, or a dict of the specs of several inputs.
    y: Spec of the label or target. The default is a class label.
    has_domain: True for examples with an int32 domain id.
    has_weight: True for examples with a float32 weight.
  """
  weight = {'weight': tf.TensorSpec((), tf.float32)} if has_weight else {}
  domain = {'domain': _INT32_SCALAR} if has_domain else {}
  return collections.OrderedDict(x=x, y=y, **weight, **domain)
