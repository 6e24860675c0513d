import contextlib
import csv
import dataclasses
import json

import pytest

from binaries.papers.engine import claims, paper, trials
from tff_pfl import errors


@dataclasses.dataclass(frozen=True)
class _Sizes:
  num_rounds: int = 2
  num_seeds: int = 5


class _Workshop:
  """Makes experiments, and tells which have measured with which settings."""

  def __init__(self, directory):
    self.settings = trials.Settings(
      str(directory), fast=True, show_progress=False
    )
    self.directory = directory
    self.measured = []

  def experiment(self, name, *values, fail=None, dataset=None):
    """One whose claims are that each of `values` is above 0."""

    def measure(context):
      self.measured.append((name, context.settings, list(context.seeds)))
      trial = self.directory / name / 'trials' / 'one' / 'run.sqlite'
      trial.parent.mkdir(parents=True, exist_ok=True)
      trial.touch()
      if fail is not None:
        raise fail
      for seed in context.seeds:
        yield {'seed': seed, **{f'v{i}': v for i, v in enumerate(values)}}

    def make_claims(table, sizes):
      assert sizes == _Sizes(num_seeds=len(table.distinct('seed')))
      for i in range(len(values)):
        yield claims.measured(f'{i} is', 'F 1', table.values(f'v{i}'), above=0)

    return paper.Experiment(
      name,
      f'summary of {name}',
      'Figure 1',
      measure,
      make_claims,
      lambda table, sizes, figure: figure.add_subplot().plot([1, 2]),
      full={dataset: _Sizes(), 'mnist' if dataset else None: _Sizes()},
      fast=_Sizes(num_seeds=2),
    )

  def read(self, *path):
    return json.loads(self.directory.joinpath(*path).read_text())


@pytest.fixture
def workshop(tmp_path):
  return _Workshop(tmp_path)


def test_an_experiment_leaves_figure_numbers_and_claims(workshop):
  settings = workshop.settings._replace(seed=3, num_seeds=1)
  summary = paper.run(workshop.experiment('one', 1.5, -1.0), settings)
  folder = workshop.directory / 'one'
  assert (folder / 'figure.png').read_bytes().startswith(b'\x89PNG')
  with open(folder / 'numbers.csv') as file:
    assert list(csv.DictReader(file)) == [
      {'seed': '3', 'v0': '1.5', 'v1': '-1.0'},
    ]
  assert workshop.read('one', 'summary.json') == summary
  assert summary.pop('seconds') >= 0
  assert summary.pop('versions')['tensorflow']
  summary.pop('commit')
  assert [c['verdict'] for c in summary.pop('claims')] == ['holds', 'fails']
  assert summary == {
    'experiment': 'one',
    'summary': 'summary of one',
    'paper': 'Figure 1',
    'result': '1 of 2 claims hold, 1 fail',
    'setup': {'num_rounds': 2, 'num_seeds': 1},
    'fast': True,
    'dataset': None,
    'seed': 3,
    'num_seeds': 1,
    'sizes': None,
    'runtime': 'in_process',
  }
  # Numbers are kept, and claims made anew; what executes changes neither.
  changed = dataclasses.replace(
    workshop.experiment('one'), claims=lambda table, sizes: []
  )
  summary = paper.run(changed, settings._replace(runtime='native'))
  assert summary['result'] == '0 of 0 claims hold'
  assert summary['runtime'] == 'in_process'
  own = settings._replace(directory=str(folder))
  assert workshop.measured == [('one', own, [3])]


def test_an_interrupted_experiment_continues(workshop):
  interrupted = workshop.experiment('one', fail=KeyboardInterrupt())
  with pytest.raises(KeyboardInterrupt):
    paper.run(interrupted, workshop.settings)
  folder = workshop.directory / 'one'
  assert not (folder / 'summary.json').exists()
  # As if it had worked for an hour.
  settings = {**workshop.read('one', 'settings.json'), 'seconds': 3600}
  (folder / 'settings.json').write_text(json.dumps(settings))
  one = workshop.experiment('one', 1.0)
  assert paper.run(one, workshop.settings)['seconds'] >= 3600
  assert (folder / 'trials' / 'one').is_dir()
  assert paper.run(one, workshop.settings, rerun=True)['seconds'] < 3600


def test_an_experiment_that_was_killed_does_not_know_its_seconds(
  workshop, capsys
):
  folder = workshop.directory / 'one'
  settings = workshop.settings._replace(num_seeds=1)
  during = []

  def measure(context):
    during.append((folder / 'settings.json').read_text())
    yield {'seed': 0, 'v0': 1.0}

  one = dataclasses.replace(workshop.experiment('one'), measure=measure)
  paper.run(one, settings)
  # What a SIGKILL leaves.
  (folder / 'numbers.json').unlink()
  (folder / 'settings.json').write_text(during[0])
  (summary,) = paper.run_all([one], settings)
  assert summary['seconds'] is None
  assert capsys.readouterr().err.endswith('one: 0 of 0 claims hold\n')


