"""Scores every client of a dataset, before and after personalization."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple, Optional

import numpy as np

from tff_pfl import datasets, errors
from tff_pfl.core import client_examples, example_tensors, personalized_process
from tff_pfl.models import client_metrics, split_model
from tff_pfl.runs import domain_scores, fairness, two_class_scores
from tff_pfl.runtime import base as runtime_base

# From client ids to examples, as `Runtime.share` returns it.
ClientMapping = Mapping[str, Any]


class Evaluation(NamedTuple):
  """An evaluation of all clients that have test examples.

  Attributes:
    rows: A dict for each client: `client`, `num_train_examples`,
      `num_test_examples`, `num_rounds` (it took part in), and `before` and
      `after`: dicts of metrics, means over the client's test examples, or of
      all of them as in `client_metrics`, None where it has no such figure.
      Where the process has domains, also `domains`, see
      `domain_scores.client_domains`.
    summary: The result of `summarize`; for two classes also `two_classes`, the
      result of `two_class_scores.summarize`, and where the process has domains
      `domains`, that of `domain_scores.summarize`.
  """

  rows: list
  summary: dict


def training_examples(
  process: personalized_process.PersonalizedProcess,
  runtime: runtime_base.Runtime,
  client_states: Sequence[personalized_process.ClientState],
  train: ClientMapping,
  client_ids: Sequence[str],
) -> list[example_tensors.ExampleTensors]:
  """The clients' training data, without examples where none are needed.

  Clients that run as one program all get theirs if any needs it: each number of
  those that do would otherwise have programs of its own.
  """
  needed = list(map(process.needs_training_data, client_states))
  if runtime.batches_clients and any(needed):
    needed = [True] * len(needed)
  nothing = client_examples.no_examples(process.model.element_spec)
  return [
    train[client_id] if is_needed else nothing
    for client_id, is_needed in zip(client_ids, needed)
  ]


def evaluate(
  process: personalized_process.PersonalizedProcess,
  runtime: runtime_base.Runtime,
  server_state: personalized_process.ServerState,
  states_of: Callable[[Sequence[int]], list],
  data: datasets.FederatedDataset,
  train: Optional[ClientMapping] = None,
  test: Optional[ClientMapping] = None,
  excluded: Collection[int] = (),
) -> Evaluation:
  """Scores all clients that have test examples, and sums up.

  Of two classes the predictions of all clients are kept for as long as it takes
  to sum up: 16 bytes a test example.

  Args:
    process: Process whose personalization is scored.
    states_of: Function from client indices to their states, in order.
    data: The clients; a client's index is its position in `client_ids`.
    train: Their training data, if kept from one evaluation to the next, as
      `Runtime.share` returns them.
    test: Their test data, if kept so; both or none.
    excluded: Indices of clients that are not scored.
  """
  if train is None or test is None:
    train, test = runtime.share(
      client_examples.ClientExamples(data.train),
      client_examples.ClientExamples(data.test),
    )
  indices = [
    index
    for index, client_id in enumerate(data.client_ids)
    if data.num_test_examples(client_id) and index not in excluded
  ]
  rows, predictions = [], []
  for start in range(0, len(indices), runtime.clients_per_call):
    chunk = indices[start : start + runtime.clients_per_call]
    states = states_of(chunk)
    ids = [data.client_ids[index] for index in chunk]
    results = runtime.run(
      process.evaluate_clients,
      server_state,
      states,
      training_examples(process, runtime, states, train, ids),
      [test[client_id] for client_id in ids],
    )
    for client_id, state, result in zip(ids, states, results):
      row = {
        'client': client_id,
        'num_train_examples': data.num_train_examples(client_id),
        'num_test_examples': int(result['examples']),
        'num_rounds': int(state.num_rounds),
        'before': _to_floats(result['before']),
        'after': _to_floats(result['after']),
      }
      if 'predictions' in result:
        y, *predictions_of = (
          np.array(result['predictions'][name])[: row['num_test_examples']]
          for name in ('y', 'before', 'after')
        )
        for when, values in zip(('before', 'after'), predictions_of):
          row[when].update(client_metrics.scores(process.model, y, values))
      if 'domains' in result:
        row['domains'] = domain_scores.client_domains(
          result['domains'], process.model.domains.names
        )
      rows.append(row)
      if 'scores' in result:
        # Copies without the padding.
        predictions.append(
          two_class_scores.Predictions(
            **{
              name: np.array(values[: row['num_test_examples']])
              for name, values in result['scores'].items()
            }
          )
        )
  return Evaluation(rows, _summary(process, rows, predictions))


def evaluate_new_clients(
  process: personalized_process.PersonalizedProcess,
  runtime: runtime_base.Runtime,
  server_state: personalized_process.ServerState,
  num_known: int,
  data: datasets.FederatedDataset,
) -> Evaluation:
  """Scores clients that took no part, each fitted to its training data.

  Args:
    num_known: Number of clients that were trained; the indices of the new ones
      begin there, so that no client's seed is used twice.
    data: The new clients.
  """
  return evaluate(
    process,
    runtime,
    server_state,
    lambda positions: runtime.run(
      process.initialize_client_states, [num_known + i for i in positions]
    ),
    data,
  )


def _to_floats(metrics):
  return {name: float(value) for name, value in metrics.items()}


def _summary(process, rows, predictions):
  summary = summarize(
    rows,
    process.has_global_model,
    process.model.primary_metric,
    process.model.reported,
  )
  if predictions:
    summary['two_classes'] = two_class_scores.summarize(
      predictions, process.has_global_model
    )
  if process.model.domains is not None:
    summary['domains'] = domain_scores.summarize(
      rows,
      process.model.domains.names,
      has_global_model=process.has_global_model,
      predictions=predictions,
    )
  return summary


def summarize(
  rows: Sequence[Any],
  has_global_model: bool,
  primary_metric: split_model.PrimaryMetric = split_model.ACCURACY,
  reported: Sequence[split_model.PrimaryMetric] = (),
) -> dict:
  """Sums up the scores of clients.

  Args:
    rows: Rows of an `Evaluation`.
    has_global_model: True if `before` is the score of a global model.
    primary_metric: Metric that the clients are compared by.
    reported: The model's further metrics for reports.

  Returns:
    `personal` and `global` (None without a global model): each metric's mean
    over the clients that have it, NaN without any; `fairness`: of the personal
    models' primary metric, see `fairness.fairness_summary`;
    `non_finite_clients`: clients whose personal model has a loss that is not
    finite (it diverged, or their training data are not finite);
    `primary_metric`, a dict, unless it is the accuracy; and, where there are
    any, `reported`: by name of the further metrics `higher_is_better`,
    `num_clients`, those that have it, and `num_scored`, all of them.
  """
  errors.expect(rows, 'rows', 'of at least one client with test examples', rows)

  def known(which, name):
    return [row[which][name] for row in rows if row[which][name] is not None]

  def means(which):
    found = {name: known(which, name) for name in rows[0][which]}
    return {
      name: float(np.mean(values)) if values else math.nan
      for name, values in found.items()
    }

  summary = {
    'personal': means('after'),
    'global': means('before') if has_global_model else None,
    'fairness': fairness.fairness_summary(
      [row['after'][primary_metric.name] for row in rows],
      [row['num_test_examples'] for row in rows],
      [row['before'][primary_metric.name] for row in rows]
      if has_global_model
      else None,
      primary_metric,
    ),
    'non_finite_clients': sum(
      not np.isfinite(row['after']['loss']) for row in rows
    ),
  }
  if primary_metric != split_model.ACCURACY:
    summary['primary_metric'] = primary_metric._asdict()
  if reported:
    summary['reported'] = {
      metric.name: {
        'higher_is_better': metric.higher_is_better,
        'num_clients': len(known('after', metric.name)),
        'num_scored': len(rows),
      }
      for metric in reported
    }
  return summary
