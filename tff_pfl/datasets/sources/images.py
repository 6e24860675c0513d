"""Shared by data sets of images: bytes and sizes."""

import numpy as np
import tensorflow as tf


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
