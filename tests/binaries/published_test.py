import pathlib

import pandas as pd
import pytest

from binaries import early, published
from tff_pfl.comparisons import metrics as metrics_lib

_ROOT = pathlib.Path(__file__).parents[2]
_PRESETS = _ROOT / 'binaries' / 'flagfiles' / 'papers'


def _setting_of(preset):
  """Data set, number of clients and partition of a preset of the table."""
  path = _PRESETS / f'fedrep_table1_{preset}.txt'
  flags = dict(
    line[2:].split('=', 1)
    for line in early.expanded(f'--flagfile={path}')
    if '=' in line
  )
  return flags['dataset'], int(flags['num_clients']), flags['partition']


def _values(*setting):
  found = published.reference(*setting)
  return {
    (row.source.split()[0], row.method): None
    if pd.isna(row.value)
    else row.value
    for row in found.itertuples()
  }


_TWO_CLASSES = ('cifar10', 100, 'shards:2')


@pytest.mark.parametrize(
  'setting, figures',
  [
    (
      _TWO_CLASSES,
      {
        ('FedRep', 'Local Only'): None,
        ('FedRep', 'FedAvg'): 0.4265,
        ('FedRep', 'Fed-MTL'): 0.8046,
        ('FedRep', 'FedPer'): 0.8713,
      },
    ),
    # Of two papers.
    (
      ('cifar100', 100, 'shards:5'),
      {
        ('FedRep', 'FedRep'): 0.7915,
        ('FedFac', 'FedRep'): 0.2153,
        ('FedRep', 'FedAvg+FT'): None,
      },
    ),
    # Numbers are compared as numbers, and fine print is not.
    *(
      (('cifar10', 100, partition), {('FedFac', 'FedFac (dynamic)'): 0.7153})
      # The last as the authors' code has it.
      for partition in (
        'dirichlet:1',
        'dirichlet:1.0:10',
        'client_dirichlet:10',
      )
    ),
    (('femnist', 1079, 'natural'), {('FedFac', 'FedAvg'): 0.768}),
    *(
      (
        _setting_of(preset),
        {('FedRep', 'FedPer'): fed_per, ('FedRep', 'Local Only'): local_only},
      )
      for preset, fed_per, local_only in (
        ('cifar10_2', 0.8713, None),
        ('cifar100_5', 0.76, 0.7529),
        ('sent140', 0.7212, 0.6988),
        ('femnist', 0.7691, 0.6086),
      )
    ),
  ],
)
def test_figures_are_found_by_their_setting(setting, figures):
  values = _values(*setting)
  assert {key: values[key] for key in figures} == figures
  for (paper, method), value in figures.items():
    assert published.value(paper, method, *setting) == value


@pytest.mark.parametrize(
  'setting',
  [
    ('mnist', 100, 'shards:2'),
    ('cifar10', 50, 'shards:2'),
    ('cifar10', 100, 'shards:20'),
    ('cifar10', 100, 'shards'),
    ('cifar10', 100, 'classes_per_client:2'),
    ('cifar10', 100, 'iid'),
    # Clients that come with the data are a setting of their own.
    ('femnist', 150, 'natural'),
    ('femnist', 150, 'lognormal:1'),
    (None, None, None),
  ],
)
def test_another_setting_has_no_published_figures(setting):
  assert published.reference(*setting).empty
  assert published.value('FedRep', 'FedAvg', *setting) is None


@pytest.mark.parametrize(
  ('preset', 'words'), [('sent140', 'of Sent140'), ('femnist', 'letters')]
)
def test_a_setting_says_where_the_data_of_the_paper_differ(preset, words):
  notes = published.reference(*_setting_of(preset))['note']
  assert notes.str.contains(words).all()
  assert (
    not published.reference(*_TWO_CLASSES)['note'].str.contains(words).any()
  )


def test_fine_tuned_models_are_compared_by_their_last_round():
  metrics = published.reference(*_TWO_CLASSES).set_index('method')['metric']
  assert metrics['FedAvg+FT'] == 'personal_accuracy'
  assert metrics['FedAvg'] == 'personal_accuracy_last_10'
  metrics = published.reference('cifar10', 100, 'dirichlet:0.1')['metric']
  assert set(metrics) == {'weighted_accuracy_best_10'}


def test_every_cell_is_a_fraction_and_stands_once():
  num_cells = []
  for source in published.SOURCES:
    figures = pd.DataFrame(source.figures(range(len(source.columns))))
    num_cells.append(len(figures))
    assert figures['method'].nunique() * len(source.columns) == len(figures)
    assert figures['metric'].isin(list(metrics_lib.by_name())).all()
    assert figures['value'].dropna().between(0, 1, 'neither').all()
  # 13 methods in 7 settings, 8 in 8, 3 in one by 3 metrics.
  assert num_cells == [91, 64, 9]
