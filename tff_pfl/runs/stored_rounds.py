"""Rounds of a run, with durable results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tff_pfl import datasets
from tff_pfl.core import padding, personalized_process
from tff_pfl.runs import client_population, run_store, value_codec
from tff_pfl.runtime import base as runtime_base


class StoredRounds:
  """Runs the rounds of a process and keeps their states in a store.

  `run_round` computes a round, and `commit`, which must follow, stores it. The
  round can be scored in between.

  Attributes:
    process: The process.
    runtime: The runtime of the process.
    data: The clients.
    store: The run's store.
    state: The server's state after the last round, committed or not.
    train: The clients' training examples, by client id, in the runtime's form.
    test: The clients' test examples, in the same form.
  """

  def __init__(
    self,
    process: personalized_process.PersonalizedProcess,
    runtime: runtime_base.Runtime,
    data: datasets.FederatedDataset,
    store: run_store.RunStore,
  ):
    """Continues after a store's last round, or commits the initial state.

    Args:
      store: Store of the run, which the caller closes.

    Raises:
      RunError: If the stored state is damaged, or belongs to another method or
        model.
    """
    self.process = process
    self.runtime = runtime
    self.data = data
    self.store = store
    self.train, self.test = runtime.share(
      padding.ClientExamples(data.train),
      padding.ClientExamples(data.test),
    )
    # States that are not committed yet.
    self._new_client_states = {}
    self._committed = client_population.client_states(process, runtime, store)
    if store.last_round < 0:
      self.state = runtime.run(process.initialize)
      self.commit({})
    else:
      self.state = client_population.server_state(process, runtime, store)

  def client_states(self, client_indices: Sequence[int]) -> list:
    """The clients' states after the last round, in order."""
    new = self._new_client_states
    stored = iter(self._committed([i for i in client_indices if i not in new]))
    return [new[i] if i in new else next(stored) for i in client_indices]

  def run_round(self, cohort: Sequence[int]) -> dict:
    """Computes the next round.

    Args:
      cohort: Indices of the clients that take part.

    Returns:
      The round's metrics, as JSON types.
    """
    cohort = [int(index) for index in cohort]
    output = self.runtime.run(
      self.process.next,
      self.state,
      self.client_states(cohort),
      [self.train[self.data.client_ids[index]] for index in cohort],
    )
    self.state = output.state
    self._new_client_states = dict(zip(cohort, output.client_states))
    return value_codec.to_json(output.metrics)

  def commit(self, metrics: dict, **scores: Any) -> None:
    """Stores the last round with its metrics, as a whole or not at all.

    Args:
      **scores: `evaluation` and `per_client`, see `RunStore.commit_round`.
    """
    self.store.commit_round(
      server_state=value_codec.encode(self.state),
      client_states={
        index: value_codec.encode(client_state)
        for index, client_state in self._new_client_states.items()
      },
      metrics=metrics,
      **scores,
    )
    self._new_client_states = {}
