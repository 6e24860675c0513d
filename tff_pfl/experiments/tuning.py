"""The choice of hyperparameters, on the clients' training data alone.

Each client's training examples are divided once more: its runs are trained on
the one part and scored on the other, which takes the place of the test
examples. Nothing of the sweep ever reads these.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Optional

import numpy as np

from tff_pfl import datasets, errors
from tff_pfl.experiments import comparison as plan
from tff_pfl.experiments import results

# Of a seed, the random stream that divides the training examples; the partition
# has those that are a number.
_DIVISION = b'validation'


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
    self.in_memory = data.in_memory
    self._fraction = fraction
    self._seed = seed
    self._held_out = held_out

  def examples(self, position: int) -> datasets.Examples:
    examples = self._data.train(self._data.client_ids[position])
    kept = self._indices(position)
    return examples.select(kept)

  def content(self, position: int) -> Iterator[bytes]:
    yield repr((self._fraction, self._seed, self._held_out)).encode()
    yield from self._data.train_content(self._data.client_ids[position])

  def labels(self, position: int) -> np.ndarray:
    return self.examples(position).y

  def num_examples(self, position: int) -> int:
    return len(self._indices(position))

  def domains(self, position: int) -> Optional[np.ndarray]:
    if self._data.domain_names is None:
      return None
    domains = self._data.train_domains(self._data.client_ids[position])
    return domains[self._indices(position)]

  def _indices(self, position):
    """Where this part's examples are, in the order of the whole."""
    available = self._data.num_train_examples(self._data.client_ids[position])
    gap = self._data.num_overlapping
    # Both parts have at least one.
    num_held_out = min(
      max(round(self._fraction * available), 1), available - gap - 1
    )
    if num_held_out < 1:
      num_held_out = gap = 0
    if self._data.num_overlapping:
      # The last ones are held out: at random, each would have its neighbors,
      # which are nearly the same, among those that are trained on.
      order = np.arange(available)[::-1]
    else:
      rng = np.random.default_rng([self._seed, *_DIVISION, position])
      order = rng.permutation(available)
    if self._held_out:
      return np.sort(order[:num_held_out])
    return np.sort(order[num_held_out + gap :])


def validation_view(
  data: datasets.FederatedDataset, fraction: float, seed: int
) -> datasets.FederatedDataset:
  """A dataset whose test examples are a part of the training examples.

  Args:
    data: The clients. Their test examples are never read.
    fraction: The part of each client's training examples, in (0, 1); at least
      one example, and one is left, where a client has two or more. A client
      with a single one is trained on it and not scored. Of examples that
      overlap (`num_overlapping`) it is the last ones, and those that overlap
      with them are in neither part; a client with too few for that is trained
      on all and not scored.
    seed: Seed of the division, non-negative.

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
    domain_names=data.domain_names,
  )


def choose(
  algorithm: str,
  trials: Sequence[plan.Trial],
  points: Sequence[Mapping[str, Any]],
  summaries: Sequence[Optional[Mapping[str, Any]]],
  failures: Sequence[Optional[str]],
  refused: Sequence[tuple[Mapping[str, Any], str]] = (),
) -> results.Tuning:
  """Chooses the point of a method's grid with the best validation score.

  That is the highest personal accuracy, as a mean over clients and the last 10
  rounds, or without accuracies the lowest loss; of equal ones the first. A
  point at which a client's model diverged is a failed one: with the next seed
  it may be any client's.

  Args:
    trials: The trials of the points, at least one.
    summaries: The summaries of the trials' runs (see `report.write_report`);
      None for those that failed.
    failures: Why they failed; None for the others.
    refused: Points that were not tried, and why (see `Comparison.refused`).

  Returns:
    The sweep's table. No point is chosen where all failed or diverged.
  """
  scores = [_scores(summary) for summary in summaries]
  failures = [
    failure or _divergence(summary)
    for failure, summary in zip(failures, summaries)
  ]
  best = max(
    (
      i
      for i, (summary, failure) in enumerate(zip(summaries, failures))
      if summary is not None and failure is None
    ),
    key=lambda i: (_rank(*scores[i]), -i),
    default=None,
  )
  return results.Tuning(
    algorithm=algorithm,
    seed=trials[0].config.seed,
    num_rounds=trials[0].config.num_rounds,
    points=(
      *(
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
      *_refused_points(refused),
    ),
  )


def without_choice(
  algorithm: str,
  seed: int,
  point: Mapping[str, Any],
  refused: Sequence[tuple[Mapping[str, Any], str]],
) -> results.Tuning:
  """The table of a grid of which the method allows a single point.

  Args:
    seed: Seed of the comparison's first runs.
    point: The point that it allows, and so is taken untried.
    refused: The other points, and why they are refused, at least one.
  """
  return results.Tuning(
    algorithm=algorithm,
    seed=seed,
    num_rounds=0,
    points=(
      results.TuningPoint(dict(point), None, None, True, None),
      *_refused_points(refused),
    ),
  )


def _refused_points(refused):
  return [
    results.TuningPoint(dict(point), None, None, False, reason)
    for point, reason in refused
  ]


def chosen_point(tuning: results.Tuning) -> Optional[Mapping[str, Any]]:
  """The hyperparameters that a sweep chose, or None if all points failed."""
  return next((p.hparams for p in tuning.points if p.chosen), None)


def _scores(summary):
  """Accuracy and loss of a run on the validation examples."""
  if summary is None:
    return None, None
  accuracy = summary['accuracy'] and summary['accuracy']['last_10_mean']
  return accuracy, summary['loss']


def _divergence(summary):
  """Why a run that ended is not to be chosen; None if it may be."""
  if summary is None:
    return None
  diverged = summary['non_finite_clients']
  if diverged or summary['loss'] is None or not math.isfinite(summary['loss']):
    return f'diverged: the loss of {diverged} of its clients is not finite'
  return None


def _rank(accuracy, loss):
  """What is higher for the better point."""
  return -loss if accuracy is None else accuracy
