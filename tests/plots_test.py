"""Pictures: what they show is read back from their axes."""

import json

import numpy as np
import pandas as pd
import pytest
from matplotlib import pyplot as plt

from tff_pfl import errors, plots
from tff_pfl.datasets.sources import synthetic
from tff_pfl.models import split_model

_MAE = split_model.PrimaryMetric('mae', False)


def _frame():
  """Two methods, two seeds, three rounds."""
  return pd.DataFrame(
    {'method': m, 'seed': s, 'round': r, 'value': level + 0.1 * r + 0.02 * s}
    for m, level in (('FedRep', 0.5), ('a_$b$', 0.2))
    for s in (0, 1)
    for r in (1, 2, 3)
  )


def _scores(before, after, name='accuracy'):
  return pd.DataFrame({f'before/{name}': before, f'after/{name}': after})


def _texts(texts):
  return [text.get_text() for text in texts]


def test_curves_are_means_over_seeds():
  ax = plots.curves(_frame(), metric=split_model.ACCURACY, ax=plots.new_axes())
  line = ax.lines[0]
  np.testing.assert_array_equal(line.get_xdata(), [1, 2, 3])
  np.testing.assert_allclose(line.get_ydata(), [0.61, 0.71, 0.81])
  (bars, *_) = ax.collections
  np.testing.assert_allclose(
    [segment[:, 1] for segment in bars.get_segments()],
    np.add.outer([0.61, 0.71, 0.81], np.array([-0.02, 0.02]) / 2**0.5),
  )
  assert _texts(ax.get_legend().get_texts()) == ['FedRep', 'a_$b$']
  assert (ax.get_xlabel(), ax.get_ylabel()) == ('Round', 'Test accuracy (%)')
  ax.figure.draw_without_rendering()
  assert '60' in _texts(ax.get_yticklabels())
  assert ax.get_xlim()[0] == 0
  frame = _frame().assign(value=1.0)
  ax = plots.curves(frame, metric=split_model.ACCURACY, ax=plots.new_axes())
  ax.figure.draw_without_rendering()
  labels = _texts(ax.get_yticklabels())
  assert '100' in labels and '102' not in labels


def test_what_a_logarithmic_axis_cannot_show_is_left_out():
  frame = _frame()[lambda rows: rows['seed'] == 0]
  frame.loc[frame['round'] == 2, 'value'] = [-1.0, np.inf]
  ax = plots.curves(frame, log_y=True, ax=plots.new_axes())
  assert ax.get_yscale() == 'log'
  ax.figure.draw_without_rendering()
  labels = [*ax.yaxis.get_ticklabels(), *ax.yaxis.get_ticklabels(minor=True)]
  assert '0.5' in _texts(labels)
  assert not any('$' in text for text in _texts(labels))
  for line in ax.lines[:2]:
    np.testing.assert_array_equal(line.get_xdata(), [1, 3])
  # Where a seed diverged there is no mean of the others.
  frame = _frame()
  frame.loc[3, 'value'] = np.nan
  ax = plots.curves(frame, ax=plots.new_axes())
  np.testing.assert_array_equal(ax.lines[0].get_xdata(), [2, 3])


def test_many_curves_have_dashes_too():
  frame = pd.DataFrame(
    {'method': f'm{i}', 'round': r, 'value': i + r}
    for i in range(9)
    for r in (1, 2)
  )
  ax = plots.curves(frame, ax=plots.new_axes())
  handles, _ = ax.get_legend_handles_labels()
  styles = {(h.get_color(), str(h._dash_pattern)) for h in handles}
  assert len(styles) == 9


def test_without_axes_there_is_a_figure_of_pyplot():
  before = len(plt.get_fignums())
  plots.curves(_frame(), ax=plots.new_axes())
  assert len(plt.get_fignums()) == before
  ax = plots.curves(_frame())
  assert ax.figure.number in plt.get_fignums()
  plt.close(ax.figure)


def test_bars_stand_in_groups_with_their_spread():
  frame = _frame()[lambda rows: rows['round'] < 3].assign(
    place=lambda rows: 'place ' + rows['round'].astype(str)
  )
  ax = plots.bars(frame, x='place', y_label='Score', ax=plots.new_axes())
  heights = [[bar.get_height() for bar in group] for group in ax.containers]
  np.testing.assert_allclose(heights, [[0.61, 0.71], [0.31, 0.41]])
  assert _texts(ax.get_xticklabels()) == ['place 1', 'place 2']
  assert ax.get_ylabel() == 'Score'
  # Groups may be numbers.
  numbered = plots.bars(frame, x='round', ax=plots.new_axes())
  of_rounds = [[bar.get_height() for bar in g] for g in numbered.containers]
  np.testing.assert_allclose(of_rounds, heights)
  assert _texts(numbered.get_xticklabels()) == ['1', '2']
  across = plots.bars(frame, x='value', y='place', ax=plots.new_axes())
  widths = [[bar.get_width() for bar in group] for group in across.containers]
  np.testing.assert_allclose(widths, heights)


