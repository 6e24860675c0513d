import numpy as np
import pytest

from tests.datasets import shared
from tests.datasets.partitioning import rules
from tff_pfl.datasets import partitioning
from tff_pfl.datasets.partitioning import dealing

SPECS = [
  'shards:2',
  'classes_per_client:2',
  'dirichlet:0.5',
  'lognormal:1.0',
  'iid',
]


@pytest.mark.parametrize('spec', SPECS)
def test_all_are_dealt_once_and_test_counts_follow_training_counts(spec):
  train, test = (rules.labels([400, 600, 800]), rules.labels([40, 60, 80]))
  parts = rules.partition(spec, train, test, 12)
  for indices, labels in zip(parts, (train, test)):
    assert len(indices) == 12
    np.testing.assert_array_equal(
      np.sort(np.concatenate(indices)), np.arange(len(labels))
    )
  train_counts = rules.counts(parts.train_indices, train, 3)
  test_counts = rules.counts(parts.test_indices, test, 3)
  # Each class has a tenth as many test examples as training examples.
  assert np.abs(test_counts - train_counts / 10).max() < 1
  assert not test_counts[train_counts == 0].any()


@pytest.mark.parametrize(
  'spec',
  [
    *SPECS,
    'client_dirichlet:0.5',
    'fallah_digits:4',
    'lognormal_classes:2:2:1',
  ],
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


def test_lognormal_classes_are_exact_in_classes_and_lognormal_in_sizes():
  train = rules.labels([50_000] * 10)
  parts = rules.partition('lognormal_classes:2:5:0.5', train, None, 2000)
  dealt = np.concatenate(parts.train_indices)
  assert len(np.unique(dealt)) == len(dealt)
  counts = rules.counts(parts.train_indices, train, 10)
  assert ((counts > 0).sum(axis=1) == 2).all()
  halves = counts.max(axis=1)
  assert (counts.sum(axis=1) == 2 * halves).all()
  # Rounding down takes a half of a half on average.
  log_sizes = np.log(2 * halves + 1)
  assert abs(log_sizes.mean() - 5) < 0.03
  assert abs(log_sizes.std() - 0.5) < 0.02


def test_lognormal_classes_without_spread_have_sizes_by_hand(caplog):
  # 59 + exp(0) examples, 20 of each of 3 classes.
  train, test = rules.labels([200] * 5), rules.labels([30] * 5)
  parts = rules.partition('lognormal_classes:3:0:0:59', train, test, 10)
  counts = rules.counts(parts.train_indices, train, 5)
  assert (np.sort(counts, axis=1) == [0, 0, 20, 20, 20]).all()
  test_counts = rules.counts(parts.test_indices, test, 5)
  assert test_counts.sum(axis=0).tolist() == [30] * 5
  share = 30 / counts.sum(axis=0)
  assert np.abs(test_counts - counts * share).max() < 1
  assert not caplog.text
  # Of class 1 two clients want 30 each: the first is certain, and of the other
  # 29 each gets 8 / 58, and so it is for class 0.
  train = rules.labels([100, 10])
  parts = rules.partition('lognormal_classes:2:0:0:59', train, None, 2)
  assert rules.counts(parts.train_indices, train, 2).tolist() == [[5, 5]] * 2
  assert '0.14 of their sizes, as class 1 has only 10' in caplog.text
  # More than there are, and no overflow.
  parts = rules.partition('lognormal_classes:1:1e4:0', train, None, 2)
  assert sum(map(len, parts.train_indices)) > 0


@pytest.mark.parametrize('spec', ['iid', 'shards:2'])
def test_iid_and_as_many_shards_as_classes_give_every_client_the_same(spec):
  train = rules.labels([40, 80])
  parts = rules.partition(spec, train, None, 4)
  assert rules.counts(parts.train_indices, train, 2).tolist() == [[10, 20]] * 4
  # Not sorted by class.
  assert (np.diff(train[parts.train_indices[0]]) != 0).sum() > 3


def test_shards_of_unequal_classes_are_cut_to_nearly_equal_sizes():
  # 12 shards of 600 examples: 2, 4 and 6 of them give 50 each.
  train = rules.labels([100, 200, 300])
  parts = rules.partition('shards:2', train, None, 6)
  counts = rules.counts(parts.train_indices, train, 3)
  assert set(counts.ravel()) == {0, 50}
  assert (counts > 0).sum(axis=0).tolist() == [2, 4, 6]


@pytest.mark.parametrize(
  'per_client, num_clients, num_classes, owners',
  # The second as in FedRep's table.
  [(3, 7, 10, {2, 3}), (20, 100, 100, {20})],
)
def test_shards_are_of_distinct_classes_with_as_many_owners(
  per_client, num_clients, num_classes, owners
):
  train = rules.labels([500] * num_classes)
  parts = rules.partition(f'shards:{per_client}', train, None, num_clients)
  counts = rules.counts(parts.train_indices, train, num_classes)
  assert ((counts > 0).sum(axis=1) == per_client).all()
  assert {*(counts > 0).sum(axis=0)} == owners


def test_dirichlet_concentration_sets_how_unequal_clients_are():
  train = rules.labels([1000] * 10)
  spread = {}
  for concentration in (0.1, 1000.0):
    parts = rules.partition(f'dirichlet:{concentration}', train, None, 10)
    counts = rules.counts(parts.train_indices, train, 10)
    spread[concentration] = (counts.max(axis=1) / counts.sum(axis=1)).mean()
  assert spread[0.1] > 0.3
  assert spread[1000.0] < 0.12


def test_dirichlet_redraws_until_every_client_has_min_examples():
  train = rules.labels([100] * 10)
  parts = rules.partition('dirichlet:0.2:25', train, None, 10)
  assert min(len(i) for i in parts.train_indices) >= 25
  free = rules.partition('dirichlet:0.2:0', train, None, 10)
  assert min(len(i) for i in free.train_indices) < 25


def test_apportion_rounds_by_largest_remainder():
  rng = np.random.default_rng(0)
  weights = np.array([[0.5], [0.3], [0.2]])
  # Exact shares of 9: 4.5, 2.7, 1.8; the two largest remainders round up.
  counts = dealing.apportion(np.array([9]), weights, rng)
  assert counts.ravel().tolist() == [4, 3, 2]


def test_apportion_makes_up_for_rounding_in_the_next_class():
  rng = np.random.default_rng(0)
  weights = np.array([[0.6, 0.6], [0.4, 0.4]])
  counts = dealing.apportion(np.array([1, 1]), weights, rng)
  # Client 0 wins the first class (0.6), client 1 the second (0.4 + 0.4 owed).
  assert counts.tolist() == [[1, 0], [0, 1]]


@pytest.mark.parametrize('domain', [None, np.arange(187) % 7])
def test_hold_out_is_stratified_disjoint_and_complete(domain):
  labels = rules.labels([100, 50, 30, 7])
  clients = rules.partition('iid', labels, None, 3).train_indices
  parts = partitioning.hold_out(clients, labels, 0.25, seed=0, domain=domain)
  strata = labels if domain is None else domain
  for client, train, test in zip(clients, *parts):
    np.testing.assert_array_equal(
      np.sort(np.concatenate([train, test])), np.sort(client)
    )
    assert len(test) == round(0.25 * len(client))
    exact = np.bincount(strata[client]) * len(test) / len(client)
    counts = np.bincount(strata[test], minlength=len(exact))
    assert np.abs(counts - exact).max() < 1


@pytest.mark.parametrize(
  'size, fraction, num_test',
  [(0, 0.5, 0), (1, 0.9, 0), (2, 0.1, 1), (2, 0.99, 1), (10, 0.0, 0)],
)
def test_hold_out_of_tiny_clients(size, fraction, num_test):
  indices = [np.arange(size), np.arange(size, size + 10)]
  labels = np.zeros(size + 10, int)
  parts = partitioning.hold_out(indices, labels, fraction, seed=0)
  assert len(parts.test_indices[0]) == num_test
  assert len(parts.train_indices[0]) == size - num_test


def test_classes_per_client_covers_every_class_if_it_can():
  train = rules.labels([20] * 10)
  for seed in range(3):
    parts = rules.partition('classes_per_client:2', train, None, 5, seed=seed)
    counts = rules.counts(parts.train_indices, train, 10)
    assert (counts.sum(axis=0) == 20).all()


def test_regression_targets_are_dealt_by_rules_without_classes_only():
  targets = np.linspace(0, 1, 30)
  parts = rules.partition('iid', targets, targets[:7], 3)
  assert [len(i) for i in parts.train_indices] == [10] * 3
  assert sorted(len(i) for i in parts.test_indices) == [2, 2, 3]
  with pytest.raises(ValueError, match="found 'shards:2'"):
    rules.partition('shards:2', targets, None, 3)


@pytest.mark.parametrize(
  'spec, train, test, num_clients, match',
  [
    ('iid', [5, 6], [50, 60], 12, '`num_clients` to be at most 11, the'),
    ('shards:4', [5] * 3, [], 2, '`shards_per_client` to be at most 3.*und 4'),
    ('classes_per_client:4', [5] * 3, [], 2, '`num_classes_per_client` .*st 3'),
    ('lognormal_classes:2:0:0', [9, 2], [], 3, 'as class 1 has fewer training'),
    ('dirichlet:0.01:99', [100] * 10, [], 10, 'at least 99 of 1000.*fail 100'),
    # 5.5 of 99 and 2 of 48 images: at most 18 and 24, of which 18 is even.
    ('fallah_digits:20', [99] * 5 + [48] * 5, [], 10, 'at most 18, .*und 20'),
    *(
      ('fallah_digits:2', [99] * 10, [], n, f'an even number.*found {n}')
      for n in (8, 11)
    ),
    ('fallah_digits:2', [9] * 9, [], 10, '`y_train` to be of .*9 of 9'),
    ('fallah_digits:2', [99] * 10, [9] * 9, 10, '`y_test` to be of .*9 of 10'),
    ('domain_mixture:0.5', [4], [], 2, '`partition` .*without domains'),
  ],
)
def test_rules_that_cannot_be_met_are_one_line_errors(
  spec, train, test, num_clients, match
):
  train, test = rules.labels(train), rules.labels(test) if test else None
  with shared.one_line_error(match):
    rules.partition(spec, train, test, num_clients)


@pytest.mark.parametrize(
  'spec',
  [
    'iid',
    'shards:12',
    'dirichlet:0.5:10',
    'lognormal_classes:3:4.0:1.0',
    'domain_mixture:0.5',
    'domain_mixture:0.5:all:uniform',
    'domain_mixture:2.0:7:0.25/0.75',
  ],
)
def test_spec_round_trips_and_may_have_commas(spec):
  rule = partitioning.make_partitioner(spec)
  assert rule.spec == spec
  name, *parameters = spec.split(':')
  if parameters:
    spec = f'{name}:{",".join(parameters)}'
  assert partitioning.make_partitioner(spec) == rule
  assert partitioning.make_partitioner('shards').spec == 'shards:2'


def test_descriptions_are_the_rules_and_their_parameters_docstrings():
  text = partitioning.describe_partitioners()
  assert '; iid: The same class distribution and size for every client;' in text
  assert (
    'shards[:<shards_per_client>]: Single-class shards of equal size, the same'
    ' number for every client. shards_per_client (default 2): Number of shards,'
  ) in text
  for rule in partitioning.PARTITIONERS.values():
    assert f'{rule.usage()}: ' in text


@pytest.mark.parametrize(
  'spec, match',
  [
    ('foo:1', r'one of shards\[.*dirichlet:.*iid.*, found .foo:1.'),
    ('dirichlet', 'to be dirichlet:<concentration>.*found .dirichlet.'),
    ('shards:2:7', r"shards\[:<shards_per_client>\], found 'shards:2:7'"),
    ('shards:2.5', "`shards_per_client` to be an integer, found '2.5'"),
    ('dirichlet:x', "`concentration` to be a number, found 'x'"),
    ('domain_mixture:1,x', "`examples_per_client` to be an integer, found 'x'"),
    ('domain_mixture:1,2,even', "data or uniform or a list, found 'even'"),
    ('shards:0', "`shards_per_client` to be at least 1, found '0'"),
    ('classes_per_client:-1', "to be at least 1, found '-1'"),
    ('dirichlet:nan', "`concentration` to be greater than 0, found 'nan'"),
    # NumPy would never come back from it.
    ('dirichlet:1e-300', "`concentration` to be at least 1e-06, found '1e-3"),
    ('dirichlet:1:-2', '`min_examples` to be at least 0'),
    ('client_dirichlet:0', '`concentration` to be greater than 0'),
    ('domain_mixture:nan', '`concentration` to be greater than 0'),
    ('domain_mixture:1:0', '`examples_per_client` to be at least 1'),
    ('domain_mixture:1:all:0/0', '`prior` to be not all 0'),
    ('domain_mixture:1:all:2/-1', '`prior` to be .*at least 0'),
    ('lognormal:-1', "`sigma` to be at least 0, found '-1'"),
    ('lognormal_classes:0:4:1', '`num_classes_per_client` to be at least 1'),
    ('lognormal_classes:3:4:-1', '`log_std` to be at least 0'),
    ('fallah_digits:0', '`images_per_digit` to be at least 1'),
    ('fallah_digits:195', "`images_per_digit` to be a multiple of 2.*'195'"),
  ],
)
def test_bad_specifications_are_one_line_errors(spec, match):
  match = match.replace('` to be', '` in `partition` to be')
  with shared.one_line_error(match):
    partitioning.make_partitioner(spec)
