"""FairFace, faces in seven race groups, which are the domains.

Source: K. Karkkainen and J. Joo, FairFace: Face Attribute Dataset for Balanced
Race, Gender, and Age for Bias Measurement and Mitigation, WACV 2021, images
from YFCC-100M, labeled by crowdworkers.
https://github.com/joojs/fairface
License: CC BY 4.0. Note that the labels are annotators' impressions of a face.
The dataset is made to measure bias, not to identify people's race or gender.
Sizes: 86,744 training images and 10,954 validation images, which are the test
images here, of 224x224, in 9 age groups and 2 genders.

The user provides the published files: `fairface_label_train.csv` and
`fairface_label_val.csv` with the columns file, age, gender, race and
service_test, and in the same folder the images that they name, `train/1.jpg`
and so on.

Images are decoded when their client is first read (see `images.LazyImages`).
All of them take 1.2 GB at 64x64 and 15 GB at 224x224.
"""

import os
from typing import Optional

import numpy as np

from tff_pfl import fields
from tff_pfl.datasets import arrays as arrays_lib
from tff_pfl.datasets import columns, files
from tff_pfl.datasets.sources import images, own_files, table

RACES = (
  'White',
  'Black',
  'Indian',
  'East Asian',
  'Southeast Asian',
  'Middle Eastern',
  'Latino_Hispanic',
)
LABELS = {
  'age': tuple(
    '0-2 3-9 10-19 20-29 30-39 40-49 50-59 60-69'.split() + ['more than 70']
  ),
  'gender': ('Male', 'Female'),
}
_FILES = ('fairface_label_train.csv', 'fairface_label_val.csv')
_COLUMNS = ('file', 'age', 'gender', 'race')


def _read_labels(
  path: str, label: str
) -> tuple[list[str], np.ndarray, np.ndarray]:
  """Reads a file of labels and checks that the images exist.

  Returns:
    Paths of the images, and their labels and races, int32 `[n]`.
  """
  options = dict(dtype=str, keep_default_na=False)
  frame = table.read_table(path, options, _COLUMNS)
  paths = [os.path.join(os.path.dirname(path), file) for file in frame['file']]
  for image in paths:
    if not os.path.isfile(image):
      raise files.file_error(image, 'an image file', 'none')
  with own_files.naming(path):
    codes = (
      columns.known_positions(frame[column], names)
      for column, names in ((label, LABELS[label]), ('race', RACES))
    )
    return paths, *codes


@fields.checked_call
def load_fairface(
  data_dir: Optional[str] = None,
  *,
  label: fields.one_of(LABELS) = 'age',
  image_size: images.Size = 64,
) -> arrays_lib.Arrays:
  """Faces of 64x64 labeled by age or gender, with 7 race groups as domains.

  They are read from the published CSV files and images.

  Args:
    data_dir: Folder of the two CSV files and the images, or its parent if it is
      called `fairface`.
    label: The label to predict, 'age' (9 classes) or 'gender' (2 classes).
    image_size: Height and width in pixels to which all images are resized,
      from 8 to 10,000.

  Returns:
    The faces, where `x` has positions that the transform decodes.
  """
  folder = files.find_folder(
    data_dir, ('fairface',), _FILES, ' and '.join(_FILES)
  )
  (paths, y, race), (paths_test, y_test, race_test) = (
    _read_labels(os.path.join(folder, file), label) for file in _FILES
  )
  positions = np.arange(len(y) + len(y_test), dtype=np.int32)
  x, x_test = np.split(positions, [len(y)])
  return arrays_lib.Arrays(
    name='fairface',
    x=x,
    y=y,
    x_test=x_test,
    y_test=y_test,
    num_classes=len(LABELS[label]),
    transform=images.LazyImages(paths + paths_test, image_size),
    domain=race,
    domain_test=race_test,
    domain_names=RACES,
  )
