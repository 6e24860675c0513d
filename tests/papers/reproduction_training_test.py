import numpy as np
import pytest

from binaries.papers import training
from tff_pfl.experiments import paper as experiment


def _settings(**options):
  return experiment.Settings('unused', **options)


def test_the_data_set_is_the_settings_or_else_the_experiments():
  assert training.load_arrays('digits', _settings()).name == 'digits'
  arrays = training.load_arrays('mnist', _settings(dataset='digits'))
  assert arrays.name == 'digits'


def test_a_folder_is_for_data_sets_with_files():
  # A fast run takes bundled data, whatever folder it is given.
  assert training.load_arrays('digits', _settings(data_dir='/none')).name
  with pytest.raises(ValueError, match='`data_dir`'):
    training.load_arrays('mnist', _settings(data_dir='/none'))


def test_too_few_examples_are_refused():
  arrays = training.load_arrays('digits', _settings())
  training.expect_examples(arrays, len(arrays.y))
  with pytest.raises(ValueError, match='in digits'):
    training.expect_examples(arrays, len(arrays.y) + 1)


def test_spread_is_the_sample_standard_deviation_and_zero_for_one_value():
  assert experiment.spread([1.0, 3.0]) == pytest.approx(2**0.5)
  assert experiment.spread([1.0]) == 0
  np.testing.assert_allclose(experiment.spread([[1, 1], [3, 1]]), [2**0.5, 0])
