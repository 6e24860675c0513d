import json
import types

import numpy as np
import pandas as pd
import pytest

from tff_pfl import datasets
from tff_pfl.models import split_model
from tff_pfl.runs import report, run_store


def _process(has_global_model=True, has_classes=True):
  """What a report needs of a process."""
  classifier = types.SimpleNamespace(is_multilabel=False)
  return types.SimpleNamespace(
    model=types.SimpleNamespace(classifier=classifier if has_classes else None),
    name='fed_toy',
    has_global_model=has_global_model,
    attacked_clients=(),
  )


@pytest.fixture(scope='module', name='data')
def _data():
  return datasets.make_synthetic(
    3, examples_per_client=4, test_examples_per_client=2, shape=(2,)
  )


def _evaluation(personal, shared):
  return {
    'personal': {'loss': 1 - personal, 'accuracy': personal},
    'global': None if shared is None else {'loss': 0.5, 'accuracy': shared},
    'fairness': {
      'mean': personal,
      'weighted_mean': personal / 2,
      'fraction_hurt': None,
    },
    'non_finite_clients': 1,
  }


def _row(client, before, after, metric):
  return {
    'client': client,
    'num_test_examples': 2,
    'before': {'loss': 1.0, metric: before},
    'after': {'loss': 0.5, metric: after},
  }


_ROUNDS = {
  'num_rounds': 99,
  'rounds_per_evaluation': 1,
  'num_final_evaluations': 1,
}


def _store(directory, data, evaluations, metric='accuracy'):
  """A run with rounds 1 to the last evaluation; round r took r seconds."""
  store = run_store.RunStore.open(
    directory,
    {
      'algorithm': 'fed_toy',
      'dataset': 'toys',
      'num_clients': 3,
      'rounds': _ROUNDS,
    },
  )
  for round_number in range(max(evaluations) + 1):
    store.commit_round(
      server_state=b'',
      client_states={},
      metrics={'seconds': float(round_number), 'rss_mb': 100.0 - round_number},
      evaluation=evaluations.get(round_number),
      per_client=[
        _row(client, i / 4, (i + 1) / 4, metric)
        for i, client in enumerate(data.client_ids)
      ],
    )
  return store


_EVALUATIONS = {
  2: _evaluation(0.9, 0.1),
  4: _evaluation(0.5, 0.3),
  9: _evaluation(0.75, 0.2),
  13: _evaluation(0.65, 0.25),
}


def _majority_accuracy(data):
  shares = [
    np.mean(data.test(i).y == np.bincount(data.train(i).y).argmax())
    for i in data.client_ids
  ]
  return pytest.approx(np.mean(shares))


def _figures(mean, best, best_round, last):
  return {
    'last_10_mean': pytest.approx(mean),
    'num_last_10': 3,
    'best': best,
    'best_round': best_round,
    'best_10_mean': None,
    'last': last,
  }


@pytest.mark.usefixtures('without_pictures')
def test_summary_is_that_computed_by_hand(tmp_path, data):
  with _store(tmp_path, data, _EVALUATIONS) as store:
    summary = report.write_report(store, _process(), data)
  assert summary == {
    'algorithm': 'fed_toy',
    'dataset': 'toys',
    'rounds': _ROUNDS,
    'num_clients': 3,
    # Not what was asked for but what there is.
    'num_rounds': 13,
    # The last ten rounds are 4 to 13.
    'accuracy': _figures((0.5 + 0.75 + 0.65) / 3, 0.9, 2, 0.65),
    'global_accuracy': _figures((0.3 + 0.2 + 0.25) / 3, 0.3, 4, 0.25),
    'loss': pytest.approx(0.35),
    'global_loss': 0.5,
    # Over test examples.
    'weighted': _figures((0.25 + 0.375 + 0.325) / 3, 0.45, 2, 0.325),
    'fairness': {'mean': 0.65, 'weighted_mean': 0.325, 'fraction_hurt': None},
    'non_finite_clients': 1,
    'num_scored_clients': 3,
    # The median of 1 to 13: the initial state is no round.
    'seconds_per_round': 7.0,
    'peak_rss_mb': 99.0,
    'majority_accuracy': _majority_accuracy(data),
  }
  text = (tmp_path / report.SUMMARY_NAME).read_text()
  assert json.loads(text) == summary
  # Nor a word of domains.
  assert 'domain' not in report.tables([summary])
  assert not (tmp_path / report.PER_DOMAIN_NAME).exists()
  rows = pd.read_csv(tmp_path / report.PER_CLIENT_NAME)
  assert rows['client'].tolist() == list(data.client_ids)
  assert rows['after/accuracy'].tolist() == [0.25, 0.5, 0.75]


