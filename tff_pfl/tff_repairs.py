"""Makes TensorFlow Federated 0.87 importable with a newer TensorFlow.

TFF's own modules work unchanged. Three modules that they import do not:

* `tensorflow_privacy` 0.9.0 imports estimators, which TensorFlow no longer has.
  A switch skips all its imports, so this module sets the queries that TFF uses.
* `tensorflow_model_optimization` switches `tf.keras` to Keras 2. TFF uses only
  a part of it that works without the rest. The rest is imported when it is
  used.
* `jax.lib` no longer exports `xla_client`, which `jaxlib` still has, and
  `jax.stages` no longer has its own type for the shapes of results.

`tff.jax` and `tensorflow_probability` are also imported only when they are
used, because few programs use them and their import takes 0.5 s.

When Python exits, the workers of TFF's contexts are stopped. Otherwise the
object that owns a worker is destroyed when the names that its `__del__` needs
are gone. Python then prints "Exception ignored in: ... ServiceManager.__del__"
and leaves the worker running.

TFF drops the result of a check in its secure sums. The result is marked as used
here, because TensorFlow would otherwise log "Object was never used" and eleven
more lines for each sum.

A stored computation has the same types many times, and TFF reads each of them
anew, which takes a quarter of a round's lowering. Here each type is read once.

Importing `tff_pfl` applies these repairs. For programs that import TFF first or
alone, an environment has a copy of this file among its packages, and a `.pth`
file that makes Python call `before_tff` at startup. So this module must not
import anything slow.
"""

import atexit
import importlib
import importlib.util
import os
import pkgutil
import sys
import threading
import types
import weakref

# What TFF imports but most programs do not use.
_RARELY_USED = ('tensorflow_model_optimization', 'tensorflow_probability')
_USE_KERAS_2 = 'TF_USE_LEGACY_KERAS'
_TFF_JAX = 'tensorflow_federated.python.core.environments.jax'


class _UsedLater(types.ModuleType):
  """A module whose code runs when one of its names is first used."""

  def __getattr__(self, name):
    # Other libraries look for such names in all modules.
    if name.startswith('__') and name not in ('__all__', '__version__'):
      raise AttributeError(name)
    with _import_lock:
      if isinstance(self, _UsedLater) and self.__name__ not in _running:
        _running.add(self.__name__)
        try:
          _run(self)
          self.__class__ = types.ModuleType
        finally:
          _running.remove(self.__name__)
    if isinstance(self, _UsedLater):  # Its own code asks for a missing name.
      raise AttributeError(
        f'module {self.__name__!r} has no attribute {name!r}'
      )
    return getattr(self, name)


_import_lock = threading.RLock()
_running = set()


def _run(module):
  if module.__name__ == _TFF_JAX:
    _repair_jax()
  # tensorflow-model-optimization would change other programs' `tf.keras`.
  before = os.environ.get(_USE_KERAS_2)
  try:
    module.__spec__.loader.exec_module(module)
  finally:
    os.environ.pop(_USE_KERAS_2, None)
    if before is not None:
      os.environ[_USE_KERAS_2] = before


def _use_later(name):
  if name not in sys.modules:
    spec = importlib.util.find_spec(name)
    if spec is not None:
      module = sys.modules[name] = importlib.util.module_from_spec(spec)
      module.__class__ = _UsedLater


def repair() -> None:
  """Repairs the imports of `tensorflow_federated`. Repeated calls are safe."""
  for name in _RARELY_USED:
    _use_later(name)
  sys.skip_tf_privacy_import = True
  privacy = importlib.import_module('tensorflow_privacy')
  queries = importlib.import_module('tensorflow_privacy.privacy.dp_query')
  for _, module_name, _ in pkgutil.iter_modules(queries.__path__):
    if not module_name.endswith(('_test', '_utils')):
      module = importlib.import_module(f'{queries.__name__}.{module_name}')
      setattr(privacy, module_name, module)
      for name, value in vars(module).items():
        if getattr(value, '__module__', None) == module.__name__:
          setattr(privacy, name, value)


def _repair_jax() -> None:
  jax_lib = importlib.import_module('jax.lib')
  if not hasattr(jax_lib, 'xla_client'):
    jax_lib.xla_client = importlib.import_module('jaxlib.xla_client')
  jax = sys.modules['jax']
  if not hasattr(jax.stages, 'OutInfo'):
    jax.stages.OutInfo = jax.ShapeDtypeStruct


def _end_workers_at_exit(module) -> None:
  """Makes the workers of TFF's contexts stop before Python exits.

  Args:
    module: The module `tensorflow_federated`.
  """
  stacks = _module_of_tff('core.impl.executor_stacks.executor_factory')
  make = stacks.local_cpp_executor_factory

  def make_and_register(**options):
    return _end_worker_at_exit(make(**options))

  stacks.local_cpp_executor_factory = make_and_register
  # The default context already exists.
  _end_worker_at_exit(
    module.framework.get_context_stack().current.executor_factory
  )


def _end_worker_at_exit(factory):
  cells = [c.cell_contents for c in factory._executor_stack_fn.__closure__]
  (manager,) = [each for each in cells if hasattr(each, 'get_stub')]
  atexit.register(_end_worker, weakref.ref(manager))
  return factory


def _end_worker(reference) -> None:
  manager = reference()
  # Each manager has its own class.
  if manager is not None and hasattr(type(manager), '__del__'):
    del type(manager).__del__
    if manager._process is not None:
      # Otherwise its threads report the end when no thread can start any more.
      manager._stub._channel.close()
      manager._process.kill()
      manager._process.wait()


def _use_check_of_secure_sums() -> None:
  primitives = _module_of_tff('aggregators.primitives')
  tf = primitives.tf

  def check(*args, **kwargs):
    # Reading any attribute marks the result as used.
    getattr(tf.debugging.assert_less_equal(*args, **kwargs), 'name', None)

  debugging = types.SimpleNamespace(assert_less_equal=check)
  primitives.tf = types.SimpleNamespace(**{**vars(tf), 'debugging': debugging})


def _read_types_once() -> None:
  serialization = _module_of_tff('core.impl.types.type_serialization')
  read = serialization.deserialize_type
  types_by_proto = weakref.WeakValueDictionary()

  def deserialize_type(type_proto):
    key = type_proto.SerializeToString()
    found = types_by_proto.get(key)
    if found is None:
      found = types_by_proto[key] = read(type_proto)
    return found

  serialization.deserialize_type = deserialize_type


def _module_of_tff(name):
  return sys.modules[f'tensorflow_federated.python.{name}']


class _Finder:
  """Finds TFF, and repairs its imports before its code runs."""

  _is_looking = False

  def find_spec(self, name, path=None, target=None):
    if name != 'tensorflow_federated':
      return None
    if self._is_looking:
      return None
    self._is_looking = True
    try:
      spec = importlib.util.find_spec(name)
    finally:
      self._is_looking = False
    if spec is not None:
      execute = spec.loader.exec_module
      spec.loader.exec_module = lambda module: (
        repair(),
        _use_later(_TFF_JAX),
        execute(module),
        _end_workers_at_exit(module),
        _use_check_of_secure_sums(),
        _read_types_once(),
      )
    return spec


def before_tff() -> None:
  """Makes the import of `tensorflow_federated` call `repair` first."""
  if 'tensorflow_federated' not in sys.modules:
    sys.meta_path.insert(0, _Finder())
