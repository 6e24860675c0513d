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


_DROP = {'missing_label': 'drop'}


@pytest.mark.parametrize(
  'labels, columns, classes, expected',
  [
    (['1', '2', '1'], {}, '1 2', [0, 1, 0]),
    (['mid', 'low', 'top', 'low'], {}, 'low mid top', [1, 0, 2, 0]),
    (['-1', '1.0', '1'], {}, '-1 1', [0, 1, 1]),
    (['10', '9', '2'], {}, '2 9 10', [2, 1, 0]),
    (['0.5', '0.25', '0.5'], {}, '0.25 0.5', [1, 0, 1]),
    (['0', '3', '1.5'], {'label_above': 1.5}, 'y<=1.5 y>1.5', [0, 1, 0]),
    (['7', '', '5'], {'label_above': 6, **_DROP}, 'y<=6 y>6', [1, 0]),
    (['b', '', 'a'], _DROP, 'a b', [1, 0]),
    (['b', 'a', 'c', ''], {'label_values': ['b', 'a']}, 'b a', [0, 1]),
    (['2', '1.0'], {'label_values': ['2', '1']}, '1 2', [1, 0]),
    (['>5', '<=5'], {'label_values': ['>5:1', '<=5:0']}, '0 1', [1, 0]),
    (
      ['a', 'b', 'c'],
      {'label_values': ['c:x', 'a:y', 'b:x']},
      'x y',
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


def test_new_files_need_the_columns_of_the_training(tmp_path, caplog):
  table = _table(('a', 'b', 'c', 'y', 'z'), *zip('12', 'st', 'uv', '01', '34'))
  encoding = _fitted(table, client='c', drop=['z'])
  path = tmp_path / 'new.csv'
  path.write_text('b,more,a,z\nt,5,1,5\n')
  with caplog.at_level(logging.WARNING):
    assert _inputs(encoding.read(str(path), False), encoding) == [[1, 0, 1]]
  assert 'columns more are not used' in caplog.text
  with shared.one_line_error('new.csv` .*the columns y, c, found b, more'):
    encoding.read(str(path), with_labels=True, with_clients=True)


def test_such_words_can_be_meant():
  versions = _table(('v', 'y'), ('2020.01.05', '0'), ('1.2.3', '1'))
  assert _fitted(versions).input_names == ['v=1.2.3', 'v=2020.01.05']
  signs = _table(('s', 'y'), ('+', '0'), ('-', '1'))
  assert _fitted(signs).input_names == ['s=+', 's=-']
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


def test_columns_that_are_dropped_or_have_another_meaning_are_no_inputs():
  heading = ('n', 'who', 'where', 's', 'y', 'z')
  table = _table(
    heading, ('1', 'a', 'b', 'train', '0', 'q'), ('2', 'c', 'd', 'x', '1', 'r')
  )
  named = dict(domain='where', client='who', split='s', drop=['z'])
  assert _fitted(table, **named).input_names == ['n']


def test_words_of_new_rows_are_those_known_or_none_or_share_an_input(caplog):
  table = _table(('w', 'c', 'y'), *zip('aabbcd', '334433', '010101'))
  new = _table(('w', 'c'), ('b', '3.0'), ('z', '4.5'), ('c', '4'), ('', ''))
  encoding = _fitted(table, categorical=['c'])
  assert encoding.input_names == [*(f'w={w}' for w in 'abcd'), 'c=3', 'c=4']
  with caplog.at_level(logging.WARNING):
    # Codes are equal by value: 3.0 is 3.
    assert _inputs(new, encoding) == [
      [0, 1, 0, 0, 1, 0], [0] * 6, [0, 0, 1, 0, 0, 1], [0] * 6
    ]  # fmt: skip
  assert "in column w, 1 cells, such as 'z' in row 2 after" in caplog.text
  grouped = _fitted(table, min_category_count=2, drop=['c'])
  assert grouped.input_names == ['w=a', 'w=b', 'other w']
  assert _inputs(new, grouped) == [[0, 1, 0], [0, 0, 1], [0, 0, 1], [0, 0, 0]]
  # Codes are sorted by value, and zeros can stand for missing numbers.
  table = _table(('c', 'n', 'y'), *zip(['10', '9', '-1'], '051', '010'))
  encoding = _fitted(table, categorical=['c'], zero_is_missing=['n'])
  assert encoding.input_names == ['n', 'c=-1', 'c=9', 'c=10']
  np.testing.assert_array_equal(
    encoding.encode(table).numbers, [[np.nan], [5], [1]]
  )


def test_several_labels_are_of_the_same_two_classes():
  table = _table(
    ('a', 'x', 'b'), ('no', '1', 'yes'), ('yes', '2', 'no'), ('', '3', 'no')
  )
  columns = dict(label='a,b', task='multilabel', label_values=['no', 'yes'])
  encoding = _fitted(table, **columns)
  assert (encoding.input_names, encoding.classes) == (['x'], ['no', 'yes'])
  assert _labels(table, encoding).tolist() == [[0, 1], [1, 0]]


_NUMBERS = list(map(str, range(101)))
_REGRESSION = {'task': 'regression'}


@pytest.mark.parametrize(
  'labels, columns, match',
  [
    (['0', '', '1'], {}, 'a y in every row, found none in row 2'),
    (['0', '1', '1.5'], {}, "found '1.5' in row 3 .*regression.*`label_above`"),
    (['1', '2', 'x'], {}, "words alone, as y, found 'x' in row 3"),
    (['1', '1', '1'], {}, 'two or more classes by y, found one'),
    (['1', '2'], {'label_above': 7}, 'two or more classes by y, found one'),
    (['1', 'x'], {'label_above': 2}, "numbers in column y, found 'x' in r"),
    (['1', 'x'], _REGRESSION, "found 'x' in row 2 .*regression"),
    (['1', ''], _REGRESSION, 'a y in every row, found none in row 2'),
    (_NUMBERS, {}, "100 classes .`task='regression'` .*101"),
    (['a', 'b'], {'label_values': ['a', 'c']}, r"`label_values` .*found \['c'"),
    (['a', 'b'], {'label_values': ['a', 'a']}, '`label_values` to be diff'),
    (['a', 'b'], {'label_values': ['a:x', 'b:']}, '`label_values` to be diff'),
    (['a', 'b'], {'label_values': [':x', 'b']}, '`label_values` to be diff'),
    (['a', 'b'], {'label_values': ['a:x', 'b:x']}, 'two or more classes'),
    (['', ''], {'missing_label': 'drop'}, 'rows that are not left out'),
    (['0', '1'], {'drop': ['x', 'n']}, 'a column that is an input'),
    (['0', '1'], {'split': 'x'}, "one of train, test as x, found 'a' in row 1"),
    (['0', '1'], {'task': 'ranking'}, '`task` to be one of classification, re'),
    (['0', '1'], {'missing_domain': 'skip'}, '`missing_domain` to be one of'),
    (['0', '1'], {'missing_label': 'skip'}, '`missing_label` to be one of'),
    (['0', '1'], {'min_category_count': 0}, '`min_category_count`'),
    (['0', '1'], {'label_above': 0, **_REGRESSION}, '`label_above` to be'),
    (
      ['0', '1'],
      {'label_values': ['a'], 'label_above': 1},
      '`label_values` to be unset with .* `label_above`',
    ),
    *(
      (['0', '1'], {'task': 'multilabel', 'label': label}, match)
      for label, match in (
        ('y,c', "`label_column`.*, found 'c'"),
        ('y', 'two or more different columns'),
        ('y,y', 'two or more different columns'),
        ('y,x', 'same two words.*0, 1 in y; a, b in x'),
      )
    ),
  ],
)
def test_labels_and_options_of_another_kind_are_errors(labels, columns, match):
  rows = [('ab'[i % 2], str(i), y) for i, y in enumerate(labels)]
  table = _table(('x', 'n', 'y'), *rows)
  with shared.one_line_error(match):
    encoding = _fitted(table, **columns)
    if encoding.columns.split:
      encoding.columns.is_test(table)
    _labels(table, encoding)


@pytest.mark.parametrize(
  'cells, match',
  [
    # As the column of a file of 1,598 wines, which became 600 inputs.
    (['12,34', '5,1'], r"found '12,34' in row 1 .*`decimal` or `thousands`"),
    (['12,34', '5'], r"numbers in column x, found '12,34' .*`decimal` or"),
    (['1.234,5', '5,1'], '`decimal` or `thousands` read such numbers'),
    (['1 234', '5 678'], '`decimal` or `thousands` read such numbers'),
    (['x'] + [f'{i % 99},5' for i in range(500)], '`decimal` or'),
    ([f'name {i}' for i in range(50)], '50 in 50 rows'),
    ([f'{i % 60} %' for i in range(500)], '60 in 500 rows, such as 0 %'),
  ],
)  # fmt: skip
def test_numbers_of_another_form_and_free_texts_are_no_words(cells, match):
  rows = [(cell, str(i % 2)) for i, cell in enumerate(cells)]
  with shared.one_line_error(match):
    _fitted(_table(('x', 'y'), *rows))


def test_new_rows_of_unknown_domain_or_class_are_errors():
  table = _table(('d', 'x', 'y'), ('p', '1', 'no'), ('q', '2', 'yes'))
  encoding = _fitted(table, domain='d')
  for column, words in (('d', 'p, q as d'), ('y', 'no, yes as y')):
    new = table.copy()
    new.loc[1, column] = 'new'
    match = f"one of {words}, as in the training data, found 'new' in row 2"
    with shared.one_line_error(match):
      encoding.encode(new)
      encoding.labels(new)
