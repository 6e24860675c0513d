"""Listeners to a run, such as those that log its metrics elsewhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Optional

import pandas as pd


class Callback:
  """Listener that a run calls after each committed round and evaluation.

  Subclasses override the methods that they need. An error ends the run, which
  can be resumed. A resumed run tells only its own rounds.
  """

  def on_round(self, round_number: int, metrics: Mapping[str, float]) -> None:
    """Takes the metrics of training in a round.

    Args:
      round_number: From 1 on.
      metrics: The numbers of the round's row of `Run.history`, but those of an
        evaluation.
    """

  def on_evaluation(
    self, round_number: int, metrics: Mapping[str, float], scores: pd.DataFrame
  ) -> None:
    """Takes the scores of all clients' models, after `on_round`.

    Args:
      round_number: The round that was evaluated.
      metrics: Figures over all clients, such as `personal/accuracy`.
      scores: Scores of each client, as `Run.scores`.
    """


def tell(
  callbacks: Sequence[Callback],
  row: Mapping[str, Any],
  scores: Optional[pd.DataFrame],
) -> None:
  """Calls callbacks after a round.

  Args:
    row: The round's row of `Run.history`, with its names.
    scores: Scores of the evaluation after it; None without one.
  """
  prefix = 'evaluation/'
  numbers = {
    name: float(value)
    for name, value in row.items()
    if isinstance(value, (int, float)) and name != 'round'
  }
  metrics = {n: v for n, v in numbers.items() if not n.startswith(prefix)}
  evaluation = {
    name.removeprefix(prefix): value
    for name, value in numbers.items()
    if name.startswith(prefix)
  }
  for callback in callbacks:
    callback.on_round(row['round'], metrics)
    if scores is not None:
      callback.on_evaluation(row['round'], evaluation, scores)
