import dataclasses

import numpy as np
import pytest

from tests.datasets import shared
from tff_pfl.datasets import arrays as arrays_lib
from tff_pfl.datasets.sources import images


def _arrays(**kwargs):
  # Each input tells its own index, so that it can be followed.
  arguments = dict(
    name='mine',
    x=np.arange(40, dtype=np.uint8)[:, np.newaxis],
    y=np.arange(40) % 4,
    x_test=np.arange(100, 112, dtype=np.uint8)[:, np.newaxis],
    y_test=np.arange(100, 112) % 4,
    num_classes=4,
    transform=images.to_unit_interval,
  )
  return arrays_lib.Arrays(**{**arguments, **kwargs})


@pytest.mark.parametrize(
  'shape, axes',
  [((5, 2, 3, 2), (0, 1, 2)), ((5, 2, 3), (0, 1, 2)), ((5, 4), 0)],
)
def test_normalized_inputs_have_mean_0_and_deviation_1_in_training(shape, axes):
  rng = np.random.default_rng(0)
  x, x_test = (rng.integers(0, 256, shape, np.uint8) for _ in range(2))
  x[..., 0] = 7  # A constant, where it is a channel or column.
  y = np.arange(5) % 4
  arrays = _arrays(x=x, y=y, x_test=x_test, y_test=y).normalized()
  assert arrays.x is x  # They stay compact.
  actual = arrays.transform(x)
  assert actual.dtype == np.float32
  np.testing.assert_allclose(actual.mean(axis=axes), 0, atol=1e-5)
  deviations = np.atleast_1d(actual.std(axis=axes))
  varies = np.ones(len(deviations))
  if len(varies) > 1:
    varies[0] = 0
  np.testing.assert_allclose(deviations, varies, atol=1e-5)
  # The test examples are moved by the same numbers.
  unit = x / 255
  scale = np.where(unit.std(axis=axes) > 1e-6, unit.std(axis=axes), 1)
  np.testing.assert_allclose(
    arrays.transform(x_test),
    (x_test / 255 - unit.mean(axis=axes)) / scale,
    atol=1e-4,
  )


def _domain_arrays(**kwargs):
  arguments = dict(
    domain=np.arange(40) % 3,
    domain_test=np.arange(12) % 3,
    domain_names=['a', 'b', 'c'],
    weight=np.arange(40) / 10,
    weight_test=np.arange(100, 112) / 10,
    client=list(range(4)) * 10,
    client_test=[1] * 12,
  )
  return _arrays(**{**arguments, **kwargs})


def test_domains_follow_their_examples_into_a_subset():
  arrays = _domain_arrays()
  assert arrays.domain.dtype == arrays.domain_test.dtype == np.int32
  assert arrays.domain_names == ('a', 'b', 'c')
  some = arrays.class_subset([3, 1])
  assert some.x.ravel().tolist() == list(range(1, 40, 2))
  assert some.y.tolist() == [1, 3] * 10
  assert some.x_test.ravel().tolist() == list(range(101, 112, 2))
  assert some.num_classes == 4
  np.testing.assert_array_equal(some.domain, some.x.ravel() % 3)
  np.testing.assert_array_equal(some.domain_test, (some.x_test.ravel() - 1) % 3)
  np.testing.assert_allclose(some.weight, some.x.ravel() / 10)
  assert some.client.tolist() == [1, 3] * 10


def test_test_fraction_pools_all_examples_and_holds_out_of_each_client():
  arrays = _domain_arrays(transform=np.float32)
  dataset = arrays.to_clients(2, 'iid', seed=1, test_fraction=0.5)
  train, test = shared.inputs(dataset, 'train'), shared.inputs(dataset, 'test')
  assert [len(part) for part in train + test] == [13] * 4
  assert sorted(sum(train + test, [])) == [*range(40), *range(100, 112)]
  # Either set has examples that were of the other.
  assert max(map(max, train)) >= 100 > min(map(min, test))
  for read, parts in ((dataset.train, train), (dataset.test, test)):
    for client_id, inputs in zip(dataset.client_ids, parts):
      part = read(client_id)
      assert part.y.tolist() == [i % 4 for i in inputs]
      assert part.domain.tolist() == [(i - (i >= 100)) % 3 for i in inputs]
      np.testing.assert_allclose(part.weight, np.array(inputs) / 10)
  # Stratified by domain.
  counts = dataset.domain_counts('train') - dataset.domain_counts('test')
  assert np.abs(counts).max() <= 1


@pytest.mark.parametrize(
  'change, match',
  [
    ({'domain': None}, '`domain` to be a rect.*found .NoneType'),
    ({'domain_test': None}, '`domain_test` to be a rect.*found .NoneType'),
    ({'domain': np.zeros(39, int)}, '`domain` to be as long as `x` .*found 39'),
    ({'domain': [3] * 40}, r'`domain\[0\]` to be .* in \[0, 3\), found 3'),
    ({'domain_test': [0] * 11 + [-1]}, r'`domain_test\[11\]` to .*, found -1'),
    ({'domain': np.full(40, 0.5)}, r'`domain\[0\]` to be a domain id'),
    (
      {'domain': np.zeros((40, 1), int)},
      r'number per example, found .*\(40, 1\)',
    ),
    *(
      ({'domain_names': names}, '`domain_names` to be a list of distinct names')
      for names in (['a', 'b', 'a'], 'abc', [], [1, 2, 3])
    ),
    ({'domain': [10**6] * 40, 'domain_names': None}, 'if ids .* 1000000'),
  ],
)
def test_inconsistent_domains_are_one_line_errors(change, match):
  with shared.one_line_error(match):
    _domain_arrays(**change)


@pytest.mark.parametrize(
  'call, match',
  [
    *(
      (lambda a, c=c: a.class_subset(c), r'integers in \[0, 4\)')
      for c in ([], [4], ['1'])
    ),
    (
      lambda a: dataclasses.replace(
        a, y=np.zeros((40, 2)), y_test=np.zeros((12, 2))
      ).class_subset([0]),
      '`classes` to be unset .* several labels',
    ),
    (lambda a: a.to_clients(test_fraction=1), '`test_fraction` .* less than 1'),
    (lambda a: a.to_clients(2, 5), '`partition` to be a partitioner or a text'),
    (
      lambda a: dataclasses.replace(a, transform=None).normalized(),
      'normalize.* false for .mine',
    ),
  ],
)
def test_mistakes_are_one_line_errors(call, match):
  with shared.one_line_error(match, (ValueError, TypeError)):
    call(_arrays())
