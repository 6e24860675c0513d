"""Results of studies, of made-up trials whose scores are known."""

import os
import re
import statistics

import numpy as np
import pandas as pd
import pytest

import tff_pfl as pfl
from tests import html_text
from tests.studies import made_up_trials
from tff_pfl import errors, plots
from tff_pfl.runs import summary
from tff_pfl.studies import execution, results, trial

_PERSONAL = 'personal accuracy, last round (%)'


def _read(directory, trial_name, file_name):
  folder = execution.trial_folder(directory, trial_name)
  return summary.read_json(os.path.join(folder, file_name))


def _change(directory, trial_name, file_name, change):
  content = _read(directory, trial_name, file_name)
  change(content)
  folder = execution.trial_folder(directory, trial_name)
  summary.write_json(os.path.join(folder, file_name), content)


def _one_method(directory, num_seeds=1, **made_up):
  """Results of FedAvg, also fine-tuned, on two clients."""
  study = made_up_trials.study(
    settings={**made_up_trials.SETTINGS, 'num_clients': 2},
    methods={n: made_up_trials.METHODS[n] for n in ('FedAvg', 'FedAvg + FT')},
    seeds=range(num_seeds),
  )
  return made_up_trials.run_trials(study, directory, **made_up)


def _of(found, method):
  frame = found.figures_by_seed
  return frame[frame['method'] == method]


def _words(found):
  """A table for the screen, without its padding."""
  return ' '.join(found.table().split())


def test_there_is_a_result_for_each_method_and_seed(found):
  tuned = 'FedAvg + FT'
  assert [(one.method, one.seed, one.variant) for one in found] == [
    *(('FedAvg', 0, ''), ('FedAvg', 1, ''), (tuned, 0, tuned)),
    *((tuned, 1, tuned), ('Local', 0, '')),
  ]
  assert found.label('', 'FedAvg') == 'FedAvg'
  assert found.label('', 'Local') == 'Local (1 of 2 runs)'


def test_the_figures_are_those_of_the_runs(found, directory):
  summaries = [
    _read(directory, f'FedAvg-seed{seed}', 'summary.json') for seed in (0, 1)
  ]
  own = _of(found, 'FedAvg')
  # It has neither domains nor two classes.
  names = {*own.columns[own.notna().any()]}
  assert not [name for name in names if 'domain' in name or 'auc' in name]
  means = found.figures.set_index('method').loc['FedAvg']
  for name, path in {
    'score': 'accuracy/last_10_mean',
    'personal_accuracy_last_10': 'accuracy/last_10_mean',
    'personal_accuracy': 'accuracy/last',
    'global_accuracy': 'global_accuracy/last',
    'weighted_accuracy': 'fairness/weighted_mean',
    'weighted_accuracy_best_10': 'weighted/best_10_mean',
    'worst_10_percent': 'fairness/worst_10_percent',
    'fraction_hurt': 'fairness/fraction_hurt',
    'personal_loss': 'loss',
    'seconds_per_round': 'seconds_per_round',
  }.items():
    values = [summary.flat(one)[path] for one in summaries]
    assert own[name].tolist() == pytest.approx(values), name
    told = [means[f'{name}/{of}'] for of in ('mean', 'std', 'count')]
    mean, deviation = statistics.fmean(values), statistics.stdev(values)
    assert told == pytest.approx([mean, deviation, 2])
  sizes = {'bytes_down_per_client': [3] * 2, 'bytes_up_per_client': [2] * 2}
  assert own.filter(like='bytes').to_dict('list') == sizes
  # The number of one seed has no deviation.
  local = found.figures.set_index('method').loc['Local']
  assert local['personal_accuracy/count'] == 1
  assert np.isnan(local['personal_accuracy/std'])


def test_figures_leave_out_what_is_not_finite(found):
  again = _with_figures(found, score=[[1.0, np.nan, 3.0], [np.inf]])
  first, second = again.figures.to_dict('records')
  assert (first['score/mean'], first['score/count']) == (2, 2)
  assert first['score/std'] == pytest.approx(2**0.5)
  assert second['score/count'] == 0 and np.isnan(second['score/mean'])


