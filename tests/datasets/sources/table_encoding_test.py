"""Tests of what rows of tables become."""

import dataclasses
import json
import logging

import numpy as np
import pandas as pd
import pytest

from tests.datasets import shared
from tff_pfl.datasets.sources import table_encoding, table_files


def _table(heading, *rows):
  table = pd.DataFrame([*map(list, rows)], columns=[*heading], dtype=str)
  table = table.mask(table == '')
  table.attrs['path'] = 'a.csv'
  return table


def _columns(label='y', **columns):
  return table_encoding.Columns(label, **columns)


def _fitted(table, label='y', moments=(0, 1), **columns):
  """The encoding of a table, with the same mean and deviation throughout."""
  columns = _columns(label, **columns)
  columns.check(table)
  table = columns.used_rows(columns.with_names(table), None)
  encoding = table_encoding.fit(table, columns)
  size = len(encoding.numbers) + (not encoding.classes)
  means, deviations = ([moment] * size for moment in moments)
  return dataclasses.replace(encoding, means=means, deviations=deviations)


def _labels(table, encoding):
  return encoding.labels(encoding.columns.used_rows(table, None))


def _inputs(table, encoding=None, **columns):
  encoding = encoding or _fitted(table, **columns)
  return encoding.inputs(encoding.encode(table)).tolist()


def test_inputs_are_numbers_then_words_then_indicators():
  table = _table(
    ('n', 'w', 'y'), ('1', 'b', '0'), ('', 'a', '1'), ('3', '', '1')
  )
  encoding = _fitted(table, moments=(1, 2), missing_indicators=True)
  assert encoding.input_names == [
    'n',
    'w=a',
    'w=b',
    'n is missing',
    'w is missing',
  ]
  assert _inputs(table, encoding) == [
    [0, 0, 1, 0, 0],
    [0, 1, 0, 1, 0],
    [1, 0, 0, 0, 1],
  ]


def test_zeros_can_stand_for_missing_values():
  table = _table(('n', 'm', 'y'), ('0', '0', '0'), ('5', '1', '1'))
  rows = _fitted(table, zero_is_missing=['n']).encode(table)
  np.testing.assert_array_equal(rows.numbers, [[np.nan, 0], [5, 1]])


def test_number_codes_are_sorted_by_value():
  table = _table(('c', 'y'), ('10', '0'), ('9', '1'), ('-1', '1'))
  assert _inputs(table, categorical=['c']) == np.eye(3)[::-1].tolist()


def test_columns_that_are_dropped_or_have_another_meaning_are_no_inputs():
  heading = ('n', 'who', 'where', 's', 'y', 'z')
  table = _table(
    heading, ('1', 'a', 'b', 'train', '0', 'q'), ('2', 'c', 'd', 'x', '1', 'r')
  )
  named = dict(domain='where', client='who', split='s')
  assert _fitted(table, drop=['z'], **named).input_names == ['n']
  with pytest.raises(ValueError, match='a column that is an input'):
    _fitted(table, drop=['z', 'n'], **named)


def test_rare_words_share_an_input_with_those_of_new_rows():
  table = _table(('w', 'y'), *zip('aabbcd', '010101'))
  encoding = _fitted(table, min_category_count=2)
  assert encoding.input_names == ['w=a', 'w=b', 'other w']
  new = _table(('w',), ('b',), ('d',), ('new',), ('',))
  assert _inputs(new, encoding) == [[0, 1, 0], [0, 0, 1], [0, 0, 1], [0, 0, 0]]


def test_new_words_are_none_of_those_known_with_a_warning(caplog):
  table = _table(('w', 'c', 'y'), ('a', '3', '0'), ('b', '4', '1'))
  encoding = _fitted(table, categorical=['c'])
  new = _table(('w', 'c'), ('b', '3.0'), ('z', '4.5'))
  with caplog.at_level(logging.WARNING):
    # Codes are equal by value: 3.0 is 3.
    assert _inputs(new, encoding) == [[0, 1, 1, 0], [0, 0, 0, 0]]
  assert "in column w, 1 cells, such as 'z' in row 2 after" in caplog.text


