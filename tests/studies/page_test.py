import copy
import re
import typing
from xml.etree import ElementTree

import pandas as pd
import pytest

from binaries import published
from tests import html_text
from tests.comparisons import made_up_trials
from tff_pfl import errors
from tff_pfl.comparisons import page as page_lib
from tff_pfl.comparisons import results
from tff_pfl.core import personalization
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


def test_every_way_to_personalize_has_a_title():
  scopes = typing.get_args(personalization.Scope)
  assert set(page_lib.VARIANT_TITLES) == set(scopes)


def _write(tmp_path, comparison):
  path = tmp_path / 'comparison.html'
  settings = {one['name']: one['value'] for one in comparison['settings']}
  names = ('dataset', 'num_clients', 'partition')
  figures = published.reference(*map(settings.get, names))
  page_lib.write(comparison, path, figures)
  return _Page(path.read_text(encoding='utf-8'))


@pytest.fixture(name='comparison')
def _comparison(found):
  return results.Results(copy.deepcopy(found))


def _set(comparison, **values):
  """Changes settings."""
  comparison['settings'] = [
    {**one, 'value': values.get(one['name'], one['value'])}
    for one in comparison['settings']
  ]


def _change(method, level, **metrics):
  """Gives a method two domains, and other figures."""
  method['domains'] = [
    made_up_trials.domain(seed, name, number, accuracy)
    for seed, sea in ((0, level), (1, level - 0.25))
    for name, number, accuracy in (('<sea>', 4, sea), ('moon', 0, None))
  ]
  lowest = results.mean_std([level / 2, level / 2 + 0.25])
  method['metrics'].update(
    personal_accuracy=results.mean_std([level] * 2),
    domain_accuracy_min=lowest,
    **metrics,
  )


@pytest.fixture(name='page', scope='module')
def _page(found, tmp_path_factory):
  """The page of a comparison that has something for each section."""
  comparison = results.Results(copy.deepcopy(found))
  comparison['title'] = _EVIL
  _set(comparison, dataset='cifar10', num_clients=100)
  comparison['failures'][0]['reason'] = 'No <memory>.'
  fed_avg, fed_avg_head, local_only, _ = comparison['methods']
  comparison['methods'].pop()
  _change(fed_avg, 0.5, personal_loss=results.mean_std([1.0, None]))
  bytes_up = results.mean_std([6_238_900] * 2)
  _change(fed_avg_head, 1.0, bytes_up_per_round=bytes_up)
  _change(local_only, 0.25)
  local_only['label'] = _EVIL
  for client in local_only['clients']:
    client['accuracy_after'] = client['accuracy_before']
  return _write(tmp_path_factory.mktemp('page'), comparison)


def test_page_has_a_section_for_everything_with_a_link_to_it(page):
  links = [link.get('href') for link in page.root.find('body/nav')]
  assert links == [f'#{key}' for key in page.tables]
  assert ' '.join(page.tables) == (
    'results domains published curves clients changes partition tuning '
    'failures settings'
  )
  assert (
    '2 methods, 2 seeds. Highest personal accuracy after the last round: '
    'fed_avg + FT (head), 100.0% ± 0.0. What lies'
  ) in page.prose
  assert '1 run did not come to an end' in page.prose
  assert 'of 5 clients, with seed 0; other seeds' in page.prose
  assert '2 at least, 2 in the median, 2 at most.' in page.prose
  assert 'Not scored' not in page.prose
  assert 'name="viewport" content="width=device-width' in page.text
  assert 'prefers-color-scheme: dark' in page.text


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
  failure = page.rows('failures')['local_only-seed1']
  assert failure == ['local_only', '1', 'No <memory>.']


