"""Tests of central examples before they become clients."""

import gzip
import io
import struct
import threading
import tracemalloc
import zipfile

import numpy as np
import pytest

from tff_pfl.datasets import arrays as arrays_lib


def _arrays(**kwargs):
  # Each input tells its own index, so that it can be followed.
  arguments = dict(
    name='mine',
    x=np.arange(40, dtype=np.uint8)[:, np.newaxis],
    y=np.arange(40) % 4,
    x_test=np.arange(100, 112, dtype=np.uint8)[:, np.newaxis],
    y_test=np.arange(100, 112) % 4,
    num_classes=4,
    transform=arrays_lib.to_unit_interval,
  )
  return arrays_lib.Arrays(**{**arguments, **kwargs})


def test_labels_become_int32_and_inputs_stay_as_they_are():
  x = np.zeros((40, 2, 2), np.uint8)
  arrays = _arrays(x=x)
  assert arrays.x is x
  assert arrays.y.dtype == arrays.y_test.dtype == np.int32


def test_of_classes_keeps_the_examples_of_these_classes_and_their_labels():
  arrays = _arrays().of_classes([3, 1])
  assert arrays.x.ravel().tolist() == list(range(1, 40, 2))
  assert arrays.y.tolist() == [1, 3] * 10
  assert arrays.x_test.ravel().tolist() == list(range(101, 112, 2))
  assert arrays.y_test.tolist() == [1, 3] * 3
  assert arrays.num_classes == 4
  assert arrays.transform is arrays_lib.to_unit_interval


def test_clients_of_some_classes_have_the_label_space_of_all():
  dataset = _arrays().of_classes(range(2)).to_clients(2, 'shards:1', seed=1)
  assert dataset.num_classes == 4
  counts = dataset.class_counts()
  assert sorted(counts.tolist()) == [[0, 10, 0, 0], [10, 0, 0, 0]]


@pytest.mark.parametrize(
  'classes', [[], [4], [-1], [1, 1], [0.5], ['1'], [0, 1, 2, 3, 4]]
)
def test_of_classes_that_do_not_exist_is_an_error(classes):
  with pytest.raises(
    ValueError, match=r'`classes` to be distinct integers in \[0, 4\)'
  ):
    _arrays().of_classes(classes)


def test_as_floats_transforms_all_inputs_once():
  arrays = _arrays()
  floats = arrays.as_floats()
  for name in ('x', 'x_test'):
    found = getattr(floats, name)
    assert found.dtype == np.float32
    np.testing.assert_array_equal(
      found, getattr(arrays, name) / np.float32(255)
    )
  assert floats.transform is None
  assert floats.as_floats() is floats
  for a, b in zip(
    arrays.to_clients(2, 'iid').train('client_1'),
    floats.to_clients(2, 'iid').train('client_1'),
  ):
    np.testing.assert_array_equal(a, b)


def test_to_unit_interval_maps_bytes():
  found = arrays_lib.to_unit_interval(np.array([0, 51, 255], np.uint8))
  assert found.dtype == np.float32
  np.testing.assert_array_equal(found, np.float32([0, 0.2, 1]))


@pytest.mark.parametrize(
  'kwargs, match',
  [
    (dict(y=np.full(40, 4)), r'`y\[0\]` to be a label.*found 4'),
    (dict(y_test=np.full(12, -1)), r'`y_test\[0\]` to be a label'),
    (dict(y=np.zeros(39)), r'`y` to be as long as `x` \(40 examples\)'),
    (dict(x_test=np.zeros((3, 1))), r'`y_test` to be as long as `x_test`'),
  ],
)
def test_labels_that_do_not_fit_are_errors(kwargs, match):
  with pytest.raises(ValueError, match=match):
    _arrays(**kwargs)


def test_find_file_takes_the_file_its_folder_or_the_parent(tmp_path):
  folder = tmp_path / 'tweets'
  folder.mkdir()
  path = folder / 'my_tweets.csv'
  path.write_text('')
  for data_dir in (path, folder, tmp_path):
    found = arrays_lib.find_file('tweets', str(data_dir), ('*tweets*.csv',))
    assert found == str(path)


def test_find_file_takes_any_file_that_is_named_itself(tmp_path):
  path = tmp_path / 'other.txt'
  path.write_text('')
  assert arrays_lib.find_file('tweets', str(path), ('*.csv',)) == str(path)


