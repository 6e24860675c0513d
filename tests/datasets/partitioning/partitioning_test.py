"""Tests of the rules that make clients from central examples."""

import dataclasses

import numpy as np
import pytest

from tff_pfl.datasets import partitioning
from tff_pfl.datasets.partitioning import dealing

SPECS = [
  'shards:2',
  'shards:3',
  'classes_per_client:2',
  'dirichlet:0.5',
  'dirichlet:100.0',
  'lognormal:1.0',
  'iid',
]


def _labels(counts, seed=0):
  labels = np.repeat(np.arange(len(counts)), counts)
  return np.random.default_rng(seed).permutation(labels)


def _counts(indices, labels, num_classes):
  return np.array(
    [np.bincount(labels[i], minlength=num_classes) for i in indices]
  )


def _partition(spec, train, test, num_clients, seed=0, num_classes=None):
  pool = partitioning.Pool(train, test, num_classes)
  return partitioning.make_partitioner(spec).partition(pool, num_clients, seed)


@pytest.mark.parametrize('spec', SPECS)
@pytest.mark.parametrize('num_clients', [5, 17])
def test_every_example_is_dealt_exactly_once(spec, num_clients):
  train, test = _labels([50, 60, 70, 80]), _labels([13, 14, 15, 16])
  parts = _partition(spec, train, test, num_clients)
  for indices, labels in zip(parts, (train, test)):
    assert len(indices) == num_clients
    np.testing.assert_array_equal(
      np.sort(np.concatenate(indices)), np.arange(len(labels))
    )


@pytest.mark.parametrize('spec', [*SPECS, 'dirichlet:0.5:0'])
def test_more_clients_than_training_examples_are_refused(spec):
  train, test = _labels([5, 6]), _labels([50, 60])
  with pytest.raises(ValueError, match='`num_clients` to be at most 11, the'):
    _partition(spec.replace('shards:3', 'shards:1'), train, test, 12)


@pytest.mark.parametrize('spec', SPECS)
def test_test_counts_follow_training_counts_up_to_one_example(spec):
  train, test = _labels([400, 600, 800, 1000]), _labels([40, 60, 80, 100])
  parts = _partition(spec, train, test, 12)
  train_counts = _counts(parts.train_indices, train, 4)
  test_counts = _counts(parts.test_indices, test, 4)
  # Each class has a tenth as many test examples as training examples.
  assert np.abs(test_counts - train_counts / 10).max() < 1
  assert not test_counts[train_counts == 0].any()


@pytest.mark.parametrize('spec', SPECS)
def test_same_seed_same_partition_and_another_seed_another(spec):
  train, test = _labels([50, 60, 70, 80]), _labels([13, 14, 15, 16])
  first = _partition(spec, train, test, 6, seed=3)
  again = _partition(spec, train, test, 6, seed=3)
  other = _partition(spec, train, test, 6, seed=4)
  for split in range(2):
    for client in range(6):
      np.testing.assert_array_equal(first[split][client], again[split][client])
    assert any(
      not np.array_equal(a, b) for a, b in zip(first[split], other[split])
    )


def test_training_partition_does_not_depend_on_the_test_examples():
  train = _labels([50, 60])
  with_test = _partition('dirichlet:1.0', train, _labels([9, 7]), 4)
  without = _partition('dirichlet:1.0', train, None, 4)
  for a, b in zip(with_test.train_indices, without.train_indices):
    np.testing.assert_array_equal(a, b)
  assert [len(i) for i in without.test_indices] == [0] * 4


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


def test_apportion_gives_nothing_where_the_weight_is_zero():
  rng = np.random.default_rng(0)
  weights = np.array([[0.0, 1.0], [2.0, 0.0], [1.0, 0.0]])
  counts = dealing.apportion(np.array([10, 7]), weights, rng)
  assert counts.tolist() == [[0, 7], [7, 0], [3, 0]]


def test_apportion_keeps_totals_of_equal_clients_within_one():
  rng = np.random.default_rng(0)
  counts = dealing.apportion(np.full(10, 33), np.ones((20, 10)), rng)
  totals = counts.sum(axis=1)
  assert totals.min() == 16 and totals.max() == 17
  np.testing.assert_array_equal(counts.sum(axis=0), np.full(10, 33))


