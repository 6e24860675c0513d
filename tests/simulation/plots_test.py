import matplotlib.image
import numpy as np
import pytest

from tff_pfl import errors
from tff_pfl.models import split_model
from tff_pfl.simulation import picture_style, plots


def read(path):
  """Returns the picture, after checking that something is drawn on it."""
  picture = matplotlib.image.imread(path)
  assert picture.shape[0] > 300
  assert picture.shape[1] > 300
  # An empty figure is white.
  assert len(np.unique(picture[::5, ::5, 0])) > 10
  return picture


def num_pixels(picture, color):
  rgb = np.array([int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)])
  return np.sum(np.all(np.abs(picture[..., :3] - rgb) < 0.01, axis=-1))


def has_color(picture, color):
  return num_pixels(picture, color) > 0


def test_each_series_is_drawn_in_its_color(tmp_path):
  rounds = list(range(10, 60, 10))
  path = tmp_path / 'accuracy.png'
  plots.plot_by_round(
    path,
    {
      'FedRep': (rounds, [0.5, 0.7, 0.8, 0.85, 0.9]),
      'FedAvg': (rounds, [0.2, 0.25, 0.3, 0.35, 0.4]),
    },
    title='digits',
  )
  picture = read(path)
  assert has_color(picture, picture_style.COLORS[0])
  assert has_color(picture, picture_style.COLORS[1])
  assert not has_color(picture, picture_style.COLORS[2])


def test_names_are_not_taken_for_formulas(tmp_path):
  # The second is a formula in error, the third has a sign too few.
  for name in ('$x$', '$\\frac$', 'a $ b', r'\$'):
    plots.plot_by_round(
      tmp_path / 'a.png', {name: ([1, 2], [0.5, 0.5])}, title=name
    )
    plots.plot_client_distribution(
      tmp_path / 'b.png', [0.5], [0.5], (name, name), title=name
    )
    plots.plot_domains(
      tmp_path / 'c.png',
      {split_model.LOSS: {name: {name: 0.5, 'b': 1.0}}},
      title=name,
    )
    for picture in 'abc':
      read(tmp_path / f'{picture}.png')


@pytest.mark.parametrize(
  'series',
  [
    {'one point': ([3], [0.5])},
    {'long and equal': (range(2000), [1.0] * 2000)},
    # More than there are colors.
    {f'method {i}': ([1, 2], [i / 20, i / 20]) for i in range(16)},
  ],
)
def test_unusual_series_are_drawn(tmp_path, series):
  plots.plot_by_round(tmp_path / 'a.png', series)
  read(tmp_path / 'a.png')
  with pytest.raises(errors.RunError, match='Cannot write'):
    plots.plot_by_round(tmp_path / 'no' / 'a.png', series)


_LABELS = ('before', 'after')


@pytest.mark.parametrize('num_clients', [1, 2, 30, 2000])
def test_any_number_of_clients_is_drawn(tmp_path, num_clients):
  rng = np.random.default_rng(0)
  before, after = rng.integers(0, 21, [2, num_clients]) / 20
  plots.plot_client_distribution(tmp_path / 'd.png', before, after, _LABELS)
  read(tmp_path / 'd.png')


def test_clients_whom_personalization_hurt_have_a_higher_error(tmp_path):
  mae = split_model.PrimaryMetric('mae', False)
  path = tmp_path / 'd.png'
  before = np.array([*range(40), np.nan])
  for change, hurt in ((-0.5, False), (0.5, True)):
    plots.plot_client_distribution(path, before, before + change, _LABELS, mae)
    red, _, blue = np.moveaxis(read(path)[..., :3], -1, 0)
    # A legend has a point of each color.
    assert (np.sum(red > blue + 0.3) > 2000) == hurt
  plots.plot_by_round(path, {'x': ([1, 2], [50.0, 0.01])}, mae)
  read(path)


@pytest.mark.parametrize('value', [0.0, 0.5, 1.0])
def test_equal_values_are_drawn(tmp_path, value):
  values = [value] * 50
  plots.plot_client_distribution(tmp_path / 'd.png', values, values, _LABELS)
  picture = read(tmp_path / 'd.png')
  assert has_color(picture, plots._AFTER_COLOR)
  # The same twice is drawn once; edges of letters have that gray, too.
  assert num_pixels(picture, plots._BEFORE_COLOR) < 500


def test_domains_have_a_bar_for_each_model(tmp_path):
  path = tmp_path / 'domains.png'
  plots.plot_domains(
    path,
    {
      split_model.ACCURACY: {
        'global model': {'sea': 0.5, 'hills': 0.25},
        'personal model': {'sea': 0.75, 'hills': 1.0},
      },
      split_model.PrimaryMetric('AUC', True): {
        'global model': {'sea': 0.5, 'hills': None},
        'personal model': {'sea': 0.75, 'hills': None},
      },
    },
    title='toys',
  )
  picture = read(path)
  before, after = (
    num_pixels(picture, color)
    for color in (plots._BEFORE_COLOR, plots._AFTER_COLOR)
  )
  # As long as the scores, of which there are 1.25 and 2.5 in all.
  assert before > 1000
  assert after / before == pytest.approx(2, rel=0.05)
