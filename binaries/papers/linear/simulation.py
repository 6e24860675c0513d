"""Runs a linear method on one machine, all clients at once.

A round draws a cohort, hands it the shared parts of the model and what its
clients kept, does the method's work (`methods.Round`), and puts back what they
keep. The other clients' parts stay as they are.

This is not the round of `templates.federated_round`: that one has a network in
float32, and a server that takes an optimizer's step. Here the server factorizes
the mean, in float64, and the theory is checked over thousands of rounds.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from binaries.papers.linear import methods
from binaries.papers.linear import model as model_lib
from binaries.papers.linear import problem as problem_lib
from tff_pfl import errors
from tff_pfl.evaluation import representation as representation_lib


@dataclasses.dataclass(frozen=True)
class History:
  """What a run did, in series of S states, the initial one first.

  Attributes:
    rounds: int64 `[S]`, the rounds done at each state.
    distance: float64 `[S]`, the principal angle distance between the
      representation and the ground truth, in [0, 1]. Where clients, or domains,
      have representations of their own, the mean over them.
    gradient_norm: float64 `[S]`, the norm of the gradient of the global loss
      with respect to all parts of the model, those that clients keep included.
      The global loss is the mean over clients of f_i at the shared parts and
      the client's own. All samples weigh the same, also for a method that gives
      domains weights.
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
    problem: What the clients compute with.
    num_rounds: T, at least 0.
    initial: The first model, without domains; clients that keep a part all
      start from its, as do domains.
    seed: Fixes the cohorts and the method's own randomness; non-negative.
    participation: The fraction r of the clients that take part in a round, in
      (0, 1]: r n of them, rounded, at least one, are drawn in each round
      without replacement.
    rounds_per_record: A state is recorded after each so many rounds: a divisor
      of `num_rounds`.

  Raises:
    ValueError: If an argument is not as above.
    RunError: If the iterates diverge.
  """
  rounds = np.arange(0, num_rounds + 1, rounds_per_record)
  errors.expect(
    rounds[-1] == num_rounds,
    'rounds_per_record',
    f'a divisor of `num_rounds` = {num_rounds}',
    rounds_per_record,
  )
  errors.expect_share('participation', participation, '(0, 1]')
  cohort_size = max(1, round(participation * problem.num_clients))
  samples = problem.samples()
  model = _initial_model(method, problem, initial)
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
    rounds,
    *np.array(series).T,
    model=model,
    regressors=_regressors(method, model, problem.num_clients),
  )


def _initial_model(method, problem, initial):
  parts = initial._asdict()
  for names, number in (
    (method.local_names, problem.num_clients),
    (method.domain_names, problem.num_domains),
  ):
    parts.update((name, np.stack([parts[name]] * number)) for name in names)
  return model_lib.LinearModel(**parts)


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
  """What each client predicts with, `[n, d]` or `[n, M, d]`."""
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
