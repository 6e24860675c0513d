"""The process of every method, with state at the server and on the clients.

TFF's `LearningProcess` has no place for client state, so a personalized method
is an `IterativeProcess` whose `next` also takes and returns it:

    initialize:              ( -> S@SERVER)
    initialize_client_state: (int64 client_index -> C)
    next:                    (<S@SERVER, {C}@CLIENTS, {E}@CLIENTS>
                               -> <S@SERVER, {C}@CLIENTS, M@SERVER>)
    personalize:             (<S, C, E> -> <weights, C>)
    evaluate:                (<S, C, E, E> -> per-client metrics)
    evaluate_clients:        `evaluate`, mapped over clients
    personalization_eval:    its means over clients, at the server

`E` is a client's examples as padded tensors (`example_tensors.ExampleTensors`),
made from arrays or a `tf.data.Dataset`. Computations that rounds do not need
are traced at their first use.
"""

import collections
import dataclasses
import functools
from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple, Optional

import numpy as np
import tensorflow as tf

from tff_pfl import errors
from tff_pfl import tff_api as tff
from tff_pfl.core import personalization as personalization_lib
from tff_pfl.core import privacy
from tff_pfl.models import split_model


class ServerState(NamedTuple):
  """The server's state between rounds.

  Attributes:
    round_number: int32, the number of completed rounds.
    seed: int64, the run's seed.
    global_weights: The global weights.
    aggregator: The aggregator's states, a tuple with one for each exchange.
    server_optimizer: State of the server's optimizer.
    algorithm: The method's own state, empty for most methods.
    rate_factor: float32, the factor of the clients' learning rates in a
      `LearningProcess`, whose `set_hparams` sets it. Other processes ignore it.
  """

  round_number: Any
  seed: Any
  global_weights: Any
  aggregator: Any
  server_optimizer: Any
  algorithm: Any
  rate_factor: Any


class ClientState(NamedTuple):
  """A client's state between rounds, which never leaves the client.

  Attributes:
    client_index: int64, the client's number, which seeds its work.
    num_rounds: int32, the number of rounds in which the client took part, with
      training examples and a finite result.
    local: The method's local state, such as the local weights.
  """

  client_index: Any
  num_rounds: Any
  local: Any