def test_find_file_refuses_two_files_none_and_no_folder(tmp_path):
  patterns = ('*tweets*.csv', '*.csv')
  with pytest.raises(ValueError, match=r'hold \*tweets\*.csv or .*found none'):
    arrays_lib.find_file('tweets', str(tmp_path), patterns)
  for name in ('a_tweets.csv', 'b_tweets.csv'):
    (tmp_path / name).write_text('')
  with pytest.raises(ValueError, match='once, .*a_tweets.csv.* and .*b_tweets'):
    arrays_lib.find_file('tweets', str(tmp_path), patterns)
  with pytest.raises(ValueError, match='an existing file or folder'):
    arrays_lib.find_file('tweets', str(tmp_path / 'nowhere'), patterns)


def _domain_arrays(**kwargs):
  arguments = dict(
    domain=np.arange(40) % 3,
    domain_test=np.arange(12) % 3,
    domain_names=['a', 'b', 'c'],
  )
  return _arrays(**{**arguments, **kwargs})


def test_domains_follow_their_examples_through_every_step():
  arrays = _domain_arrays()
  assert arrays.domain.dtype == arrays.domain_test.dtype == np.int32
  assert arrays.domain_names == ('a', 'b', 'c')
  some = arrays.of_classes([3, 1])
  np.testing.assert_array_equal(some.domain, some.x.ravel() % 3)
  np.testing.assert_array_equal(some.domain_test, (some.x_test.ravel() - 1) % 3)
  floats = some.as_floats()
  np.testing.assert_array_equal(floats.domain, some.domain)
  dataset = some.to_clients(2, 'iid')
  assert dataset.domain_names == ('a', 'b', 'c')
  for client_id in dataset.client_ids:
    part = dataset.train(client_id)
    np.testing.assert_array_equal(
      part.domain, np.round(part.x.ravel() * 255) % 3
    )
  assert (
    dataset.domain_counts('test').sum(axis=0).tolist()
    == np.bincount(some.domain_test).tolist()
  )


def test_domain_names_default_to_numbers():
  arrays = _domain_arrays(domain_names=None, domain_test=np.full(12, 4))
  assert arrays.domain_names == tuple(f'domain_{i}' for i in range(5))
  assert _arrays().domain_names is None


@pytest.mark.parametrize(
  'change, match',
  [
    ({'domain': None}, '`domain_test` to be given together with `domain`'),
    (
      {'domain': None, 'domain_test': None},
      '`domain_names` to be given together with `domain`',
    ),
    ({'domain_test': None}, '`domain_test` to be given if and only if'),
    ({'domain': np.zeros(39, int)}, '`domain` to be 40 domain ids.*found 39'),
    ({'domain_test': [0]}, '`domain_test` to be 12 domain ids.*found 1'),
    ({'domain': [3] * 40}, r'`domain\[0\]` to be .* in \[0, 3\), found 3'),
    (
      {'domain_test': [0] * 11 + [-1]},
      r'`domain_test\[11\]` to be .* in \[0, 3\), found -1',
    ),
    (
      {'domain': [-1] * 40, 'domain_names': None},
      'an integer that is not negative, found -1',
    ),
    (
      {'domain': np.zeros(40)},
      'integers, one domain id .* found ndarray of fl',
    ),
    ({'domain': ['a'] * 40}, 'number the domains from 0'),
    ({'domain': np.zeros((40, 1), int)}, r'and shape \(40, 1\)'),
    ({'domain_names': ['a', 'b', 'a']}, "`domain_names` to be distinct.*'a'"),
    ({'domain_names': 'abc'}, '`domain_names` to be a list of names'),
    ({'domain_names': []}, '`domain_names` to be a list of names'),
    ({'domain_names': [1, 2, 3]}, '`domain_names` to be a list of names'),
    (
      {'domain': [10**6] * 40, 'domain_names': None},
      '`domain_names` to be given where domain ids exceed .* 1000000',
    ),
  ],
)
def test_inconsistent_domains_are_one_line_errors(change, match):
  with pytest.raises(ValueError, match=match) as error:
    _domain_arrays(**change)
  assert '\n' not in str(error.value)


def test_npz_files_are_read_in_order_and_their_headers_by_one_thread(
  tmp_path, monkeypatch
):
  paths = [str(tmp_path / f'{i}.npz') for i in range(3)]
  for i, path in enumerate(paths):
    np.savez_compressed(path, x=np.full(4, i), y=np.arange(i), z=np.zeros(1))
  readers = set()
  read_array = np.lib.format.read_array

  def recorded(*args, **kwargs):
    readers.add(threading.get_ident())
    return read_array(*args, **kwargs)

  monkeypatch.setattr(np.lib.format, 'read_array', recorded)
  found = arrays_lib.read_npz_files(paths, [('y', 'x')] * 3)
  assert [(y.tolist(), x.tolist()) for y, x in found] == [
    (list(range(i)), [i] * 4) for i in range(3)
  ]
  assert readers == {threading.get_ident()}