@pytest.mark.usefixtures('without_pictures')
def test_a_regression_is_reported_by_its_own_metric(tmp_path, data):
  """With the error of each client; in the second evaluation half of it."""
  evaluations = {
    round_number: {
      'personal': {'loss': 4 * error, 'mae': error},
      'global': {'loss': 8.0, 'mae': 2.0},
      'fairness': {'worst_10_percent': 1.5},
      'non_finite_clients': 0,
      'primary_metric': {'name': 'mae', 'higher_is_better': False},
    }
    for round_number, error in ((1, 1.0), (2, 0.5))
  }
  with _store(tmp_path, data, evaluations, 'mae') as store:
    process = _process(has_classes=False)
    summary = report.write_report(store, process, data)
  # The labels are integers, of no classes.
  assert summary['accuracy'] is None and 'majority_accuracy' not in summary
  primary = summary['primary_metric']
  assert (primary['name'], primary['higher_is_better']) == ('mae', False)
  actual = {w: primary[w]['last_10_mean'] for w in ('personal', 'global')}
  assert actual == {'personal': 0.75, 'global': 2.0}
  table = report.tables([summary]).splitlines()
  assert table[1].split()[:2] == ['mae', 'evaluations']
  assert table[3].split()[:4] == ['fed_toy', '0.5', '0.75', '2']
  # Beside an accuracy it has no name of its own.
  with _store(tmp_path / 'accuracy', data, _EVALUATIONS) as store:
    other = report.write_report(store, _process(), data)
  frame = report.summary_frame([other, summary])
  assert frame['personal score'].tolist() == [0.65, 0.5]
  assert frame['global score'].tolist() == [0.25, 2.0]
  # The loss has one column, also as the primary metric.
  summary['primary_metric'] = {**primary, 'name': 'loss'}
  assert [*report.summary_frame([summary])].count('personal loss') == 1


@pytest.mark.usefixtures('without_pictures')
def test_lines_below_the_table_tell_epsilon_two_classes_and_most_frequent_one(
  tmp_path, data
):
  two_classes = {'auc': 0.5, 'balanced_accuracy': 0.25, 'f1': 0.125}
  evaluation = _evaluation(0.0, None)
  evaluation['two_classes'] = {'personal': two_classes, 'global': None}
  with _store(tmp_path, data, {1: evaluation}) as store:
    summary = report.write_report(store, _process(False), data)
  summary['privacy'] = {'epsilon': 2.5, 'delta': 0.01}
  summary['num_scored_clients'] = 2
  lines = report.tables([summary]).splitlines()
  scored, diverged, told, scores, majority = lines[-5:]
  assert 'mean over 2 of 3 clients' in scored
  assert 'models of 1 of 2 scored clients have diverged' in diverged
  assert told == 'fed_toy: ε = 2.5 at δ = 0.01 for each client.'
  assert 'AUC 0.500, balanced accuracy 0.250, F1 0.125' in scores
  assert 'accuracy of 0.000 is no more than' in majority


@pytest.mark.usefixtures('without_pictures')
def test_a_method_without_a_global_model_has_dashes_in_its_place(
  tmp_path, data
):
  summaries = []
  for name, shared in (('one', 0.3), ('two', None)):
    evaluations = {1: _evaluation(0.5, shared)}
    with _store(tmp_path / name, data, evaluations) as store:
      summary = report.write_report(store, _process(shared is not None), data)
      series = report.series(store.evaluations(), split_model.ACCURACY)
    assert series.get('global') == (shared and ([1], [shared]))
    assert series['personal'] == ([1], [0.5])
    summaries.append({**summary, 'algorithm': name})
  assert summary['global_accuracy'] is None
  assert summary['global_loss'] is None
  assert report.series([], split_model.ACCURACY) == {}
  first, second = report.tables(summaries).splitlines()[3:5]
  assert first.split()[:4] == ['one', '0.5', '0.5', '0.3']
  assert second.split()[:4] == ['two', '0.5', '0.5', '–']