def test_what_a_method_lacks_is_missing(found):
  curves = found.curves
  own = curves.query("method == 'FedAvg' and seed == 1")
  assert own['round'].tolist() == [1, 2, 1, 2]
  assert own['model'].tolist() == ['personal'] * 2 + ['global'] * 2
  assert own['value'].tolist() == own['value'].tolist()[:2] * 2
  # The last round's models alone are fine-tuned.
  assert {*curves['method']} == {'FedAvg', 'Local'}
  assert {*curves[curves['method'] == 'Local']['model']} == {'personal'}
  for method, names in (
    ('Local', ('global_accuracy', 'fraction_hurt')),
    ('FedAvg + FT', ('personal_accuracy_last_10', 'weighted_accuracy_best_10')),
  ):
    assert _of(found, method)[list(names)].isna().all(axis=None)
  tuned = _of(found, 'FedAvg + FT')
  assert tuned['score'].tolist() == tuned['personal_accuracy'].tolist()


def test_methods_with_fine_tuning_of_their_own_are_scored_alike(tmp_path):
  own = [{'fine_tune_num_epochs': 1}, {'fine_tune_num_epochs': 2}, {}]
  study = made_up_trials.study(
    settings={**made_up_trials.SETTINGS, 'fine_tune': 'head'},
    methods={str(one): pfl.Method('fed_avg', **one) for one in own},
    seeds=(0,),
  )
  frame = made_up_trials.run_trials(study, tmp_path).figures_by_seed
  assert frame['score'].tolist() == [
    *frame['personal_accuracy'][:2],
    frame['personal_accuracy_last_10'][2],
  ]


def test_new_clients_are_apart(found, directory):
  clients = found.client_scores
  for _, own in clients.groupby(['method', 'seed']):
    trained, new = (
      {*own[own['is_new'] == is_new]['client']} for is_new in (False, True)
    )
    assert (len(trained), len(new), len(trained | new)) == (4, 1, 5)
  new = clients.query("method == 'FedAvg + FT' and is_new")['after/accuracy']
  tuned = _of(found, 'FedAvg + FT')
  assert tuned['new_client_accuracy'].tolist() == new.tolist()
  # Methods whose clients have weights also serve them by ensemble.
  scores = _read(directory, 'Local-seed0', trial.SCORES_NAME)
  (row,) = scores['variants']['']['new_clients_by_ensemble']
  name = 'new_client_ensemble_accuracy'
  assert _of(found, 'Local')[name].tolist() == [row['after']['accuracy']]
  assert _of(found, 'FedAvg')[name].isna().all()


def test_what_is_scored_is_the_methods_choice(tmp_path):
  scored = ('personal', 'global', 'new_clients', 'new_clients_by_ensemble')
  methods = {
    f'{name} {score}': pfl.Method(algorithm, score=score)
    for name, algorithm in (('FedAvg', 'fed_avg'), ('Local', 'local_only'))
    for score in scored
  }
  study = made_up_trials.study(methods=methods, seeds=(0,), num_new_clients=1)
  accuracies = {'FedAvg_personal-seed0': 0.5, 'Local_personal-seed0': 0.25}
  actual = made_up_trials.run_trials(study, tmp_path, scores=accuracies)
  assert len(os.listdir(tmp_path / 'trials')) == 2

  def new_client(trial_name, key):
    variant = _read(tmp_path, trial_name, trial.SCORES_NAME)['variants']['']
    return variant[key][0]['after']['accuracy']

  fed_avg, local = accuracies
  expected = [0.5, 0.5, new_client(fed_avg, 'new_clients'), None, 0.25, None]
  expected += [new_client(local, name) for name in scored[2:]]
  assert [one.score() for one in actual] == expected


def test_figures_of_folds_are_those_of_each(tmp_path):
  options = {'num_folds': 2, 'metric': 'personal_accuracy'}
  study = made_up_trials.study(methods=['fed_avg'], seeds=(3,), **options)
  actual = made_up_trials.run_study(study, tmp_path, has_page=True)
  own = _of(actual, 'fed_avg')
  assert own['fold'].tolist() == [0, 1]
  names = [f'fed_avg-seed3-fold{i}of2' for i in (0, 1)]
  told = [_read(tmp_path, name, 'summary.json') for name in names]
  values = [one['accuracy']['last'] for one in told]
  assert own['personal_accuracy'].tolist() == values
  mean, deviation = statistics.fmean(values), statistics.stdev(values)
  assert f'{100 * mean:.1f} ± {100 * deviation:.1f}' in actual.table()
  last = actual.curves.query("round == 2 and model == 'personal'")
  assert last['fold'].tolist() == [0, 1]
  assert last['value'].tolist() == values
  assert {*actual.client_scores['fold']} == {0, 1}
  page = (tmp_path / 'study.html').read_text()
  assert '<dt>num_folds</dt><dd>2</dd>' in page