def test_an_encoding_is_the_same_after_it_was_json():
  table = _table(
    ('n', 'w', 'd', 'y'), ('1', 'b', 'p', '0'), ('2.5', 'a', 'q', '1')
  )
  encoding = _fitted(
    table,
    moments=(0.1, 1 / 3),
    domain='d',
    renamed={'w': {'a': 'c'}},
    form=table_files.Format(missing_markers=['-9']),
  )
  table = encoding.columns.with_names(table)
  again = table_encoding.TableEncoding.from_json(json.loads(encoding.text))
  assert again.text == encoding.text
  assert _inputs(table, again) == _inputs(table, encoding)
  assert again.input_names == ['n', 'w=b', 'w=c']
  assert again.encode(table).domain.tolist() == [0, 1]


@pytest.mark.parametrize(
  'labels, columns, classes, expected',
  [
    (['0', '1', '1'], {}, '0 1', [0, 1, 1]),
    (['1', '2', '1'], {}, '1 2', [0, 1, 0]),
    (['yes', 'no', 'yes'], {}, 'no yes', [1, 0, 1]),
    (['mid', 'low', 'top', 'low'], {}, 'low mid top', [1, 0, 2, 0]),
    (['-1', '1.0', '1'], {}, '-1 1', [0, 1, 1]),
    (['10', '9', '2'], {}, '2 9 10', [2, 1, 0]),
    (['0.5', '0.25', '0.5'], {}, '0.25 0.5', [1, 0, 1]),
    (
      ['0', '3', '1.5', '2'],
      {'label_above': 1.5},
      'y<=1.5 y>1.5',
      [0, 1, 0, 1],
    ),
    (['b', 'a', 'c', ''], {'label_values': ['b', 'a']}, 'b a', [0, 1]),
    (['b', '', 'a'], {'missing_label': 'drop'}, 'a b', [1, 0]),
    (
      ['7', '', '5'],
      {'label_above': 6, 'missing_label': 'drop'},
      'y<=6 y>6',
      [1, 0],
    ),
    (['2', '1.0'], {'label_values': ['2', '1']}, '1 2', [1, 0]),
    (
      ['>5', '<=5', '>5'],
      {'label_values': ['>5:1', '<=5:0']},
      '0 1',
      [1, 0, 1],
    ),
    (
      ['a', 'b', 'c'],
      {'label_values': ['c:good', 'a:bad', 'b:good']},
      'good bad',
      [1, 0, 0],
    ),
  ],
)
def test_labels_are_classes_in_sorted_order_unless_told(
  labels, columns, classes, expected
):
  table = _table(('x', 'y'), *(('1', label) for label in labels))
  encoding = _fitted(table, **columns)
  assert encoding.classes == classes.split()
  y = _labels(table, encoding)
  assert y.tolist() == expected and y.dtype == np.int32
  assert encoding.target(y) is y


def test_many_numbers_as_classes_are_warned_of(caplog):
  with caplog.at_level(logging.WARNING):
    _fitted(_table(('x', 'y'), *(('1', str(i)) for i in range(21))))
  assert '21 different numbers of column y' in caplog.text


def test_several_labels_are_of_the_same_two_classes():
  table = _table(
    ('a', 'x', 'b'), ('no', '1', 'yes'), ('yes', '2', 'no'), ('', '3', 'no')
  )
  columns = dict(label='a,b', task='multilabel', label_values=['no', 'yes'])
  encoding = _fitted(table, **columns)
  assert (encoding.input_names, encoding.classes) == (['x'], ['no', 'yes'])
  assert _labels(table, encoding).tolist() == [[0, 1], [1, 0]]
  with pytest.raises(ValueError, match="`label_column`.*, found 'c'"):
    _fitted(table, **{**columns, 'label': 'a,c'})
  for label in ('a', 'a,a'):
    with pytest.raises(ValueError, match='two or more different columns'):
      _fitted(table, **{**columns, 'label': label})
  table = _table(('a', 'b', 'x'), ('0', '1', '1'), ('1', '2', '2'))
  with pytest.raises(ValueError, match='same two words.*0, 1 in a; 1, 2 in b'):
    _fitted(table, label='a,b', task='multilabel')


def test_regression_learns_standardized_labels_and_predicts_their_unit():
  table = _table(('x', 'y'), ('1', '10'), ('2', '20.5'))
  encoding = _fitted(table, moments=(10, 2), task='regression')
  assert encoding.classes == []
  labels = encoding.labels(table)
  assert labels.tolist() == [10, 20.5]
  target = encoding.target(labels)
  assert target.tolist() == [0, 5.25] and target.dtype == np.float32
  assert encoding.label(target).tolist() == [10, 20.5]


