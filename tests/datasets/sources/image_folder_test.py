import functools
import struct

import numpy as np
import pytest
import tensorflow as tf

from tests.datasets import shared

_ENCODERS = {
  'jpg': lambda image: tf.io.encode_jpeg(image, quality=100),
  'PNG': tf.io.encode_png,
}


def _write(path, color, ending='PNG', channels=3):
  path.parent.mkdir(parents=True, exist_ok=True)
  image = np.full((12, 10, channels), color, np.uint8)
  path.with_suffix(f'.{ending}').write_bytes(_ENCODERS[ending](image).numpy())


_load = functools.partial(shared.load, 'image_folder')


def test_folders_are_clients_and_classes(tmp_path):
  for i in range(8):
    folder = tmp_path / ['zoe', 'al'][i // 4] / ['dog', 'cat'][i % 2]
    _write(folder / f'{i}', 30 * i, ['jpg', 'PNG'][i % 2])
  (tmp_path / 'zoe' / 'dog' / '.hidden').write_text('')
  data = _load(tmp_path, image_size=8)
  assert data.client_ids == ('al', 'zoe')
  assert data.class_names == ('cat', 'dog')
  assert data.num_classes == 2
  assert data.element_spec == shared.spec(8, 8, 3)
  for client_id, first in (('zoe', 0), ('al', 4)):
    train, test = data.train(client_id), data.test(client_id)
    numbers = [
      round(255 * value / 30)
      for part in (train, test)
      for value in part.x[:, 4, 4, 0].tolist()
    ]
    assert sorted(numbers) == list(range(first, first + 4))
    # cat is 0 and dog 1.
    labels = [*train.y.tolist(), *test.y.tolist()]
    assert labels == [1 - number % 2 for number in numbers]
  assert data.load_again().fingerprint == data.fingerprint


def test_images_below_test_are_those_tested(tmp_path):
  for number, path in enumerate(
    ['train/a/10', 'train/a/9', 'train/b/9', 'test/a/9', 'test/a/10']
  ):
    _write(tmp_path / path / 'image', 10 * number, channels=1)
  data = _load(tmp_path, image_size=12, channels=1)
  assert data.element_spec == shared.spec(12, 12, 1)
  # Numbers are sorted as numbers: 9 is class 0.
  actual = {
    (split, client_id): sorted(
      zip(part.y.tolist(), (255 * part.x[:, 0, 0, 0]).round().tolist())
    )
    for client_id in data.client_ids
    for split, part in (
      ('train', data.train(client_id)),
      ('test', data.test(client_id)),
    )
  }
  assert actual == {
    ('train', 'a'): [(0, 10), (1, 0)],
    ('test', 'a'): [(0, 30), (1, 40)],
    ('train', 'b'): [(0, 20)],
    ('test', 'b'): [],
  }


@pytest.mark.parametrize(
  'name, kwargs, match',
  [
    ('a/x/notes.txt', {}, r'CLASS/IMAGE.*endings .jpg, .jpeg.*notes.txt'),
    ('a/x/y/image.jpg', {}, r"CLIENT/CLASS/IMAGE.*found '.*a/x/y'"),
    ('a/x/image.jpg', dict(image_size=4), '`image_size`'),
    ('a/x/image.jpg', {}, 'image.jpg` to be an image, found a damaged file'),
  ],
)
def test_folders_of_another_form_are_named(tmp_path, name, kwargs, match):
  path = tmp_path / name
  path.parent.mkdir(parents=True)
  path.write_text('no image')
  with shared.one_line_error(match):
    _load(tmp_path, 1, **kwargs)


_GREYS = np.arange(64, dtype=np.uint8).reshape(8, 8, 1)
_BLACK = np.zeros((8, 8, 3), np.uint8)


def _png(*channels, dtype=np.uint8):
  image = np.concatenate(channels, axis=-1).astype(dtype)
  return tf.io.encode_png(image).numpy()


def _bmp(palette):
  """The 64 greys as places in a palette, `[256]` of blue, green and red."""
  colors = b''.join(struct.pack('4B', *color, 0) for color in palette)
  sizes = struct.pack('<IiiHHIIiiII', 40, 8, 8, 1, 8, 0, 64, 0, 0, 256, 0)
  start = struct.pack('<2sIII', b'BM', 54 + 1024 + 64, 0, 54 + 1024)
  # From the last row to the first.
  return start + sizes + colors + _GREYS[::-1].tobytes()


def _write_content(folder, ending, content):
  for client in 'ab':
    path = folder / client / 'x' / f'1.{ending}'
    path.parent.mkdir(parents=True)
    path.write_bytes(content)


@pytest.mark.parametrize(
  ('ending', 'content'),
  [
    ('png', _png(_GREYS)),
    ('png', _png(_GREYS, _GREYS, _GREYS, _GREYS)),
    ('bmp', _bmp([(i, i, i) for i in range(256)])),
  ],
)
def test_images_of_8_bits_keep_their_values(tmp_path, ending, content):
  _write_content(tmp_path, ending, content)
  for channels in (1, 3):
    data = _load(tmp_path, image_size=8, channels=channels, test_fraction=0)
    np.testing.assert_array_equal(
      data.train('a').x[0],
      np.repeat(_GREYS / np.float32(255), channels, axis=-1),
    )


@pytest.mark.parametrize(
  ('ending', 'content', 'match'),
  [
    ('png', _png(_GREYS, dtype=np.uint16), '16 bits a channel'),
    ('png', _png(_BLACK, _GREYS), 'a picture in the transparency'),
    ('bmp', _bmp([(255 - i, 0, i) for i in range(256)]), 'a palette of colors'),
  ],
)
def test_images_that_would_be_black_are_refused(
  tmp_path, ending, content, match
):
  _write_content(tmp_path, ending, content)
  match = f'1.{ending}` to be an image of 8-bit .*{match}.* lost; save it'
  with shared.one_line_error(match):
    _load(tmp_path, image_size=8)


def test_a_file_is_no_folder(tmp_path):
  (tmp_path / 'images.zip').write_text('')
  with shared.one_line_error('`data_dir` to be a folder of images'):
    _load(tmp_path / 'images.zip')