def test_clients_are_shown_before_and_after():
  scores = _scores([0.5, 0.25, np.nan, 0.5], [0.75, 0.25, 1.0, 0.25])
  ax = plots.clients(scores, ax=plots.new_axes())
  assert _texts(ax.get_legend().get_texts()) == [
    f'{when} (mean {mean})'
    for when, mean in (('before', '41.7%'), ('after', '41.7%'))
  ]
  changes = plots.changes(scores, ax=plots.new_axes())
  points = changes.collections[0].get_offsets()
  np.testing.assert_allclose(
    sorted(map(tuple, points)), [(0.25, 0.25), (0.5, 0.25), (0.5, 0.75)]
  )
  assert changes.get_title('left') == '1 of 3 worse after'
  # Of an error, more is worse.
  changes = plots.changes(
    _scores([1.0, 1.0], [2.0, 0.5], 'mae'), _MAE, ax=plots.new_axes()
  )
  assert changes.get_title('left') == '1 of 2 worse after'
  assert changes.get_xlabel() == 'Test mae before'
  # Where nothing changes there is one curve.
  same = plots.clients(_scores([0.5, 1.0], [0.5, 1.0]), ax=plots.new_axes())
  assert _texts(same.get_legend().get_texts()) == [
    'before and after (mean 75.0%)'
  ]
  # And none where nothing is finite.
  none = _scores([np.nan] * 2, [np.inf] * 2)
  assert not plots.clients(none, ax=plots.new_axes()).lines
  assert plots.changes(none, ax=plots.new_axes()).get_title('left') == (
    '0 of 0 worse after'
  )
  # Points that coincide are larger.
  ax = plots.changes(
    _scores([0.5] * 9 + [0.1], [0.6] * 9 + [0.2]), ax=plots.new_axes()
  )
  sizes = dict(
    zip(ax.collections[0].get_offsets()[:, 0], ax.collections[0].get_sizes())
  )
  assert sizes[0.5] > sizes[0.1]


def test_boxes_have_the_mean():
  frame = pd.DataFrame(
    {'method': ['a'] * 3 + ['b'] * 3, 'value': [0, 0.5, 1, 0.2, 0.2, 0.5]}
  )
  ax = plots.boxes(frame, ax=plots.new_axes())
  assert _texts(ax.get_yticklabels()) == ['a', 'b']
  means = [line.get_xdata()[0] for line in ax.lines if line.get_marker() == 'o']
  np.testing.assert_allclose(means, [0.5, 0.3])


def test_a_partition_has_totals_and_maps():
  counts = {
    **{'num_clients': 9, 'places': [0, 3, 6], 'client_ids': [*'abc']},
    'num_examples': [1, 5, 9],
    'maps': {
      'class': {'0': [0, 2, 4], '1': [1, 3, 5]},
      'domain': {'sea': [1, 2, 3], 'a' * 30: [0, 3, 6]},
    },
  }
  figure = plots.draw_partition(counts, num_new_clients=4)
  top, classes, domains = figure.axes
  assert [bar.get_height() for bar in top.patches] == [1, 5, 9]
  assert _texts(domains.get_xticklabels()) == [*'abc']
  assert _texts(domains.get_yticklabels()) == ['sea', f'{"a" * 15}…']
  assert classes.get_title('left') == 'Examples of a class: none to 5'
  assert top.get_title('right') == 'new clients'
  # The last four are new, of which the picture shows one.
  assert top.lines[0].get_xdata()[0] == 2


def test_axes_and_figures_are_written(tmp_path):
  axes = plots.boxes(_frame(), ax=plots.new_axes())
  figure = axes.figure
  plots.save(figure, tmp_path / 'a.png')
  assert (tmp_path / 'a.png').read_bytes().startswith(b'\x89PNG')
  plots.save(axes, tmp_path / 'b.png')
  assert len(list(tmp_path.iterdir())) == 2
  with pytest.raises(errors.RunError, match='Cannot write'):
    plots.save(figure, tmp_path / 'no' / 'a.png')


def test_only_the_drawn_clients_are_read(monkeypatch):
  monkeypatch.setattr(plots, '_MAX_CLIENTS', 2)
  data = synthetic.make_synthetic(5)
  read = set()

  def load(client_id, split):
    read.add(client_id)
    return data.load(client_id, split)

  counts = plots.partition_counts(data.replaced(load=load))
  assert read == {'client_0', 'client_2'}
  by_class = data.class_counts()[[0, 2]].T.tolist()
  assert json.loads(json.dumps(counts)) == {
    **{'num_clients': 5, 'places': [0, 2], 'client_ids': [*sorted(read)]},
    'num_examples': [100, 100],
    'maps': {'class': {str(i): row for i, row in enumerate(by_class)}},
  }
  title = plots.partition(data, 'test').axes[0].get_title('left')
  assert title == 'synthetic, test examples, 2 of 5 clients'
  with pytest.raises(ValueError, match='`split` to be one of train, test'):
    plots.partition(data, 'all')
