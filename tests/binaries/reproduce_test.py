import json
import pathlib

import pytest

from binaries import papers
from binaries.papers.engine import claims

# The fastest.
_RUN = 'fedrep_linear_new_client'


def _summary(*path):
  return json.loads(pathlib.Path(*path, 'summary.json').read_text())


def test_list_describes_every_experiment(programs):
  lines = programs.succeed('reproduce', '--list').out.splitlines()
  assert len(lines) == 2 + len(papers.EXPERIMENTS)
  for line, entry in zip(lines[2:], papers.EXPERIMENTS.values()):
    assert line.startswith(f'{entry.name} ')
    assert entry.paper in line
    assert line.endswith(entry.summary)


def test_claims_are_printed_and_counted_and_numbers_kept(programs):
  arguments = (f'--experiment={_RUN}', '--fast', '--output_dir=out')
  sizes = ('--size=sample_counts=[2, 10]', '--size=learning_rate=0.1')
  result = programs.succeed('reproduce', *arguments, *sizes)
  folder = programs.directory / 'out' / _RUN
  own = _summary(folder)
  assert own['fast']
  assert own['sizes'] == {'sample_counts': [2, 10], 'learning_rate': 0.1}
  assert own['setup'].items() >= own['sizes'].items()
  assert (folder / 'figure.png').exists()
  *_, count, where = result.out.splitlines()
  assert count == f'{own["result"]}.'
  assert where == 'Results: out'
  written = (folder / 'numbers.json').stat().st_mtime_ns
  again = programs.succeed('reproduce', *arguments, *sizes)
  assert again.out == result.out
  assert (folder / 'numbers.json').stat().st_mtime_ns == written
  # Other settings are refused, before anything runs.
  message = programs.fail('reproduce', *arguments, *sizes, '--seed=1')
  assert f'out/{_RUN} holds' in message
  assert 'seed=0, not seed=1' in message
  assert 'not sizes=None' in programs.fail('reproduce', *arguments)
  for wrong, message in (
    ('--size=9', 'NAME=VALUE'),
    ('--size=learning_rate=fast', 'same kind as'),
    ('--docs_dir=docs', 'without --docs_dir'),
  ):
    assert message in programs.fail('reproduce', *arguments, *sizes, wrong)
  for fast, message in (('--fast', 'without fast'), ('--nofast', 'pages')):
    flags = ['--experiment=all', '--docs_dir=.', '--output_dir=new', fast]
    assert message in programs.fail('reproduce', *flags)
  assert not (programs.directory / 'new').exists()


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_all_experiments_run_and_are_summed_up(programs):
  program = programs.start(
    'reproduce', '--experiment=all', '--fast', '--output_dir=out'
  )
  result = program.wait(3600)
  assert result.status == 0, result.err
  total = _summary(programs.directory, 'out')
  assert not total['errors']
  found = {claim['experiment'] for claim in total['claims']}
  assert found == set(papers.EXPERIMENTS)
  assert total['result'] == claims.count(c['verdict'] for c in total['claims'])
  assert f'\n{total["result"]}.\n' in result.out
