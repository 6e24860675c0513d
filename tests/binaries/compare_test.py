import json

import pytest

from tff_pfl.algorithms import registry
from tff_pfl.experiments import execution

_SMALL = (
  '--num_clients=4',
  '--cohort_size=2',
  '--num_rounds=1',
  '--model=linear',
)


def test_a_comparison_reports_what_ran_and_what_failed(programs):
  # A linear model has no body that fed_per could share.
  arguments = ('--algorithms=fed_avg,fed_per', *_SMALL, '--output_dir=out')
  result = programs.run('compare', *arguments)
  assert result.error.startswith(
    'Failed trials: 1; the first is fed_per-seed0: Expected --model to be'
  )
  assert 'fed_per-seed0 failed: Expected `model`' in result.err
  assert '2/2' in result.err
  (row,) = [r for r in result.out.splitlines() if r.startswith('fed_avg ')]
  assert 'Report: out/comparison.html' in result.out
  directory = programs.directory / 'out'
  for name in ('comparison.html', 'comparison.csv', 'per_client.csv'):
    assert (directory / name).stat().st_size
  found = json.loads((directory / 'comparison.json').read_text())
  assert [method['label'] for method in found['methods']] == ['fed_avg']
  accuracy = found['methods'][0]['metrics']['personal_accuracy']['mean']
  assert f'{accuracy:.3f}' in row

  message = programs.fail('compare', *arguments)
  assert message == (
    'There is a comparison in out already: pass --resume to go on with it, or '
    'another --output_dir.'
  )
  folder = execution.trial_folder(str(directory), 'fed_avg-seed0')
  with open(f'{folder}/run.sqlite', 'rb') as file:
    before = file.read()
  # What has ended is not run again.
  result = programs.succeed(
    'compare',
    '--algorithms=fed_avg',
    *_SMALL,
    '--output_dir=out',
    '--resume',
  )
  assert row in result.out
  with open(f'{folder}/run.sqlite', 'rb') as file:
    assert file.read() == before


@pytest.mark.parametrize(
  'arguments,words',
  [
    (['--algorithms=fed_foo'], ['--algorithms', "'fed_foo'", 'ditto']),
    (['--algorithms='], ['--algorithms', 'at least one']),
    (['--algorithm=fed_avg'], ['no --algorithm:', '--algorithms']),
    (['--seed=1'], ['no --seed:', '--seeds']),
    (['--seeds=1,x'], ['--seeds', "'x'"]),
    (['--num_search_trials=3'], ['no --num_search_trials:', '--search']),
    (['--search=momentum=0.9:0.1'], ['--search', 'momentum=0.9:0.1']),
    (['--seeds=1,1'], ['seeds', 'none twice']),
    (['--grid=momentum=0', '--search=momentum=0:1'], ['found both']),
    (['--algorithms=fed_avg', '--grid=ditto.momentum=0'], ['ditto.momentum']),
    (['--fine_tune_variants=body'], ['fine_tune_variants', "'body'"]),
    (
      ['--validation_fraction=1', '--grid=momentum=0,0.5'],
      ['validation_fraction', '1.0'],
    ),
    (['--validation_fraction=0.5'], ['no --validation_fraction', '--grid']),
    (['--grid=ditto.momentum=0,2'], ['momentum', '2.0']),
    (
      ['--algorithms=fed_avg', '--ditto_num_epochs=1'],
      ['--ditto_num_epochs', 'fed_avg'],
    ),
    (['--dataset=synthetic', '--partition=dirichlet:0.1'], ['partition']),
    (['fed_avg'], ["flags only (--name=value), found 'fed_avg'"]),
  ],
)
def test_wrong_use_is_one_line(arguments, words, programs):
  message = programs.fail('compare', *arguments, '--output_dir=out')
  for word in words:
    assert word in message
  assert not (programs.directory / 'out').exists()


def test_all_methods_are_the_default(programs):
  message = programs.fail('compare', '--grid=nothing=1', '--output_dir=out')
  for name, algorithm in registry.ALGORITHMS.items():
    assert (name in message) == (not algorithm.needs_domains)