def test_divergence_is_a_column_where_there_is_any(tmp_path):
  actual = _one_method(tmp_path, num_seeds=2, scores={'FedAvg-seed0': 0.5})
  assert not actual.figures_by_seed['fraction_diverged'].any()
  assert 'diverged' not in actual.table()

  def diverge(scores):
    evaluation = scores['variants']['']['evaluation']
    evaluation['non_finite_clients'] = 1
    evaluation['personal']['loss'] = None

  _change(tmp_path, 'FedAvg-seed1', trial.SCORES_NAME, diverge)
  again = pfl.open_study(tmp_path)
  assert _of(again, 'FedAvg')['fraction_diverged'].tolist() == [0, 0.5]
  assert _of(again, 'FedAvg + FT')['fraction_diverged'].tolist() == [0, 0]
  assert _of(again, 'FedAvg')['personal_loss'].notna().tolist() == [True, False]
  assert _of(again, 'FedAvg')['personal_accuracy'].notna().all()
  assert ' 25.0 ± 35.4 ' in _words(again)


def test_the_most_frequent_class_is_a_column_where_a_method_is_no_better(
  tmp_path,
):
  scores = {'FedAvg-seed0': 0.5, 'FedAvg-seed1': 0.75}
  _one_method(tmp_path, num_seeds=2, scores=scores)

  def columns(accuracy):
    def change(told):
      told.update(majority_accuracy=accuracy)

    for name in scores:
      _change(tmp_path, name, 'summary.json', change)
    return _words(pfl.open_study(tmp_path))

  # With one seed it is.
  assert 'frequent' in columns(0.5)
  assert 'frequent' not in columns(0.1)


def test_frames_are_tidy_and_on_file(found, directory):
  figures = pd.read_csv(directory / 'numbers.csv', keep_default_na=False)
  assert figures['method'].tolist() == [one.method for one in found]
  assert figures['seed'].tolist() == [0, 1, 0, 1, 0]
  accuracies = figures['personal_accuracy'].astype(float).tolist()
  assert accuracies == found.numbers['personal_accuracy'].tolist()
  rows, clients = pd.read_csv(directory / 'per_client.csv'), found.client_scores
  assert rows['after/accuracy'].tolist() == clients['after/accuracy'].tolist()
  assert rows['is_new'].tolist() == ([False] * 4 + [True]) * 5
  assert not (directory / 'per_domain.csv').exists()
  second = clients.iloc[1]
  (value,) = found.scores.query(
    'client == @second.client and method == @second.method and seed == 0'
    " and not is_new and when == 'after' and metric == 'accuracy'"
  )['value']
  assert value == second['after/accuracy']


def test_figures_over_domains_are_those_of_each_seed(tmp_path):
  domains = {
    'FedAvg-seed0': made_up_trials.domains(0.75, 0.25),
    'FedAvg-seed1': made_up_trials.domains(0.5, 0.75),
  }
  actual = _one_method(tmp_path, num_seeds=2, domains=domains)
  own, tuned = (_of(actual, name) for name in ('FedAvg', 'FedAvg + FT'))
  for name, values in {
    'domain_accuracy_min': [0.25, 0.5],
    'domain_accuracy_mean': [0.5, 0.625],
    'domain_accuracy_max': [0.75, 0.75],
    'domain_accuracy_min_last_10': [0.025, 0.05],
    'domain_auc_min': [0.125, 0.25],
    'domain_auc_max_last_10': [0.0375, 0.0375],
    'client_auc': [0.375, 0.25],
    'client_auc_last_10': [0.0375, 0.025],
  }.items():
    assert own[name].tolist() == pytest.approx(values), name
    # It is made of the last round's models alone.
    if name.endswith('last_10'):
      assert tuned[name].isna().all()
    else:
      assert tuned[name].tolist() == values
  scores = actual.domain_scores
  nan = np.nan
  accuracies = np.array([0.75, 0.25, nan, 0.5, 0.75, nan])
  for method in ('FedAvg', 'FedAvg + FT'):
    rows = scores[scores['method'] == method]
    assert rows['domain'].tolist() == ['sea', 'hills', 'moon'] * 2
    numbers = rows.drop(columns=['condition', 'method', 'domain'])
    assert numbers['seed'].tolist() == [0] * 3 + [1] * 3
    rows = [4, 2, 0] * 2, [1.0, 2.0, nan] * 2, accuracies, accuracies / 2
    values = numbers.drop(columns='seed').astype(float).T
    np.testing.assert_array_equal(values, rows)
  # They have a table of their own.
  of_all, of_domains = actual.table().split('Over domains')
  assert 'min accuracy' in ' '.join(of_domains.split())
  assert 'min accuracy' not in ' '.join(of_all.split())
  row = re.split(r'  +', of_domains.strip().splitlines()[-2].strip())
  assert row[:4] == ['FedAvg', '37.5 ± 17.7', '56.2 ± 8.8', '75.0 ± 0.0']
  # Beside them stands the mean over clients, before the AUC.
  values = 100 * own['personal_accuracy']
  assert row[4] == f'{values.mean():.1f} ± {values.std():.1f}'
  assert row[5] == '18.8 ± 8.8'


