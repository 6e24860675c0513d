"""The papers' methods for linear regression with a shared representation.

A method is what a client does with a model and its samples, and what the
server does with the mean of the results. Which part of the model is shared
(sent, averaged and broadcast) and which part each client keeps is declared;
the round itself is in `simulation`. It has one such exchange, or phase, for the
methods here, and may have several (see `domain_methods`).

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

Symbols:
  eta, alpha -> learning_rate
  tau -> num_local_steps, num_head_steps

Deviations from the papers: of the orthonormal matrices with the span of
mean(B) the server takes the one closest in sign (see `model.orthonormalize`),
which changes no span. All clients take part in each round, where the papers'
algorithms have cohorts.

References:
  Collins, Hassani, Mokhtari, Shakkottai: Exploiting Shared Representations for
  Personalized Federated Learning, ICML 2021, Algorithm 2 and section 5.1.
  Collins, Hassani, Mokhtari, Shakkottai: FedAvg with Fine Tuning: Local Updates
  Lead to Representation Learning, NeurIPS 2022, sections 2, 3 and 5.1.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf

from binaries.papers.linear import model as model_lib
from tff_pfl.models import randomness

LinearModel = model_lib.LinearModel
_BOTH = LinearModel._fields


class Phase(NamedTuple):
  """One exchange of a round, whose mean over the clients is uniform.

  Attributes:
    client_work: `(model, samples of one client, seed) -> (message, local)`,
      pure: what it sends, to be averaged, and the parts of the model that it
      keeps, tensors by name. The seed is an int32 tensor `[2]`, the client's
      own in each round.
    server_work: `(shared parts, mean of the messages) -> shared parts`, all by
      name, pure.
  """

  client_work: Callable[..., tuple[dict[str, Any], dict[str, Any]]]
  server_work: Callable[..., dict[str, Any]]


class LinearMethod(NamedTuple):
  """A method.

  Attributes:
    name: The name of the function that makes it.
    shared_names: The parts of `LinearModel` that are sent to the server and
      averaged; a client keeps the others from round to round.
    phases: What a round consists of, in order.
    domain_names: The parts of `LinearModel` of which each domain has one.
  """

  name: str
  shared_names: tuple[str, ...]
  phases: tuple[Phase, ...]
  domain_names: tuple[str, ...] = ()

  @property
  def local_names(self) -> tuple[str, ...]:
    """The parts of `LinearModel` that clients keep."""
    return tuple(n for n in _BOTH if n not in self.shared_names)


def fed_rep(learning_rate: float, *, ridge: float = 0.0) -> LinearMethod:
  """FedRep, Algorithm 2: exact heads, one gradient step on B, QR.

  Args:
    ridge: Added to the head's loss as ridge |w|^2 / 2, at least 0. Without it
      clients with fewer than k samples have the head of the least norm.
  """

  def client_update(model, samples, unused_seed):
    features = tf.matmul(samples.x, model.representation)
    head = model_lib.least_squares(features, samples.y, ridge)
    return _step_on_representation(
      model._replace(head=head), samples, learning_rate
    )

  return _averaging_method(
    'fed_rep', ('representation',), client_update, _orthonormalized
  )


def gd_gd(learning_rate: float, *, num_head_steps: int = 1) -> LinearMethod:
  """GD-GD: FedRep with gradient steps on the head instead of its minimum.

  Args:
    learning_rate: For representation and head; positive.
    num_head_steps: At least 1, 10 for 10GD-GD. The head starts from the
      client's last.
  """

  def client_update(model, samples, unused_seed):
    def step_on_head(model):
      gradient = model_lib.gradients(model, samples).head
      return model._replace(head=model.head - learning_rate * gradient)

    model = model_lib.repeat(step_on_head, model, num_head_steps)
    return _step_on_representation(model, samples, learning_rate)

  return _averaging_method(
    'gd_gd', ('representation',), client_update, _orthonormalized
  )


def fed_avg(learning_rate: float, *, num_local_steps: int = 2) -> LinearMethod:
  """FedAvg: full-batch gradient steps on B and w together, plain mean.

  Args:
    num_local_steps: tau, at least 1; with 1 it is D-GD.
  """
  return _joint_descent('fed_avg', learning_rate, num_local_steps, _BOTH)


def fed_sgd(learning_rate: float, *, batch_size: int) -> LinearMethod:
  """FedSGD: one model by distributed stochastic gradient descent.

  Args:
    batch_size: Samples that a client draws in a round, without replacement.
  """

  def client_update(model, samples, seed):
    num_samples = samples.y.shape[0]
    order = randomness.permutations(seed, 1, num_samples, num_samples)[0]
    batch = tf.nest.map_structure(
      lambda value: tf.gather(value, order[:batch_size]), samples
    )
    return model_lib.descend(model, batch, learning_rate, 1)

  return _averaging_method('fed_sgd', _BOTH, client_update)


def local_only(learning_rate: float) -> LinearMethod:
  """Every client its own B and w, a step on its own samples; nothing shared."""
  return _joint_descent('local_only', learning_rate, 1, ())


def _averaging_method(
  name: str,
  shared_names: tuple[str, ...],
  client_update: Callable[..., LinearModel],
  server_update: Callable[[dict[str, Any]], dict[str, Any]] = lambda mean: mean,
) -> LinearMethod:
  """A method whose clients update the model once in a round, to be averaged.

  Args:
    client_update: `(model, samples of one client, seed) -> model`, pure.
    server_update: From the uniform mean of the clients' shared parts, by name,
      to the new shared parts.
  """

  def client_work(model, samples, seed):
    updated = client_update(model, samples, seed)
    return (
      model_lib.select(updated, shared_names),
      model_lib.select(updated, method.local_names),
    )

  def server_work(unused_shared, mean):
    return server_update(mean)

  method = LinearMethod(name, shared_names, (Phase(client_work, server_work),))
  return method


def _joint_descent(name, learning_rate, num_local_steps, shared_names):
  def client_update(model, samples, unused_seed):
    return model_lib.descend(model, samples, learning_rate, num_local_steps)

  return _averaging_method(name, shared_names, client_update)


def _orthonormalized(mean):
  return {'representation': model_lib.orthonormalize(mean['representation'])}


def _step_on_representation(model, samples, learning_rate):
  gradient = model_lib.gradients(model, samples).representation
  return model._replace(
    representation=model.representation - learning_rate * gradient
  )
