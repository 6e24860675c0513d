"""Digits of five origins, or of those among them that are at hand.

The domains are the data sets; the task is the same in all: which digit it is.

  mnist         handwritten, white on black, 28x28: 60,000 training and 10,000
                test images (see `mnist`)
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

License: MNIST is commonly given as CC BY-SA 3.0; none is stated for the others,
which are free for research.

The user brings the files, in the data folder or in a folder in it that is
called like the domain. Any of them may be an .npz file, `usps.npz` (or, of some
of the images, `usps_subset.npz`) and so on, with `x_train` and `x_test`, uint8
`[n, height, width]` or `[n, height, width, 3]`, and `y_train` and `y_test`.
MNIST's may also be its four idx .gz files (in `mnist_idx` too), those of SVHN
and SynthDigits the published .mat files (`train_32x32.mat`, `test_32x32.mat`;
`synth_train_32x32.mat`, `synth_test_32x32.mat`), where 10 stands for the 0.

All are brought to one size and to three channels. They stay uint8 in memory
(28x28: 140 MB for MNIST alone, 1.7 GB for all of all five).

MNIST-M's image i is made of MNIST's image i of the same split. Every domain
keeps its own division into training and test images, so that where both are
present a digit may be trained on, or tested on, in both, but never trained on
in one and tested on in the other. (A file whose labels are not in MNIST's order
cannot be checked for this; a warning says so.)
"""

import collections
import functools
import io
import itertools
import os
from collections.abc import Callable, Sequence
from typing import Optional

import numpy as np
import scipy.io
from absl import logging

from tff_pfl import errors
from tff_pfl.datasets import arrays as arrays_lib
from tff_pfl.datasets import files
from tff_pfl.datasets.sources import images as images_lib
from tff_pfl.datasets.sources import mnist

NUM_CLASSES = 10
DOMAINS = ('mnist', 'mnist_m', 'svhn', 'usps', 'synth_digits')
_SPLITS = ('train', 'test')
_SUBSET_SEED = 0
_IMAGES_AT_A_TIME = 4096


# Images, uint8 `[n, height, width]` or `[n, height, width, 3]`, and labels.
_Split = tuple[np.ndarray, np.ndarray]


def _read_npz(path: str) -> list[_Split]:
  """Reads one .npz file with both splits."""
  keys = [(f'x_{split}', f'y_{split}') for split in _SPLITS]
  arrays = files.read_npz(path, sum(keys, ()))
  splits = [(arrays[x], arrays[y]) for x, y in keys]
  for (x, y), names in zip(splits, keys):
    files.check_images(path, x, y, names, NUM_CLASSES)
  return splits


def _read_mats(*paths: str) -> list[_Split]:
  """Reads one .mat file a split, as SVHN is published.

  They have `X` uint8 `[32, 32, 3, n]` and `y` `[n, 1]`, where 10 stands for 0.
  """
  splits = []
  for path in paths:
    file = io.BytesIO(files.read_bytes(path))
    try:
      content = scipy.io.loadmat(file, variable_names=('X', 'y'))
    # SciPy's reader lets through whatever a damaged file makes it do.
    except Exception as error:
      raise files.file_error(
        path, "a complete .mat file of MATLAB's version 5", f'{error}'
      ) from None
    if not {'X', 'y'} <= set(content) or content['X'].ndim != 4:
      raise files.file_error(
        path,
        'a .mat file with X of shape (height, width, 3, n) and y',
        'others',
      )
    x = np.ascontiguousarray(content['X'].transpose(3, 0, 1, 2))
    y = np.where(content['y'] == 10, 0, content['y']).ravel()
    files.check_images(path, x, y, ('X', 'y'), NUM_CLASSES)
    splits.append((x, y))
  return splits


def _read_idx(path: str, *_: str) -> list[_Split]:
  """Reads MNIST's four idx files, of which one is named."""
  arrays = mnist.read_arrays('mnist', os.path.dirname(path))
  return [(arrays[f'x{s}'][..., 0], arrays[f'y{s}']) for s in ('', '_test')]


def _forms(domain: str) -> dict[tuple[str, ...], Callable[..., list[_Split]]]:
  """Returns the files in which a domain may come, and what reads them."""
  forms = {}
  if domain == 'mnist':
    forms[mnist.FILES] = _read_idx
  elif domain in ('svhn', 'synth_digits'):
    prefix = 'synth_' if domain == 'synth_digits' else ''
    forms[tuple(f'{prefix}{split}_32x32.mat' for split in _SPLITS)] = _read_mats
  for suffix in ('', '_subset'):
    forms[(f'{domain}{suffix}.npz',)] = _read_npz
  return forms


