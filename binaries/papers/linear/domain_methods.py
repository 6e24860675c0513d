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
  tau -> num_local_steps

Deviations from the paper: both phases of a round use the same samples, also
where these are new in each round. A client sends g_im, of which the paper's
gradient for B is g_im w_m^T. The sums are taken as means, whose 1 / n cancels.
QR as in `methods`. Appendix A has no weighted average of heads: here it is that
of Algorithm 1 with exact local heads.

References:
  Zhong, He, Ren, Li, Li: FedDAR: Federated Domain-Aware Representation
  Learning, ICLR 2023, equation 8, Algorithm 2 (appendix A), section 5.1.
"""

from __future__ import annotations

from typing import Any, Callable

import tensorflow as tf

from binaries.papers.linear import least_squares, methods
from binaries.papers.linear import model as model_lib
from tff_pfl import errors

LinearModel = model_lib.LinearModel
_BOTH = LinearModel._fields

NEAREST_TO = ('zero', 'broadcast')


def fed_dar(
  learning_rate: float, *, ridge: float = 0.0
) -> methods.LinearMethod:
  """FedDAR, Algorithm 2: heads from sums over all clients, one step on B, QR.

  A domain without samples at any client keeps its head. Of a domain with too
  few of them for one solution, the head is the one of the least norm.

  Args:
    learning_rate: For the step on the representation; positive.
    ridge: Added to a domain's mean loss as ridge |w|^2 / 2, at least 0.
  """
  errors.expect_non_negative('ridge', ridge)

  def sums_of_features(model, samples):
    members, features = _by_domain(model, samples)
    weighted = members[:, :, tf.newaxis] * features[:, tf.newaxis]
    return {
      'gram': tf.einsum('jma,jb->mab', weighted, features),
      'moments': tf.einsum('jma,j->ma', weighted, samples.y),
    }

  def solve(sums, counts):
    gram = sums['gram']
    if ridge:
      eye = tf.eye(gram.shape[-1], dtype=gram.dtype)
      gram += ridge * counts[:, tf.newaxis, tf.newaxis] * eye
    return least_squares.solve_normal_equations(gram, sums['moments'])

  return _fed_dar('fed_dar', learning_rate, sums_of_features, solve)


def fed_dar_wa(
  learning_rate: float, *, nearest_to: str = 'zero'
) -> methods.LinearMethod:
  """FedDAR-WA: the weighted average of the clients' own heads.

  A domain without samples at any client keeps its head.

  Args:
    learning_rate: For the step on the representation; positive.
    nearest_to: Which head a client takes where it has too few samples of a
      domain for one solution, as with fewer than k: of all solutions the one
      nearest to 'zero', or to the 'broadcast' head, where gradient steps from
      it would end.
  """
  errors.expect(
    nearest_to in NEAREST_TO,
    'nearest_to',
    f'one of {", ".join(NEAREST_TO)}',
    nearest_to,
  )

  def weighted_heads(model, samples):
    members, features = _by_domain(model, samples)
    start = model.head if nearest_to == 'broadcast' else 0 * model.head
    residual = samples.y[:, tf.newaxis] - tf.matmul(
      features, start, transpose_b=True
    )
    # The other domains' samples are rows of zeros.
    heads = start + least_squares.least_squares(
      tf.transpose(members)[:, :, tf.newaxis] * features,
      tf.transpose(members * residual),
    )
    counts = tf.reduce_sum(members, axis=0)
    return {'head': counts[:, tf.newaxis] * heads}

  def average(sums, counts):
    return _mean(sums['head'], counts)

  return _fed_dar('fed_dar_wa', learning_rate, weighted_heads, average)


def separate_fed_avg(
  learning_rate: float, *, num_local_steps: int = 1
) -> methods.LinearMethod:
  """Separate FedAvg: for each domain a model of its own, by FedAvg.

  A client takes full-batch steps on the model of each domain with its samples
  of that domain; the server averages with the weights L_im / L_m. A domain
  without samples at any client keeps its model.

  Args:
    learning_rate: For both parts; positive.
    num_local_steps: tau, at least 1.
  """
  errors.expect_positive('learning_rate', learning_rate)
  errors.expect_int('num_local_steps', num_local_steps, 1)

  def gradients(model, samples):
    # Of each domain's mean loss, where `model.gradients` has all samples'.
    g = model_lib.regressor_gradient(model, samples)
    return model_lib.part_gradients(model, _mean(g, _counts(model, samples)))

  def client_work(model, samples, seed):
    del seed
    updated = model_lib.descend(
      model, samples, learning_rate, num_local_steps, gradients
    )
    counts = _counts(model, samples)
    message = {
      name: part * _align(counts, part)
      for name, part in updated._asdict().items()
    }
    return methods.Contribution({**message, 'count': counts}, {})

  def server_work(shared, sums):
    return {
      name: _mean_or_kept(sums[name], sums['count'], shared[name])
      for name in _BOTH
    }

  return methods.LinearMethod(
    'separate_fed_avg',
    _BOTH,
    (methods.Phase(client_work, server_work),),
    domain_names=_BOTH,
  )


DOMAIN_METHODS: dict[str, Callable[..., methods.LinearMethod]] = {
  'fed_dar': fed_dar,
  'fed_dar_wa': fed_dar_wa,
  'separate_fed_avg': separate_fed_avg,
}


def _fed_dar(
  name: str,
  learning_rate: float,
  client_sums: Callable[[LinearModel, Any], dict[str, Any]],
  solve: Callable[[dict[str, Any], Any], Any],
) -> methods.LinearMethod:
  """FedDAR with an aggregation of the heads.

  Args:
    name: The method's.
    learning_rate: For the step on the representation.
    client_sums: `(model, samples) -> ` what the clients send for the heads.
    solve: `(its sum, samples of each domain) -> heads [M, k]`, whatever they
      are for domains without samples.
  """
  errors.expect_positive('learning_rate', learning_rate)

  def heads_of_client(model, samples, seed):
    del seed
    sums = client_sums(model, samples)
    return methods.Contribution({**sums, 'count': _counts(model, samples)}, {})

  def heads_of_server(shared, sums):
    counts = sums['count']
    heads = solve(sums, counts)
    has_samples = counts[:, tf.newaxis] > 0
    return {**shared, 'head': tf.where(has_samples, heads, shared['head'])}

  def gradient_of_client(model, samples, seed):
    del seed
    return methods.Contribution(
      {
        'gradient': model_lib.regressor_gradient(model, samples),
        'count': _counts(model, samples),
      },
      {},
    )

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


def _mean_or_kept(sums, counts, kept):
  return tf.where(_align(counts, sums) > 0, _mean(sums, counts), kept)
