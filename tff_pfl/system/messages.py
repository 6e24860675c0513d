"""Messages of other libraries on stderr."""

import contextlib
import os
import re
import sys
import tempfile
import threading
from collections.abc import Iterator

# All threads share stderr's file descriptor.
_lock = threading.RLock()


@contextlib.contextmanager
def held_back(message: re.Pattern[bytes]) -> Iterator[None]:
  """Holds stderr back until the block ends, and drops lines that match.

  This includes messages of other threads.
  """
  if sys.stderr is None:
    yield
    return
  sys.stderr.flush()
  with (
    _lock,
    tempfile.TemporaryFile() as written,
    os.fdopen(os.dup(2)) as stderr,
  ):
    os.dup2(written.fileno(), 2)
    try:
      yield
    finally:
      sys.stderr.flush()
      os.dup2(stderr.fileno(), 2)
      written.seek(0)
      for line in written:
        if not message.match(line):
          os.write(2, line)
