import json
import pathlib

import pytest

from binaries import papers
from tff_pfl.studies import claims

# The fastest.
_RUN = 'fedrep_linear_new_client'
_OWN = """
import dataclasses

import tff_pfl as pfl

@pfl.method('FedAvg by another name.', pfl.LocalTrainingHParams)
def my_avg(model, hparams):
  def train(client):
    loss = pfl.joint_loss(model)
    return client.result(client.sgd(loss, client.received, hparams.phase()))

  return pfl.global_weights_work(model, pfl.Exchange(train))

TABLE = pfl.Study(
  name='mine',
  settings=dict(num_clients=4, cohort_size=2, num_rounds=1, model='linear'),
  methods={'Mine': pfl.Method('my_avg')},
  conditions={'a, b': dict(partition='iid'), 'c': dict(partition='shards:2')},
  claims=[pfl.at_least(0.1)],
)
STUDIES = [TABLE]
"""


def _description(*path):
  return json.loads(pathlib.Path(*path, 'study.json').read_text())


def test_list_describes_every_study(programs):
  lines = programs.succeed('reproduce', '--list').out.splitlines()
  assert len(lines) == 2 + len(papers.STUDIES)
  for line, study in zip(lines[2:], papers.STUDIES.values()):
    assert line.startswith(f'{study.name} ')
    assert study.source in line
    assert study.summary in line


def test_claims_are_printed_and_counted_and_numbers_kept(programs):
  arguments = (f'--study={_RUN}', '--scale=small', '--output_dir=out')
  values = ('--set=sample_counts=[2, 10]', '--set=learning_rate=0.1')
  result = programs.succeed('reproduce', *arguments, *values)
  folder = programs.directory / 'out' / _RUN
  own = _description(folder)
  assert own['scale'] == 'small'
  assert own['parameters']['sample_counts'] == [2, 10]
  assert own['parameters']['learning_rate'] == 0.1
  assert (folder / 'figure.png').exists()
  assert (folder / 'study.html').exists()
  *_, count, _, where = result.out.splitlines()
  assert count == f'{claims.count_all(own["claims"])}.'
  assert where == 'Results: out'
  written = (folder / 'numbers.json').stat().st_mtime_ns
  again = programs.succeed('reproduce', *arguments, *values)
  assert again.out == result.out
  assert (folder / 'numbers.json').stat().st_mtime_ns == written
  # Numbers of other parameters are not overwritten.
  message = programs.fail('reproduce', *arguments)
  assert f'out/{_RUN} holds numbers of other parameters' in message
  message = programs.fail('reproduce', *arguments, *values, '--seeds=1')
  assert 'holds numbers of other seeds' in message
  for wrong, words in (
    ('--set=9', 'NAME=VALUE'),
    ('--seeds=a', '--seeds to be integers of at least 0'),
    ('--set=learning_rate=x', "`learning_rate` to be a number, found 'x'"),
    ('--set=learning_rate=inf', 'holds numbers of other parameters'),
    ('--set=learning_rat=1', 'Did you mean learning_rate'),
    ('--methods=FedRep', 'methods'),
    ('--docs_dir=docs', 'given at scale cpu'),
  ):
    assert words in programs.fail('reproduce', *arguments, *values, wrong)
  flags = ['--study=all', '--docs_dir=.', '--output_dir=new']
  assert 'pages' in programs.fail('reproduce', *flags)
  assert not (programs.directory / 'new').exists()


def test_a_file_of_ones_own_has_studies_and_methods(programs):
  (programs.directory / 'my_table.py').write_text(_OWN)
  arguments = ('--study=my_table.py', '--num_processes=0', '--output_dir=out')
  conditions = ('--conditions="a, b",c', '--seeds=0')
  result = programs.succeed('reproduce', *arguments, *conditions)
  assert '0 of 2 claims hold, 2 undecided' in result.out
  description = _description(programs.directory, 'out', 'mine')
  assert list(description['conditions']) == ['a, b', 'c']
  assert 'a, b (%)' in ' '.join(result.out.split())
  # Also if there are several studies without claims.
  with open(programs.directory / 'my_table.py', 'a') as file:
    file.write("""
STUDIES = [
  dataclasses.replace(TABLE, name=name, claims=[]) for name in ('one', 'two')
]
""")
  result = programs.succeed('reproduce', *arguments, '--seeds=0')
  assert ' '.join(result.out.split()).count('a, b (%)') == 3
  (programs.directory / 'page.md').touch()
  message = programs.fail('reproduce', *arguments, '--docs_dir=.')
  assert "--docs_dir to be given for the papers' studies, fo" in message


@pytest.mark.slow
@pytest.mark.timeout(3 * 3600)
def test_all_studies_run_and_are_summed_up(programs):
  flags = ('--scale=small', '--num_processes=2', '--output_dir=out')
  program = programs.start('reproduce', '--study=all', *flags)
  result = program.wait(3 * 3600)
  assert result.status == 0, result.err
  actual = {
    path.parent.name: json.loads(path.read_text())
    for path in (programs.directory / 'out').glob('*/study.json')
  }
  assert set(actual) == set(papers.STUDIES)
  for name, study in papers.STUDIES.items():
    small = study.at('small')
    assert not actual[name]['failures']
    assert set(actual[name]['methods']) == set(small.method_names)
  rows = [row for one in actual.values() for row in one['claims']]
  assert f'\n{claims.count_all(rows)}.\n' in result.out
