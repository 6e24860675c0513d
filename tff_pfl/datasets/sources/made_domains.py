"""Datasets with artificial domains.

An example is always in the same domain, drawn stratified by class. The domain
changes the example, so a model must know the domain to be right in all domains.

`relabelled_cifar10` has CIFAR-10's images (see `image_sets`). Domain m names
class y as y + 2 m modulo 10, so a representation can be shared but a head
cannot.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Optional

import numpy as np
from sklearn import model_selection

from tff_pfl import fields
from tff_pfl.datasets import arrays as arrays_lib
from tff_pfl.datasets.sources import image_sets

_SPLIT_SEED = 0


@fields.checked_call
def load_relabelled_cifar10(
  *, num_domains: fields.integer(1, 5) = 5, data_dir: Optional[str] = None
) -> arrays_lib.Arrays:
  """CIFAR-10 in 5 domains, each of which renames all classes.

  Args:
    num_domains: Number of domains, in [1, 5].
    data_dir: Folder with cifar10.npz. None means TensorFlow Datasets.
  """
  plain = image_sets.load('cifar10', data_dir)
  return in_domains(
    plain,
    'relabelled_cifar10',
    [f'shifted_{2 * m}' for m in range(num_domains)],
    lambda x, y, domain: (x, (y + 2 * domain) % plain.num_classes),
  )


def in_domains(
  plain: arrays_lib.Arrays,
  name: str,
  domain_names: Sequence[str],
  change: Callable[..., tuple[np.ndarray, np.ndarray]],
) -> arrays_lib.Arrays:
  """Draws domains and applies `change(x, y, domain) -> (x, y)` per split."""
  changed = {}
  for suffix, x, y in (
    ('', plain.x, plain.y),
    ('_test', plain.x_test, plain.y_test),
  ):
    domain = _draw_domains(y, len(domain_names))
    x, y = change(x, y, domain)
    changed.update(
      {f'x{suffix}': x, f'y{suffix}': y, f'domain{suffix}': domain}
    )
  return dataclasses.replace(
    plain, name=name, domain_names=tuple(domain_names), **changed
  )


def _draw_domains(y: np.ndarray, num_domains: int) -> np.ndarray:
  """Draws a domain for each example, with every class spread evenly."""
  domain = np.zeros(len(y), np.int32)
  if num_domains > 1:
    folds = model_selection.StratifiedKFold(
      num_domains, shuffle=True, random_state=_SPLIT_SEED
    )
    for number, (_, members) in enumerate(folds.split(y, y)):
      domain[members] = number
  return domain
