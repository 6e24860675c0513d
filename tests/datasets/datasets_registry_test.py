"""Tests of loading datasets by name."""

import numpy as np
import pytest

from tff_pfl import datasets
from tff_pfl.datasets import partitioning


def test_every_name_has_a_description_in_the_help_text():
  assert {'digits', 'mnist', 'fashion_mnist', 'synthetic'} <= set(
    datasets.DATASETS
  )
  text = datasets.describe_datasets()
  for name, entry in datasets.DATASETS.items():
    assert f'{name}: {entry.description}' in text


def test_digits_by_name_with_a_specification_or_a_partitioner():
  by_spec = datasets.load_dataset(
    'digits', num_clients=5, partition='dirichlet:1', seed=3
  )
  by_rule = datasets.load_dataset(
    'digits', num_clients=5, partition=partitioning.Dirichlet(1.0), seed=3
  )
  assert by_spec.num_clients == 5
  np.testing.assert_array_equal(by_spec.class_counts(), by_rule.class_counts())


@pytest.mark.parametrize(
  'partition, num_classes',
  [('shards:3', 3), ('classes_per_client:1', 1), ('iid', 10)],
)
def test_synthetic_by_name_has_the_classes_asked_for(partition, num_classes):
  dataset = datasets.load_dataset(
    'synthetic', num_clients=4, partition=partition
  )
  assert ((dataset.class_counts() > 0).sum(axis=1) == num_classes).all()


@pytest.mark.parametrize(
  'kwargs, match',
  [
    (dict(name='imagenet'), 'one of digits, mnist, .*found .imagenet.'),
    (dict(num_clients=0), '`num_clients`'),
    (dict(partition='pie'), '`partition` to be one of'),
    (dict(data_dir='/data'), "`data_dir` to be unset for the dataset 'digits'"),
    (dict(name='mnist', data_dir='/does/not/exist'), 'an existing folder'),
    (dict(name='synthetic', partition='dirichlet:1'), "found 'dirichlet:1.0'"),
    (dict(name='synthetic', partition='shards:11'), '`classes_per_client`'),
    (dict(seed=-2), '`seed`'),
  ],
)
def test_bad_arguments_are_one_line_errors(kwargs, match):
  with pytest.raises(ValueError, match=match) as error:
    datasets.load_dataset(**{'name': 'digits', 'num_clients': 2, **kwargs})
  assert '\n' not in str(error.value)