@pytest.mark.parametrize(
  'numbers, title',
  [
    ([], 'last 10 rounds'),
    ([1], 'last 1 evaluation'),
    ([2, 10], 'last 2–10 evaluations'),
  ],
)
def test_last_10_rounds_are_called_so_only_where_there_were_ten(numbers, title):
  assert report.recent_title(numbers) == title


def test_curves_are_of_both_models_with_their_last_value(tmp_path, data):
  with _store(tmp_path, data, _EVALUATIONS) as store:
    frame = report.curves(store.evaluations())
  assert set(frame['model']) == {'personal', 'global'}
  ax = report.plot_curves({'one': frame, 'two': frame}, split_model.ACCURACY)
  labels = [text.get_text() for text in ax.get_legend().get_texts()]
  last = frame[(frame['model'] == 'personal') & (frame['metric'] == 'accuracy')]
  assert labels[0] == f'one, personal model ({last["value"].iloc[-1]:.1%})'
  assert len(labels) == 4
  # Where both are the same there is one.
  same = [{'round': 1, 'personal': {'loss': 1.0}, 'global': {'loss': 1.0}}]
  assert report.curves(same)['model'].tolist() == ['global']


def _figure(sea, hills, client_mean):
  known = [value for value in (sea, hills) if value is not None]
  return {
    'by_domain': {'sea': sea, 'hills': hills, 'moon': None},
    'min': min(known),
    'mean': sum(known) / len(known),
    'max': max(known),
    'client_mean': client_mean,
  }


def _domain_evaluation(round_number, personal, shared=None):
  return {
    **_evaluation(0.5, None),
    'round': round_number,
    'domains': {
      'num_test_examples': {'sea': 40, 'hills': 20, 'moon': 0},
      'without_test_examples': ['moon'],
      'personal': personal,
      'global': shared,
    },
  }


def test_data_with_domains_have_them_in_the_summary_and_files(tmp_path, data):
  evaluations = {
    n: _domain_evaluation(n, {'accuracy': _figure(sea, hills, 0.5)})
    for n, sea, hills in ((1, 1.0, 1.0), (3, 0.5, 0.75), (12, 0.25, 0.125))
  }
  with _store(tmp_path, data, evaluations) as store:
    summary = report.write_report(store, _process(False), data)
  assert json.loads((tmp_path / report.SUMMARY_NAME).read_text()) == summary
  # The last ten rounds are 3 to 12; their minima are 0.5 and 0.125.
  assert summary['domains']['personal']['accuracy']['min'] == {
    'last': 0.125,
    'last_10_mean': 0.3125,
  }
  rows = pd.read_csv(tmp_path / report.PER_DOMAIN_NAME, index_col='domain')
  assert rows.index.tolist() == ['sea', 'hills', 'moon']
  assert rows['num_test_examples'].tolist() == [40, 20, 0]
  last, recent = (f'personal/accuracy/{n}' for n in ('last', 'last_10_mean'))
  assert rows.loc['sea', [last, recent]].tolist() == [0.25, 0.375]
  assert np.isnan(rows.loc['moon', last])
  picture = tmp_path / report.DOMAINS_PLOT_NAME
  assert picture.read_bytes().startswith(b'\x89PNG')
  assert report.tables([summary, summary]).count('by domain') == 2


def _domains():
  """Sums up rounds 2, 11 and 20; the last ten rounds are 11 to 20."""
  evaluations = [
    _domain_evaluation(
      round_number,
      {
        'loss': _figure(1.0, 2.0, 1.5),
        'accuracy': _figure(sea, hills, 0.625),
        'auc': _figure(sea, None, None),
      },
      {
        'loss': _figure(1.0, 2.0, 1.5),
        'accuracy': _figure(0.25, 0.125, 0.1875),
        'auc': _figure(sea, None, None),
      },
    )
    for round_number, sea, hills in (
      (2, 1.0, 1.0),
      (11, 0.5, 0.75),
      (20, 0.75, 0.25),
    )
  ]
  return report.domains_over_rounds(evaluations, 20)