def test_another_metric_than_the_accuracy_is_compared(tmp_path):
  domains = made_up_trials.domains(0.5, 0.75, 'mae')
  actual = _one_method(
    tmp_path, metric='mae', domains=domains, scores={'FedAvg-seed0': 1234.5}
  )
  assert actual.domain_scores['mae'].tolist()[1] == 0.75
  row = _of(actual, 'FedAvg').iloc[0]
  assert row['domain_mae_max'] == 0.75
  assert row['score'] == row['personal_mae'] == 1234.5
  assert actual.client_scores['after/mae'].between(0, 1).all()
  # It is no fraction.
  assert 'FedAvg 1234 1234 1234' in _words(actual)
  is_better = results.numbers_of(actual).higher_is_better
  assert not is_better['score'] and not is_better['personal_mae']
  # Of numbers without a direction more is better.
  assert is_better['majority_accuracy']


def test_further_metrics_are_collected(tmp_path):
  told = {'higher_is_better': True, 'num_scored': 2}
  numbers = {'auc': 1, 'f1_macro': 2}
  told = {name: {**told, 'num_clients': n} for name, n in numbers.items()}
  actual = _one_method(tmp_path, reported=told)
  row = _of(actual, 'FedAvg').iloc[0]
  for name in ('personal_auc', 'global_auc', 'personal_f1_macro'):
    assert row[name] == 0.5
  assert row['clients_auc'] == 1
  # All clients have it.
  assert 'clients_f1_macro' not in row


def _with_figures(found, **columns):
  """The results with other figures, of methods A, B and so on."""
  again = results.Results(found.directory, dict(found.description))
  again._results = found._results
  again.figures_by_seed = pd.DataFrame(
    {'condition': '', 'method': method, 'seed': seed, **dict(zip(columns, row))}
    for method, *of_method in zip('ABCDEFGHIJ', *columns.values())
    for seed, row in enumerate(zip(*of_method))
  )
  return again


def _cells(found, methods):
  names = found.figures_by_seed.columns[3:]
  return found.cells('', [*methods], [found.metrics[n] for n in names])


def test_the_best_figures_are_marked_and_those_not_told_from_them(found):
  again = _with_figures(
    found,
    # Seed by seed the second is always behind.
    personal_accuracy=[[5, 7, 6], [4, 6, 5], [5, 6, 6.5], [np.nan] * 3],
    personal_loss=[[0.5] * 3, [0.25] * 3, [0.5, 0.25, 0.0], [0.3, 0.2, np.nan]],
    majority_accuracy=[[5] * 3, [2.5] * 3, [1] * 3, [2] * 3],
  )
  text, marks = _cells(again, 'ABCD')
  assert text[_PERSONAL][0] == '600.0 ± 100.0' and text[_PERSONAL][3] is None
  assert marks[_PERSONAL].tolist() == ['best', '', 'tie', '']
  # Of a loss less is better; what looks the same is the best, too.
  assert text['personal loss'][3] == '0.250 ± 0.071 (2 of 3 runs)'
  assert marks['personal loss'].tolist() == ['', 'best', 'best', 'best']
  # Of this one neither is.
  assert not any(marks['most frequent class (%)'])


