"""The base of runtimes that interpret computations in this process.

The computation itself and the server's work run here, with TensorFlow. What
clients compute is handed to a `ClientMapper`; these runtimes differ in theirs.
"""

import collections
import concurrent.futures
import threading
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple, Optional

import tensorflow as tf
import tensorflow_federated as tff

from tff_pfl import errors
from tff_pfl.runtime import (
  base,
  client_mapper,
  graph_functions,
  interpreter,
  lowering,
  python_values,
  threads,
)
from tff_pfl.runtime import cancellation as cancellation_lib
from tff_pfl.runtime.private_api import cardinalities_utils

_MAX_LOWERED_COMPUTATIONS = 256
_MAX_COMPUTATIONS_AT_A_TIME = 1000
_SECONDS_FOR_ABANDONED_CALL = 1.0


class InterpretingRuntime(base.Runtime):
  """Interprets computations; a mapper runs what clients compute."""

  def __init__(
    self,
    mapper: client_mapper.ClientMapper,
    server_device: str,
    make_interpreter: Callable[..., Any] = interpreter.Interpreter,
  ):
    """Makes a runtime that closes the mapper with itself.

    Args:
      server_device: Where all but the clients' work is computed, a name that
        `devices.resolve` gave.
      make_interpreter: Has the arguments of `interpreter.Interpreter`, and
        returns something with its method `run`.
    """
    self._engine = _Engine(mapper, server_device, make_interpreter)
    context = _InterpretingContext(self._engine)
    super().__init__(context)
    # The context, not the runtime, decides how long the mapper is needed: a
    # program may install the runtime and drop it. At exit this also runs.
    weakref.finalize(context, self._engine.close)

  def close(self) -> None:
    """Closes the mapper and frees what was kept for further computations."""
    self._engine.close()


class _Lowered(NamedTuple):
  """A computation that can be run, and its argument's and result's form."""

  interpreter: Any
  read: Optional[Callable[[Any], Any]]
  write: Callable[[Any, int], Any]


class _Engine:
  """What the computations of one runtime share."""

  def __init__(self, mapper, server_device, make_interpreter):
    self._mapper = mapper
    self._make_interpreter = make_interpreter
    self._server_device = server_device
    self._library = graph_functions.FunctionLibrary()
    self._lock = threading.Lock()
    self._is_closed = False
    # From a computation's id to it (weakly) and what it was lowered to.
    self._interpreters = collections.OrderedDict()
    # As many as there are computations at a time. They are used again: what
    # TensorFlow keeps of a thread, it keeps for ever.
    self._threads = threads.Threads(
      _MAX_COMPUTATIONS_AT_A_TIME, 'tff-pfl-computation'
    )
    self._cancellations = weakref.WeakSet()

  def start(
    self, comp: Any, arg: Any, cancellation: cancellation_lib.Cancellation
  ) -> concurrent.futures.Future:
    """Begins to compute in another thread; the future gets the result."""
    self.check_open()
    with self._lock:
      self._cancellations.add(cancellation)
    return self._threads.submit(self._compute, comp, arg, cancellation)

  def check_open(self) -> None:
    if self._is_closed:
      raise errors.RunError(
        'The runtime is closed; create another one to go on.'
      )

  def _compute(
    self, comp: Any, arg: Any, cancellation: cancellation_lib.Cancellation
  ) -> Any:
    parameter_type = comp.type_signature.parameter
    num_clients = 0
    with cancellation.scope(), tf.device(self._server_device):
      lowered = self._lowered(comp)
      argument = None
      if parameter_type is not None:
        argument = lowered.read(arg)
        cardinalities = cardinalities_utils.infer_cardinalities(
          arg, parameter_type
        )
        num_clients = cardinalities.get(tff.CLIENTS, 0)
      result = lowered.interpreter.run(argument, num_clients)
      return lowered.write(result, num_clients)

  def _lowered(
    self, computation: tff.framework.ConcreteComputation
  ) -> _Lowered:
    """Returns the lowered computation."""
    key = id(computation)
    with self._lock:
      known, found = self._interpreters.get(key, (None, None))
      if known is not None and known() is computation:
        self._interpreters.move_to_end(key)
        return found
    signature = computation.type_signature
    made = _Lowered(
      self._make_interpreter(
        lowering.lower(computation), self._library, self._mapper
      ),
      signature.parameter and python_values.reader(signature.parameter),
      python_values.writer(signature.result),
    )
    forget = self._interpreters.pop
    known = weakref.ref(computation, lambda _: forget(key, None))
    with self._lock:
      self._interpreters[key] = (known, made)
      while len(self._interpreters) > _MAX_LOWERED_COMPUTATIONS:
        self._interpreters.popitem(last=False)
    return made

  def close(self) -> None:
    with self._lock:
      if self._is_closed:
        return
      self._is_closed = True
      under_way = list(self._cancellations)
    for cancellation in under_way:
      cancellation.cancel()
    self._mapper.close()
    self._threads.close()
    self._library.clear()
    with self._lock:
      self._interpreters.clear()


class _InterpretingContext(tff.framework.SyncContext):
  """Executes computations; several threads may do so at once."""

  def __init__(self, engine: _Engine):
    self._engine = engine

  def invoke(self, comp: Any, arg: Any) -> Any:
    """Returns the computation's result; see `tff.framework.SyncContext`.

    The work is done in another thread, so that the caller's reacts to Ctrl-C at
    any time, whatever graph or device it has active.
    """
    cancellation = cancellation_lib.Cancellation()
    outcome = self._engine.start(comp, arg, cancellation)
    try:
      return threads.result_of(outcome)
    except (tf.errors.CancelledError, threads.ClosedError):
      self._engine.check_open()
      raise
    except BaseException:
      if not outcome.done():
        # Ctrl-C or a request to exit.
        cancellation.cancel()
        concurrent.futures.wait([outcome], _SECONDS_FOR_ABANDONED_CALL)
      raise
