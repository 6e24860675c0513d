"""Test examples held out of the clients' own."""

from typing import Optional

import numpy as np

from tff_pfl.datasets.partitioning import base, dealing


def hold_out(
  indices: list[np.ndarray],
  y: np.ndarray,
  fraction: float,
  seed: int,
  domain: Optional[np.ndarray] = None,
) -> base.Partition:
  """Divides each client's examples into train and test, stratified by class.

  A client with n examples gives round(fraction * n) of them to its test set,
  but at least 1 if it has two or more, and keeps at least 1 for training; with
  a fraction of 0 it gives none. Each class is represented in the test set in
  proportion, up to one example. With domains, each domain is, and the classes
  within it approximately.

  Args:
    indices: Per client its examples' positions in `y`.
    y: Labels; stratified if they are int `[n]`.
    fraction: In [0, 1).
    domain: Domain ids, int `[n]`; None without.

  Returns:
    Train and test, disjoint, together `indices`, and in the order of `indices`.
  """
  rng = dealing.make_rng(seed, dealing.HOLD_OUT)
  sizes = np.array([len(i) for i in indices], np.int64)
  flat = np.concatenate(indices)
  owners = np.repeat(np.arange(len(indices)), sizes)
  num_test = np.zeros_like(sizes)
  if fraction > 0:
    num_test = np.round(fraction * sizes).astype(np.int64)
    num_test = np.clip(num_test, np.minimum(sizes - 1, 1), sizes - 1).clip(0)
  strata = np.zeros(len(flat), np.int64)
  if y.ndim == 1 and np.issubdtype(y.dtype, np.integer):
    strata = y[flat]
  domains = np.zeros(len(flat), np.int64) if domain is None else domain[flat]
  # Each client's examples side by side, sorted by domain and class and at
  # random within these; equidistant ones then are a stratified sample.
  order = np.lexsort((rng.random(len(flat)), strata, domains, owners))
  test_owners = np.repeat(np.arange(len(indices)), num_test)
  first_test = np.cumsum(num_test) - num_test
  rank = np.arange(len(test_owners)) - first_test[test_owners]
  offset = rng.random(len(indices))[test_owners]
  step = sizes[test_owners] / num_test[test_owners]
  first = (np.cumsum(sizes) - sizes)[test_owners]
  place = np.floor((rank + offset) * step).astype(np.int64)
  is_test = np.zeros(len(flat), bool)
  is_test[order[first + np.minimum(place, sizes[test_owners] - 1)]] = True
  return base.Partition(
    dealing.group(flat[~is_test], owners[~is_test], len(indices)),
    dealing.group(flat[is_test], owners[is_test], len(indices)),
  )
