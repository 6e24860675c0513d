"""The choice of hyperparameters, on the clients' training data alone.

Each client's training examples are divided once more: its runs are trained on
the one part and scored on the other, which takes the place of the test
examples. Nothing of the sweep ever reads these.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Optional

import numpy as np

from tff_pfl import datasets, errors
from tff_pfl.comparison import plan, results


class _PartOfTraining(datasets.ExampleSource):
  """Either part of the clients' training examples."""

  def __init__(
    self,
    data: datasets.FederatedDataset,
    fraction: float,
    seed: int,
    held_out: bool,
  ):
    self._data = data
    self._fraction = fraction
    self._seed = seed
    self._held_out = held_out

  def examples(self, position: int) -> datasets.Examples:
    examples = self._data.train(self._data.client_ids[position])
    kept = self._indices(position)
    return datasets.Examples(examples.x[kept], examples.y[kept])

  def labels(self, position: int) -> np.ndarray:
    return self.examples(position).y

  def num_examples(self, position: int) -> int:
    return len(self._indices(position))

  def _indices(self, position):
    """Where this part's examples are, in the order of the whole."""
    available = self._data.num_train_examples(self._data.client_ids[position])
    num_held_out = round(self._fraction * available)
    if available > 1:
      # Both parts have at least one.
      num_held_out = min(max(num_held_out, 1), available - 1)
    else:
      num_held_out = 0
    order = np.random.default_rng([self._seed, position]).permutation(available)
    if self._held_out:
      return np.sort(order[:num_held_out])
    return np.sort(order[num_held_out:])


def validation_view(
  data: datasets.FederatedDataset, fraction: float, seed: int
) -> datasets.FederatedDataset:
  """A dataset whose test examples are a part of the training examples.

  Args:
    data: The clients. Their test examples are never read.
    fraction: The part of each client's training examples, in (0, 1); at least
      one example, and one is left, where a client has two or more. A client
      with a single one is trained on it and not scored.
    seed: Of the division, non-negative.

  Returns:
    The same clients; `train` is what is left of their training examples.
  """
  errors.expect(0 < fraction < 1, 'fraction', 'between 0 and 1', fraction)
  return datasets.FederatedDataset(
    name=data.name,
    client_ids=data.client_ids,
    element_spec=data.element_spec,
    num_classes=data.num_classes,
    train=_PartOfTraining(data, fraction, seed, held_out=False),
    test=_PartOfTraining(data, fraction, seed, held_out=True),
  )


def choose(
  algorithm: str,
  trials: Sequence[plan.Trial],
  points: Sequence[Mapping[str, Any]],
  summaries: Sequence[Optional[Mapping[str, Any]]],
  failures: Sequence[Optional[str]],
) -> results.Tuning:
  """Chooses the point of a method's grid with the best validation score.

  That is the highest personal accuracy, as a mean over clients and the last 10
  rounds, or without accuracies the lowest loss; of equal ones the first.

  Args:
    algorithm: The method.
    trials: Of the points, at least one.
    points: The grid.
    summaries: Of the trials' runs (see `report.write_report`); None for those
      that failed.
    failures: Why they failed; None for the others.

  Returns:
    The sweep's table. No point is chosen where all failed or diverged.
  """
  scores = [_scores(summary) for summary in summaries]
  best = max(
    (i for i, score in enumerate(scores) if _rank(*score) is not None),
    key=lambda i: (_rank(*scores[i]), -i),
    default=None,
  )
  return results.Tuning(
    algorithm=algorithm,
    seed=trials[0].config.seed,
    num_rounds=trials[0].config.num_rounds,
    points=tuple(
      results.TuningPoint(
        hparams=dict(point),
        accuracy=accuracy,
        loss=loss,
        chosen=i == best,
        failure=failure,
      )
      for i, (point, (accuracy, loss), failure) in enumerate(
        zip(points, scores, failures)
      )
    ),
  )


def chosen_point(tuning: results.Tuning) -> Optional[Mapping[str, Any]]:
  """The hyperparameters that a sweep chose, or None if all points failed."""
  return next((p.hparams for p in tuning.points if p.chosen), None)


def _scores(summary):
  """Accuracy and loss of a run on the validation examples."""
  if summary is None:
    return None, None
  accuracy = summary['accuracy'] and summary['accuracy']['last_10_mean']
  return accuracy, summary['loss']


def _rank(accuracy, loss):
  """What is higher for the better point; None for one not to be chosen."""
  if accuracy is not None:
    return accuracy
  return -loss if loss is not None and math.isfinite(loss) else None
