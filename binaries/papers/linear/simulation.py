"""Runs linear methods, all clients at once, and scores what they found.

A round draws a cohort, hands it the shared parts of the model and what its
clients kept, does the method's work (`methods.Round`), and puts back what they
keep. The other clients' parts stay as they are.

This is not the round of `core.round`: that one has a network in
float32, and a server that takes an optimizer's step. Here the server factorizes
the mean, in float64, and the theory is checked over thousands of rounds.
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

# How close "converged" is, and what slower methods get to as well.
CLOSE, NEAR = 1e-6, 1e-3
# The error of an accurate model, in mean variances of the labels.
ACCURATE = 0.01
# The theorems' rates grow with how far from 1 the start is; from here on they
# hardly change.
FIT_START = 0.5
# From clients' inputs `[n, m, d]` and labels `[n, m]` to the regressors that
# they find, `[n, d]`.
Regressor = Callable[[np.ndarray, np.ndarray], np.ndarray]


@dataclasses.dataclass(frozen=True)
class History:
  """States of a run, in series of S states, the initial one first.

  Attributes:
    rounds: int64 `[S]`, the rounds done at each state.
    distance: float64 `[S]`, the principal angle distance between the
      representation and the ground truth, in [0, 1]. Where clients, or domains,
      have representations of their own, the mean over them.
    gradient_norm: float64 `[S]`, the norm of the gradient of the f_i's mean for
      all parts of the model, those that clients keep included.
    model: After the last round: a part that clients keep has a first axis of n
      clients, one that domains have a first axis of M domains.
    regressors: B w as each client has it after the last round, `[n, d]`, or
      `[n, M, d]` with one for each domain.
  """

  rounds: np.ndarray
  distance: np.ndarray
  gradient_norm: np.ndarray
  model: model_lib.LinearModel
  regressors: np.ndarray


def run(
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
    initial: The first model, without domains; clients that keep a part all
      start from its, as do domains.
    seed: Seed of the cohorts and of the method's own randomness.
    participation: The fraction r of the clients that take part in a round, in
      (0, 1]: r n of them, rounded, at least one, are drawn in each round
      without replacement.
    rounds_per_record: A state is recorded after each so many rounds, a divisor
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
    # What diverges is told below, in one line.
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
    `rate`, minus the slope per round, and `r_squared`, the variance's share
    that the line explains; from the first round at `FIT_START` or below (or the
    first of all) to the first one at `CLOSE` or below (or the last).
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
  """Rounds until a distance is reached; where it is not, all there are."""
  reached = np.flatnonzero(distances <= distance)
  return int(reached[0]) if reached.size else len(distances) - 1


def first_lasting(counts: Sequence[int], fails: np.ndarray) -> np.ndarray:
  """The first number from which on nothing fails.

  Args:
    counts: Numbers of samples, fewest first.
    fails: bool `[n, counts]`.

  Returns:
    `[n]`, infinite where the last number fails.
  """
  first = fails.shape[1] - np.argmax(fails[:, ::-1], axis=1)
  return np.append(counts, np.inf)[np.where(fails.any(axis=1), first, 0)]


def rows(
  history: History, columns: Mapping[str, Any]
) -> Iterator[dict[str, Any]]:
  """Rows of every tenth round and the last one, with the figures of the run.

  These are `rate`, `r_squared`, `rounds_to_near` and `rounds_to_close`. The run
  has a record of every round; the columns name it.
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
        rounds_to_close=rounds_to(history.distance, CLOSE),
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
  """A learned representation `[d, k]`, the head by least squares."""

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


# Without a representation: least squares in d dimensions.
local_only: Regressor = model_lib.least_squares


def new_client_errors(
  regressor: Regressor,
  problem: problem_lib.LinearProblem,
  sample_counts: Sequence[int],
  num_clients: int,
) -> np.ndarray:
  """The errors of new clients, by number of samples: `[counts, clients]`.

  An error is |theta - B* w*|^2, the excess mean squared error on new inputs of
  unit covariance; not finite where steps diverged.
  """
  rows = []
  for num_samples in sample_counts:
    samples, targets = problem.new_clients(num_clients, num_samples)
    with np.errstate(over='ignore', invalid='ignore'):
      found = regressor(samples.x, samples.y)
      rows.append(np.square(found - targets).sum(axis=1))
  return np.stack(rows)


def _one_round(method, model, samples, cohort_size, rng):
  """The model after a round of a cohort."""
  num_clients = len(samples.y)
  cohort = slice(None)
  if cohort_size < num_clients:
    cohort = rng.choice(num_clients, cohort_size, replace=False)
  kept = {name: getattr(model, name) for name in method.local_names}
  present = {name: part[cohort] for name, part in kept.items()}
  updated = method.one_round(model._replace(**present), samples.at(cohort), rng)
  for name, part in kept.items():
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
  """The norm of the gradient of the global loss."""
  num_clients = len(samples.y)
  theta = _regressors(method, model, num_clients)
  g = model_lib.regressor_gradients(theta, samples) / num_clients
  if not method.local_names:
    g = g.sum(axis=0)
  squares = 0.0
  for part, slope in zip(model, model_lib.part_gradients(model, g)):
    # A representation that several heads share gets the sum of their gradients.
    if slope.ndim > part.ndim:
      slope = slope.sum(axis=0)
    squares += np.square(slope).sum()
  return np.sqrt(squares)


def _distance(representations, ground_truth):
  """The mean distance of one or more representations."""
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
