"""scikit-learn's handwritten digits, in domains that name them differently.

Source, license and sizes are those of `digits`: 1,437 training and 360 test
images of 8x8, bundled with scikit-learn, so that nothing is downloaded.

In domain m the digits 2m and 2m + 1 have each other's label. What can be seen
is the same in all domains, what it means differs in two classes of ten: a
representation can be shared, a model that does not know the domain must be
wrong on some. Which domain an image is in is drawn once and for all, stratified
by class.
"""

from typing import Union

import numpy as np

from tff_pfl import errors
from tff_pfl.datasets import arrays as arrays_lib
from tff_pfl.datasets import digits, federated_dataset, partitioning

MAX_DOMAINS = digits.NUM_CLASSES // 2


def load_relabelled_digits_arrays(num_domains: int = 5) -> arrays_lib.Arrays:
  """Returns the relabelled digits, `x` float32 `[n, 8, 8, 1]` in [0, 1].

  Args:
    num_domains: As for `load_relabelled_digits`.

  Raises:
    ValueError: It is out of range.
  """
  errors.expect_int('num_domains', num_domains, 1, MAX_DOMAINS)
  return digits.load_digits_in_domains(
    'relabelled_digits',
    [f'swapped_{2 * m}_{2 * m + 1}' for m in range(num_domains)],
    # 2m and 2m + 1 differ in their last bit.
    lambda x, y, domain: (x, np.where(y // 2 == domain, y ^ 1, y)),
  )


def load_relabelled_digits(
  num_clients: int,
  partition: Union[str, partitioning.Partitioner] = 'domain_mixture:1',
  *,
  seed: int = 0,
  num_domains: int = 5,
) -> federated_dataset.FederatedDataset:
  """Returns the relabelled digits, dealt to clients.

  Args:
    num_clients: At least 1.
    partition: A partitioner or its specification.
    seed: Of the partition only, non-negative; which images are test images, and
      their domains, are fixed.
    num_domains: In [1, 5].

  Returns:
    Dataset with `x` float32 `[8, 8, 1]` in [0, 1] and `y` int32, 10 classes.

  Raises:
    ValueError: The partition is impossible, or an argument is out of range.
  """
  return load_relabelled_digits_arrays(num_domains).to_clients(
    num_clients, partition, seed=seed
  )
