"""Partitions of labels alone, for the tests of the rules."""

import numpy as np

from tff_pfl.datasets import partitioning


def labels(counts, seed=0):
  labels = np.repeat(np.arange(len(counts)), counts)
  return np.random.default_rng(seed).permutation(labels)


def counts(indices, labels, num_classes):
  return np.array(
    [np.bincount(labels[i], minlength=num_classes) for i in indices]
  )


def partition(spec, train, test, num_clients, seed=0, num_classes=None):
  pool = partitioning.Pool(train, test, num_classes)
  return partitioning.make_partitioner(spec).partition(pool, num_clients, seed)
