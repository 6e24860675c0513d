"""Tests of the rules that make clients from central examples."""

import numpy as np
import pytest

from tests.datasets import shared
from tests.datasets.partitioning import rules
from tff_pfl.datasets import partitioning

SPECS = [
  'shards:2',
  'shards:3',
  'classes_per_client:2',
  'dirichlet:0.5',
  'dirichlet:100.0',
  'lognormal:1.0',
  'iid',
]


@pytest.mark.parametrize('spec', SPECS)
@pytest.mark.parametrize('num_clients', [5, 17])
def test_every_example_is_dealt_exactly_once(spec, num_clients):
  train, test = rules.labels([50, 60, 70, 80]), rules.labels([13, 14, 15, 16])
  parts = rules.partition(spec, train, test, num_clients)
  for indices, labels in zip(parts, (train, test)):
    assert len(indices) == num_clients
    np.testing.assert_array_equal(
      np.sort(np.concatenate(indices)), np.arange(len(labels))
    )


@pytest.mark.parametrize(
  'spec', [*SPECS, 'dirichlet:0.5:0', 'client_dirichlet:0.5']
)
def test_more_clients_than_training_examples_are_refused(spec):
  train, test = rules.labels([5, 6]), rules.labels([50, 60])
  with pytest.raises(ValueError, match='`num_clients` to be at most 11, the'):
    rules.partition(spec.replace('shards:3', 'shards:1'), train, test, 12)


@pytest.mark.parametrize('spec', SPECS)
def test_test_counts_follow_training_counts_up_to_one_example(spec):
  train, test = (
    rules.labels([400, 600, 800, 1000]),
    rules.labels([40, 60, 80, 100]),
  )
  parts = rules.partition(spec, train, test, 12)
  train_counts = rules.counts(parts.train_indices, train, 4)
  test_counts = rules.counts(parts.test_indices, test, 4)
  # Each class has a tenth as many test examples as training examples.
  assert np.abs(test_counts - train_counts / 10).max() < 1
  assert not test_counts[train_counts == 0].any()


@pytest.mark.parametrize(
  'spec', [*SPECS, 'client_dirichlet:0.5', 'fallah_digits:4']
)
def test_same_seed_same_partition_and_another_seed_another(spec):
  train, test = rules.labels([50] * 10), rules.labels([13] * 10)
  first, again, other = (
    rules.partition(spec, train, test, 10, seed=seed) for seed in (3, 3, 4)
  )
  for split in range(2):
    for client in range(10):
      np.testing.assert_array_equal(first[split][client], again[split][client])
    assert any(
      not np.array_equal(a, b) for a, b in zip(first[split], other[split])
    )


def test_training_partition_does_not_depend_on_the_test_examples():
  train = rules.labels([50, 60])
  with_test = rules.partition('dirichlet:1.0', train, rules.labels([9, 7]), 4)
  without = rules.partition('dirichlet:1.0', train, None, 4)
  for a, b in zip(with_test.train_indices, without.train_indices):
    np.testing.assert_array_equal(a, b)
  assert [len(i) for i in without.test_indices] == [0] * 4


@pytest.mark.parametrize(
  'spec, name',
  [
    ('shards:4', 'shards_per_client'),
    ('classes_per_client:4', 'num_classes_per_client'),
  ],
)
def test_more_classes_per_client_than_exist_is_an_error(spec, name):
  with pytest.raises(ValueError, match=rf'`{name}` to be at most 3.*found 4'):
    rules.partition(spec, rules.labels([5, 5, 5]), None, 2)


@pytest.mark.parametrize('spec', ['shards:2', 'classes_per_client:2'])
def test_classes_that_nobody_can_own_are_left_out_with_a_warning(spec, caplog):
  train = rules.labels([10] * 5)
  parts = rules.partition(spec, train, train, 2)
  counts = rules.counts(parts.train_indices, train, 5)
  assert (counts.sum(axis=0) > 0).sum() == 4
  assert counts.sum() == 40
  assert 'has no place for the classes' in caplog.text


def test_classes_per_client_draws_distinct_classes_shared_evenly():
  train = rules.labels([120] * 6)
  parts = rules.partition('classes_per_client:2', train, None, 10)
  counts = rules.counts(parts.train_indices, train, 6)
  assert ((counts > 0).sum(axis=1) == 2).all()
  for column in counts.T:
    shares = column[column > 0]
    assert shares.max() - shares.min() <= 1
  assert len(set(counts.sum(axis=1))) > 1


@pytest.mark.parametrize('seed', range(10))
def test_classes_per_client_covers_every_class_if_it_can(seed):
  train = rules.labels([20] * 10)
  parts = rules.partition('classes_per_client:2', train, None, 5, seed=seed)
  counts = rules.counts(parts.train_indices, train, 10)
  assert (counts.sum(axis=0) == 20).all()


