"""Pages of studies of made-up trials."""

import json
import re
from xml.etree import ElementTree

import pandas as pd
import pytest

import tff_pfl as pfl
from tests import html_text
from tests.studies import made_up_trials
from tff_pfl import errors
from tff_pfl.methods import registry
from tff_pfl.studies import claims
from tff_pfl.studies import page as page_lib

_EVIL = '<script>alert("1 & 2")</script>'
_ACCURACY = 'personal accuracy, last round (%)'


class _Page:
  """A page, the sections' tables, and what is to be read."""

  def __init__(self, text):
    self.text = text
    self.root = ElementTree.fromstring(text)
    self.sections = {
      section.get('id'): section for section in self.root.iter('section')
    }
    # White space as a browser shows it.
    self.prose = ' '.join(''.join(self.root.itertext()).split())

  def tables(self, section):
    """The texts of a section's tables, by row and column."""
    return [
      [[''.join(cell.itertext()) for cell in row] for row in table.iter('tr')]
      for table in self.sections[section].iter('table')
    ]

  def rows(self, section, number=0):
    """The rows of a section's table, by the text of their first cell."""
    return {row[0]: row[1:] for row in self.tables(section)[number]}

  def marked(self, section, mark):
    """The texts of the cells of a section's first table that have a mark."""
    table = next(self.sections[section].iter('table'))
    return [cell.text for cell in table.iter('td') if mark in cell.get('class')]


def _write(found, directory):
  path = found.page(directory / 'page.html')
  with open(path, encoding='utf-8') as file:
    return _Page(file.read())


def _evil_run(spec, folder, **options):
  """A trial with two domains; one of the method with a name fails."""
  if spec.name.endswith('script_-seed1'):
    raise errors.RunError('No <memory>.')
  seed = spec.settings.seed
  level = 0.25 if spec.name.startswith('_script_') else 0.5 - 0.25 * seed
  if spec.validation_fraction is None:
    text = json.dumps(made_up_trials.domains(level, 1.0))
    options['domains'] = json.loads(text.replace('sea', '<sea>'))
    options['scores'] = {spec.name: level}
  made_up_trials.run(spec, folder, **options)


@pytest.fixture(name='page', scope='module')
def _page(tmp_path_factory):
  """The page of a study that has something for each section."""
  methods = {
    name: pfl.Method('fed_avg', fine_tune=scope, num_epochs=2)
    for name, scope in (('FedAvg', 'none'), ('FedAvg + FT', 'head'))
  }
  study = made_up_trials.tuned_study(
    methods={**methods, _EVIL: pfl.Method('local_only')},
    published={('FedAvg', ''): 71.5},
    claims=[pfl.better('FedAvg', than=_EVIL), pfl.at_least(0.1, is_ours=True)],
    **{'source': 'Table 1', 'summary': _EVIL, 'deviations': 'It is <smaller>.'},
  )
  directory = tmp_path_factory.mktemp('page')
  made_up_trials.run_study(study, directory, _evil_run, has_page=True)
  return _Page((directory / 'study.html').read_text(encoding='utf-8'))


def test_page_has_a_section_for_everything_with_a_link_to_it(page):
  links = [link.get('href') for link in page.root.find('body/nav')]
  assert links == [f'#{key}' for key in page.sections]
  assert ' '.join(page.sections) == (
    'overview claims condition1 tuning failures settings'
  )
  headings = [e.text for e in page.sections['condition1'].iter('h3')]
  assert (headings[0], headings[-1]) == ('Domains', 'Partition')
  pictures = page.sections['condition1'].iter('img')
  assert [picture.get('alt') for picture in pictures] == [
    'Personal accuracy by round of the best.',
    'Distribution of accuracy over clients. Trained clients.',
    'Distribution of accuracy over clients. New clients.',
    'Training examples by client, class and domain.',
  ]
  for words in (
    'Highest personal accuracy after the last round: FedAvg, 37.5 ± 17.7 %.',
    '1 run did not finish',
    '2 at least, 2 in the median, 2 at most.',
  ):
    assert page.prose.count(words) == 1, words
  assert page.root.find('head/title').text == f'Table 1: {_EVIL}'


def test_page_stands_alone_and_its_references_resolve(page):
  assert '://' not in page.text
  assert '@import' not in page.text
  elements = list(page.root.iter())
  ids = [element.get('id') for element in elements if element.get('id')]
  assert len(ids) == len({*ids})
  links = [e.get('href') for e in elements if e.get('href')]
  assert {link[1:] for link in links if link.startswith('#')} <= {*ids}
  assert {*re.findall(r'url\(#([^)]*)\)', page.text)} <= {*ids}
  sources = [e.get('src') for e in elements if e.get('src')]
  assert sources
  assert all(source.startswith('data:image/svg') for source in sources)


