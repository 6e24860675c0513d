import os
import pathlib
import signal
import subprocess
import sys
import time

import keras
import psutil
import pytest

from tests.binaries import tiny
from tests.datasets import shared
from tests.runs import left_behind
from tff_pfl.runs import directory_lock, report, run_store

_ROOT = pathlib.Path(__file__).parents[2]
_TINY = (*tiny.FLAGS, '--fed_rep_num_head_epochs=1')


def _without(flags, *names):
  return [flag for flag in flags if not flag.startswith(names)]


_LINEAR = (
  *_without(tiny.FLAGS, '--model'),
  *('--algorithm=fed_avg', '--model=linear', '--num_rounds=1'),
)
_NUM_ROUNDS = 20
_LONG = (
  *_without(_TINY, '--rounds_per_evaluation', '--cohort_size'),
  f'--num_rounds={_NUM_ROUNDS}',
  '--rounds_per_evaluation=3',
  '--participation=0.5',
)


@pytest.fixture(scope='module', name='trained')
def _trained(module_programs):
  """The folder of a finished run."""
  module_programs.succeed('train', *_LONG, '--output_dir=trained')
  return module_programs.directory / 'trained'


def test_output_is_a_table_and_the_report_and_nothing_but_progress_on_stderr(
  tmp_path,
):
  # As users see it, who start it with XLA and TensorFlow's messages.
  environment = {**os.environ}
  del environment['TF_CPP_MIN_LOG_LEVEL']
  result = subprocess.run(
    [
      *(sys.executable, '-m', 'binaries.train', *_LINEAR),
      f'--output_dir={tmp_path}',
    ],
    cwd=_ROOT,
    stdin=subprocess.DEVNULL,
    capture_output=True,
    text=True,
    env=environment,
    timeout=300,
  )
  assert result.returncode == 0, result.stderr
  lines = result.stdout.splitlines()
  assert lines[0].startswith('method')
  assert any(line.startswith('fed_avg ') for line in lines)
  assert lines[-1] == f'Report: {tmp_path / report.SUMMARY_NAME}'
  assert (tmp_path / report.CLIENTS_PLOT_NAME).exists()
  # TensorFlow's and TFF's start-up messages are silenced.
  first, second, *others = result.stderr.replace('\r', '\n').splitlines()
  assert (first, second) == ('Importing TensorFlow …', 'Reading digits …')
  for line in others:
    assert not line or line.startswith('fed_avg:'), result.stderr


def test_a_run_has_what_the_flags_say(trained):
  summary = left_behind.summary(trained)
  assert (summary['algorithm'], summary['dataset']) == ('fed_rep', 'digits')
  assert summary['process']['hparams']['num_head_epochs'] == 1
  assert summary['settings']['model']['arguments'] == {'widths': [16]}
  assert summary['rounds']['cohort_size'] == 3
  with run_store.RunStore.open_for_reading(trained) as store:
    sizes = [row['clients'] for row in store.history()]
  assert sizes == [3] * _NUM_ROUNDS


def test_existing_run_is_neither_overwritten_nor_resumed_otherwise(
  trained, programs
):
  def contents():
    return {
      path: path.read_bytes()
      for path in trained.rglob('*')
      if path.is_file() and path.name != directory_lock.LOCK_NAME
    }

  before = contents()
  for flags, words in (
    (
      _LINEAR,
      'pass --resume to continue it',
    ),
    (
      (*_LONG, '--resume', '--fed_rep_num_head_epochs=3'),
      'method.num_head_epochs was 1, now 3',
    ),
  ):
    assert words in programs.fail('train', *flags, f'--output_dir={trained}')
    assert contents() == before


@pytest.mark.slow
def test_baselines_run_on_the_same_clients_and_are_compared(programs):
  # The main job, as `make train` runs it, but shorter.
  result = programs.succeed(
    'train',
    '--flagfile=binaries/flagfiles/fed_rep.txt',
    '--num_rounds=1',
    f'--output_dir={programs.directory / "run"}',
    cwd=_ROOT,
  )
  directory = programs.directory / 'run'
  # The tables by domain come first, so that the comparison is read last.
  table = result.out.splitlines()[-4:]
  assert [line.split()[0] for line in table] == [
    'fed_rep',
    'fed_avg',
    'local_only',
    'Report:',
  ]
  assert (directory / report.COMPARISON_PLOT_NAME).exists()
  sizes = set()
  for folder in ('.', 'baselines/fed_avg', 'baselines/local_only'):
    assert (directory / folder / report.SUMMARY_NAME).exists()
    with run_store.RunStore.open_for_reading(directory / folder) as store:
      sizes.add(tuple(row['num_train_examples'] for row in store.per_client()))
  assert len(sizes) == 1


