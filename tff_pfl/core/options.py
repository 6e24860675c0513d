"""Options that every method's process takes."""

from __future__ import annotations

import dataclasses
from typing import Any, Optional

import tensorflow_federated as tff

from tff_pfl import errors
from tff_pfl.core import (
  aggregators,
  attacks,
  personalization,
  schedules,
  training_options,
)
from tff_pfl.core import hparams as hparams_lib

CLIENT_WEIGHTINGS = ('num_examples', 'uniform')
# A schedule is told from others by its factors in these rounds.
_DESCRIBED_ROUNDS = (0, 1, 10, 100, 1000)
STATISTICS = ('global', 'local', 'local_all')
TRAINING_METRICS = ('plain', 'none')

# Makers of the values that None stands for.
_OBJECTS = {
  'aggregator': lambda: aggregators.make_aggregator('mean'),
  'server_optimizer': lambda: tff.learning.optimizers.build_sgdm(1.0),
  'personalization': personalization.Personalization,
  'training': training_options.TrainingOptions,
  'attack': attacks.Attack,
}


@dataclasses.dataclass(frozen=True)
class ProcessOptions:
  """Options of a process, the same for every method.

  Attributes:
    aggregator: Any TFF aggregation factory for the updates of the global
      weights (mean, clipped, private, secure, compressed, robust); None for the
      weighted mean. Moving statistics of batch normalization go through it with
      the weights. A client that is left out contributes a zero update of weight
      0 or, to an unweighted factory such as a private one, the zero update of
      one more client.
    server_optimizer: Optimizer that takes the aggregated update as its
      gradient; None for SGD with learning rate 1, where the new global weights
      are the mean of the clients'. Moving statistics are always averaged.
    client_weighting: Weights of the clients in the mean: 'num_examples',
      'uniform' or None for the method's own.
    stateless: True if clients forget their local state after each round and
      start the next from the initial one, for deployments that cannot tell
      their clients apart. A client that is scored then fits its state first.
    personalization: Options of personalizing models before they are scored.
    training: Options of the clients' training with any method: weight decay,
      clipping, the schedule of learning rates.
    statistics: Place of the moving statistics of batch normalization: 'global'
      (averaged), 'local' (kept by the client, SiloBN) or 'local_all' (with its
      scales and offsets), see `local_statistics`.
    server_schedule: Maps the number of rounds done to the factor of the server
      optimizer's learning rate; None for 1.
    training_metrics: 'plain' for sums of the clients' losses and metrics and
      for numbers of examples and of clients left out. 'none', for private
      aggregators, which take no weights, lets nothing leave a client but what
      the aggregator gets: losses are NaN, and every client counts as trained.
    attack: Simulated attack by some clients; None for none.
    seed: The run's seed, any int64.
  """

  aggregator: Optional[aggregators.AggregationFactory] = None
  server_optimizer: Optional[tff.learning.optimizers.Optimizer] = None
  client_weighting: Optional[str] = hparams_lib.one_of(None, CLIENT_WEIGHTINGS)
  stateless: bool = False
  personalization: Optional[personalization.Personalization] = None
  training: Optional[training_options.TrainingOptions] = None
  server_schedule: Optional[schedules.Schedule] = None
  statistics: str = hparams_lib.one_of('global', STATISTICS)
  training_metrics: str = hparams_lib.one_of('plain', TRAINING_METRICS)
  attack: Optional[attacks.Attack] = None
  seed: int = hparams_lib.checked(errors.expect_int, 0, -(2**63), 2**63 - 1)

  def __post_init__(self):
    for name, default in _OBJECTS.items():
      if getattr(self, name) is None:
        object.__setattr__(self, name, default())
    hparams_lib.check_fields(self)
    errors.expect(
      self.training_metrics == 'plain'
      or not aggregators.is_weighted(self.aggregator),
      'training_metrics',
      "'plain' where the aggregator weights clients",
      self.training_metrics,
    )

  def more_description(self) -> dict[str, Any]:
    """Further options that differ from the defaults, as JSON values."""
    described = {}
    for name, schedule in (
      ('learning_rates', self.training.learning_rate_schedule),
      ('server_learning_rates', self.server_schedule),
    ):
      if schedule is not None:
        described[name] = [float(schedule(r)) for r in _DESCRIBED_ROUNDS]
    for field in dataclasses.fields(self.training):
      value = getattr(self.training, field.name)
      if value != field.default and not callable(value):
        described[field.name] = value
    for name in ('statistics', 'training_metrics'):
      if getattr(self, name) != getattr(ProcessOptions, name):
        described[name] = getattr(self, name)
    if self.attack.clients:
      described['attack'] = dataclasses.asdict(self.attack)
    if isinstance(self.aggregator, aggregators.DESCRIBED):
      described['aggregator_arguments'] = dataclasses.asdict(self.aggregator)
    return described