def test_text_is_escaped(page):
  assert '<script>alert' not in page.text
  assert f'{_EVIL} (1 of 2 runs)' in page.rows('condition1')
  (failure,) = page.tables('failures')[0][1:]
  assert failure[1:] == ['local_only', '1', 'No <memory>.']
  assert 'It is <smaller>.' in page.prose


def test_names_are_no_elements_of_pages(tmp_path):
  image = html_text.IMAGE
  study = made_up_trials.tuned_study(
    methods={image: pfl.Method('fed_avg'), 'B': pfl.Method('local_only')},
    conditions={image: {}},
    seeds=(0,),
    published={(image, image): 5.0},
    **dict.fromkeys(('source', 'summary', 'deviations', 'name'), image),
  )
  text = json.dumps(made_up_trials.domains(0.5, 0.25))
  domains = json.loads(text.replace('sea', json.dumps(image)[1:-1]))

  def run(expected, folder, **options):
    if expected.settings.algorithm == 'local_only':
      raise errors.RunError(image)
    if expected.validation_fraction is None:
      options['domains'] = domains
    made_up_trials.run(expected, folder, **options)

  actual = made_up_trials.run_trials(study, tmp_path, run)
  claim = claims.measured(image, [1.0], source=image, above=0)
  told = actual.description
  told.update(claims=[claim._asdict()], parameters={image: {image: [image]}})
  told['tunings'][0]['points'][0].update(hparams={image: [image]})
  for partition in told['partitions'].values():
    partition['client_ids'] = [image] * 5
  for method in told['methods'].values():
    method.update(summary=image, settings={image: image})
  first, second = (
    (tmp_path / actual.page()).read_text(encoding='utf-8') for _ in range(2)
  )
  assert html_text.count_images(first) > 40
  # Written again it is the same.
  assert first == second
  frame = pd.DataFrame({image: [image, [image], {image: [image]}]})
  assert html_text.count_images(str(page_lib._table(frame))) == 5


def test_results_are_ranked_with_their_spread_and_best_values_marked(page):
  head, *rows = page.tables('condition1')[0]
  column = head.index(_ACCURACY)
  assert [row[column] for row in rows] == ['37.5 ± 17.7'] * 2 + ['25.0']
  assert rows[-1][0] == f'{_EVIL} (1 of 2 runs)'
  # Its figures are means over one of two seeds, on neither side of the others.
  assert '37.5 ± 17.7' in page.marked('condition1', 'best')
  assert '25.0' not in page.marked('condition1', 'best')
  # What the table for the screen has not is behind a click.
  full = page.tables('condition1')[1][0]
  assert {*head} < {*full}
  # A column that nothing has a value in is left out, domains have a table.
  assert not any('diverged' in title or 'domain' in title for title in full)


def test_domains_have_a_table_with_the_spread_over_seeds(page):
  head, *rows = page.tables('condition1')[2]
  titles = [title.removesuffix(' (%)') for title in head[:4]]
  assert titles == ['method', '<sea>', 'hills', 'moon']
  actual = {row[0]: dict(zip(head, row)) for row in rows}
  values = [actual['FedAvg'][title] for title in head[1:4]]
  assert values == ['37.5 ± 17.7', '100.0 ± 0.0', '–']
  assert actual[_EVIL][head[1]] == '25.0 (1 of 2 runs)'
  title = 'min accuracy over domains, last round (%)'
  assert actual['FedAvg'][title] == '37.5 ± 17.7'
  # Of the last ten rounds two were evaluated.
  assert 'personal accuracy, last 2 evaluations (%)' in head
  auc = page.rows('condition1', 3)
  assert auc['FedAvg'][0] == '18.8 ± 8.8'


def test_published_figures_stand_beside_ours(page):
  head, *rows = page.tables('overview')[0]
  assert head == ['method', 'score (%)', 'published']
  assert rows[0] == ['FedAvg', '37.5 ± 17.7', '71.5']
  assert [row[2] for row in rows[1:]] == ['', '']


def test_claims_are_listed_and_counted(page):
  rows = page.rows('claims')
  row = rows[f'FedAvg is more accurate than {_EVIL}']
  assert row == 'Table 1|0.25|> 0|1|undecided'.split('|')
  assert (
    '0 of 1 claims hold, 1 undecided; ours: 0 of 3 claims hold, 3 undecided.'
  ) in page.prose


def test_tuning_and_settings_are_listed(page):
  _, tuned, _, refused, _, untried, _ = page.tables('tuning')[0]
  assert tuned[:2] == ['FedAvg', 'momentum = 0.5, learning_rate = 0.05']
  assert (tuned[4], tuned[6]) == ('5.0', 'chosen')
  assert refused[4:6] == ['–', '–']
  assert 'momentum' in refused[6]
  assert untried[:3] == [_EVIL, 'momentum = 0.5', 'not tried']
  for name, value in {'dataset': 'synthetic', 'seeds': '0, 1'}.items():
    assert f'<dt>{name}</dt><dd>{value}</dd>' in page.text
  what, own, hparams = page.rows('settings')['FedAvg + FT']
  assert what == f'fed_avg: {registry.ALGORITHMS["fed_avg"].summary}'
  assert own == 'fine_tune = head, num_epochs = 2'
  assert 'learning_rate = 0.05' in hparams and 'momentum = 0.5' in hparams


