import dataclasses
import html.parser
import re

import pytest

from tests.experiments import example_comparison
from tff_pfl import errors
from tff_pfl.algorithms import registry
from tff_pfl.experiments import html_report, results
from tff_pfl.experiments import metrics as metrics_lib

_VOID = {'meta', 'br', 'link', 'img', 'input', 'hr'}


class _Page(html.parser.HTMLParser):
  """A page's ids, attributes, sections and tables; checks the nesting."""

  def __init__(self, text):
    super().__init__()
    self.text = text
    self.open = []
    self.attributes = []
    self.tables = {}
    self.titles = []
    self.data = []
    self._section = None
    self.feed(text)
    self.close()
    assert not self.open

  @property
  def ids(self):
    return [value for name, value in self.attributes if name == 'id']

  @property
  def prose(self):
    """What is to be read, with white space as a browser shows it."""
    return ' '.join(''.join(self.data).split())

  def handle_starttag(self, tag, attrs):
    attributes = dict(attrs)
    self.attributes += attrs
    if tag not in _VOID:
      self.open.append(tag)
    if tag == 'section':
      self._section = attributes['id']
      self.tables[self._section] = []
    elif tag == 'tr':
      self.tables[self._section].append([])
    elif tag in ('td', 'th'):
      self.tables[self._section][-1].append('')
    elif tag == 'h2':
      self.titles.append('')

  def handle_endtag(self, tag):
    assert self.open.pop() == tag
    if tag in ('td', 'th'):
      row = self.tables[self._section][-1]
      row[-1] = ' '.join(row[-1].split())

  def handle_data(self, data):
    self.data.append(data)
    if {'td', 'th'} & set(self.open):
      self.tables[self._section][-1][-1] += data
    elif self.open and self.open[-1] == 'h2':
      self.titles[-1] += data

  def rows(self, section):
    """The rows of a section's tables, by the text of their first cell."""
    return {row[0]: row[1:] for row in self.tables[section]}


def _write(tmp_path, comparison):
  path = tmp_path / 'comparison.html'
  html_report.write_report(comparison, path)
  return _Page(path.read_text(encoding='utf-8'))


def _with_metric(comparison, name, **means):
  """A comparison in which methods have a metric of these means, by 3 seeds."""
  return dataclasses.replace(
    comparison,
    methods=tuple(
      dataclasses.replace(
        method,
        metrics={
          **method.metrics,
          name: results.spread([means[method.algorithm]] * 3),
        },
      )
      for method in comparison.methods
    ),
  )


@pytest.fixture(name='page', scope='module')
def _page(tmp_path_factory):
  return _write(
    tmp_path_factory.mktemp('page'),
    example_comparison.make_results(
      dataset='cifar10',
      num_clients=100,
      failures=[results.Failure('ditto-seed2', 'ditto', 2, 'No <memory>.')],
    ),
  )


def test_page_has_a_section_for_everything(page):
  assert page.titles == [
    'Results',
    'Published figures',
    'Accuracy by round',
    'Accuracy over clients',
    'Before and after personalization',
    'Partition',
    'Tuning',
    'Failures',
    'Settings',
  ]


def test_page_stands_alone(page):
  assert '://' not in page.text
  assert '@import' not in page.text
  for name, value in page.attributes:
    if name in ('src', 'href', 'srcset', 'action'):
      assert value.startswith(('#', 'data:'))


def test_ids_are_unique_and_references_resolve(page):
  assert len(page.ids) == len(set(page.ids))
  references = {
    value[1:]
    for name, value in page.attributes
    if name == 'href' and value.startswith('#')
  }
  references |= set(re.findall(r'url\(#([^)]*)\)', page.text))
  assert references <= set(page.ids)


def test_page_is_made_for_phones_and_for_dark_rooms(page):
  assert 'name="viewport" content="width=device-width' in page.text
  assert 'prefers-color-scheme: dark' in page.text
  # The colors of the pictures that a dark page replaces do occur.
  replaced = set(re.findall(r'(--c-[0-9a-f]{6}):', page.text))
  assert {'--c-555555', '--c-0072b2', '--c-dddddd'} <= replaced
  assert all(f'var({name},' in page.text for name in ('--c-555555',))


def test_header_counts_what_was_compared_and_names_what_is_ahead(tmp_path):
  comparison = _with_metric(
    example_comparison.make_results(variants=('method',)),
    'personal_accuracy',
    fed_avg=0.5,
    fed_rep=0.625,
  )
  page = _write(tmp_path, comparison)
  assert (
    '2 methods, 3 seeds. Highest personal accuracy after the last round: '
    'fed_rep, 62.5% ± 0.0. What lies'
  ) in page.prose
  assert 'did not come to an end' not in page.prose


