import os
import pathlib
import re
import shlex
import subprocess
import sys
from unittest import mock

import pytest
from absl import flags
from absl.testing import flagsaver

import tff_pfl
from binaries import early, program, run_flags
from tff_pfl.methods import registry
from tff_pfl.studies import plan

_ROOT = pathlib.Path(__file__).parents[2]
_PROGRAMS = (
  *('train', 'compare', 'export', 'personalize', 'predict'),
  *('prepare', 'benchmark', 'reproduce'),
)
_SECONDS = 600
_PRESETS = _ROOT / 'binaries' / 'flagfiles'
_FLAGFILES = sorted(_PRESETS.glob('*.txt'))


def _lines_of(path):
  """The flags of a preset, and of those that it includes."""
  return list(early.expanded(f'--flagfile={path}'))


def _program_of(path):
  """The program that a preset is for."""
  is_comparison = '--algorithms=' in ' '.join(_lines_of(path))
  return 'compare' if is_comparison else 'train'


# Presets whose data come with the library; `train_test` runs fed_rep.txt.
_RUN_HERE = [
  pytest.param(path, marks=pytest.mark.slow, id=path.stem)
  for path in _FLAGFILES
  if 'data_dir' not in path.read_text() and path.stem != 'fed_rep'
]


@pytest.mark.parametrize('name', _PROGRAMS)
def test_help_shows_the_docstring_and_the_flags_and_is_no_failure(
  name, programs
):
  path = _ROOT / 'binaries' / f'{name}.py'
  if not path.exists():
    path = _ROOT / 'binaries' / name / '__main__.py'
  source = path.read_text()
  result = programs.succeed(name, '--help')
  assert not result.err
  assert source.split('"""')[1].strip() in result.out
  for flag in re.findall(r"DEFINE_\w+\(\s*'(\w+)'", source):
    assert re.search(rf'^  --(\[no\])?{flag}: \S', result.out, re.MULTILINE)


def test_version_is_printed_whatever_else_is_missing(programs):
  said = programs.succeed('train', '--version').out
  assert said.startswith(f'tff_pfl {tff_pfl.__version__}, TensorFlow 2.')
  assert ', TensorFlow Federated 0.87.0, Python 3.' in said


def test_paths_are_of_this_machine():
  expanded = f'--input={os.path.expanduser("~/x")}'
  assert program._local('--input=~/x') == expanded
  assert program._local('--a=ray://~') == '--a=ray://~'


@pytest.mark.parametrize(
  'arguments',
  [
    'train --output_dir=file:///run',
    'train --output_dir=/',
    'compare --output_dir=',
    'reproduce --study=fedrep_linear_samples --output_dir=',
    'prepare --data_dir=. --output_dir=',
    'personalize --run_dir=run --dataset=digits --output_dir=/',
    'export --run_dir=run --format=saved_model --output=',
  ],
)
def test_what_is_no_path_of_a_folder_is_refused(arguments, programs):
  message = programs.fail(*arguments.split())
  flag, _, value = arguments.split()[-1].partition('=')
  kind = 'a path below' if value == '/' else 'a path of the file system'
  assert message.startswith(f'Expected {flag} to be {kind}')
  assert message.endswith(f'found {value!r}.')
  assert not list(programs.directory.glob('[!.]*'))


def test_a_folder_with_other_results_is_refused(programs):
  (programs.directory / 'out').mkdir()
  (programs.directory / 'out' / 'study.json').touch()
  message = programs.fail('train', '--num_rounds=1', '--output_dir=out')
  assert message == (
    'out holds a study: choose another output folder for a run.'
  )


def test_help_of_train_has_the_flags_of_what_is_selected(programs):
  def shown(*selected):
    return ' '.join(programs.succeed('train', '--help', *selected).out.split())

  assert '--num_rounds' in programs.succeed('train', '--helpfull').out
  text = shown()
  for words in (
    'Method: --algorithm: The method. apfl: ',
    '--fed_rep_num_head_epochs: fed_rep: Epochs on the head in a round '
    '(tau_h). (default: 10)',
    'Rounds and evaluation: --num_rounds: Number of training rounds. A resumed '
    'run may have more than before. (default: 100)',
    '--fine_tune_num_epochs: Epochs of fine-tuning. (default: 10)',
    '--model_widths: With many values of --model: ',
    '--model=… --aggregator=… --runtime=… --baselines=… has the flags of ',
  ):
    assert words in text
  flags_of_selected = (
    "--fed_avg_learning_rate: fed_avg: The clients' learning rate, positive. "
    '(default: 0.01)',
    '--dataset_stride: With --dataset=shakespeare',
    '--dp_bits: With --aggregator=ddp: Bits of a number of the sum, 1 to 22.',
  )
  for words in flags_of_selected:
    assert words not in text
  text = shown(
    '--algorithm=fed_rep',
    '--baselines=local_only,fed_avg',
    '--dataset=shakespeare',
    '--model=mlp',
    '--aggregator=ddp',
  )
  for words in flags_of_selected:
    assert words in text
  for words in (
    '--ditto_num_epochs',
    '--dataset_label',
    '--dp_epsilon: ',
  ):
    assert words not in text


