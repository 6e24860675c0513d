"""Scores every client of a dataset, before and after personalisation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Optional

import numpy as np
import tensorflow as tf

from tff_pfl import datasets, errors
from tff_pfl.datasets import batches
from tff_pfl.evaluation import fairness
from tff_pfl.runtime import base as runtime_base
from tff_pfl.templates import personalized_process

# Clients evaluated in one call; bounds the memory of their data.
CLIENTS_PER_CALL = 20


def training_batches(
  process: personalized_process.PersonalizedProcess,
  client_state: personalized_process.ClientState,
  train: batches.ClientBatches,
  client_id: str,
) -> tf.data.Dataset:
  """What personalisation needs of a client's training data.

  Args:
    process: The process.
    client_state: The client's state.
    train: The clients' training data; read only if needed.
    client_id: The client.
  """
  if process.needs_training_data(client_state):
    return train[client_id]
  return batches.as_batches(batches.no_examples(process.model.element_spec))


def evaluate_clients(
  process: personalized_process.PersonalizedProcess,
  runtime: runtime_base.Runtime,
  server_state: personalized_process.ServerState,
  states_of: Callable[[Sequence[int]], list],
  data: datasets.FederatedDataset,
  train: Optional[batches.ClientBatches] = None,
  test: Optional[batches.ClientBatches] = None,
) -> list:
  """Scores all clients that have test examples.

  Args:
    process: The process.
    runtime: Executes it.
    server_state: The newest server state.
    states_of: From client indices to their states.
    data: The clients; a client's index is its position in `client_ids`.
    train: Their training data, if kept from one evaluation to the next.
    test: Their test data, likewise.

  Returns:
    A dict for each client: `client`, `num_train_examples`,
    `num_test_examples`, `num_rounds` (it took part in), and `before` and
    `after`: dicts of metrics, means over the client's test examples.
  """
  train = train or batches.ClientBatches(data.train)
  test = test or batches.ClientBatches(data.test)
  rows = []
  indices = [
    index
    for index, client_id in enumerate(data.client_ids)
    if data.num_test_examples(client_id)
  ]
  for start in range(0, len(indices), CLIENTS_PER_CALL):
    chunk = indices[start : start + CLIENTS_PER_CALL]
    states = states_of(chunk)
    ids = [data.client_ids[index] for index in chunk]
    results = runtime.run(
      process.evaluate_clients,
      server_state,
      states,
      [
        training_batches(process, state, train, client_id)
        for state, client_id in zip(states, ids)
      ],
      [test[client_id] for client_id in ids],
    )
    for client_id, state, result in zip(ids, states, results):
      rows.append(
        {
          'client': client_id,
          'num_train_examples': data.num_train_examples(client_id),
          'num_test_examples': int(result['examples']),
          'num_rounds': int(state.num_rounds),
          'before': _to_floats(result['before']),
          'after': _to_floats(result['after']),
        }
      )
  return rows


def _to_floats(metrics):
  return {name: float(value) for name, value in metrics.items()}


def summarize(rows: Sequence[Any], has_global_model: bool) -> dict:
  """Sums up the result of `evaluate_clients`.

  Args:
    rows: One dict a client.
    has_global_model: Whether `before` is the score of a global model.

  Returns:
    `personal` and `global` (None without a global model): each metric's mean
    over clients; `fairness`: of the personal accuracy, see
    `fairness.fairness_summary`, or None where the model has no accuracy; and
    `non_finite_clients`: clients whose personal model has a loss that is not
    finite (it diverged, or their training data are not finite).

  Raises:
    ValueError: If there are no rows, for no client has test examples.
  """
  errors.expect(rows, 'rows', 'of at least one client with test examples', rows)

  def means(which):
    names = rows[0][which]
    return {
      name: float(np.mean([row[which][name] for row in rows])) for name in names
    }

  summary = {
    'personal': means('after'),
    'global': means('before') if has_global_model else None,
    'fairness': None,
    'non_finite_clients': sum(
      not np.isfinite(row['after']['loss']) for row in rows
    ),
  }
  if 'accuracy' in summary['personal']:
    summary['fairness'] = fairness.fairness_summary(
      [row['after']['accuracy'] for row in rows],
      [row['num_test_examples'] for row in rows],
      [row['before']['accuracy'] for row in rows] if has_global_model else None,
    )
  return summary
