"""Settings every test runs under, made before TensorFlow is imported."""

import fcntl
import gc
import os
import sys

import pytest

# Until all is imported: what imports make is no garbage.
gc.disable()

os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')
# The user's own programs stay, and tests share theirs.
os.environ.setdefault(
  'TFF_PFL_PROGRAM_CACHE',
  os.path.join(os.path.dirname(__file__), '..', '.pytest_cache', 'programs'),
)
os.environ.setdefault('MPLBACKEND', 'Agg')
# The models of TFF's own algorithms are of Keras 2, those of this library not.
os.environ['TF_USE_LEGACY_KERAS'] = '1'

# For tiny models XLA takes seconds to compile and saves nothing. In these
# folders only models that ask for it by `jit_compile=True` are compiled.
_WITHOUT_XLA = (
  'benchmark',
  'studies',
  'methods',
  'papers',
  'runs',
  'tests',
)


def pytest_collection_finish():
  """What imports left is no garbage: the collector need not look at it."""
  gc.collect()
  gc.freeze()
  gc.set_threshold(100_000, 20)
  gc.enable()
  if 'tensorflow' in sys.modules:
    # Rewriting the graphs of tiny models takes a fifth of a test's time.
    tf = sys.modules['tensorflow']
    tf.config.optimizer.set_experimental_options(
      {'disable_meta_optimizer': True}
    )
    # As does noting for each operation, which lines of Python made it.
    from tensorflow.python.util import tf_stack

    noted = tf_stack.extract_stack()
    tf_stack.extract_stack = lambda stacklevel=1: noted


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
  """The programs' tests share a server, and run on one worker."""
  if config.getvalue('dist') != 'loadfile':
    return None
  from xdist.scheduler import loadfile

  class Scheduling(loadfile.LoadFileScheduling):
    def _split_scope(self, nodeid):
      scope = super()._split_scope(nodeid)
      is_program = scope.startswith('tests/binaries/')
      return 'tests/binaries' if is_program else scope

  return Scheduling(config, log)


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
  """The default runtime for one client at a time, TFF's default."""
  from tff_pfl import runtime as runtime_lib
  from tff_pfl.system import cores

  cores.divide()
  # One client at a time, as two would load each graph twice; the threads of an
  # operation are as many as in programs.
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(cores, 'divide', lambda *_: None)
    created = runtime_lib.create_runtime(
      runtime_lib.DEFAULT, max_concurrent_clients=1
    )
  with created:
    created.install()
    yield created


@pytest.fixture(scope='session')
def real_data(tmp_path_factory):
  """Makes image sets of the real files, and returns the folder of all data.

  It takes the sets' names. All processes of the tests share the folder. Without
  real files the test is skipped.
  """
  source = os.environ.get('TFF_PFL_DATA_DIR')
  if not source:
    pytest.skip('TFF_PFL_DATA_DIR does not name a folder with the real files')
  from binaries import image_files

  folder = tmp_path_factory.getbasetemp()
  if 'PYTEST_XDIST_WORKER' in os.environ:
    folder = folder.parent
  folder = folder / 'real_data'

  def with_image_sets(*names):
    with open(f'{folder}.lock', 'w') as lock:
      fcntl.flock(lock, fcntl.LOCK_EX)
      if not folder.exists():
        folder.mkdir()
        for name in os.listdir(source):
          # Of an image set it would be taken for what is made here.
          if not name.endswith('.npz'):
            (folder / name).symlink_to(os.path.abspath(f'{source}/{name}'))
      if names:
        list(image_files.prepare(source, folder, names))
    return str(folder)

  return with_image_sets


@pytest.fixture
def registers():
  """Forgets the models, datasets and methods that a test registers."""
  from tff_pfl import datasets
  from tff_pfl.methods import registry
  from tff_pfl.models import zoo

  known = [
    (of, dict(of))
    for of in (zoo.MODELS, datasets.DATASETS, registry.ALGORITHMS)
  ]
  yield
  for of, before in known:
    of.clear()
    of.update(before)


@pytest.fixture(scope='module')
def one_process():
  """Equal settings and initial weights make one process, built once."""
  from tff_pfl.runs import settings as settings_lib

  build, built = settings_lib.Settings.build_process, {}

  def build_once(settings, model, data):
    parts = vars(settings) | {'start': None}
    if isinstance(settings.process.aggregator, str):
      # Of rounds, only the noise of privacy depends on more than cohorts.
      parts |= {'rounds': settings.rounds.cohorts(data.num_clients, 0)}
    weights = [bytes(value) for value in model.initial_weights.values()]
    key = repr((parts, model.domains, weights))
    if key not in built:
      built[key] = build(settings, model, data)
    return built[key]

  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(settings_lib.Settings, 'build_process', build_once)
    yield
