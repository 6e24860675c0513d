import json
import logging

import numpy as np
import pandas as pd
import pytest
import tensorflow as tf

import tff_pfl as pfl
from tests.datasets import shared
from tff_pfl import plots
from tff_pfl.datasets import frames

_COUNT = 60
_from_frame = pfl.FederatedDataset.from_frame


def _patients(**columns):
  """60 patients of three hospitals; None takes a column away."""
  rng = np.random.default_rng(0)
  i = np.arange(_COUNT)
  frame = pd.DataFrame(
    {
      'hospital': np.array(list('abc'))[i % 3],
      'sex': np.array(list('fm'))[i // 3 % 2],
      'age': 20 + i,
      'weight': np.where(i % 7, rng.normal(70, 10, _COUNT), np.nan),
      'blood': np.array(['A', 'B', 'AB', None], object)[i % 4],
      'code': pd.Categorical(i % 3 + 1),
      'ill': i // 2 % 2,
    }
  )
  for name, values in columns.items():
    if values is None:
      frame = frame.drop(columns=name)
    else:
      frame[name] = values
  return frame


def _load(frame=None, label='ill', client='hospital', domain='sex', **options):
  frame = _patients() if frame is None else frame
  return _from_frame(
    frame, label=label, client=client, domain=domain, **options
  )


def _fit(frame, feature):
  return frames.fit(frame, frames.FrameEncoding('ill'), features=[feature])


def _new(encoding, frame, **options):
  return _from_frame(frame, encoding=encoding, **options)


def _all(dataset, split='train'):
  """The fields of all clients, by name."""
  parts = [getattr(dataset, split)(c).as_dict() for c in dataset.client_ids]
  return {name: np.concatenate([p[name] for p in parts]) for name in parts[0]}


def _repeated(*values):
  """A column of the frame that has the values in turn."""
  return [values[i % len(values)] for i in range(_COUNT)]


def test_clients_and_domains_are_those_of_the_columns():
  dataset = _load()
  assert dataset.name == 'frame'
  assert dataset.num_classes == 2
  assert dataset.client_ids == ('a', 'b', 'c')
  assert dataset.domain_names == ('f', 'm')
  # Age, weight, three blood groups, three codes.
  assert dataset.element_spec == shared.spec(8, domain=True)
  assert dataset.domain_counts('train').tolist() == [[8, 8]] * 3
  assert dataset.domain_counts('test').tolist() == [[2, 2]] * 3


def test_inputs_belong_to_their_row_label_and_domain():
  frame = _patients()
  dataset = _load(frame, test_fraction=0)
  encoding = dataset.encoding
  assert encoding.input_names == [
    'age', 'weight', 'blood=A', 'blood=AB', 'blood=B', 'code=1', 'code=2',
    'code=3',
  ]  # fmt: skip
  for client_id in dataset.client_ids:
    x, y, domain = dataset.train(client_id).as_dict().values()
    rows = frame[frame['hospital'] == client_id]
    np.testing.assert_array_equal(y, rows['ill'])
    np.testing.assert_array_equal(domain, rows['sex'] == 'm')
    for place, word in enumerate(['A', 'AB', 'B'], 2):
      np.testing.assert_array_equal(x[:, place], rows['blood'] == word)
    for place, code in enumerate([1, 2, 3], 5):
      np.testing.assert_array_equal(x[:, place], rows['code'] == code)
    ages = x[:, 0] * encoding.deviations[0] + encoding.means[0]
    np.testing.assert_allclose(ages, rows['age'], rtol=1e-5)


@pytest.mark.parametrize('num_clients', [None, 1])
def test_numbers_are_standardized_by_the_training_rows(num_clients):
  x = _all(_load(num_clients=num_clients))['x']
  np.testing.assert_allclose(x[:, 0].mean(), 0, atol=1e-6)
  np.testing.assert_allclose(x[:, 0].std(), 1, rtol=1e-6)
  # A missing weight is the mean.
  there = x[:, 1] != 0
  assert 0 < there.sum() < len(x)
  np.testing.assert_allclose(x[there, 1].mean(), 0, atol=1e-6)
  np.testing.assert_allclose(x[there, 1].std(), 1, rtol=1e-6)


_DAYS = pd.date_range('2020-01-01', periods=_COUNT)


@pytest.mark.parametrize(
  'column, names, first',
  [
    (range(_COUNT), ['x'], 0),
    (pd.array(_repeated(1.5, None), 'Float64'), ['x'], 1.5),
    (pd.array(_repeated(4, 2), 'Int8'), ['x'], 4),
    (_repeated(True, False), ['x'], 1),
    (pd.array(_repeated(False, True, None), 'boolean'), ['x'], 0),
    (_repeated(True, None, False), ['x'], 1),
    (_repeated(2, None, 3.5), ['x'], 2),
    (_DAYS, ['x'], 18_262),
    (_DAYS.tz_localize('Asia/Tokyo'), ['x'], 18_261.625),
    (_DAYS - pd.Timestamp('2019-12-31'), ['x'], 1),
    ([pd.Timestamp(0)] * _COUNT, ['x'], 0),
    ([*_DAYS[:-1], None], ['x'], 18_262),
    (np.array(['9999-12-31'] * _COUNT, 'M8[s]'), ['x'], 2_932_896),
    (pd.array([None] + [1] * 59, 'duration[s][pyarrow]'), ['x'], np.nan),
    (pd.array(_DAYS.astype('M8[s]'), 'timestamp[s][pyarrow]'), ['x'], 18_262),
    (pd.array(_repeated(1.5, None), 'double[pyarrow]'), ['x'], 1.5),
    (pd.array(_repeated(7, 8), 'int64[pyarrow]'), ['x'], 7),
    (pd.array(_repeated(True, False), 'bool[pyarrow]'), ['x'], 1),
    (_repeated('b', 'a', None), ['x=a', 'x=b'], None),
    (pd.array(_repeated('b', 'a'), 'string[pyarrow]'), ['x=a', 'x=b'], None),
    (pd.Categorical(_repeated('b', 'a'), ['b', 'a']), ['x=b', 'x=a'], None),
    # A category without rows, and numbers that are one.
    (pd.Categorical(['b'] * _COUNT, ['a', 'b']), ['x=a', 'x=b'], None),
    (pd.Categorical(_repeated(10.0, 9.0, None)), ['x=9', 'x=10'], None),
    (pd.Categorical(_repeated('1', '2')), ['x=1', 'x=2'], None),
    (_repeated('+', '-'), ['x=+', 'x=-'], None),
    (_repeated('4 mg', 'low'), ['x=4 mg', 'x=low'], None),
    (_repeated('2020.01.05', '1.2.3'), ['x=1.2.3', 'x=2020.01.05'], None),
  ],
)
def test_a_column_becomes_inputs_by_its_dtype(column, names, first):
  frame = _patients(x=column)
  encoding = _fit(frame, 'x')
  assert encoding.input_names == names
  # The same after it was JSON.
  encoding = frames.FrameEncoding(**json.loads(encoding.text))
  rows = encoding.rows(frame)
  if first is not None:
    np.testing.assert_equal(rows.numbers[0, 0], first)
    return
  inputs = encoding.inputs(rows)
  words = [name.removeprefix('x=') for name in names]
  for row, cell in zip(inputs, frame['x']):
    cell = None if pd.isna(cell) else str(cell).removesuffix('.0')
    assert row.tolist() == [word == cell for word in words]


@pytest.mark.parametrize(
  'label, task, classes, y',
  [
    (_repeated('yes', 'no'), None, ['no', 'yes'], [1, 0]),
    (_repeated(True, False), None, [False, True], [1, 0]),
    (_repeated(10, 9, 2), None, [2, 9, 10], [2, 1, 0]),
    (_repeated(4.0, 2.0), 'classification', [2, 4], [1, 0]),
    (_repeated(0.5, 0.25), 'classification', [0.25, 0.5], [1, 0]),
    (
      pd.Categorical(_repeated('low', 'top'), ['low', 'mid', 'top']),
      None,
      ['low', 'mid', 'top'],
      [0, 2],
    ),
  ],
)
def test_labels_are_classes_in_their_order(label, task, classes, y):
  dataset = _load(_patients(ill=label), task=task, test_fraction=0)
  assert dataset.encoding.classes == classes
  assert dataset.num_classes == len(classes)
  codes = dataset.encoding.labels(_patients(ill=label))
  assert codes[: len(y)].tolist() == y and codes.dtype == np.int32
  probabilities = np.eye(len(classes))[codes]
  predicted = dataset.encoding.predictions(probabilities)
  assert (predicted['prediction'] == np.asarray(label)).all()
  assert list(predicted)[1:] == [f'probability_{value}' for value in classes]


def test_a_line_says_what_the_label_was_taken_for(capsys):
  labels = (
    (_repeated('no', 'yes'), None, 'classification of ill: no, yes.'),
    (_repeated(1.5, 2.0), None, 'regression of ill (float64).'),
    # A float label means regression, even if all numbers are whole.
    (pd.array(_repeated(1, 2), 'double[pyarrow]'), None, '(double[pyarrow]);'),
    (np.array(_repeated(1.0, 2.0), object), None, 'regression of ill (object)'),
    ([f'w{i % 30}' for i in range(_COUNT)], None, '30 classes.'),
    (_repeated(0.0, 1.0), None, "task='classification' takes its whole"),
    (range(_COUNT), None, "60 classes; task='regression' takes"),
    (range(_COUNT), 'classification', None),
  )
  for number, (label, task, text) in enumerate(labels):
    # A line is printed once.
    for _ in range(2):
      _load(_patients(ill=label), task=task, name=f'frame {number}')
    line = capsys.readouterr().err
    assert (text in line and line.count('\n') == 1) if text else not line


def test_regression_learns_standardized_labels_and_predicts_their_unit():
  dataset = _load(label='age', task='regression')
  assert dataset.num_classes is None
  assert dataset.element_spec['y'] == tf.TensorSpec([], tf.float32)
  y = _all(dataset)['y']
  np.testing.assert_allclose([y.mean(), y.std()], [0, 1], atol=1e-6)
  y = np.concatenate([y, _all(dataset, 'test')['y']])
  ages = dataset.encoding.predictions(y[:, np.newaxis])['prediction']
  np.testing.assert_allclose(np.sort(ages), np.arange(20, 80), rtol=1e-6)


def test_several_labels_are_of_the_same_two_classes():
  frame = _patients(
    flu=_repeated(True, False), cold=_repeated(True, True, False)
  )
  dataset = _load(frame, label=['flu', 'cold'])
  assert dataset.element_spec['y'].shape == [2]
  outputs = np.array([[[0.9, 0.1], [0.2, 0.8]]])
  predicted = dataset.encoding.predictions(outputs, pd.Index(['first']))
  assert predicted.loc['first'].to_dict() == {
    'prediction_flu': False, 'probability_flu': 0.1,
    'prediction_cold': True, 'probability_cold': 0.8,
  }  # fmt: skip


def test_rows_can_be_dealt_by_any_rule():
  dataset = _load(num_clients=5, partition='domain_mixture:0.2:10', seed=1)
  assert shared.all_domains(dataset).sum(axis=1).tolist() == [10] * 5
  by_rule = _load(client=None, domain=None, num_clients=4)
  assert (by_rule.partition, by_rule.num_clients) == ('iid', 4)
  assert by_rule.domain_names is None


@pytest.mark.parametrize(
  'clients, client_ids',
  [
    ((1, 10, 2), ('1', '2', '10')),
    ((1.0, 10.0, 2.0), ('1', '2', '10')),
    ((1, 2**63, 2**64 - 1), ('1', str(2**63), str(2**64 - 1))),
    (('01', '2', '1'), ('01', '1', '2')),
    (pd.Categorical(_repeated('b', 'a')), ('a', 'b')),
  ],
)
def test_clients_keep_their_names(clients, client_ids):
  if isinstance(clients, tuple):
    clients = _repeated(*clients)
  dataset = _load(_patients(hospital=clients))
  assert dataset.client_ids == client_ids


def test_a_split_column_decides_what_is_tested_on():
  frame = _patients(part=_repeated('Test', 'train', 'train', 'train', 'train'))
  for options in ({}, dict(num_clients=4, partition='iid')):
    dataset = _load(frame, split='part', **options)
    x = _all(dataset)['x']
    assert (len(x), len(_all(dataset, 'test')['x'])) == (48, 12)
    # By training rows alone.
    np.testing.assert_allclose(x[:, 0].std(), 1, rtol=1e-6)


def test_a_column_says_how_much_rows_weigh():
  frame = _patients(share=np.arange(_COUNT) / 4, weight=None)
  dataset = _load(frame, weight='share')
  new = _new(dataset.encoding, frame, test_fraction=0.2)
  assert new.fingerprint == dataset.fingerprint
  means, deviations = dataset.encoding.means, dataset.encoding.deviations
  for part in (dataset.train('a'), new.test('b')):
    ages = part.x[:, 0] * deviations[0] + means[0]
    np.testing.assert_allclose(part.weight, (ages - 20) / 4, atol=1e-5)
  # New rows may lack it.
  new = _new(dataset.encoding, frame.drop(columns='share'))
  assert new.element_spec == dataset.element_spec
  assert set(new.train('a').weight) == {1}


def test_new_rows_are_encoded_as_those_of_the_training():
  frame = _patients()
  dataset = _load(frame, test_fraction=0)
  new = _new(dataset.encoding, frame, test_fraction=0)
  assert new.fingerprint == dataset.fingerprint
  # Other dtypes of the same values, another order of columns.
  same = frame[frame.columns[::-1]].astype({'age': float, 'code': str})
  rows = dataset.encoding.rows(same.assign(more=1))
  for field, expected in zip(rows, dataset.encoding.rows(frame)):
    np.testing.assert_array_equal(field, expected)
  # Without a client column all are of one client.
  alone = frame.drop(columns='hospital')
  assert _new(dataset.encoding, alone).client_ids == ('client',)


def test_values_that_only_new_rows_have_are_none_of_those_known(caplog):
  encoding = _fit(_patients(), 'blood')
  with caplog.at_level(logging.WARNING):
    rows = encoding.rows(_patients(blood=_repeated('A', 'X', None)))
  assert "'blood' has 20 values, such as 'X'" in caplog.text
  assert encoding.inputs(rows)[:3].tolist() == [[1, 0, 0], [0] * 3, [0] * 3]


def test_new_rows_may_name_no_clients(caplog):
  frame = _patients(client=_repeated('x', 'y', 'z'))
  for client in ('hospital', None):
    if client is None:
      frame = frame.drop(columns='hospital')
    encoding = _load(frame, client=client, num_clients=3).encoding
    caplog.clear()
    with caplog.at_level(logging.WARNING):
      new = _new(
        encoding,
        frame.drop(columns='hospital', errors='ignore'),
        test_fraction=0,
      )
    is_missing = 'of one client, as there is no column hospital' in caplog.text
    assert is_missing if client else not caplog.text
    assert new.client_ids == ('client',)
    # A column of inputs has that name.
    place = encoding.input_names.index('client=x')
    assert new.train('client').x[:, place].sum() == _COUNT / 3
  with shared.one_line_error('`encoding` to be given without columns'):
    _from_frame(frame, encoding=encoding, label='ill')


def test_row_numbers_without_a_name_are_no_input(caplog):
  frame = _patients().reset_index().rename(columns={'index': 'Unnamed: 0'})
  with caplog.at_level(logging.WARNING):
    assert _load(frame).fingerprint == _load().fingerprint
  assert 'Row numbers' in caplog.text
  frame['Unnamed: 0'] = np.arange(_COUNT) / 7
  assert _load(frame).encoding.input_names[0] == 'Unnamed: 0'


def test_columns_may_be_called_by_numbers():
  frame = _patients()
  frame.columns = range(len(frame.columns))
  dataset = _load(frame, label=6, client=0, domain=1)
  assert dataset.encoding.input_names[:2] == ['2', '3']
  assert len(dataset.encoding.rows(frame).numbers) == _COUNT


def test_the_picture_of_a_partition_names_classes():
  dataset = _load(_patients(ill=_repeated('ill', 'well')))
  axes = plots.partition(dataset).axes[1]
  assert [t.get_text() for t in axes.get_yticklabels()] == ['ill', 'well']


_FREE_TEXT = ["`pd.read_csv(..., decimal=',', thousands='.')`", 'drop(columns']
_CATEGORY = "`frame['x'].astype('category')`"


@pytest.mark.parametrize(
  'column, words',
  [
    # As the column of a file of 1,598 wines, which became 600 inputs.
    (_repeated('12,34', '5,1'), ["found '12,34' at index 0", 'decimal']),
    (_repeated('12,34', '5'), ["found '12,34' at index 0", _CATEGORY]),
    (_repeated('1.234,5', '5,1'), ['decimal', 'thousands']),
    (_repeated('1 234', '5 678'), ['decimal', 'thousands']),
    (_repeated("'1.5", "'2"), ['str.strip("\'=")', _CATEGORY]),
    (_repeated('="1.5"', '="2"'), ['str.strip("\'=")', _CATEGORY]),
    ([*range(1, _COUNT), '10%'], ["mixed-integer, found '10%'", 'pd.to_num']),
    (['10%', *map(str, range(1, _COUNT))], ["found '10%' at index 0: `pd.to"]),
    (_repeated('1', '2', '?'), ["found '?' at index 2", 'na_values']),
    (_repeated('1', '2'), ["found '1' at index 0", "dtype={'x': 'category"]),
    ([f'€ {i % 55}' for i in range(_COUNT)], _FREE_TEXT),
    ([f'name {i}' for i in range(_COUNT)], ['60 in 60 rows', *_FREE_TEXT]),
    (_repeated(1.0, np.inf), ['found inf at index 1', 'np.isfinite']),
    (_repeated(1.0, -1e308), ['found -1e+308 at index 1']),
    ([None] * _COUNT, ["`frame.drop(columns=['x'])`"]),
    ([[1]] * _COUNT, ["found '[1]' at index 0", _CATEGORY]),
    ([pd.Timestamp(0).date()] * _COUNT, ["`pd.to_datetime(frame['x'])`"]),
    (_DAYS.astype(str), ["found '2020-01-01'", "`pd.to_datetime(frame['x'])`"]),
    (pd.to_datetime(_repeated(20200101, 20200102)), ["format='%Y%m%d'"]),
    (_repeated('fair', 'fair '), ["found 'fair ' at index 1", 'str.strip()']),
    (_repeated('1,5', '2,5', '3,5', 'n.v.'), ["found 'n.v.' at index 3"]),
    ([1j] * _COUNT, ['complex']),
    (pd.Categorical(_repeated(1, '1')), ['astype(str)']),
    (_repeated(0, True), ['mixed-integer']),
  ],
)
def test_columns_that_are_unclear_are_errors_with_pandas_remedy(column, words):
  with shared.one_line_error("Expected the column 'x' to have") as caught:
    _load(_patients(x=column))
  for word in words:
    assert word in str(caught.value)


@pytest.mark.parametrize(
  'columns, options, match',
  [
    ({'ill': _repeated(*'ab', None)}, {}, r'none at index 2: `frame.dropna\(s'),
    ({'sex': _repeated('f', None)}, {}, r"'sex'.*dropna\(subset=\['sex'\]\)"),
    ({'hospital': _repeated('a', None)}, {}, "'hospital'.* in every row"),
    ({'ill': _repeated('a', 'b ', 'b')}, {}, "'b' at index 2: .*str.strip"),
    ({'sex': _repeated('f', 'F')}, {}, "'sex' to have words that differ"),
    ({'ill': _repeated('1', '2', 'x')}, {}, "found 'x' at index 2"),
    ({'ill': _repeated(0.0, np.inf)}, {'task': 'classification'}, 'inf'),
    ({'ill': 1}, {}, 'two or more classes'),
    ({'ill': _DAYS - _DAYS[0]}, {}, 'classes or numbers'),
    ({'sex': _repeated(1, 'a')}, {}, "'sex' .*mixed-integer"),
    ({'sex': _DAYS}, {}, r"'sex' to have names, .*astype\(str\)"),
    ({}, {'label': []}, '`label` to be the name of a column'),
    ({'ill': _DAYS}, {}, 'classes or numbers'),
    ({'ill': 'a'}, {'task': 'regression'}, r'`pd.to_numeric\(frame'),
    ({'age': 0.5}, {'domain': 'age'}, r'`pd.cut\(frame'),
    ({'hospital': _repeated('A', 'a')}, {}, "'hospital' to have words that"),
    ({}, {'partition': 'iid'}, '`num_clients` to be given for a rule'),
    ({'age': 'old'}, {'weight': 'age'}, 'numbers which are weights'),
    ({}, {'weight': 'weight'}, "dropna.subset=.'weight'"),
    ({'age': -1}, {'weight': 'age'}, '`weight.0.` to be not negative'),
    ({'age': 'x'}, {'split': 'age'}, "train, test .*found 'x'"),
    ({}, {'split': 'age', 'test_fraction': 0.1}, '`test_fraction`'),
    ({}, {'label': ['ill', 'age']}, '`label` to be columns of the same two'),
    ({}, {'label': ['ill', 'age'], 'task': 'regression'}, '`label`'),
    ({}, {'label': 'dead'}, "`label` .*hospital, sex, .*'dead'"),
    ({}, {'client': 'ward'}, "`client` .*'ward'"),
    ({}, {'client': 'ill'}, "`client` .*'ill'"),
    ({}, {'domain': 'ill'}, "`domain` .*'ill'"),
    ({}, {'features': ['age', 'z']}, '`frame` to be one with the columns z'),
    ({}, {'features': ['ill']}, '`features` to be columns without labels'),
    ({}, {'features': []}, '`features` to be one or more columns'),
    ({}, {'task': 'ranking'}, '`task` to be one of classification'),
    ({}, {'num_clients': 4}, 'at most 3, the number of clients'),
    ({}, {'test_fraction': 1}, '`test_fraction`'),
    ({}, {'seed': -1}, '`seed`'),
  ],
)
def test_mistakes_are_one_line_errors(columns, options, match):
  with shared.one_line_error(match):
    _load(_patients(**columns), **options)


def test_frames_of_another_form_are_one_line_errors():
  frame = _patients()
  for other, match in (
    (frame.set_index('hospital'), r'`client` .*`frame.reset_index\(\)`'),
    (pd.concat([frame, frame[['age']]], axis=1), "different names, .*'age'"),
    (frame[:0], '`frame` to be one with rows'),
  ):
    with shared.one_line_error(match):
      _load(other)
  with shared.one_line_error('`frame` to be', TypeError):
    _load({'ill': [0, 1]})


@pytest.mark.parametrize(
  'columns, match',
  [
    ({'age': None}, '`frame` to be one with the columns age'),
    ({'age': 'old'}, 'numbers as in the training data, .*pd.to_numeric'),
    ({'day': 5}, 'dates as in the training data, .*`pd.to_datetime'),
    ({'stay': 5}, 'durations as in the training data, .*`pd.to_timedelta'),
    ({'sex': 'x'}, "'sex' to have one of f, m in every row, found 'x'"),
    ({'ill': 7}, "'ill' to have one of 0, 1 in every row, found 7"),
    ({'ill': None}, '`frame` to be one with the columns ill'),
  ],
)
def test_new_rows_of_another_kind_are_errors(columns, match):
  dates = {'day': _DAYS, 'stay': _DAYS - _DAYS[0]}
  encoding = _load(_patients(**dates)).encoding
  with shared.one_line_error(match):
    _new(encoding, _patients(**{**dates, **columns}))
