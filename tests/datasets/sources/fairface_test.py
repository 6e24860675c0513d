import functools

import numpy as np
import pytest
import tensorflow as tf

from tests.datasets import shared
from tff_pfl.datasets import validation
from tff_pfl.datasets.sources import fairface

_SIZES = {'train': 42, 'val': 14}
_load = functools.partial(shared.load, 'fairface', partition='domain_mixture:1')


def _color(split, number):
  return [(40 * number) % 256, 100 if split == 'train' else 200, number]


@pytest.fixture(name='folder')
def _folder(tmp_path):
  for split, count in _SIZES.items():
    (tmp_path / split).mkdir()
    rows = []
    for i in range(count):
      image = np.full((24, 24, 3), _color(split, i), np.uint8)
      path = tmp_path / split / f'{i + 1}.jpg'
      path.write_bytes(tf.io.encode_jpeg(image, quality=100).numpy())
      rows.append(
        (
          f'{split}/{i + 1}.jpg',
          fairface.LABELS['age'][i % 9],
          fairface.LABELS['gender'][i // 3 % 2],
          fairface.RACES[i % 7],
          'True',
        )
      )
    _write(tmp_path, split, rows)
  return tmp_path


def _write(folder, split, rows, columns='file,age,gender,race,service_test'):
  path = folder / f'fairface_label_{split}.csv'
  shared.write_csv(path, columns.split(','), rows)


def test_images_come_with_their_label_and_race(folder):
  dataset = _load(folder, 1, partition='iid', image_size=16)
  assert dataset.name == 'fairface'
  assert dataset.num_classes == 9
  assert dataset.domain_names == fairface.RACES
  assert dataset.element_spec == shared.spec(16, 16, 3, domain=True)
  for split, read in (('train', dataset.train), ('val', dataset.test)):
    part = read('client_0')
    # An image's color tells which it is.
    colors = np.array([_color(split, i) for i in range(_SIZES[split])])
    differences = np.abs(part.x[:, 8, 8, np.newaxis] * 255 - colors)
    numbers = np.argmin(differences.sum(axis=2), axis=1)
    assert sorted(numbers) == list(range(_SIZES[split]))
    np.testing.assert_array_equal(part.y, numbers % 9)
    np.testing.assert_array_equal(part.domain, numbers % 7)


def test_images_are_decoded_once_and_only_if_asked_for(folder, monkeypatch):
  read = []
  decode = tf.io.read_file
  monkeypatch.setattr(
    tf.io, 'read_file', lambda path: read.append(path) or decode(path)
  )
  dataset = _load(folder, 6, partition='domain_mixture:1:4', image_size=8)
  first = len(read)
  assert first <= 1
  part = dataset.train('client_2')
  assert part.x.shape == (4, 8, 8, 3)
  assert first < len(read) <= 5
  again = dataset.train('client_2')
  np.testing.assert_array_equal(part.x, again.x)
  assert len(read) <= 5 and len(set(read)) == len(read)
  num_read = len(read)
  fingerprint = dataset.fingerprint
  # Also where a part of the training examples is held out.
  assert validation.validation_view(dataset, 0.3, seed=0).fingerprint
  assert len(read) == num_read
  images = sorted((folder / 'train').iterdir())
  for image in images:
    image.write_bytes(images[0].read_bytes())
  again = _load(folder, 6, partition='domain_mixture:1:4', image_size=8)
  assert again.fingerprint != fingerprint


def test_gender_is_the_other_label_and_a_damaged_image_is_named(folder):
  (folder / 'train' / '3.jpg').write_bytes(b'no image')
  arrays = fairface.load_fairface(str(folder), label='gender')
  assert arrays.num_classes == 2
  np.testing.assert_array_equal(arrays.y, np.arange(42) // 3 % 2)
  assert arrays.transform(arrays.x[:2]).shape == (2, 64, 64, 3)
  with pytest.raises(ValueError, match='3.jpg` to be an image'):
    arrays.transform(arrays.x[1:4])


_ROW = 'train/1.jpg', '3-9', 'Male', 'White'


@pytest.mark.parametrize(
  'rows, columns, kwargs, match',
  [
    (
      [_ROW[:2] + _ROW[3:]],
      'file,age,race',
      {},
      'columns file, age, gender, race, found f',
    ),
    *(
      ([row], 'file,age,gender,race', kwargs, match)
      for row, kwargs, match in (
        (
          (*_ROW[:3], 'Martian'),
          {},
          "'race' to have one of White, .*, found 'Martia",
        ),
        (('train/99.jpg', *_ROW[1:]), {}, '99.jpg` to be an image file, found'),
        (_ROW, dict(image_size=4), '`image_size`'),
      )
    ),
  ],
)
def test_mistakes_are_one_line_errors(folder, rows, columns, kwargs, match):
  _write(folder, 'train', rows, columns)
  with shared.one_line_error(match):
    _load(folder, **kwargs)
