"""scikit-learn's handwritten digits, in domains of one rotation each.

Source, license and sizes are those of `digits`: 1,437 training and 360 test
images of 8x8, bundled with scikit-learn, so that nothing is downloaded.

There are as many domains as rotations, equally spaced on the circle: 0, 90, 180
and 270 degrees by default. Which domain an image is in is drawn once and for
all, stratified by class: every image is in one domain only, in that of its
rotation, and those of a domain are about 1,437 / M training and 360 / M test
images. The same picture means different things in different domains (a 6 that
is turned by 180 degrees is a 9), so that a model must know the domain to be
right in all.
"""

from typing import Union

import numpy as np
from scipy import ndimage

from tff_pfl import errors
from tff_pfl.datasets import arrays as arrays_lib
from tff_pfl.datasets import digits, federated_dataset, partitioning

MAX_ROTATIONS = 12


def _rotated(x: np.ndarray, domain: np.ndarray, step: float) -> np.ndarray:
  """Returns images `[n, h, w, c]` turned counterclockwise by `domain * step`.

  What a turn leaves open is background; by right angles, pixels only move.
  """
  result = np.empty_like(x)
  for number in np.unique(domain):
    members = domain == number
    result[members] = ndimage.rotate(
      x[members], number * step, axes=(2, 1), reshape=False, order=1
    ).clip(0, 1)
  return result


def load_rotated_digits_arrays(num_rotations: int = 4) -> arrays_lib.Arrays:
  """Returns the rotated digits, `x` float32 `[n, 8, 8, 1]` in [0, 1].

  Args:
    num_rotations: As for `load_rotated_digits`.

  Raises:
    ValueError: It is out of range.
  """
  errors.expect_int('num_rotations', num_rotations, 1, MAX_ROTATIONS)
  step = 360 / num_rotations
  return digits.load_digits_in_domains(
    'rotated_digits',
    [f'rotation_{number * step:g}' for number in range(num_rotations)],
    lambda x, y, domain: (_rotated(x, domain, step), y),
  )


def load_rotated_digits(
  num_clients: int,
  partition: Union[str, partitioning.Partitioner] = 'domain_mixture:1',
  *,
  seed: int = 0,
  num_rotations: int = 4,
) -> federated_dataset.FederatedDataset:
  """Returns the rotated digits, dealt to clients.

  Args:
    num_clients: At least 1.
    partition: A partitioner or its specification.
    seed: Of the partition only, non-negative; which images are test images, and
      how each is turned, is fixed.
    num_rotations: Number of domains, in [1, 12]; with 1 the digits stay as they
      are.

  Returns:
    Dataset with `x` float32 `[8, 8, 1]` in [0, 1] and `y` int32, 10 classes.

  Raises:
    ValueError: The partition is impossible, or an argument is out of range.
  """
  return load_rotated_digits_arrays(num_rotations).to_clients(
    num_clients, partition, seed=seed
  )