@pytest.mark.parametrize(
  'command, words',
  [
    ('benchmark --workload=w1,w9', "w4h, w4e, scale|found 'w9'"),
    ('benchmark --workload=', '--workload|at least one'),
    ('train', 'Expected --output_dir to be given.'),
    ('train --flag=1', "Unknown command line flag 'flag'|(--help lists the"),
    ('benchmark --small --output=no/out.jsonl', 'no/out.jsonl'),
    ('benchmark w1', "flags only (--name=value), found 'w1'"),
    ('reproduce', '--study=NAME|--list'),
    ('reproduce --study=3', "fedrep_linear_convergence|'3'"),
    ('reproduce --study=all --set=num_rounds=3', '--set with one study'),
    ('compare --algorithms=', '--algorithms|at least one'),
    ('compare --algorithms=fed_best', '--algorithms to be one of|fed_best'),
    ('compare --algorithm=fed_avg', 'no --algorithm:|--algorithms'),
    ('compare --seeds=1,x', "--seeds|'1,x'"),
    ('compare --grid=momentum=0 --search=momentum=0:1', 'found both'),
    (
      'compare --algorithms=fed_avg --search=momentum=1:0.1',
      '--search to be from a lower to a higher|momentum=1.0:0.1',
    ),
    (
      'compare --algorithms=fed_avg --grid=momentum=0,0',
      '--grid to be a list of values of momentum, none twice',
    ),
    ('compare --initial_weights=no/file.npz', '--initial_weights|no/file.npz'),
    ('compare --algorithms=fed_avg --nofed_dar_alternating', '--fed_dar'),
  ],
)
def test_wrong_use_is_one_line(command, words, programs):
  program, *arguments = command.split()
  if program == 'compare':
    arguments.append('--output_dir=out')
  message = programs.fail(program, *arguments)
  for part in words.split('|'):
    assert part in message
  assert not (programs.directory / 'out').exists()


def test_known_flags_are_read_without_tensorflow(tmp_path, monkeypatch):
  monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path))
  monkeypatch.setattr(early, 'PROGRAM', 'train')
  early.write(early.described(program.GROUPS, run_flags.FLAGS_OF))

  def call(options, *arguments):
    return subprocess.run(
      [sys.executable, *options.split(), 'binaries.train', *arguments],
      cwd=_ROOT,
      capture_output=True,
      text=True,
      check=False,
    )

  for options, wrong, message in (
    ('-m', '--num_round=3', "Unknown command line flag 'num_round'"),
    ('-um', '--num_rounds=x', 'flag --num_rounds=x: invalid literal for int()'),
    ('-X utf8 -m', '--fine_tune=y', 'flag --fine_tune=y: value should be one'),
  ):
    result = call(options, wrong)
    assert (result.returncode, result.stdout) == (1, '')
    assert result.stderr.startswith(f'error: {message}')
    assert 'TensorFlow' not in result.stderr
  result = call('-m', '--help', '--algorithm=ditto')
  assert '--ditto_proximal_strength: ditto: ' in result.stdout
  assert (result.returncode, result.stderr) == (0, '')


def test_damaged_descriptions_of_flags_are_not_used(tmp_path, monkeypatch):
  monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path))
  monkeypatch.setattr(early, 'PROGRAM', 'train')
  assert early.begin('train') is None
  early.write({'flags': 3})
  assert early.read() == {'flags': 3}
  assert early.begin('train') is None
  (path,) = (tmp_path / 'tff_pfl').iterdir()
  path.write_text('{')
  assert early.read() is None


def test_a_preset_that_includes_itself_is_refused(programs):
  path = programs.directory / 'again.txt'
  path.write_text(f'--flagfile={path}')
  message = programs.fail('train', f'--flagfile={path}')
  assert f'--flagfile={path} not to be within itself' in message


