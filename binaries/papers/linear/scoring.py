"""Errors of the clients' models, of those that trained and of new ones.

References:
  Collins, Hassani, Mokhtari, Shakkottai: Exploiting Shared Representations for
  Personalized Federated Learning, ICML 2021, figure 4.
  Collins, Hassani, Mokhtari, Shakkottai: FedAvg with Fine Tuning: Local Updates
  Lead to Representation Learning, NeurIPS 2022, figure 3.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf

from binaries.papers.linear import domain_problem
from binaries.papers.linear import model as model_lib
from binaries.papers.linear import problem as problem_lib

# From a client's inputs and labels to the regressor that it finds.
Regressor = Callable[[tf.Tensor, tf.Tensor], tf.Tensor]


def client_errors(
  models: model_lib.LinearModel,
  problem: domain_problem.DomainProblem,
  num_samples: int,
) -> np.ndarray:
  """The clients' mean squared errors on noiseless test samples.

  Args:
    models: Those of n clients, such as `History.client_models`: float64
      `[n, d, k]` and `[n, k]`, or with an axis for domains before d and k.
    problem: Whose test samples are taken; a client's have the domains of its
      mixture.

  Returns:
    float64 `[n]`. A client that predicts 0 has about the variance of its
    labels, which is k for heads of length sqrt(k).
  """
  samples = problem.test_samples(num_samples)

  @tf.function(autograph=False)
  def squared_errors(models, samples):
    return tf.vectorized_map(
      lambda args: 2 * model_lib.loss(*args),
      (models, samples),
      fallback_to_while_loop=False,
    )

  models = tf.nest.map_structure(tf.constant, models)
  return squared_errors.get_concrete_function(models, samples)(
    models, samples
  ).numpy()


def with_exact_head(representation: np.ndarray) -> Regressor:
  """A learned representation, the head by least squares.

  Args:
    representation: float64 `[d, k]`, of any scale. With fewer than k samples
      the head of the least norm is taken.
  """

  def regressor(x, y):
    head = model_lib.least_squares(tf.matmul(x, representation), y)
    return tf.linalg.matvec(representation, head)

  return regressor


def fine_tuned(
  model: model_lib.LinearModel, learning_rate: float, num_steps: int
) -> Regressor:
  """A learned model after full-batch gradient steps on both of its parts."""

  def regressor(x, y):
    tuned = model_lib.descend(
      model_lib.LinearModel(*map(tf.constant, model)),
      problem_lib.LinearSamples(x, y),
      learning_rate,
      num_steps,
    )
    return tf.linalg.matvec(tuned.representation, tuned.head)

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
  unit covariance. Clients are the new ones 0 to num_clients - 1 of the problem,
  the same for all regressors; m samples of one are the first m of more.

  Args:
    regressor: From a client's inputs `[m, d]` and labels `[m]` to theta, `[d]`.

  Returns:
    float64 `[len(sample_counts), num_clients]`; not finite where steps
    diverged.
  """

  # One graph for all numbers of samples.
  @tf.function(
    autograph=False,
    input_signature=[
      tf.TensorSpec([num_clients, None, problem.dimension], tf.float64),
      tf.TensorSpec([num_clients, None], tf.float64),
      tf.TensorSpec([num_clients, problem.dimension], tf.float64),
    ],
  )
  def squared_errors(x, y, targets):
    regressors = tf.vectorized_map(
      lambda samples: regressor(*samples),
      (x, y),
      fallback_to_while_loop=False,
    )
    return tf.reduce_sum(tf.square(regressors - targets), axis=1)

  # Called as the one graph that it is: another call of this function makes
  # another, which is no reason for TensorFlow's warning of repeated tracing.
  squared_errors = squared_errors.get_concrete_function()
  rows = []
  for num_samples in sample_counts:
    clients = [
      problem.new_client(num_samples, index) for index in range(num_clients)
    ]
    arrays = map(np.stack, zip(*clients))
    rows.append(squared_errors(*map(tf.constant, arrays)).numpy())
  return np.stack(rows)
