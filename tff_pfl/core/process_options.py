"""Options that every method's process takes."""

from __future__ import annotations

import dataclasses
from typing import Annotated, Any, Literal, Optional, Union

from tff_pfl import errors, fields
from tff_pfl import tff_api as tff
from tff_pfl.core import (
  aggregators,
  attacks,
  client_sampling,
  phases,
  privacy,
  schedules,
)
from tff_pfl.core import personalization as personalization_lib
from tff_pfl.core import training_options as training_lib

# A schedule that is a function is identified by its factors in these rounds.
_DESCRIBED_ROUNDS = (0, 1, 10, 100, 1000)


@fields.dataclass
class ProcessOptions:
  """Options of a process, the same for every method.

  A field that takes a name or a description also accepts the object itself.
  `resolved` makes the objects.

  Attributes:
    aggregator: Aggregation of the clients' updates: mean (weighted), robust,
      secure (simulated: the worker sums in the clear), compressed, median,
      trimmed_mean:<share of clients at either end>, geometric_median, dp
      (clipped, with noise from the server) or ddp (clipped, with noise from the
      clients, under secure sums). For dp and ddp, see --dp_epsilon. In Python,
      they are `PrivateMean` and `DistributedPrivateMean`, and any TFF
      aggregation factory is accepted. Moving statistics of batch normalization
      are aggregated with the weights. A client that is left out contributes a
      zero update with weight 0. An unweighted factory, such as a private one,
      counts it as one more client with a zero update.
    attack: Attack by some clients: none, sign_flip, scale:<factor, not 1> or
      label_flip. The other clients are scored.
    attacked_fraction: Share of attacked clients, which are not scored.
    client_weighting: Weights of the clients in the mean: num_examples or
      uniform. None uses the method's default (uniform for l2gd, p_fed_me and
      scaffold, num_examples for the others).
    stateless: True if clients forget their local state after each round and
      start the next from the initial state, for deployments that cannot
      identify their clients. A client then fits its state before it is scored.
    server_optimizer: Optimizer that uses the aggregated update as its gradient:
      sgd (at learning rate 1, the mean of the clients' weights) or adam. Python
      also accepts one of tff.learning.optimizers, with its own learning rate.
      Moving statistics are always averaged.
    server_learning_rate: Learning rate of the server, positive.
    server_momentum: Momentum of the server, in [0, 1), ignored by adam.
    server_learning_rate_schedule: Factor of the server optimizer's learning
      rate by round, in the forms of --learning_rate_schedule.
    statistics: Treatment of the moving statistics of batch normalization:
      global (averaged with the global weights), local (kept by the client,
      SiloBN) or local_all (kept with the scales and offsets).
    training_metrics: Training metrics (losses, scores, counts) that leave the
      clients without noise: plain (their sums over clients) or none. The latter
      needs an aggregator that does not weight clients, such as dp or ddp.
      Losses are then NaN, and every client counts as trained.
    personalization: Options of personalization before models are scored.
    training: Options of the clients' training with any method: weight decay,
      clipping and the learning rate schedule.
  """

  aggregator: Union[
    fields.checked(str, aggregators.make_aggregator),
    privacy.PrivateMean,
    privacy.DistributedPrivateMean,
    tff.aggregators.WeightedAggregationFactory,
    tff.aggregators.UnweightedAggregationFactory,
  ] = 'mean'
  attack: Union[fields.checked(str, attacks.parse), attacks.Attack] = 'none'
  attacked_fraction: fields.ShareBelowOne = 0.0
  client_weighting: Optional[Literal['num_examples', 'uniform']] = None
  stateless: bool = False
  server_optimizer: phases.Optimizer = 'sgd'
  server_learning_rate: fields.Positive = 1.0
  server_momentum: fields.ShareBelowOne = 0.0
  server_learning_rate_schedule: schedules.Schedule = 'constant'
  statistics: Literal['global', 'local', 'local_all'] = 'global'
  training_metrics: Annotated[
    Literal['plain', 'none'], fields.FlatName('dp_metrics')
  ] = 'plain'
  personalization: personalization_lib.Personalization = (
    personalization_lib.Personalization()
  )
  training: training_lib.TrainingOptions = training_lib.TrainingOptions()

  def resolved(
    self,
    cohorts: Optional[client_sampling.CohortSampler] = None,
    num_rounds: Optional[int] = None,
  ) -> tuple[ProcessOptions, Optional[privacy.Accounting]]:
    """The options with objects instead of names and descriptions.

    Args:
      cohorts: Sampler of the run's cohorts, needed for an attack and for noise.
      num_rounds: Rounds of the run, needed for noise.

    Returns:
      The options, and the accounting of the aggregator's noise or None.
    """
    attack, aggregator, accounting = self.attack, self.aggregator, None
    if attack == 'none' and not self.attacked_fraction:
      attack = attacks.Attack()
    elif isinstance(attack, str):
      _expect_cohorts('attack', attack, cohorts)
      attack = attacks.make_attack(
        attack, self.attacked_fraction, cohorts.num_clients, cohorts.seed
      )
    if isinstance(aggregator, str):
      aggregator = aggregators.make_aggregator(aggregator)
    elif isinstance(aggregator, tuple(privacy.AGGREGATORS.values())):
      _expect_cohorts('aggregator', aggregator, num_rounds and cohorts)
      errors.expect(
        self.client_weighting != 'num_examples',
        'client_weighting',
        'uniform or None with a private mean, in which all clients have equal '
        'weights',
        self.client_weighting,
      )
      accounting = aggregator.accounting(cohorts, num_rounds)
      aggregator = aggregator.factory(cohorts, accounting)
    errors.expect(
      self.training_metrics == 'plain'
      or not aggregators.is_weighted(aggregator),
      'dp_metrics',
      "'plain' if the aggregator weights clients",
      self.training_metrics,
    )
    phases.expect_own_rates(
      self,
      'server_learning_rate',
      'server_momentum',
      optimizer='server_optimizer',
    )
    options = dataclasses.replace(
      self,
      aggregator=aggregator,
      attack=attack,
      server_optimizer=phases.build_optimizer(
        self.server_optimizer, self.server_learning_rate, self.server_momentum
      ),
    )
    return options, accounting


def _expect_cohorts(name, value, cohorts):
  errors.expect(
    cohorts is not None,
    name,
    'given to `build` together with `cohorts=`, a CohortSampler of the run, '
    'and `num_rounds=`',
    value,
  )


def described(value: Any) -> Any:
  """Options or hyperparameters as JSON types."""
  if callable(value):  # A schedule.
    return [float(value(done)) for done in _DESCRIBED_ROUNDS]
  if phases.is_object(value):
    return phases.describe_optimizer(value)
  name = {}
  if isinstance(value, aggregators.FACTORIES):
    name = {'name': type(value).__name__}
    if not isinstance(value, aggregators.DESCRIBED):
      return name
  if isinstance(value, tuple):
    return list(value)
  if not dataclasses.is_dataclass(value):
    return value
  return name | {
    field.name: described(getattr(value, field.name))
    for field in dataclasses.fields(value)
  }