def test_each_condition_has_a_section(tmp_path, monkeypatch):
  made_up_trials.without_pictures(monkeypatch)
  conditions = {2: {}, 'many <5>': {'partition': 'iid'}}
  study = made_up_trials.study(
    conditions=conditions, methods=made_up_trials.TWO_METHODS, seeds=(0,)
  )
  scores = {'2-FedAvg-seed0': 0.25, 'many__5_-FedAvg-seed0': 0.75}
  scores.update(dict.fromkeys(('2-Local-seed0', 'many__5_-Local-seed0'), 0.5))
  actual = made_up_trials.run_trials(study, tmp_path, scores=scores)
  page = _write(actual, tmp_path)
  titles = [s.find('h2').text for s in page.sections.values()]
  assert titles == ['Results', '2', 'many <5>', 'Settings']
  assert page.rows('overview') == {
    'method': ['2 (%)', 'many <5> (%)'],
    'FedAvg': ['25.0', '75.0'],
    'Local': ['50.0', '50.0'],
  }
  assert page.marked('overview', 'best') == ['75.0', '50.0']
  # Each is ranked for itself.
  assert [*page.rows('condition1')] == ['method', 'Local', 'FedAvg']
  assert [*page.rows('condition2')] == ['method', 'FedAvg', 'Local']
  assert 'many <5>: highest personal accuracy' in page.prose
  assert page.rows('settings')['many <5>'] == ['partition = iid']
  # What conditions differ in is not among the shared settings.
  assert '<dt>partition</dt>' not in page.text
  assert '<dt>num_clients</dt><dd>4</dd>' in page.text


def test_a_condition_may_be_zero_and_domains_are_of_all_folds(
  tmp_path, monkeypatch
):
  made_up_trials.without_pictures(monkeypatch)

  def run(spec, folder, **options):
    level = 0.25 + 0.5 * spec.fold[0]
    domains = made_up_trials.domains(level, 1.0)
    made_up_trials.run(spec, folder, domains=domains, **options)

  study = made_up_trials.study(
    methods=['fed_avg'],
    conditions={0: {}},
    seeds=(0,),
    num_folds=2,
    tune={'learning_rate': (0.25, 0.5)},
  )
  actual = made_up_trials.run_trials(study, tmp_path, run)
  page = _write(actual, tmp_path)
  titles = [s.find('h2').text for s in page.sections.values()]
  assert titles == ['0', 'Tuning', 'Settings']
  assert '0: highest personal accuracy' in page.prose
  head, first, _ = page.tables('tuning')[0]
  assert (head[:2], first[:2]) == (['condition', 'method'], ['0', 'fed_avg'])
  assert page.rows('condition1', 2)['fed_avg'][0] == '50.0 ± 35.4'


def test_a_regression_is_compared_by_its_error(tmp_path, monkeypatch):
  made_up_trials.without_pictures(monkeypatch)
  scores = {'FedAvg-seed0': 1234.5, 'Local-seed0': 12.25}
  study = made_up_trials.study(methods=made_up_trials.TWO_METHODS, seeds=(0,))
  options = {'metric': 'mae', 'scores': scores}
  actual = made_up_trials.run_trials(study, tmp_path, **options)
  actual.description['partitions'][''].update(maps={}, num_clients=5)
  for one in actual:
    for client, size in zip(one.scores['clients'], (3, 1000, 4)):
      client['num_test_examples'] = size
    del one.scores['clients'][3]
  page = _write(actual, tmp_path)
  assert 'Lowest personal mae after the last round: Local, 12.25.' in page.prose
  head, *rows = page.tables('condition1')[0]
  assert head[:2] == ['method', 'personal mae, last 2 evaluations']
  assert [row[:2] for row in rows] == [['Local', '12.25'], ['FedAvg', '1234']]
  assert page.marked('condition1', 'best')[0] == '12.25'
  assert '3 at least, 4 in the median, 1,000 at most' in page.prose
  assert 'are attacked: 2 clients' in page.prose
  assert 'The picture shows 4 of them.' in page.prose


def test_what_failed_altogether_has_a_page(tmp_path):
  def run(expected, folder, **options):
    raise errors.RunError('no memory')

  study = made_up_trials.study(published={('FedAvg', ''): 5.0})
  actual = made_up_trials.run_trials(study, tmp_path, run)
  page = _write(actual, tmp_path)
  assert [*page.sections] == ['failures', 'settings']
  assert len(page.tables('failures')[0]) == 1 + 4
  with pytest.raises(errors.RunError, match='Cannot write'):
    actual.page(tmp_path / 'none' / 'page.html')
