"""Shared by data sets of images: bytes, sizes, and TensorFlow Datasets."""

import urllib.error
import urllib.request
from typing import Optional

import numpy as np
import tensorflow as tf

from tff_pfl import errors


def to_unit_interval(x: np.ndarray) -> np.ndarray:
  """Returns float32 in [0, 1] for bytes in [0, 255]."""
  return np.divide(x, 255, dtype=np.float32)


def resize(x: np.ndarray, size: int) -> np.ndarray:
  """Returns images resampled bilinearly, as bytes.

  Args:
    x: Bytes `[..., height, width, channels]`, one image or several.
    size: Height and width of the result; with antialiasing where images become
      smaller.
  """
  floats = tf.image.resize(x, (size, size), antialias=True)
  return np.clip(np.round(floats), 0, 255).astype(np.uint8)


def from_tensorflow_datasets(
  name: str, files: str, url: Optional[str] = None
) -> dict[str, np.ndarray]:
  """Returns `x`, `y`, `x_test` and `y_test`, downloaded if needed.

  Args:
    name: What TensorFlow Datasets calls the data set.
    files: What the folder for `data_dir` has to hold, for the message.
    url: Where it is downloaded from; None where its builder says so.

  Raises:
    RunError: It cannot be had.
  """
  import tensorflow_datasets as tfds  # Slow to import; rarely needed.

  try:
    builder = tfds.builder(name)
    if not builder.is_prepared():
      _expect_reachable(builder.URL if url is None else url)
      builder.download_and_prepare()
    splits = builder.as_dataset(split=['train', 'test'], as_supervised=True)
    (x, y), (x_test, y_test) = (
      [np.concatenate(part) for part in zip(*tfds.as_numpy(split.batch(1000)))]
      for split in splits
    )
  # Whatever TFDS and its downloader raise, the user's remedy is the same.
  except Exception as error:
    raise errors.RunError(
      f'{name} could not be obtained through TensorFlow Datasets'
      f' ({first_line(error)}); pass `data_dir` with the folder of {files}.'
    ) from error
  return dict(x=x, y=y, x_test=x_test, y_test=y_test)


def _expect_reachable(url: str) -> None:
  """Raises `OSError` unless a server answers; TFDS would try for minutes."""
  request = urllib.request.Request(url, method='HEAD')
  try:
    urllib.request.urlopen(request, timeout=10).close()
  except urllib.error.HTTPError:
    pass  # An answer, if only that the address is no page.


def first_line(error: Exception) -> str:
  """What a downloader raised: its type and the first line of its message."""
  lines = str(error).strip().splitlines() or ['']
  return f'{type(error).__name__}: {lines[0][:200]}'.rstrip(': ')
