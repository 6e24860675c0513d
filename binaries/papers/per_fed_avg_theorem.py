"""Per-FedAvg's Theorem 4.5: the meta-gradient's norm falls to a floor.

The theorem bounds the mean of E |grad F|^2 over K rounds of tau local
iterations, where F(w) is the mean over the clients of
f_i(w - alpha grad f_i(w)). Its formula is lost in our copy. According to the
text, the mean falls as 1 / K to a floor that depends on beta and tau, on
sigma_F, which is small for large batches (Lemma 4.3: 0 with exact gradients),
and on gamma_F, which is small if clients are alike (Lemma 4.4). We check the
bound as it was published elsewhere, which our copy can neither confirm nor
contradict:

    4 (F(w_0) - F*) / (beta tau K) + O(1) (
        beta L_F (1 + beta L_F tau (tau - 1)) sigma_F^2
        + beta L_F gamma_F^2 ((1 - r) / (r (n - 1)) + beta L_F tau (tau - 1))
        + alpha^2 L^2 sigma_G^2 / D)

for alpha <= 1 / L and beta of the order of 1 / (tau L_F). Exact gradients
therefore have a floor that is proportional to beta^2 tau (tau - 1) if all
clients train in each round, and to beta (1 - r) / r for tau = 1 if a share r of
them does. It is 0 for tau = 1 and all clients.

Here f_i is the logistic loss of client i, with labels from the client's own
logistic model, so that the gradient of F is known in closed form. The method is
the library's with the exact Hessian. The norm is taken at the server's model
before each round. L is at most 1 / alpha (a quarter of the inputs' largest
second moment, about 0.4), and beta tau L_F is about 0.1. In the first term
F* >= 0.

The study is in `per_fed_avg`, with the reference.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import NamedTuple, Optional

import keras
import numpy as np
from scipy import special

import tff_pfl as pfl
from tff_pfl.runtime import base as runtime_base
from tff_pfl.studies import claims, measures
from tff_pfl.studies.numbers import Numbers
from tff_pfl.studies.study import Study

from . import two_layer

# Rounds between the rows that the figure shows.
_ROUNDS_PER_ROW = 20


class Condition(NamedTuple):
  """Settings that the floor depends on.

  Attributes:
    learning_rate: beta, in units of `Sizes.learning_rate`.
    num_steps: tau.
    batch_size: Size of D, D' and D'' each. None means all of a client's
      examples, which makes gradients exact.
    cohort_size: r n. None means all clients.
    spread: Difference between clients, in units of `Sizes.spread`.
  """

  learning_rate: float = 1.0
  num_steps: int = 4
  batch_size: Optional[int] = None
  cohort_size: Optional[int] = None
  spread: float = 1.0


_EXACT, _OF_8 = 'exact gradients', 'batches of 8'
_NO_FLOOR = f'{_EXACT}, tau = 1'
CONDITIONS = {
  _NO_FLOOR: Condition(num_steps=1),
  _EXACT: Condition(),
  f'{_EXACT}, beta / 2': Condition(learning_rate=0.5),
  f'{_EXACT}, tau = 2': Condition(num_steps=2),
  f'{_EXACT}, alike clients': Condition(spread=0.25),
  _OF_8: Condition(batch_size=8),
  f'{_OF_8}, beta / 2': Condition(learning_rate=0.5, batch_size=8),
  'batches of 32': Condition(batch_size=32),
  'tau = 1, r = 0.2': Condition(num_steps=1, cohort_size=2),
  'tau = 1, r = 0.5': Condition(num_steps=1, cohort_size=5),
}


@dataclasses.dataclass(frozen=True)
class Sizes:
  """Sizes and hyperparameters.

  Attributes:
    num_clients: n.
    spread: Standard deviation of the scores that comes from the client's own
      part of its logistic model. The part that all clients share gives 1.
    inner_learning_rate: alpha.
    learning_rate: beta.
    num_floor_rounds: Number of last rounds, whose mean is the floor.
  """

  num_clients: int = 10
  num_examples: int = 128
  num_inputs: int = 10
  spread: float = 1.0
  inner_learning_rate: float = 1.0
  learning_rate: float = 0.2
  num_rounds: int = 600
  num_floor_rounds: int = 200


def make_clients(sizes: Sizes, spread: float, seed: int) -> pfl.Examples:
  """All clients' examples, `[clients, n, inputs]` and 0 or 1 `[clients, n]`."""
  rng = np.random.default_rng(seed)
  own = rng.normal(size=[sizes.num_clients, sizes.num_inputs])
  weights = rng.normal(size=sizes.num_inputs) + spread * own
  weights /= np.sqrt(sizes.num_inputs)
  shape = [sizes.num_clients, sizes.num_examples]
  x = rng.normal(size=[*shape, sizes.num_inputs]).astype(np.float32)
  scores = np.einsum('cnd,cd->cn', x, weights)
  y = rng.uniform(size=shape) < special.expit(scores)
  return pfl.Examples(x, y.astype(np.int32))


def meta_loss(
  clients: pfl.Examples, weights: np.ndarray, alpha: float
) -> tuple[float, np.ndarray]:
  """F and its gradient at weights `[inputs]`."""
  x, y = clients.x, clients.y

  def loss_and_gradient(of_clients):
    scores = np.einsum('cnd,cd->cn', x, of_clients)
    errors = special.expit(scores) - y
    loss = np.mean(np.logaddexp(0, scores) - y * scores)
    return loss, np.einsum('cnd,cn->cd', x, errors) / y.shape[1]

  weights = np.broadcast_to(weights, [len(x), x.shape[-1]])
  moved = weights - alpha * loss_and_gradient(weights)[1]
  loss, v = loss_and_gradient(moved)
  slopes = special.expit(np.einsum('cnd,cd->cn', x, weights))
  along = slopes * (1 - slopes) * np.einsum('cnd,cd->cn', x, v)
  curvature = np.einsum('cnd,cn->cd', x, along) / y.shape[1]
  return loss, np.mean(v - alpha * curvature, axis=0)


