"""Tests of digits in domains that name them differently."""

import numpy as np
import pytest

from tff_pfl import datasets
from tff_pfl.datasets import digits, relabelled_digits


@pytest.mark.parametrize('num_domains', [1, 3, 5])
def test_a_domain_swaps_the_two_labels_of_its_name(num_domains):
  arrays = relabelled_digits.load_relabelled_digits_arrays(num_domains)
  plain = digits.load_digits_arrays()
  assert len(arrays.domain_names) == num_domains
  for y, domain, expected in (
    (arrays.y, arrays.domain, plain.y),
    (arrays.y_test, arrays.domain_test, plain.y_test),
  ):
    for m, name in enumerate(arrays.domain_names):
      first, second = map(int, name.split('_')[1:])
      renamed = {first: second, second: first}
      of_domain = domain == m
      assert of_domain.any()
      np.testing.assert_array_equal(
        y[of_domain],
        [renamed.get(label, label) for label in expected[of_domain]],
      )
  np.testing.assert_array_equal(arrays.x, plain.x)
  np.testing.assert_array_equal(arrays.x_test, plain.x_test)


def test_domains_have_the_same_classes_equally_often():
  arrays = relabelled_digits.load_relabelled_digits_arrays()
  plain = digits.load_digits_arrays()
  counts = np.zeros((5, 10), int)
  np.add.at(counts, (arrays.domain, plain.y), 1)
  assert (np.ptp(counts, axis=0) <= 1).all()


def test_clients_are_mixtures_of_the_domains():
  data = datasets.load_dataset(
    'relabelled_digits', num_clients=4, partition='domain_mixture:0.2:100'
  )
  counts = data.domain_counts()
  assert (counts.sum(axis=1) == 100).all()
  assert (counts.max(axis=1) > 50).any()
  assert data.domain_counts('test').sum() == 360


@pytest.mark.parametrize('num_domains', [0, 6])
def test_impossible_numbers_of_domains_are_refused(num_domains):
  with pytest.raises(ValueError, match='`num_domains`.*5'):
    relabelled_digits.load_relabelled_digits_arrays(num_domains)
