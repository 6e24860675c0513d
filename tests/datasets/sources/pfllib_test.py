import functools
import io
import os
import pickle
import zipfile

import numpy as np
import pytest

from tests.datasets import shared
from tff_pfl.datasets.sources import pfllib


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


class _Malicious:
  """Makes a folder where it is unpickled."""

  def __init__(self, path):
    self._path = str(path)

  def __reduce__(self):
    return os.mkdir, (self._path,)


def test_files_of_strangers_run_nothing(tmp_path):
  victim = tmp_path / 'made'
  _write(tmp_path, 'train', 0, _Malicious(victim), np.arange(2))
  with shared.one_line_error(r"0.npz` to hold arrays.*found 'posix.mkdir', w"):
    _load(tmp_path, num_clients=1)
  assert not victim.exists()
  # The file would have done it.
  np.load(tmp_path / 'train' / '0.npz', allow_pickle=True)['data']
  assert victim.exists()


class _Pointers:
  """An array whose dtype makes NumPy take its bytes for Python objects."""

  def __init__(self, flags=0):
    self._flags = flags

  def __reduce__(self):
    make, arguments, _ = np.zeros(2).__reduce__()
    return make, arguments, (1, (2,), _Dtype(self._flags), False, b'A' * 16)


class _Dtype:
  def __init__(self, flags):
    self._flags = flags

  def __reduce__(self):
    fields = {'f': (np.dtype(object), 0)}
    state = (3, '|', None, ('f',), fields, 8, 1, self._flags)
    return np.dtype, ('V8', False, True), state


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


def _pickled(*opcodes):
  """The arrays' content with other opcodes in place of their first."""
  start = _ARRAYS.index(b'\x80\x04')
  return _ARRAYS[:start] + b''.join(opcodes) + _ARRAYS[start:]


@pytest.mark.parametrize(
  ('content', 'match'),
  [
    (_content(_Pointers(), _Y), 'an array that is not of numbers'),
    (_content(_Pointers(63), _Y), 'an array that is not of numbers'),
    (_content(np.ones(2, [('f', 'f4')]), _Y), 'an array that is not of num'),
    (_ARRAYS.replace(b'K\x02K\x01K', b'K\x02K\x02K'), 'do not fit its shape'),
    # A length of 2 ** 31 - 1.
    (
      _ARRAYS.replace(b'K\x02K\x01K', b'K\x02J\xff\xff\xff\x7fK'),
      'do not fit its shape',
    ),
    (_content([[0, 1]] * 2, _Y), 'a list that is not of numbers'),
    (_content([*np.ones([2, 2])], _Y), 'a list that is not of numbers'),
    # 10 ** 10 tokens in a file of 240 kB.
    (
      _content(np.array([([0] * 10**5, 1)] * 10**5, dtype=object), _Y),
      'texts that are no lists',
    ),
    (_content(np.array([('a' * 9, 1)] * 2, dtype=object), _Y), 'texts that ar'),
    # A million of these overflow the stack where they are hashed.
    (_pickled(b'})', b'\x85' * 9, b'Ns'), 'a key that is no text'),
    # The memo's place 2 ** 31 - 1, which the pickle module's memo has room for.
    (_pickled(b'Nr\xff\xff\xff\x7f', b'Q'), 'opcode 0x51'),
    # 2 ** 60 bytes of which there are none.
    (_pickled(b'\x8e' + b'\0' * 7 + b'\x10'), 'index out of range'),
    (_ARRAYS[:-1], 'index out of range'),
  ],
)
def test_crafted_pickles_are_refused(tmp_path, content, match):
  _write_content(tmp_path / '0.npz', content)
  with shared.one_line_error(f'0.npz` to be .* a damaged one .*{match}'):
    _load(tmp_path, num_clients=1)


def test_mutated_files_are_read_or_refused_in_one_line(tmp_path):
  rng = np.random.default_rng(0)
  num_read = 0
  for number in range(500):
    content = (_ARRAYS, _TEXTS, _OLD)[number % 3]
    for _ in range(rng.integers(1, 3)):
      # After NumPy's header of 128 bytes.
      start = rng.integers(128, len(content))
      part = content[start : start + rng.integers(1, 9)]
      byte = bytes(rng.integers(0, 256, 1, np.uint8))
      parts = [byte + part[1:], byte + part, b'', 2 * part]
      rest = content[start + len(part) :]
      content = content[:start] + parts[rng.integers(4)] + rest
    path = tmp_path / f'{number}.npz'
    _write_content(path, content)
    try:
      pfllib.load_pfllib(str(path))
      num_read += 1
    except ValueError as error:
      assert '\n' not in str(error)
  assert 25 < num_read < 475


@pytest.mark.parametrize(
  'x, y, match',
  [
    (np.ones((3, 2)), np.arange(2), r'found inputs \(3, 2\) and labels \(2,\)'),
    (np.ones((2, 3)), np.arange(2), r'1.npz` .*\(2,\), as .*0.npz'),
    (np.array([None, 1]), np.arange(2), '1.npz` to be a complete .npz file'),
  ],
)
def test_files_of_another_form_are_named(tmp_path, x, y, match):
  _write(tmp_path, 'train', 0, np.ones((2, 2)), np.arange(2))
  _write(tmp_path, 'train', 1, x, y)
  with shared.one_line_error(match):
    _load(tmp_path, num_clients=2)


def test_what_cannot_be_read_is_one_line(folder):
  np.savez(folder / 'test' / '2.npz', x=[1], y=[1])
  with shared.one_line_error('2.npz` to be an .npz file with data, found x, y'):
    _load(folder)
  with shared.one_line_error(r'no file \*.npz in .*config'):
    (folder / 'config').mkdir()
    _load(folder / 'config')
