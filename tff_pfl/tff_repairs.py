"""Makes TensorFlow Federated 0.87 importable where TensorFlow is new.

TFF's own modules run there as they are. Three that they import do not:

* `tensorflow_privacy` 0.9.0 imports estimators, which TensorFlow no longer has.
  It has a switch that leaves out all its imports; those that TFF takes from it,
  its queries, are set here.
* `tensorflow_model_optimization` makes `tf.keras` Keras 2.
* `jax.lib` no longer gives out `xla_client`, which `jaxlib` still has, and
  `jax.stages` no type of its own for the shapes of results.

When Python ends, the workers of TFF's contexts are ended. Otherwise the object
that owns a worker is destroyed with the last modules, when the names that its
`__del__` needs are gone: "Exception ignored in: ... ServiceManager.__del__",
and a worker that was started is left behind.

A check of TFF's secure sums, whose result TFF drops, is marked as used.
Otherwise TensorFlow logs "Object was never used" and eleven lines for each sum.

Importing `tff_pfl` does this. For programs that import TFF before it or without
it, a copy of this file lies beside the packages of an environment, and a `.pth`
file has Python call `before_tff` when it starts. So it may import nothing that
takes time.
"""

import atexit
import importlib
import os
import pkgutil
import sys
import types
import weakref

_USE_KERAS_2 = 'TF_USE_LEGACY_KERAS'


def repair() -> None:
  """Repairs what `tensorflow_federated` imports; again, it changes nothing."""
  _keep_keras()
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

  jax_lib = importlib.import_module('jax.lib')
  if not hasattr(jax_lib, 'xla_client'):
    jax_lib.xla_client = importlib.import_module('jaxlib.xla_client')
  jax = sys.modules['jax']
  if not hasattr(jax.stages, 'OutInfo'):
    jax.stages.OutInfo = jax.ShapeDtypeStruct


def _keep_keras() -> None:
  """Has `tf.keras` be what it would be without TFF, Keras 3 by default.

  tensorflow-model-optimization, which TFF imports, makes it Keras 2 for all.
  """
  # Which it is to be is decided when it is first used.
  importlib.import_module('tensorflow').keras.Model.__name__  # noqa: B018
  before = os.environ.get(_USE_KERAS_2)
  importlib.import_module('tensorflow_model_optimization')
  if before is None:
    os.environ.pop(_USE_KERAS_2, None)
  else:
    os.environ[_USE_KERAS_2] = before


def _end_workers_at_exit(module) -> None:
  """Has the workers of contexts that then exist end before Python does.

  Args:
    module: The module `tensorflow_federated`.
  """
  stacks = _module_of_tff('core.impl.executor_stacks.executor_factory')
  make = stacks.local_cpp_executor_factory

  def make_and_register(**options):
    return _end_worker_at_exit(make(**options))

  stacks.local_cpp_executor_factory = make_and_register
  # The default was made before.
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
  # Each has a class of its own.
  if manager is not None and hasattr(type(manager), '__del__'):
    del type(manager).__del__
    if manager._process is not None:
      # Its threads would tell of the end, when no thread can start any more.
      manager._stub._channel.close()
      manager._process.kill()
      manager._process.wait()


def _use_check_of_secure_sums() -> None:
  primitives = _module_of_tff('aggregators.primitives')
  tf = primitives.tf

  def check(*args, **kwargs):
    # To read any attribute is to use it.
    getattr(tf.debugging.assert_less_equal(*args, **kwargs), 'name', None)

  debugging = types.SimpleNamespace(assert_less_equal=check)
  primitives.tf = types.SimpleNamespace(**{**vars(tf), 'debugging': debugging})


def _module_of_tff(name):
  return sys.modules[f'tensorflow_federated.python.{name}']


class _Finder:
  """Finds TFF where it is, and has it repaired before it is executed."""

  _is_looking = False

  def find_spec(self, name, path=None, target=None):
    if name != 'tensorflow_federated':
      return None
    if self._is_looking:
      return None
    self._is_looking = True
    try:
      spec = importlib.import_module('importlib.util').find_spec(name)
    finally:
      self._is_looking = False
    if spec is not None:
      execute = spec.loader.exec_module
      spec.loader.exec_module = lambda module: (
        repair(),
        execute(module),
        _end_workers_at_exit(module),
        _use_check_of_secure_sums(),
      )
    return spec


def before_tff() -> None:
  """Has `repair` called when `tensorflow_federated` is imported."""
  if 'tensorflow_federated' not in sys.modules:
    sys.meta_path.insert(0, _Finder())
