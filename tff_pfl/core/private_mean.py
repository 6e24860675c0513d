"""The mean of clipped updates with Gaussian noise: differential privacy.

    client i:  v_i <- v_i min(1, S / |v_i|)
    server:    mean = (sum_i v_i + N(0, (z S)^2)) / n

|v_i| is the norm of everything that a client sends in an exchange, update and
report together. z is the noise multiplier, and n is a number of clients that is
fixed in advance, so that the sum's sensitivity to a client is S. The clipping
norm S is fixed or follows a quantile of the norms (Andrew et al.). For a
quantile, clients also send whether their norm is at most S. The server adds
separate noise to the sum of these answers and computes

    S <- S exp(-0.2 (share of norms at most S - quantile)).

z then covers both sums together, so the noise on the updates is larger.

TFF's `tff.aggregators.DifferentiallyPrivateFactory` does the same, but draws
new noise whenever it runs. Here each round's noise comes from a seed, so that
runs can be repeated and resumed with the same result. Privacy then needs a
secret seed, so deployments should use TFF's factory.

References:
  McMahan, Ramage, Talwar, Zhang: Learning Differentially Private Recurrent
  Language Models, ICLR 2018. Andrew, Thakkar, McMahan, Ramaswamy:
  Differentially Private Learning with Adaptive Clipping, NeurIPS 2021.
"""

import collections
import math
from typing import Any, NamedTuple, Optional

import dp_accounting
import numpy as np
import tensorflow as tf
import tensorflow_privacy as tfp
import tree

from tff_pfl import errors, fields
from tff_pfl import tff_api as tff
from tff_pfl.models import randomness

# An adaptive clipping norm starts small, as in TFF.
_INITIAL_CLIP = 0.1
_CLIP_LEARNING_RATE = 0.2
# Range in which the accounting's squares and logarithms of the noise work.
NOISES = (1e-30, 1e6)


@fields.dataclass
class PrivateMeanFactory(tff.aggregators.UnweightedAggregationFactory):
  """Aggregation to a mean of clipped values with seeded Gaussian noise.

  Attributes:
    noise_multiplier: z, 0 for no noise or in [1e-30, 1e6].
    clients_per_round: n, the size of every cohort, at least 1.
    clip: Clipping norm S: a number, as in 'fixed:1.0' ('fixed:inf' for none,
      without noise), or a quantile of the norms that it follows, starting at
      0.1, as in 'adaptive:0.5'.
    seed: Seed of the noise, any int64.
    number: Number of the exchange in a round, so that each has its own noise.
  """

  noise_multiplier: fields.NonNegative
  clients_per_round: fields.Count
  clip: str = 'adaptive:0.5'
  seed: fields.integer(-(2**63), 2**63 - 1) = 0
  number: int = 0

  def __post_init__(self):
    low, high = NOISES
    errors.expect(
      not self.noise_multiplier or low <= self.noise_multiplier <= high,
      'noise_multiplier',
      f'0 or in [{low:g}, {high:g}]',
      self.noise_multiplier,
    )
    errors.expect(
      math.isfinite(parse_clip(self.clip)[1]) or not self.noise_multiplier,
      'clip',
      'a finite norm if there is noise',
      self.clip,
    )

  def create(self, value_type: tff.Type) -> tff.templates.AggregationProcess:
    """See the base class. All values must be floats."""
    query = tfp.NormalizedQuery(_Query(self), self.clients_per_round)
    return tff.aggregators.DifferentiallyPrivateFactory(query).create(
      value_type
    )


