"""Digits from up to five sources, which are the domains.

  mnist         handwritten, white on black, 28x28: 60,000 training and 10,000
                test images (see `image_sets`)
  mnist_m       MNIST's digits blended with patches of color photographs, 32x32
                (59,001 and 9,001), Y. Ganin et al., Domain-Adversarial Training
                of Neural Networks, JMLR 17, 2016
  svhn          house numbers in street scenes, color, 32x32 (73,257 and
                26,032), Y. Netzer et al., Reading Digits in Natural Images with
                Unsupervised Feature Learning, NIPS workshop, 2011
  usps          scanned envelopes, gray, 16x16 (7,291 and 2,007), Y. Le Cun et
                al., 1990; J. Hull, A Database for Handwritten Text Recognition
                Research, PAMI 16(5), 1994
  synth_digits  rendered digits of many fonts and colors, 32x32 (479,400 and
                9,553), Y. Ganin and V. Lempitsky, Unsupervised Domain
                Adaptation by Backpropagation, ICML 2015

License: MNIST is commonly given as CC BY-SA 3.0. None is stated for the others,
which are free for research.

The user provides one file of `image_sets` per domain, `usps.npz` and so on, in
one folder. They may hold only some of the images.

All images get one size and three channels. They stay uint8 in memory (28x28:
165 MB for MNIST alone, 1.7 GB for all five).

MNIST-M's image i is made from MNIST's image i of the same split. Every domain
keeps its own division into training and test images. So no digit is a training
image in one of these two and a test image in the other. (A warning says if a
file's labels are not in MNIST's order, so that this is unknown.)
"""

import collections
import os
from collections.abc import Sequence
from typing import Optional

import numpy as np
from absl import logging

from tff_pfl import errors, fields
from tff_pfl.datasets import arrays as arrays_lib
from tff_pfl.datasets.sources import image_sets
from tff_pfl.datasets.sources import images as images_lib

NUM_CLASSES = 10
DOMAINS = ('mnist', 'mnist_m', 'svhn', 'usps', 'synth_digits')
_SPLITS = ('train', 'test')
_SUBSET_SEED = 0
_IMAGES_AT_A_TIME = 4096


def _find(
  domains: Optional[Sequence[str]], data_dir: Optional[str]
) -> dict[str, str]:
  """Returns the file of each domain. None means all domains with a file."""
  errors.expect(
    data_dir and os.path.isdir(data_dir),
    'data_dir',
    'a folder with the files of two or more domains of digits5',
    data_dir,
  )
  paths = {
    domain: os.path.join(data_dir, f'{domain}.npz')
    for domain in domains or DOMAINS
  }
  files = {domain: p for domain, p in paths.items() if os.path.exists(p)}
  if (domains and len(files) < len(domains)) or len(files) < 2:
    contents = ' and '.join(domains or ()) or 'two or more domains of digits5'
    absent = [f'{domain}.npz' for domain in paths if domain not in files]
    raise ValueError(
      f'Expected `data_dir` to hold {contents}, found no {", no ".join(absent)}'
      f' in {data_dir!r}. {image_sets.HOW_TO_PREPARE}'
    )
  return files


def to_common_size(x: np.ndarray, size: int) -> np.ndarray:
  """Returns images as uint8 `[n, size, size, 3]`.

  Args:
    x: uint8 `[n, height, width, channels]`, one or three channels.
    size: See `images.resize`.
  """
  if x.shape[1:3] != (size, size):
    resized = np.empty((len(x), size, size, x.shape[3]), np.uint8)
    for first in range(0, len(x), _IMAGES_AT_A_TIME):
      part = slice(first, first + _IMAGES_AT_A_TIME)
      resized[part] = images_lib.resize(x[part], size)
    x = resized
  return np.broadcast_to(x, (*x.shape[:3], 3))


def _warn_unless_aligned(labels: dict[str, list[np.ndarray]]) -> None:
  """Warns if MNIST-M's labels differ from MNIST's first labels."""
  if not {'mnist', 'mnist_m'} <= set(labels):
    return
  for split, plain, blended in zip(_SPLITS, labels['mnist'], labels['mnist_m']):
    count = min(len(plain), len(blended))
    if not np.array_equal(plain[:count], blended[:count]):
      logging.warning(
        "MNIST-M's %s images are not in the order of MNIST's: if they are made"
        ' from images of the other split, test images of one domain are'
        ' training images of the other.',
        split,
      )


@fields.checked_call
def load_digits5(
  data_dir: Optional[str] = None,
  *,
  domains: Optional[Sequence[fields.one_of(DOMAINS)]] = None,
  image_size: images_lib.Size = 28,
  max_train_per_domain: Optional[fields.Count] = None,
) -> arrays_lib.Arrays:
  """Color digits of 28x28 in two to five domains.

  The domains are MNIST, MNIST-M, SVHN, USPS and SynthDigits, from mnist.npz,
  mnist_m.npz and so on.

  Args:
    data_dir: Folder of the files.
    domains: The domains, two or more of mnist, mnist_m, svhn, usps and
      synth_digits, numbered in the given order. None means all whose files
      exist.
    image_size: Height and width in pixels to which all images are resized,
      from 8 to 10,000.
    max_train_per_domain: Maximum number of training images of a domain, at
      least 1. The random choice is always the same. None means all.

  Returns:
    The digits, `x` uint8 `[n, image_size, image_size, 3]`.
  """
  if domains is not None:
    errors.expect(
      2 <= len(set(domains)) == len(domains),
      'domains',
      'two or more, each once',
      domains,
    )
  paths = _find(domains, data_dir)
  labels: dict[str, list[np.ndarray]] = {}
  parts: dict[str, list[np.ndarray]] = collections.defaultdict(list)
  for number, (domain, path) in enumerate(paths.items()):
    arrays = image_sets.load(domain, path)
    train, test = (arrays.x, arrays.y), (arrays.x_test, arrays.y_test)
    labels[domain] = [arrays.y, arrays.y_test]
    y = arrays.y
    if max_train_per_domain is not None and len(y) > max_train_per_domain:
      # A random choice that is always the same, in order.
      rng = np.random.default_rng([_SUBSET_SEED, DOMAINS.index(domain)])
      chosen = np.sort(rng.permutation(len(y))[:max_train_per_domain])
      train = train[0][chosen], y[chosen]
    for suffix, (x, y) in (('', train), ('_test', test)):
      parts[f'x{suffix}'].append(to_common_size(x, image_size))
      parts[f'y{suffix}'].append(y)
      parts[f'domain{suffix}'].append(np.full(len(y), number, np.int32))
  _warn_unless_aligned(labels)
  return arrays_lib.Arrays(
    name='digits5',
    num_classes=NUM_CLASSES,
    transform=images_lib.to_unit_interval,
    domain_names=tuple(paths),
    **{field: np.concatenate(values) for field, values in parts.items()},
  )
