"""What a client that did not train gets from its samples.

The error is |theta - B* w*|^2, the excess mean squared error on new inputs of
unit covariance, against the number m of the client's samples:

* `head_errors`: a learned representation, the head by least squares;
* `local_only_errors`: no representation, least squares in d dimensions;
* `fine_tuning_errors`: a learned model, gradient steps on all of it.

Each function takes new clients 0 to num_clients - 1 of the problem, so that
they compare the same ones; m samples of a client are the first m of more.

References:
  Collins, Hassani, Mokhtari, Shakkottai: Exploiting Shared Representations for
  Personalized Federated Learning, ICML 2021, figure 4.
  Collins, Hassani, Mokhtari, Shakkottai: FedAvg with Fine Tuning: Local Updates
  Lead to Representation Learning, NeurIPS 2022, figure 3.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Callable

import numpy as np
import tensorflow as tf

from binaries.papers.linear import model as model_lib
from binaries.papers.linear import problem as problem_lib
from binaries.papers.linear.least_squares import least_squares
from tff_pfl import errors


def head_errors(
  representation: np.ndarray,
  problem: problem_lib.LinearProblem,
  sample_counts: Sequence[int],
  *,
  num_clients: int = 10,
  ridge: float = 0.0,
) -> np.ndarray:
  """Errors with a learned representation and an exact head.

  Args:
    representation: float64 `[d, k]`, of any scale.
    problem: Whose new clients are taken.
    sample_counts: Numbers of samples, each at least 1. With fewer than k (and
      no ridge) the head of the least norm is taken.
    num_clients: New clients, at least 1.
    ridge: The penalty in the head's loss, at least 0.

  Returns:
    float64 `[len(sample_counts), num_clients]`.
  """
  representation = np.asarray(representation, np.float64)
  errors.expect_non_negative('ridge', ridge)
  errors.expect(
    representation.ndim == 2 and len(representation) == problem.dimension,
    'representation',
    f'a matrix of {problem.dimension} rows',
    representation.shape,
  )

  def regressor(x, y):
    head = least_squares(tf.matmul(x, representation), y, ridge)
    return tf.linalg.matvec(representation, head)

  return _errors(regressor, problem, sample_counts, num_clients)


def local_only_errors(
  problem: problem_lib.LinearProblem,
  sample_counts: Sequence[int],
  *,
  num_clients: int = 10,
  ridge: float = 0.0,
) -> np.ndarray:
  """Errors of least squares in d dimensions on the client's samples alone.

  Args:
    problem: Whose new clients are taken.
    sample_counts: Numbers of samples, each at least 1. With fewer than d (and
      no ridge) the regressor of the least norm is taken.
    num_clients: New clients, at least 1.
    ridge: The penalty in the loss, at least 0.

  Returns:
    float64 `[len(sample_counts), num_clients]`.
  """
  errors.expect_non_negative('ridge', ridge)
  return _errors(
    lambda x, y: least_squares(x, y, ridge), problem, sample_counts, num_clients
  )


def fine_tuning_errors(
  model: model_lib.LinearModel,
  problem: problem_lib.LinearProblem,
  sample_counts: Sequence[int],
  *,
  learning_rate: float,
  num_steps: int = 200,
  num_clients: int = 10,
) -> np.ndarray:
  """Errors after full-batch gradient steps on representation and head.

  Args:
    model: Where the steps start.
    problem: Whose new clients are taken.
    sample_counts: Numbers of samples, each at least 1.
    learning_rate: Positive.
    num_steps: tau', at least 0.
    num_clients: New clients, at least 1.

  Returns:
    float64 `[len(sample_counts), num_clients]`; not finite where the steps
    diverged.
  """
  errors.expect_positive('learning_rate', learning_rate)
  errors.expect_int('num_steps', num_steps, 0)
  model = model_lib.check_model(model, 'model')
  errors.expect(
    len(model.representation) == problem.dimension,
    'model.representation',
    f'a matrix of {problem.dimension} rows',
    model.representation.shape,
  )

  def regressor(x, y):
    tuned = model_lib.descend(
      model_lib.LinearModel(*map(tf.constant, model)),
      problem_lib.LinearSamples(x, y),
      learning_rate,
      num_steps,
    )
    return tf.linalg.matvec(tuned.representation, tuned.head)

  return _errors(regressor, problem, sample_counts, num_clients)


def _errors(
  regressor: Callable[[tf.Tensor, tf.Tensor], tf.Tensor],
  problem: problem_lib.LinearProblem,
  sample_counts: Sequence[int],
  num_clients: int,
) -> np.ndarray:
  """Errors of `regressor(x, y)` for each number of samples and client."""
  errors.expect_int('num_clients', num_clients, 1)
  errors.expect(len(sample_counts), 'sample_counts', 'non-empty', sample_counts)

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
