import pathlib

import pandas as pd

from tff_pfl.methods import registry
from tff_pfl.studies import execution

_SMALL = (
  '--num_clients=4',
  '--cohort_size=2',
  '--num_rounds=1',
  '--model=linear',
  # In processes of their own they would import TensorFlow again.
  '--num_processes=0',
  '--output_dir=out',
)


def test_a_comparison_reports_what_ran_and_what_failed(programs):
  # A linear model has no body that fed_per could share.
  arguments = ('--algorithms=fed_avg,fed_per', *_SMALL)
  result = programs.run('compare', *arguments)
  assert result.error.startswith(
    'Failed trials: 1; the first is fed_per-seed0: Expected --model to be'
  )
  assert 'fed_per-seed0 failed: Expected `model`' in result.err
  assert '2/2' in result.err
  (row,) = [r for r in result.out.splitlines() if r.startswith('fed_avg ')]
  assert 'Report: out/study.html' in result.out
  directory = programs.directory / 'out'
  for name in ('study.html', 'numbers.csv', 'per_client.csv'):
    assert (directory / name).stat().st_size
  numbers = pd.read_csv(directory / 'numbers.csv')
  assert numbers['method'].tolist() == ['fed_avg']
  accuracy = numbers['personal_accuracy'][0]
  assert f' {100 * accuracy:.1f} ' in row

  message = programs.fail('compare', *arguments)
  assert message == (
    'There is a comparison in out already: pass --resume to go on with it, or '
    'another --output_dir.'
  )
  folder = execution.trial_folder(str(directory), 'fed_avg-seed0')
  store = pathlib.Path(folder, 'run.sqlite')
  before = store.read_bytes()
  # What has ended is not run again.
  result = programs.succeed(
    'compare', '--algorithms=fed_avg', *_SMALL, '--resume'
  )
  assert row in result.out
  assert store.read_bytes() == before


def test_all_methods_are_the_default(programs):
  message = programs.fail('compare', '--grid=nothing=1', '--output_dir=out')
  for name, algorithm in registry.ALGORITHMS.items():
    assert (name in message) == (not algorithm.needs_domains)