def test_failures_are_told_at_the_top_and_listed(page):
  assert '1 run did not come to an end' in page.prose
  assert page.rows('failures')['ditto-seed2'] == ['ditto', '2', 'No <memory>.']


def test_tuning_shows_the_grid_and_the_choice(page):
  rows = page.rows('tuning')
  assert rows['0.1'] == ['72.0', '0.9', 'chosen']
  assert rows['10.0'] == ['–', '–', 'It diverged.']
  assert 'learning_rate = 0.1, of 3 points' in page.prose


def test_tuning_says_where_there_was_nothing_to_choose_from(tmp_path):
  tuning = results.Tuning(
    'fed_rep',
    0,
    0,
    (
      results.TuningPoint({'momentum': 0.0}, None, None, True, None),
      results.TuningPoint({'momentum': 2.0}, None, None, False, 'Refused.'),
    ),
  )
  page = _write(tmp_path, example_comparison.make_results(tunings=(tuning,)))
  assert 'Not tried, as the method allows this one only.' in page.prose
  assert 'each, with seed' not in page.prose
  assert page.rows('tuning')['0.0'] == ['–', '–', 'chosen']
  assert page.rows('tuning')['2.0'] == ['–', '–', 'Refused.']


def test_settings_and_hyperparameters_are_listed(page):
  assert '<dt>partition</dt><dd>shards:2</dd>' in page.text
  assert '<dt>seeds</dt><dd>0, 1, 2</dd>' in page.text
  assert page.rows('settings')['fed_rep'] == [
    registry.ALGORITHMS['fed_rep'].summary,
    'learning_rate = 0.1, momentum = 0.5, batch_size = 10',
  ]


def test_text_is_escaped(tmp_path):
  comparison = example_comparison.make_results(variants=('method',))
  evil = '<script>alert("1 & 2")</script>'
  page = _write(
    tmp_path,
    dataclasses.replace(
      comparison,
      title=evil,
      methods=(
        dataclasses.replace(comparison.methods[0], label=evil),
        *comparison.methods[1:],
      ),
    ),
  )
  assert '<script>alert' not in page.text
  assert evil in page.rows('results')


def test_results_can_be_sorted_and_their_variants_chosen(page):
  assert re.search(r'<select class="variants" data-rows="results">', page.text)
  assert [v for name, v in page.attributes if name == 'value'] == [
    '',
    'method',
    'head',
  ]
  assert ('aria-sort', 'descending') in page.attributes
  assert ('data-variant', 'head') in page.attributes
  keys = [float(v) for v in re.findall(r'data-sort="([\d.]+)"', page.text)]
  assert 623_890 in keys


def test_only_what_the_runs_were_asked_to_is_open_at_first(page):
  first, second = re.findall(
    r'<details( open)?>\s*<summary>\s*(?:As the runs|With the head)', page.text
  )
  assert (first, second) == (' open', '')


def test_results_are_ranked_with_their_spread_and_best_values_marked(tmp_path):
  comparison = example_comparison.make_results(
    ('fed_avg', 'ditto', 'fed_rep'), variants=('method',)
  )
  comparison = _with_metric(
    comparison, 'personal_accuracy', fed_avg=0.5, ditto=0.7, fed_rep=0.9
  )
  comparison = _with_metric(
    comparison, 'fraction_hurt', fed_avg=0.0, ditto=0.02, fed_rep=0.1
  )
  page = _write(tmp_path, comparison)
  head, *rows = page.tables['results']
  assert [row[0] for row in rows] == ['fed_rep', 'ditto', 'fed_avg']
  column = head.index('personal accuracy, last round (%)')
  assert [row[column] for row in rows] == [
    '90.0 ± 0.0',
    '70.0 ± 0.0',
    '50.0 ± 0.0',
  ]
  assert head.index('bytes up, a client (kB)')
  assert rows[0][head.index('bytes up, a round (MB)')] == '6.2'
  assert re.fullmatch(r'\d+\.\d ± \d+\.\d', rows[0][head.index(head[1])])
  marked = re.findall(r'class="number best"[^>]*>([^<]*)<', page.text)
  assert '90.0' in marked
  assert '0.0' in marked
  assert '70.0' not in marked
  # A column that nothing has a value in is left out.
  assert not any('new clients' in title for title in head)


def _with_test_sizes(comparison, sizes):
  """A comparison whose clients have these numbers of test examples."""
  return dataclasses.replace(
    comparison,
    methods=tuple(
      dataclasses.replace(
        method,
        clients=tuple(
          dataclasses.replace(client, num_test_examples=size)
          for client, size in zip(method.clients, sizes)
        ),
        new_clients=(),
      )
      for method in comparison.methods
    ),
  )


