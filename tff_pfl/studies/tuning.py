"""Sweeps: a method's hyperparameters, chosen by scores on validation examples.

A point of a method's grid, or of a search, is chosen by the best primary metric
of the personal models, as a mean over clients and the last 10 rounds; of equal
ones the first. A point at which a client's model diverged is a failed one: with
the next seed it may be any client's.

A method has a study of Optuna's in `search.sqlite` of the comparison's folder,
with its points and their scores. It has all points of a grid from the start;
those of a search are proposed, which depends on the seed and on the points
before alone, not on the number of points that are tried at the same time, and
not on interruptions.
"""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, Optional

import numpy as np
import optuna
from absl import logging

from tff_pfl import errors
from tff_pfl.comparisons import execution, page, plan, trial
from tff_pfl.models import split_model
from tff_pfl.runs import report

FILE_NAME = 'search.sqlite'
# Points that a search proposes together, before any of them is scored.
_TOGETHER = 4
_State = optuna.trial.TrialState


def tune(
  comparison: plan.Comparison, directory: str, **options: Any
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
  """Runs the sweeps of a comparison, as far as not yet done.

  Args:
    directory: The comparison's folder.
    **options: Further arguments of `execution.run_trials`.

  Returns:
    The `tunings` of the results, the primary metric called `score`, and the
    failures of their trials. No point is chosen where all of a method's failed
    or diverged.

  Raises:
    RunError: If the folder has a sweep of other values, or a trial of it cannot
      be run.
  """
  tuned = [a for a in comparison.algorithms if comparison.is_tuned(a)]
  if not tuned:
    return [], []
  optuna.logging.set_verbosity(optuna.logging.WARNING)
  os.makedirs(directory, exist_ok=True)
  path = os.path.join(directory, FILE_NAME)
  storage = optuna.storages.RDBStorage(f'sqlite:///{path}')
  sweeps = [_Sweep(comparison, directory, a, storage) for a in tuned]
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
    if chosen_point(tuning) is None:
      # Its runs may all have ended, and yet the method is not compared.
      first = sweep.trials()[0].name
      failed.setdefault(first, tuning['points'][0]['failure'])
  return tunings, failures_of(trials, failed)


def chosen_point(tuning: Mapping[str, Any]) -> Optional[Mapping[str, Any]]:
  """The hyperparameters that a sweep chose, or None if all points failed."""
  return next((p['hparams'] for p in tuning['points'] if p['chosen']), None)


def failures_of(
  trials: Iterable[trial.Trial], reasons: Mapping[str, str]
) -> list[dict[str, Any]]:
  """The failures among trials, of which there are reasons by name."""
  return [
    {
      'trial': t.name,
      'algorithm': t.config.algorithm,
      'seed': t.config.seed,
      'reason': reasons[t.name],
    }
    for t in trials
    if t.name in reasons
  ]


class _Attempt(NamedTuple):
  """A point and its run, or why the method does not allow it."""

  hparams: Mapping[str, Any]
  trial: Optional[trial.Trial] = None
  refusal: Optional[str] = None


class _Sweep:
  """The sweep of one method."""

  def __init__(
    self,
    comparison: plan.Comparison,
    directory: str,
    algorithm: str,
    storage: optuna.storages.BaseStorage,
  ):
    self._comparison = comparison
    self._directory = directory
    self._algorithm = algorithm
    axes = comparison.axes(algorithm)
    self._space = {
      ','.join(targets): _distribution(values)
      for targets, values in axes.items()
    }
    self._study = optuna.create_study(
      storage=storage,
      study_name=algorithm,
      direction='maximize',
      load_if_exists=True,
    )
    is_grid = comparison.num_search_trials is None
    axis_texts = [f'{n}={v!r}' for n, v in zip(self._space, axes.values())]
    wanted = (
      f'{"grid" if is_grid else "search"} of {algorithm} among '
      + ', '.join(axis_texts)
    )
    stored = self._study.user_attrs.get('space')
    if stored is None:
      for values in itertools.product(*axes.values()) if is_grid else ():
        point = dict(zip(self._space, values))
        self._study.enqueue_trial(point, skip_if_exists=True)
      self._study.set_user_attr('space', wanted)
    elif stored != wanted:
      raise errors.RunError(
        f'{directory} holds a {stored}, not a {wanted}: give the values of '
        'that, or choose another output folder.'
      )

  def propose(self) -> bool:
    """Has points to score, new ones if there are none; False without any."""
    if self._in_state(_State.RUNNING):
      return True
    num_known = len(self._study.trials)
    num_new = len(self._in_state(_State.WAITING)) or min(
      _TOGETHER, (self._comparison.num_search_trials or 0) - num_known
    )
    # Anew each time, so that it does not depend on interruptions.
    seed = [self._comparison.seeds[0], num_known]
    self._study.sampler = optuna.samplers.TPESampler(
      seed=int(np.random.SeedSequence(seed).generate_state(1)[0]),
      constant_liar=True,
    )
    for _ in range(num_new):
      attempt = self._attempt(self._study.ask(self._space).params)
      if attempt.refusal is not None:
        logging.warning(
          '%s is not tried with %s: %s',
          self._algorithm,
          page.assignments(attempt.hparams),
          attempt.refusal,
        )
    return num_new > 0

  def score(self, failed: Mapping[str, str]) -> None:
    """Stores the scores of points, or that they failed."""
    for one in self._in_state(_State.RUNNING):
      _, merit = self._judged(self._attempt(one.params), failed)
      state = _State.FAIL if merit is None else _State.COMPLETE
      self._study.tell(one.number, merit, state)

  def trials(self) -> list[trial.Trial]:
    """The runs of all proposed points.

    There are none where a grid has but one point that the method allows, which
    is taken untried.
    """
    found = [a.trial for a in self._attempts() if a.trial]
    if self._comparison.num_search_trials is None:
      return found if len(found) > 1 else []
    errors.expect(
      found,
      'search',
      f'among values that {self._algorithm} takes',
      'none in the points that were proposed; the warnings say why',
    )
    return found

  def settled_failures(self) -> dict[str, str]:
    """The trials that are not to be tried again: reasons by name.

    Once the method's runs have begun with what its sweep chose, a point that
    failed before must not be tried again: were it the best now, the runs would
    be another comparison's.
    """
    has_begun = any(
      execution.is_started(
        self._directory, plan.trial_name(self._algorithm, seed, fold)
      )
      for seed in self._comparison.seeds
      for fold in self._comparison.folds
    )
    names = [one.name for one in self.trials()]
    unfinished = [
      name for name in names if not execution.is_finished(self._directory, name)
    ]
    failures = {}
    if has_begun and len(unfinished) < len(names):
      for name in unfinished:
        reason = execution.logged_error(self._directory, name)
        failures[name] = (
          f'{reason or "it did not end"} (not tried again: the runs with '
          'another point have begun)'
        )
    return failures

  def table(self, failed: Mapping[str, str]) -> dict[str, Any]:
    """The table of the sweep, with the best point chosen."""
    is_tried = bool(self.trials())
    judged = [self._judged(one, failed) for one in self._attempts()]
    best = max((m for _, m in judged if m is not None), default=None)
    for point, merit in judged:
      if point['failure'] is None and merit == best:
        point['chosen'] = True
        break
    num_rounds = self._comparison.tuning_rounds
    return {
      'algorithm': self._algorithm,
      'seed': self._comparison.seeds[0],
      'num_rounds': (num_rounds or self._comparison.base.rounds.num_rounds)
      if is_tried
      else 0,
      'points': [point for point, _ in judged],
    }

  def _in_state(self, state):
    return self._study.get_trials(states=[state])

  def _attempts(self):
    """The proposed points, each once."""
    found = []
    for one in self._study.trials:
      if one.state != _State.WAITING:
        attempt = self._attempt(one.params)
        if attempt not in found:
          found.append(attempt)
    return found

  def _attempt(self, params):
    values = {tuple(names.split(',')): params[names] for names in params}
    point = self._comparison.point(self._algorithm, values)
    try:
      one = self._comparison.tuning_trial(self._algorithm, point)
    except ValueError as error:
      return _Attempt(point, refusal=str(error))
    return _Attempt(point, one)

  def _judged(self, attempt, failed):
    """A point of the table, and what to choose by: None if it failed."""
    name = attempt.trial and attempt.trial.name
    point = {
      'hparams': dict(attempt.hparams),
      'score': None,
      'loss': None,
      'chosen': False,
      'failure': attempt.refusal or failed.get(name),
    }
    if name is None or not execution.is_finished(self._directory, name):
      return point, None
    summary = trial.FinishedTrial(
      execution.trial_folder(self._directory, name)
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
