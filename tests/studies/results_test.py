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
from tff_pfl.studies import execution, metrics, results, trial

_PERSONAL = 'personal accuracy, last round (%)'


def _read(directory, trial_name, file_name):
  folder = execution.trial_folder(directory, trial_name)
  return summary.read_json(os.path.join(folder, file_name))


def _change(directory, trial_name, file_name, change):
  content = _read(directory, trial_name, file_name)
  change(content)
  folder = execution.trial_folder(directory, trial_name)
  summary.write_json(os.path.join(folder, file_name), content)


def _one_method(directory, num_seeds=1, *, settings=None, **made_up):
  """Results of FedAvg, also fine-tuned, on two clients."""
  study = made_up_trials.study(
    settings={
      **made_up_trials.SETTINGS,
      'num_clients': 2,
      'num_rounds': 4,
      **(settings or {}),
    },
    methods={n: made_up_trials.METHODS[n] for n in ('FedAvg', 'FedAvg + FT')},
    seeds=range(num_seeds),
  )
  return made_up_trials.run_trials(study, directory, **made_up)


def _of(found, method):
  frame = found.figures_by_seed
  return frame[frame['method'] == method]


def _rows(text, num_rows):
  """The last rows of a table for the screen, without their padding."""
  return [' '.join(row.split()) for row in text.splitlines()[-num_rows:]]


def test_there_is_a_result_for_each_method_and_seed(found):
  assert [(one.method, one.seed, one.variant) for one in found] == [
    ('FedAvg', 0, ''),
    ('FedAvg', 1, ''),
    ('FedAvg + FT', 0, 'FedAvg + FT'),
    ('FedAvg + FT', 1, 'FedAvg + FT'),
    ('Local', 0, ''),
  ]
  assert len(found) == 5
  assert found.label('', 'FedAvg') == 'FedAvg'
  assert found.label('', 'Local') == 'Local (1 of 2 runs)'
  assert found.conditions == ['']


def test_the_figures_are_those_of_the_runs(found, directory):
  summaries = [
    _read(directory, f'FedAvg-seed{seed}', 'summary.json') for seed in (0, 1)
  ]
  own = _of(found, 'FedAvg')
  own = own[own.columns[own.notna().any()]]
  # It has neither domains nor two classes, and learns something.
  absent = {
    *('majority_accuracy', 'auc', 'balanced_accuracy', 'f1'),
    'new_client_ensemble_accuracy',
  }
  assert {*own} == {'condition', 'method', 'seed', 'score'} | {
    name
    for name in metrics.by_name()
    if name not in absent and not name.startswith(('domain_', 'client_auc'))
  }
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
    mean, std = statistics.fmean(values), statistics.stdev(values)
    assert means[
      [f'{name}/{of}' for of in ('mean', 'std', 'count')]
    ].tolist() == (pytest.approx([mean, std, 2]))
  for way, size in (('down', 3), ('up', 2)):
    assert own[f'bytes_{way}_per_client'].tolist() == [size] * 2
    # Of a cohort of two.
    assert own[f'bytes_{way}_per_round'].tolist() == [2 * size] * 2
  # The number of one seed has no deviation.
  local = found.figures.set_index('method').loc['Local']
  assert local['personal_accuracy/count'] == 1
  assert np.isnan(local['personal_accuracy/std'])


def test_figures_leave_out_what_is_not_finite(tmp_path):
  found = _one_method(tmp_path)
  found.figures_by_seed = pd.DataFrame(
    {
      'condition': '',
      'method': ['A'] * 3 + ['B'],
      'seed': [0, 1, 2, 0],
      'score': [1.0, np.nan, 3.0, np.inf],
    }
  )
  first, second = found.figures.to_dict('records')
  assert first == {
    'condition': '',
    'method': 'A',
    'score/mean': 2,
    'score/std': pytest.approx(2**0.5),
    'score/count': 2,
  }
  assert second['score/count'] == 0
  assert np.isnan(second['score/mean'])