class PersonalizedOutput(NamedTuple):
  """Result of `PersonalizedProcess.next`.

  Attributes:
    state: The new `ServerState`.
    client_states: The cohort's new `ClientState`s.
    metrics: The round's metrics, at the server.
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
  """Bytes that one client of a cohort receives and sends in a round.

  Only the tensors count, not what a transport adds or an aggregator saves (by
  compression) or adds (by masks).

  Attributes:
    down: The global weights, the method's own server state, the round number,
      the seed, and everything that the server sends again in later exchanges.
    up: The updates and reports of all exchanges.
  """

  down: int
  up: int


@dataclasses.dataclass(eq=False, repr=False)
class PersonalizedProcess(tff.templates.IterativeProcess):
  """A personalized federated learning method (see the module's docstring).

  Attributes:
    name: Name of the method, as in the registry.
    model: The model that is trained.
    has_global_model: True if the global weights alone make a model. A client
      that contributes no data gets this model.
    has_local_weights: True if the models with which clients are scored have
      local parts.
    trains_new_clients: True if clients that never took part train these parts
      before they are scored, whatever the fine-tuning.
    adapts_known_clients: True if clients that took part also need their
      training data for personalization, to fine-tune or to refit forgotten
      state.
    has_trained_models: True if a client's work in a round makes a whole model
      without the server. `fine_tune='trained'` scores these models.
    bytes_per_round: Bytes that one client of a cohort receives and sends.
    seed: The run's seed.
    accounting: Privacy accounting of the noise that the process adds, or None.
    description: All other options the process was built with, as JSON types.
      Runs store it, and only a process with the same description resumes them.
    adaptation: The method's own fine-tuning of a model before it is scored,
      whatever the options of this process.
    attacked_clients: Indices of the clients in a simulated attack. Their scores
      are meaningless.
    build_personal_models: Builds `client_computations.PersonalModels` once, at
      the first use.
    build_learning_process: Builds the process of `to_learning_process`.
    with_personalization: Returns this process with other options of
      personalization, `(Personalization) -> PersonalizedProcess`. Its rounds
      are the same computations, so it accepts the same states.
  """

  initialize_fn: dataclasses.InitVar[tff.Computation]
  next_fn: dataclasses.InitVar[tff.Computation]
  initialize_client_state: tff.Computation
  name: str
  model: split_model.SplitModel
  has_global_model: bool
  has_local_weights: bool
  trains_new_clients: bool
  adapts_known_clients: bool
  has_trained_models: bool
  bytes_per_round: BytesPerRound
  seed: int
  accounting: Optional[privacy.Accounting]
  description: Mapping[str, Any]
  adaptation: personalization_lib.Personalization
  attacked_clients: Collection[int]
  build_personal_models: Callable[[], Any]
  build_learning_process: Callable[[], tff.learning.templates.LearningProcess]
  with_personalization: Callable[
    [personalization_lib.Personalization], 'PersonalizedProcess'
  ]

  def __post_init__(self, initialize_fn, next_fn):
    super().__init__(initialize_fn, next_fn)

  @functools.cached_property
  def initialize_client_states(self) -> tff.Computation:
    """`initialize_client_state` for a list of client indices at once."""

    @tff.federated_computation(tff.FederatedType(np.int64, tff.CLIENTS))
    def initialize_client_states(client_indices):
      return tff.federated_map(self.initialize_client_state, client_indices)

    return initialize_client_states

  @functools.cached_property
  def _personal_models(self):
    return self.build_personal_models()

  def needs_training_data(self, client_state: ClientState) -> bool:
    """True if personalizing this client reads its training data.

    Otherwise `personalize` and `evaluate` need no training examples.
    """
    is_new = self.has_local_weights and not client_state.num_rounds
    return self.adapts_known_clients or is_new

  @property
  def fits_new_clients(self) -> bool:
    """True if a new client's model is trained, in parts or by fine-tuning."""
    fine_tune = self.description['personalization']['fine_tune']
    return self.trains_new_clients or fine_tune != 'none'

  def to_learning_process(self) -> tff.learning.templates.LearningProcess:
    """This method for clients that cannot be identified and keep no state.

    The result runs under `tff.learning.programs.train_model` and compiles to
    `MapReduceForm` and `DistributeAggregateForm`.

    Raises:
      ValueError: If clients keep local state (`stateless=True` makes them
        forget it) or attack, because attackers are identified by number.
    """
    errors.expect(
      not self.attacked_clients,
      'attack',
      "none for TFF's LearningProcess",
      'one',
    )
    return self.build_learning_process()

  @property
  def personalize(self) -> tff.Computation:
    """Makes a client's personal model: `(<S, C, E> -> <weights, C>)`.

    A client that never took part fits its local weights first.
    """
    return self._personal_models.personalize

  @property
  def model_without_data(self) -> tff.Computation:
    """The model given to a client that contributes no data: `(S -> weights)`.

    It has the global weights and, if these alone are not a model, the initial
    local weights.
    """
    return self._personal_models.model_without_data

  @property
  def evaluate(self) -> tff.Computation:
    """Scores one client: `(<S, C, E_train, E_test> -> metrics)`.

    The metrics are `OrderedDict(before=..., after=..., examples=...)`: means
    over the client's test examples before personalization (for the model given
    to a client that contributes no data) and after, and the number of test
    examples. The means are 0 if there are no examples.

    If examples have domains, `domains` has the number of test `examples` of
    each domain and the metrics' sums over these `before` and `after`, float32
    `[domains]`. For two classes and scalar labels, or for several labels,
    `scores` has for each test example, followed by padding, its `y`, its
    `domain` if it has one, and the log odds of class 1 `before` and `after`.
    For metrics of all predictions of a client (`client_metrics`), `predictions`
    has `y` in the same form and the probabilities or outputs `before` and
    `after`.
    """
    return self._personal_models.evaluate

  @property
  def evaluate_clients(self) -> tff.Computation:
    """`evaluate` for a list of clients at once, with results at the clients."""
    return self._personal_models.evaluate_clients

  @functools.cached_property
  def personalization_eval(self) -> tff.Computation:
    """Scores clients and reveals only sums to the server.

    `(<S@SERVER, {C}@CLIENTS, {E_train}@CLIENTS, {E_test}@CLIENTS> -> metrics)`:
    `OrderedDict(before=..., after=..., clients=..., examples=...)` at the
    server. `before` and `after` average the means from `evaluate` over clients
    with test examples. `clients` is the number of these clients, and `examples`
    is the number of their test examples.
    """
    scores_type = self.evaluate.type_signature.result

    @tff.tensorflow.computation(scores_type)
    def report(scores):
      is_scored = scores['examples'] > 0
      before, after = tf.nest.map_structure(
        lambda value: tf.where(is_scored, value, 0.0),
        (scores['before'], scores['after']),
      )
      return collections.OrderedDict(
        before=before,
        after=after,
        clients=tf.cast(is_scored, tf.int32),
        examples=scores['examples'],
      )

    @tff.tensorflow.computation(report.type_signature.result)
    def means(sums):
      number = tf.cast(sums['clients'], tf.float32)
      before, after = tf.nest.map_structure(
        lambda value: value / number, (sums['before'], sums['after'])
      )
      return collections.OrderedDict(sums, before=before, after=after)

    @tff.federated_computation(*self.evaluate_clients.type_signature.parameter)
    def personalization_eval(state, client_states, train, test):
      scores = self.evaluate_clients(state, client_states, train, test)
      sums = tff.federated_sum(tff.federated_map(report, scores))
      return tff.federated_map(means, sums)

    return personalization_eval
