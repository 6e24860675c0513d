import csv
import dataclasses
import json
import math

import pytest

from tff_pfl.experiments import metrics as metrics_lib
from tff_pfl.experiments import results
from tff_pfl.models import split_model


def _score(client, after=0.5):
  return results.ClientScore(
    seed=0,
    client=client,
    num_train_examples=4,
    num_test_examples=2,
    num_rounds=1,
    before=None,
    after=after,
    loss_before=None,
    loss_after=1.5,
  )


def _method(label='fed_avg', **metrics):
  return results.MethodResult(
    algorithm='fed_avg',
    variant='method',
    label=label,
    summary='one global model',
    has_global_model=True,
    hparams={'learning_rate': 0.1, 'num_steps': None},
    metrics={
      **dict.fromkeys(metrics_lib.by_name()),
      **metrics,
    },
    curves=(
      results.Curve(0, (1, 2), (0.25, None), None),
      results.Curve(1, (1, 2), (0.25, 0.5), (0.5, 0.5)),
    ),
    clients=(_score('a'), _score('b', 1.0)),
    new_clients=(_score('c'),),
    domains=(
      results.DomainScore(0, 'sea', 4, 1.5, 0.5, None),
      results.DomainScore(0, 'moon', 0, None, None, None),
    ),
  )


def _results(*methods):
  return results.ComparisonResults(
    title='one method',
    settings=(
      results.Setting('dataset', 'digits'),
      results.Setting('seeds', [0, 1]),
    ),
    methods=methods,
    partition=results.Partition(0, ('a', 'b'), 1, ((1, 2), (3, 4)), (3, 7)),
    tunings=(
      results.Tuning(
        'fed_avg',
        0,
        5,
        (results.TuningPoint({'momentum': 0.9}, 0.5, 1.0, True, None),),
      ),
    ),
    failures=(results.Failure('ditto-seed0', 'ditto', 0, 'no memory'),),
  )


def test_json_has_everything(tmp_path):
  found = _results(_method(personal_accuracy=results.Spread(0.5, None, 1)))
  found.write(tmp_path)
  written = json.loads((tmp_path / 'comparison.json').read_text())
  assert written['methods'][0]['clients'][1]['accuracy_after'] == 1.0
  assert written['tunings'][0]['points'][0]['accuracy'] == 0.5
  everything = json.loads(json.dumps(dataclasses.asdict(found)))
  for name in ('title', 'settings', 'partition', 'failures'):
    assert written[name] == everything[name]
  assert set(everything) - set(written) == {'primary_metric'}
  assert found.setting('seeds') == [0, 1]
  assert found.setting('nothing', 3) == 3


@pytest.mark.parametrize('name', ['mae', 'loss'])
def test_files_and_table_name_the_primary_metric(tmp_path, name):
  found = dataclasses.replace(
    _results(_method(**{f'personal_{name}': results.Spread(1234.5, None, 1)})),
    primary_metric=split_model.PrimaryMetric(name, False),
  )
  found.write(tmp_path)
  written = json.loads((tmp_path / 'comparison.json').read_text())
  assert written['primary_metric'] == {'name': name, 'higher_is_better': False}
  assert written['methods'][0]['clients'][1][f'{name}_before'] is None
  assert written['tunings'][0]['points'][0]['loss'] == 1.0
  *_, row = found.table().splitlines()
  assert '1234' in row
  assert name in found.table()


def test_spread_is_that_of_a_sample_over_the_seeds_that_have_it():
  assert results.spread([1.0, None, 3.0]) == results.Spread(
    2.0, math.sqrt(2), 2
  )
  assert results.spread([0.25]) == results.Spread(0.25, None, 1)
  assert results.spread([None]) is None
  assert results.spread([1.0, math.nan]) == results.Spread(1.0, None, 1)
  assert results.spread([math.inf]) is None


