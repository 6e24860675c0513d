"""The form of a method: its exchanges, as pure functions.

A round is a list of exchanges. In each, the server broadcasts, clients work and
send, the server aggregates what they sent and makes a step (`core.round`).
FedAvg, FedRep and most others have one exchange, FedDAR and FedFac two.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Optional

import tensorflow as tf
import tensorflow_federated as tff

from tff_pfl import errors, fields
from tff_pfl.core import client as client_lib
from tff_pfl.core import (
  example_tensors,
  personalization,
  personalized_process,
  schedules,
  training_options,
)
from tff_pfl.models import randomness, split_model, weight_partition


class Cohort(NamedTuple):
  """The cohort of an exchange, as its server function sees it.

  Attributes:
    num_clients: int32, clients in the means.
    least_share: float32; shares of the clients below it may be noise (see
      `aggregators.least_share`).
  """

  num_clients: tf.Tensor
  least_share: tf.Tensor


@dataclasses.dataclass(frozen=True)
class Exchange:
  """One exchange between the server and the clients of a cohort.

  Attributes:
    client: `Client -> ClientResult`, a pure function of tensors.
    server: `(state, update, report, cohort) -> (update, algorithm)`: from the
      server's state, the means over the cohort and a `Cohort` to the update
      that the server applies and the method's new server state; None where the
      update is the mean. Global weights without an update stay.
    weighting: The clients' weights in the mean, 'num_examples' or 'uniform';
      None for those of the process.
    seed_purpose: Purpose of the clients' seed, see `randomness`.
    receives: Names of the global weights that the server has changed since the
      first exchange and sends, with its state, in a later one.
    aggregator: Aggregation of this exchange in place of the process'
      aggregator, which must then be a plain mean, as it is not applied here;
      None for the process'.
  """

  client: Callable[[client_lib.Client], client_lib.ClientResult]
  server: Optional[Callable[..., tuple]] = None
  weighting: Optional[str] = None
  seed_purpose: int = randomness.TRAINING
  receives: Sequence[str] = ()
  aggregator: Optional[tff.aggregators.WeightedAggregationFactory] = None


@dataclasses.dataclass(frozen=True)
class ClientWork:
  """A method, as values and pure functions.

  Attributes:
    model: The process' model.
    exchanges: The exchanges of a round, in their order.
    initial_global: Global weights before the first round (name to array). The
      server keeps and broadcasts them, and averages their updates.
    personal_weights: `(broadcast, local) -> weights`, the model that the client
      is scored with.
    initial_local: Local state of a client that has not taken part (arrays).
    global_model: `global_weights -> weights`, the model given to a client that
      contributes no data; None where the global weights alone make none, and
      such a client gets the personal weights with the initial local state.
    fit_new_client: `(client, num_epochs) -> local`: the work of a client that
      has no local state from an earlier round, with the global weights frozen,
      for `num_epochs` or (None) as long as in a round; None for no work.
    trains_new_clients: True if that work is training for `num_epochs`.
    keeps_local: True if clients keep the local state from round to round.
      Otherwise each round starts from the initial one, and a client that is
      scored fits it first.
    exchanges_when_forgetting: The exchanges for clients that forget their local
      state after each round; None for a method that needs it.
    adaptation: The method's fine-tuning of a model before it is scored, unless
      the user asks for another.
    default_weighting: The method's own `client_weighting`.
    statistics: Names of the global weights without gradient, which are averaged
      and skip the server's optimizer; None for those of the model.
    initial_algorithm: The method's own server state before the first round
      (arrays).
    transient: Names of those of these values that serve the clients of one
      round: they are not in its first broadcast, and are zeros at its end.
    server_metrics: `algorithm -> metrics`: scalars by name that a round's
      metrics have from the method's server state; None for none.
    report_scale: Scale of reports that are sums over a client's examples, of
      which the server needs ratios; None where reports are averaged as they
      are. Each sum is averaged after division by the client's weight, where
      that is its number of examples, or by this positive number, where clients
      weigh alike. So the ratios are those of sums over the cohort.
    rates_may_be_set: True if the server sends a factor of the clients' rates.
  """

  model: split_model.SplitModel
  exchanges: Sequence[Exchange]
  initial_global: split_model.Weights
  personal_weights: Callable[..., split_model.Weights]
  initial_local: Any = dataclasses.field(
    default_factory=collections.OrderedDict
  )
  global_model: Optional[Callable[..., split_model.Weights]] = None
  fit_new_client: Optional[Callable[..., Any]] = None
  trains_new_clients: bool = True
  keeps_local: bool = True
  exchanges_when_forgetting: Optional[Sequence[Exchange]] = None
  adaptation: personalization.Personalization = personalization.NO_ADAPTATION
  default_weighting: str = 'num_examples'
  statistics: Optional[frozenset] = None
  initial_algorithm: Any = dataclasses.field(
    default_factory=collections.OrderedDict
  )
  transient: Sequence[str] = ()
  server_metrics: Optional[Callable[..., Any]] = None
  report_scale: Optional[float] = None
  rates_may_be_set: bool = False

  @property
  def initial_kept(self) -> Any:
    """The part of the local state that a client keeps, before its first round.

    It is empty where clients keep none.
    """
    return self.initial_local if self.keeps_local else collections.OrderedDict()

  @property
  def trained_names(self) -> tuple[str, ...]:
    """The global weights that the server's optimizer moves."""
    statistics = self.statistics
    if statistics is None:
      statistics = self.model.statistics
    return tuple(n for n in self.initial_global if n not in statistics)

  def broadcast_of(
    self, state: personalized_process.ServerState
  ) -> client_lib.Broadcast:
    """The message at the beginning of a round; of a state's type its type."""
    algorithm = state.algorithm
    if self.transient:
      algorithm = collections.OrderedDict(
        (name, algorithm[name])
        for name in self.initial_algorithm
        if name not in self.transient
      )
    return client_lib.Broadcast(
      state.round_number,
      state.seed,
      state.global_weights,
      algorithm,
      state.rate_factor if self.rates_may_be_set else (),
    )

  def without_state(self, name: str) -> ClientWork:
    """This work for clients that forget their local state after each round."""
    exchanges = self.exchanges_when_forgetting
    if exchanges is None:
      errors.expect(
        not tf.nest.flatten(self.initial_kept),
        'stateless',
        f"false for {name}, which is nothing without its clients' state",
        True,
      )
      exchanges = self.exchanges
    return dataclasses.replace(self, keeps_local=False, exchanges=exchanges)

  def local_of(self, client_state: personalized_process.ClientState) -> Any:
    """The local state that a client starts from."""
    if self.keeps_local:
      return client_state.local
    return tf.nest.map_structure(tf.constant, self.initial_local)

  def client(
    self,
    exchange: Exchange,
    broadcast: client_lib.Broadcast,
    client_state: personalized_process.ClientState,
    examples: example_tensors.ExampleTensors,
    training: training_options.TrainingOptions,
    cache: Any = (),
  ) -> client_lib.Client:
    """A client in an exchange of a round."""
    factor = schedules.factor(
      training.learning_rate_schedule, broadcast.round_number
    )
    if self.rates_may_be_set:
      factor = broadcast.rate_factor * (1.0 if factor is None else factor)
    return client_lib.Client(
      self.model,
      broadcast,
      self.local_of(client_state),
      examples,
      broadcast.seed_of(client_state, exchange.seed_purpose),
      cache,
      training,
      factor,
    )

  def model_without_data(
    self, broadcast: client_lib.Broadcast
  ) -> split_model.Weights:
    """The model given to a client that contributes no data."""
    if self.global_model is not None:
      return self.global_model(broadcast.global_weights)
    initial_local = tf.nest.map_structure(tf.constant, self.initial_local)
    return self.personal_weights(broadcast, initial_local)