@pytest.mark.parametrize(
  'name, value, fail',
  [('sizes', {'num_rounds': 9}, None), ('num_seeds', 9, KeyboardInterrupt())],
)
def test_a_folder_is_for_one_kind_of_settings(workshop, name, value, fail):
  one = workshop.experiment('one', 1.0, fail=fail)
  with contextlib.suppress(KeyboardInterrupt):
    paper.run(one, workshop.settings)
  other = workshop.settings._replace(**{name: value})
  for run in (paper.run, lambda one, other: paper.run_all([one], other)):
    with pytest.raises(errors.RunError, match=f'not {name}=.*choose another'):
      run(one, other)
  assert len(workshop.measured) == 1


def test_what_is_no_experiment_is_not_touched(workshop):
  (workshop.directory / 'one').mkdir()
  (workshop.directory / 'one' / 'summary.json').write_text('{}')
  one = workshop.experiment('one', 1.0)
  for rerun in (False, True):
    with pytest.raises(errors.RunError, match='holds no experiment'):
      paper.run(one, workshop.settings, rerun=rerun)
  assert workshop.read('one', 'summary.json') == {}


def test_seeds_begin_with_the_experiments_own(workshop):
  one = dataclasses.replace(workshop.experiment('one', 1.0), first_seed=5)
  (summary,) = paper.run_all([one], workshop.settings)
  assert summary['seed'] == 5
  assert [seeds for *_, seeds in workshop.measured] == [[5, 6]]


def test_rerun_starts_anew_with_any_settings(workshop):
  paper.run(workshop.experiment('one', -1.0), workshop.settings)
  mine, old = (
    workshop.directory / 'one' / path for path in ('notes.txt', 'trials/old')
  )
  mine.write_text('mine')
  old.mkdir()
  settings = workshop.settings._replace(seed=1)
  again = paper.run(workshop.experiment('one', 2.0), settings, rerun=True)
  assert (again['result'], again['seed']) == ('1 of 1 claims hold', 1)
  assert not old.exists()
  assert mine.read_text() == 'mine'


def test_numbers_that_are_damaged_or_of_other_sizes_are_not_taken(workshop):
  one = workshop.experiment('one', 1.0)
  paper.run(one, workshop.settings)
  other = dataclasses.replace(one, fast=_Sizes(num_rounds=9, num_seeds=2))
  with pytest.raises(errors.RunError, match='of another version of one.*rerun'):
    paper.run(other, workshop.settings)
  (workshop.directory / 'one' / 'numbers.json').write_text('{')
  with pytest.raises(errors.RunError, match='Cannot read .*one/numbers.json'):
    paper.run(one, workshop.settings)


def test_sizes_may_be_others():
  experiment = _Workshop('').experiment('one')
  settings = trials.Settings('', fast=True, sizes={'num_rounds': 9})
  assert experiment.sizes(settings) == _Sizes(num_rounds=9, num_seeds=2)


@pytest.mark.parametrize(
  'settings, reason',
  [
    ({'sizes': {'depth': 3}}, 'num_rounds, num_seeds, found .depth'),
    ({'sizes': {'num_rounds': 'few'}}, "`num_rounds`.* same kind as 2.*'few'"),
    ({'dataset': 'cifar10'}, 'one takes: digits, mnist'),
  ],
)
def test_other_sizes_and_data_are_refused(settings, reason):
  experiment = _Workshop('').experiment('one', dataset='digits')
  with pytest.raises(ValueError, match=reason):
    experiment.sizes(trials.Settings('', fast=True, **settings))


def test_data_are_for_experiments_on_data_sets(workshop):
  settings = workshop.settings._replace(dataset='mnist', data_dir='there')
  both = [
    workshop.experiment('one', 1.0),
    workshop.experiment('two', 1.0, dataset='digits'),
  ]
  paper.run_all(both, settings)
  found = [(own.dataset, own.data_dir) for _, own, _ in workshop.measured]
  assert found == [(None, None), ('mnist', 'there')]


def test_all_go_on_after_a_failure_and_are_summed_up(workshop, capsys):
  experiments = [
    workshop.experiment('one', 1.0, -1.0),
    workshop.experiment('two', fail=errors.RunError('No\ndata.')),
    workshop.experiment('three', 3.0),
  ]
  summaries = paper.run_all(experiments, workshop.settings)
  assert [name for name, *_ in workshop.measured] == ['one', 'two', 'three']
  total = workshop.read('summary.json')
  assert total['result'] == '2 of 3 claims hold, 1 fail'
  assert [(c['experiment'], c['verdict']) for c in total['claims']] == [
    ('one', 'holds'),
    ('one', 'fails'),
    ('three', 'holds'),
  ]
  assert total['errors'] == {'two': 'No data.'}
  assert total['claims'] == paper.all_claims(summaries)
  page = (workshop.directory / 'claims.html').read_text()
  assert 'No data.' in page and 'three/figure.png' in page
  assert page.count('>fails<') == 1
  err = capsys.readouterr().err
  assert 'one: 1 of 2 claims hold, 1 fail' in err
  assert 'two: did not run: No data.' in err
  with pytest.raises(ZeroDivisionError):
    broken = workshop.experiment('four', fail=ZeroDivisionError())
    paper.run_all([broken], workshop.settings)
