"""Listeners to a run, for example to log its metrics elsewhere."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd


class Callback:
  """Listener that a run calls after each committed round and evaluation.

  Subclasses override the methods that they need. An error ends the run, which
  can be resumed. A resumed run reports only its new rounds.
  """

  def on_round(self, round_number: int, metrics: Mapping[str, float]) -> None:
    """Receives the training metrics of a round.

    Args:
      round_number: The round, counted from 1.
      metrics: The numbers in the round's row of `Run.history`, without the
        evaluation.
    """

  def on_evaluation(
    self, round_number: int, metrics: Mapping[str, float], scores: pd.DataFrame
  ) -> None:
    """Receives the scores of all clients' models, after `on_round`.

    Args:
      round_number: The round that was evaluated.
      metrics: Figures over all clients, such as `personal/accuracy`.
      scores: Scores of each client, in the form of `Run.scores`.
    """
