from xml.etree import ElementTree

from matplotlib.figure import Figure

from tff_pfl.experiments import inline_svg

_COLOR = '#0072b2'


def _svg(key):
  figure = Figure(figsize=(2, 2), layout='constrained')
  axes = figure.add_subplot()
  axes.plot([0, 1, 2], [0, 1, 0], color=_COLOR, marker='o')
  axes.set_xlabel('Rounds & more')
  return inline_svg.inline_svg(figure, 'A "line"', key)


def test_inline_svg_scales_and_says_what_it_shows():
  svg = ElementTree.fromstring(_svg('a'))
  assert svg.tag == 'svg'
  assert svg.get('viewBox') == '0 0 144 144'
  assert svg.get('width') is None
  assert (svg.get('role'), svg.get('aria-label')) == ('img', 'A "line"')
  texts = [''.join(text.itertext()) for text in svg.iter('text')]
  assert 'Rounds & more' in texts
  assert all('font-family' not in t.get('style') for t in svg.iter('text'))


def test_inline_svg_leaves_its_colors_to_the_page():
  html = _svg('a')
  assert f'stroke: var(--c-{_COLOR[1:]}, {_COLOR})' in html
  assert 'http' not in html
  assert '<style' not in html


def test_pictures_of_one_page_share_no_ids_and_their_references_resolve():
  ids = []
  for key in ('a', 'b'):
    svg = ElementTree.fromstring(_svg(key))
    own = [e.get('id') for e in svg.iter() if e.get('id')]
    used = {e.get('href')[1:] for e in svg.iter('use')}
    clips = {e.get('clip-path')[5:-1] for e in svg.iter() if e.get('clip-path')}
    assert used
    assert clips
    assert used | clips == set(own)
    ids += own
  assert len(ids) == len(set(ids))


def test_the_same_figure_gives_the_same_picture():
  assert _svg('a') == _svg('a')


def test_a_picture_is_not_escaped_by_a_template():
  svg = _svg('a')
  assert svg.__html__() == svg