@pytest.mark.parametrize(
  'flags, words',
  [
    ('--algorithm=fed_best', 'fed_per|fed_proto|fed_prox|fed_rep'),
    ('--baselines=fed_best', '--baselines to be one of apfl, ditto, '),
    ('--baselines=fed_dar', 'whose examples have a domain'),
    (
      '--baselines=scaffold --scaffold_total_clients=7',
      '--scaffold_total_clients to be 6, the number of all clients',
    ),
    ('--fed_avg_num_epochs=1', '(fed_rep) only, found --fed_avg_num_epochs'),
    ('--cohort_size=7', '--cohort_size to be 1 to num_clients=6, found 7'),
    ('--participation=0.5', '--participation to be unset with --cohort_size'),
  ],
)
def test_wrong_flags_are_one_line_and_leave_nothing_behind(
  programs, flags, words
):
  # The last of two flags of one name counts.
  message = programs.fail('train', *_TINY, '--output_dir=run', *flags.split())
  assert words in message
  assert not (programs.directory / 'run').exists()


def test_traceback_shows_where_an_error_was_raised(programs):
  result = programs.run(
    'train', *_TINY, '--cohort_size=9', '--output_dir=run', '--traceback'
  )
  assert result.status == 1
  assert 'Traceback (most recent call last)' in result.err
  assert 'client_sampling.py' in result.err
  assert 'ValueError: Expected `cohort_size`' in result.err


@pytest.fixture(name='mnist_folder')
def _mnist_folder(programs):
  """A folder with a well-formed file of MNIST's kind."""
  folder = programs.directory / 'data'
  folder.mkdir()
  images = shared.images((28, 28, 1), 200, 60)
  shared.write_image_set(folder, 'mnist', (28, 28, 1), **images)
  return folder


def _of_mnist(folder, *flags):
  return (
    *_without(_TINY, '--dataset'),
    '--dataset=mnist',
    f'--data_dir={folder}',
    '--num_rounds=1',
    '--output_dir=run',
    *flags,
  )


@pytest.mark.slow
def test_data_folder_is_read_and_may_move_between_runs(programs, mnist_folder):
  programs.succeed('train', *_of_mnist(mnist_folder))
  moved = mnist_folder.with_name('moved')
  mnist_folder.rename(moved)
  message = programs.fail('train', *_of_mnist(mnist_folder, '--resume'))
  assert '--data_dir to be an existing file or folder' in message
  programs.succeed('train', *_of_mnist(moved, '--resume', '--num_rounds=2'))
  assert left_behind.last_round(programs.directory / 'run') == 2


def test_damaged_data_are_one_line_and_leave_nothing_behind(
  programs, mnist_folder
):
  path = mnist_folder / 'mnist.npz'
  path.write_bytes(path.read_bytes()[:1000])
  message = programs.fail('train', *_of_mnist(mnist_folder))
  assert 'a complete .npz file' in message
  path.unlink()
  message = programs.fail('train', *_of_mnist(mnist_folder))
  assert message.startswith('Expected --data_dir to be one folder with a')
  assert 'The program prepare makes such files' in message
  assert not (programs.directory / 'run').exists()


@pytest.mark.parametrize(
  'runtime', ['in_process', pytest.param('native', marks=pytest.mark.slow)]
)
def test_a_signal_ends_the_program_and_loses_nothing(
  trained, programs, runtime
):
  directory, undisturbed = programs.directory / 'run', trained
  flags = *_LONG, '--resume', '--output_dir=run', f'--runtime={runtime}'
  if runtime == 'native':
    # It has other bits.
    undisturbed = programs.directory / 'undisturbed'
    programs.succeed('train', *flags, '--output_dir=undisturbed')
  for round_number, signal_number, status, last_words in (
    (3, signal.SIGINT, 130, 'interrupted\n'),
    (9, signal.SIGKILL, -signal.SIGKILL, ''),
  ):
    program = programs.start('train', *flags)
    while left_behind.last_round(directory) < round_number:
      assert program.is_running(), 'It ended before it was to be killed.'
      time.sleep(0.005)
    workers = program.workers()
    assert len(workers) == (runtime == 'native')
    program.kill(signal_number)
    result = program.wait(10)
    assert result.status == status
    assert result.err.endswith(last_words)
    assert 'Traceback' not in result.err
    assert 'Exception ignored' not in result.err
    assert not psutil.wait_procs(workers, timeout=10)[1]
    assert round_number <= left_behind.last_round(directory) < _NUM_ROUNDS
    if signal_number != signal.SIGKILL:
      # Closed in order: all is in one file.
      assert not (directory / f'{run_store.FILE_NAME}-wal').exists()
  programs.succeed('train', *flags)
  actual, expected = (
    left_behind.everything(folder, 6) for folder in (directory, undisturbed)
  )
  assert actual == expected


