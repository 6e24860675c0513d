"""Sweeps, which choose hyperparameters by scores on validation examples.

The chosen point of a method's grid or search has the best primary metric of the
personal models, as a mean over clients and the last 10 rounds. The first of
equal points is chosen. A point at which a client's model diverges has failed,
because with another seed any client's model may diverge.

Each method in each condition has an Optuna study in `search.sqlite` of the
study's folder, with its points and their scores. The study has all points of a
grid from the start. A search proposes points, which depend only on the seed and
on earlier results. They do not depend on the number of points that are tried at
the same time, or on interruptions, unless points are just being proposed.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, Optional

import numpy as np
import optuna
import sqlalchemy
from absl import logging

from tff_pfl import errors
from tff_pfl.models import split_model
from tff_pfl.runs import report
from tff_pfl.studies import execution, plan, trial

if TYPE_CHECKING:
  from tff_pfl.studies import study as study_lib

FILE_NAME = 'search.sqlite'
# Points that a search proposes together, before any of them is scored.
_TOGETHER = 4
_State = optuna.trial.TrialState


@contextlib.contextmanager
def _explaining() -> Iterator[None]:
  """Explains errors of the file of points, such as a full disk, in a line."""
  try:
    yield
  except (
    sqlalchemy.exc.DBAPIError,
    optuna.exceptions.StorageInternalError,
  ) as error:
    # Optuna's errors have SQLAlchemy's as their cause, which have SQLite's.
    reason = getattr(error, 'orig', getattr(error.__cause__, 'orig', error))
    raise errors.RunError(
      f'Cannot use the {FILE_NAME} of the study: {reason}. Fix this and run '
      'the study again.'
    ) from error


@_explaining()
def tune(
  study: study_lib.Study, directory: str, **options: Any
) -> tuple[dict[plan.Key, Any], list[dict[str, Any]], list[dict[str, Any]]]:
  """Runs the unfinished sweeps of a study.

  Args:
    directory: The study's folder.
    **options: Further arguments of `execution.run_trials`.

  Returns:
    The chosen points by the keys of `plan.runs` (None if all points of a method
    failed or diverged), the `tunings` of the description (with the primary
    metric as `score`), and the failures of their trials.

  Raises:
    RunError: If the folder has a sweep of other values, or one of its trials
      cannot run, or the points cannot be stored.
  """
  tuned = [key for key in plan.runs(study) if plan.is_tuned(study, key)]
  if not tuned:
    return {}, [], []
  optuna.logging.set_verbosity(optuna.logging.WARNING)
  os.makedirs(directory, exist_ok=True)
  path = os.path.join(directory, FILE_NAME)
  storage = optuna.storages.RDBStorage(f'sqlite:///{path}')
  sweeps = [_Sweep(study, directory, key, storage) for key in tuned]
  failed = {}
  for sweep in sweeps:
    sweep.propose()
    failed.update(sweep.settled_failures())
  while True:
    trials = [one for sweep in sweeps for one in sweep.trials()]
    to_run = [one for one in trials if one.name not in failed]
    if to_run:
      failed.update(
        execution.run_trials(to_run, directory, description='tuning', **options)
      )
    for sweep in sweeps:
      sweep.score(failed)
    if not any([sweep.propose() for sweep in sweeps]):
      break
  tunings = [sweep.table(failed) for sweep in sweeps]
  for sweep, tuning in zip(sweeps, tunings):
    if _chosen(tuning) is None:
      # All of its trials may have finished, but the method is not compared.
      first = sweep.trials()[0].name
      failed.setdefault(first, tuning['points'][0]['failure'])
  return (
    {key: _chosen(one) for key, one in zip(tuned, tunings)},
    tunings,
    failures_of(trials, failed),
  )


def _chosen(tuning):
  """The hyperparameters that a sweep chose, or None if all points failed."""
  return next((p['hparams'] for p in tuning['points'] if p['chosen']), None)


def failures_of(
  trials: Iterable[trial.Trial], reasons: Mapping[str, str]
) -> list[dict[str, Any]]:
  """The failures among trials, with reasons by name."""
  return [
    {
      'trial': t.name,
      'algorithm': t.settings.algorithm,
      'seed': t.settings.seed,
      'reason': reasons[t.name],
    }
    for t in trials
    if t.name in reasons
  ]


class _Attempt(NamedTuple):
  """A point and its run, or the reason if the method does not allow it."""

  hparams: Mapping[str, Any]
  trial: Optional[trial.Trial] = None
  refusal: Optional[str] = None


class _Sweep:
  """The sweep of a method in a condition."""

  def __init__(
    self,
    study: study_lib.Study,
    directory: str,
    key: plan.Key,
    storage: optuna.storages.BaseStorage,
  ):
    self._of = study
    self._directory = directory
    self._key = key
    self._name = plan.run_name(study, key)
    axes = plan.axes(study, key[1])
    self._space = {
      ','.join(targets): _distribution(values)
      for targets, values in axes.items()
    }
    self._study = optuna.create_study(
      storage=storage,
      study_name=self._name,
      direction='maximize',
      load_if_exists=True,
    )
    is_grid = study.num_search_trials is None
    axis_texts = [f'{n}={v!r}' for n, v in zip(self._space, axes.values())]
    space = (
      f'{"grid" if is_grid else "search"} of {self._name} among '
      + ', '.join(axis_texts)
    )
    stored = self._study.user_attrs.get('space')
    if stored is None:
      for values in itertools.product(*axes.values()) if is_grid else ():
        point = dict(zip(self._space, values))
        self._study.enqueue_trial(point, skip_if_exists=True)
      self._study.set_user_attr('space', space)
    elif stored != space:
      raise errors.RunError(
        f'{directory} holds a {stored}, not a {space}: give the old values, '
        'or choose another output folder.'
      )

  def propose(self) -> bool:
    """Provides points to score, new ones if necessary, or returns False."""
    if self._in_state(_State.RUNNING):
      return True
    num_known = len(self._study.trials)
    if self._has_begun() and num_known < (self._of.num_search_trials or 0):
      remedy = f'give num_search_trials={num_known}, or ' if num_known else ''
      raise errors.RunError(
        f'{self._directory} holds runs with the best of {num_known} points of '
        f'{self._name}: {remedy}choose another output folder.'
      )
    num_new = len(self._in_state(_State.WAITING)) or min(
      _TOGETHER, (self._of.num_search_trials or 0) - num_known
    )
    # A new sampler each time, so that interruptions make no difference.
    seed = [self._of.seed_of_tuning, num_known]
    self._study.sampler = optuna.samplers.TPESampler(
      seed=int(np.random.SeedSequence(seed).generate_state(1)[0]),
      constant_liar=True,
    )
    for _ in range(num_new):
      attempt = self._attempt(self._study.ask(self._space).params)
      if attempt.refusal is not None:
        logging.warning(
          '%s is not tried with %s: %s',
          self._name,
          dict(attempt.hparams),
          attempt.refusal,
        )
    return num_new > 0

  def score(self, failed: Mapping[str, str]) -> None:
    """Stores the scores or failures of points."""
    for one in self._in_state(_State.RUNNING):
      _, merit = self._judged(self._attempt(one.params), failed)
      state = _State.FAIL if merit is None else _State.COMPLETE
      self._study.tell(one.number, merit, state)

  def trials(self) -> list[trial.Trial]:
    """The runs of all proposed points.

    There are none if the method allows only one point of a grid, which is
    chosen without a run.
    """
    runs = [a.trial for a in self._attempts() if a.trial]
    if self._of.num_search_trials is None:
      return runs if len(runs) > 1 else []
    errors.expect(
      runs,
      'search',
      f'among values that {self._key[1]} takes',
      'none in the proposed points (the warnings say why)',
    )
    return runs

  def settled_failures(self) -> dict[str, str]:
    """Reasons, by name, for trials that must not be tried again.

    Once the method's runs have begun with the chosen point, a failed point must
    not be tried again. If it were now the best, the runs would have used the
    wrong point.
    """
    has_begun = self._has_begun()
    trials = self.trials()
    unfinished = [
      one.name
      for one in trials
      if not execution.is_finished(self._directory, one)
    ]
    failures = {}
    if has_begun and len(unfinished) < len(trials):
      for name in unfinished:
        reason = execution.logged_error(self._directory, name)
        failures[name] = (
          f'{reason or "it did not end"} (not tried again: the runs with '
          'another point have begun)'
        )
    return failures

  def _has_begun(self):
    # Also with seeds that are not of this part of a study.
    folder = os.path.join(self._directory, execution.TRIALS_DIR)
    return any(
      plan.is_trial_of(self._name, name)
      and execution.is_started(self._directory, name)
      for name in (os.listdir(folder) if os.path.isdir(folder) else ())
    )

  def table(self, failed: Mapping[str, str]) -> dict[str, Any]:
    """The table of the sweep, with the best point chosen."""
    is_tried = bool(self.trials())
    judged = [self._judged(one, failed) for one in self._attempts()]
    best = max((m for _, m in judged if m is not None), default=None)
    for point, merit in judged:
      if point['failure'] is None and merit == best:
        point['chosen'] = True
        break
    rounds = {
      one.trial.settings.rounds.num_rounds
      for one in self._attempts()
      if is_tried and one.trial
    }
    condition, method = self._key
    return {
      'condition': condition,
      'method': method,
      'seed': self._of.seed_of_tuning,
      'num_rounds': max(rounds, default=0),
      'points': [point for point, _ in judged],
    }

  def _in_state(self, state):
    return self._study.get_trials(states=[state])

  def _attempts(self):
    """The proposed points, each once."""
    attempts = []
    for one in self._study.trials:
      if one.state != _State.WAITING:
        attempt = self._attempt(one.params)
        if attempt not in attempts:
          attempts.append(attempt)
    return attempts

  def _attempt(self, params):
    values = {tuple(names.split(',')): params[names] for names in params}
    point = plan.point(self._of, self._key, values)
    try:
      one = plan.tuning_trial(self._of, self._key, point)
    except ValueError as error:
      return _Attempt(point, refusal=str(error))
    return _Attempt(point, one)

  def _judged(self, attempt, failed):
    """A point of the table, and its merit, or None if it failed."""
    one = attempt.trial
    point = {
      'hparams': dict(attempt.hparams),
      'score': None,
      'loss': None,
      'chosen': False,
      'failure': attempt.refusal or failed.get(one and one.name),
    }
    if one is None or not execution.is_finished(self._directory, one):
      return point, None
    summary = trial.FinishedTrial(
      execution.trial_folder(self._directory, one.name)
    ).summary
    figures = report.primary_figures(summary)
    score, loss = figures['personal']['last_10_mean'], summary['loss']
    point.update(score=score, loss=loss)
    diverged = summary['non_finite_clients']
    if diverged or loss is None or not math.isfinite(loss):
      point['failure'] = (
        f'diverged: the loss of {diverged} of its clients is not finite'
      )
      return point, None
    metric = split_model.PrimaryMetric(
      figures['name'], figures['higher_is_better']
    )
    return point, float(metric.merit(score))


def _distribution(axis):
  if not isinstance(axis, plan.Range):
    return optuna.distributions.CategoricalDistribution(axis)
  if isinstance(axis.low, int):
    return optuna.distributions.IntDistribution(*axis)
  return optuna.distributions.FloatDistribution(*axis)
