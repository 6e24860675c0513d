import numpy as np
import pytest

from tff_pfl.comparisons import tables


def _table():
  return tables.Table.from_rows(
    {'method': method, 'seed': seed, 'round': r, 'accuracy': base + seed + r}
    for method, base in (('FedRep', 0.0), ('FedAvg', 100.0))
    for r in (1, 5)
    # In any order.
    for seed in (3, 2)
  )


def test_values_come_by_seed():
  values = _table().values('accuracy', method='FedAvg', round=5)
  np.testing.assert_array_equal(values, [107, 108])


def test_a_curve_is_over_another_column():
  rounds, values = _table().curve('accuracy', 'round', method='FedRep')
  np.testing.assert_array_equal(rounds, [1, 5])
  np.testing.assert_array_equal(values, [[3, 7], [4, 8]])


def test_distinct_values_keep_their_order():
  assert _table().distinct('method') == ['FedRep', 'FedAvg']
  assert _table().distinct('seed', round=1) == [3, 2]


@pytest.mark.parametrize('fixed', [{'method': 'FedAvg'}, {'method': 'Ditto'}])
def test_values_are_of_one_row_a_seed(fixed):
  with pytest.raises(ValueError, match='one row of each seed'):
    _table().values('accuracy', **fixed)


def test_a_table_survives_json_with_what_rows_lack():
  rows = [
    {'layer': 'dense_1', 'cka': 0.5, 'seed': 0},
    {'layer': 2, 'seed': 1},
  ]
  table = tables.Table(tables.Table.from_rows(rows).columns())
  assert table.distinct('layer') == ['dense_1', 2]
  assert table.values('cka', layer='dense_1') == [0.5]
  assert np.isnan(table.values('cka', layer=2))
  assert table.rows()[0] == rows[0]