@pytest.mark.slow
def test_a_killed_worker_is_one_line(programs):
  program = programs.start(
    'train', *_LONG, '--output_dir=run', '--runtime=native'
  )
  while left_behind.last_round(programs.directory / 'run') < 1:
    time.sleep(0.005)
  program.workers()[0].kill()
  assert 'killed by signal 9' in program.wait().error


_OWN = '''
import keras
import numpy as np
import tff_pfl as pfl

@pfl.dataset
def my_points(*, shift: float = 0.0):
  """Points.

  Args:
    shift: What is added to them.
  """
  y = np.arange(60) % 3
  x = np.stack([y, -y], axis=1) + shift
  return pfl.Arrays(name='my_points', x=x.astype(np.float32), y=y)

@pfl.model
def my_network(
  element_spec,
  num_classes,
  seed,
  *,
  width: int = 16,
  untold: int = 1,
  rates: tuple[float, ...] = (),
  options: dict = {},
):
  """A network.

  Args:
    width: Units of the hidden layer.
  """
  assert rates == [0.5, 1.0] and untold == 1 and not options
  network = keras.Sequential([
    keras.Input(element_spec['x'].shape),
    keras.layers.Dense(width, name='features'),
    keras.layers.Dense(num_classes, name='scores'),
  ])
  loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
  return pfl.from_keras(network, head_layers=['scores'], loss=loss)

class MyHParams(pfl.LocalTrainingHParams):
  """Hyperparameters."""

@pfl.method('trains and keeps nothing', MyHParams)
def my_method(model, hparams):
  def train(client):
    loss = pfl.joint_loss(model)
    return client.result(client.sgd(loss, client.received, hparams.phase()))
  return pfl.global_weights_work(model, pfl.Exchange(train))
'''


def test_programs_know_the_methods_models_and_datasets_of_modules(programs):
  (programs.directory / 'own.py').write_text(_OWN)
  flags = (
    *('--modules=own.py', '--algorithm=my_method', '--my_method_num_epochs=2'),
    *('--model=my_network', '--model_width=5', '--model_rates=.5,1'),
    '--dataset=my_points',
    *('--dataset_shift=1', '--num_clients=4', '--cohort_size=2'),
  )
  programs.succeed('train', *flags, '--num_rounds=1', '--output_dir=own')
  programs.succeed(
    *('train', *flags, '--num_rounds=2', '--output_dir=own', '--resume')
  )
  export = ('export', '--run_dir=own', '--format=keras', '--client=client_0')
  programs.succeed(*export, '--modules=own.py', '--output=own.keras')
  network = keras.models.load_model(programs.directory / 'own.keras')
  assert network.count_params() == 2 * 5 + 5 + 5 * 3 + 3
  # Without them nothing is known of the run.
  error = programs.fail(*export, '--output=again.keras')
  assert 'is not known here: import the module that registers it' in error
  shown = programs.succeed('train', *flags[:1], '--help', *flags[1:]).out
  assert '--model_width: With --model=my_network: Units of the' in shown
  error = programs.fail('train', '--modules=absent.py', *flags[1:])
  assert 'absent.py: No such file' in error
  error = programs.fail('train', *flags[1:4], '--output_dir=other')
  assert '--modules registers your own' in error
  (programs.directory / 'other.py').write_text(
    _OWN.replace('untold: int', 'padding: int')
  )
  error = programs.fail('train', '--modules=~/other.py, json', *flags[1:])
  assert 'other.py: No such file' in error and '~' not in error
  error = programs.fail('train', '--modules=json, other.py', *flags[1:])
  assert 'another name for the argument padding of my_network' in error
