import csv
import json
import math
import re

import pytest

from tests.comparisons import made_up_trials
from tff_pfl import plots
from tff_pfl.comparisons import results


def _spread(mean, std=None, num_seeds=1):
  return {'mean': mean, 'std': std, 'num_seeds': num_seeds}


@pytest.fixture(name='make_results')
def _make_results(found):
  def make_results(*metrics, **changes):
    """Of methods with these metrics and no others."""
    own = [m for m in found['methods'] if m['variant'] == 'method']
    methods = [
      {
        **method,
        'label': method['algorithm'],
        'metrics': {**dict.fromkeys(method['metrics']), **of_method},
        'domains': [
          made_up_trials.domain(0, 'sea', 4, 0.5),
          made_up_trials.domain(0, 'moon', 0, None),
        ],
      }
      for method, of_method in zip(own, metrics)
    ]
    return results.Results({**found, 'methods': methods}, **changes)

  return make_results


def _csv(path):
  with open(path, newline='') as file:
    return list(csv.DictReader(file))


def test_spread_is_that_of_a_sample_over_the_seeds_that_have_it():
  assert results.mean_std([1.0, None, 3.0]) == _spread(2.0, math.sqrt(2), 2)
  assert results.mean_std([0.25]) == _spread(0.25)
  assert results.mean_std([None]) is None
  assert results.mean_std([1.0, math.nan]) == _spread(1.0)
  assert results.mean_std([math.inf]) is None


def test_json_has_everything_and_csv_files_their_rows(make_results, tmp_path):
  found = make_results({}, {'personal_accuracy': _spread(0.5, 0.1, 3)})
  found.write(tmp_path)
  assert json.loads((tmp_path / 'comparison.json').read_text()) == found
  first, second = _csv(tmp_path / 'comparison.csv')
  assert first['label'] == 'fed_avg'
  assert first['personal_accuracy/mean'] == ''
  assert second['personal_accuracy/mean'] == '0.5'
  assert second['personal_accuracy/std'] == '0.1'
  assert second['personal_accuracy/num_seeds'] == '3'
  assert '"learning_rate": 0.05' in first['hparams']
  # Of two seeds.
  rows = _csv(tmp_path / 'per_client.csv')[: 2 * (4 + 1)]
  assert [row['is_new'] for row in rows] == ['False'] * 8 + ['True'] * 2
  clients = found['methods'][0]['clients']
  assert rows[1]['after/accuracy'] == str(clients[1]['accuracy_after'])
  sea, moon, *_ = _csv(tmp_path / 'per_domain.csv')
  assert sea == {
    'label': 'fed_avg',
    'variant': 'method',
    'seed': '0',
    'domain': 'sea',
    'num_test_examples': '4',
    'loss': '1.0',
    'accuracy': '0.5',
    'auc': '',
  }
  assert (moon['num_test_examples'], moon['accuracy']) == ('0', '')


def test_the_table_by_domain_has_min_mean_max_and_the_mean_over_clients(
  make_results,
):
  found = make_results(
    {
      'domain_accuracy_min': _spread(0.25, 0.125, 3),
      'domain_accuracy_mean': _spread(0.5, 0.0625, 3),
      'domain_accuracy_max': _spread(0.75, 0.0, 3),
      'domain_accuracy_min_last_10': _spread(0.375, 0.0, 3),
      'personal_accuracy': _spread(0.5, 0.25, 3),
      'client_auc': _spread(0.625, 0.25, 3),
    },
    {'personal_accuracy': _spread(0.5)},
  )
  of_all, of_domains = found.table().split('Over domains')
  _, *head, _, first, second = of_domains.splitlines()
  titles = ' '.join(' '.join(head).split())
  for words in ('min accuracy', 'mean accuracy', 'max accuracy'):
    assert words in titles
  assert re.split(r'  +', first.strip()) == [
    *('fed_avg', '25.0 ± 12.5', '50.0 ± 6.2', '75.0 ± 0.0'),
    *('50.0 ± 25.0', '62.5 ± 25.0'),
  ]
  assert second.split() == ['local_only', '–', '–', '–', '50.0', '–']
  # The table of all data stays as it is.
  assert 'min accuracy' not in of_all


def test_scores_are_tidy_and_survive_the_file(make_results, tmp_path):
  found = make_results({'personal_accuracy': _spread(0.5)})
  found.write(tmp_path)
  found = results.open_comparison(tmp_path)
  tidy = found.scores
  first = found['methods'][0]['clients'][0]
  (row,) = tidy[
    (tidy['client'] == first['client'])
    & (tidy['seed'] == first['seed'])
    & ~tidy['is_new']
    & (tidy['when'] == 'after')
    & (tidy['metric'] == 'accuracy')
  ].to_dict('records')
  assert row['value'] == first['accuracy_after']
  assert row['method'] == 'fed_avg'
  assert found.figures['personal_accuracy/mean'].tolist() == [0.5]
  assert 'fed_avg' in found.table()
  assert '0.5' in found._repr_html_()
  labels = found.plot().get_legend().get_texts()
  assert [label.get_text() for label in labels] == ['fed_avg']


def test_without_domains_there_is_no_table_of_them(make_results, tmp_path):
  found = make_results({'personal_accuracy': _spread(0.5)})
  found['methods'][0]['domains'] = []
  assert 'domains' not in found.table()
  found.write(tmp_path)
  assert not (tmp_path / 'per_domain.csv').exists()


@pytest.mark.parametrize(
  'metrics, changes, lines',
  [
    (
      [
        {
          'personal_accuracy': _spread(0.5, 0.125, 3),
          'bytes_up_per_client': _spread(1500.0, 0.0, 3),
        },
        {'personal_accuracy': _spread(0.25)},
      ],
      {},
      ['fed_avg 50.0 ± 12.5 1.5', 'local_only 25.0 –'],
    ),
    (
      [
        {
          'personal_accuracy': _spread(0.5, None, 1),
          'worst_10_percent': _spread(0.25, 0.125, 2),
        }
      ],
      {},
      ['fed_avg 50.0 (1 of 2 seeds) 25.0 ± 12.5'],
    ),
    (
      [{'personal_mae': _spread(1234.5)}],
      {'primary_metric': {'name': 'mae', 'higher_is_better': False}},
      ['fed_avg 1234'],
    ),
  ],
  ids=['columns_that_some_have', 'seeds_that_lack_it', 'another_metric'],
)
def test_the_table_has_the_figures_that_there_are(
  metrics, changes, lines, make_results
):
  found = make_results(*metrics, **changes)
  for method in found['methods']:
    method['domains'] = []
  table = found.table().splitlines()
  assert [' '.join(row.split()) for row in table[-len(lines) :]] == lines
  assert 'hurt' not in table[0]
  assert ('mae' in ''.join(table)) == bool(changes)


def test_the_best_methods_that_have_curves_are_drawn(make_results):
  found = make_results({})
  (method,) = found['methods']
  found['methods'] = [
    {
      **method,
      'label': f'number {i}',
      'metrics': {'personal_accuracy': _spread(i / 10)},
      'curves': [] if i == 8 else method['curves'],
    }
    for i in range(10)
  ]
  labels = found.plot(plots.new_axes()).get_legend().get_texts()
  assert {label.get_text() for label in labels} == {
    f'number {i}' for i in (9, 7, 6, 5, 4, 3, 2)
  }
