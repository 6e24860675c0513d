"""FedDAR for linear regression, and what it is compared with.

The samples have domains (`domain_problem`). FedDAR has one representation and a
head for each domain, all at the server; a round has two phases:

server                                   client i of n, for each domain m
------                                   --------------------------------
broadcast(B, W)                    --->  F_m = X_m B
                                         A_im = F_m^T F_m, a_im = F_m^T y_m
w_m: (sum_i A_im) w_m = sum_i a_im <---  A_im, a_im, L_im
broadcast(B, W)                    --->  g_im = X_m^T (X_m B w_m - y_m)
B <- QR(B - lr (1 / M) sum_m       <---  g_im, L_im
  (1 / L_m) (sum_i g_im) w_m^T)

Here X_m, y_m are the client's samples of domain m and L_m = sum_i L_im, so that
each domain counts 1 / M however few samples it has. The heads are those of
least squares on all clients' samples of the domain together.

* `fed_dar`: this, whose aggregation of the heads is the second-order one.
* `fed_dar_wa`: each client solves for its own heads by least squares, and the
  server takes their mean with the weights L_im / L_m.
* `separate_fed_avg`: a representation and a head for each domain, by FedAvg on
  its samples; domains share nothing.

Symbols:
  eta -> learning_rate

Deviations from the paper: both phases of a round use the same samples, as
all rounds do. A client sends g_im, of which the paper's
gradient for B is g_im w_m^T. The sums are taken as means, whose 1 / n cancels.
QR as in `methods`. Appendix A has no weighted average of heads: here it is that
of Algorithm 1 with exact local heads.

References:
  Zhong, He, Ren, Li, Li: FedDAR: Federated Domain-Aware Representation
  Learning, ICLR 2023, equation 8, Algorithm 2 (appendix A), section 5.1.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from binaries.papers.linear import methods
from binaries.papers.linear import model as model_lib

LinearModel = model_lib.LinearModel
_BOTH = LinearModel._fields


def fed_dar(learning_rate: float) -> methods.LinearMethod:
  """FedDAR, Algorithm 2: heads from sums over all clients, one step on B, QR.

  A domain without samples at any client keeps its head. Of a domain with too
  few of them for one solution, the head is the one of the least norm.
  """

  def sums_of_features(model, samples):
    members, features = _by_domain(model, samples)
    weighted = members[:, :, tf.newaxis] * features[:, tf.newaxis]
    return {
      'gram': tf.einsum('jma,jb->mab', weighted, features),
      'moments': tf.einsum('jma,j->ma', weighted, samples.y),
    }

  def solve(sums, unused_counts):
    return model_lib.solve_normal_equations(sums['gram'], sums['moments'])

  return _fed_dar('fed_dar', learning_rate, sums_of_features, solve)


def fed_dar_wa(
  learning_rate: float, *, near_broadcast: bool = False
) -> methods.LinearMethod:
  """FedDAR-WA: the weighted average of the clients' own heads.

  A domain without samples at any client keeps its head.

  Args:
    near_broadcast: Which head a client takes where it has too few samples of a
      domain for one solution, as with fewer than k: of all solutions the one of
      the least norm, or the one nearest to the broadcast head, where gradient
      steps from it would end.
  """

  def weighted_heads(model, samples):
    members, features = _by_domain(model, samples)
    start = model.head if near_broadcast else 0 * model.head
    residual = samples.y[:, tf.newaxis] - tf.matmul(
      features, start, transpose_b=True
    )
    # The other domains' samples are rows of zeros.
    heads = start + model_lib.least_squares(
      tf.transpose(members)[:, :, tf.newaxis] * features,
      tf.transpose(members * residual),
    )
    counts = tf.reduce_sum(members, axis=0)
    return {'head': counts[:, tf.newaxis] * heads}

  def average(sums, counts):
    return _mean(sums['head'], counts)

  return _fed_dar('fed_dar_wa', learning_rate, weighted_heads, average)


def separate_fed_avg(learning_rate: float) -> methods.LinearMethod:
  """Separate FedAvg: for each domain a model of its own, by FedAvg.

  A client takes one full-batch step on the model of each domain with its
  samples of that domain; the server averages with the weights L_im / L_m. A
  domain without samples at any client keeps its model.
  """

  def client_work(model, samples, unused_seed):
    counts = _counts(model, samples)
    # Of each domain's mean loss, where `model.gradients` has all samples'.
    g = _mean(model_lib.regressor_gradient(model, samples), counts)
    slopes = model_lib.part_gradients(model, g)
    message = {
      name: _align(counts, part) * (part - learning_rate * slope)
      for name, part, slope in zip(_BOTH, model, slopes)
    }
    return {**message, 'count': counts}, {}

  def server_work(shared, sums):
    counts = sums['count']
    return {
      name: tf.where(_align(counts, kept) > 0, _mean(sums[name], counts), kept)
      for name, kept in shared.items()
    }

  return methods.LinearMethod(
    'separate_fed_avg',
    _BOTH,
    (methods.Phase(client_work, server_work),),
    domain_names=_BOTH,
  )


def _fed_dar(
  name: str,
  learning_rate: float,
  client_sums: Callable[[LinearModel, Any], dict[str, Any]],
  solve: Callable[[dict[str, Any], Any], Any],
) -> methods.LinearMethod:
  """FedDAR with an aggregation of the heads.

  Args:
    client_sums: `(model, samples) -> ` what the clients send for the heads.
    solve: `(its sum, samples of each domain) -> heads [M, k]`, whatever they
      are for domains without samples.
  """

  def heads_of_client(model, samples, unused_seed):
    sums = client_sums(model, samples)
    return {**sums, 'count': _counts(model, samples)}, {}

  def heads_of_server(shared, sums):
    counts = sums['count']
    heads = solve(sums, counts)
    has_samples = counts[:, tf.newaxis] > 0
    return {**shared, 'head': tf.where(has_samples, heads, shared['head'])}

  def gradient_of_client(model, samples, unused_seed):
    message = {
      'gradient': model_lib.regressor_gradient(model, samples),
      'count': _counts(model, samples),
    }
    return message, {}

  def step_of_server(shared, sums):
    mean = _mean(sums['gradient'], sums['count'])
    gradient = model_lib.part_gradients(
      LinearModel(**shared), mean / mean.shape[0]
    ).representation
    representation = model_lib.orthonormalize(
      shared['representation'] - learning_rate * gradient
    )
    return {**shared, 'representation': representation}

  return methods.LinearMethod(
    name,
    _BOTH,
    (
      methods.Phase(heads_of_client, heads_of_server),
      methods.Phase(gradient_of_client, step_of_server),
    ),
    domain_names=('head',),
  )


def _by_domain(model, samples):
  """Members of the domains `[m, M]`, features `[m, k]`."""
  return (
    model_lib.membership(samples, model.head.shape[0]),
    tf.matmul(samples.x, model.representation),
  )


def _counts(model, samples):
  """float64 `[M]`, the samples of each domain."""
  return tf.reduce_sum(
    model_lib.membership(samples, model.head.shape[0]), axis=0
  )


def _align(counts, values):
  """The counts with axes of length 1 for all but the first axis of `values`."""
  return tf.reshape(counts, [-1] + [1] * (values.shape.rank - 1))


def _mean(sums, counts):
  """Means by domain from sums; 0 for a domain without samples."""
  return tf.math.divide_no_nan(sums, _align(counts, sums))