@fields.dataclass
class DistributedPrivateMeanFactory(
  tff.aggregators.UnweightedAggregationFactory
):
  """Private mean with discrete noise that clients add, under secure sums.

  Each client clips, rotates and rounds its values to integers and adds its part
  of the noise (the distributed discrete Gaussian mechanism). The sums are
  secure, modulo 2^bits. The server sees no update without noise, as long as all
  clients of a cohort add theirs. TFF does all of this, without a seed for the
  noise.

  Attributes:
    noise_multiplier: As in `PrivateMeanFactory`, but positive. Rounding makes
      the sensitivity slightly larger (see `noise_multiplier_of`).
    clients_per_round: Size of every cohort, at least 1.
    clip: Clipping norm, 'fixed:<norm>' with a finite norm.
    bits: Bits of each number in the sum, 1 to 22 and enough to count the
      clients.

  References:
    Kairouz, Liu, Steinke: The Distributed Discrete Gaussian Mechanism for
    Federated Learning with Secure Aggregation, ICML 2021.
  """

  noise_multiplier: fields.number(float, ge=NOISES[0], le=NOISES[1])
  clients_per_round: fields.Count
  clip: str = 'fixed:1.0'
  bits: fields.Count = 20

  def __post_init__(self):
    least = max(1, (self.clients_per_round - 1).bit_length())
    errors.expect_int('bits', self.bits, least, 22)
    kind, value = parse_clip(self.clip)
    errors.expect(
      kind == 'fixed' and math.isfinite(value),
      'clip',
      'fixed:<norm> if clients add the noise',
      self.clip,
    )

  def create(self, value_type: tff.Type) -> tff.templates.AggregationProcess:
    """See the base class. All values must be floats."""
    noisy_sum = tff.aggregators.distributed_dp.DistributedDpSumFactory(
      noise_multiplier=self.noise_multiplier,
      expected_clients_per_round=self.clients_per_round,
      bits=self.bits,
      l2_clip=parse_clip(self.clip)[1],
      mechanism='distributed_dgauss',
    )
    process = tff.aggregators.UnweightedMeanFactory(
      noisy_sum, tff.aggregators.SecureSumFactory(1, 0)
    ).create(value_type)
    # The factories nest so deeply that a round around them would exceed the 100
    # levels of protocol buffers.
    flat = tff.backends.native.transform_to_native_form(process.next)
    return tff.templates.AggregationProcess(
      process.initialize,
      tff.framework.ConcreteComputation.with_type(
        flat, process.next.type_signature
      ),
    )


def noise_multiplier_of(states: Any, clients_per_round: int) -> float:
  """The noise multiplier of a round whose clients add discrete noise.

  This is the multiplier of Gaussian noise with the same bound on Renyi
  divergences (the paper's bound for sums of discrete Gaussians, for up to 2^32
  numbers), for all exchanges together.

  Args:
    states: States of a round's aggregations by `DistributedPrivateMeanFactory`.
    clients_per_round: The factory's size of every cohort.
  """
  n, total = clients_per_round, 0.0
  leaves = tree.flatten_with_path(states)
  bounds, deviations = (
    [float(leaf) for path, leaf in leaves if path[-1] == name]
    for name in ('l2_norm_bound', 'local_stddev')
  )
  for bound, variance in zip(bounds, np.square(deviations)):
    # The gap between a sum of discrete Gaussians and a discrete Gaussian.
    gap = 10 * sum(
      math.exp(-2 * math.pi**2 * variance * k / (k + 1)) for k in range(1, n)
    )
    total += bound**2 / (n * variance) + gap * 2.0**31
  return float(total**-0.5)


PRIVATE_MEANS = (PrivateMeanFactory, DistributedPrivateMeanFactory)


def parse_clip(clip: str) -> tuple[str, float]:
  """Parses a `PrivateMeanFactory.clip` into its kind and its number."""
  kind, _, number = clip.partition(':')
  try:
    value = float(number)
  except ValueError:
    value = math.nan
  errors.expect(
    (
      kind == 'fixed'
      and value > 0
      and (errors.is_number(value) or value == math.inf)
    )
    or (kind == 'adaptive' and 0 < value < 1),
    'clip',
    'fixed:<norm> or adaptive:<quantile>, a positive norm or a quantile in '
    '(0, 1)',
    clip,
  )
  return kind, value


class _State(NamedTuple):
  """The clipping norm, float32, and the seed of the next noise, int32 [2]."""

  clip: Any
  seed: Any


class _Sums(NamedTuple):
  """Sums of the records and, for an adaptive clip, of ±1/2 (see `_Query`)."""

  records: Any
  below: Any


class _Query(tfp.SumAggregationDPQuery):
  """The clipped sum with seeded noise, as a query of TensorFlow Privacy.

  A norm counts as 1/2 if it is at most the clipping norm and as -1/2 otherwise,
  so that a client changes the sum of these by 1/2.
  """

  def __init__(self, factory: PrivateMeanFactory):
    self._factory = factory
    kind, value = parse_clip(factory.clip)
    self._quantile: Optional[float] = None
    self._initial_clip = value
    self._multiplier = z = factory.noise_multiplier
    if kind == 'adaptive':
      self._quantile, self._initial_clip = value, _INITIAL_CLIP
      # TFF's number, or a larger one for small cohorts, so that the noise on
      # the updates is at most 2 / sqrt(3) times the noise for a fixed norm.
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
      # A client that sends zeros counts as absent.
      below = tf.where(norm > 0, below, 0.0)
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
  seed = randomness.fold_in(seed, number)
  return tf.random.stateless_normal(shape, seed, alg='philox')