def test_figures_over_rounds_are_those_computed_by_hand():
  domains = _domains()
  assert domains['num_test_examples'] == {'sea': 40, 'hills': 20, 'moon': 0}
  assert domains['without_test_examples'] == ['moon']
  assert domains['personal']['accuracy'] == {
    'by_domain': {
      'sea': {'last': 0.75, 'last_10_mean': 0.625},
      'hills': {'last': 0.25, 'last_10_mean': 0.5},
      'moon': {'last': None, 'last_10_mean': None},
    },
    # The mean of the rounds' minima, not the minimum of the means.
    'min': {'last': 0.25, 'last_10_mean': 0.375},
    'mean': {'last': 0.5, 'last_10_mean': 0.5625},
    'max': {'last': 0.75, 'last_10_mean': 0.75},
    'client_mean': {'last': 0.625, 'last_10_mean': 0.625},
  }
  assert domains['global']['accuracy']['min']['last_10_mean'] == 0.125
  # An evaluation outside of the last ten rounds does not count.
  early = _domain_evaluation(3, {'accuracy': _figure(0.5, 0.75, 0.5)})
  assert report.domains_over_rounds([early], 20)['personal']['accuracy'][
    'min'
  ] == {'last': 0.5, 'last_10_mean': None}


def _cells(domains):
  """The rows of the table on the screen by their names."""
  figures = {'num_last_10': 10}
  summary = {'algorithm': 'fed_toy', 'accuracy': figures, 'domains': domains}
  table = report._domain_table({**summary, 'global_accuracy': None})
  names = ['sea', 'hills', 'moon']
  names += [f'{name} over domains' for name in ('min', 'mean', 'max')]
  names += ['mean over clients']
  lines = table.splitlines()[-len(names) :]
  for name, line in zip(names, lines):
    assert line.startswith(name)
  return {name: line[len(name) :].split() for name, line in zip(names, lines)}


def test_the_table_has_accuracy_and_auc_of_each_domain_and_over_them():
  rows = _cells(_domains())
  auc = ['0.75', '0.625', '0.75']
  assert rows == {
    'sea': ['40', '0.75', '0.625', '0.25', *auc],
    'hills': ['20', '0.25', '0.5', '0.125', '–', '–', '–'],
    'moon': ['0', '–', '–', '–', '–', '–', '–'],
    'min over domains': ['–', '0.25', '0.375', '0.125', *auc],
    'mean over domains': ['–', '0.5', '0.5625', '0.1875', *auc],
    'max over domains': ['–', '0.75', '0.75', '0.25', *auc],
    'mean over clients': ['–', '0.625', '0.625', '0.1875', '–', '–', '–'],
  }


def test_the_table_of_a_regression_has_its_metrics():
  evaluation = _domain_evaluation(
    1, {'loss': _figure(1.0, 2.0, 1.5), 'mae': _figure(0.5, 0.25, 0.5)}
  )
  domains = report.domains_over_rounds([evaluation], 1)
  rows = _cells(domains)
  assert rows['sea'] == ['40', '1', '1', '0.5', '0.5']
  ((metric, bars),) = report.domain_bars(domains, split_model.LOSS).items()
  assert metric == split_model.LOSS
  assert set(bars['model']) == {'personal model'}
  assert bars.set_index('domain')['value']['sea'] == 1.0


def test_bars_are_of_domains_with_test_examples():
  accuracy, auc = report.domain_bars(_domains(), split_model.ACCURACY).items()
  assert accuracy[0] == split_model.ACCURACY
  columns = ['model', 'domain', 'value']
  assert accuracy[1][columns].to_numpy().tolist() == [
    ['global model', 'sea', 0.25],
    ['global model', 'hills', 0.125],
    ['personal model', 'sea', 0.75],
    ['personal model', 'hills', 0.25],
  ]
  # Where both are the same there is one.
  assert auc[0] == split_model.PrimaryMetric('AUC', True)
  assert auc[1][['model', 'domain']].to_numpy().tolist() == [
    ['global model', 'sea'],
    ['global model', 'hills'],
  ]
