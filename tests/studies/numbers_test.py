import json

import numpy as np
import pytest

from tff_pfl.runs import summary
from tff_pfl.studies import numbers

_NUMBERS = numbers.Numbers(
  dict(method=name, partition=of, round=r, accuracy=base + seed + r, seed=seed)
  for name, base in (('FedRep', 0.0), ('FedAvg', 100.0))
  for of in ('iid', 'shards:2')
  for r in (1, 5)
  # In any order.
  for seed in (3, 2)
)


def test_values_curves_and_leads_come_by_seed():
  actual = _NUMBERS.where(partition='iid')
  values = actual.values('accuracy', method='FedAvg', round=5)
  np.testing.assert_array_equal(values, [107, 108])
  curve = actual.curve('accuracy', 'round', method='FedRep')
  np.testing.assert_array_equal(curve, [[3, 7], [4, 8]])
  lead = actual.lead('accuracy', 5, 1, by='round', method='FedRep')
  np.testing.assert_array_equal(lead, [4, 4])
  for several_or_none in ('FedAvg', 'Ditto'):
    with pytest.raises(ValueError, match='one row of each seed'):
      _NUMBERS.values('accuracy', method=several_or_none)
  # Distinct values keep their order.
  assert actual.distinct('method') == ['FedRep', 'FedAvg']
  assert actual.distinct('seed', round=1) == [3, 2]


def test_seeds_that_one_of_two_lacks_are_left_out():
  actual = numbers.Numbers(
    {'method': method, 'seed': seed, 'score': score}
    for method, scores in (('A', (1, 2, 3)), ('B', (None, 30, 50)))
    for seed, score in enumerate(scores)
    if score is not None
  )
  np.testing.assert_array_equal(actual.lead('score', 'B', 'A'), [28, 47])
  np.testing.assert_array_equal(actual.values('score', method='B'), [30, 50])


def test_values_of_folds_are_means_over_them():
  actual = numbers.Numbers(
    {'seed': seed, 'fold': fold, 'method': method, 'score': score}
    for method, factor in (('A', 1), ('B', 2))
    for seed, scores in ((1, (5, 7)), (0, (1, 2)))
    for fold, score in enumerate(np.multiply(factor, scores))
  )
  np.testing.assert_array_equal(actual.values('score', method='A'), [1.5, 6])
  np.testing.assert_array_equal(actual.lead('score', 'B', 'A'), [1.5, 6])


def test_rows_may_lack_columns_also_after_they_are_stored():
  rows = [
    {'layer': 'dense_1', 'cka': 0.5, 'seed': 0},
    {'layer': 2, 'seed': 1},
  ]
  stored = summary.json_text(numbers.Numbers(rows).frame.to_dict('list'))
  for actual in (numbers.Numbers(rows), numbers.Numbers(json.loads(stored))):
    assert actual.distinct('layer') == ['dense_1', 2]
    assert actual.values('cka', layer='dense_1') == [0.5]
    assert np.isnan(actual.values('cka', layer=2))
