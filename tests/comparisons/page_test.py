import re
from xml.etree import ElementTree

import pytest

from binaries import published
from tests.comparisons import example_comparison
from tff_pfl import errors
from tff_pfl.comparisons import claims, results
from tff_pfl.comparisons import page as page_lib
from tff_pfl.methods import registry

_EVIL = '<script>alert("1 & 2")</script>'


class _Page:
  """A page, the sections' tables, and what is to be read."""

  def __init__(self, text):
    self.text = text
    self.root = ElementTree.fromstring(text)
    self.tables = {
      section.get('id'): [
        [''.join(cell.itertext()) for cell in row] for row in section.iter('tr')
      ]
      for section in self.root.iter('section')
    }
    # White space as a browser shows it.
    self.prose = ' '.join(''.join(self.root.itertext()).split())

  def rows(self, section):
    """The rows of a section's tables, by the text of their first cell."""
    return {row[0]: row[1:] for row in self.tables[section]}


def _write(tmp_path, comparison):
  path = tmp_path / 'comparison.html'
  settings = {one['name']: one['value'] for one in comparison['settings']}
  names = ('dataset', 'num_clients', 'partition')
  figures = published.reference(*map(settings.get, names))
  page_lib.write(comparison, path, figures)
  return _Page(path.read_text(encoding='utf-8'))


def _change(method, level, **changes):
  """A method with a domain, and with other figures and fields."""
  metrics = {
    'personal_accuracy': results.mean_std([level] * 3),
    'domain_accuracy_min': results.mean_std([level / 2, level / 2 + 0.25]),
    **changes.pop('metrics', {}),
  }
  domains = [
    example_comparison.domain(seed, name, num_examples, accuracy)
    for seed, sea in ((0, level), (1, level - 0.25))
    for name, num_examples, accuracy in (('<sea>', 4, sea), ('moon', 0, None))
  ]
  return {
    **method,
    'domains': domains,
    'metrics': {**method['metrics'], **metrics},
    **changes,
  }


def _example():
  """A comparison that has something for each section."""
  failure = {'trial': 'ditto-seed2', 'algorithm': 'ditto', 'seed': 2}
  found = example_comparison.make_results(
    ('fed_avg', 'ditto', 'fed_rep'),
    dataset='cifar10',
    num_clients=100,
    failures=[{**failure, 'reason': 'No <memory>.'}],
  )
  fed_avg, fed_avg_head, ditto, _, fed_rep, _ = found['methods']
  unchanged = [
    {**client, 'accuracy_after': client['accuracy_before']}
    for client in ditto['clients']
  ]
  loss = {'personal_loss': results.mean_std([1.0, 2.0, None])}
  return {
    **found,
    'title': _EVIL,
    'methods': [
      _change(fed_avg, 0.5, metrics=loss),
      fed_avg_head,
      _change(ditto, 0.25, label=_EVIL, clients=unchanged),
      _change(fed_rep, 1.0),
    ],
  }


@pytest.fixture(name='page', scope='module')
def _page(tmp_path_factory):
  return _write(tmp_path_factory.mktemp('page'), _example())


def test_page_has_a_section_for_everything_with_a_link_to_it(page):
  links = [link.get('href') for link in page.root.find('body/nav')]
  assert links == [f'#{key}' for key in page.tables]
  assert ' '.join(page.tables) == (
    'results domains published curves clients changes partition tuning '
    'failures settings'
  )


def test_page_stands_alone_and_its_references_resolve(page):
  assert '://' not in page.text
  assert '@import' not in page.text
  elements = list(page.root.iter())
  ids = [element.get('id') for element in elements if element.get('id')]
  assert len(ids) == len(set(ids))
  links = [e.get('href') for e in elements if e.get('href')]
  assert {link[1:] for link in links if link.startswith('#')} <= set(ids)
  assert all(link.startswith(('#', 'data:')) for link in links)
  assert set(re.findall(r'url\(#([^)]*)\)', page.text)) <= set(ids)
  sources = [e.get('src') for e in elements if e.get('src')]
  assert sources
  assert all(source.startswith('data:image/svg') for source in sources)


def test_text_is_escaped(page):
  assert '<script>alert' not in page.text
  assert _EVIL in page.rows('results')
  assert page.rows('failures')['ditto-seed2'] == ['ditto', '2', 'No <memory>.']


def test_the_head_says_how_much_was_compared_and_what_leads(page):
  assert (
    '3 methods, 3 seeds. Highest personal accuracy after the last round: '
    'fed_rep, 100.0% ± 0.0. What lies'
  ) in page.prose
  assert '1 run did not come to an end' in page.prose
  assert 'name="viewport" content="width=device-width' in page.text
  assert 'prefers-color-scheme: dark' in page.text


