"""Errors of the clients that trained, on samples that they did not train on."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from binaries.papers.linear import domain_problem
from binaries.papers.linear import model as model_lib
from tff_pfl import errors


def client_errors(
  models: model_lib.LinearModel,
  problem: domain_problem.DomainProblem,
  num_samples: int = 200,
) -> np.ndarray:
  """The clients' mean squared errors on noiseless test samples.

  Args:
    models: Those of n clients, such as `History.client_models`: float64
      `[n, d, k]` and `[n, k]`, or with an axis for domains before d and k.
    problem: Whose test samples are taken; a client's have the domains of its
      mixture.
    num_samples: Test samples of each client, at least 1.

  Returns:
    float64 `[n]`. A client that predicts 0 has about the variance of its
    labels, which is k for heads of length sqrt(k).
  """
  errors.expect(
    len(models.head) == problem.num_clients,
    'models',
    f'of {problem.num_clients} clients',
    len(models.head),
  )
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
