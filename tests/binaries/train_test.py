import json
import pathlib
import signal
import subprocess
import sys
import time

import numpy as np
import psutil
import pytest

from tests.binaries import tiny
from tests.datasets import shared
from tff_pfl import errors
from tff_pfl.runs import directory_lock, metrics_writers, report, run_store

_ROOT = pathlib.Path(__file__).parents[2]
_TINY = (*tiny.FLAGS, '--fed_rep_num_head_epochs=1')
_TIMES = ('seconds', 'rss_mb', 'seconds_per_round', 'peak_rss_mb')


def _without_times(row):
  return {key: value for key, value in row.items() if key not in _TIMES}


def _summary(directory):
  return json.loads((directory / report.SUMMARY_NAME).read_text())


def _everything(directory):
  """All that a run has left behind, apart from times and memory."""
  with run_store.RunStore.open_for_reading(directory) as store:
    found = {
      'server_state': store.server_state(),
      'client_states': store.client_states(range(store.config['num_clients'])),
      'history': [_without_times(row) for row in store.history()],
      'per_client': store.per_client(),
    }
  with open(directory / metrics_writers.JSONL_NAME) as file:
    found['metrics.jsonl'] = [_without_times(json.loads(row)) for row in file]
  found['per_client.csv'] = (directory / report.PER_CLIENT_NAME).read_bytes()
  found['summary.json'] = _without_times(_summary(directory))
  return found


def _last_round(directory):
  try:
    with run_store.RunStore.open_for_reading(directory) as store:
      return store.last_round
  except errors.RunError:
    return -1


def _bytes_of(directory):
  return {
    path.relative_to(directory): path.read_bytes()
    for path in directory.rglob('*')
    if path.is_file() and path.name != directory_lock.LOCK_NAME
  }


def _train_as_users_do(directory):
  result = subprocess.run(
    [
      sys.executable,
      '-m',
      'binaries.train',
      *_TINY,
      f'--output_dir={directory}',
    ],
    cwd=_ROOT,
    stdin=subprocess.DEVNULL,
    capture_output=True,
    text=True,
    timeout=120,
  )
  assert result.returncode == 0, result.stderr
  return result


@pytest.fixture(scope='module', name='trained')
def _trained(tmp_path_factory):
  """A finished run."""
  directory = tmp_path_factory.mktemp('runs') / 'trained'
  return directory, _train_as_users_do(directory)


def test_output_is_a_table_and_the_report_and_nothing_but_progress_on_stderr(
  trained,
):
  directory, result = trained
  lines = result.stdout.splitlines()
  assert lines[0].startswith('method')
  assert any(line.startswith('fed_rep ') for line in lines)
  assert lines[-1] == f'Report: {directory / report.SUMMARY_NAME}'
  # TensorFlow's and TFF's start-up messages are silenced.
  first, second, *others = result.stderr.replace('\r', '\n').splitlines()
  assert (first, second) == ('Importing TensorFlow …', 'Reading digits …')
  for line in others:
    assert not line or line.startswith('fed_rep:'), result.stderr


@pytest.mark.slow
def test_same_command_gives_the_same_run_apart_from_times(trained, tmp_path):
  _train_as_users_do(tmp_path / 'again')
  assert _everything(tmp_path / 'again') == _everything(trained[0])


def test_settings_stand_in_the_summary(trained):
  summary = _summary(trained[0])
  assert summary['algorithm'] == 'fed_rep'
  assert summary['dataset'] == 'digits'
  assert summary['hparams']['num_head_epochs'] == 1
  assert summary['model_arguments'] == {'widths': [16]}


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


