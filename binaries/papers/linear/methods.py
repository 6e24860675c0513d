"""The papers' methods for linear regression with a shared representation.

A method says what a round does with the cohort's model. The code does the work
of all clients at once, with the clients as the first axis. Where the server
takes a mean over this axis, the clients have sent the entries.

    method      shared  local   client i, from B and w               server
    ------      ------  -----   ----------------------               ------
    fed_rep     B       w_i     w = argmin_w |X B w - y|^2,          QR(mean B)
                                B <- B - lr grad_B f(B, w)
    gd_gd       B       w_i     w <- w - lr grad_w f(B, w),          QR(mean B)
                                once or more, then B as above
    fed_avg     B, w    -       tau times: (B, w) <- (B, w)          mean
                                  - lr grad f(B, w)
                                (D-GD: tau = 1)
    fed_sgd     B, w    -       one step on a mini-batch             mean
    local_only  -       B_i,w_i one step on its own (B, w)           nothing

FedDAR's samples have domains. The server has one representation and a head for
each domain. A round has two exchanges:

server                                   client i of n, for each domain m
------                                   --------------------------------
broadcast(B)                       --->  F_m = X_m B
                                         A_im = F_m^T F_m, a_im = F_m^T y_m
w_m: (sum_i A_im) w_m = sum_i a_im <---  A_im, a_im, L_im
broadcast(W)                       --->  g_im = X_m^T (X_m B w_m - y_m)
B <- QR(B - lr (1 / M) sum_m       <---  g_im
  (1 / L_m) (sum_i g_im) w_m^T)

Here X_m, y_m are the client's samples of domain m and L_m = sum_i L_im, so that
each domain counts 1 / M however few samples it has. If no client in the round
has samples of a domain, its parts do not change. `fed_dar` takes this
second-order aggregation of the heads, `fed_dar_wa` the mean of the clients' own
heads with the weights L_im / L_m. `separate_fed_avg` has a representation and a
head for each domain, trained by FedAvg on its samples.

Symbols:
  eta, alpha -> learning_rate
  tau -> num_local_steps, num_head_steps

Deviations from the papers: among the orthonormal matrices with the span of
mean(B), the server takes the one closest in sign (see `model.orthonormalize`),
which changes no span. Clients have the same samples in each round, while
FedRep's Algorithm 2 draws new ones, and in both exchanges of FedDAR. A FedDAR
client sends g_im, and the paper's gradient for B is g_im w_m^T. Appendix A has
no weighted average of heads: here it is the average of Algorithm 1 with exact
local heads.

Sources: FedRep, Algorithm 2 and section 5.1; FedAvg, sections 2, 3 and 5.1;
FedDAR, equation 8, Algorithm 2 (appendix A), section 5.1.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from . import model as model_lib
from . import problem as problem_lib

LinearModel = model_lib.LinearModel
# `(model, samples, random generator of the round) -> model`, pure. The samples
# belong to the round's clients. These clients are the first axis of a part that
# clients keep, both in the given and in the returned model.
Round = Callable[
  [LinearModel, problem_lib.Samples, np.random.Generator], LinearModel
]


class LinearMethod(NamedTuple):
  """A method.

  Attributes:
    name: Name of the function that makes it.
    one_round: The work of clients and server in a round.
    local_names: Parts of `LinearModel` that each client keeps from round to
      round and never sends.
    domain_names: Parts that the server has for each domain.
  """

  name: str
  one_round: Round
  local_names: tuple[str, ...] = ()
  domain_names: tuple[str, ...] = ()


def fed_rep(learning_rate: float, *, ridge: float = 0.0) -> LinearMethod:
  """FedRep, Algorithm 2: exact heads, one gradient step on B, QR.

  Args:
    ridge: Factor of |w|^2 / 2 in the head's loss, at least 0. At 0, clients
      with fewer than k samples have the head of the least norm.
  """

  def one_round(model, samples, unused_rng):
    features = samples.x @ model.representation
    heads = model_lib.least_squares(features, samples.y, ridge)
    return _step_on_representation(model, heads, samples, learning_rate)

  return LinearMethod('fed_rep', one_round, local_names=('head',))


def gd_gd(learning_rate: float, *, num_head_steps: int = 1) -> LinearMethod:
  """GD-GD: FedRep with gradient steps on the head instead of its minimum.

  Args:
    num_head_steps: At least 1, 10 for 10GD-GD. The steps start from the
      client's last head.
  """

  def one_round(model, samples, unused_rng):
    # While only heads train, a client's features are its inputs.
    features = samples._replace(x=samples.x @ model.representation)
    heads = model.head
    for _ in range(num_head_steps):
      slopes = model_lib.regressor_gradients(heads, features)
      heads = heads - learning_rate * slopes
    return _step_on_representation(model, heads, samples, learning_rate)

  return LinearMethod('gd_gd', one_round, local_names=('head',))


def fed_avg(learning_rate: float, *, num_local_steps: int = 2) -> LinearMethod:
  """FedAvg: full-batch gradient steps on B and w together, plain mean.

  Args:
    num_local_steps: tau, at least 1. The method is D-GD for 1.
  """

  def one_round(model, samples, unused_rng):
    return _mean_after_steps(model, samples, learning_rate, num_local_steps)

  return LinearMethod('fed_avg', one_round)


def fed_sgd(learning_rate: float, *, batch_size: int) -> LinearMethod:
  """FedSGD: one model by distributed stochastic gradient descent.

  Args:
    batch_size: Samples that a client draws in a round, without replacement.
  """

  def one_round(model, samples, rng):
    order = np.argsort(rng.random(samples.y.shape), axis=1)
    clients = np.arange(len(order))[:, np.newaxis]
    batches = samples.at((clients, order[:, :batch_size]))
    return _mean_after_steps(model, batches, learning_rate, 1)

  return LinearMethod('fed_sgd', one_round)


def local_only(learning_rate: float) -> LinearMethod:
  """Each client takes a step on its own B and w, and shares nothing."""

  def one_round(models, samples, unused_rng):
    return model_lib.descend(models, samples, learning_rate, 1)

  return LinearMethod('local_only', one_round, local_names=LinearModel._fields)


def fed_dar(learning_rate: float) -> LinearMethod:
  """FedDAR, Algorithm 2: heads from sums over all clients, one step on B, QR.

  If a domain has too few samples for a unique solution, its head is the
  solution of the least norm.
  """

  def solve(unused_count, gram, moments, unused_heads):
    return model_lib.solve_normal_equations(
      gram.sum(axis=0), moments.sum(axis=0)
    )

  return _fed_dar('fed_dar', learning_rate, solve)


def fed_dar_wa(
  learning_rate: float, *, near_broadcast: bool = False
) -> LinearMethod:
  """FedDAR-WA: the weighted average of the clients' own heads.

  Args:
    near_broadcast: Head of a client with too few samples of a domain for a
      unique solution. False takes the solution of the least norm, True the one
      nearest to the broadcast head, where gradient steps would end.
  """

  def average(count, gram, moments, heads):
    start = heads if near_broadcast else 0 * heads
    left = moments - model_lib.multiply(gram, start)
    of_clients = start + model_lib.solve_normal_equations(gram, left)
    weighted = count[..., np.newaxis] * of_clients
    return _means(weighted.sum(axis=0), count)

  return _fed_dar('fed_dar_wa', learning_rate, average)


def separate_fed_avg(learning_rate: float) -> LinearMethod:
  """Separate FedAvg: a separate model for each domain, by FedAvg.

  After one full-batch step of each client on its samples of the domain, the
  mean of the models with the weights L_im / L_m equals the model after one step
  on all clients' samples of the domain. The code computes the latter.
  """

  def one_round(model, samples, unused_rng):
    count = model_lib.membership(samples, len(model.head)).sum(axis=1)
    slopes = model_lib.part_gradients(model, _mean_g(model, samples, count))
    return LinearModel(
      *(part - learning_rate * slope for part, slope in zip(model, slopes))
    )

  return LinearMethod(
    'separate_fed_avg', one_round, domain_names=LinearModel._fields
  )


def _fed_dar(
  name: str, learning_rate: float, solve: Callable[..., np.ndarray]
) -> LinearMethod:
  """FedDAR with an aggregation of the heads.

  Args:
    solve: `(count, gram, moments, last heads) -> heads`, from L_im `[n, M]`,
      A_im `[n, M, k, k]`, a_im `[n, M, k]` and `[M, k]` to `[M, k]`. The heads
      of domains without samples are ignored.
  """

  def one_round(model, samples, unused_rng):
    num_domains = len(model.head)
    members = model_lib.membership(samples, num_domains).swapaxes(1, 2)
    features = (samples.x @ model.representation)[:, np.newaxis]
    # `[n, M, k, m]`, with zeros for the other domains' samples.
    own = (members[..., np.newaxis] * features).swapaxes(2, 3)
    count = members.sum(axis=2)
    heads = solve(
      count,
      own @ features,
      model_lib.multiply(own, samples.y[:, np.newaxis]),
      model.head,
    )
    has_samples = count.sum(axis=0)[:, np.newaxis] > 0
    heads = np.where(has_samples, heads, model.head)
    model = LinearModel(model.representation, heads)
    g = _mean_g(model, samples, count)
    slope = model_lib.part_gradients(model, g).representation.mean(axis=0)
    representation = model_lib.orthonormalize(
      model.representation - learning_rate * slope
    )
    return LinearModel(representation, heads)

  return LinearMethod(name, one_round, domain_names=('head',))


def _mean_g(model, samples, count):
  """(1 / L_m) sum_i g_im, `[M, d]`."""
  num_clients, num_samples = samples.y.shape
  theta = model_lib.regressors(model)
  theta = np.broadcast_to(theta, (num_clients, *theta.shape))
  g = num_samples * model_lib.regressor_gradients(theta, samples)
  return _means(g.sum(axis=0), count)


def _means(sums, count):
  """Means by domain, `[M, ...]`, from sums. 0 for a domain without samples."""
  return sums / np.maximum(count.sum(axis=0), 1)[:, np.newaxis]


def _step_on_representation(model, heads, samples, learning_rate):
  """The clients' steps on B with their new heads, the server's mean and QR."""
  model = LinearModel(model.representation, heads)
  slopes = model_lib.gradients(model, samples).representation
  of_clients = model.representation - learning_rate * slopes
  return LinearModel(model_lib.orthonormalize(of_clients.mean(axis=0)), heads)


def _mean_after_steps(model, samples, learning_rate, num_steps):
  models = model_lib.for_clients(model, len(samples.y))
  models = model_lib.descend(models, samples, learning_rate, num_steps)
  return LinearModel(*(part.mean(axis=0) for part in models))
