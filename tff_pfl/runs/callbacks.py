"""Listeners to a run, such as those that log its metrics elsewhere."""

from __future__ import annotations

from collections.abc import Mapping

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