_USAGE = [
  ('--algorithm=fed_best', 'fed_per|fed_proto|fed_prox|fed_rep'),
  ('--baselines=fed_best', "found 'fed_best'"),
  ('--algoritm=fed_rep', 'Did you mean: algorithm'),
  ('--num_rounds=many', "'many'"),
  ('--num_rounds=0', 'positive integer'),
  ('--seed=-1', 'non-negative integer'),
  ('--fed_rep_head_learning_rate=-1', '--fed_rep_head_learning_rate to be'),
  ('--fed_rep_optimizer=lion', "found 'lion'"),
  ('--partition=shards:11', 'shards'),
  ('--model_widths=16,x', 'integers separated by commas'),
  ('--model_widths=0', '--model_widths to be an integer at least 1'),
  (
    '--model_filters=8',
    "arguments of model 'mlp' (widths, activation, initialization), found "
    "'filters'",
  ),
  ('--fine_tune=tail', 'one of method, none, head, all'),
  ('--fine_tune_num_epochs=2', 'it is for --fine_tune=head or all'),
  (
    '--fine_tune=all --fine_tune_num_epochs=2 --fine_tune_num_steps=3',
    'no --fine_tune_num_epochs: --fine_tune_num_steps is 3, and steps are '
    'instead of epochs',
  ),
  (
    '--baselines=per_fed_avg --per_fed_avg_inner_learning_rate=-1',
    '--per_fed_avg_inner_learning_rate to be a non-negative number',
  ),
  (
    '--baselines=per_fed_avg --per_fed_avg_num_epochs=2',
    '--per_fed_avg_num_steps is 10, and steps are instead of epochs',
  ),
  ('--server_learning_rate=0', '--server_learning_rate to be'),
  (
    '--fed_avg_num_epochs=1',
    'selected method (fed_rep) only, found --fed_avg_num_epochs',
  ),
  ('--cohort_size=7', '--cohort_size to be 1 to num_clients=6, found 7'),
  (
    '--participation=0.5',
    'one of --cohort_size and --participation, found both',
  ),
  ('--cohort_size=2,3', '--cohort_size to be a number, or 5,10:20,50:40'),
  ('--dropout_rate=1', '--dropout_rate to be a number in [0, 1), found 1.0'),
  ('--join_rounds=0.5', '--join_rounds to be 50:0.2,100:0.3'),
  (
    '--aggregator=dp',
    '--dp_epsilon to be given, or else --dp_noise_multiplier',
  ),
  ('--aggregator=ddp', '--dp_noise_multiplier to be a positive number'),
  ('--dp_epsilon=1', 'no --dp_epsilon: --aggregator=mean does not take it'),
  ('--data_dir=.', 'reads no files'),
  ('resume', "found 'resume'"),
  ('--model=linear --model_widths=', 'fed_rep to share'),
  ('--class_weight=0:1,0:2', '--class_weight to be of distinct classes'),
  ('--class_weight=12:3', 'in [0, 9], found 12'),
  ('--metrics=auc,rmse', '--metrics to be metrics of a classifier, such as'),
  ('--flagfile=none.txt', 'none.txt'),
]


@pytest.mark.parametrize('flags, words', _USAGE)
def test_wrong_flags_are_one_line_and_leave_nothing_behind(
  programs, flags, words
):
  # The last of two flags of one name counts.
  message = programs.fail('train', *_TINY, '--output_dir=run', *flags.split())
  assert words in message
  assert not (programs.directory / 'run').exists()


@pytest.mark.slow
def test_a_method_that_adapts_its_model_is_scored_adapted(programs):
  programs.succeed(
    'train',
    *tiny.FLAGS,
    '--algorithm=per_fed_avg',
    '--per_fed_avg_inner_learning_rate=1',
    '--output_dir=run',
  )
  summary = _summary(programs.directory / 'run')
  assert summary['hparams']['batch_size'] == 40
  # What was done is recorded, not that it was left to the method.
  assert summary['personalization'] == summary['process']['personalization']
  assert summary['personalization']['fine_tune'] == 'all'
  assert summary['personalization']['learning_rate'] == 1
  assert summary['accuracy']['last'] != summary['global_accuracy']['last']


def test_participation_is_for_the_rounds_before_other_sizes(programs):
  flags = [f for f in _TINY if not f.startswith('--cohort_size')]
  programs.succeed(
    'train',
    *flags,
    '--participation=0.5',
    '--cohort_size=2:6',
    '--output_dir=run',
  )
  summary = _summary(programs.directory / 'run')
  assert summary['cohort_size'] == '3,2:6'
  with run_store.RunStore.open_for_reading(programs.directory / 'run') as store:
    assert [row['clients'] for row in store.history()] == [3, 6]


