import functools
import gzip
import json

import numpy as np
import pandas as pd
import pytest
import tensorflow as tf

from tests.datasets import shared
from tff_pfl import datasets, plots
from tff_pfl.datasets.sources import table_encoding, tabular

_HEADING = ('hospital', 'sex', 'age', 'weight', 'blood', 'code', 'ill')


def _rows(count=60, seed=0):
  rng = np.random.default_rng(seed)
  return [
    (
      'abc'[i % 3],
      'fm'[i // 3 % 2],
      20 + i,
      '' if i % 7 == 0 else f'{rng.normal(70, 10):.2f}',
      ('A', 'B', 'AB', '?')[i % 4],
      i % 3 + 1,
      i // 2 % 2,
    )
    for i in range(count)
  ]


def _write(path, rows, heading=_HEADING):
  return shared.write_csv(path, heading, rows)


@pytest.fixture(name='path')
def _path(tmp_path):
  return _write(tmp_path / 'patients.csv', _rows())


_load = functools.partial(
  shared.load,
  'tabular',
  num_clients=3,
  label_column='ill',
  domain_column='sex',
  client_column='hospital',
  categorical_columns=('code',),
)


def _all(dataset, split='train'):
  parts = [getattr(dataset, split)(c) for c in dataset.client_ids]
  fields = zip(*(part.as_dict().values() for part in parts))
  return [np.concatenate(field) for field in fields]


def test_clients_and_domains_are_those_of_the_columns(path):
  dataset = _load(path)
  assert dataset.name == 'tabular'
  assert dataset.num_classes == 2
  assert dataset.client_ids == ('a', 'b', 'c')
  assert dataset.domain_names == ('f', 'm')
  # Age, weight, three blood groups, three codes.
  assert dataset.element_spec == shared.spec(8, domain=True)
  assert dataset.domain_counts('train').tolist() == [[8, 8]] * 3
  assert dataset.domain_counts('test').tolist() == [[2, 2]] * 3


@pytest.mark.parametrize('num_clients', [1, 3])
def test_numbers_are_standardized_by_the_training_rows(path, num_clients):
  dataset = _load(path, num_clients=num_clients)
  x, _, _ = _all(dataset)
  np.testing.assert_allclose(x[:, 0].mean(), 0, atol=1e-6)
  np.testing.assert_allclose(x[:, 0].std(), 1, rtol=1e-6)


def test_inputs_belong_to_their_row_label_and_domain(path):
  dataset = _load(path, test_fraction=0)
  encoding = dataset.encoding
  for client_id in dataset.client_ids:
    x, y, domain = dataset.train(client_id).as_dict().values()
    rows = [row for row in _rows() if row[0] == client_id]
    np.testing.assert_array_equal(y, [row[6] for row in rows])
    np.testing.assert_array_equal(domain, ['fm'.index(row[1]) for row in rows])
    blood = [[row[4] == word for word in ('A', 'AB', 'B')] for row in rows]
    np.testing.assert_array_equal(x[:, 2:5], blood)
    codes = [[row[5] == code for code in (1, 2, 3)] for row in rows]
    np.testing.assert_array_equal(x[:, 5:8], codes)
    ages = x[:, 0] * encoding.deviations[0] + encoding.means[0]
    np.testing.assert_allclose(ages, [row[2] for row in rows], rtol=1e-5)


def test_a_missing_number_is_the_mean_and_may_have_an_indicator(path):
  dataset = _load(path, missing_indicators=True)
  x = np.concatenate([_all(dataset)[0], _all(dataset, 'test')[0]])
  weight_missing, blood_missing = x[:, 8] == 1, x[:, 9] == 1
  assert weight_missing.sum() == 9
  assert blood_missing.sum() == 15
  np.testing.assert_array_equal(x[:, 1] == 0, weight_missing)
  np.testing.assert_array_equal(x[:, 2:5].sum(axis=1) == 0, blood_missing)
  present = _all(dataset)[0]
  present = present[present[:, 8] == 0, 1]
  np.testing.assert_allclose([present.mean(), present.std()], [0, 1], atol=1e-6)


def test_the_picture_of_a_partition_names_classes(path):
  dataset = _load(path, label_values=['1:ill', '0:well'])
  axes = plots.partition(dataset).axes[1]
  assert [t.get_text() for t in axes.get_yticklabels()] == ['ill', 'well']


def test_pooled_rows_can_be_dealt_by_any_rule(path):
  dataset = _load(
    path, num_clients=5, partition='domain_mixture:0.2:10', seed=1
  )
  counts = shared.all_domains(dataset)
  assert counts.sum(axis=1).tolist() == [10] * 5
  by_rule = _load(
    path, num_clients=4, partition='iid', client_column=None, domain_column=None
  )
  assert by_rule.client_ids[0] == 'client_0'
  assert by_rule.domain_names is None
  assert list(by_rule.element_spec) == ['x', 'y']


def test_each_file_of_a_folder_may_be_a_client(path, tmp_path):
  folder = tmp_path / 'hospitals'
  folder.mkdir()
  table = pd.read_csv(path, dtype=str)
  for name, rows in table.groupby('hospital'):
    rows = rows.drop(columns='hospital')
    if name == 'a':
      rows.to_parquet(folder / 'a.parquet')
    else:
      rows.to_csv(folder / f'{name}.csv', index=False)
  with open(path, 'rb') as file:
    (tmp_path / 'all.csv.gz').write_bytes(gzip.compress(file.read()))
  expected = _load(tmp_path / 'all.csv.gz')
  assert expected.fingerprint == _load(path).fingerprint
  dataset = _load(folder, client_column='file')
  assert dataset.client_ids == ('a', 'b', 'c')
  for client_id in 'abc':
    np.testing.assert_array_equal(
      dataset.train(client_id).x, expected.train(client_id).x
    )
  (folder / 'c.csv').write_text((folder / 'b.csv').read_text() + 'm,x,,,,1\n')
  with shared.one_line_error("c.csv` to have numbers in .*'x' in row 21 after"):
    _load(folder, client_column='file')
  (folder / 'd.csv').write_text('sex,age\nf,3\n')
  with shared.one_line_error('d.csv` to have the columns sex, age, weight'):
    _load(folder, client_column='file')
  with shared.one_line_error('`data_dir` to be one of these files'):
    _load(folder)


def _load_pooled(tmp_path, heading, rows, **kwargs):
  return datasets.load_dataset(
    'tabular',
    num_clients=2,
    partition='iid',
    data_dir=_write(tmp_path / 'pooled.csv', rows, heading),
    label_column=heading[-1],
    **kwargs,
  )


def test_a_second_column_of_a_name_is_no_input_unnoticed(tmp_path):
  rows = [(i % 2, i, i % 2) for i in range(40)]
  with shared.one_line_error("has once .*y.1, in `drop_columns`.*, found 'y'"):
    _load_pooled(tmp_path, ('y', 'x', 'y'), rows)
  data = _load_pooled(tmp_path, ('y', 'x', 'y'), rows, drop_columns=['y.1'])
  assert data.encoding.input_names == ['x']


def test_regression_standardizes_labels_by_the_training_rows(path):
  dataset = _load(path, label_column='age', task='regression')
  assert dataset.num_classes is None
  assert dataset.element_spec['y'] == tf.TensorSpec([], tf.float32)
  _, y, _ = _all(dataset)
  np.testing.assert_allclose([y.mean(), y.std()], [0, 1], atol=1e-6)
  _, y_test, _ = _all(dataset, 'test')
  ages = dataset.encoding.label(np.concatenate([y, y_test]))
  np.testing.assert_allclose(np.sort(ages), np.arange(20, 80), rtol=1e-6)


def test_a_split_column_decides_what_is_tested_on(tmp_path):
  rows = [
    (*row, ('train', 'Test')[i % 5 == 0]) for i, row in enumerate(_rows())
  ]
  path = _write(tmp_path / 'a.csv', rows, (*_HEADING, 'split'))
  for options in ({}, dict(num_clients=4, partition='iid')):
    dataset = _load(path, split_column='split', **options)
    x, y, _ = _all(dataset)
    assert (len(y), len(_all(dataset, 'test')[1])) == (48, 12)
    # By training rows alone.
    np.testing.assert_allclose(x[:, 0].std(), 1, rtol=1e-6)
  with shared.one_line_error('`test_fraction` to be unset with a split col'):
    _load(path, split_column='split', test_fraction=0.1)


def test_a_column_says_how_much_rows_weigh(tmp_path):
  rows = [('ab'[i % 2], i, i / 4, 'fm'[i // 2 % 2]) for i in range(40)]
  heading = 'bank', 'age', 'share', 'sex'
  path = _write(tmp_path / 'a.csv', rows, heading)
  data = _load(
    path,
    num_clients=2,
    label_column='sex',
    domain_column=None,
    client_column='bank',
    categorical_columns=[],
    weight_column='share',
  )
  encoding = table_encoding.TableEncoding.from_json(
    json.loads(data.encoding.text)
  )
  assert encoding.input_names == ['age']
  new = tabular.load_new_clients(encoding, path, test_fraction=0.2)
  assert new.fingerprint == data.fingerprint
  assert data.load_again().fingerprint == data.fingerprint
  for client_id in data.client_ids:
    for part in (data.train(client_id), new.test(client_id)):
      ages = part.x[:, 0] * encoding.deviations[0] + encoding.means[0]
      np.testing.assert_allclose(part.weight, ages / 4, atol=1e-5)
  # New rows may lack it.
  without = _write(
    tmp_path / 'b.csv', [r[:2] + r[3:] for r in rows], ('bank', 'age', 'sex')
  )
  new = tabular.load_new_clients(encoding, without)
  assert new.element_spec == data.element_spec
  assert set(new.train('a').weight) == {1}


def test_rows_without_client_can_be_left_out_or_be_one(tmp_path):
  rows = [['' if i < 6 else row[0], *row[1:]] for i, row in enumerate(_rows())]
  path = _write(tmp_path / 'a.csv', rows)
  dataset = _load(path, missing_domain='drop')
  assert dataset.client_ids == ('a', 'b', 'c')
  assert dataset.class_counts().sum() + dataset.class_counts('test').sum() == 54
  for bounds in ({}, dict(domain_column='age', domain_bounds=[50])):
    dataset = _load(path, num_clients=4, missing_domain='value', **bounds)
    assert dataset.client_ids == ('(missing)', 'a', 'b', 'c')


@pytest.mark.parametrize(
  'clients, client_ids',
  [
    ((1, '1.0', 2, 10), ('1', '10', '2')),
    (('01', '01', 2, 1), ('01', '1', '2')),
  ],
)
def test_clients_that_are_numbers_keep_their_names_but_for_zeros_at_the_end(
  tmp_path, clients, client_ids
):
  rows = [(clients[i % 4], *row[1:]) for i, row in enumerate(_rows())]
  dataset = _load(_write(tmp_path / 'a.csv', rows))
  assert dataset.client_ids == client_ids
  assert shared.all_labels(dataset).sum(axis=1).tolist() == [30, 15, 15]


def test_new_rows_are_encoded_as_those_of_the_training(path, tmp_path):
  dataset = _load(path, test_fraction=0)
  new = tabular.load_new_clients(dataset.encoding, path, test_fraction=0)
  assert new.fingerprint == dataset.fingerprint
  rows = [row[1:] for row in _rows(10)]
  alone = _write(tmp_path / 'one.csv', rows, _HEADING[1:])
  (client_id,) = tabular.load_new_clients(dataset.encoding, alone).client_ids
  assert client_id == 'client'


def test_a_column_of_many_words_stays_compact(tmp_path):
  rows = [(f'w{i % 5000}', i, i % 2) for i in range(6000)]
  heading = 'word', 'n', 'y'
  dataset = _load_pooled(tmp_path, heading, rows, min_category_count=1)
  x = dataset.train('client_0').x
  assert x.shape == (2400, 5001)
  np.testing.assert_array_equal(x[:, 1:].sum(axis=1), 1)
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(tabular, '_MAX_CLIENT_BYTES', 4 * 2400 * 5001 - 1)
    with shared.one_line_error('2,400 rows .* found .1, which makes 5,001 inp'):
      _load_pooled(tmp_path, heading, rows, min_category_count=1)
  # The checksum reads rows before they are so wide.
  train = dataset.train('client_0')
  assert sum(map(len, train.content())) < 100_000
  other = [('other', *rows[0][1:]), *rows[1:]]
  changed = _load_pooled(tmp_path, heading, other, min_category_count=1)
  assert changed.fingerprint != dataset.fingerprint


@pytest.mark.parametrize(
  'column, value, kwargs, match',
  [
    (2, 'old', {}, "numbers in column age, found 'old' in row 6 after"),
    (2, 'inf', {}, "numbers in column age, found 'inf' in row 6 after"),
    (2, '-1e308', {}, "at most 1e.150 in column age, found '-1e308' in row 6"),
    (1, '', {}, 'a sex in every row, found none in row 6'),
    (0, '?', {}, 'a hospital in every row, found none in row 6'),
    (
      2,
      'old',
      dict(domain_column='age', domain_bounds=[3]),
      "column age, found 'old' in row 6 .*`domain_bounds`",
    ),
    (2, 'old', dict(weight_column='age'), "'old' in row 6 .*weights are numb"),
    (2, '-3', dict(weight_column='age'), 'not negative, found -3'),
    (3, '', dict(weight_column='weight'), 'a weight in every row, found none'),
    *(
      (0, 'a', {name: value}, f'`{name}` .*found {found}')
      for name, value, found in (
        ('label_column', 'dead', "'dead'"),
        ('domain_column', 'race', "'race'"),
        ('domain_column', 'ill', "'ill'"),
        ('client_column', 'ward', "'ward'"),
        ('client_column', 'ill', "'ill'"),
        ('client_column', None, 'None'),
        ('weight_column', 'w', "'w'"),
        ('drop_columns', ['id'], "'id'"),
        ('categorical_columns', ['z'], "'z'"),
        ('zero_is_missing_columns', ['z'], "'z'"),
        ('zero_is_missing_columns', ['code'], "'code'"),
        ('domain_bounds', [3, 3], ''),
        ('test_fraction', 1, '1'),
        ('seed', -1, '-1'),
      )
    ),
    (0, 'a', dict(zero_is_missing_columns=['blood']), "blood, found 'A'"),
    (0, 'a', dict(domain_bounds=[3], domain_column=None), '`domain_bounds`'),
    (0, 'a', dict(num_clients=4), 'at most 3, the number of clients'),
  ],
)
def test_mistakes_are_one_line_errors(tmp_path, column, value, kwargs, match):
  rows = [list(row) for row in _rows()]
  rows[5][column] = value
  with shared.one_line_error(match):
    _load(_write(tmp_path / 'a.csv', rows), **kwargs)


@pytest.mark.parametrize(
  'heading, row, kwargs, match',
  [
    (('', 'label'), lambda i: (i, i % 2), {}, 'a column that is an input'),
    (('empty', 'y'), lambda i: ('', i % 2), {}, 'a empty in some row, .*`drop'),
    (('name', 'y'), lambda i: (f'name {i}', i % 2), {}, '1000 .*1100'),
    (('n', 'y'), lambda i: (i, i % 2), dict(domain_column='n'), '100 .*1100'),
  ],
)
def test_columns_of_no_or_too_many_values_are_errors(
  tmp_path, heading, row, kwargs, match
):
  with shared.one_line_error(match):
    _load_pooled(tmp_path, heading, map(row, range(1100)), **kwargs)
