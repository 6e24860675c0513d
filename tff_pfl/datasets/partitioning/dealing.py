"""Divides examples among clients in given proportions."""

import numpy as np

# Independent random streams of one seed.
WEIGHTS, TRAIN, TEST, HOLD_OUT, CHOICE, SIZES = range(6)


def make_rng(seed: int, stream: int) -> np.random.Generator:
  """Returns the generator of one stream of a seed."""
  return np.random.default_rng([seed, stream])


def apportion(
  class_counts: np.ndarray, weights: np.ndarray, rng: np.random.Generator
) -> np.ndarray:
  """Divides every class among the clients in proportion to their weights.

  Each entry of the result is the floor or the ceiling of its exact share. The
  ceiling goes to the clients with the largest sum of the share's fraction and
  the rounding losses in earlier classes. Ties are broken at random.

  Args:
    class_counts: Examples of each class, int `[num_classes]`.
    weights: Non-negative, `[num_clients, num_classes]`. Only the proportions
      within a column matter.
    rng: Breaks ties.

  Returns:
    int64 array `[num_clients, num_classes]` whose columns sum to
    `class_counts`, or to 0 if a column has no positive weight.
  """
  num_clients, num_classes = weights.shape
  counts = np.zeros((num_clients, num_classes), np.int64)
  owed = np.zeros(num_clients)
  for label in range(num_classes):
    total = weights[:, label].sum()
    if total <= 0:
      continue
    exact = class_counts[label] * (weights[:, label] / total)
    # The small number corrects shares that are whole up to the last bit.
    counts[:, label] = np.floor(exact + 1e-9)
    fraction = np.maximum(exact - counts[:, label], 0)
    num_extras = int(class_counts[label] - counts[:, label].sum())
    if num_extras > 0:
      # Rounded, so that equal claims stay equal in any order of sums.
      claim = np.round(fraction + owed, 9)
      claim[fraction <= 1e-9] = -np.inf
      order = np.lexsort((rng.random(num_clients), -claim))
      counts[order[:num_extras], label] += 1
    owed += exact - counts[:, label]
  return counts


def group(
  indices: np.ndarray, owners: np.ndarray, num_clients: int
) -> list[np.ndarray]:
  """Splits `indices` by owner, keeping their order within each owner."""
  order = np.argsort(owners, kind='stable')
  sizes = np.bincount(owners, minlength=num_clients)
  return np.split(indices[order], np.cumsum(sizes)[:-1])


def deal(
  labels: np.ndarray, counts: np.ndarray, rng: np.random.Generator
) -> list[np.ndarray]:
  """Deals examples at random, `counts[client, class]` to each client.

  Examples of a class beyond the sum of its column are left out.

  Args:
    labels: Class (or domain) of each example, int `[n]`.
    counts: Number of examples by client and class, int
      `[num_clients, num_classes]`. A column's sum is at most the number of
      examples of its class.
    rng: Draws the examples.

  Returns:
    For each client, its examples' positions in `labels`, in random order.
  """
  num_clients, num_classes = counts.shape
  class_counts = np.bincount(labels, minlength=num_classes)
  shuffled = rng.permutation(len(labels))
  by_class = shuffled[np.argsort(labels[shuffled], kind='stable')]
  first_of_class = np.cumsum(class_counts) - class_counts
  rank = np.arange(len(labels)) - np.repeat(first_of_class, class_counts)
  dealt = rank < np.repeat(counts.sum(axis=0), class_counts)
  clients = np.tile(np.arange(num_clients), num_classes)
  owners = np.repeat(clients, counts.T.ravel())
  # In random order, or an unshuffled batch would have one class.
  order = rng.permutation(len(owners))
  return group(by_class[dealt][order], owners[order], num_clients)
