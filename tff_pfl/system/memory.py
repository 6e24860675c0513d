"""Memory of this process and its child processes."""

import contextlib
import time

import psutil

# A process that is being started shares its parent's memory for a moment, which
# must not count twice.
_SECONDS_UNTIL_STARTED = 0.5


def resident_mb() -> float:
  """Returns the resident memory of this process and its children, in MiB."""
  process = psutil.Process()
  total = process.memory_info().rss
  for child in process.children(recursive=True):
    # A child may end while it is looked at.
    with contextlib.suppress(psutil.Error):
      if time.time() - child.create_time() > _SECONDS_UNTIL_STARTED:
        total += child.memory_info().rss
  return total / 2**20
