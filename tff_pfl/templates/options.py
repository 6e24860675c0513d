"""Options that every method's process takes."""

from __future__ import annotations

import dataclasses
from typing import Any, Optional

import tensorflow_federated as tff

from tff_pfl import errors
from tff_pfl.templates import aggregators, personalization

CLIENT_WEIGHTINGS = ('num_examples', 'uniform')


def expect_weighting(name: str, weighting: str) -> None:
  """Raises `ValueError` unless it is one of `CLIENT_WEIGHTINGS`."""
  known = ', '.join(CLIENT_WEIGHTINGS)
  errors.expect(
    weighting in CLIENT_WEIGHTINGS, name, f'one of {known}', weighting
  )


@dataclasses.dataclass(frozen=True)
class ProcessOptions:
  """Options of a process, whatever its method.

  Attributes:
    aggregator: Any TFF aggregation factory for the updates of the global
      weights (mean, clipped, private, secure, compressed, robust); None for the
      weighted mean. Moving statistics of batch normalization go through it with
      the weights. A client that is left out contributes a zero update of weight
      0; to an unweighted factory (as the private ones are) the zero update of
      one more client.
    server_optimizer: Applied to the aggregated update as its gradient; None for
      SGD with learning rate 1: the new global weights are the mean of the
      clients'. Moving statistics are always averaged.
    client_weighting: How much a client counts in the mean: 'num_examples',
      'uniform' or None for the method's own.
    stateless: Whether clients forget their local state after each round and
      start the next from the initial one, as a deployment demands that cannot
      tell its clients apart. Whoever is scored then fits its local state first.
    personalization: How clients' models are made before they are scored.
    seed: The experiment's seed, any int64.

  Raises:
    TypeError: If `aggregator` is not an aggregation factory, `server_optimizer`
      not an optimizer of TFF or `personalization` not a `Personalization`.
    ValueError: If `client_weighting` or `seed` is out of its range.
  """

  aggregator: Optional[aggregators.AggregationFactory] = None
  server_optimizer: Optional[tff.learning.optimizers.Optimizer] = None
  client_weighting: Optional[str] = None
  stateless: bool = False
  personalization: Optional[personalization.Personalization] = None
  seed: int = 0

  def __post_init__(self):
    self._default('aggregator', aggregators.make_aggregator('mean'))
    self._default('server_optimizer', tff.learning.optimizers.build_sgdm(1.0))
    self._default('personalization', personalization.Personalization())
    errors.expect_type(
      self.aggregator,
      aggregators.AggregationFactory,
      'aggregator',
      'a TFF aggregation factory',
    )
    errors.expect_type(
      self.server_optimizer,
      tff.learning.optimizers.Optimizer,
      'server_optimizer',
      'one of tff.learning.optimizers',
    )
    errors.expect_type(
      self.personalization,
      personalization.Personalization,
      'personalization',
      'a Personalization',
    )
    if self.client_weighting is not None:
      expect_weighting('client_weighting', self.client_weighting)
    errors.expect(
      -(2**63) <= self.seed < 2**63, 'seed', 'a 64-bit integer', self.seed
    )

  def _default(self, name: str, value: Any) -> None:
    if getattr(self, name) is None:
      object.__setattr__(self, name, value)
