"""Handwritten digits, 8x8, bundled with scikit-learn, also in domains.

Source: the test part of the UCI "Optical Recognition of Handwritten Digits"
data set (E. Alpaydin and C. Kaynak, 1998), as `sklearn.datasets.load_digits`
ships it, so nothing is downloaded. The 32x32 bitmaps of 13 writers are reduced
to 8x8 by counting the set pixels of each 4x4 block (0 to 16).
License: CC BY 4.0 (UCI Machine Learning Repository). scikit-learn is BSD.
Sizes: 1,797 images of 10 classes (174 to 183 each), here always divided in the
same way, stratified by class, into 1,437 training and 360 test images.

Two more datasets put each digit into a domain (see `made_domains`).

* In `rotated_digits`, a domain rotates its digits by one angle, so the same
  image means different things in different domains: a 6 rotated by 180 degrees
  is a 9.
* In `relabelled_digits`, domain m swaps the labels of the digits 2m and 2m + 1.
  The images are the same in all domains, so a representation can be shared. The
  labels of two of ten classes differ.
"""

import numpy as np
from scipy import ndimage
from sklearn import datasets as sklearn_datasets
from sklearn import model_selection

from tff_pfl import fields
from tff_pfl.datasets import arrays as arrays_lib
from tff_pfl.datasets.sources import made_domains

NUM_CLASSES = 10
_SPLIT_SEED = 0


def load_digits() -> arrays_lib.Arrays:
  """1,797 handwritten digits of 8x8, bundled with scikit-learn.

  Returns:
    The digits, `x` float32 `[n, 8, 8, 1]` in [0, 1]. The 360 test images are
    drawn with a fixed seed, stratified by class.
  """
  bunch = sklearn_datasets.load_digits()
  x = (bunch.images[..., np.newaxis] / 16).astype(np.float32)
  x, x_test, y, y_test = model_selection.train_test_split(
    x,
    bunch.target,
    test_size=0.2,
    stratify=bunch.target,
    random_state=_SPLIT_SEED,
  )
  return arrays_lib.Arrays(
    name='digits',
    x=x,
    y=y,
    x_test=x_test,
    y_test=y_test,
    num_classes=NUM_CLASSES,
  )


@fields.checked_call
def load_rotated_digits(
  *, num_rotations: fields.integer(1, 12) = 4
) -> arrays_lib.Arrays:
  """The digits in 4 domains, rotated by 0, 90, 180 or 270 degrees.

  Args:
    num_rotations: Number of domains, in [1, 12], whose angles are equally
      spaced on the circle. 1 leaves the digits unchanged.
  """
  step = 360 / num_rotations
  return made_domains.in_domains(
    load_digits(),
    'rotated_digits',
    [f'rotation_{number * step:g}' for number in range(num_rotations)],
    lambda x, y, domain: (_rotated(x, domain, step), y),
  )


@fields.checked_call
def load_relabelled_digits(
  *, num_domains: fields.integer(1, 5) = 5
) -> arrays_lib.Arrays:
  """The digits in 5 domains, each of which swaps a different pair of labels.

  Args:
    num_domains: Number of domains, in [1, 5].
  """
  return made_domains.in_domains(
    load_digits(),
    'relabelled_digits',
    [f'swapped_{2 * m}_{2 * m + 1}' for m in range(num_domains)],
    # 2m and 2m + 1 differ in their last bit.
    lambda x, y, domain: (x, np.where(y // 2 == domain, y ^ 1, y)),
  )


def _rotated(x: np.ndarray, domain: np.ndarray, step: float) -> np.ndarray:
  """Rotates images `[n, h, w, c]` counterclockwise by `domain * step`.

  Empty corners become background. Right angles are exact.
  """
  result = np.empty_like(x)
  for number in np.unique(domain):
    members = domain == number
    result[members] = ndimage.rotate(
      x[members], number * step, axes=(2, 1), reshape=False, order=1
    ).clip(0, 1)
  return result