def test_results_are_ranked_with_their_spread_and_best_values_marked(page):
  head, *rows = page.tables['results']
  column = head.index('personal accuracy, last round (%)')
  assert [row[0] for row in rows] == [
    'fed_rep',
    'fed_avg + FT (head)',
    'fed_avg',
    _EVIL,
  ]
  assert [rows[i][column] for i in (0, 2)] == ['100.0 ± 0.0', '50.0 ± 0.0']
  assert rows[0][head.index('bytes up, a round (kB)')] == '6238.9'
  cells = page.root.find('.//table').iter('td')
  marked = [cell.text for cell in cells if 'best' in cell.get('class')]
  assert '100.0 ± 0.0' in marked
  assert '50.0 ± 0.0' not in marked
  assert rows[1][1] == 'With the head fine-tuned'
  # A figure that not all seeds of a row have says so.
  assert rows[2][head.index('personal loss')] == '1.500 ± 0.707 (2 of 3 seeds)'
  # A column that nothing has a value in is left out, domains have a table.
  assert not any('new clients' in title for title in head)
  assert not any('domain' in title for title in head)


def test_domains_have_a_table_with_the_spread_over_seeds(page):
  head, *_ = page.tables['domains']
  assert head == [
    'method',
    'personalized',
    '<sea> (%)',
    'moon (%)',
    'min accuracy over domains, last round (%)',
    # Of the last ten rounds one was evaluated.
    'personal accuracy, last 1 evaluation (%)',
    'personal accuracy, last round (%)',
  ]
  rows = page.rows('domains')
  seeds = '(2 of 3 seeds)'
  assert rows['fed_rep'][1:4] == [
    f'87.5 ± 17.7 {seeds}',
    '–',
    f'62.5 ± 17.7 {seeds}',
  ]
  assert rows['fed_avg'][1] == f'37.5 ± 17.7 {seeds}'
  assert 'AUC' not in page.prose


def test_claims_stand_with_their_figures(tmp_path):
  found = [
    claims.difference('FedRep leads', 'Figure 1', [0.5] * 5, above=0),
    claims.measured('It <falls>', 'Figure 2', [0.25, 0.5], below=0.125),
  ]
  summaries = [
    {
      'experiment': 'one',
      'summary': 'what it shows',
      'paper': 'Figure 1',
      'result': '1 of 2 claims hold, 1 fail',
      'claims': [claim._asdict() for claim in found],
    },
    {'experiment': 'two', 'claims': [], 'error': 'No <memory>.'},
  ]
  path = tmp_path / 'claims.html'
  page_lib.write_claims(summaries, path)
  page = _Page(path.read_text(encoding='utf-8'))
  assert ' '.join(page.tables) == 'claims experiments failures'
  assert '1 of 2 claims hold, 1 fail.' in page.prose
  cells = page.root.findall('.//section[@id="claims"]//tbody/tr')
  assert [[''.join(td.itertext()) for td in row][1:] for row in cells] == [
    ['FedRep leads', 'Figure 1', '0.5', '0.5, 0.5', '> 0', '5', 'holds'],
    ['It <falls>', 'Figure 2', '0.5', '–', '< 0.125', '2', 'fails'],
  ]
  (picture,) = page.root.iter('img')
  assert picture.get('src') == 'one/figure.png'


def test_published_figures_stand_beside_ours(page):
  rows = page.rows('published')
  ours, published, difference = rows['FedAvg+FT'][1:4]
  assert rows['FedAvg+FT'][0] == 'fed_avg + FT (head)'
  assert published == '87.65'
  shown = float(ours.split(' ± ')[0])
  assert float(difference) == pytest.approx(shown - 87.65, abs=0.11)
  # Neither what our copy of the paper lacks nor what was not run is made up.
  assert rows['FedRep'][0] == 'fed_rep'
  assert rows['FedRep'][2:4] == ['', '']
  assert rows['FedPer'][:4] == ['', '', '87.13', '']
  assert 'Here 4 new clients had a share of the data' in page.prose


def test_a_method_that_changes_no_client_says_so(page):
  assert page.prose.count('nothing changed') == 1
  # Only what the runs were asked to do is open at first.
  changes = page.root.find('.//section[@id="changes"]').iter('details')
  assert [one.get('open') for one in changes] == ['', None]


