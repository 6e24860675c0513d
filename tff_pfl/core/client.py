"""A client as a method sees it: its data, its training and its result."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple, Optional

import tensorflow as tf

from tff_pfl.core import (
  example_tensors,
  objectives,
  personalized_process,
  phases,
  training_loop,
  training_options,
)
from tff_pfl.models import randomness, split_model


class Broadcast(NamedTuple):
  """The message that every client of the cohort receives.

  Attributes:
    round_number: int32, the number of rounds before this one.
    seed: int64, the run's seed.
    global_weights: Name to value.
    algorithm: The method's own server state.
    rate_factor: See `ServerState`. `()` if the server sends no factor.
  """

  round_number: Any
  seed: Any
  global_weights: Any
  algorithm: Any
  rate_factor: Any = ()

  def seed_of(
    self, client_state: personalized_process.ClientState, purpose: int
  ) -> tf.Tensor:
    """The seed of a client's work (see `randomness.client_seed`)."""
    return randomness.client_seed(
      self.seed, self.round_number, client_state.client_index, purpose
    )


class ClientResult(NamedTuple):
  """A client's result of an exchange.

  Attributes:
    update: `initial - final` of global weights, by name.
    local: The client's new local state. Only a round's last exchange needs it.
    metrics: Metric sums of training (`objectives.zero_metrics`). Only a round's
      last exchange needs them.
    report: Other floats that the server averages with the same aggregator (see
      `ClientWork.report_scale`).
    cache: Values that the client keeps for the next exchange of the round.
  """

  update: Any = ()
  local: Any = ()
  metrics: Any = ()
  report: Any = ()
  cache: Any = ()


@dataclasses.dataclass(frozen=True)
class Client:
  """A client in an exchange of a round, or before its model is scored.

  All methods are pure functions of tensors. If `model` is None, they use the
  process's model. Each phase of an exchange needs a different `stream`.

  Attributes:
    model: The process's model.
    broadcast: The message from the server.
    local: The client's local state before the round.
    examples: The client's training examples.
    seed: int32 `[2]`, the seed of the client's random draws in this exchange.
    cache: Values that the client kept in the round's previous exchange.
    training: Options of local training that all methods share.
    rate_factor: float32 scalar, the round's factor of the learning rate. None
      means 1.
  """

  model: split_model.SplitModel
  broadcast: Broadcast
  local: Any
  examples: example_tensors.ExampleTensors
  seed: tf.Tensor
  cache: Any = ()
  training: training_options.TrainingOptions = (
    training_options.TrainingOptions()
  )
  rate_factor: Optional[tf.Tensor] = None

  @property
  def received(self) -> split_model.Weights:
    """The global weights, by name."""
    return self.broadcast.global_weights

  @property
  def algorithm(self) -> Any:
    """The method's own server state."""
    return self.broadcast.algorithm

  def stream(self, number: Optional[int]) -> tf.Tensor:
    """The seed of a numbered stream, int32 `[2]`, or `seed` itself for None.

    Streams are independent of each other. A phase without a stream uses streams
    0 (for shuffles) and 1 (for steps), so other phases need other numbers.
    """
    return (
      self.seed if number is None else randomness.fold_in(self.seed, number)
    )

  def rate(self, learning_rate: float) -> Any:
    """Multiplies a learning rate by the round's factor.

    `sgd` does so itself. Use this for rates in a method's own formulas.
    """
    if self.rate_factor is None:
      return learning_rate
    return learning_rate * self.rate_factor

  def sgd(
    self,
    objective: objectives.Objective,
    weights: split_model.Weights,
    phase: phases.Phase,
    *,
    stream: Optional[int] = None,
    model: Optional[split_model.SplitModel] = None,
    examples: Optional[example_tensors.ExampleTensors] = None,
    inputs: Optional[Callable[[Any, tf.Tensor], Any]] = None,
    plain: bool = False,
  ) -> training_loop.TrainResult:
    """Trains some weights (see `training_loop.train`).

    Args:
      stream: See the method `stream`.
      model: The model of the weights. None uses the process's model.
      examples: Examples that replace the client's, such as frozen features.
      inputs: See `training_loop.train`.
      plain: True to ignore the options of local training and `rate_factor`.
    """
    if not plain:
      chain = training_options.OptimizerChain(
        phase.optimizer, self.training, self.rate_factor
      )
      phase = dataclasses.replace(phase, optimizer=chain)
    return training_loop.train(
      objective,
      weights,
      self.examples if examples is None else examples,
      phase,
      self.stream(stream),
      model=model or self.model,
      inputs=inputs,
    )

  def fit_head(
    self,
    head: split_model.Weights,
    phase: phases.Phase,
    *,
    forward: Optional[objectives.Forward] = None,
    stream: Optional[int] = None,
    model: Optional[split_model.SplitModel] = None,
    domain_weights: Optional[Any] = None,
    features: Optional[example_tensors.ExampleTensors] = None,
  ) -> training_loop.TrainResult:
    """Trains a head on the features of the received body, which is frozen.

    Args:
      forward: `(head, features, mode) -> (outputs, new_statistics)`. None uses
        the model's head.
      domain_weights: See `objectives.prediction_loss`.
      features: The body's `features`, if already computed.
    """
    model = model or self.model
    examples, inputs = training_loop.head_inputs(
      model, self.received, self.examples, features
    )
    return self.sgd(
      objectives.prediction_loss(model, forward or model.head, domain_weights),
      head,
      phase,
      stream=stream,
      model=model,
      examples=examples,
      inputs=inputs,
    )

  def fit_part(
    self,
    part: split_model.Weights,
    whole_of: Callable[[split_model.Weights], split_model.Weights],
    part_of: Callable[[split_model.Weights], split_model.Weights],
    phase: phases.Phase,
    *,
    stream: Optional[int] = None,
    model: Optional[split_model.SplitModel] = None,
  ) -> training_loop.TrainResult:
    """Trains a part of a model's weights, with all others frozen.

    Args:
      whole_of: Maps the part to all weights.
      part_of: Selects the part's weights from some of the model's weights.
    """
    model = model or self.model

    def forward(part, x, mode):
      outputs, statistics = model.forward(whole_of(part), x, mode)
      return outputs, part_of(statistics)

    objective = objectives.prediction_loss(model, forward)
    return self.sgd(objective, part, phase, stream=stream, model=model)

  def features(
    self, body: Optional[split_model.Weights] = None
  ) -> example_tensors.ExampleTensors:
    """The client's examples with a frozen body's features instead of `x`.

    Args:
      body: The body's weights. None uses the received weights.
    """
    body = self.received if body is None else body
    return training_loop.frozen_features(self.model, body, self.examples)

  def result(
    self,
    trained: training_loop.TrainResult,
    *,
    initial: Optional[split_model.Weights] = None,
    local: Any = None,
    report: Any = (),
  ) -> ClientResult:
    """The result of training some or all of the global weights.

    Args:
      trained: Result of the training. Only updates of `initial` are sent.
      initial: Global weights before the training. None means all received ones.
      local: The new local state. None keeps the old one.
      report: See `ClientResult`.
    """
    initial = self.received if initial is None else initial
    return ClientResult(
      split_model.difference(initial, trained.weights),
      self.local if local is None else local,
      trained.metrics,
      report,
    )