def test_shards_of_balanced_classes_are_equal_and_of_distinct_classes():
  train, test = _labels([100] * 10), _labels([20] * 10)
  parts = _partition('shards:2', train, test, 20)
  train_counts = _counts(parts.train_indices, train, 10)
  test_counts = _counts(parts.test_indices, test, 10)
  # 40 shards, 4 of each class: 25 training and 5 test examples each.
  assert set(train_counts.ravel()) == {0, 25}
  assert ((train_counts > 0).sum(axis=1) == 2).all()
  assert ((train_counts > 0).sum(axis=0) == 4).all()
  np.testing.assert_array_equal(test_counts, train_counts // 5)


def test_shards_of_unequal_classes_are_cut_to_nearly_equal_sizes():
  # 12 shards of 600 examples: 2, 4 and 6 of them give 50 each.
  train = _labels([100, 200, 300])
  parts = _partition('shards:2', train, None, 6)
  counts = _counts(parts.train_indices, train, 3)
  assert set(counts.ravel()) == {0, 50}
  assert (counts > 0).sum(axis=0).tolist() == [2, 4, 6]


def test_shards_that_do_not_divide_by_the_classes_still_have_distinct_classes():
  train = _labels([90] * 10)
  parts = _partition('shards:3', train, None, 7)
  counts = _counts(parts.train_indices, train, 10)
  assert ((counts > 0).sum(axis=1) == 3).all()
  owners = (counts > 0).sum(axis=0)
  assert owners.min() == 2 and owners.max() == 3


def test_as_many_shards_as_classes_gives_every_client_all_classes():
  train = _labels([12, 24, 36])
  parts = _partition('shards:3', train, None, 4)
  counts = _counts(parts.train_indices, train, 3)
  assert counts.tolist() == [[3, 6, 9]] * 4


def test_shards_pair_classes_at_random():
  train = _labels([100] * 10)
  parts = _partition('shards:2', train, None, 100)
  counts = _counts(parts.train_indices, train, 10)
  pairs = {tuple(np.flatnonzero(row)) for row in counts}
  assert len(pairs) > 25  # Of 45 pairs.


@pytest.mark.parametrize(
  'spec, name',
  [
    ('shards:4', 'shards_per_client'),
    ('classes_per_client:4', 'num_classes_per_client'),
  ],
)
def test_more_classes_per_client_than_exist_is_an_error(spec, name):
  with pytest.raises(ValueError, match=rf'`{name}` to be at most 3.*found 4'):
    _partition(spec, _labels([5, 5, 5]), None, 2)


@pytest.mark.parametrize('spec', ['shards:2', 'classes_per_client:2'])
def test_classes_that_nobody_can_own_are_left_out_with_a_warning(spec, caplog):
  train = _labels([10] * 5)
  parts = _partition(spec, train, train, 2)
  counts = _counts(parts.train_indices, train, 5)
  assert (counts.sum(axis=0) > 0).sum() == 4
  assert counts.sum() == 40
  assert 'has no place for the classes' in caplog.text


def test_classes_per_client_draws_distinct_classes_shared_evenly():
  train = _labels([120] * 6)
  parts = _partition('classes_per_client:2', train, None, 10)
  counts = _counts(parts.train_indices, train, 6)
  assert ((counts > 0).sum(axis=1) == 2).all()
  for column in counts.T:
    shares = column[column > 0]
    assert shares.max() - shares.min() <= 1
  assert len(set(counts.sum(axis=1))) > 1


@pytest.mark.parametrize('seed', range(10))
def test_classes_per_client_covers_every_class_if_it_can(seed):
  train = _labels([20] * 10)
  parts = _partition('classes_per_client:2', train, None, 5, seed=seed)
  counts = _counts(parts.train_indices, train, 10)
  assert (counts.sum(axis=0) == 20).all()


def test_dirichlet_concentration_sets_how_unequal_clients_are():
  train = _labels([1000] * 10)
  spread = {}
  for concentration in (0.1, 1000.0):
    parts = _partition(f'dirichlet:{concentration}', train, None, 10)
    counts = _counts(parts.train_indices, train, 10)
    spread[concentration] = (counts.max(axis=1) / counts.sum(axis=1)).mean()
  assert spread[0.1] > 0.3
  assert spread[1000.0] < 0.12


def test_dirichlet_redraws_until_every_client_has_min_examples():
  train = _labels([100] * 10)
  parts = _partition('dirichlet:0.2:25', train, None, 10)
  assert min(len(i) for i in parts.train_indices) >= 25
  free = _partition('dirichlet:0.2:0', train, None, 10)
  assert min(len(i) for i in free.train_indices) < 25


def test_dirichlet_that_never_meets_min_examples_is_an_error():
  with pytest.raises(ValueError, match='at least 99 of 1000.*fail 100 times'):
    _partition('dirichlet:0.01:99', _labels([100] * 10), None, 10)


def test_dirichlet_min_examples_beyond_the_data_is_an_error():
  with pytest.raises(ValueError, match='`min_examples` to be at most 2'):
    _partition('dirichlet:1:3', _labels([10, 10]), None, 10)


def test_lognormal_sizes_differ_but_classes_do_not():
  train = _labels([5000, 10000])
  parts = _partition('lognormal:1.0', train, None, 20)
  counts = _counts(parts.train_indices, train, 2)
  log_sizes = np.log(counts.sum(axis=1))
  assert 0.5 < log_sizes.std() < 1.5
  assert np.abs(counts[:, 1] - 2 * counts[:, 0]).max() <= 3


def test_lognormal_of_sigma_zero_is_iid_and_a_huge_sigma_does_not_overflow():
  train = _labels([100, 100])
  even = _partition('lognormal:0', train, None, 4)
  assert [len(i) for i in even.train_indices] == [50] * 4
  huge = _partition('lognormal:1e4', train, None, 4)
  assert sorted(len(i) for i in huge.train_indices) == [0, 0, 0, 200]


def test_iid_gives_every_client_the_same():
  train = _labels([40, 80])
  parts = _partition('iid', train, None, 4)
  assert _counts(parts.train_indices, train, 2).tolist() == [[10, 20]] * 4


def test_examples_of_a_client_are_not_sorted_by_class():
  train = _labels([500, 500])
  parts = _partition('iid', train, None, 2)
  labels = train[parts.train_indices[0]]
  assert (np.diff(labels) != 0).sum() > 100


def test_very_unequal_draws_leave_some_without_examples():
  parts = _partition('lognormal:50', _labels([20, 10]), None, 10)
  sizes = [len(i) for i in parts.train_indices]
  assert min(sizes) == 0 and sum(sizes) == 30
  assert all(i.dtype.kind == 'i' for i in parts.train_indices)


def test_regression_targets_are_dealt_by_rules_without_classes_only():
  targets = np.linspace(0, 1, 30)
  parts = _partition('iid', targets, targets[:7], 3)
  assert [len(i) for i in parts.train_indices] == [10] * 3
  assert sorted(len(i) for i in parts.test_indices) == [2, 2, 3]
  with pytest.raises(ValueError, match="found 'shards:2'"):
    _partition('shards:2', targets, None, 3)


def test_fallah_digits_has_the_papers_counts():
  # Classes as scarce as they may be: 5,390 and 1,960 training images.
  train, test = _labels([5390] * 5 + [1960] * 5), _labels([1000] * 10)
  parts = _partition('fallah_digits:196', train, test, 50)
  counts = _counts(parts.train_indices, train, 10)
  assert counts[:25].tolist() == [[196] * 5 + [0] * 5] * 25
  assert (np.sort(counts[25:, :5]) == [0, 0, 0, 0, 98]).all()
  assert (np.sort(counts[25:, 5:]) == [0, 0, 0, 0, 392]).all()
  # Each of the 25 pairs of one class of 0-4 and one of 5-9 once.
  pairs = {tuple(np.flatnonzero(row)) for row in counts[25:]}
  assert len(pairs) == 25


@pytest.mark.parametrize('num_clients', [10, 14, 36, 70])
def test_fallah_digits_covers_classes_evenly(num_clients):
  train = _labels([400] * 10)
  parts = _partition('fallah_digits:2', train, None, num_clients)
  half = num_clients // 2
  counts = _counts(parts.train_indices, train, 10)[half:]
  owners = (counts > 0).sum(axis=0)
  assert owners[:5].sum() == owners[5:].sum() == half
  for group in (owners[:5], owners[5:]):
    assert group.max() - group.min() <= 1
  pairs = [tuple(np.flatnonzero(row)) for row in counts]
  assert len(set(pairs)) == min(half, 25)


def test_fallah_digits_deals_no_example_twice_and_leaves_the_rest_out(caplog):
  train, test = _labels([90] * 10), _labels([30] * 10)
  parts = _partition('fallah_digits:6', train, test, 10)
  for indices in parts:
    dealt = np.concatenate(indices)
    assert len(np.unique(dealt)) == len(dealt)
  assert sum(len(i) for i in parts.train_indices) == 5 * 30 + 5 * 15
  assert [len(i) for i in parts.train_indices] == [30] * 5 + [15] * 5
  assert caplog.text == ''


@pytest.mark.parametrize(
  'test_counts, factor',
  [
    ([200] * 10, 1 / 5),
    # All test images of the class 3, of which there is not a fifth.
    ([240, 240, 240, 33, 236] + [200] * 5, 33 / 220),
    ([1000] * 10, 1.0),
  ],
)
def test_fallah_digits_test_counts_follow_training_counts(test_counts, factor):
  train, test = _labels([1000] * 10), _labels(test_counts)
  parts = _partition('fallah_digits:40', train, test, 10)
  counts = _counts(parts.train_indices, train, 10)
  assert counts.sum(axis=0).tolist() == [220] * 5 + [80] * 5
  test_counts = _counts(parts.test_indices, test, 10)
  assert np.abs(test_counts - factor * counts).max() < 1
  np.testing.assert_array_equal(test_counts > 0, counts > 0)


def test_fallah_digits_is_a_function_of_the_seed():
  train, test = _labels([90] * 10), _labels([30] * 10)
  first, again, other = (
    _partition('fallah_digits:6', train, test, 10, seed=seed)
    for seed in (1, 1, 2)
  )
  for split in range(2):
    for a, b in zip(first[split], again[split]):
      np.testing.assert_array_equal(a, b)
    assert not np.array_equal(first[split][0], other[split][0])
  classes, other_classes = (
    [set(train[i]) for i in parts.train_indices[5:]] for parts in (first, other)
  )
  assert classes != other_classes


def test_fallah_digits_of_more_images_than_there_are_names_the_most():
  train = _labels([99] * 5 + [48] * 5)
  # 5.5 of 99 and 2 of 48 images: at most 18 and 24, of which 18 is even.
  with pytest.raises(ValueError, match='to be at most 18, .* 10 .* found 20'):
    _partition('fallah_digits:20', train, None, 10)
  parts = _partition('fallah_digits:18', train, None, 10)
  assert _counts(parts.train_indices, train, 10).sum() == 5 * 99 + 5 * 36
  with pytest.raises(ValueError, match='`num_clients` to be smaller.* 92'):
    _partition('fallah_digits:2', train, None, 92)


@pytest.mark.parametrize('num_clients', [1, 2, 8, 11])
def test_fallah_digits_of_an_odd_or_small_number_of_clients_is_an_error(
  num_clients,
):
  with pytest.raises(
    ValueError, match=f'`num_clients` to be an even .*10.*found {num_clients}'
  ):
    _partition('fallah_digits:2', _labels([99] * 10), None, num_clients)


@pytest.mark.parametrize(
  'counts, num_classes, found',
  [
    ([9] * 9, None, '9 of 9 classes'),
    ([9] * 11, None, '11 of 11 classes'),
    ([9] * 9, 10, '9 of 10 classes'),
    ([9] * 10, 20, '10 of 20 classes'),
  ],
)
def test_fallah_digits_needs_ten_classes_with_examples(
  counts, num_classes, found
):
  with pytest.raises(
    ValueError, match=f'`y_train` to be of exactly 10 classes.*{found}'
  ):
    _partition(
      'fallah_digits:2', _labels(counts), None, 10, num_classes=num_classes
    )


def test_fallah_digits_needs_test_examples_of_every_class_or_none():
  with pytest.raises(ValueError, match='`y_test` to be of .*9 of 10 classes'):
    _partition('fallah_digits:2', _labels([99] * 10), _labels([9] * 9), 10)


def test_by_key_makes_a_client_of_each_key_in_sorted_order():
  rule = partitioning.ByKey(['b', 'a', 'b', 'c'], ['d', 'b'])
  parts = rule.partition(partitioning.Pool(np.zeros(4), np.zeros(2)))
  assert rule.client_ids(4) == ['a', 'b', 'c', 'd']
  assert [i.tolist() for i in parts.train_indices] == [[1], [0, 2], [3], []]
  assert [i.tolist() for i in parts.test_indices] == [[], [1], [], [0]]


def test_by_key_sorts_integers_as_numbers():
  rule = partitioning.ByKey(np.array([10, 9, 10]))
  assert rule.client_ids(2) == ['9', '10']


@pytest.mark.parametrize(
  'keys, test_keys, match',
  [
    ([0.5, 1.0], None, '`keys` to be integers or strings'),
    ([[1], [2]], None, '`keys` to be integers or strings'),
    ([], None, '`keys` to be integers or strings'),
    ([1, 2], ['a'], '`test_keys` to be of the kind of `keys`'),
  ],
)
def test_by_key_refuses_keys_of_the_wrong_kind(keys, test_keys, match):
  with pytest.raises(ValueError, match=match):
    partitioning.ByKey(keys, test_keys)


def test_by_key_needs_one_key_per_example():
  with pytest.raises(ValueError, match='`keys` to be 3 keys.*found 2'):
    partitioning.ByKey([1, 2]).partition(partitioning.Pool(np.zeros(3)))
  with pytest.raises(ValueError, match='`test_keys` to be 1 keys.*found 0'):
    partitioning.ByKey([1, 2]).partition(
      partitioning.Pool(np.zeros(2), np.zeros(1))
    )


def test_by_key_refuses_another_number_of_clients():
  with pytest.raises(ValueError, match='distinct keys, 2, found 5'):
    partitioning.ByKey([1, 2]).partition(partitioning.Pool(np.zeros(2)), 5)


def test_natural_deals_no_pooled_examples():
  rule = partitioning.make_partitioner('natural')
  assert rule == partitioning.Natural() and rule.spec == 'natural'
  with pytest.raises(ValueError, match='deals pooled .*`keys`') as error:
    rule.partition(partitioning.Pool(_labels([5, 5])), 2)
  assert '\n' not in str(error.value)


@pytest.mark.parametrize('per_client', [5, 20])
def test_shards_of_a_hundred_classes_as_in_fedreps_table(per_client):
  train, test = _labels([500] * 100), _labels([100] * 100)
  parts = _partition(f'shards:{per_client}', train, test, 100)
  for indices, labels, size in zip(parts, (train, test), (500, 100)):
    counts = _counts(indices, labels, 100)
    assert set(counts.ravel()) == {0, size // per_client}
    assert ((counts > 0).sum(axis=1) == per_client).all()
    assert ((counts > 0).sum(axis=0) == per_client).all()


@pytest.mark.parametrize('num_clients', [0, -1, 2.5, True, None])
def test_num_clients_must_be_a_positive_integer(num_clients):
  with pytest.raises(ValueError, match='`num_clients` to be a positive'):
    _partition('iid', np.zeros(3, int), None, num_clients)


@pytest.mark.parametrize('seed', [-1, 0.5, None])
def test_seed_must_be_a_non_negative_integer(seed):
  with pytest.raises(ValueError, match='`seed` to be a non-negative'):
    _partition('iid', np.zeros(3, int), None, 2, seed=seed)


def test_labels_beyond_num_classes_and_empty_data_are_errors():
  with pytest.raises(ValueError, match=r'labels in \[0, 2\)'):
    _partition('iid', np.array([0, 2]), None, 1, num_classes=2)
  with pytest.raises(ValueError, match='at least one example'):
    _partition('iid', np.zeros(0, int), None, 1)


@pytest.mark.parametrize(
  'spec', SPECS + ['dirichlet:0.5:10', 'shards:12', 'fallah_digits:196']
)
def test_spec_round_trips(spec):
  partitioner = partitioning.make_partitioner(spec)
  assert partitioner.spec == spec
  assert partitioning.make_partitioner(partitioner.spec) == partitioner


def test_partitioners_are_frozen():
  with pytest.raises(dataclasses.FrozenInstanceError):
    partitioning.Shards(2).shards_per_client = 3


def test_shards_default_to_two():
  assert partitioning.make_partitioner('shards') == partitioning.Shards(2)


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
    ('shards:0', '`shards_per_client` to be a positive integer, found 0'),
    ('classes_per_client:-1', 'a positive integer, found -1'),
    ('dirichlet:0', '`concentration` to be a positive number.*, found 0.0'),
    ('dirichlet:nan', '`concentration` to be a positive number.*, found nan'),
    # NumPy would never come back from it.
    ('dirichlet:1e-300', '`concentration` to be .* at least 1e-06, found 1e-3'),
    ('dirichlet:1:-2', '`min_examples` to be a non-negative'),
    ('lognormal:-1', '`sigma` to be a non-negative number, found -1.0'),
    ('lognormal:inf', '`sigma` to be a non-negative number, found inf'),
    ('fallah_digits', 'with a value for images_per_digit'),
    ('fallah_digits:0', '`images_per_digit` to be a positive integer, found 0'),
    ('fallah_digits:-2', '`images_per_digit` to be a positive integer'),
    ('fallah_digits:195', '`images_per_digit` to be an even .* found 195'),
    ('fallah_digits:2.0', "`images_per_digit` .* an integer, found '2.0'"),
    ('by_key', 'pass one key per example as `keys`'),
  ],
)
def test_bad_specifications_are_one_line_errors(spec, match):
  with pytest.raises(ValueError, match=match) as error:
    partitioning.make_partitioner(spec)
  assert '\n' not in str(error.value)


