"""Other libraries' messages on stderr."""

import contextlib
import os
import re
import sys
import tempfile
import threading
from collections.abc import Iterator

# The file that stderr is belongs to all threads.
_lock = threading.RLock()


@contextlib.contextmanager
def held_back(message: re.Pattern[bytes]) -> Iterator[None]:
  """Writes what comes to stderr at the end, without lines that match.

  What other threads write is held back as well.
  """
  if sys.stderr is None:
    # A program without stderr.
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
