"""The base of all runtimes: install it, run computations, close it."""

import abc
import contextlib
import weakref
from collections.abc import Mapping
from typing import Any, Optional

import tensorflow_federated as tff

from tff_pfl import errors

CLIENTS_PER_CALL = 20


def unsupported(what: str) -> errors.RunError:
  """Returns the error of a computation that only TFF's own worker can run."""
  return errors.RunError(
    f'The computation has {what}, which in_process and ray do not run; choose '
    'the native runtime (--runtime=native).'
  )


class Engine(abc.ABC):
  """The executor of a runtime's computations, in any thread."""

  def __init__(self):
    self.is_closed = False

  @abc.abstractmethod
  def invoke(self, comp: Any, arg: Any) -> Any:
    """Returns a computation's result; see `tff.framework.SyncContext`."""

  def check_open(self) -> None:
    """Raises `RunError` if it is closed."""
    if self.is_closed:
      raise errors.RunError(
        'The runtime is closed; create another one to go on.'
      )

  def close(self) -> None:
    """Frees all resources; subclasses extend it. A second call does nothing."""
    self.is_closed = True


class _Context(tff.framework.SyncContext):
  """A context that closes its engine when it is freed, or at exit.

  The context, not the runtime, closes it: a program may install a runtime and
  drop it.
  """

  def __init__(self, engine: Engine):
    self._engine = engine
    weakref.finalize(self, engine.close)

  def invoke(self, comp, arg):
    return self._engine.invoke(comp, arg)


class _AsyncContext(tff.framework.AsyncContext):
  """A context that programs may await; one computation at a time."""

  def __init__(self, context: tff.framework.SyncContext):
    self._context = context

  async def invoke(self, comp, arg):
    return self._context.invoke(comp, arg)


class Runtime:
  """An executor of TFF computations.

  Either make it the default of the calling thread:

      runtime.install()
      result = computation(arguments)

  or run single computations, or a block of them, on it:

      result = runtime.run(computation, arguments)
      with runtime:
        result = computation(arguments)

  Leaving the block closes the runtime. TFF's contexts are per thread, so
  `install` and the block concern only the calling thread; `run` may be called
  from any thread.

  Attributes:
    batches_clients: True if clients of equal shapes run as one program.
  """

  batches_clients = False

  def __init__(self, engine: Engine):
    """Takes an engine, which must not refer to the runtime."""
    self._close = engine.close
    self._context = _Context(engine)
    self._blocks = contextlib.ExitStack()

  def __enter__(self) -> 'Runtime':
    stack = tff.framework.get_context_stack()
    self._blocks.enter_context(stack.install(self._context))
    return self

  def __exit__(self, *unused_exception) -> None:
    self._blocks.close()
    self.close()

  @property
  def context(self) -> tff.framework.SyncContext:
    """The TFF context, for use with TFF's own functions."""
    return self._context

  def program_context(self) -> tff.program.FederatedContext:
    """Returns a context for `tff.program` and `tff.learning.programs`.

    With it, a call of a computation in an asynchronous function returns
    references to values, as programs expect.
    """
    return tff.program.NativeFederatedContext(_AsyncContext(self._context))

  def install(self) -> None:
    """Makes this runtime TFF's default in the calling thread.

    It stays the default when it is closed; computations then raise `RunError`
    until another runtime is installed.
    """
    # The old default is not kept: dropping TFF's own stops its worker (see
    # `shutdown`).
    tff.framework.set_default_context(self._context)

  def run(self, computation: tff.Computation, *args: Any, **kwargs: Any) -> Any:
    """Returns `computation(*args, **kwargs)`, executed on this runtime.

    Args:
      computation: A TFF computation that is not polymorphic.
      *args: Its arguments. Client-placed values are lists with one entry for
        each client; sequences are `tf.data.Dataset`s.
      **kwargs: Its named arguments.

    Returns:
      The computation's result, with client-placed values as lists.
    """
    with tff.framework.get_context_stack().install(self._context):
      return computation(*args, **kwargs)

  def share(self, *mappings: Mapping[Any, Any]) -> tuple[Mapping, ...]:
    """Returns mappings whose values can be clients' arguments on this runtime.

    Args:
      *mappings: Mappings that can be pickled. A runtime whose clients compute
        elsewhere reads the values there and returns mappings to references.
    """
    return mappings

  @property
  def clients_per_call(self) -> int:
    """Clients per evaluation batch, whose data are in memory together."""
    return CLIENTS_PER_CALL

  @property
  def bytes_moved(self) -> Optional[tuple[int, int]]:
    """Bytes that clients' processes have received and sent.

    None if clients compute in this process, or if it is not known.
    """
    return None

  def close(self) -> None:
    """Frees all resources; the runtime cannot run anything afterwards.

    A second call does nothing.
    """
    self._close()
