"""Folders of images `client/class/image.jpg`, or under `train` and `test`.

Images are decoded when their client is first read. See `images.LazyImages`.
"""

import itertools
import os
from typing import Literal, Optional

import numpy as np

from tff_pfl import errors, fields
from tff_pfl.datasets import arrays as arrays_lib
from tff_pfl.datasets.sources import images, own_files

_CONTENTS = (
  'a folder of images CLIENT/CLASS/IMAGE, itself or in train/ and test/'
)


@fields.checked_call
def load_image_folder(
  data_dir: Optional[str] = None,
  *,
  image_size: images.Size = 64,
  channels: Literal[1, 3] = 3,
) -> arrays_lib.Arrays:
  """Any images in folders CLIENT/CLASS, directly or under train/ and test/.

  The partition is natural or any other.

  Args:
    data_dir: Folder of the clients' folders, each with a folder for each class,
      or folder with `train` and `test`, both of that form. Classes are numbered
      in sorted order.
    image_size: Height and width in pixels to which all images are resized,
      from 8 to 10,000.
    channels: Number of channels, 3 for color or 1 for gray.

  Returns:
    The images, where `x` has positions that the transform decodes.
  """
  parts = own_files.find_parts(data_dir, '*/*/*', _CONTENTS)
  paths = [path for part in parts for path in part]
  for path in paths:
    errors.expect(
      path.lower().endswith(images.ENDINGS),
      'data_dir',
      f'{_CONTENTS} with one of the endings {", ".join(images.ENDINGS)}',
      path,
    )
  clients, classes = zip(*(path.split(os.sep)[-3:-1] for path in paths))
  if all(name.isdecimal() for name in classes):
    classes = [int(name) for name in classes]
  x = np.arange(len(paths), dtype=np.int32)
  names, y = np.unique(classes, return_inverse=True)
  # One entry for each image.
  columns = paths, clients, x[:, np.newaxis], y[:, np.newaxis]
  examples = itertools.starmap(own_files.ClientExamples, zip(*columns))
  return own_files.join(
    data_dir,
    [list(itertools.islice(examples, len(part))) for part in parts],
    name='image_folder',
    class_names=[*map(str, names)],
    transform=images.LazyImages(paths, image_size, channels),
  )
