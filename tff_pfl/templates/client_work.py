"""What an algorithm gives: the work of a client, as pure functions."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple, Optional

import tensorflow as tf

from tff_pfl import errors
from tff_pfl.models import randomness, split_model, weight_partition
from tff_pfl.templates import personalization, personalized_process


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
    report: Of methods with a `server_update`: what else the server takes the
      weighted mean of, through the same aggregator (floats); see also
      `ClientWork.report_scale`.
  """

  update: Any
  local: Any
  metrics: Any
  report: Any = ()


class Prepared(NamedTuple):
  """A client's part in the exchange before a round's training.

  Attributes:
    report: What the server takes the weighted mean of, through an aggregator
      like that of the updates (floats); see also `ClientWork.report_scale`.
    carried: What the client itself keeps for the round's training.
  """

  report: Any
  carried: Any = ()


class Preparation(NamedTuple):
  """An exchange between clients and server before a round's training.

  Attributes:
    report: `(broadcast, local, examples, seed) -> Prepared`.
    server_update: `(broadcast, report, num_clients) -> (changed, algorithm)`:
      from what was sent and the mean over the cohort to those of the global
      weights that change, which the clients then train with, and the
      algorithm's server state.
    seed_purpose: What the report's seed is for, see `randomness`: `TRAINING`
      where the report makes the round's steps and the training after it none.
    weighting: The clients' weights in the mean, 'num_examples' or 'uniform';
      None for those of the updates.
  """

  report: Callable[..., Prepared]
  server_update: Callable[..., tuple]
  seed_purpose: int = randomness.PREPARATION
  weighting: Optional[str] = None


@dataclasses.dataclass(frozen=True)
class ClientWork:
  """What distinguishes one algorithm from another.

  Attributes:
    initial_global: The global weights before the first round (name to array):
      what the server keeps, broadcasts and averages the updates of.
    train: `(broadcast, local, examples, seed) -> ClientResult`, a pure function
      of tensors; with a preparation, what that carried is a fifth argument.
    initial_local: Local state of a client that has not taken part (arrays).
    personal_weights: `(broadcast, local) -> weights`, the model that the client
      is scored with.
    global_model: `global_weights -> weights`, the model of a client that brings
      no data; None where the global weights alone make none, and such a client
      gets the personal weights with the initial local state.
    fit_new_client: `(broadcast, local, examples, seed, num_epochs) -> local`:
      what a client does that has no local state from an earlier round, with the
      global weights frozen, for `num_epochs` or (None) as long as in a round;
      None if nothing.
    keeps_local: Whether clients keep the local state from round to round. Where
      they do not, each round starts from the initial one, and whoever is scored
      fits it first.
    can_forget: Whether the method also makes sense with clients that do not:
      it learns the local state anew in every round.
    adaptation: How the method fine-tunes a model before it is scored, unless
      the user asks for something else.
    default_weighting: The method's own `client_weighting`: 'num_examples' or
      'uniform'.
    statistics: Names of the global weights without gradient, which are averaged
      and skip the server's optimizer; None for those of the model.
    initial_algorithm: The algorithm's own server state before the first round
      (arrays).
    server_update: `(state, update, report, num_clients) -> (update,
      algorithm)`: from the server's state and the means over the cohort to the
      update that the server applies and the algorithm's new state; None where
      the update is the mean. Global weights without an update stay.
    server_metrics: `algorithm -> metrics`, scalars by name: what a round's
      metrics tell of the algorithm's server state; None where nothing.
    preparation: What clients and server exchange before the training; None
      where the round is one exchange.
    report_scale: Of methods whose reports are sums over a client's examples, of
      which the server wants ratios: positive. What is averaged is such a sum
      divided by the client's weight, where that is its number of examples, or
      by this where clients weigh alike: so the ratios are those of sums over
      the cohort, whatever the weights. None where reports are averaged as they
      are.
  """

  initial_global: split_model.Weights
  train: Callable[..., ClientResult]
  initial_local: Any
  personal_weights: Callable[..., split_model.Weights]
  global_model: Optional[Callable[..., split_model.Weights]] = None
  fit_new_client: Optional[Callable[..., Any]] = None
  keeps_local: bool = True
  can_forget: bool = False
  adaptation: personalization.Personalization = personalization.NO_ADAPTATION
  default_weighting: str = 'num_examples'
  statistics: Optional[frozenset] = None
  initial_algorithm: Any = dataclasses.field(
    default_factory=collections.OrderedDict
  )
  server_update: Optional[Callable[..., tuple]] = None
  server_metrics: Optional[Callable[..., Any]] = None
  preparation: Optional[Preparation] = None
  report_scale: Optional[float] = None

  @property
  def initial_kept(self) -> Any:
    """What a client keeps of the local state, before the first round."""
    return self.initial_local if self.keeps_local else collections.OrderedDict()

  def without_state(self, name: str) -> ClientWork:
    """This work by clients that forget their local state after each round.

    Args:
      name: The method's, for the error.

    Raises:
      ValueError: If the method is nothing without the state.
    """
    errors.expect(
      self.can_forget or not tf.nest.flatten(self.initial_kept),
      'stateless',
      f"false for {name}, which is nothing without its clients' state",
      True,
    )
    return dataclasses.replace(self, keeps_local=False)

  def local_of(self, client_state: personalized_process.ClientState) -> Any:
    """The local state that a client starts from."""
    if self.keeps_local:
      return client_state.local
    return tf.nest.map_structure(tf.constant, self.initial_local)

  def model_without_data(self, broadcast: Broadcast) -> split_model.Weights:
    """The model of a client that brings no data."""
    if self.global_model is not None:
      return self.global_model(broadcast.global_weights)
    initial_local = tf.nest.map_structure(tf.constant, self.initial_local)
    return self.personal_weights(broadcast, initial_local)


def all_finite(values: Any) -> tf.Tensor:
  """Whether all floating-point numbers in a structure are finite."""
  return tf.reduce_all(
    [
      tf.reduce_all(tf.math.is_finite(value))
      for value in tf.nest.flatten(values)
      if value.dtype.is_floating
    ]
    or [True]
  )


def partitioned_weights_work(
  model: split_model.SplitModel,
  partition: weight_partition.WeightPartition,
  train: Callable[..., ClientResult],
  **others: Any,
) -> ClientWork:
  """`ClientWork` of methods whose local state is the local weights.

  Args:
    model: The model.
    partition: Which weights are global and which local.
    train: As for `ClientWork`.
    **others: Fields of `ClientWork`.
  """
  initial_global, initial_local = partition.split(model.initial_weights)
  return ClientWork(
    initial_global=initial_global,
    train=train,
    initial_local=initial_local,
    personal_weights=lambda broadcast, local: partition.merge(
      broadcast.global_weights, local
    ),
    global_model=None if partition.local_names else lambda weights: weights,
    **others,
  )


def global_weights_work(
  model: split_model.SplitModel,
  train: Callable[..., ClientResult],
  **others: Any,
) -> ClientWork:
  """`ClientWork` of methods whose clients keep nothing.

  Args:
    model: The model, all of whose weights are global.
    train: As for `ClientWork`.
    **others: Fields of `ClientWork`.
  """
  return ClientWork(
    initial_global=model.initial_weights,
    train=train,
    initial_local=collections.OrderedDict(),
    personal_weights=lambda broadcast, _: broadcast.global_weights,
    global_model=lambda global_weights: global_weights,
    **others,
  )