@pytest.mark.parametrize(
  'labels, columns, match',
  [
    (['0', '', '1'], {}, 'a y in every row, found none in row 2'),
    (['0', '1', '1.5'], {}, "found '1.5' in row 3 .*regression.*`label_above`"),
    (['1', '2', 'x'], {}, "words alone, as y, found 'x' in row 3"),
    (['1', '1', '1'], {}, 'two or more classes by y, found one'),
    (
      ['1', '2', '3'],
      {'label_above': 7},
      'two or more classes by y, found one',
    ),
    (
      ['1', 'x', '3'],
      {'label_above': 2},
      "numbers in column y, found 'x' in r",
    ),
    (['1', 'x'], {'task': 'regression'}, "found 'x' in row 2 .*regression"),
    (
      ['1', ''],
      {'task': 'regression'},
      'a y in every row, found none in row 2',
    ),
    (list(map(str, range(101))), {}, "100 classes .`task='regression'` .*101"),
    (['a', 'b'], {'label_values': ['a', 'c']}, "`label_values` .*found 'c'"),
    (
      ['a', 'b'],
      {'label_values': ['a', 'a']},
      '`label_values` to be different',
    ),
    (['a', 'b'], {'label_values': ['a:x', 'b:']}, '`label_values` to be diff'),
    (['a', 'b'], {'label_values': [':x', 'b']}, '`label_values` to be diff'),
    (['', ''], {'missing_label': 'drop'}, 'rows that are not left out'),
    (['a', 'b'], {'label_values': ['a:x', 'b:x']}, 'two or more classes'),
  ],
)
def test_labels_of_another_kind_are_errors(labels, columns, match):
  table = _table(('x', 'y'), *(('1', label) for label in labels))
  with shared.one_line_error(match):
    _labels(table, _fitted(table, **columns))


@pytest.mark.parametrize(
  'columns, match',
  [
    ({'task': 'ranking'}, '`task` to be one of classification, regression'),
    ({'missing_domain': 'skip'}, '`missing_domain` to be one of error, drop'),
    ({'missing_label': 'skip'}, '`missing_label` to be one of error, drop'),
    ({'min_category_count': 0}, '`min_category_count`'),
    (
      {'task': 'regression', 'label_above': 0.0},
      '`label_above` to be unset with `task` regression',
    ),
    (
      {'label_values': ['a'], 'label_above': 1},
      '`label_values` to be unset with .* `label_above`',
    ),
  ],
)
def test_options_that_contradict_are_one_line_errors(columns, match):
  with shared.one_line_error(match):
    _columns('y', **columns)


@pytest.mark.parametrize(
  'bounds, how, names, expected',
  [
    ((), 'drop', ['1', '9'], [1, 0]),
    ((), 'value', ['(missing)', '1', '9'], [2, 0, 1]),
    ((5,), 'drop', ['d<5', 'd>=5'], [1, 0]),
    ((5,), 'value', ['d<5', 'd>=5', '(missing)'], [1, 2, 0]),
  ],
)
def test_rows_without_domain_are_left_out_or_a_domain(
  bounds, how, names, expected
):
  table = _table(('d', 'x', 'y'), *zip(['9', '', '1'], '123', '011'))
  encoding = _fitted(
    table, domain='d', domain_bounds=bounds, missing_domain=how
  )
  assert encoding.domains == names
  used = encoding.columns.used_rows(table, None)
  assert encoding.encode(used).domain.tolist() == expected


def test_new_rows_of_unknown_domain_or_class_are_errors():
  table = _table(('d', 'x', 'y'), ('p', '1', 'no'), ('q', '2', 'yes'))
  encoding = _fitted(table, domain='d')
  for column, words in (('d', 'p, q as d'), ('y', 'no, yes as y')):
    new = table.copy()
    new[column] = ['p' if column == 'd' else 'no', 'new']
    match = f"one of {words}, as in the training data, found 'new' in row 2"
    with shared.one_line_error(match):
      encoding.encode(new)
      encoding.labels(new)


def test_a_split_column_says_train_or_test():
  table = _table(('s',), ('train',), ('TEST',), ('val',))
  columns = _columns('y', split='s')
  with shared.one_line_error("one of train, test as s, found 'val' in row 3"):
    columns.is_test(table)
  assert columns.is_test(table[:2]).tolist() == [False, True]


