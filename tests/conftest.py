"""Settings every test runs under, made before TensorFlow is imported."""

import gc
import os
import sys

import pytest

os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')
os.environ.setdefault('MPLBACKEND', 'Agg')
# The models of TFF's own algorithms are of Keras 2, those of this library not.
os.environ['TF_USE_LEGACY_KERAS'] = '1'

# For tiny models XLA takes seconds to compile and saves nothing. In these
# folders only models that ask for it by `jit_compile=True` are compiled.
_WITHOUT_XLA = (
  'algorithms',
  'benchmark',
  'evaluation',
  'experiments',
  'papers',
  'simulation',
  'tests',
)


def pytest_collection_finish():
  """What imports left is no garbage: the collector need not look at it."""
  gc.collect()
  gc.freeze()
  gc.set_threshold(20_000, 20)
  if 'tensorflow' in sys.modules:
    # Rewriting the graphs of tiny models takes a fifth of a test's time.
    tf = sys.modules['tensorflow']
    tf.config.optimizer.set_experimental_options(
      {'disable_meta_optimizer': True}
    )


@pytest.fixture(autouse=True, scope='module')
def _auto_is_without_xla(request):
  """A model's `jit_compile='auto'` comes to False."""
  split_model = sys.modules.get('tff_pfl.models.split_model')
  if split_model and request.path.parent.name in _WITHOUT_XLA:
    with pytest.MonkeyPatch.context() as patch:
      patch.setattr(
        split_model.SplitModel,
        'uses_xla',
        property(lambda model: model.jit_compile is True),
      )
      yield
  else:
    yield


@pytest.fixture(scope='session')
def runtime():
  """The default runtime, TFF's default for the whole session."""
  from tff_pfl import runtime as runtime_lib

  with runtime_lib.create_runtime(runtime_lib.DEFAULT) as created:
    created.install()
    yield created
