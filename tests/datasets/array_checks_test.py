import numpy as np
import pandas as pd
import pytest

from tests.datasets import shared
from tff_pfl.datasets import federated_dataset

FederatedDataset = federated_dataset.FederatedDataset


def _frame(values):
  """Columns of several kinds, which NumPy has in common as objects only."""
  flags = pd.array([True, False] * 3, 'boolean')
  b = pd.array(values, 'string' if isinstance(values[0], str) else 'Int64')
  return pd.DataFrame({'a': np.ones(6), 'b': b, 'c': flags})


_NAN = np.array([[0], [1], [np.nan], [np.nan], [4], [5]])


@pytest.mark.parametrize(
  'kwargs, match',
  [
    (dict(x=_NAN), r'`x\[2, 0\]` to be finite, as float32, found nan'),
    (dict(x=np.full((6, 1), 1e300)), r'`x\[0, 0\]` to be finite.*found 1e.300'),
    *(
      (dict(y=y, num_classes=num_classes), match)
      for y, num_classes, match in (
        ([0, 1, 2, 3, 1, 5], 3, r'`y\[3\]` .* integer in \[0, 3\), found 3'),
        ([0, 1, -1, 3, 1, 0], None, r'`y\[2\]` .* found -1'),
        ([0, 1, 1.5, 3, 1, 0], 4, r'`y\[2\]` .* found 1.5'),
        (list('abcabc'), 3, '`y` to be a rectangular array of numbers'),
        ([0, 1, 0, 1, 0, 5000], None, '`num_classes` to be given.*found 5000'),
      )
    ),
    (dict(x_test=[[0.0]], y_test=[9], num_classes=3), r'`y_test\[0\]`.* 9'),
    (dict(y=[0, 1]), r'`y` to be as long as `x` \(6 examples\), found 2'),
    (dict(x_test=np.zeros((2, 1)), y_test=[0]), '`y_test` .* as `x_test`'),
    (dict(x_test=np.zeros((2, 1))), '`y_test` to be a rect.*found .NoneType'),
    (dict(y_test=[0]), '`x_test` to be a rectangular .*found .NoneType'),
    (dict(x_test=np.zeros((2, 5)), y_test=[0, 0]), r'`x_test` to be of shape'),
    (dict(x_test=[[1], [2]], y_test=[0, 0]), '`x_test` to be .* float32'),
    (dict(x=np.zeros((0, 1)), y=np.zeros(0, int)), '`x` to be at least one'),
    (dict(x=[[1], [2, 3]], y=[0, 0]), '`x` to be a rectangular array'),
    (dict(x=1.0, y=0), r'`x` to be .* \[examples, ...\]'),
    (dict(num_classes=3.0), '`num_classes` to be an integer at least 1'),
    (dict(keys_test=[1]), '`keys` to be 6 integers or strings'),
    (dict(domain_names=['a']), 'if there are `domain_names`'),
    (dict(x={}), '`x` to be at least one kind of inputs'),
    (dict(num_clients=True), '`num_clients` to be an integer'),
    (dict(num_clients=None), '`num_clients` to be given .*`keys`'),
    (dict(seed=-1), '`seed` to be at least 0'),
    (dict(test_fraction=1.0), '`test_fraction` to be less than 1'),
    (dict(num_overlapping=1), '`num_overlapping` to be 0 if .*at random'),
    (dict(partition='shards:9'), '`shards_per_client` in .* to be at most 3'),
    (dict(client_ids=['a']), '`client_ids` to be 2 ids'),
    (dict(client_ids=['a', 'a']), '`client_ids` to be distinct'),
    (dict(keys=[1] * 5, num_clients=None), r'`keys` to be 6 .*shape \(5,\)'),
    (dict(keys=[1] * 6), '`num_clients` to be at most 1, the number'),
    (dict(keys=[1] * 6, keys_test=[1]), '`keys_test` to be 0 integers'),
    (dict(keys=[1, '1'] * 3, num_clients=None), '`keys` .* all of one type'),
    (dict(x=np.ma.ones([6, 1])), '`x` to be an array without a mask'),
    (dict(weight=[1, 2, 3, -0.5, 0, 1]), r'`weight\[3\]` .*negative, .*-0.5'),
    (dict(weight=np.ones([6, 1])), '`weight` to be one number per example'),
    (dict(x=_frame(list('abcdef'))), '`x` to be a rectangular array'),
    (dict(x=_frame([1, 2, None, 4, 5, 6])), r'`x\[2, 1\]` to be finite'),
  ],
)
def test_bad_arguments_are_one_line_errors(kwargs, match):
  x, y = shared.arrays(6)
  with shared.one_line_error(match):
    FederatedDataset.from_arrays(**{'x': x, 'y': y, 'num_clients': 2, **kwargs})


def test_columns_of_several_kinds_are_numbers():
  data = FederatedDataset.from_arrays(
    _frame([1, 2, 3, 4, 5, 6]), [0, 1] * 3, num_clients=1, test_fraction=0
  )
  x = data.train('client_0').x
  assert x.dtype == np.float32
  assert sorted(x.tolist()) == [[1, i, i % 2] for i in range(1, 7)]