def test_what_a_method_lacks_is_missing(found):
  curves = found.curves
  for seed in (0, 1):
    own = curves[(curves['method'] == 'FedAvg') & (curves['seed'] == seed)]
    assert own['round'].tolist() == [1, 2, 1, 2]
    personal, by_global = np.split(own['value'].to_numpy(), 2)
    assert own['model'].tolist() == ['personal'] * 2 + ['global'] * 2
    np.testing.assert_array_equal(personal, by_global)
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


def test_new_clients_are_apart(found, directory):
  clients = found.client_scores
  for method in ('FedAvg', 'FedAvg + FT'):
    for seed in (0, 1):
      own = clients[(clients['method'] == method) & (clients['seed'] == seed)]
      trained, new = (
        {*own[own['is_new'] == is_new]['client']} for is_new in (False, True)
      )
      assert (len(trained), len(new)) == (4, 1)
      assert not trained & new
  new = clients[(clients['method'] == 'FedAvg + FT') & clients['is_new']]
  assert (
    _of(found, 'FedAvg + FT')['new_client_accuracy'].tolist()
    == new['after/accuracy'].tolist()
  )
  # Methods whose clients have weights also serve them by ensemble.
  scores = _read(directory, 'Local-seed0', trial.SCORES_NAME)
  (row,) = scores['variants']['']['new_clients_by_ensemble']
  name = 'new_client_ensemble_accuracy'
  assert _of(found, 'Local')[name].tolist() == [row['after']['accuracy']]
  assert _of(found, 'FedAvg')[name].isna().all()


def test_what_is_scored_is_the_methods_choice(tmp_path):
  scored = ('personal', 'global', 'new_clients', 'new_clients_by_ensemble')
  study = made_up_trials.study(
    methods={
      f'{name} {score}': pfl.Method(algorithm, score=score)
      for name, algorithm in (('FedAvg', 'fed_avg'), ('Local', 'local_only'))
      for score in scored
    },
    seeds=(0,),
    num_new_clients=1,
  )
  accuracies = {'FedAvg_personal-seed0': 0.5, 'Local_personal-seed0': 0.25}
  found = made_up_trials.run_trials(study, tmp_path, scores=accuracies)
  assert len(os.listdir(tmp_path / 'trials')) == 2

  def new_client(trial_name, key):
    variant = _read(tmp_path, trial_name, trial.SCORES_NAME)['variants']['']
    return variant[key][0]['after']['accuracy']

  fed_avg, local = accuracies
  expected = [0.5, 0.5, new_client(fed_avg, 'new_clients'), None]
  expected += [0.25, None]
  expected += [new_client(local, name) for name in scored[2:]]
  assert [one.score() for one in found] == expected


def test_figures_of_folds_are_those_of_each(tmp_path):
  study = made_up_trials.study(
    methods=['fed_avg'], seeds=(3,), num_folds=2, metric='personal_accuracy'
  )
  found = made_up_trials.run_study(study, tmp_path, has_page=True)
  accuracies = [
    _read(tmp_path, f'fed_avg-seed3-fold{fold}of2', 'summary.json')['accuracy']
    for fold in range(2)
  ]
  own = _of(found, 'fed_avg')
  assert own['fold'].tolist() == [0, 1]
  values = [one['last'] for one in accuracies]
  assert own['personal_accuracy'].tolist() == values
  mean, deviation = statistics.fmean(values), statistics.stdev(values)
  assert f'{100 * mean:.1f} ± {100 * deviation:.1f}' in found.table()
  last = found.curves.query("round == 2 and model == 'personal'")
  assert last['fold'].tolist() == [0, 1]
  assert last['value'].tolist() == values
  assert {*found.client_scores['fold']} == {0, 1}
  page = (tmp_path / 'study.html').read_text()
  assert '<dt>num_folds</dt><dd>2</dd>' in page


def test_divergence_is_a_column_where_there_is_any(tmp_path):
  found = _one_method(tmp_path, num_seeds=2, scores={'FedAvg-seed0': 0.5})
  assert not found.figures_by_seed['fraction_diverged'].any()
  assert 'diverged' not in found.table()

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
  assert ' 25.0 ± 35.4 ' in _rows(again.table(), 2)[0]


