import json
import pathlib

import pytest

from binaries.papers import registry, runner
from tff_pfl.experiments import paper as experiment

_ROOT = pathlib.Path(__file__).parents[2]
# What the end-to-end test does run; the tests of the experiments run the rest.
_RUN = 'fedrep_linear_new_client'


def _store_result(directory, name, passed=True):
  """Leaves what a fast run of an experiment leaves."""
  entry = registry.get_experiment(name)
  result = experiment.Result(
    claims=[experiment.above(f'claim of {name}', 'Figure 1', passed, 0.5)],
    rows=[{'round': 1}],
    setup={},
    draw=lambda figure: None,
  )
  runner.run(
    experiment.Experiment(
      name,
      entry.summary,
      entry.paper,
      entry.uses_images,
      lambda _: result,
      entry.claims_hold_fast,
    ),
    experiment.Settings(str(directory), fast=True, show_progress=False),
  )


def _summary(*path):
  return json.loads(pathlib.Path(*path, 'summary.json').read_text())


def test_help_shows_the_docstring_and_the_flags(programs):
  source = (_ROOT / 'binaries' / 'reproduce.py').read_text()
  result = programs.succeed('reproduce', '--help')
  assert not result.err
  for line in source.split('"""')[1].splitlines():
    assert line in result.out
  for flag in (
    '--data_dir',
    '--dataset',
    '--devices',
    '--experiment',
    '--[no]fast',
    '--[no]list',
    '--output_dir',
    '--[no]rerun',
    '--runtime',
    '--seed',
  ):
    assert f' {flag}: ' in result.out


def test_list_describes_every_experiment(programs):
  lines = programs.succeed('reproduce', '--list').out.splitlines()
  assert len(lines) == 2 + len(registry.EXPERIMENTS)
  for line, entry in zip(lines[2:], registry.EXPERIMENTS.values()):
    assert line.startswith(f'{entry.name} ')
    assert entry.paper in line
    assert line.endswith(entry.summary)


def test_all_runs_what_is_left_and_sums_up(programs):
  for name in registry.EXPERIMENTS:
    if name != _RUN:
      _store_result(programs.directory / 'out', name)
  arguments = ('--experiment=all', '--fast', '--output_dir=out')
  result = programs.succeed('reproduce', *arguments)
  own = _summary(programs.directory, 'out', _RUN)
  assert own['passed']
  assert own['fast']
  assert (programs.directory / 'out' / _RUN / 'figure.png').exists()
  total = _summary(programs.directory, 'out')
  assert total['passed']
  assert [claim['experiment'] for claim in total['claims']] == [
    name
    for name in registry.EXPERIMENTS
    for _ in range(len(own['claims']) if name == _RUN else 1)
  ]
  for name in registry.EXPERIMENTS:
    assert f'\n{name} ' in result.out
    assert f'{name}: ' in result.err
  assert 'Results: out' in result.out
  # Nothing is left to run.
  again = programs.succeed('reproduce', *arguments)
  assert again.out == result.out
  assert f'{_RUN} has been run' in again.err
  # Other settings are refused, before anything runs.
  message = programs.fail('reproduce', *arguments, '--seed=1')
  assert f'out/{next(iter(registry.EXPERIMENTS))} holds' in message
  assert 'seed=0, not seed=1' in message


def test_a_failed_claim_is_named_and_is_a_failure(programs):
  _store_result(programs.directory, _RUN, passed=False)
  arguments = (f'--experiment={_RUN}', '--fast', '--output_dir=.')
  result = programs.run('reproduce', *arguments)
  assert result.error == (
    f'1 of 1 claims of {_RUN} failed: "claim of {_RUN}" (measured 0, '
    'expected > 0.5)'
  )
  assert 'NO' in result.out.split()


def test_a_claim_that_needs_the_full_size_is_no_failure_of_a_fast_run(programs):
  _store_result(programs.directory, 'fedavg_cka', passed=False)
  result = programs.succeed(
    'reproduce', '--experiment=fedavg_cka', '--fast', '--output_dir=.'
  )
  assert 'no, but the size is small' in result.out
  assert not _summary(programs.directory, 'fedavg_cka')['passed']


@pytest.mark.parametrize(
  'arguments,words',
  [
    ([], ['--experiment=NAME', '--list']),
    (['--experiment=figure_3'], ['fedrep_linear_convergence', "'figure_3'"]),
    (['--experiment='], ['fedrep_linear_convergence', "found ''"]),
    (
      [f'--experiment={_RUN}', '--dataset=mnist'],
      ['--dataset with an experiment on images only', _RUN],
    ),
    ([f'--experiment={_RUN}', '--runtime=native'], ['--runtime', _RUN]),
    (['--experiment=all', '--runtime=remote'], ['--workers']),
    ([f'--experiment={_RUN}', '--devices=cpu'], ['--devices', _RUN]),
    (['--experiment=all', '--dataset=synthetic'], ['--dataset', 'digits']),
    (['--experiment=all', '--seed=-1'], ['--seed']),
    ([f'--experiment={_RUN}', '--output_dir=/dev/null'], ['/dev/null']),
    (['all'], ["flags only (--name=value), found 'all'"]),
  ],
)
def test_wrong_use_is_one_line(arguments, words, programs):
  message = programs.fail('reproduce', *arguments)
  for word in words:
    assert word in message
