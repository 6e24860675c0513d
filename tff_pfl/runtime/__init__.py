"""Runtimes, which execute the library's computations.

A computation gives the same result on each runtime. `base.Runtime` describes
their use.
"""

from collections.abc import Callable
from typing import Any

from tff_pfl import errors
from tff_pfl.runtime import base, in_process, native, ray_runtime

# Name of a runtime, as in the --runtime flag, to its class.
RUNTIMES: dict[str, Callable[..., base.Runtime]] = {
  'in_process': in_process.InProcessRuntime,
  'native': native.NativeRuntime,
  'ray': ray_runtime.RayRuntime,
}
# The fastest on one machine.
DEFAULT = 'in_process'


def create_runtime(name: str, **options: Any) -> base.Runtime:
  """Makes a runtime.

  Args:
    name: A key of `RUNTIMES`.
    **options: Keyword arguments of the runtime's class.

  Returns:
    The runtime. The caller closes it or uses it in a ``with`` block.
  """
  errors.expect_one_of('runtime', name, sorted(RUNTIMES))
  return RUNTIMES[name](**options)