def test_partition_says_on_how_many_examples_clients_are_scored(page):
  assert 'of 104 clients, with seed 0; other seeds' in page.prose
  assert '50 at least, 50 in the median, 50 at most.' in page.prose
  assert 'Not scored' not in page.prose


def test_tuning_shows_the_grid_and_the_choice(page):
  rows = [row[1:] for row in page.tables['tuning'] if row[0] == 'ditto']
  assert rows[1:] == [
    ['learning_rate = 0.1', '20', '0', '72.0', '0.9', 'chosen'],
    ['learning_rate = 10', '20', '0', '–', '–', 'It diverged.'],
  ]


def test_settings_and_hyperparameters_are_listed(page):
  assert '<dt>partition</dt><dd>shards:2</dd>' in page.text
  assert '<dt>seeds</dt><dd>0, 1, 2</dd>' in page.text
  assert page.rows('settings')['fed_rep'] == [
    registry.ALGORITHMS['fed_rep'].summary,
    'learning_rate = 0.1, momentum = 0.5, batch_size = 10',
  ]


def test_a_regression_is_compared_by_its_error(tmp_path):
  comparison = example_comparison.make_results(variants=('method',))

  def method(one, error, **changes):
    """With as many clients as there are seeds, all of which are hurt."""
    return {
      **one,
      'metrics': {
        'personal_mae': results.mean_std([error] * 3),
        'personal_loss': one['metrics']['personal_loss'],
      },
      'curves': [
        {
          'seed': seed,
          'rounds': [1, 2],
          'personal': [2 * error, error],
          'global_model': None,
        }
        for seed in range(3)
      ],
      'clients': [
        {
          **client,
          'num_test_examples': size,
          'mae_before': error - 1.0,
          'mae_after': error,
        }
        for client, size in zip(one['clients'], (3, 1000, 4))
      ],
      'new_clients': [],
      **changes,
    }

  first, second = comparison['methods']
  domains = [example_comparison.domain(0, 'sea', 4, 1234.5, 'mae')]
  point = example_comparison.point
  page = _write(
    tmp_path,
    {
      **comparison,
      'methods': [
        method(first, 1234.5),
        method(second, 12.25, domains=domains),
      ],
      'partition': {**comparison['partition'], 'class_counts': None},
      # Of the points of the grid the method allows one only.
      'tunings': [
        {
          'algorithm': 'fed_avg',
          'seed': 0,
          'num_rounds': 0,
          'points': [
            point({'momentum': 0.5}, chosen=True, name='mae'),
            point({'momentum': 2.0}, failure='Refused.', name='mae'),
          ],
        }
      ],
      'primary_metric': {'name': 'mae', 'higher_is_better': False},
    },
  )
  assert (
    'Lowest personal mae after the last round: fed_rep, 12.25' in page.prose
  )
  head, *rows = page.tables['results']
  assert head == ['method', 'personal mae, last round', 'personal loss']
  assert [row[:2] for row in rows] == [
    ['fed_rep', '12.25'],
    ['fed_avg', '1234'],
  ]
  assert page.tables['domains'][1][1] == '1234 (1 of 3 seeds)'
  assert {'curves', 'clients', 'changes'} <= set(page.tables)
  assert '3 of 3 worse after' in page.prose
  assert '3 at least, 4 in the median, 1,000 at most' in page.prose
  assert [row[2] for row in page.tables['tuning'][1:]] == ['not tried'] * 2


def test_published_figures_of_fine_tuning_match_runs_that_fine_tune(tmp_path):
  comparison = example_comparison.make_results(
    ('fed_avg',), variants=('method',)
  )
  settings = example_comparison.settings_of(
    dataset='femnist',
    num_clients=150,
    partition='classes_per_client:3',
    personalization={'fine_tune': 'head'},
  )
  page = _write(tmp_path, {**comparison, 'settings': settings})
  assert page.rows('published')['FedAvg+FT'][0] == 'fed_avg'
  assert page.rows('published')['FedAvg'][0] == ''
  assert 'only if the images here are of letters' in page.prose


def test_what_failed_altogether_has_a_page_that_is_always_the_same(tmp_path):
  failure = dict(_example()['failures'][0])
  comparison = {
    **example_comparison.make_results((), failures=[failure]),
    'settings': example_comparison.settings_of(dataset='digits'),
  }
  page = _write(tmp_path, comparison)
  assert list(page.tables) == ['partition', 'failures', 'settings']
  assert _write(tmp_path, comparison).text == page.text
  with pytest.raises(errors.RunError, match='Cannot write'):
    page_lib.write(comparison, tmp_path / 'none' / 'page.html')