def test_nothing_is_marked_where_all_is_the_same(found):
  columns = {'personal_accuracy': [[0.5], [0.5001]]}
  columns.update(personal_loss=[[np.nan]] * 2, worst_10_percent=[[0.1], [0.2]])
  again = _with_figures(found, **columns)
  text, marks = _cells(again, 'AB')
  # Columns that nobody has are left out.
  assert [*text] == [_PERSONAL, 'worst 10% of clients (%)']
  assert marks[_PERSONAL].tolist() == ['', '']
  # One seed tells no difference.
  assert marks['worst 10% of clients (%)'].tolist() == ['', 'best']


def test_the_best_methods_that_have_curves_are_drawn(found):
  again = _with_figures(found, personal_accuracy=[[i / 10] for i in range(10)])
  curves = found.curves[found.curves['method'] == 'FedAvg']
  again.curves = pd.concat(curves.assign(method=name) for name in 'ABCDEFGHJ')
  assert again.ranked('') == [*'JIHGFEDCBA']
  labels = again.plot(plots.new_axes()).get_legend().get_texts()
  assert {label.get_text() for label in labels} == {*'JHGFEDC'}


def test_conditions_are_columns_beside_published_figures(tmp_path):
  study = made_up_trials.study(
    conditions={2: {}, 'a/b': {'partition': 'iid'}},
    published={('FedAvg', 2): 71.5, ('Local', 2): None, ('Local', 'a/b'): 20},
  )
  pairs = {'2-FedAvg': (0.5, 0.75), 'a_b-FedAvg': (0.75, 1.0)}
  pairs.update({'2-Local': (0.25, 0.5), 'a_b-Local': (0.5, 0.5)})
  scores = {f'{n}-seed{i}': pairs[n][i] for n in pairs for i in (0, 1)}
  actual = made_up_trials.run_trials(study, tmp_path, scores=scores)
  overview = actual.overview().set_index('method')
  heads = ['2 (%)', '2, published', 'a/b (%)', 'a/b, published']
  assert [*overview] == heads
  for method, row in (
    ('FedAvg', ['62.5 ± 17.7', '71.5', '87.5 ± 17.7', '']),
    ('Local', ['37.5 ± 17.7', '', '50.0 ± 0.0', '20']),
  ):
    assert overview.loc[method].tolist() == row
    assert ' '.join([method, *filter(None, row)]) in _words(actual)
  # A picture of all is one of bars, of one condition of curves.
  for options, expected in (
    ({}, ['2', 'a/b']),
    ({'condition': 2}, ['FedAvg', 'Local']),
  ):
    legend = actual.plot(plots.new_axes(), **options).get_legend()
    assert [text.get_text() for text in legend.get_texts()] == expected
  # A mean of some of the runs says so.
  os.remove(tmp_path / 'trials' / '2-Local-seed0' / 'scores.json')
  part = pfl.open_study(tmp_path).overview().set_index('method')
  assert part.loc['Local'].tolist() == [
    '50.0 (1 of 2 runs)',
    '',
    '50.0 ± 0.0',
    '20',
  ]
  # Another column may be the one that is shown.
  actual.description['metric'] = 'personal_loss'
  loss = actual.overview().set_index('method')['2'].loc['FedAvg']
  assert re.fullmatch(r'0\.\d+ ± 0\.\d+', loss)


def test_names_are_no_elements_of_a_notebook(found):
  again = _with_figures(found, score=[[0.5, 0.25]])
  again.figures_by_seed['method'] = html_text.IMAGE
  assert html_text.count_images(again._repr_html_()) == 1
  assert '37.5 ± 17.7' in again._repr_html_()


def test_a_study_in_progress_is_opened(tmp_path):
  with pytest.raises(errors.RunError, match='holds no study: there is no'):
    pfl.open_study(tmp_path)
  seen, lengths = [], []

  def run(expected, folder, **options):
    seen.append(pfl.open_study(tmp_path))
    lengths.append(len(seen[-1]))
    if len(seen) == 4:
      raise KeyboardInterrupt
    made_up_trials.run(expected, folder, **options)

  with pytest.raises(KeyboardInterrupt):
    made_up_trials.run_study(made_up_trials.study(), tmp_path, run)
  assert lengths == [0, 2, 3, 5]
  first, *_, last = seen
  assert first.table().split() == []
  assert first.numbers.empty
  assert first.figures.empty
  assert not first.plot(plots.new_axes()).lines
  assert 'Local (1 of 2 runs)' in last.table()
  assert last.claims.empty
  # It goes on where it was.
  actual = made_up_trials.run_study(made_up_trials.study(), tmp_path)
  assert len(actual) == len(pfl.open_study(tmp_path)) == 6
