import types

from matplotlib.figure import Figure

from binaries.papers import panels
from tff_pfl.studies import numbers

_NUMBERS = numbers.Numbers(
  dict(method=method, condition=condition, round=r, score=seed + r, seed=seed)
  for method in ('FedRep', 'FedAvg')
  for condition in (2, 5)
  for r in (1, 5)
  for seed in (0, 1)
)


def _drawn(draw, num_seeds=1):
  figure = Figure(layout='constrained')
  study = types.SimpleNamespace(seeds=range(num_seeds))
  draw(_NUMBERS, study, figure)
  return figure


def _titles(figure):
  return [axes.get_title('left') for axes in figure.axes]


def test_a_figure_has_a_label_and_as_many_inches_as_its_panels():
  draw = panels.curves('score', over='round', width=3)
  figure = _drawn(draw)
  assert (figure.get_suptitle(), _titles(figure)) == ('', [''])
  draw = panels.curves('score', over='round', panel='condition', width=3)
  figure = _drawn(draw)
  assert _titles(figure) == ['2', '5']
  assert figure.get_size_inches().tolist() == [6, 4.4]


def test_panels_share_a_legend_and_say_what_their_bars_are():
  draw = panels.score_bars(
    by='round', panel='condition', title='as {}'.format, shared_legend=True
  )
  figure = _drawn(draw, num_seeds=2)
  assert 'over 2 seeds' in figure.get_suptitle()
  assert _titles(figure) == ['as 2', 'as 5']
  (legend,) = figure.legends
  assert [text.get_text() for text in legend.get_texts()] == ['1', '5']
  assert [axes.get_legend() for axes in figure.axes] == [None, None]
