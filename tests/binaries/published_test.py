import pathlib

import pytest

from binaries import published
from tff_pfl.comparisons import metrics as metrics_lib

_FLAGFILES = pathlib.Path(__file__).parents[2] / 'binaries' / 'flagfiles'


def _setting_of(preset):
  """Data set, number of clients and partition of a preset of the table."""
  path = _FLAGFILES / f'fedrep_table1_{preset}.txt'
  flags = dict(
    line[2:].split('=', 1)
    for line in path.read_text().splitlines()
    if line.startswith('--') and '=' in line
  )
  return flags['dataset'], int(flags['num_clients']), flags['partition']


def _values(dataset, num_clients, partition):
  return {
    (source.paper.split()[0], figure.method): figure.value
    for source, (_, figures) in published.matching_figures(
      dataset, num_clients, partition
    ).items()
    for figure in figures
  }


def test_a_column_of_the_fedrep_table_is_found_by_its_setting():
  values = _values('cifar10', 100, 'shards:2')
  assert len(values) == 13
  assert values['FedRep', 'Local Only'] is None
  assert values['FedRep', 'FedAvg'] == 0.4265
  assert values['FedRep', 'Fed-MTL'] == 0.8046
  assert values['FedRep', 'FedPer'] == 0.8713


def test_the_same_setting_in_two_papers_gives_both():
  values = _values('cifar100', 100, 'shards:5')
  assert values['FedRep', 'FedRep'] == 0.7915
  assert values['FedFac', 'FedRep'] == 0.2153
  assert values['FedRep', 'FedAvg+FT'] is None


@pytest.mark.parametrize(
  'setting',
  [
    ('mnist', 100, 'shards:2'),
    ('cifar10', 50, 'shards:2'),
    ('cifar10', 100, 'shards:20'),
    ('cifar10', 100, 'shards'),
    ('cifar10', 100, 'classes_per_client:2'),
    ('cifar10', 100, 'iid'),
    (None, None, None),
  ],
)
def test_another_setting_has_no_published_figures(setting):
  assert not published.matching_figures(*setting)


@pytest.mark.parametrize(
  # The last as the authors' code has it.
  'partition',
  ['dirichlet:1', 'dirichlet:1.0:10', 'client_dirichlet:10'],
)
def test_numbers_are_compared_as_numbers_and_fine_print_is_not(partition):
  values = _values('cifar10', 100, partition)
  assert values['FedFac', 'FedFac (dynamic)'] == 0.7153


def test_clients_that_come_with_the_data_are_a_setting_of_their_own():
  assert _values('femnist', 1079, 'natural')['FedFac', 'FedAvg'] == 0.768
  # The same data dealt otherwise is another setting.
  assert not _values('femnist', 150, 'natural')
  assert not _values('femnist', 150, 'lognormal:1')


@pytest.mark.parametrize(
  ('preset', 'fed_per', 'local_only'),
  [
    ('cifar10', 0.8713, None),
    ('cifar100', 0.76, 0.7529),
    ('sent140', 0.7212, 0.6988),
    ('femnist', 0.7691, 0.6086),
  ],
)
def test_a_preset_of_a_column_has_its_figures(preset, fed_per, local_only):
  values = _values(*_setting_of(preset))
  assert values['FedRep', 'FedPer'] == fed_per
  assert values['FedRep', 'Local Only'] == local_only


@pytest.mark.parametrize(
  ('preset', 'words'), [('sent140', 'of Sent140'), ('femnist', 'letters')]
)
def test_a_setting_says_where_the_data_of_the_paper_differ(preset, words):
  found = published.matching_figures(*_setting_of(preset)).values()
  assert all(words in note for note, _ in found)
  found = published.matching_figures('cifar10', 100, 'shards:2').values()
  assert [note for note, _ in found] == ['']


def test_fine_tuned_models_are_compared_by_their_last_round():
  ((_, figures),) = published.matching_figures(
    'cifar10', 100, 'shards:2'
  ).values()
  metrics = {figure.method: figure.metric for figure in figures}
  assert metrics['FedAvg+FT'] == 'personal_accuracy'
  assert metrics['FedAvg'] == 'personal_accuracy_last_10'


def test_every_cell_is_a_fraction_and_stands_once():
  num_cells = []
  for source in published.SOURCES:
    figures = list(source.figures(range(len(source.columns))))
    num_cells.append(len(figures))
    assert len({f.method for f in figures}) * len(source.columns) == len(
      figures
    )
    assert all(f.metric in metrics_lib.by_name() for f in figures)
    assert all(f.value is None or 0 < f.value < 1 for f in figures)
  # 13 methods in 7 settings, 8 in 8, 3 in one by 3 metrics.
  assert num_cells == [91, 64, 9]
