"""The process that every algorithm is: state at the server and on the clients.

TFF's `LearningProcess` has no place for client state, so a personalized method
is an `IterativeProcess` whose `next` also takes and returns it:

    initialize:              ( -> S@SERVER)
    initialize_client_state: (int64 -> C)
    initialize_client_states: ({int64}@CLIENTS -> {C}@CLIENTS)
    next:                    (<S@SERVER, {C}@CLIENTS, {D*}@CLIENTS>
                               -> <S@SERVER, {C}@CLIENTS, M@SERVER>)
    personalize:             (<S, C, D*> -> <weights, C>)
    evaluate:                (<S, C, D*, D*> -> per-client metrics)
    evaluate_clients:        `evaluate`, mapped over clients

`D` is a batch `OrderedDict(x=[batch, ...], y=[batch, ...])`; batches of a
client may have any sizes, and there may be none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Optional

import numpy as np
import tensorflow_federated as tff

from tff_pfl import errors
from tff_pfl.models import split_model
from tff_pfl.templates import personalization as personalization_lib


class ServerState(NamedTuple):
  """What the server keeps between rounds.

  Attributes:
    round_number: int32, rounds done.
    seed: int64, the experiment's seed.
    global_weights: The global weights.
    aggregator: State of the aggregator.
    server_optimizer: State of the server's optimizer.
    algorithm: State of the algorithm's own; empty for most.
  """

  round_number: Any
  seed: Any
  global_weights: Any
  aggregator: Any
  server_optimizer: Any
  algorithm: Any


class ClientState(NamedTuple):
  """What a client keeps between rounds; it never leaves the client.

  Attributes:
    client_index: int64, the client's number; it seeds the client's work.
    num_rounds: int32, rounds the client took part in: with training examples,
      and not left out because its result was not finite.
    local: The algorithm's local state, such as the local weights.
  """

  client_index: Any
  num_rounds: Any
  local: Any


class PersonalizedOutput(NamedTuple):
  """Result of `PersonalizedProcess.next`.

  Attributes:
    state: The new `ServerState`.
    client_states: The cohort's new `ClientState`s.
    metrics: Of the round, at the server.
  """

  state: Any
  client_states: Any
  metrics: Any


class PersonalModel(NamedTuple):
  """Result of `PersonalizedProcess.personalize`.

  Attributes:
    weights: All weights of the client's personal model.
    client_state: The client's state after personalization.
  """

  weights: Any
  client_state: Any


class BytesPerRound(NamedTuple):
  """What one client of a cohort receives and sends in a round, in bytes.

  Counted are tensors as they are, without what a transport adds or an
  aggregator saves (by compression, say) or adds (by masks).

  Attributes:
    down: The global weights, the algorithm's own server state, the round's
      number and the seed, and what an exchange before the training changed.
    up: The update and what the method reports with it, or in such an exchange.
  """

  down: int
  up: int


class PersonalizedProcess(tff.templates.IterativeProcess):
  """A personalized federated learning method; see the module's docstring."""

  def __init__(
    self,
    *,
    name: str,
    model: split_model.SplitModel,
    initialize: tff.Computation,
    initialize_client_state: tff.Computation,
    next_fn: tff.Computation,
    personalize: tff.Computation,
    evaluate: tff.Computation,
    evaluate_clients: tff.Computation,
    has_global_model: bool,
    has_local_weights: bool,
    adapts_known_clients: bool,
    bytes_per_round: BytesPerRound,
    seed: int,
    description: Mapping[str, Any],
    adaptation: personalization_lib.Personalization = (
      personalization_lib.NO_ADAPTATION
    ),
    to_learning_process: Optional[
      Callable[[], tff.learning.templates.LearningProcess]
    ] = None,
  ):
    """Bundles the computations.

    Args:
      name: The method's name, as in the registry.
      model: The model that is trained.
      initialize: See the module's docstring, as the next five.
      initialize_client_state: As said.
      next_fn: As said.
      personalize: As said.
      evaluate: As said.
      evaluate_clients: As said.
      has_global_model: Whether the global weights alone make a model, which is
        what a client gets that brings no data.
      has_local_weights: Whether clients have something of their own in the
        models that they are scored with.
      adapts_known_clients: Whether also clients that took part need their
        training data to be personalized (fine-tuning).
      bytes_per_round: Of one client of a cohort.
      seed: The experiment's seed.
      description: All other options the process was built with, as JSON types.
        Runs store it and are resumed only by a process with the same.
      adaptation: How the method itself fine-tunes a model before it is scored,
        whatever was asked of this process.
      to_learning_process: Builds the process without client state.

    Raises:
      TypeError: If the computations' types do not fit one another.
    """
    super().__init__(initialize, next_fn)
    next_type = next_fn.type_signature
    for what, found in (
      ('take <state, client states, data>', next_type.parameter),
      ('return <state, client states, metrics>', next_type.result),
    ):
      if not isinstance(found, tff.StructType) or len(found) != 3:
        raise TypeError(f'Expected `next` to {what}, found {found}.')
    state, client_states, data = next_type.parameter
    arguments = (state.member, client_states.member, data.member)
    for what, source, target in (
      (
        '`next` to take the client states that it returns',
        next_type.result[1],
        client_states,
      ),
      (
        '`next` to take what `initialize_client_state` returns',
        initialize_client_state.type_signature.result,
        client_states.member,
      ),
      (
        '`personalize` to take what `next` does, for one client',
        arguments,
        personalize.type_signature.parameter,
      ),
      (
        '`evaluate` to take what `next` does, for one client, and test data',
        (*arguments, data.member),
        evaluate.type_signature.parameter,
      ),
      (
        '`evaluate_clients` to take what `next` does, and test data',
        (state, client_states, data, data),
        evaluate_clients.type_signature.parameter,
      ),
    ):
      source = tff.to_type(source)
      if target is None or not target.is_assignable_from(source):
        raise TypeError(f'Expected {what}, found {target} for {source}.')
    self.name = name
    self.model = model
    self.has_global_model = has_global_model
    self.has_local_weights = has_local_weights
    self.bytes_per_round = bytes_per_round
    self.seed = seed
    self.description = description
    self.adaptation = adaptation
    self._to_learning_process = to_learning_process
    self._adapts_known_clients = adapts_known_clients
    self._initialize_client_state = initialize_client_state
    self._personalize = personalize
    self._evaluate = evaluate
    self._evaluate_clients = evaluate_clients

    @tff.federated_computation(tff.FederatedType(np.int64, tff.CLIENTS))
    def initialize_client_states(client_indices):
      return tff.federated_map(initialize_client_state, client_indices)

    self._initialize_client_states = initialize_client_states

  def needs_training_data(self, client_state: ClientState) -> bool:
    """Whether personalizing this client reads its training data.

    Where it does not, `personalize` and `evaluate` may be given no training
    data, which saves bringing them to the client.
    """
    is_new = self.has_local_weights and not client_state.num_rounds
    return self._adapts_known_clients or is_new

  def to_learning_process(self) -> tff.learning.templates.LearningProcess:
    """This method for clients that cannot be told apart and keep no state.

    The result runs under `tff.learning.programs.train_model` and compiles to
    `MapReduceForm` and `DistributeAggregateForm`.

    Raises:
      ValueError: If clients keep local state; building the process with
        `stateless=True` makes them forget it, where the method allows that.
    """
    errors.expect(
      self._to_learning_process is not None,
      'self',
      'a process built by `federated_round.build_personalized_process`',
      self.name,
    )
    return self._to_learning_process()

  @property
  def initialize_client_state(self) -> tff.Computation:
    """The state of a client that has not taken part: `(int64 -> C)`."""
    return self._initialize_client_state

  @property
  def initialize_client_states(self) -> tff.Computation:
    """`initialize_client_state` for a list of client indices at once."""
    return self._initialize_client_states

  @property
  def personalize(self) -> tff.Computation:
    """Makes a client's personal model: `(<S, C, D*> -> <weights, C>)`.

    Clients known and new are served alike; a client that never took part fits
    its local weights first.
    """
    return self._personalize

  @property
  def evaluate(self) -> tff.Computation:
    """Scores one client: `(<S, C, D_train*, D_test*> -> metrics)`.

    The metrics are `OrderedDict(before=..., after=..., examples=...)`:
    means over the client's test examples before personalization (the global
    weights with initial local ones: what a client gets that brings no data) and
    after, and the number of test examples (means are 0 where there are none).

    With domains there are also `domains`: the number of test `examples` of each
    domain and, `before` and `after`, the metrics' sums over them, float32
    `[domains]`. With domains and two classes there are also `scores`: of each
    test example, followed by padding, its `y`, its `domain`, and the logarithm
    of the odds of class 1 `before` and `after`.
    """
    return self._evaluate

  @property
  def evaluate_clients(self) -> tff.Computation:
    """`evaluate` for a list of clients at once, results placed at clients."""
    return self._evaluate_clients