def test_the_most_frequent_class_is_a_column_where_a_method_is_no_better(
  tmp_path,
):
  scores = {'FedAvg-seed0': 0.5, 'FedAvg-seed1': 0.75}
  _one_method(tmp_path, num_seeds=2, scores=scores)

  def columns(accuracy):
    for name in scores:
      _change(
        tmp_path, name, 'summary.json',
        lambda told: told.update(majority_accuracy=accuracy),
      )  # fmt: skip
    return ' '.join(pfl.open_study(tmp_path).table().split())

  # With one seed it is.
  assert 'frequent' in columns(0.5)
  assert 'frequent' not in columns(0.1)


def test_frames_are_tidy_and_on_file(found, directory):
  figures = pd.read_csv(directory / 'numbers.csv', keep_default_na=False)
  assert figures['method'].tolist() == [one.method for one in found]
  assert figures['seed'].tolist() == [0, 1, 0, 1, 0]
  assert figures['personal_accuracy'].astype(float).tolist() == (
    found.numbers['personal_accuracy'].tolist()
  )
  rows = pd.read_csv(directory / 'per_client.csv')
  assert len(rows) == 5 * (4 + 1)
  clients = found.client_scores
  assert rows['after/accuracy'].tolist() == clients['after/accuracy'].tolist()
  assert rows['is_new'].tolist() == ([False] * 4 + [True]) * 5
  assert not (directory / 'per_domain.csv').exists()
  second = clients.to_dict('records')[1]
  tidy = found.scores
  (row,) = tidy[
    (tidy['client'] == second['client'])
    & (tidy['seed'] == 0)
    & (tidy['method'] == 'FedAvg')
    & ~tidy['is_new']
    & (tidy['when'] == 'after')
    & (tidy['metric'] == 'accuracy')
  ].to_dict('records')
  assert row['value'] == second['after/accuracy']


def test_figures_over_domains_are_those_of_each_seed(tmp_path):
  domains = {
    'FedAvg-seed0': made_up_trials.domains(0.75, 0.25),
    'FedAvg-seed1': made_up_trials.domains(0.5, 0.75),
  }
  found = _one_method(tmp_path, num_seeds=2, domains=domains)
  own, tuned = (_of(found, name) for name in ('FedAvg', 'FedAvg + FT'))
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
  scores = found.domain_scores
  for method in ('FedAvg', 'FedAvg + FT'):
    rows = scores[scores['method'] == method].drop(
      columns=['condition', 'method']
    )
    np.testing.assert_array_equal(
      rows.drop(columns='domain').astype(float),
      np.array(
        [
          (0, 4, 1.0, 0.75, 0.375),
          (0, 2, 2.0, 0.25, 0.125),
          (0, 0, None, None, None),
          (1, 4, 1.0, 0.5, 0.25),
          (1, 2, 2.0, 0.75, 0.375),
          (1, 0, None, None, None),
        ],
        float,
      ),
    )
    assert rows['domain'].tolist() == ['sea', 'hills', 'moon'] * 2
  # They have a table of their own.
  of_all, of_domains = found.table().split('Over domains')
  titles = ' '.join(of_domains.split())
  for words in ('min accuracy', 'mean accuracy', 'max accuracy', 'min AUC'):
    assert words in titles
    assert words not in ' '.join(of_all.split())
  row = re.split(r'  +', of_domains.strip().splitlines()[-2].strip())
  assert row[:4] == ['FedAvg', '37.5 ± 17.7', '56.2 ± 8.8', '75.0 ± 0.0']
  # Beside them stands the mean over clients, before the AUC.
  values = 100 * own['personal_accuracy']
  assert row[4] == f'{values.mean():.1f} ± {values.std():.1f}'
  assert row[5] == '18.8 ± 8.8'


def test_bytes_of_a_round_are_a_mean_over_the_rounds(tmp_path):
  # A client gets 3 bytes and sends 2; one or both of two clients report.
  found = _one_method(tmp_path, settings={'dropout_rate': 0.5})
  row = _of(found, 'FedAvg').iloc[0]
  assert 3 < row['bytes_down_per_round'] < 6
  assert row['bytes_up_per_round'] == row['bytes_down_per_round'] * 2 / 3


