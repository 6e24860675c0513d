"""The form of a method: its exchanges, as pure functions.

A round is a list of exchanges. In each exchange, the server broadcasts, the
clients work and send, and the server aggregates and makes a step
(`core.round`). FedAvg, FedRep and most others have one exchange. FedDAR and
FedFac have two.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Optional

import tensorflow as tf

from tff_pfl import errors, fields
from tff_pfl import tff_api as tff
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
    num_clients: int32, the number of clients in the means.
    least_share: float32. Smaller shares of the clients may be noise (see
      `aggregators.least_share`).
  """

  num_clients: tf.Tensor
  least_share: tf.Tensor


@dataclasses.dataclass(frozen=True)
class Exchange:
  """One exchange between the server and the clients of a cohort.

  Attributes:
    client: `Client -> ClientResult`, a pure function of tensors.
    server: `(state, update, report, cohort) -> (update, algorithm)`. It maps
      the server's state, the means over the cohort and a `Cohort` to the update
      that the server applies and the method's new server state. None applies
      the mean. Global weights without an update do not change.
    weighting: The clients' weights in the mean, 'num_examples' or 'uniform'.
      None uses the process's weighting.
    seed_purpose: Purpose of the clients' seed (see `randomness`).
    receives: Names of the global weights that the server has changed since the
      first exchange and sends, with its state, in a later one.
    aggregator: Aggregation of this exchange. It replaces the process's
      aggregator, which must then be a plain mean. None uses the process's.
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
    model: The process's model.
    exchanges: The exchanges of a round, in order.
    initial_global: Global weights before the first round (name to array). The
      server keeps and broadcasts them, and averages their updates.
    personal_weights: `(broadcast, local) -> weights`, the model with which a
      client is scored.
    initial_local: Local state of a client that has not taken part (arrays).
    global_model: `global_weights -> weights`, the model given to a client that
      contributes no data. None if the global weights alone are not a model.
      Such a client then gets the personal weights with the initial local state.
    fit_new_client: `(client, num_epochs) -> local`, the work of a client
      without local state from an earlier round. The global weights are frozen.
      It lasts `num_epochs` or, for None, as long as in a round. None if there
      is no such work.
    trains_new_clients: True if `fit_new_client` trains for `num_epochs`.
    keeps_local: True if clients keep the local state from round to round.
      Otherwise each round starts from the initial state, and a client fits its
      state before it is scored.
    exchanges_when_forgetting: The exchanges for clients that forget their local
      state after each round. None if the method needs that state or keeps none.
    adaptation: The method's default fine-tuning of a model before it is scored.
    default_weighting: The method's default `client_weighting`.
    statistics: Names of the global weights without a gradient, which are
      averaged and skip the server's optimizer. None uses the model's
      statistics.
    initial_algorithm: The method's own server state before the first round
      (arrays).
    transient: Names of values in the method's server state that serve the
      clients of one round. They are left out of its first broadcast and are
      zeros at its end.
    server_metrics: `algorithm -> metrics`, scalars by name that the method's
      server state adds to a round's metrics, or None.
    report_scale: Scale of reports that are sums over a client's examples and
      from which the server takes ratios. Each sum is first divided by the
      client's weight, if that is its number of examples, or by this positive
      number, if clients have equal weights. The means then have the same ratios
      as sums over the cohort. None averages reports as they are.
    rates_may_be_set: True if the server sends a factor of the clients' learning
      rates.
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
    """The local state that a client keeps, before its first round.

    It is empty if clients keep no local state.
    """
    return self.initial_local if self.keeps_local else collections.OrderedDict()

  @property
  def trained_names(self) -> tuple[str, ...]:
    """The names of the global weights that the server's optimizer changes."""
    statistics = self.statistics
    if statistics is None:
      statistics = self.model.statistics
    return tuple(n for n in self.initial_global if n not in statistics)

  def broadcast_of(
    self, state: personalized_process.ServerState
  ) -> client_lib.Broadcast:
    """The message at a round's start, or its type if given a state's type."""
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
        f"false for {name}, which needs its clients' state",
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
  """The TFF types of the arguments of a client's computation."""

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
  """The `ClientWork` of a method whose local state is the local weights."""
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
  """The `ClientWork` of a method whose global weights are the whole model.

  Clients are scored with these weights unless `personal_weights` is given.
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
