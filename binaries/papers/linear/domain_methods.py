"""FedDAR for linear regression, and what it is compared with.

The samples have domains. FedDAR has one representation and a head for each
domain, all at the server; a round has two exchanges:

server                                   client i of n, for each domain m
------                                   --------------------------------
broadcast(B)                       --->  F_m = X_m B
                                         A_im = F_m^T F_m, a_im = F_m^T y_m
w_m: (sum_i A_im) w_m = sum_i a_im <---  A_im, a_im, L_im
broadcast(W)                       --->  g_im = X_m^T (X_m B w_m - y_m)
B <- QR(B - lr (1 / M) sum_m       <---  g_im
  (1 / L_m) (sum_i g_im) w_m^T)

Here X_m, y_m are the client's samples of domain m and L_m = sum_i L_im, so that
each domain counts 1 / M however few samples it has. The heads are those of
least squares on all clients' samples of the domain together.

* `fed_dar`: this, whose aggregation of the heads is the second-order one.
* `fed_dar_wa`: each client solves for its own heads by least squares, and the
  server takes their mean with the weights L_im / L_m.
* `separate_fed_avg`: a representation and a head for each domain, by FedAvg on
  its samples; domains share nothing.

A domain without samples at any of the round's clients keeps what it has.

Deviations from the paper: both exchanges of a round use the same samples, as
all rounds do. A client sends g_im, of which the paper's gradient for B is
g_im w_m^T. QR as in `methods`. Appendix A has no weighted average of heads:
here it is that of Algorithm 1 with exact local heads.

Source: FedDAR, equation 8, Algorithm 2 (appendix A), section 5.1.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from binaries.papers.linear import methods
from binaries.papers.linear import model as model_lib
from binaries.papers.linear import problem as problem_lib

LinearModel = model_lib.LinearModel


class HeadSums(NamedTuple):
  """What clients send for the heads of M domains.

  Attributes:
    count: float64 `[n, M]`, L_im, samples of each domain.
    gram: `[n, M, k, k]`, A_im.
    moments: `[n, M, k]`, a_im.
  """

  count: np.ndarray
  gram: np.ndarray
  moments: np.ndarray


def head_sums(
  representation: np.ndarray, samples: problem_lib.Samples, num_domains: int
) -> HeadSums:
  """The clients' sums over their samples of each domain."""
  members = model_lib.membership(samples, num_domains).swapaxes(1, 2)
  features = (samples.x @ representation)[:, np.newaxis]
  # `[n, M, m, k]`, with zeros for the other domains' samples.
  own = members[..., np.newaxis] * features
  transposed = own.swapaxes(2, 3)
  return HeadSums(
    members.sum(axis=2),
    transposed @ features,
    model_lib.multiply(transposed, samples.y[:, np.newaxis]),
  )


def fed_dar(learning_rate: float) -> methods.LinearMethod:
  """FedDAR, Algorithm 2: heads from sums over all clients, one step on B, QR.

  Of a domain with too few samples for one solution, the head is the one of the
  least norm.
  """

  def solve(sums, unused_heads):
    return model_lib.solve_normal_equations(
      sums.gram.sum(axis=0), sums.moments.sum(axis=0)
    )

  return _fed_dar('fed_dar', learning_rate, solve)


def fed_dar_wa(
  learning_rate: float, *, near_broadcast: bool = False
) -> methods.LinearMethod:
  """FedDAR-WA: the weighted average of the clients' own heads.

  Args:
    near_broadcast: Which head a client takes where it has too few samples of a
      domain for one solution, as with fewer than k: of all solutions the one of
      the least norm, or the one nearest to the broadcast head, where gradient
      steps from it would end.
  """

  def average(sums, heads):
    start = heads if near_broadcast else 0 * heads
    left = sums.moments - model_lib.multiply(sums.gram, start)
    of_clients = start + model_lib.solve_normal_equations(sums.gram, left)
    weighted = sums.count[..., np.newaxis] * of_clients
    return _means(weighted.sum(axis=0), sums.count)

  return _fed_dar('fed_dar_wa', learning_rate, average)


def separate_fed_avg(learning_rate: float) -> methods.LinearMethod:
  """Separate FedAvg: for each domain a model of its own, by FedAvg.

  A client takes one full-batch step on the model of each domain with its
  samples of that domain; the server averages with the weights L_im / L_m. That
  mean is the model after one step on all clients' samples of the domain, as
  which it is computed.
  """

  def one_round(model, samples, unused_rng):
    count = model_lib.membership(samples, len(model.head)).sum(axis=1)
    slopes = model_lib.part_gradients(model, _mean_g(model, samples, count))
    return LinearModel(
      *(part - learning_rate * slope for part, slope in zip(model, slopes))
    )

  return methods.LinearMethod(
    'separate_fed_avg', one_round, domain_names=LinearModel._fields
  )


def _fed_dar(
  name: str,
  learning_rate: float,
  solve: Callable[[HeadSums, np.ndarray], np.ndarray],
) -> methods.LinearMethod:
  """FedDAR with an aggregation of the heads.

  Args:
    solve: `(sums, last heads) -> heads`, both `[M, k]`, whatever they are for
      domains without samples.
  """

  def one_round(model, samples, unused_rng):
    sums = head_sums(model.representation, samples, len(model.head))
    has_samples = sums.count.sum(axis=0)[:, np.newaxis] > 0
    heads = np.where(has_samples, solve(sums, model.head), model.head)
    model = LinearModel(model.representation, heads)
    g = _mean_g(model, samples, sums.count)
    slope = model_lib.part_gradients(model, g).representation.mean(axis=0)
    representation = model_lib.orthonormalize(
      model.representation - learning_rate * slope
    )
    return LinearModel(representation, heads)

  return methods.LinearMethod(name, one_round, domain_names=('head',))


def _mean_g(model, samples, count):
  """(1 / L_m) sum_i g_im, `[M, d]`."""
  num_clients, num_samples = samples.y.shape
  theta = model_lib.regressors(model)
  theta = np.broadcast_to(theta, (num_clients, *theta.shape))
  g = num_samples * model_lib.regressor_gradients(theta, samples)
  return _means(g.sum(axis=0), count)


def _means(sums, count):
  """Means by domain, `[M, ...]`, from sums; 0 for a domain without samples."""
  return sums / np.maximum(count.sum(axis=0), 1)[:, np.newaxis]
