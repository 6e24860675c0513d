"""The base classes of runtimes and their engines."""

import abc
import contextlib
import weakref
from collections.abc import Mapping
from typing import Any

from tff_pfl import errors
from tff_pfl import tff_api as tff

CLIENTS_PER_CALL = 20


def unsupported(what: str, runs_on_native: bool = True) -> errors.RunError:
  """Returns the error of a computation that in_process and ray cannot run.

  Args:
    what: The part that they lack.
    runs_on_native: Whether TFF's own worker has it.
  """
  if not runs_on_native:
    return errors.RunError(
      f'The computation has {what}, which no runtime can run; write it in '
      'TensorFlow.'
    )
  return errors.RunError(
    f'The computation has {what}, which in_process and ray cannot run; choose '
    'the native runtime (--runtime=native).'
  )


class Engine(abc.ABC):
  """Executes a runtime's computations, in any thread."""

  def __init__(self):
    self.is_closed = False

  @abc.abstractmethod
  def invoke(self, comp: Any, arg: Any) -> Any:
    """Returns a computation's result (see `tff.framework.SyncContext`)."""

  def check_open(self) -> None:
    """Raises `RunError` if the engine is closed."""
    if self.is_closed:
      raise errors.RunError(
        'The runtime is closed; create another one to go on.'
      )

  def close(self) -> None:
    """Frees all resources. Subclasses extend it. A second call does nothing."""
    self.is_closed = True


class _Context(tff.framework.SyncContext):
  """A context that closes its engine when it is freed, or at exit.

  The runtime does not do this, because a program may drop an installed runtime.
  """

  def __init__(self, engine: Engine):
    self._engine = engine
    weakref.finalize(self, engine.close)

  def invoke(self, comp, arg):
    return self._engine.invoke(comp, arg)


class _AsyncContext(tff.framework.AsyncContext):
  """A context that programs may await, for one computation at a time."""

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
  `install` and the block affect only the calling thread. Any thread may call
  `run`.

  Attributes:
    batches_clients: True if clients with equal shapes run as one program.
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
    """The TFF context, for TFF's own functions."""
    return self._context

  def program_context(self) -> tff.program.FederatedContext:
    """Returns a context for `tff.program` and `tff.learning.programs`.

    In an asynchronous function, calls of computations then return references to
    values, as programs expect.
    """
    return tff.program.NativeFederatedContext(_AsyncContext(self._context))

  def install(self) -> None:
    """Makes this runtime TFF's default in the calling thread.

    It stays the default after it is closed. Computations then raise `RunError`
    until another runtime is installed.
    """
    # Keep no reference to the old default: dropping TFF's own stops its worker.
    tff.framework.set_default_context(self._context)

  def run(self, computation: tff.Computation, *args: Any, **kwargs: Any) -> Any:
    """Returns `computation(*args, **kwargs)`, executed on this runtime.

    Args:
      computation: A TFF computation that is not polymorphic.
      *args: Its arguments. Client-placed values are lists with one entry per
        client. Sequences are `tf.data.Dataset`s.
      **kwargs: Its named arguments.

    Returns:
      The computation's result, with client-placed values as lists.
    """
    with tff.framework.get_context_stack().install(self._context):
      return computation(*args, **kwargs)

  def share(self, *mappings: Mapping[Any, Any]) -> tuple[Mapping, ...]:
    """Returns mappings whose values can be clients' arguments on this runtime.

    Args:
      *mappings: Mappings that can be pickled. A runtime with clients in other
        processes returns mappings to references and reads the values there.
    """
    return mappings

  @property
  def clients_per_call(self) -> int:
    """Clients per evaluation batch. Their data are in memory together."""
    return CLIENTS_PER_CALL

  def close(self) -> None:
    """Frees all resources, after which the runtime cannot run anything.

    A second call does nothing.
    """
    self._close()