def test_new_files_need_the_columns_of_the_training(tmp_path, caplog):
  table = _table(('a', 'b', 'c', 'y', 'z'), *zip('12', 'st', 'uv', '01', '34'))
  encoding = _fitted(table, client='c', drop=['z'])
  path = tmp_path / 'new.csv'
  path.write_text('b,more,a,z\nt,5,1,5\n')
  with caplog.at_level(logging.WARNING):
    assert _inputs(encoding.read(str(path), False), encoding) == [[1, 0, 1]]
  assert 'columns more are not used' in caplog.text
  with shared.one_line_error(
    'new.csv` .*the columns y, c, found b, more, a, z'
  ):
    encoding.read(str(path), with_labels=True, with_clients=True)


def test_rows_are_left_out_with_a_word(caplog):
  table = _table(('x', 'y'), ('1', '3'), ('2', ''), ('4', '7.5'))
  with caplog.at_level(logging.WARNING):
    encoding = _fitted(table, task='regression', missing_label='drop')
  assert '1 of 3 rows are left out' in caplog.text
  assert _labels(table, encoding).tolist() == [3, 7.5]


@pytest.mark.parametrize(
  'cells, columns, match',
  [
    # As the column of a file of 1,598 wines, which became 600 inputs.
    (['12,34', '5,1'], {}, r"found '12,34' in row 1 .*`decimal=','`.* reads"),
    (['12,34', '5'], {}, r"numbers in column x, found '12,34' .*`decimal=','`"),
    (['1,234', '5,678'], {}, r"`decimal=','` or .* or `thousands=','` reads"),
    (['1.234,5', '5,1'], {}, r"`decimal=','` and `thousands='.'` reads them"),
    (['1 234', '5 678'], {}, r"`thousands=' '` reads them"),
    ([f'name {i}' for i in range(50)], {}, '50 in 50 rows'),
    ([f'{i % 60} %' for i in range(500)], {}, '60 in 500 rows, such as 0 %'),
    (['x'] + [f'{i % 99},5' for i in range(500)], {}, "`decimal=','`"),
    ([f'{i},5' for i in range(50)], {'task': 'regression'}, "`decimal=','`"),
  ],
)  # fmt: skip
def test_numbers_of_another_form_and_free_texts_are_no_words(
  cells, columns, match
):
  rows = [(cell, str(i % 2)) for i, cell in enumerate(cells)]
  with shared.one_line_error(match):
    _fitted(_table(('x', 'y'), *rows), **columns)


def test_such_words_can_be_meant():
  rows = [(f'name {i}', f'{i},5', str(i % 2)) for i in range(50)]
  table = _table(('x', 'z', 'y'), *rows)
  named = _fitted(table, categorical=['x', 'z'])
  assert len(named.input_names) == 100
  grouped = _fitted(table, min_category_count=2, categorical=['z'])
  assert grouped.input_names == ['other x', 'other z']
  form = table_files.Format(decimal=',')
  numbers = _fitted(table, drop=['x'], form=form)
  assert numbers.encode(table).numbers[:2].tolist() == [[0.5], [1.5]]


@pytest.mark.parametrize('decimal', ['.', ','])
def test_new_files_may_have_another_form(tmp_path, decimal, caplog):
  form = table_files.Format(decimal=decimal)
  rows = [('1.5', 'a', '2', '0'), ('-2', 'b', '3.25', '1')]
  texts = [[cell.replace('.', decimal) for cell in row] for row in rows]
  encoding = _fitted(_table(('n', 'w', 'm', 'y'), *texts), form=form)
  expected = [[1.5, 2, 1, 0], [-2, 3.25, 0, 1]]
  frame = pd.DataFrame(rows, columns=['n', 'w', 'm', 'y'])
  frame = frame.astype({'n': float, 'm': float})
  frame.to_csv(tmp_path / 'comma.csv', index=False)
  frame.to_csv(tmp_path / 'semicolon.csv', index=False, sep=';', decimal=',')
  frame.to_parquet(tmp_path / 'a.parquet')
  with caplog.at_level(logging.WARNING):
    for name in ('comma.csv', 'semicolon.csv', 'a.parquet'):
      assert _inputs(encoding.read(str(tmp_path / name)), encoding) == expected
  assert caplog.text.count('other than the training data') == 1
  # What fits no form is told in that of the training.
  (tmp_path / 'bad.csv').write_text('n,w,m\n1,a,x\n')
  with shared.one_line_error("column m, found 'x'|columns n, m, w, found"):
    encoding.encode(encoding.read(str(tmp_path / 'bad.csv')))