def norms(
  sizes: Sizes,
  condition: Condition,
  clients: pfl.Examples,
  seed: int,
  runtime: runtime_base.Runtime,
) -> Iterator[tuple[float, float]]:
  """F and |grad F|^2 at the server's model before each round."""
  dense = keras.layers.Dense(
    1, use_bias=False, kernel_initializer='zeros', name='head'
  )
  network = pfl.from_keras(
    keras.Sequential([keras.layers.Input([sizes.num_inputs]), dense]),
    head_layers=['head'],
    loss=keras.losses.BinaryCrossentropy(from_logits=True),
  )
  process = pfl.build(
    'per_fed_avg',
    network,
    variant='exact',
    inner_learning_rate=sizes.inner_learning_rate,
    learning_rate=sizes.learning_rate * condition.learning_rate,
    num_steps=condition.num_steps,
    batch_size=condition.batch_size,
    client_weighting='uniform',
    seed=seed,
  )
  train = two_layer.padded(clients)
  rng = np.random.default_rng([seed, *b'cohorts'])
  state = runtime.run(process.initialize)
  indices = list(range(len(train)))
  states = runtime.run(process.initialize_client_states, indices)
  for _ in range(sizes.num_rounds):
    (kernel,) = state.global_weights.values()
    loss, gradient = meta_loss(clients, kernel[:, 0], sizes.inner_learning_rate)
    yield loss, gradient @ gradient
    cohort = indices
    if condition.cohort_size is not None:
      cohort = sorted(rng.choice(indices, condition.cohort_size, replace=False))
    # The clients' new states are ignored because they are empty.
    of_cohort = ([one[i] for i in cohort] for one in (states, train))
    state = runtime.run(process.next, state, *of_cohort).state


def measure(context: measures.Context) -> measures.Rows:
  """The squared norm by round, with each run's floor in the last row."""
  sizes = context.parameters
  with context.create_runtime() as runtime:
    for (name, condition), seed in context.each(CONDITIONS.items()):
      clients = make_clients(sizes, sizes.spread * condition.spread, seed)
      losses, squares = np.transpose(
        list(norms(sizes, condition, clients, seed, runtime))
      )
      # The theorem's first term, times the number of rounds K.
      rate = sizes.learning_rate * condition.learning_rate * condition.num_steps
      bound = 4 * losses[0] / rate
      floor = squares[-sizes.num_floor_rounds :].mean()
      of_run = {
        'share': squares[-1] / squares[0],
        'floor': floor,
        'floor_share': floor / squares[0],
        'of_bound': squares.sum() / bound,
      }
      last = len(squares) - 1
      for index in sorted({*range(0, last, _ROUNDS_PER_ROW), last}):
        yield {
          'condition': name,
          'seed': seed,
          'round': index,
          'square': squares[index],
          **(of_run if index == last else {}),
        }


def make_claims(numbers: Numbers, study: Study) -> Iterator[claims.Claim]:
  """Claims about the fall of the norm and about what the floor depends on."""
  last = numbers.where(round=study.parameters.num_rounds - 1)

  def orders(condition, other):
    """The decimal logarithm of the ratio of two floors, by seed."""
    floors = [last.values('floor', condition=s) for s in (condition, other)]
    return np.log10(floors[0] / floors[1])

  yield claims.measured(
    f'{_NO_FLOOR}: the mean of the squared norm is below 4 F(w_0) / (beta tau '
    'K) for every number of rounds K: the largest ratio',
    last.values('of_bound', condition=_NO_FLOOR),
    below=1,
    of_paper=True,
  )
  yield claims.measured(
    f'{_NO_FLOOR}: there is no floor: the share of the first squared norm that '
    'is left',
    last.values('share', condition=_NO_FLOOR),
    below=1e-3,
  )
  yield claims.measured(
    'In every setting it falls: the largest floor, as a share of the first '
    'squared norm',
    last.curve('floor_share', 'condition'),
    below=0.1,
  )
  yield claims.difference(
    'With exact gradients the floor is proportional to beta^2, so that half of '
    'beta divides it by 4: by how many powers of ten it is off',
    np.abs(orders(_EXACT, f'{_EXACT}, beta / 2') - np.log10(4)),
    below=0.1,
  )
  yield claims.difference(
    'With exact gradients it shrinks with tau at least as tau (tau - 1): the '
    'decimal logarithm of the floor for 4 by that for 2',
    orders(_EXACT, f'{_EXACT}, tau = 2'),
    above=np.log10(6),
    of_paper=True,
  )
  for words, condition, other in (
    ('With batches it shrinks with beta', _OF_8, f'{_OF_8}, beta / 2'),
    ('It shrinks with larger batches', _OF_8, 'batches of 32'),
    (
      'It is smaller where more clients take part',
      'tau = 1, r = 0.2',
      'tau = 1, r = 0.5',
    ),
    (
      'It is smaller where clients are more alike',
      _EXACT,
      f'{_EXACT}, alike clients',
    ),
  ):
    yield claims.difference(
      f'{words} ({condition}, against {other}): the decimal logarithm of the '
      "floors' ratio",
      orders(condition, other),
    )
