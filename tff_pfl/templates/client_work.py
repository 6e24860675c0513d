"""What an algorithm gives: the work of a client, as pure functions."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple, Optional

import tensorflow as tf

from tff_pfl.client import randomness
from tff_pfl.evaluation import personalization
from tff_pfl.models import split_model, weight_partition
from tff_pfl.templates import personalized_process


class Broadcast(NamedTuple):
  """What every client of the cohort receives.

  Attributes:
    round_number: int32, rounds done before this one.
    seed: int64, the experiment's seed.
    global_weights: The global weights.
    algorithm: The algorithm's own server state.
  """

  round_number: Any
  seed: Any
  global_weights: Any
  algorithm: Any

  @classmethod
  def of(cls, state: personalized_process.ServerState) -> Broadcast:
    """What the server sends of its state."""
    return cls(
      state.round_number, state.seed, state.global_weights, state.algorithm
    )

  def seed_of(
    self, client_state: personalized_process.ClientState, purpose: int
  ) -> tf.Tensor:
    """The seed of a client's work, see `randomness.client_seed`."""
    return randomness.client_seed(
      self.seed, self.round_number, client_state.client_index, purpose
    )


class ClientResult(NamedTuple):
  """What an algorithm's client training returns.

  Attributes:
    update: `initial - final` of the global weights.
    local: The client's new local state.
    metrics: Metric sums of training (`objectives.zero_metrics`).
  """

  update: Any
  local: Any
  metrics: Any


@dataclasses.dataclass(frozen=True)
class ClientWork:
  """What distinguishes one algorithm from another.

  Attributes:
    partition: Which weights are global.
    train: `(broadcast, local, examples, seed) -> ClientResult`, a pure function
      of tensors.
    initial_local: Local state of a client that has not taken part (arrays).
    personal_weights: `(global_weights, local) -> weights`, the model that the
      client is scored with.
    fit_new_client: `(broadcast, local, examples, seed, num_epochs) -> local`:
      what a client does that never took part, with the global weights frozen,
      for `num_epochs` or (None) as long as in a round; None if nothing.
    adaptation: How the method fine-tunes a model before it is scored, unless
      the user asks for something else.
  """

  partition: weight_partition.WeightPartition
  train: Callable[..., ClientResult]
  initial_local: Any
  personal_weights: Callable[..., split_model.Weights]
  fit_new_client: Optional[Callable[..., Any]] = None
  adaptation: personalization.Personalization = personalization.NO_ADAPTATION


def partitioned_weights_work(
  model: split_model.SplitModel,
  partition: weight_partition.WeightPartition,
  train: Callable[..., ClientResult],
  fit_new_client: Optional[Callable[..., Any]] = None,
  adaptation: personalization.Personalization = personalization.NO_ADAPTATION,
) -> ClientWork:
  """`ClientWork` of methods whose local state is the local weights."""
  return ClientWork(
    partition=partition,
    train=train,
    initial_local=split_model.select(
      model.initial_weights, partition.local_names
    ),
    personal_weights=partition.merge,
    fit_new_client=fit_new_client,
    adaptation=adaptation,
  )