def test_first_npz_file_that_is_bad_is_named(tmp_path):
  paths = [str(tmp_path / f'{name}.npz') for name in ('good', 'other', 'bad')]
  np.savez(paths[0], x=np.zeros(2))
  np.savez(paths[1], y=np.zeros(2), z=np.zeros(2))
  (tmp_path / 'bad.npz').write_bytes(b'no archive')
  with pytest.raises(ValueError, match='other.npz. .* with x, found y, z;'):
    arrays_lib.read_npz_files(paths, [('x',)] * 3)
  with pytest.raises(ValueError, match='bad.npz.*a damaged one'):
    arrays_lib.read_npz_files(paths[::2], [('x',)] * 2)


def _npz_of(array_bytes):
  """A file of one array `x`, which is stored as these bytes."""
  content = io.BytesIO()
  with zipfile.ZipFile(content, 'w') as archive:
    archive.writestr('x.npy', array_bytes)
  return content.getvalue()


def _npy(shape):
  header = f"{{'descr': '<f8', 'fortran_order': False, 'shape': {shape}}}"
  header = header.ljust(117) + '\n'
  return b'\x93NUMPY\x01\x00' + struct.pack('<H', len(header)) + header.encode()


def _with_zip_fields(flags, method):
  """As `_npz_of`, with other values in both of the member's headers."""
  content = _npz_of(_npy('(0,)'))
  for magic, first in ((b'PK\x03\x04', 6), (b'PK\x01\x02', 8)):
    place = content.index(magic) + first
    fields = struct.pack('<HH', flags, method)
    content = content[:place] + fields + content[place + 4 :]
  return content


@pytest.mark.parametrize(
  'content, match',
  [
    (_npz_of(b'\x93NUMPY\x01\x00\x04\x00((((' + bytes(9)), 'EOF'),
    (_npz_of(_npy('(2**45,)')), 'malformed'),
    (_npz_of(_npy((2**45,))), 'Unable to allocate 256. TiB'),
    (_with_zip_fields(flags=1, method=0), 'encrypted'),
    (_with_zip_fields(flags=0, method=99), 'compression method'),
  ],
  ids=['header', 'shape', 'too_large', 'encrypted', 'unknown_compression'],
)
def test_npz_files_that_cannot_be_read_are_named(tmp_path, content, match):
  path = tmp_path / 'a.npz'
  path.write_bytes(content)
  for read in (
    arrays_lib.read_all_npz,
    lambda path: arrays_lib.read_npz(path, ['x']),
  ):
    with pytest.raises(
      ValueError, match=f'a.npz` to be a complete .npz.*{match}'
    ) as error:
      read(str(path))
    assert '\n' not in str(error.value)


def test_no_more_of_an_npz_file_is_unpacked_than_it_says(tmp_path):
  path = tmp_path / 'a.npz'
  np.savez_compressed(path, x=np.zeros(10**8, np.uint8))
  content = path.read_bytes()
  size = (10**8 + 128).to_bytes(4, 'little')
  assert content.count(size) == 2
  path.write_bytes(content.replace(size, (200).to_bytes(4, 'little')))
  tracemalloc.start()
  with pytest.raises(ValueError, match='a.npz` to be a complete .npz'):
    arrays_lib.read_all_npz(str(path))
  assert tracemalloc.get_traced_memory()[1] < 10**7
  tracemalloc.stop()


def test_files_that_unpack_to_too_much_are_named(tmp_path, monkeypatch):
  monkeypatch.setattr(arrays_lib, '_MAX_UNPACKED', 1000)
  npz, gz = str(tmp_path / 'a.npz'), str(tmp_path / 'a.gz')
  for num_bytes, fits in ((600, True), (10**6, False)):
    np.savez_compressed(npz, x=np.zeros(num_bytes, np.uint8), y=1)
    (tmp_path / 'a.gz').write_bytes(gzip.compress(bytes(num_bytes)))
    for read, path in (
      (arrays_lib.read_all_npz, npz),
      (lambda path: arrays_lib.read_npz(path, ['x']), npz),
      (arrays_lib.read_bytes, gz),
    ):
      if fits:
        assert read(path)
        continue
      with pytest.raises(ValueError, match=f'`{path}` to unpack to at most'):
        read(path)
  # What is not asked for may be of any size, and well packed data be large.
  assert arrays_lib.read_npz(npz, ['y']) == [1]
  content = np.random.default_rng(0).bytes(10**6)
  (tmp_path / 'a.gz').write_bytes(gzip.compress(content))
  assert arrays_lib.read_bytes(gz) == content