def test_a_specification_must_be_a_string():
  with pytest.raises(TypeError, match='`partition` to be a string'):
    partitioning.make_partitioner(2)


def test_description_names_every_rule_in_one_paragraph():
  text = partitioning.describe_partitioners()
  assert all(name in text for name in partitioning.PARTITIONERS)
  assert '\n' not in text


def test_hold_out_is_stratified_disjoint_and_complete():
  labels = _labels([100, 50, 30, 7])
  clients = _partition('iid', labels, None, 3).train_indices
  parts = partitioning.hold_out(clients, labels, 0.25, seed=0)
  for client, train, test in zip(clients, *parts):
    np.testing.assert_array_equal(
      np.sort(np.concatenate([train, test])), np.sort(client)
    )
    assert len(test) == round(0.25 * len(client))
    exact = np.bincount(labels[client], minlength=4) * len(test) / len(client)
    counts = np.bincount(labels[test], minlength=4)
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


def test_hold_out_depends_on_the_seed_only():
  labels = _labels([50, 50])
  indices = [np.arange(100)]
  first = partitioning.hold_out(indices, labels, 0.2, seed=1)
  again = partitioning.hold_out(indices, labels, 0.2, seed=1)
  other = partitioning.hold_out(indices, labels, 0.2, seed=2)
  np.testing.assert_array_equal(first.test_indices[0], again.test_indices[0])
  assert not np.array_equal(first.test_indices[0], other.test_indices[0])


def test_hold_out_is_stratified_by_domain():
  labels, domain = _labels([100, 50]), np.arange(150) % 7
  clients = _partition('iid', labels, None, 3).train_indices
  parts = partitioning.hold_out(clients, labels, 0.25, seed=0, domain=domain)
  for client, test in zip(clients, parts.test_indices):
    exact = np.bincount(domain[client], minlength=7) * len(test) / len(client)
    counts = np.bincount(domain[test], minlength=7)
    assert np.abs(counts - exact).max() < 1
