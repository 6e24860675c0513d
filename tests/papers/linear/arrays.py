"""Small arrays that the tests of the linear problem share."""

import numpy as np

from binaries.papers.linear import model as model_lib


def initial_model(dimension, rank, seed=0):
  """A model to start from, its representation orthonormal."""
  rng = np.random.default_rng(seed)
  return model_lib.LinearModel(
    np.linalg.qr(rng.standard_normal((dimension, rank)))[0],
    rng.standard_normal(rank),
  )
