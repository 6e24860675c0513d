"""Errors of the clients' models, of those that trained and of new ones.

Sources: FedRep, figure 4; FedAvg, figure 3; FedDAR, figure 1.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from binaries.papers.linear import model as model_lib
from binaries.papers.linear import problem as problem_lib

# From clients' inputs `[n, m, d]` and labels `[n, m]` to the regressors that
# they find, `[n, d]`.
Regressor = Callable[[np.ndarray, np.ndarray], np.ndarray]


def client_errors(
  regressors: np.ndarray, problem: problem_lib.LinearProblem, num_samples: int
) -> np.ndarray:
  """The clients' mean squared errors on noiseless test samples.

  Args:
    regressors: What clients predict with, as `History.regressors`.
    problem: Whose test samples are taken; where there are domains, a client's
      are those of its mixture.

  Returns:
    float64 `[n]`. A client that predicts 0 has about the variance of its
    labels, the square of its head's length.
  """
  return 2 * model_lib.losses(regressors, problem.test_samples(num_samples))


def with_exact_head(representation: np.ndarray) -> Regressor:
  """A learned representation, the head by least squares.

  Args:
    representation: float64 `[d, k]`, of any scale. With fewer than k samples
      the head of the least norm is taken.
  """

  def regressor(x, y):
    heads = model_lib.least_squares(x @ representation, y)
    return heads @ representation.T

  return regressor


def fine_tuned(
  model: model_lib.LinearModel, learning_rate: float, num_steps: int
) -> Regressor:
  """A learned model after full-batch gradient steps on both of its parts."""

  def regressor(x, y):
    models = model_lib.for_clients(model, len(y))
    samples = problem_lib.Samples(x, y)
    return model_lib.regressors(
      model_lib.descend(models, samples, learning_rate, num_steps)
    )

  return regressor


# Without a representation: least squares in d dimensions, with fewer than d
# samples the regressor of the least norm.
local_only: Regressor = model_lib.least_squares


def new_client_errors(
  regressor: Regressor,
  problem: problem_lib.LinearProblem,
  sample_counts: Sequence[int],
  num_clients: int,
) -> np.ndarray:
  """The errors of new clients, for several numbers m of samples.

  An error is |theta - B* w*|^2, the excess mean squared error on new inputs of
  unit covariance. The clients are the same for all regressors; m samples of one
  are the first m of more.

  Returns:
    float64 `[len(sample_counts), num_clients]`; not finite where steps
    diverged.
  """
  rows = []
  for num_samples in sample_counts:
    samples, targets = problem.new_clients(num_clients, num_samples)
    with np.errstate(over='ignore', invalid='ignore'):
      found = regressor(samples.x, samples.y)
      rows.append(np.square(found - targets).sum(axis=1))
  return np.stack(rows)
