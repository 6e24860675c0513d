import functools
import os

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


class _Malicious:
  """Makes a folder where it is unpickled."""

  def __init__(self, path):
    self._path = str(path)

  def __reduce__(self):
    return os.mkdir, (self._path,)


def test_files_of_strangers_run_nothing(tmp_path):
  victim = tmp_path / 'made'
  _write(tmp_path, 'train', 0, _Malicious(victim), np.arange(2))
  with shared.one_line_error(r'0.npz` to hold arrays.*found posix.mkdir, whi'):
    _load(tmp_path, num_clients=1)
  assert not victim.exists()
  # The file would have done it.
  np.load(tmp_path / 'train' / '0.npz', allow_pickle=True)['data']
  assert victim.exists()


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
  (folder / 'test' / '2.npz').write_bytes(b'PK')
  with shared.one_line_error('2.npz` to be a complete .npz file'):
    _load(folder)
  np.savez(folder / 'test' / '2.npz', x=[1], y=[1])
  with shared.one_line_error('2.npz` to be an .npz file with data, found x, y'):
    _load(folder)
  with shared.one_line_error(r'no file \*.npz in .*config'):
    (folder / 'config').mkdir()
    _load(folder / 'config')