def test_lognormal_sizes_differ_but_classes_do_not():
  train = rules.labels([5000, 10000])
  parts = rules.partition('lognormal:1.0', train, None, 20)
  counts = rules.counts(parts.train_indices, train, 2)
  log_sizes = np.log(counts.sum(axis=1))
  assert 0.5 < log_sizes.std() < 1.5
  assert np.abs(counts[:, 1] - 2 * counts[:, 0]).max() <= 3


def test_lognormal_of_sigma_zero_is_iid_and_a_huge_sigma_does_not_overflow():
  train = rules.labels([100, 100])
  even = rules.partition('lognormal:0', train, None, 4)
  assert [len(i) for i in even.train_indices] == [50] * 4
  huge = rules.partition('lognormal:1e4', train, None, 4)
  assert sorted(len(i) for i in huge.train_indices) == [0, 0, 0, 200]


def test_iid_gives_every_client_the_same():
  train = rules.labels([40, 80])
  parts = rules.partition('iid', train, None, 4)
  assert rules.counts(parts.train_indices, train, 2).tolist() == [[10, 20]] * 4
  # Not sorted by class.
  assert (np.diff(train[parts.train_indices[0]]) != 0).sum() > 3


def test_regression_targets_are_dealt_by_rules_without_classes_only():
  targets = np.linspace(0, 1, 30)
  parts = rules.partition('iid', targets, targets[:7], 3)
  assert [len(i) for i in parts.train_indices] == [10] * 3
  assert sorted(len(i) for i in parts.test_indices) == [2, 2, 3]
  with pytest.raises(ValueError, match="found 'shards:2'"):
    rules.partition('shards:2', targets, None, 3)


@pytest.mark.parametrize(
  'spec',
  [
    *SPECS,
    'dirichlet:0.5:10',
    'client_dirichlet:0.5',
    'shards:12',
    'fallah_digits:196',
  ],
)
def test_spec_round_trips(spec):
  partitioner = partitioning.make_partitioner(spec)
  assert partitioner.spec == spec
  assert partitioning.make_partitioner(partitioner.spec) == partitioner
  assert partitioning.make_partitioner('shards').spec == 'shards:2'


@pytest.mark.parametrize(
  'spec, match',
  [
    ('foo:1', r'one of shards\[.*dirichlet:.*iid.*, found .foo:1.'),
    ('', 'one of shards'),
    ('dirichlet', 'with a value for concentration'),
    ('classes_per_client', 'with a value for num_classes_per_client'),
    ('iid:3', "iid without '3'"),
    ('shards:2:7', "without '7'"),
    ('shards:2.5', "`shards_per_client` .* an integer, found '2.5'"),
    ('shards:', "`shards_per_client` .* an integer, found ''"),
    ('dirichlet:x', "`concentration` .* a number, found 'x'"),
    ('shards:0', '`shards_per_client` to be an integer at least 1, found 0'),
    ('classes_per_client:-1', 'an integer at least 1, found -1'),
    ('dirichlet:0', '`concentration` to be a positive number.*, found 0.0'),
    ('dirichlet:nan', '`concentration` to be a positive number.*, found nan'),
    # NumPy would never come back from it.
    ('dirichlet:1e-300', '`concentration` to be .* at least 1e-06, found 1e-3'),
    ('dirichlet:1:-2', '`min_examples` to be an integer at least 0'),
    ('client_dirichlet', 'with a value for concentration'),
    ('client_dirichlet:0', '`concentration` to be a positive number'),
    ('client_dirichlet:inf', '`concentration` to be a positive number'),
    ('client_dirichlet:1:10', "client_dirichlet:.*without '10'"),
    ('lognormal:-1', '`sigma` to be a non-negative number, found -1.0'),
    ('lognormal:inf', '`sigma` to be a non-negative number, found inf'),
    ('fallah_digits', 'with a value for images_per_digit'),
    (
      'fallah_digits:0',
      '`images_per_digit` to be an integer at least 1, found 0',
    ),
    ('fallah_digits:-2', '`images_per_digit` to be an integer at least 1'),
    ('fallah_digits:195', '`images_per_digit` to be an even .* found 195'),
    ('fallah_digits:2.0', "`images_per_digit` .* an integer, found '2.0'"),
  ],
)
def test_bad_specifications_are_one_line_errors(spec, match):
  with shared.one_line_error(match):
    partitioning.make_partitioner(spec)


def test_description_names_every_rule_in_one_paragraph():
  text = partitioning.describe_partitioners()
  assert all(name in text for name in partitioning.PARTITIONERS)
  assert '\n' not in text
