import functools

import h5py
import numpy as np
import pytest

from tests.datasets import shared


def _write(path, clients, **fields):
  """Writes clients' examples as TFF's files have them.

  Args:
    fields: From the number of examples and the client's number to a field.
  """
  with h5py.File(path, 'w') as file:
    for number, (client, count) in enumerate(clients.items()):
      for name, make in fields.items():
        file[f'examples/{client}/{name}'] = make(count, number)


def _pixels(count, number):
  return np.float32(
    np.full((count, 4, 5), number) + np.arange(count)[:, None, None] / 10
  )


def _label(count, number):
  return np.arange(number, number + count)


_load = functools.partial(shared.load, 'tff_hdf5', num_clients=3)


@pytest.fixture(name='folder')
def _folder(tmp_path):
  fields = dict(pixels=_pixels, label=_label)
  _write(tmp_path / 'fed_train.h5', dict(f0=6, f1=5, f2=4), **fields)
  _write(tmp_path / 'fed_test.h5', dict(f0=2, f2=1), **fields)
  return tmp_path


def test_clients_have_their_own_examples(folder):
  data = _load(folder)
  assert data.client_ids == ('f0', 'f1', 'f2')
  assert data.num_classes == 6
  assert data.element_spec == shared.spec(4, 5)
  for client_id, part, count, number in (
    ('f0', data.train, 6, 0),
    ('f1', data.train, 5, 1),
    ('f2', data.train, 4, 2),
    ('f0', data.test, 2, 0),
    ('f1', data.test, 0, 0),
    ('f2', data.test, 1, 1),
  ):
    examples = part(client_id)
    np.testing.assert_array_equal(examples.x, _pixels(count, number))
    np.testing.assert_array_equal(examples.y, _label(count, number))
  assert data.load_again().fingerprint == data.fingerprint


def test_inputs_are_read_when_a_client_is_asked_for(folder, monkeypatch):
  read = []
  get = h5py.Dataset.__getitem__

  def getitem(field, key):
    read.append(field.name)
    return get(field, key)

  monkeypatch.setattr(h5py.Dataset, '__getitem__', getitem)
  data = _load(folder)
  del read[:]
  data.train('f1').x  # noqa: B018
  assert read == ['/examples/f1/pixels']


def test_one_file_of_bytes_is_divided_and_scaled(tmp_path):
  path = tmp_path / 'fed_cifar100.h5'
  _write(
    path,
    dict(a=10, b=5),
    image=lambda count, number: np.full((count, 4, 4, 3), 51, np.uint8),
    label=lambda count, number: np.full((count, 1), number),
    coarse_label=lambda count, number: np.zeros((count, 1), int),
    id=lambda count, number: np.array([b'x'] * count),
  )
  data = _load(path, num_clients=2)
  assert data.element_spec == shared.spec(4, 4, 3)
  np.testing.assert_allclose(data.train('a').x, 0.2)
  assert data.class_counts().tolist() == [[8, 0], [0, 4]]
  assert data.class_counts('test').tolist() == [[2, 0], [0, 1]]
  coarse = _load(path, num_clients=2, label_field='coarse_label')
  assert coarse.num_classes == 1
  unscaled = _load(path, num_clients=2, scale=False)
  assert unscaled.element_spec['x'].dtype == np.uint8


@pytest.mark.parametrize(
  'name, make, kwargs, match',
  [
    ('pixels', _pixels, dict(label_field='y'), '`label_field` .*_train.h5'),
    ('pixels', _pixels, dict(input_field='y'), "`input_field` .*found 'y'"),
    (
      'pixels',
      lambda count, number: np.array([b'text'] * count),
      {},
      '`input_field` .*numbers, found none in label, pixels.*shakespeare',
    ),
    ('image', _pixels, {}, '`input_field` .*found image, pixels in'),
    (
      'pixels',
      lambda count, number: np.zeros((count, 2 + number)),
      {},
      r'_train.h5` .*pixels of shape \(2,\) .*found \(1, 3\) and 1 of client b',
    ),
    (
      'label',
      lambda count, number: np.zeros(count - number),
      {},
      r'_train.h5` .*found \(1, 4, 5\) and 0 of client b',
    ),
    ('label', lambda count, number: np.full(count, -1), {}, r'`y\[0\]` to be'),
  ],
)
def test_files_of_another_form_are_named(tmp_path, name, make, kwargs, match):
  fields = {'pixels': _pixels, 'label': _label, name: make}
  for part in ('train', 'test'):
    _write(tmp_path / f'fed_{part}.h5', dict(a=3, b=1), **fields)
  with shared.one_line_error(match):
    _load(tmp_path, num_clients=2, **kwargs)


@pytest.mark.parametrize(('kind', 'found'), shared.KINDS_ELSEWHERE.items())
def test_other_files_are_not_read(folder, kind, found):
  with h5py.File(folder / 'fed_test.h5', 'a') as file:
    shared.link_elsewhere(file, 'examples/f2/pixels', kind)
  with shared.one_line_error(f"_test.h5` to .* found the {found}.*les/f2.*'"):
    _load(folder)


def test_inputs_that_are_not_finite_are_named(folder):
  _write(
    folder / 'fed_train.h5',
    dict(f0=2, f1=2),
    pixels=lambda count, number: np.full((count, 4, 5), [0, np.nan][number]),
    label=_label,
  )
  data = _load(folder)
  data.train('f0').x  # noqa: B018
  with shared.one_line_error(r'fed_train.h5: .*`f1/pixels\[0, 0, 0\]` .*fin'):
    data.train('f1').x  # noqa: B018


def test_what_cannot_be_read_is_one_line(folder):
  with h5py.File(folder / 'fed_test.h5', 'w') as file:
    file['data'] = [1]
  with shared.one_line_error('fed_test.h5` to be an HDF5 file of examples/CLI'):
    _load(folder)
  (folder / 'fed_test.h5').write_bytes(b'no HDF5')
  with shared.one_line_error('fed_test.h5` to be a readable file'):
    _load(folder)
  (folder / 'fed_test.h5').unlink()
  with shared.one_line_error(r'`data_dir` to hold a file \*test.h5'):
    _load(folder)