def test_participation_out_of_range_is_one_line(programs):
  flags = [f for f in _TINY if not f.startswith('--cohort_size')]
  message = programs.fail(
    'train', *flags, '--participation=1.5', '--output_dir=run'
  )
  assert (
    message == 'Expected --participation to be a number in (0, 1], found 1.5.'
  )


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
  kept = [f for f in _TINY if not f.startswith('--dataset')]
  return (
    *kept,
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
  assert _last_round(programs.directory / 'run') == 2


def test_damaged_data_are_one_line_and_leave_nothing_behind(
  programs, mnist_folder
):
  shared.write_image_set(mnist_folder, 'mnist', (28, 28, 1), y=np.zeros(9, int))
  message = programs.fail('train', *_of_mnist(mnist_folder))
  assert '40 labels, integers, one per image' in message
  path = mnist_folder / 'mnist.npz'
  path.write_bytes(path.read_bytes()[:1000])
  message = programs.fail('train', *_of_mnist(mnist_folder))
  assert 'a complete .npz file' in message
  path.unlink()
  message = programs.fail('train', *_of_mnist(mnist_folder))
  assert message.startswith('Expected --data_dir to hold a file mnist.npz')
  assert message.endswith(f'binaries.prepare --data_dir={mnist_folder}`.')
  assert not (programs.directory / 'run').exists()


def test_existing_run_is_neither_overwritten_nor_resumed_otherwise(
  trained, programs
):
  directory, _ = trained
  before = _bytes_of(directory)

  def refused(*flags):
    message = programs.fail(
      'train', *_TINY, f'--output_dir={directory}', *flags
    )
    assert _bytes_of(directory) == before
    return message

  assert 'pass --resume to continue it' in refused()
  assert 'hparams.num_head_epochs was 1, now 3' in refused(
    '--resume', '--fed_rep_num_head_epochs=3'
  )


def test_output_dir_that_is_a_file_is_one_line(programs):
  (programs.directory / 'run').write_text('mine')
  message = programs.fail('train', *_TINY, '--output_dir=run')
  assert 'Cannot write to the output directory run' in message
  assert (programs.directory / 'run').read_text() == 'mine'


_NUM_ROUNDS = 30
_LONG = (
  *(f for f in _TINY if not f.startswith('--rounds_per_evaluation')),
  f'--num_rounds={_NUM_ROUNDS}',
  '--rounds_per_evaluation=3',
  '--num_clients=30',
  '--cohort_size=5',
  '--fed_rep_num_head_epochs=2',
  '--output_dir=run',
  '--resume',
)


@pytest.fixture(scope='module', name='undisturbed')
def _undisturbed(module_programs):
  module_programs.succeed('train', *_LONG)
  return _everything(module_programs.directory / 'run')


def _wait_for_round(program, directory, round_number):
  while _last_round(directory) < round_number:
    assert program.is_running(), 'The program ended before it was to be killed.'
    time.sleep(0.005)


def _assert_ends(processes):
  _, alive = psutil.wait_procs(processes, timeout=10)
  assert not alive


def test_a_signal_ends_the_program_and_loses_nothing(undisturbed, programs):
  directory = programs.directory / 'run'
  for round_number, signal_number, status, last_words in (
    (4, signal.SIGINT, 130, 'interrupted\n'),
    (12, signal.SIGKILL, -signal.SIGKILL, ''),
  ):
    program = programs.start('train', *_LONG)
    _wait_for_round(program, directory, round_number)
    program.kill(signal_number)
    result = program.wait()
    assert result.status == status
    assert result.err.endswith(last_words)
    assert 'Traceback' not in result.err
    assert round_number <= _last_round(directory) < _NUM_ROUNDS
    if signal_number != signal.SIGKILL:
      # Closed in order: all is in one file.
      assert not (directory / f'{run_store.FILE_NAME}-wal').exists()
  programs.succeed('train', *_LONG)
  assert _everything(directory) == undisturbed


@pytest.mark.slow
def test_signals_and_a_killed_worker_leave_no_process_and_lose_nothing(
  programs,
):
  directory = programs.directory / 'run'
  flags = (*_LONG, '--runtime=native')
  programs.succeed('train', *flags, '--output_dir=undisturbed')
  undisturbed = _everything(programs.directory / 'undisturbed')

  def start_and_wait_for_round(round_number):
    program = programs.start('train', *flags)
    _wait_for_round(program, directory, round_number)
    return program, program.workers()

  for round_number, signal_number, status, last_words in (
    (4, signal.SIGTERM, 143, ''),
    (12, signal.SIGINT, 130, 'interrupted\n'),
  ):
    program, workers = start_and_wait_for_round(round_number)
    assert workers
    begin = time.monotonic()
    program.kill(signal_number)
    result = program.wait()
    assert time.monotonic() - begin < 10
    assert result.status == status
    assert result.err.endswith(last_words)
    assert 'Traceback' not in result.err
    assert 'Exception ignored' not in result.err
    _assert_ends(workers)
    assert round_number <= _last_round(directory) < _NUM_ROUNDS
    # Closed in order: all is in one file.
    assert not (directory / f'{run_store.FILE_NAME}-wal').exists()

  program, (worker,) = start_and_wait_for_round(20)
  worker.kill()
  result = program.wait()
  assert result.status == 1
  assert 'killed by signal 9' in result.err.splitlines()[-1]
  programs.succeed('train', *flags)
  assert _everything(directory) == undisturbed
