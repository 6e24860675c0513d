"""Tests of the picture of a partition."""

import numpy as np
import pytest
from matplotlib import image

from tff_pfl.datasets import federated_dataset, partition_plot
from tff_pfl.datasets.sources import digits, synthetic


def _map(figure, panel):
  (axes_image,) = figure.subfigs[panel].axes[0].images
  return np.ma.filled(axes_image.get_array(), 0)


def test_picture_shows_the_class_counts_of_both_splits():
  dataset = digits.load_digits().to_clients(12, 'shards:2')
  figure = partition_plot.partition_figure(dataset)
  np.testing.assert_array_equal(_map(figure, 0), dataset.class_counts('train'))
  np.testing.assert_array_equal(_map(figure, 1), dataset.class_counts('test'))
  assert figure.get_suptitle() == 'digits – 12 clients'
  assert figure.subfigs[0].get_suptitle() == 'Training examples: 1,437'
  bars = [bar.get_width() for bar in figure.subfigs[0].axes[1].patches]
  assert bars == dataset.class_counts('train').sum(axis=1).tolist()


def test_many_clients_are_sampled_and_the_title_says_so():
  dataset = synthetic.make_synthetic(1000)
  figure = partition_plot.partition_figure(dataset)
  np.testing.assert_array_equal(_map(figure, 0), dataset.class_counts()[::5])
  assert '1,000 clients, of which 200 evenly' in figure.get_suptitle()
  labels = [
    text.get_text() for text in figure.subfigs[0].axes[0].get_yticklabels()
  ]
  assert labels[:3] == [dataset.client_ids[i] for i in (0, 50, 100)]


def test_domains_are_shown_and_a_huge_client_leaves_the_others_visible():
  sizes = [4] * 9 + [4000]
  ids = np.repeat(np.arange(10), sizes)
  dataset = federated_dataset.FederatedDataset.from_arrays(
    np.zeros([len(ids), 2], np.float32),
    np.arange(len(ids)) % 2,
    keys=ids,
    test_fraction=0.5,
    domain=(np.arange(len(ids)) // 2) % 2,
    domain_names=['the sea', 'a name that is far too long for a picture'],
  )
  figure = partition_plot.partition_figure(dataset)
  by_class, by_domain, bars = figure.subfigs[0].axes[:3]
  np.testing.assert_array_equal(
    np.ma.filled(by_domain.images[0].get_array(), 0), dataset.domain_counts()
  )
  words = [text.get_text() for text in by_domain.get_xticklabels()]
  assert words == ['the sea', 'a name that is …']
  # On the scale of colors one example is not next to none.
  image_of_classes = by_class.images[0]
  assert image_of_classes.norm(1) == 0
  assert image_of_classes.norm(2) > 0.05
  assert bars.get_xscale() == 'log'


def test_regression_dataset_is_drawn_as_bars(tmp_path):
  x = np.linspace(0, 1, 40)[:, np.newaxis]
  dataset = federated_dataset.FederatedDataset.from_arrays(
    x, x.ravel(), num_clients=4, name='$\\frac$'
  )
  figure = partition_plot.partition_figure(dataset)
  (axes,) = figure.subfigs[1].axes
  assert [bar.get_width() for bar in axes.patches] == [2] * 4
  # Its name is no formula, and in error as one.
  partition_plot.plot_partition(dataset, tmp_path / 'partition.png')


@pytest.mark.parametrize('num_clients', [1, 10, 200])
def test_plot_writes_a_png_of_a_readable_size(tmp_path, num_clients):
  dataset = digits.load_digits().to_clients(num_clients, 'iid')
  path = tmp_path / 'partition.png'
  partition_plot.plot_partition(dataset, path)
  height, width, _ = image.imread(path).shape
  assert width >= 1200
  assert height >= max(500, 4 * num_clients)


def test_a_path_of_another_kind_is_an_error():
  dataset = digits.load_digits().to_clients(2, 'iid')
  with pytest.raises(ValueError, match='`path` to be a .png file'):
    partition_plot.plot_partition(dataset, 'partition.jpg')
