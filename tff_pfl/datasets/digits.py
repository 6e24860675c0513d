"""Handwritten digits, 8x8, bundled with scikit-learn.

Source: the test part of the UCI "Optical Recognition of Handwritten Digits"
data set (E. Alpaydin and C. Kaynak, 1998), as `sklearn.datasets.load_digits`
ships it, so that nothing is downloaded. Bitmaps of 32x32 of 13 writers, reduced
to 8x8 by counting the set pixels of each 4x4 block (0 to 16).
License: CC BY 4.0 (UCI Machine Learning Repository); scikit-learn is BSD.
Sizes: 1,797 images of 10 classes (174 to 183 each), here divided once and for
all, stratified by class, into 1,437 training and 360 test images.
"""

from collections.abc import Sequence
from typing import Callable, Union

import numpy as np
from sklearn import datasets as sklearn_datasets
from sklearn import model_selection

from tff_pfl.datasets import arrays as arrays_lib
from tff_pfl.datasets import federated_dataset, partitioning

NUM_CLASSES = 10
_SPLIT_SEED = 0


def load_digits_arrays() -> arrays_lib.Arrays:
  """Returns the digits, `x` float32 `[n, 8, 8, 1]` in [0, 1].

  Which 360 images are the test images is drawn, stratified by class, with a
  fixed seed: it is always the same.
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


def load_digits(
  num_clients: int,
  partition: Union[str, partitioning.Partitioner] = 'shards:2',
  *,
  seed: int = 0,
) -> federated_dataset.FederatedDataset:
  """Returns the digits, dealt to clients.

  Args:
    num_clients: At least 1.
    partition: A partitioner or its specification.
    seed: Of the partition only, non-negative; which images are test images is
      fixed.

  Returns:
    Dataset with `x` float32 `[8, 8, 1]` in [0, 1] and `y` int32, 10 classes.

  Raises:
    ValueError: The partition is impossible.
  """
  return load_digits_arrays().to_clients(num_clients, partition, seed=seed)


def load_digits_in_domains(
  name: str,
  domain_names: Sequence[str],
  change: Callable[..., tuple[np.ndarray, np.ndarray]],
) -> arrays_lib.Arrays:
  """Returns the digits, each in a domain that changes it.

  Args:
    name: Of the data set.
    domain_names: At least one. Which domain an image is in is always the same;
      every class is spread evenly over them.
    change: `(x, y, domain) -> (x, y)`, of training and of test images.
  """
  plain = load_digits_arrays()

  def changed(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, ...]:
    domain = _draw_domains(y, len(domain_names))
    return (*change(x, y, domain), domain)

  x, y, domain = changed(plain.x, plain.y)
  x_test, y_test, domain_test = changed(plain.x_test, plain.y_test)
  return arrays_lib.Arrays(
    name=name,
    x=x,
    y=y,
    x_test=x_test,
    y_test=y_test,
    num_classes=NUM_CLASSES,
    domain=domain,
    domain_test=domain_test,
    domain_names=tuple(domain_names),
  )


def _draw_domains(y: np.ndarray, num_domains: int) -> np.ndarray:
  """Returns a domain for each example, every class spread evenly over them."""
  domain = np.zeros(len(y), np.int32)
  if num_domains > 1:
    folds = model_selection.StratifiedKFold(
      num_domains, shuffle=True, random_state=_SPLIT_SEED
    )
    for number, (_, members) in enumerate(folds.split(y, y)):
      domain[members] = number
  return domain