def test_names_are_no_elements_of_pages(comparison, tmp_path):
  image = html_text.IMAGE
  comparison['title'] = image
  comparison['settings'].append({'name': image, 'value': {image: [image]}})
  comparison['failures'][0].update(run=image, algorithm=image, reason=image)
  for method in comparison['methods']:
    method['domains'] = [made_up_trials.domain(0, image, 4, 0.5)]
    for field in ('label', 'algorithm', 'summary'):
      method[field] += image
    method['hparams'] = {image: image}
    for client in (*method['clients'], *method['new_clients']):
      client['client'] += image
  for tuning in comparison['tunings']:
    tuning['algorithm'] = image
    for point in tuning['points']:
      point.update(hparams={image: [image]}, failure=image)
  partition = comparison['partition']
  partition['client_ids'] = [f'{i}{image}' for i in partition['client_ids']]
  path = tmp_path / 'comparison.html'
  columns = ['source', 'note', 'method', 'algorithm', 'variants', 'metric']
  row = [image] * 4 + [('method',), 'personal_accuracy']
  figures = pd.DataFrame([[*row, 0.5]], columns=[*columns, 'value'])
  page_lib.write(comparison, path, figures)
  assert html_text.count_images(path.read_text(encoding='utf-8')) > 50
  # As the page of papers, whose tables have lists, too.
  frame = pd.DataFrame({image: [image, [image], {image: [image]}]})
  texts = dict.fromkeys(('experiment', 'paper', 'summary', 'result'), image)
  page_lib.render(
    path,
    title=image,
    claims=frame,
    claims_count=image,
    experiments=[texts],
    failures=frame,
  )
  # Two in `head` and `body`, ten in the tables, five in texts.
  assert html_text.count_images(path.read_text(encoding='utf-8')) == 17


def test_results_are_ranked_with_their_spread_and_best_values_marked(page):
  head, *rows = page.tables['results']
  column = head.index('personal accuracy, last round (%)')
  assert [(row[0], row[column]) for row in rows] == [
    ('fed_avg + FT (head)', '100.0 ± 0.0'),
    ('fed_avg', '50.0 ± 0.0'),
    (_EVIL, '25.0 ± 0.0'),
  ]
  assert rows[0][1] == 'With the head fine-tuned'
  assert rows[0][head.index('bytes up, a round (kB)')] == '6238.9'
  cells = page.root.find('.//table').iter('td')
  marked = [cell.text for cell in cells if 'best' in cell.get('class')]
  assert '100.0 ± 0.0' in marked
  assert '50.0 ± 0.0' not in marked
  # A figure that not all seeds of a row have says so.
  assert rows[1][head.index('personal loss')] == '1.000 (1 of 2 runs)'
  # A column that nothing has a value in is left out, domains have a table.
  assert not any('diverged' in title for title in head)
  assert not any('domain' in title for title in head)


def test_domains_have_a_table_with_the_spread_over_seeds(page):
  head, *_ = page.tables['domains']
  assert head == [
    'method',
    'personalized',
    '<sea> (%)',
    'moon (%)',
    'min accuracy over domains, last round (%)',
    # Of the last ten rounds two were evaluated.
    'personal accuracy, last 2 evaluations (%)',
    'personal accuracy, last round (%)',
  ]
  rows = page.rows('domains')
  assert rows['fed_avg + FT (head)'][1:4] == ['87.5 ± 17.7', '–', '62.5 ± 17.7']
  assert rows['fed_avg'][1] == '37.5 ± 17.7'
  assert 'AUC' not in page.prose


def test_published_figures_stand_beside_ours(page):
  rows = page.rows('published')
  assert rows['FedAvg+FT'][:4] == [
    'fed_avg + FT (head)',
    '100.0 ± 0.0',
    '87.65',
    '+12.4',
  ]
  # Neither what our copy of the paper lacks nor what was not run is made up.
  assert rows['Local Only'][0] == _EVIL
  assert rows['Local Only'][2:4] == ['', '']
  assert rows['FedPer'][:4] == ['', '', '87.13', '']
  assert 'Here 1 new client had a share of the data' in page.prose


