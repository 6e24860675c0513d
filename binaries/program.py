"""How every program of this folder starts and ends."""

import sys
from collections.abc import Callable, Sequence

from absl import app, flags, logging

from tff_pfl import errors
from tff_pfl.system import shutdown

_TRACEBACK = flags.DEFINE_bool(
  'traceback', False, 'Show where an expected error was raised.'
)


def _fail(error: object) -> None:
  """Ends the program with one line and status 1."""
  print(f'error: {" ".join(str(error).split())}', file=sys.stderr)
  sys.exit(1)


def _parse_flags(argv: Sequence[str]) -> Sequence[str]:
  try:
    return flags.FLAGS(argv)
  except flags.Error as error:
    _fail(f'{error} (--help lists the flags)')
  except SystemExit:
    # --help and its like: absl gives status 1 to what is no failure.
    sys.exit(0)


def run(main: Callable[[], None]) -> None:
  """Parses the flags and calls `main`.

  Expected errors (wrong flags and values, files, a failed run) end the program
  with one line on stderr and status 1, Ctrl-C with status 130, SIGTERM with
  143.
  """

  def guarded(argv: Sequence[str]) -> None:
    if not flags.FLAGS['verbosity'].present:
      # TFF logs at INFO what nobody asked for; --verbosity=0 brings it back.
      logging.set_verbosity(logging.WARNING)
    try:
      if len(argv) > 1:
        raise ValueError(
          errors.message('arguments', 'flags only (--name=value)', argv[1])
        )
      with shutdown.stopping_on_signals():
        main()
    except errors.EXPECTED as e:
      if _TRACEBACK.value:
        raise
      _fail(errors.reason(e))

  app.run(guarded, flags_parser=_parse_flags)
