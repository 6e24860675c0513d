"""The mean of clipped updates with Gaussian noise: differential privacy.

    client i:  v_i <- v_i min(1, S / |v_i|)
    server:    mean = (sum_i v_i + N(0, (z S)^2)) / n

|v_i| is the norm of all that a client sends in an exchange, update and report
together, z the noise multiplier and n a number that is fixed before, so that
the sum's sensitivity to a client is S. The clipping norm S is fixed, or follows
a quantile of the norms (Andrew et al.): clients also send whether theirs is at
most S, and of the sum of these, with noise of its own, the server makes

    S <- S exp(-0.2 (share of norms at most S - quantile)).

z is then that of both sums together, so the noise on the updates is larger.

The factories of `tff.aggregators.DifferentiallyPrivateFactory` do the same, but
their noise is drawn anew whenever they run. Here it comes from a seed, by
rounds, so that a run repeats and an interrupted one ends as it would have.
Privacy takes a seed that nobody else knows: a deployment needs TFF's.

References:
  McMahan, Ramage, Talwar, Zhang: Learning Differentially Private Recurrent
  Language Models, ICLR 2018. Andrew, Thakkar, McMahan, Ramaswamy:
  Differentially Private Learning with Adaptive Clipping, NeurIPS 2021.
"""

from __future__ import annotations

import collections
import dataclasses
import math
from typing import Any, NamedTuple, Optional

import dp_accounting
import tensorflow as tf
import tensorflow_federated as tff
import tensorflow_privacy as tfp

from tff_pfl import errors
from tff_pfl.models import randomness

# Of the clipping norm that follows a quantile, as in TFF: it starts small.
_INITIAL_CLIP = 0.1
_CLIP_LEARNING_RATE = 0.2
CLIP_FORMS = 'fixed:<norm> or adaptive:<quantile>'


@dataclasses.dataclass(frozen=True)
class PrivateMeanFactory(tff.aggregators.UnweightedAggregationFactory):
  """Aggregation to a mean of clipped values with seeded Gaussian noise.

  Attributes:
    noise_multiplier: z, nonnegative; 0 for no noise.
    clients_per_round: n, the size of every cohort, at least 1.
    clip: The clipping norm S: 'fixed:1.0', say ('fixed:inf' for none, without
      noise), or 'adaptive:0.5' for one that follows the median of the norms,
      from 0.1 in the first round.
    seed: Of the noise, any int64.
    number: Of the exchange in a round, so that each has noise of its own.

  Raises:
    ValueError: If a number is out of its range or `clip` has another form.
  """

  noise_multiplier: float
  clients_per_round: int
  clip: str = 'adaptive:0.5'
  seed: int = 0
  number: int = 0

  def __post_init__(self):
    errors.expect_non_negative('noise_multiplier', self.noise_multiplier)
    errors.expect_int('clients_per_round', self.clients_per_round, 1)
    errors.expect(
      math.isfinite(parse_clip(self.clip)[1]) or not self.noise_multiplier,
      'clip',
      'a finite norm where there is noise',
      self.clip,
    )

  def create(self, value_type: tff.Type) -> tff.templates.AggregationProcess:
    """See the base class; `value_type` is of floats."""
    query = tfp.NormalizedQuery(_Query(self), self.clients_per_round)
    return tff.aggregators.DifferentiallyPrivateFactory(query).create(
      value_type
    )


def parse_clip(clip: str) -> tuple[str, float]:
  """The kind and the number of a `PrivateMeanFactory.clip`.

  Raises:
    ValueError: If it has another form.
  """
  kind, _, number = clip.partition(':')
  try:
    value = float(number)
  except ValueError:
    value = math.nan
  errors.expect(
    (kind == 'fixed' and value > 0) or (kind == 'adaptive' and 0 < value < 1),
    'clip',
    f'{CLIP_FORMS}, a positive norm or a quantile in (0, 1)',
    clip,
  )
  return kind, value


class _State(NamedTuple):
  """The clipping norm, float32, and the seed of the next noise, int32 [2]."""

  clip: Any
  seed: Any


class _Sums(NamedTuple):
  """Of the records, and, with an adaptive clip, of whether they were below."""

  records: Any
  below: Any


class _Query(tfp.SumAggregationDPQuery):
  """The clipped sum with seeded noise, as TensorFlow Privacy has such things.

  Whether a norm is below the clipping norm counts as 1/2 or -1/2, so that a
  client changes that sum by 1/2.
  """

  def __init__(self, factory: PrivateMeanFactory):
    self._factory = factory
    kind, value = parse_clip(factory.clip)
    self._quantile: Optional[float] = None
    self._initial_clip = value
    self._multiplier = z = factory.noise_multiplier
    if kind == 'adaptive':
      self._quantile, self._initial_clip = value, _INITIAL_CLIP
      # TFF's number, but where cohorts are too small for it, so that the noise
      # on the updates is at most 2 / sqrt(3) times what it would be without.
      self._count_stddev = max(0.05 * factory.clients_per_round, z) if z else 0
      if z:
        self._multiplier = (z**-2 - (2 * self._count_stddev) ** -2) ** -0.5

  def initial_global_state(self):
    seed = tf.bitcast(tf.constant(self._factory.seed, tf.int64), tf.int32)
    seed = randomness.fold_in(
      seed, randomness.AGGREGATION, self._factory.number
    )
    return _State(tf.constant(self._initial_clip, tf.float32), seed)

  def derive_sample_params(self, global_state):
    return global_state.clip

  def initial_sample_state(self, template):
    zeros = tf.nest.map_structure(
      lambda spec: tf.zeros(spec.shape, spec.dtype), template
    )
    return _Sums(zeros, () if self._quantile is None else tf.zeros([]))

  def preprocess_record(self, params, record):
    norm = tf.linalg.global_norm(
      [tf.cast(value, tf.float32) for value in tf.nest.flatten(record)]
    )
    factor = tf.minimum(1.0, params / norm)
    clipped = tf.nest.map_structure(
      lambda value: value * tf.cast(factor, value.dtype), record
    )
    below = ()
    if self._quantile is not None:
      below = tf.cast(norm <= params, tf.float32) - 0.5
    return _Sums(clipped, below)

  def get_noised_result(self, sample_state, global_state):
    clip, seed = global_state
    noise_seed, next_seed = (randomness.fold_in(seed, n) for n in range(2))
    sums, below = sample_state
    if self._multiplier:
      leaves = [
        value
        + tf.cast(
          self._multiplier * clip * _normal(noise_seed, n, tf.shape(value)),
          value.dtype,
        )
        for n, value in enumerate(tf.nest.flatten(sums), 1)
      ]
      sums = tf.nest.pack_sequence_as(sums, leaves)
    events = [dp_accounting.GaussianDpEvent(self._multiplier)]
    if self._quantile is not None:
      below += self._count_stddev * _normal(noise_seed, 0, [])
      share = below / self._factory.clients_per_round + 0.5
      clip *= tf.exp(-_CLIP_LEARNING_RATE * (share - self._quantile))
      events.append(dp_accounting.GaussianDpEvent(2 * self._count_stddev))
    event = dp_accounting.ComposedDpEvent(events)
    return sums, _State(clip, next_seed), event

  def derive_metrics(self, global_state):
    return collections.OrderedDict(clip=global_state.clip)


def _normal(seed, number, shape):
  """Standard normal numbers."""
  seed = randomness.fold_in(seed, number)
  return tf.random.stateless_normal(shape, seed, alg='philox')