def test_a_method_that_changes_no_client_says_so(page):
  assert page.prose.count('nothing changed') == 1
  # Only what the runs were asked to do is open at first.
  changes = page.root.find('.//section[@id="changes"]').iter('details')
  assert [one.get('open') for one in changes] == ['', None]


def test_tuning_and_settings_are_listed(page):
  tuned, _, refused, _, untried, _ = page.tables['tuning'][1:]
  assert tuned[:5] == [
    *('fed_avg', 'momentum = 0.5, learning_rate = 0.05', '2', '0', '5.0')
  ]
  assert tuned[6] == 'chosen'
  assert refused[4:6] == ['–', '–']
  assert 'momentum' in refused[6]
  assert untried[:3] == ['local_only', 'momentum = 0.5', 'not tried']
  assert '<dt>partition</dt><dd>shards:2</dd>' in page.text
  assert '<dt>seeds</dt><dd>0, 1</dd>' in page.text
  summary, hparams = page.rows('settings')['fed_avg']
  assert summary == registry.ALGORITHMS['fed_avg'].summary
  assert 'learning_rate = 0.05, momentum = 0.5' in hparams


def test_a_regression_is_compared_by_its_error(comparison, tmp_path):
  comparison.update(
    primary_metric={'name': 'mae', 'higher_is_better': False}, tunings=[]
  )
  comparison['partition']['class_counts'] = None
  comparison['methods'] = comparison['methods'][::2]
  for method, error in zip(comparison['methods'], (1234.5, 12.25)):
    method['metrics'] = {
      'personal_mae': results.mean_std([error] * 2),
      'personal_loss': method['metrics']['personal_loss'],
    }
    for curve in method['curves']:
      curve.update(personal=[2 * error, error], global_model=None)
    # All are hurt.
    method['clients'] = [
      {
        **client,
        'num_test_examples': size,
        'mae_before': error - 1.0,
        'mae_after': error,
      }
      for client, size in zip(method['clients'], (3, 1000, 4))
    ]
    method['new_clients'] = []
  method['domains'] = [{'seed': 0, 'domain': 'sea', 'mae': 1234.5, 'auc': None}]
  page = _write(tmp_path, comparison)
  label = 'local_only (1 of 2 runs)'
  assert (
    f'Lowest personal mae after the last round: {label}, 12.25' in page.prose
  )
  head, *rows = page.tables['results']
  assert head == ['method', 'personal mae, last round', 'personal loss']
  assert [row[:2] for row in rows] == [[label, '12.25'], ['fed_avg', '1234']]
  assert page.tables['domains'][1][1] == '1234 (1 of 2 runs)'
  assert {'curves', 'clients', 'changes'} <= set(page.tables)
  assert '3 of 3 worse after' in page.prose
  assert '3 at least, 4 in the median, 1,000 at most' in page.prose


def test_published_figures_of_fine_tuning_match_runs_that_fine_tune(
  comparison, tmp_path
):
  _set(
    comparison,
    dataset='emnist_letters',
    num_clients=150,
    partition='lognormal_classes:3:4:1:50',
    fine_tune='head',
  )
  del comparison['methods'][1:]
  page = _write(tmp_path, comparison)
  assert page.rows('published')['FedAvg+FT'][0] == 'fed_avg'
  assert page.rows('published')['FedAvg'][0] == ''
  assert 'The paper has letters of FEMNIST' in page.prose


def test_what_failed_altogether_has_a_page_that_is_always_the_same(
  comparison, tmp_path
):
  comparison.update(methods=[], tunings=[])
  page = _write(tmp_path, comparison)
  assert list(page.tables) == ['partition', 'failures', 'settings']
  assert _write(tmp_path, comparison).text == page.text
  with pytest.raises(errors.RunError, match='Cannot write'):
    _write(tmp_path / 'none', comparison)
