"""Tests of data sets that TensorFlow Federated downloads."""

import pytest
import tensorflow_federated as tff

from tests.datasets import shared
from tff_pfl import datasets, errors


@pytest.mark.parametrize(
  'name, source, load, remedy',
  [
    ('femnist', 'emnist', 'load_data', '`data_dir` with a file .femnist'),
    ('shakespeare', 'shakespeare', 'load_data', '`data_dir` with a file'),
    ('stackoverflow', 'stackoverflow', 'load_word_counts', 'copy ~/.tff'),
  ],
)
def test_without_network_one_line_says_what_to_do(
  monkeypatch, name, source, load, remedy
):
  def fail(**_):
    raise OSError('Name or service not known\nand a long story')

  monkeypatch.setattr(getattr(tff.simulation.datasets, source), load, fail)
  with shared.one_line_error(
    f'{name} .*Name or service.*{remedy}', errors.RunError
  ):
    datasets.load_dataset(name, num_clients=1, partition='natural')
