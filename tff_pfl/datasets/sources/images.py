"""Converts, resizes and decodes images."""

import concurrent.futures
from collections.abc import Iterator, Sequence

import numpy as np
import tensorflow as tf

from tff_pfl import fields
from tff_pfl.datasets import files

# Height and width to resize to.
Size = fields.integer(8, 10_000)
_GREYS = bytes(range(256))
ENDINGS = ('.jpg', '.jpeg', '.png', '.bmp', '.gif')


def to_unit_interval(x: np.ndarray) -> np.ndarray:
  """Converts bytes in [0, 255] to float32 in [0, 1]."""
  return np.divide(x, 255, dtype=np.float32)


def resize(x: np.ndarray, size: int) -> np.ndarray:
  """Resizes images bilinearly, with antialiasing if they become smaller.

  Args:
    x: Bytes `[..., height, width, channels]`, one image or several.
    size: Height and width of the result.

  Returns:
    Bytes `[..., size, size, channels]`.
  """
  floats = tf.image.resize(x, (size, size), antialias=True)
  return np.clip(np.round(floats), 0, 255).astype(np.uint8)


def _lost(content: bytes, image: tf.Tensor) -> str:
  """Describes what decoding a file loses, or is empty if it loses nothing.

  TensorFlow decodes these files without an error, most of them to black.
  """
  if content.startswith(b'\x89PNG'):
    if content[24] == 16:
      return '16 bits a channel, of which the lower 8 would be lost'
    if not np.ptp(image) and np.ptp(tf.io.decode_png(content, 4)[..., 3]):
      return 'one color and a picture in the transparency, which would be lost'
  if content.startswith(b'BM') and content[28] == 8:
    start, end = (
      int.from_bytes(content[i : i + 4], 'little') for i in (14, 10)
    )
    palette = content[14 + start : end]
    if any(palette[i::4] != _GREYS[: len(palette) // 4] for i in range(3)):
      return 'a palette of colors, which would be lost'
  return ''


def _decoded(content: bytes, channels: int) -> tf.Tensor:
  """Decodes a file to 1 or 3 channels."""
  try:
    return tf.io.decode_image(content, channels, expand_animations=False)
  except tf.errors.OpError:
    if channels == 3:
      raise
    # TensorFlow decodes .bmp, .gif and printers' colors only to 3 channels.
    image = tf.io.decode_image(content, 3, expand_animations=False)
    return tf.image.rgb_to_grayscale(image)


class LazyImages:
  """Images that are decoded on first use and then kept.

  Images are kept as bytes of the target size, so memory grows with the images
  that clients have. Decoding takes a few milliseconds per image on a core.
  """

  def __init__(self, paths: Sequence[str], size: int, channels: int = 3):
    """Decodes nothing yet.

    Args:
      paths: Files with one of `ENDINGS`.
      size: Height and width in pixels to which images are resized.
      channels: 3 for color, 1 for gray.
    """
    self._paths = paths
    # Memory that is never written to takes no space.
    self._images = np.zeros((len(paths), size, size, channels), np.uint8)
    self._is_decoded = np.zeros(len(paths), bool)

  def __call__(self, positions: np.ndarray) -> np.ndarray:
    """Returns images `[k, size, size, channels]`, float32 in [0, 1].

    Args:
      positions: Positions of the images in `paths`, `[k]`.

    Raises:
      ValueError: If a file is not an image. The message names it.
    """
    missing = np.unique(positions[~self._is_decoded[positions]])
    if len(missing):
      # Decoding releases Python's lock.
      with concurrent.futures.ThreadPoolExecutor() as pool:
        for _ in pool.map(self._decode, missing):
          pass
    return to_unit_interval(self._images[positions])

  def content(self, positions: np.ndarray) -> Iterator[bytes]:
    """Yields the bytes of the images' files; see `array_clients`."""
    for position in positions:
      yield files.read_bytes(self._paths[position])

  def _decode(self, position: int) -> None:
    path = self._paths[position]
    _, size, _, channels = self._images.shape
    try:
      content = tf.io.read_file(path).numpy()
      image = _decoded(content, channels)
    except tf.errors.OpError:
      raise files.file_error(path, 'an image', 'a damaged file') from None
    if lost := _lost(content, image):
      raise files.FileError(
        f'Expected `{path}` to be an image of 8-bit grays or colors, found'
        f' {lost}; save it in this form, with values from 0 to 255, or put it'
        ' into an .npz file (the dataset npz).'
      )
    self._images[position] = resize(image, size)
    # Set last, so that other threads never see half of an image.
    self._is_decoded[position] = True
