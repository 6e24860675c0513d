import functools
import json
import pickle

import numpy as np
import pytest

from tests.datasets import shared
from tff_pfl.datasets.sources import shakespeare


def _write(path, data, **changes):
  """Writes users' `(x, y)` as LEAF's preprocessing does."""
  path.parent.mkdir(exist_ok=True)
  content = dict(
    users=list(data),
    num_samples=[len(y) for _, y in data.values()],
    user_data={user: dict(x=x, y=y) for user, (x, y) in data.items()},
  )
  path.write_text(json.dumps({**content, **changes}))


def _images(first, count):
  """Images of 4 pixels that tell their number, of class number % 3."""
  numbers = range(first, first + count)
  return [[i / 100] * 4 for i in numbers], [i % 3 for i in numbers]


_load = functools.partial(shared.load, 'leaf')


def test_users_of_all_files_are_clients(tmp_path):
  train, test = tmp_path / 'train', tmp_path / 'test'
  _write(train / 'all_data_0.json', {'f1': _images(0, 4), 'f2': _images(4, 5)})
  _write(train / 'all_data_1.json', {'f0': _images(9, 3), 'none': ([], [])})
  _write(test / 'all_data_0.json', {'f2': _images(20, 2), 'f1': _images(22, 1)})
  data = _load(tmp_path, 3, image_shape=[2, 2, 1])
  assert data.client_ids == ('f0', 'f1', 'f2')
  assert data.num_classes == 3
  assert data.element_spec == shared.spec(2, 2, 1)
  for client_id, part, first, count in (
    ('f0', data.train, 9, 3),
    ('f1', data.train, 0, 4),
    ('f2', data.train, 4, 5),
    ('f0', data.test, 0, 0),
    ('f1', data.test, 22, 1),
    ('f2', data.test, 20, 2),
  ):
    x, y = _images(first, count)
    examples = part(client_id)
    np.testing.assert_allclose(examples.x.ravel(), np.ravel(x))
    assert examples.y.tolist() == y
  assert data.load_again().fingerprint == data.fingerprint


def test_one_file_is_divided_and_words_are_classes(tmp_path):
  path = tmp_path / 'mine.json'
  x, _ = _images(0, 10)
  _write(path, {'a': (x, ['no', 'yes'] * 5), 'b': (x, ['maybe'] * 10)})
  data = _load(path, 2)
  assert data.element_spec == shared.spec(4)
  assert data.class_counts().tolist() == [[0, 4, 4], [8, 0, 0]]
  assert data.class_counts('test').tolist() == [[0, 1, 1], [2, 0, 0]]
  assert data.class_names == ('maybe', 'no', 'yes')
  # Another file may have only some of these classes, or more.
  more = data.with_class_names(['yes', 'no', 'never', 'maybe'])
  assert more.class_counts().tolist() == [[4, 4, 0, 0], [0, 0, 0, 8]]
  assert pickle.loads(pickle.dumps(more)).fingerprint == more.fingerprint
  again = _load(tmp_path, 2)
  assert again.fingerprint == data.fingerprint


def test_whole_floats_are_classes_unless_told_otherwise(tmp_path):
  _write(tmp_path / 'mine.json', {'a': (_images(0, 4)[0], [0.0, 2.0] * 2)})
  assert _load(tmp_path, 1).num_classes == 3
  data = _load(tmp_path, 1, regression=True)
  assert data.num_classes is None
  assert {*data.train('a').y, *data.test('a').y} == {0, 2}
  _write(tmp_path / 'mine.json', {'a': (_images(0, 4)[0], ['no', 'yes'] * 2)})
  with shared.one_line_error('could not convert string to float'):
    _load(tmp_path, 1, regression=True)


def test_texts_are_numbered_like_shakespeare(tmp_path):
  text = 'To be, or not to be'
  windows = [text[i : i + 5] for i in range(10)]
  for part, users in (('train', 'AB'), ('test', 'A')):
    _write(
      tmp_path / part / 'data.json',
      {user: (windows, [*text[5:15]]) for user in users},
    )
  data = _load(tmp_path, 2)
  assert data.num_classes == shakespeare.NUM_CHARACTERS
  assert data.num_overlapping == 5
  codes = shakespeare.encode(text)
  examples = data.train('A')
  assert examples.x.dtype == np.int32
  np.testing.assert_array_equal(examples.x[3], codes[3:8])
  np.testing.assert_array_equal(examples.y, codes[5:15])
  with shared.one_line_error('`num_overlapping` .*at random'):
    _load(tmp_path, 2, test_fraction=0.2)
  with shared.one_line_error('`data_dir` to be a folder with train/ and test/'):
    _load(tmp_path / 'train', 2)


@pytest.mark.parametrize(
  'user, changes, match',
  [
    ((['ab', 'abc'], ['d', 'e']), {}, "user 'a' has inputs that are neither"),
    (([[1, 2], [3]], [0, 1]), {}, "mine.json` .*user 'a' has inputs that"),
    (([[1, 2], [3, 4]], [0]), {}, r'label each, found inputs \(2, 2\) and l'),
    (([[1, 2]], [-1]), {}, r'mine.json: .*`y\[0\]` to be a label'),
    (([[1, 2]], [0]), {'user_data': {}}, r'mine.json` .*"users".*KeyError'),
    (([], []), {}, '`data_dir` to be files with training examples'),
  ],
)
def test_files_of_another_form_are_named(tmp_path, user, changes, match):
  _write(tmp_path / 'mine.json', {'a': user}, **changes)
  with shared.one_line_error(match):
    _load(tmp_path / 'mine.json', 1)


def test_what_cannot_be_read_is_one_line(tmp_path):
  _write(tmp_path / 'b.json', {'a': _images(0, 4)})
  with shared.one_line_error(r'`image_shape` .*inputs, \(4,\), found \(3, 1\)'):
    _load(tmp_path, 1, image_shape=[3, 1])
  _write(tmp_path / 'c.json', {'a': ([[1.0]], [0])})
  with shared.one_line_error(r'c.json` .*\(4,\), like .*b.json'):
    _load(tmp_path, 1, image_shape=[2, 2])
  (tmp_path / 'c.json').write_text('{"users": ["a"')
  with shared.one_line_error('c.json` to be a JSON file.*JSONDecodeError'):
    _load(tmp_path, 1)
