import tensorflow as tf

from tff_pfl.runtime import values


def _columns():
  """`<all=5, own=<a, b>>` at two clients."""
  return values.Columns(
    (values.AllEqual(5), values.PerClient([('a0', 'b0'), ('a1', 'b1')]))
  )


def test_rows_are_the_clients_local_values():
  assert values.rows(_columns(), 2) == [(5, ('a0', 'b0')), (5, ('a1', 'b1'))]
  assert values.rows(values.AllEqual(5), 2) == [5, 5]
  assert values.rows(values.PerClient([]), 0) == []


def test_select_takes_an_element_at_each_client():
  columns = _columns()
  assert columns.select(0) == values.AllEqual(5)
  assert columns.select(1).select(1) == values.PerClient(['b0', 'b1'])
  assert values.AllEqual((1, 2)).select(1) == values.AllEqual(2)


def test_zip_keeps_columns_as_they_are():
  column = values.PerClient([1, 2])
  zipped = values.zip_columns((column, (values.AllEqual(3), column)))
  assert zipped.select(0) is column
  assert zipped.row(1) == (2, (3, 2))


def test_only_columns_that_are_stored_once_are_all_equal():
  equal = values.Columns((values.AllEqual(1), values.AllEqual((2, 3))))
  assert values.is_all_equal(equal)
  assert values.shared_value(equal) == (1, (2, 3))
  assert not values.is_all_equal(_columns())
  assert not values.is_all_equal(values.PerClient([1, 1]))


def test_flatten_gives_tensors_in_order_and_variants_of_sequences():
  dataset = tf.data.Dataset.range(3)
  variant = tf.data.experimental.to_variant(dataset)
  one, two = tf.constant(1), tf.constant(2)
  value = (one, ((), values.Sequence(variant)), two)
  flat = values.flatten(value)
  assert [t is u for t, u in zip(flat, (one, variant, two))] == [True] * 3
