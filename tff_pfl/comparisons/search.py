"""Points proposed by Optuna, for a search where a grid is too poor.

A method has a study in `search.sqlite` of the comparison's folder, which holds
the proposed points and their scores. A proposal depends on the seed and on the
points before alone, not on the number of points that are tried at the same
time, and not on interruptions.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, Optional

import numpy as np
import optuna

from tff_pfl import errors
from tff_pfl.comparisons import plan

FILE_NAME = 'search.sqlite'
# Points that are proposed together, before any of them is scored.
_TOGETHER = 4


class Study:
  """The search of one method."""

  def __init__(
    self,
    directory: str,
    algorithm: str,
    space: Mapping[Sequence[str], Any],
    seed: int,
  ):
    """Opens the study, or makes it.

    Args:
      directory: The comparison's folder.
      space: Values and ranges, as `plan.Comparison.axes` returns them.

    Raises:
      RunError: If the folder has a search of other values.
    """
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    os.makedirs(directory, exist_ok=True)
    self._axes = {','.join(targets): targets for targets in space}
    self._space = {
      name: _distribution(space[targets])
      for name, targets in self._axes.items()
    }
    self._seed = seed
    self._study = optuna.create_study(
      storage=f'sqlite:///{os.path.join(directory, FILE_NAME)}',
      study_name=algorithm,
      direction='maximize',
      load_if_exists=True,
    )
    stored = self._study.user_attrs.get('space')
    if stored is None:
      self._study.set_user_attr('space', str(self._space))
    elif stored != str(self._space):
      raise errors.RunError(
        f'{directory} holds a search of {algorithm} among {stored}, not '
        f'{self._space}: give the values of that search, or choose another '
        'output folder.'
      )

  def points(self) -> list[tuple[dict[str, Any], bool]]:
    """All proposed points, each with True if it failed."""
    failed = optuna.trial.TrialState.FAIL
    return [
      (self._point(t.params), t.state == failed) for t in self._study.trials
    ]

  def propose(self, most: int) -> list[tuple[int, dict[str, Any]]]:
    """The points that are not scored yet; without any, some new ones.

    Args:
      most: Most points that there may be in all.
    """
    done = len(self._study.trials)
    running = optuna.trial.TrialState.RUNNING
    if not self._study.get_trials(states=[running]):
      # Anew each time, so that it does not depend on interruptions.
      seed = np.random.SeedSequence([self._seed, done]).generate_state(1)
      self._study.sampler = optuna.samplers.TPESampler(
        seed=int(seed[0]), constant_liar=True
      )
      for _ in range(min(_TOGETHER, most - done)):
        self._study.ask(self._space)
    return [
      (t.number, self._point(t.params))
      for t in self._study.get_trials(states=[running])
    ]

  def score(self, number: int, merit: Optional[float]) -> None:
    """Stores the score of a point; more is better, None if it failed."""
    if merit is None:
      self._study.tell(number, state=optuna.trial.TrialState.FAIL)
    else:
      self._study.tell(number, merit)

  def _point(self, params):
    return {
      target: value
      for name, value in params.items()
      for target in self._axes[name]
    }


def _distribution(axis):
  if not isinstance(axis, plan.Range):
    return optuna.distributions.CategoricalDistribution(axis)
  if isinstance(axis.low, int):
    return optuna.distributions.IntDistribution(*axis)
  return optuna.distributions.FloatDistribution(*axis)