def _find(
  domains: Optional[Sequence[str]], data_dir: str
) -> dict[str, Callable[[], list[_Split]]]:
  """Returns what reads each of the domains, None for those that there are."""
  errors.expect(
    os.path.isdir(data_dir), 'data_dir', 'an existing folder', data_dir
  )
  found = {}
  for domain in domains or DOMAINS:
    folders = ['mnist_idx'] * (domain == 'mnist') + [domain, '']
    for folder, (names, read) in itertools.product(
      folders, _forms(domain).items()
    ):
      paths = [os.path.join(data_dir, folder, name) for name in names]
      if any(map(os.path.exists, paths)):
        found[domain] = functools.partial(read, *paths)
        break
  absent = [domain for domain in domains or DOMAINS if domain not in found]
  if (domains and absent) or len(found) < 2:
    wanted = ' and '.join(domains or ()) or 'two or more domains of digits5'
    looked_for = '; '.join(
      f'{domain}: {" or ".join(map(" and ".join, _forms(domain)))}'
      for domain in absent
    )
    raise ValueError(
      f'Expected `data_dir` to hold {wanted}, itself or in folders called like'
      f' the domains, found no {", no ".join(absent)} in {data_dir!r}; looked'
      f' for {looked_for}.'
    )
  return found


def to_common_size(x: np.ndarray, size: int) -> np.ndarray:
  """Returns images as uint8 `[n, size, size, 3]`.

  Args:
    x: uint8 `[n, height, width]` or `[n, height, width, 3]`.
    size: See `images.resize`.
  """
  if x.ndim == 3:
    x = x[..., np.newaxis]
  if x.shape[1:3] != (size, size):
    resized = np.empty((len(x), size, size, x.shape[3]), np.uint8)
    for first in range(0, len(x), _IMAGES_AT_A_TIME):
      part = slice(first, first + _IMAGES_AT_A_TIME)
      resized[part] = images_lib.resize(x[part], size)
    x = resized
  return np.broadcast_to(x, (*x.shape[:3], 3))


def _warn_unless_aligned(labels: dict[str, list[np.ndarray]]) -> None:
  """Warns if MNIST-M's labels are not those of MNIST's first images."""
  if not {'mnist', 'mnist_m'} <= set(labels):
    return
  for split, plain, blended in zip(_SPLITS, labels['mnist'], labels['mnist_m']):
    count = min(len(plain), len(blended))
    if not np.array_equal(plain[:count], blended[:count]):
      logging.warning(
        "MNIST-M's %s images are not in the order of MNIST's: if they are made"
        ' of images of the other split, test images of one domain are training'
        ' images of the other.',
        split,
      )


def load_digits5(
  data_dir: Optional[str] = None,
  *,
  domains: Optional[Sequence[str]] = None,
  image_size: int = 28,
  max_train_per_domain: Optional[int] = None,
) -> arrays_lib.Arrays:
  """Returns the digits, `x` uint8 `[n, image_size, image_size, 3]`.

  Args:
    data_dir: Folder of the files, see the module's description.
    domains: Two or more of mnist, mnist_m, svhn, usps and synth_digits,
      numbered in the order given; None for those whose files are there, in this
      order.
    image_size: Height and width in pixels to which all images are resized, at
      least 8.
    max_train_per_domain: The most training images of a domain, at least 1; of
      more, a random choice that is always the same is used. None for all.
  """
  files.expect_given(
    data_dir, 'a folder with the files of two or more domains of digits5'
  )
  if domains is not None:
    domains = [domains] if isinstance(domains, str) else list(domains)
    errors.expect(
      len(domains) >= 2
      and len(set(domains)) == len(domains)
      and set(domains) <= set(DOMAINS),
      'domains',
      f'two or more of {", ".join(DOMAINS)}, each once',
      domains,
    )
  errors.expect_int('image_size', image_size, 8)
  if max_train_per_domain is not None:
    errors.expect_int('max_train_per_domain', max_train_per_domain, 1)
  readers = _find(domains, data_dir)
  labels: dict[str, list[np.ndarray]] = {}
  parts: dict[str, list[np.ndarray]] = collections.defaultdict(list)
  for number, (domain, read) in enumerate(readers.items()):
    train, test = read()
    labels[domain] = [train[1], test[1]]
    y = train[1]
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
    domain_names=tuple(readers),
    **{field: np.concatenate(values) for field, values in parts.items()},
  )