def test_another_metric_than_the_accuracy_is_compared(tmp_path):
  domains = made_up_trials.domains(0.5, 0.75, 'mae')
  found = _one_method(
    tmp_path, metric='mae', domains=domains, scores={'FedAvg-seed0': 1234.5}
  )
  assert found.primary_metric.name == 'mae'
  assert found.domain_scores['mae'].tolist()[1] == 0.75
  row = _of(found, 'FedAvg').iloc[0]
  assert row['domain_mae_max'] == 0.75
  assert row['score'] == row['personal_mae'] == 1234.5
  assert found.client_scores['after/mae'].between(0, 1).all()
  assert _rows(found.table().split('\n\nOver')[0], 2)[0].startswith(
    # It is no fraction.
    'FedAvg 1234 1234 1234'
  )
  assert results.numbers_of(found).higher_is_better == {
    'score': False,
    **{n: m.higher_is_better is not False for n, m in found.metrics.items()},
  }
  assert not found.metrics['personal_mae'].higher_is_better


def test_further_metrics_are_collected(tmp_path):
  told = {
    name: {'higher_is_better': True, 'num_clients': number, 'num_scored': 2}
    for name, number in (('auc', 1), ('f1_macro', 2))
  }
  found = _one_method(tmp_path, reported=told)
  row = _of(found, 'FedAvg').iloc[0]
  for name in ('personal_auc', 'global_auc', 'personal_f1_macro'):
    assert row[name] == 0.5
  assert row['clients_auc'] == 1
  # All clients have it.
  assert 'clients_f1_macro' not in row
  assert found.metrics['personal_f1_macro'].title == 'personal f1 macro'


def _with_figures(found, **columns):
  """The results with other figures, of methods A, B and so on."""
  again = results.Results(found.directory, dict(found.description))
  again._results = found._results
  (values, *_) = columns.values()
  again.figures_by_seed = pd.DataFrame(
    [
      {
        'condition': '',
        'method': 'ABCDEFGHIJ'[i],
        'seed': seed,
        **{name: column[i][seed] for name, column in columns.items()},
      }
      for i, of_method in enumerate(values)
      for seed in range(len(of_method))
    ]
  )
  return again


def _cells(found, methods, *names):
  return found.cells('', [*methods], [found.metrics[n] for n in names])


def test_the_best_figures_are_marked_and_those_not_told_from_them(found):
  again = _with_figures(
    found,
    personal_accuracy=[
      [0.5, 0.7, 0.6],
      # Seed by seed it is always behind.
      [0.4, 0.6, 0.5],
      [0.5, 0.6, 0.65],
      [np.nan] * 3,
    ],
    personal_loss=[[0.5] * 3, [0.25] * 3, [0.5, 0.25, 0.0], [0.3, 0.2, np.nan]],
    majority_accuracy=[[0.5] * 3, [0.25] * 3, [0.1] * 3, [0.2] * 3],
  )
  text, marks = _cells(
    again, 'ABCD', 'personal_accuracy', 'personal_loss', 'majority_accuracy'
  )
  assert text[_PERSONAL].tolist() == [
    *('60.0 ± 10.0', '50.0 ± 10.0', '58.3 ± 7.6', None)
  ]
  assert marks[_PERSONAL].tolist() == ['best', '', 'tie', '']
  # Of a loss less is better; what looks the same is the best, too.
  assert text['personal loss'].tolist() == [
    *('0.500', '0.250', '0.250 ± 0.250', '0.250 ± 0.071 (2 of 3 runs)')
  ]
  assert marks['personal loss'].tolist() == ['', 'best', 'best', 'best']
  # Of this one neither is.
  assert not any(marks['most frequent class (%)'])