def test_csv_has_a_line_for_each_method(tmp_path):
  _results(
    _method(),
    _method('ditto', personal_accuracy=results.Spread(0.5, 0.1, 3)),
  ).write(tmp_path)
  with open(tmp_path / 'comparison.csv', newline='') as file:
    first, second = csv.DictReader(file)
  assert first['label'] == 'fed_avg'
  assert first['personal_accuracy/mean'] == ''
  assert second['personal_accuracy/mean'] == '0.5'
  assert second['personal_accuracy/std'] == '0.1'
  assert second['personal_accuracy/num_seeds'] == '3'
  assert '"learning_rate": 0.1' in second['hparams']


def test_clients_csv_tells_new_clients_from_others(tmp_path):
  _results(_method()).write(tmp_path)
  with open(tmp_path / 'per_client.csv', newline='') as file:
    rows = list(csv.DictReader(file))
  assert [(row['client'], row['is_new']) for row in rows] == [
    ('a', 'False'),
    ('b', 'False'),
    ('c', 'True'),
  ]
  assert rows[1]['accuracy_after'] == '1.0'


def test_domains_csv_has_a_line_for_each_domain(tmp_path):
  _results(_method()).write(tmp_path)
  with open(tmp_path / 'per_domain.csv', newline='') as file:
    sea, moon = csv.DictReader(file)
  assert sea == {
    'label': 'fed_avg',
    'variant': 'method',
    'seed': '0',
    'domain': 'sea',
    'num_test_examples': '4',
    'loss': '1.5',
    'accuracy': '0.5',
    'auc': '',
  }
  assert (moon['num_test_examples'], moon['accuracy']) == ('0', '')


def test_the_table_by_domain_has_min_mean_max_and_the_mean_over_clients():
  spread = results.Spread
  found = _results(
    _method(
      domain_accuracy_min=spread(0.25, 0.125, 3),
      domain_accuracy_mean=spread(0.5, 0.0625, 3),
      domain_accuracy_max=spread(0.75, 0.0, 3),
      domain_accuracy_min_last_10=spread(0.375, 0.0, 3),
      personal_accuracy=spread(0.5, 0.25, 3),
      client_auc=spread(0.625, 0.25, 3),
    ),
    _method('ditto', personal_accuracy=spread(0.5, None, 1)),
  )
  head, accuracy, *_, first, second = found.domain_table().splitlines()
  assert head.split() == ['method', *['accuracy'] * 3, 'accuracy,', 'AUC,']
  assert accuracy.split() == [
    *('min', 'mean', 'max'),
    *('client', 'mean', 'client', 'mean'),
  ]
  assert first.split() == [
    *('fed_avg', '0.250', '±0.125', '0.500', '±0.062', '0.750', '±0.000'),
    *('0.500', '±0.250', '0.625', '±0.250'),
  ]
  assert second.split() == ['ditto', '–', '–', '–', '0.500', '–']
  # The table of all data stays as it is.
  assert 'min' not in found.table()


def test_without_figures_over_domains_there_is_no_table_of_them(tmp_path):
  method = dataclasses.replace(
    _method(personal_accuracy=results.Spread(0.5, None, 1)), domains=()
  )
  assert _results(method).domain_table() == ''
  _results(method).write(tmp_path)
  assert not (tmp_path / 'per_domain.csv').exists()


def test_the_table_has_the_columns_that_some_method_has():
  table = _results(
    _method(
      personal_accuracy=results.Spread(0.5, 0.125, 3),
      bytes_up_per_client=results.Spread(1500.0, 0.0, 3),
    ),
    _method('ditto', personal_accuracy=results.Spread(0.25, None, 1)),
  ).table()
  assert 'hurt' not in table
  *_, first, second = table.splitlines()
  assert first.split() == ['fed_avg', '0.500', '±0.125', '1.5']
  assert second.split() == ['ditto', '0.250', '–']


def test_the_table_tells_of_figures_that_not_all_seeds_have():
  table = _results(
    _method(
      personal_accuracy=results.Spread(0.5, None, 1),
      worst_10_percent=results.Spread(0.25, 0.125, 2),
    )
  ).table()
  assert table.splitlines()[-1].split() == [
    *('fed_avg', '0.500', '(1', 'of', '2)'),
    *('0.250', '±0.125'),
  ]