class ClientTypes(NamedTuple):
  """TFF's types of the arguments of a client's computation."""

  broadcast: tff.Type
  client_state: tff.Type
  examples: tff.Type


@fields.checked_call
def partitioned_weights_work(
  model: split_model.SplitModel,
  partition: weight_partition.WeightPartition,
  *exchanges: Exchange,
  **others: Any,
) -> ClientWork:
  """`ClientWork` of methods whose local state is the local weights."""
  initial_global, initial_local = partition.split(model.initial_weights)
  if not partition.local_names:
    others.setdefault('global_model', lambda weights: weights)
  return ClientWork(
    model,
    exchanges,
    initial_global,
    lambda broadcast, local: partition.merge(broadcast.global_weights, local),
    initial_local,
    **others,
  )


@fields.checked_call
def global_weights_work(
  model: split_model.SplitModel, *exchanges: Exchange, **others: Any
) -> ClientWork:
  """`ClientWork` of methods whose global weights are those of the whole model.

  Clients are scored with these, unless `personal_weights` is given.
  """
  return ClientWork(
    model,
    exchanges,
    model.initial_weights,
    **{
      'personal_weights': lambda broadcast, _: broadcast.global_weights,
      'global_model': lambda global_weights: global_weights,
      **others,
    },
  )