@pytest.mark.parametrize(
  ('sizes', 'sentence'),
  [
    ([50] * 4, 'A client is scored on 50 test examples. </p>'),
    (
      [3, 1000, 4, 7],
      'A client is scored on 3 to 1,000 test examples of its own (median 5.5).'
      ' </p>',
    ),
    (
      [1, 1],
      'A client is scored on 1 test example. Not scored, for want of any: '
      '2 clients. </p>',
    ),
  ],
)
def test_partition_says_on_how_many_examples_clients_are_scored(
  tmp_path, sizes, sentence
):
  comparison = example_comparison.make_results(
    variants=('method',), num_clients=4, num_new_clients=0, seeds=(0,)
  )
  page = _write(tmp_path, _with_test_sizes(comparison, sizes))
  assert sentence in ' '.join(page.text.split())


def test_only_clients_of_the_partition_that_is_shown_are_counted(tmp_path):
  comparison = example_comparison.make_results(
    variants=('method',), num_clients=2, num_new_clients=0, seeds=(0, 1)
  )
  page = _write(tmp_path, _with_test_sizes(comparison, [50, 50, 80, 80]))
  assert 'A client is scored on 50 test examples.' in page.prose


def test_figures_that_not_all_seeds_of_a_row_have_say_so(tmp_path):
  comparison = example_comparison.make_results(variants=('method',))
  fed_avg, fed_rep = comparison.methods
  loss = dict(personal_loss=results.spread([1.0, 2.0, None]))
  fed_avg = dataclasses.replace(fed_avg, metrics={**fed_avg.metrics, **loss})
  one_seed = {
    name: results.spread([figure.mean]) if figure else None
    for name, figure in fed_rep.metrics.items()
  }
  fed_rep = dataclasses.replace(fed_rep, metrics=one_seed)
  page = _write(
    tmp_path, dataclasses.replace(comparison, methods=(fed_avg, fed_rep))
  )
  head, *_ = page.tables['results']
  rows = page.rows('results')
  column = head.index('personal loss') - 1
  assert rows['fed_avg'][column] == '1.500 ± 0.707 (2 of 3 seeds)'
  assert not any('seeds' in text for text in rows['fed_avg'][:column])
  # The label of a row tells of how many seeds it is.
  assert not any('seed' in text for text in rows['fed_rep'])


def test_published_figures_say_where_the_data_of_the_paper_differ(tmp_path):
  page = _write(
    tmp_path,
    example_comparison.make_results(
      variants=('method',),
      dataset='femnist',
      num_clients=150,
      partition='classes_per_client:3',
    ),
  )
  assert 'only if the images here are of letters' in page.prose
  assert page.rows('published')['FedPer'][2] == '76.91'


def test_published_figures_stand_beside_ours(page):
  rows = page.rows('published')
  assert rows['FedAvg'][0] == 'fed_avg'
  assert rows['FedAvg+FT'][0] == 'fed_avg + FT (head)'
  ours, published, difference = rows['FedAvg'][1:4]
  assert published == '42.65'
  shown = float(ours.split(' ± ')[0])
  assert float(difference) == pytest.approx(shown - 42.65, abs=0.11)
  # Neither what our copy of the paper lacks nor what was not run is made up.
  assert rows['FedRep'][0] == 'fed_rep'
  assert rows['FedRep'][2:4] == ['', '']
  assert rows['Ditto'][:4] == ['', '', '85.39', '']
  assert 'Here 4 new clients had a share of the data' in page.prose


def test_published_figures_of_fine_tuning_match_runs_that_fine_tune(tmp_path):
  comparison = example_comparison.make_results(
    ('fed_avg',), variants=('method',), dataset='cifar10', num_clients=100
  )
  comparison = dataclasses.replace(
    comparison,
    settings=(
      *comparison.settings,
      results.Setting('personalization', {'fine_tune': 'head'}),
    ),
  )
  rows = _write(tmp_path, comparison).rows('published')
  assert rows['FedAvg+FT'][0] == 'fed_avg'
  assert rows['FedAvg'][0] == ''


def test_other_settings_have_no_published_figures(tmp_path):
  page = _write(tmp_path, example_comparison.make_results(variants=('method',)))
  assert 'published' not in page.tables


def test_a_method_that_changes_nothing_is_named_and_not_drawn(tmp_path):
  comparison = example_comparison.make_results(variants=('method',))
  fed_avg, fed_rep = comparison.methods
  fed_avg = dataclasses.replace(
    fed_avg,
    clients=tuple(
      dataclasses.replace(client, accuracy_after=client.accuracy_before)
      for client in fed_avg.clients
    ),
  )
  page = _write(
    tmp_path, dataclasses.replace(comparison, methods=(fed_avg, fed_rep))
  )
  assert 'nothing changed for fed_avg.' in page.prose
  assert 'before and after personalization, fed_rep' in page.text
  assert 'before and after personalization, fed_avg' not in page.text


