"""Runs linear methods, all clients at once, and scores the results.

A round draws a cohort, gives it the shared parts of the model and its clients'
own parts, does the method's work (`methods.Round`), and stores the clients' new
parts. The other clients' parts do not change.

This is not the round of `core.round`, which has a network in float32 and a
server that takes an optimizer's step. Here the server factorizes the mean, in
float64, and the theory is checked over thousands of rounds.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from tff_pfl import errors

from .. import representation as representation_lib
from . import methods
from . import model as model_lib
from . import problem as problem_lib

# Distances at which a method has converged, and that slower methods also reach.
CLOSE, NEAR = 1e-6, 1e-3
# The error of an accurate model, in mean variances of the labels.
ACCURATE = 0.01
# The theorems' rates are larger for smaller distances at the start. From this
# distance on they hardly change.
FIT_START = 0.5
# From clients' inputs `[n, m, d]` and labels `[n, m]` to their regressors,
# `[n, d]`.
Regressor = Callable[[np.ndarray, np.ndarray], np.ndarray]


@dataclasses.dataclass(frozen=True)
class History:
  """States of a run, as series of S states, the initial state first.

  Attributes:
    rounds: int64 `[S]`, the number of rounds before each state.
    distance: float64 `[S]`, the principal angle distance between the
      representation and the ground truth, in [0, 1]. If clients or domains have
      their own representations, it is the mean over them.
    gradient_norm: float64 `[S]`, the norm of the gradient of the f_i's mean for
      all parts of the model, including parts that clients keep.
    model: The model after the last round. A part that clients keep has a first
      axis of n clients, a domains' part a first axis of M domains.
    regressors: Each client's B w after the last round, `[n, d]`, or `[n, M, d]`
      with one for each domain.
  """

  rounds: np.ndarray
  distance: np.ndarray
  gradient_norm: np.ndarray
  model: model_lib.LinearModel
  regressors: np.ndarray


def run_method(
  method: methods.LinearMethod,
  problem: problem_lib.LinearProblem,
  num_rounds: int,
  *,
  initial: model_lib.LinearModel,
  seed: int = 0,
  participation: float = 1.0,
  rounds_per_record: int = 1,
) -> History:
  """Runs a method.

  Args:
    problem: Ground truth and clients' samples.
    initial: The first model, without axes of clients or domains. All clients
      and domains that have their own parts start from its parts.
    seed: Seed of the cohorts and of the method's own randomness.
    participation: The fraction r of the clients in a round, in (0, 1]. Each
      round draws r n of them (rounded, at least one) without replacement.
    rounds_per_record: Number of rounds between records of the state, a divisor
      of `num_rounds`.

  Raises:
    RunError: If the iterates diverge.
  """
  cohort_size = max(1, round(participation * problem.num_clients))
  samples = problem.samples()
  parts = initial._asdict()
  for names, number in (
    (method.local_names, problem.num_clients),
    (method.domain_names, problem.num_domains),
  ):
    parts.update((name, np.stack([parts[name]] * number)) for name in names)
  model = model_lib.LinearModel(**parts)
  series = []
  for round_number in range(num_rounds + 1):
    # Divergence raises an error below.
    with np.errstate(over='ignore', invalid='ignore'):
      if round_number:
        rng = np.random.default_rng([seed, round_number, *b'round'])
        model = _one_round(method, model, samples, cohort_size, rng)
      is_recorded = round_number % rounds_per_record == 0
      norm = _gradient_norm(method, model, samples) if is_recorded else 0.0
    if not all(np.isfinite(value).all() for value in (*model, norm)):
      raise errors.RunError(
        f'{method.name} diverged: its iterates are not finite after round '
        f'{round_number}. Choose a smaller step size.'
      )
    if is_recorded:
      distance = _distance(model.representation, problem.representation)
      series.append((distance, norm))
  return History(
    np.arange(0, num_rounds + 1, rounds_per_record),
    *np.array(series).T,
    model=model,
    regressors=_regressors(method, model, problem.num_clients),
  )


def fit_decay(distance: np.ndarray) -> dict[str, float]:
  """Fits a line to the natural logarithm of a distance that falls to `CLOSE`.

  Args:
    distance: After each round, positive, `[num_rounds + 1]`.

  Returns:
    `rate`, minus the slope per round, and `r_squared`, the share of the
    variance that the line explains. The fit begins at the first distance of at
    most `FIT_START` (or the first of all), and ends at the first distance of at
    most `CLOSE` (or the last of all).
  """
  begun = np.flatnonzero(distance <= FIT_START)
  first = begun[0] if begun.size else 0
  last = rounds_to(distance, CLOSE)
  rounds = np.arange(first, last + 1)
  logs = np.log(distance[first : last + 1])
  slope, intercept = np.polyfit(rounds, logs, 1)
  residuals = logs - (slope * rounds + intercept)
  return {
    'rate': -float(slope),
    'r_squared': float(1 - residuals.var() / logs.var()),
  }


def rounds_to(distances: np.ndarray, distance: float) -> int:
  """The number of rounds to a distance, or all rounds if it is not reached."""
  reached = np.flatnonzero(distances <= distance)
  return int(reached[0]) if reached.size else len(distances) - 1


def first_lasting(counts: Sequence[int], fails: np.ndarray) -> np.ndarray:
  """The first number from which on nothing fails.

  Args:
    counts: Numbers of samples, fewest first.
    fails: bool `[n, counts]`.

  Returns:
    `[n]`, infinite if the last number fails.
  """
  first = fails.shape[1] - np.argmax(fails[:, ::-1], axis=1)
  return np.append(counts, np.inf)[np.where(fails.any(axis=1), first, 0)]


def rows(
  history: History, columns: Mapping[str, Any]
) -> Iterator[dict[str, Any]]:
  """Yields rows of every tenth round and of the last round.

  The last row also has `rate`, `r_squared` and `rounds_to_near`.

  Args:
    history: A run with a record of every round.
    columns: Columns that name the run.
  """
  num_rounds = int(history.rounds[-1])
  for index in [*range(0, num_rounds, 10), num_rounds]:
    row = {
      **columns,
      'round': index,
      'distance': history.distance[index],
      'gradient_norm': history.gradient_norm[index],
    }
    if index == num_rounds:
      row.update(
        fit_decay(history.distance),
        rounds_to_near=rounds_to(history.distance, NEAR),
      )
    yield row


def client_errors(
  regressors: np.ndarray, problem: problem_lib.LinearProblem, num_samples: int
) -> np.ndarray:
  """The clients' mean squared errors on noiseless test samples, `[n]`.

  Args:
    regressors: Regressors of the clients, as `History.regressors`.
  """
  return 2 * model_lib.losses(regressors, problem.test_samples(num_samples))


def with_exact_head(representation: np.ndarray) -> Regressor:
  """A learned representation `[d, k]`, with heads by least squares."""

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


# Least squares in d dimensions, without a representation.
local_only: Regressor = model_lib.least_squares


def new_client_errors(
  regressor: Regressor,
  problem: problem_lib.LinearProblem,
  sample_counts: Sequence[int],
  num_clients: int,
) -> np.ndarray:
  """The errors of new clients, by number of samples: `[counts, clients]`.

  An error is |theta - B* w*|^2, the excess mean squared error on new inputs of
  unit covariance. It is not finite if steps diverged.
  """
  rows = []
  for num_samples in sample_counts:
    samples, targets = problem.new_clients(num_clients, num_samples)
    with np.errstate(over='ignore', invalid='ignore'):
      theta = regressor(samples.x, samples.y)
      rows.append(np.square(theta - targets).sum(axis=1))
  return np.stack(rows)


def _one_round(method, model, samples, cohort_size, rng):
  num_clients = len(samples.y)
  cohort = slice(None)
  if cohort_size < num_clients:
    cohort = rng.choice(num_clients, cohort_size, replace=False)
  local = {name: getattr(model, name) for name in method.local_names}
  present = {name: part[cohort] for name, part in local.items()}
  updated = method.one_round(model._replace(**present), samples.at(cohort), rng)
  for name, part in local.items():
    part = part.copy()
    part[cohort] = getattr(updated, name)
    updated = updated._replace(**{name: part})
  return updated


def _regressors(method, model, num_clients):
  """The regressor of each client, `[n, d]` or `[n, M, d]`."""
  theta = model_lib.regressors(model)
  if method.local_names:
    return theta
  return np.broadcast_to(theta, (num_clients, *theta.shape))


def _gradient_norm(method, model, samples):
  num_clients = len(samples.y)
  theta = _regressors(method, model, num_clients)
  g = model_lib.regressor_gradients(theta, samples) / num_clients
  if not method.local_names:
    g = g.sum(axis=0)
  squares = 0.0
  for part, slope in zip(model, model_lib.part_gradients(model, g)):
    # The gradient of a shared representation is the sum over the heads.
    if slope.ndim > part.ndim:
      slope = slope.sum(axis=0)
    squares += np.square(slope).sum()
  return np.sqrt(squares)


def _distance(representations, ground_truth):
  """The mean distance of one or more representations from the truth."""
  matrices = representations.reshape(-1, *ground_truth.shape)
  return np.mean(
    [
      representation_lib.principal_angle_distance(matrix, ground_truth)
      # A space of fewer dimensions misses a direction of the ground truth.
      if np.linalg.matrix_rank(matrix) == matrix.shape[1]
      else 1.0
      for matrix in matrices
    ]
  )