def test_presets_are_found_by_the_names_of_repository_and_wheel(
  tmp_path, monkeypatch
):
  monkeypatch.chdir(tmp_path)
  lines = _lines_of(_PRESETS / 'fed_rep.txt')
  assert _lines_of('binaries/flagfiles/fed_rep.txt') == lines
  assert _lines_of('flagfiles/fed_rep.txt') == lines


def test_there_is_a_preset_for_every_method():
  # The papers' own have one each, those that they compare with share one.
  own = 'fed_avg fed_dar fed_fac fed_per fed_rep local_only per_fed_avg'.split()
  assert {path.stem for path in _FLAGFILES} & set(registry.ALGORITHMS) == {*own}
  shared = _ROOT / 'binaries' / 'flagfiles' / 'compare_digits.txt'
  assert '--algorithms=all' in shared.read_text()


@pytest.mark.parametrize('path', _RUN_HERE)
def test_preset_runs(path, programs):
  # From the root of the project, as their users do.
  started = programs.start(
    _program_of(path),
    f'--flagfile={path.relative_to(_ROOT)}',
    '--num_rounds=1',
    f'--output_dir={programs.directory / "run"}',
    cwd=_ROOT,
  )
  # Some train every method.
  result = started.wait(_SECONDS)
  assert result.status == 0, result.err
  assert list((programs.directory / 'run').glob('**/summary.json'))
  assert 'personal' in result.out


@pytest.mark.parametrize('path', _FLAGFILES, ids=lambda path: path.stem)
def test_preset_is_understood_and_complete(path, programs):
  assert path.read_text().startswith('# ')
  lines = _lines_of(path)
  assert all(len(shlex.split(line)) == 1 for line in lines)
  name = _program_of(path)
  # A preset that is started again goes on.
  assert '--resume' in lines
  assert '--output_dir=runs/' in ' '.join(lines)
  source = (_ROOT / 'binaries' / f'{name}.py').read_text()
  own = {f'--{flag}' for flag in re.findall(r"DEFINE_\w+\(\s*'(\w+)'", source)}
  # Flags that are made of a study's fields.
  own |= {'--folds', '--num_new_clients', '--tuning_rounds'}
  given = {}
  for line in lines:
    given.setdefault(line.partition('=')[0], []).append(line.partition('=')[2])
  of_run = [line for line in lines if line.partition('=')[0] not in own]
  with flagsaver.flagsaver():
    flags.FLAGS([name, *of_run])
    names = [] if name == 'compare' else [run_flags.selected_algorithm()]
    # The last of two flags of one name counts.
    for flag in given.keys() & {'--algorithms', '--baselines'}:
      last = given[flag][-1]
      names += registry.ALGORITHMS if last == 'all' else last.split(',')
    for algorithm in names:
      tunes = '--fine_tune_variants' in given
      run_flags.settings_from_flags(algorithm, has_variants=tunes)
  plan.parse_grid(given.get('--grid', []), names, 'grid')


@pytest.mark.slow
@pytest.mark.timeout(_SECONDS)
def test_output_that_cannot_be_written_is_a_failure():
  with open('/dev/full', 'w') as full:
    result = subprocess.run(
      [sys.executable, '-m', 'binaries.reproduce', '--list'],
      cwd=_ROOT,
      stdout=full,
      stderr=subprocess.PIPE,
      check=False,
    )
  assert result.returncode
  assert b'No space left' in result.stderr


def test_a_program_whose_output_cannot_be_written_goes_on(monkeypatch):
  ended = []
  monkeypatch.setattr(program.shutdown, 'exit_without_waiting', ended.append)
  full = mock.Mock(flush=mock.Mock(side_effect=OSError))
  with monkeypatch.context() as patches:
    patches.setattr(sys, 'stdout', full)
    program._end()
  assert not ended
  program._end()
  assert ended == [0]


def test_the_code_of_a_user_ends_as_python_ends_it(monkeypatch):
  defined = flags.FlagValues()
  flags.DEFINE_string('study', None, '', flag_values=defined)
  monkeypatch.setattr(program.flags, 'FLAGS', defined)
  for argument, is_of_user in (
    ('--study=all', False),
    ('--study=my_table.py', True),
  ):
    defined(['program', argument])
    assert program._runs_code_of_user() == is_of_user
    defined.unparse_flags()