def test_a_regression_has_neither_curves_nor_distributions(tmp_path):
  comparison = example_comparison.make_results(variants=('method',))
  accuracies = {
    metric.name: None
    for metric in metrics_lib.METRICS
    if metric.unit in ('accuracy', 'fraction')
  }
  page = _write(
    tmp_path,
    dataclasses.replace(
      comparison,
      methods=tuple(
        dataclasses.replace(
          method,
          metrics={**method.metrics, **accuracies},
          curves=(),
          clients=tuple(
            dataclasses.replace(
              client, accuracy_before=None, accuracy_after=None
            )
            for client in method.clients
          ),
          new_clients=(),
        )
        for method in comparison.methods
      ),
      partition=dataclasses.replace(comparison.partition, class_counts=None),
    ),
  )
  assert list(page.tables) == ['results', 'partition', 'tuning', 'settings']
  assert 'personal loss' in page.tables['results'][0]


def test_a_comparison_of_which_everything_failed_has_a_page(tmp_path):
  page = _write(
    tmp_path,
    results.ComparisonResults(
      title='digits',
      settings=(results.Setting('dataset', 'digits'),),
      methods=(),
      partition=None,
      tunings=(),
      failures=(results.Failure('fed_avg-seed0', 'fed_avg', 0, 'Killed.'),),
    ),
  )
  assert list(page.tables) == ['failures', 'settings']


def test_all_methods_on_one_page_stay_small(tmp_path):
  page = _write(
    tmp_path,
    example_comparison.make_results(
      tuple(registry.ALGORITHMS), num_clients=100, rounds=range(5, 501, 5)
    ),
  )
  assert len(page.tables['results']) == 1 + 2 * len(registry.ALGORITHMS)
  # A page that a phone loads at once.
  assert len(page.text) < 2_000_000


def test_page_that_cannot_be_written_is_a_run_error(tmp_path):
  comparison = example_comparison.make_results(('fed_avg',), variants=())
  with pytest.raises(errors.RunError, match='Cannot write'):
    html_report.write_report(comparison, tmp_path / 'none' / 'page.html')


def _with_domains(comparison, auc=None):
  """A comparison with a domain whose accuracy differs between two seeds."""

  def scores(level):
    return tuple(
      results.DomainScore(seed, name, count, 1.0, accuracy, auc)
      for seed, sea in ((0, level), (1, level - 0.25))
      for name, count, accuracy in (
        ('<sea>', 4, sea),
        ('hills', 2, 0.5),
        ('moon', 0, None),
      )
    )

  return dataclasses.replace(
    comparison,
    methods=tuple(
      dataclasses.replace(
        method,
        domains=scores(level),
        metrics={
          **method.metrics,
          'domain_accuracy_min': results.Spread(level / 2, 0.125, 2),
        },
      )
      for method, level in zip(comparison.methods, (0.5, 1.0))
    ),
  )


def test_domains_have_a_table_with_the_spread_over_seeds(tmp_path):
  comparison = example_comparison.make_results(
    variants=('method',), seeds=(0, 1)
  )
  page = _write(tmp_path, _with_domains(comparison))
  assert 'Without test examples: moon.' in page.prose
  head, *_ = page.tables['domains']
  assert head[:4] == [
    'method',
    '<sea> (%)',
    'hills (%)',
    'min accuracy over domains, last round (%)',
  ]
  assert head[4:] == [
    f'personal accuracy, {rounds} (%)'
    for rounds in ('last 10 rounds', 'last round')
  ]
  assert page.rows('domains')['fed_rep'][:3] == [
    '87.5 ± 17.7',
    '50.0 ± 0.0',
    '50.0 ± 12.5',
  ]
  assert page.rows('domains')['fed_avg'][0] == '37.5 ± 17.7'
  assert '<h3>Accuracy</h3>' in page.text
  assert '<h3>AUC</h3>' not in page.text
  # The table of all figures stays as narrow as it is.
  assert not any('domain' in title for title in page.tables['results'][0])


def test_domains_of_two_classes_have_a_table_of_areas_under_curves(tmp_path):
  comparison = example_comparison.make_results(
    variants=('method',), seeds=(0, 1)
  )
  page = _write(tmp_path, _with_domains(comparison, auc=0.75))
  assert '<h3>AUC</h3>' in page.text
  assert page.tables['domains'][-1][1:] == ['75.0 ± 0.0'] * 3


def test_domains_without_accuracies_have_no_section(tmp_path):
  comparison = example_comparison.make_results(variants=('method',))
  comparison = dataclasses.replace(
    comparison,
    methods=tuple(
      dataclasses.replace(
        method,
        domains=(results.DomainScore(0, 'sea', 4, 1.0, None, None),),
      )
      for method in comparison.methods
    ),
  )
  assert 'Domains' not in _write(tmp_path, comparison).titles
