"""Cancellation of running TensorFlow functions."""

import contextlib
import threading
import weakref
from collections.abc import Iterator
from typing import Optional

from tff_pfl.runtime.private_api import tf_cancellation

_thread_state = threading.local()


class Cancellation:
  """A cancellation of the TensorFlow functions that run in its scopes.

  One that is made in the scope of another is cancelled with it.
  """

  def __init__(self):
    self.manager = tf_cancellation.CancellationManager()
    self._lock = threading.Lock()
    self._inner = weakref.WeakSet()
    outer = self.current()
    if outer is not None:
      outer._add(self)

  @classmethod
  def current(cls) -> Optional['Cancellation']:
    """Returns the innermost cancellation of the calling thread, or None."""
    return getattr(_thread_state, 'cancellation', None)

  @property
  def is_cancelled(self) -> bool:
    """True after a call of `cancel`."""
    return self.manager.is_cancelled

  @contextlib.contextmanager
  def scope(self) -> Iterator[None]:
    """Makes the calling thread's TensorFlow calls cancellable in a block."""
    outer = self.current()
    _thread_state.cancellation = self
    try:
      # For calls that TensorFlow's own Python makes.
      with tf_cancellation.CancellationManagerContext(self.manager):
        yield
    finally:
      _thread_state.cancellation = outer

  def cancel(self) -> None:
    """Ends running functions with `tf.errors.CancelledError`."""
    with self._lock:
      self.manager.start_cancel()
      inner = list(self._inner)
    for each in inner:
      each.cancel()

  def _add(self, inner: 'Cancellation') -> None:
    with self._lock:
      self._inner.add(inner)
    if self.is_cancelled:
      inner.cancel()
