"""Python's garbage collector during imports."""

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def paused() -> Iterator[None]:
  """Runs a block without garbage collection.

  Use it for imports. What they create stays until the process ends, and looking
  through it takes a quarter of the time of TensorFlow's import.
  """
  was_enabled = gc.isenabled()
  gc.disable()
  try:
    yield
  finally:
    if was_enabled:
      gc.enable()
