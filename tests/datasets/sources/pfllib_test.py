import functools
import io
import os
import pickle
import zipfile

import numpy as np
import pytest

from tests.datasets import shared


def _write(folder, part, client, x, y):
  """Writes a file as PFLlib's `save_file` does."""
  (folder / part).mkdir(exist_ok=True)
  with open(folder / part / f'{client}.npz', 'wb') as file:
    np.savez_compressed(file, data={'x': x, 'y': y})


_load = functools.partial(shared.load, 'pfllib', num_clients=3)


@pytest.fixture(name='folder')
def _folder(tmp_path):
  (tmp_path / 'config.json').write_text('{"num_clients": 3}')
  rng = np.random.default_rng(0)
  for client in (0, 2, 10):
    for part, count in (('train', 6), ('test', 2)):
      x = rng.normal(size=(count, 3, 4, 5)).astype(np.float32)
      _write(tmp_path, part, client, x, np.arange(count) % 4)
  return tmp_path


def test_files_are_clients_and_channels_come_last(folder):
  data = _load(folder)
  assert data.client_ids == ('0', '2', '10')
  assert data.num_classes == 4
  assert data.element_spec == shared.spec(4, 5, 3)
  for part, examples in (
    ('train', data.train('10')),
    ('test', data.test('10')),
  ):
    path = folder / part / '10.npz'
    source = np.load(path, allow_pickle=True)['data'].item()
    np.testing.assert_array_equal(examples.x, source['x'].transpose(0, 2, 3, 1))
    np.testing.assert_array_equal(examples.y, source['y'])
  assert data.load_again().fingerprint == data.fingerprint
  kept = _load(folder, channels_first=False)
  assert kept.element_spec == shared.spec(3, 4, 5)


def test_texts_are_their_tokens(tmp_path):
  pairs = np.array([([7, 8, 0], 3), ([9, 0, 0], 3)], dtype=object)
  # Labels of a list, too, as scikit-learn divides lists.
  _write(tmp_path, 'train', 0, pairs, [np.int64(1), np.int64(0)])
  data = _load(tmp_path, num_clients=1, test_fraction=0)
  examples = data.train('0')
  assert examples.x.dtype == np.int32
  assert examples.x.tolist() == [[7, 8, 0], [9, 0, 0]]
  assert examples.y.tolist() == [1, 0]


class _Pickled:
  """Is pickled as a call, its arguments and, if any, the result's state."""

  def __init__(self, *reduced):
    self._reduced = reduced

  def __reduce__(self):
    return self._reduced


@pytest.mark.parametrize(
  ('function', 'code', 'name'),
  [(os.mkdir, '{}', 'posix.mkdir'), (eval, 'open({!r}, "w")', 'builtins.eval')],
)
def test_files_of_strangers_run_nothing(tmp_path, function, code, name):
  victim = tmp_path / 'made'
  malicious = _Pickled(function, (code.format(str(victim)),))
  _write(tmp_path, 'train', 0, malicious, np.arange(2))
  with shared.one_line_error(f"0.npz` to hold arrays.*found '{name}', which"):
    _load(tmp_path, num_clients=1)
  assert not victim.exists()
  # The file would have done it.
  np.load(tmp_path / 'train' / '0.npz', allow_pickle=True)['data']
  assert victim.exists()


def _pointers(code, fields=None):
  """An array whose dtype makes NumPy take its bytes for Python objects."""
  state = (3, '|', None, tuple(fields or ()), fields, 8, 1, 63)
  dtype = _Pickled(np.dtype, (code, False, True), state)
  make, arguments, _ = np.zeros(2).__reduce__()
  return _Pickled(make, arguments, (1, (2,), dtype, False, b'A' * 16))


def _content(x, y, protocol=4):
  """The content of `data.npy`, as `_write` has it with protocol 4."""
  array = np.empty((), object)
  array[()] = {'x': x, 'y': y}
  file = io.BytesIO()
  np.lib.format.write_array_header_1_0(
    file, {'descr': '|O', 'fortran_order': False, 'shape': ()}
  )
  return file.getvalue() + pickle.dumps(array, protocol)


def _write_content(path, content):
  with zipfile.ZipFile(path, 'w') as file:
    file.writestr('data.npy', content)


_Y = np.arange(2)
_ARRAYS = _content(np.ones((2, 1, 3, 2), '>f4'), _Y)
_TEXTS = _content(np.array([([700, 0], 1), ([5, -6], 2)], dtype=object), _Y)
# As NumPy 1 wrote them.
_OLD = _content(
  np.asfortranarray(np.arange(6, dtype=np.uint8).reshape(2, 3)), [*_Y], 3
).replace(b'numpy._core', b'numpy.core')


@pytest.mark.parametrize(
  ('content', 'x'),
  [
    (_ARRAYS, np.ones((2, 3, 2, 1))),
    (_TEXTS, [[700, 0], [5, -6]]),
    (_OLD, [[0, 1, 2], [3, 4, 5]]),
  ],
)
def test_pickles_of_old_and_new_numpy_are_read(tmp_path, content, x):
  _write_content(tmp_path / '0.npz', content)
  data = _load(tmp_path, num_clients=1, test_fraction=0)
  np.testing.assert_array_equal(data.train('0').x, x)
  assert data.train('0').y.tolist() == [0, 1]


@pytest.mark.parametrize(
  ('content', 'match'),
  [
    (
      _content(_pointers('V8', {'f': (np.dtype(object), 0)}), _Y),
      r'x of .V8 and y of int64, not of numbers',
    ),
    (_content(_pointers('O'), _Y), 'cannot create an OBJECT array'),
    (_content(_pointers('O8'), _Y), 'cannot reshape'),
    (_content(np.ones(2, [('f', 'f4')]), _Y), 'not of numbers'),
    (_content(np.ones(2), ['a', 'b']), 'y of <U1, not of numbers'),
    (_ARRAYS.replace(b'K\x02K\x01K', b'K\x02K\x02K'), 'cannot reshape'),
    (_content(np.array([([1], 1), ([1, 2], 1)], object), _Y), 'inhomogeneous'),
    (_content(np.array([None, 1]), _Y), 'too many indices'),
    (_ARRAYS[:-1], 'pickle data was truncated'),
  ],
)
def test_crafted_and_damaged_pickles_are_refused(tmp_path, content, match):
  _write_content(tmp_path / '0.npz', content)
  with shared.one_line_error(f'0.npz` to be .* a damaged one .*{match}'):
    _load(tmp_path, num_clients=1)


def test_what_cannot_be_read_is_one_line(folder):
  np.savez(folder / 'test' / '2.npz', x=[1], y=[1])
  with shared.one_line_error(r'2.npz` to be .* no item named .data\.npy'):
    _load(folder)
  with shared.one_line_error(r'no file \*.npz in .*config'):
    (folder / 'config').mkdir()
    _load(folder / 'config')
