"""A cache of clients' tensors that stay on a GPU from round to round."""

import collections
import threading
import weakref

import tensorflow as tf

# Copying smaller tensors is as fast as a lookup.
_LEAST_BYTES = 1 << 14
# TensorFlow keeps int32, datasets and strings in the host's memory.
_STAYS = (tf.float32, tf.float16, tf.bfloat16, tf.float64, tf.uint8, tf.int64)


class DeviceCache:
  """A thread-safe cache of the most recently used copies on a device."""

  def __init__(self, max_bytes: int):
    """Makes an empty cache.

    Args:
      max_bytes: Largest total size of the copies, at least 0.
    """
    self._max_bytes = max_bytes
    self._num_bytes = 0
    # Reentrant: a tensor may be freed, and its copy dropped, under the lock.
    self._lock = threading.RLock()
    # Id of a tensor to a weak reference to it, its copy and their size.
    self._copies = collections.OrderedDict()

  def __len__(self) -> int:
    """Returns the number of copies."""
    return len(self._copies)

  def get(self, tensor: tf.Tensor) -> tf.Tensor:
    """Returns the tensor's copy on the current device, or the tensor itself.

    The cache keeps the copy at most as long as the tensor exists. Small tensors
    and types that TensorFlow keeps in host memory are not copied.
    """
    if not is_kept(tensor):
      return tensor
    key = id(tensor)
    with self._lock:
      if key in self._copies:
        self._copies.move_to_end(key)
        return self._copies[key][1]
    copy, size = tf.identity(tensor), _num_bytes(tensor)
    reference = weakref.ref(tensor, lambda _: self._drop(key))
    with self._lock:
      self._drop(key)
      self._copies[key] = (reference, copy, size)
      self._num_bytes += size
      while self._copies and self._num_bytes > self._max_bytes:
        self._drop(next(iter(self._copies)))
    return copy

  def clear(self) -> None:
    """Drops all copies."""
    with self._lock:
      self._copies.clear()
      self._num_bytes = 0

  def _drop(self, key: int) -> None:
    with self._lock:
      if key in self._copies:
        *_, size = self._copies.pop(key)
        self._num_bytes -= size


def is_kept(tensor: tf.Tensor) -> bool:
  """Returns True for a tensor that is large and can stay on a GPU."""
  return tensor.dtype in _STAYS and _num_bytes(tensor) >= _LEAST_BYTES


def _num_bytes(tensor: tf.Tensor) -> int:
  return tensor.shape.num_elements() * tensor.dtype.size