def test_nothing_is_marked_where_all_is_the_same(found):
  again = _with_figures(
    found,
    personal_accuracy=[[0.5], [0.5001]],
    personal_loss=[[np.nan], [np.nan]],
    worst_10_percent=[[0.1], [0.2]],
  )
  names = ('personal_accuracy', 'personal_loss', 'worst_10_percent')
  text, marks = _cells(again, 'AB', *names)
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
    published={
      ('FedAvg', 2): 71.5,
      ('Local', 2): None,
      ('Local', 'a/b'): 20,
    },
  )
  scores = {
    f'{condition}-{method}-seed{seed}': score
    for condition, method, pair in (
      (2, 'FedAvg', (0.5, 0.75)),
      (2, 'Local', (0.25, 0.5)),
      ('a_b', 'FedAvg', (0.75, 1.0)),
      ('a_b', 'Local', (0.5, 0.5)),
    )
    for seed, score in enumerate(pair)
  }
  found = made_up_trials.run_trials(study, tmp_path, scores=scores)
  assert found.conditions == [2, 'a/b']
  overview = found.overview().set_index('method')
  heads = ['2 (%)', '2, published', 'a/b (%)', 'a/b, published']
  assert [*overview] == heads
  assert overview.loc['FedAvg'].tolist() == [
    *('62.5 ± 17.7', '71.5', '87.5 ± 17.7', '')
  ]
  assert overview.loc['Local'].tolist() == [
    *('37.5 ± 17.7', '', '50.0 ± 0.0', '20')
  ]
  assert _rows(found.table(), 3)[0] == ('FedAvg 62.5 ± 17.7 71.5 87.5 ± 17.7')
  # A picture of all is one of bars, of one condition of curves.
  bars = found.plot(plots.new_axes())
  groups = [text.get_text() for text in bars.get_xticklabels()]
  assert groups == ['FedAvg', 'FedAvg + FT', 'Local']
  legend = [text.get_text() for text in bars.get_legend().get_texts()]
  assert legend == ['2', 'a/b']
  curves = found.plot(plots.new_axes(), condition=2)
  legend = [text.get_text() for text in curves.get_legend().get_texts()]
  assert legend == ['FedAvg', 'Local']
  # Another column may be the one that is shown.
  found.description['metric'] = 'personal_loss'
  loss = found.overview().set_index('method')['2'].loc['FedAvg']
  assert re.fullmatch(r'0\.\d+ ± 0\.\d+', loss)


def test_names_are_no_elements_of_a_notebook(found):
  again = _with_figures(found, score=[[0.5, 0.25]])
  again.figures_by_seed['method'] = html_text.IMAGE
  assert html_text.count_images(again._repr_html_()) == 1
  assert '37.5 ± 17.7' in again._repr_html_()


def test_a_study_is_opened(found, directory, tmp_path):
  again = pfl.open_study(directory)
  assert again.description == found.description
  assert again.failures == found.failures
  pd.testing.assert_frame_equal(again.numbers, found.numbers)
  pd.testing.assert_frame_equal(again.client_scores, found.client_scores)
  assert again.table() == found.table()
  with pytest.raises(errors.RunError, match='holds no study: there is no'):
    pfl.open_study(tmp_path)


def test_a_study_in_progress_is_opened(tmp_path):
  seen, expected = [], [0, 2, 3, 5]

  def run(wanted, folder, **options):
    seen.append(pfl.open_study(tmp_path))
    assert len(seen[-1]) == expected[len(seen) - 1]
    if len(seen) == 4:
      raise KeyboardInterrupt
    made_up_trials.run(wanted, folder, **options)

  with pytest.raises(KeyboardInterrupt):
    made_up_trials.run_study(made_up_trials.study(), tmp_path, run)
  assert len(seen) == 4
  first, *_, last = seen
  assert first.table().split() == []
  assert first.numbers.empty
  assert [(one.method, one.seed) for one in last] == [
    *(('FedAvg', 0), ('FedAvg', 1), ('FedAvg + FT', 0), ('FedAvg + FT', 1)),
    ('Local', 0),
  ]
  assert 'Local (1 of 2 runs)' in last.table()
  assert last.claims.empty
  assert os.path.exists(last.page(tmp_path / 'now.html'))
  # It goes on where it was.
  found = made_up_trials.run_study(made_up_trials.study(), tmp_path)
  assert len(found) == len(pfl.open_study(tmp_path)) == 6
