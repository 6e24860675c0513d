"""How much memory the process and its child processes hold."""

import contextlib
import time

import psutil

# A process that is being started shares its parent's memory for a moment, which
# must not count twice.
_SECONDS_UNTIL_STARTED = 0.5


def resident_mb() -> float:
  """Resident memory of this process and its children now, in MB (2**20)."""
  process = psutil.Process()
  total = process.memory_info().rss
  for child in process.children(recursive=True):
    # A child may end while it is looked at.
    with contextlib.suppress(psutil.Error):
      if time.time() - child.create_time() > _SECONDS_UNTIL_STARTED:
        total += child.memory_info().rss
  return total / 2**20
