"""The papers' methods for linear regression with a shared representation.

A method is what a client does with a model and its samples, and what the
server does with the mean of the results. Which part of the model is shared
(sent, averaged and broadcast) and which part each client keeps is declared;
the round itself is in `rounds` and runs in `simulation`. It has one such
exchange, or phase, for the methods here, and may have several (see
`domain_methods`).

    method      shared  local   client i, from B and w               server
    ------      ------  -----   ----------------------               ------
    fed_rep     B       w_i     w = argmin_w |X B w - y|^2,          QR(mean B)
                                B <- B - lr grad_B f(B, w)
    gd_gd       B       w_i     w <- w - lr_h grad_w f(B, w),        QR(mean B)
                                then B as above
    10gd_gd     B       w_i     gd_gd with ten steps on w            QR(mean B)
    fed_avg     B, w    -       tau times: (B, w) <- (B, w)          mean
                                  - lr grad f(B, w)
    d_gd        B, w    -       fed_avg with tau = 1                 mean
    fed_sgd     B, w    -       one step on a mini-batch             mean
    local_only  -       B_i,w_i tau steps on its own (B, w)          nothing

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

import dataclasses
from typing import Any, Callable, NamedTuple, Optional

import tensorflow as tf

from binaries.papers.linear import model as model_lib
from binaries.papers.linear.least_squares import least_squares
from tff_pfl import errors
from tff_pfl.models import randomness

LinearModel = model_lib.LinearModel


class Contribution(NamedTuple):
  """What a client's part of a phase gives.

  Attributes:
    message: What it sends, to be averaged: tensors by name.
    local: The parts of the model that it keeps, by name.
  """

  message: Any
  local: Any


class Phase(NamedTuple):
  """One exchange of a round, whose mean over the clients is uniform.

  Attributes:
    client_work: `(model, samples of one client, seed) -> Contribution`, pure.
      The seed is an int32 tensor `[2]`, the client's own in each round.
    server_work: `(shared parts, mean of the messages) -> shared parts`, all by
      name, pure.
  """

  client_work: Callable[..., Contribution]
  server_work: Callable[..., dict[str, Any]]


@dataclasses.dataclass(frozen=True)
class LinearMethod:
  """A method.

  Attributes:
    name: A key of `METHODS`.
    shared_names: The parts of `LinearModel` that are sent to the server and
      averaged; a client keeps the others from round to round.
    phases: What a round consists of, in order.
    min_samples: Rows of samples that a client needs at least, given k.
    domain_names: The parts of `LinearModel` of which each domain has one.
  """

  name: str
  shared_names: tuple[str, ...]
  phases: tuple[Phase, ...]
  min_samples: Callable[[int], int] = lambda rank: 1
  domain_names: tuple[str, ...] = ()

  @property
  def local_names(self) -> tuple[str, ...]:
    """The parts of `LinearModel` that clients keep."""
    return tuple(n for n in LinearModel._fields if n not in self.shared_names)

  def check(self, num_samples: int, rank: int, num_domains: int) -> None:
    """Raises `ValueError` if the method cannot run on the clients' samples.

    Args:
      num_samples: Rows of a client's samples.
      rank: k.
      num_domains: M; 0 for samples without domains.
    """
    least = self.min_samples(rank)
    errors.expect(
      num_samples >= least,
      'samples_per_client',
      f'at least {least} for {self.name} (give an exact head a `ridge`, or a '
      'mini-batch a smaller `batch_size`)',
      num_samples,
    )
    errors.expect(
      num_domains or not self.domain_names,
      'num_domains',
      f'at least 1 for {self.name}, whose samples have domains',
      num_domains,
    )


def check_method(method: Any) -> None:
  """Raises `TypeError` unless `method` is a `LinearMethod`."""
  errors.expect_type(
    method, LinearMethod, 'method', 'what a builder of `METHODS` returned'
  )


def _keep_mean(mean: dict[str, Any]) -> dict[str, Any]:
  return mean


def _orthonormalize_mean(mean: dict[str, Any]) -> dict[str, Any]:
  return {'representation': model_lib.orthonormalize(mean['representation'])}


def averaging_method(
  name: str,
  shared_names: tuple[str, ...],
  client_update: Callable[..., LinearModel],
  server_update: Callable[[dict[str, Any]], dict[str, Any]] = _keep_mean,
  min_samples: Callable[[int], int] = lambda rank: 1,
) -> LinearMethod:
  """A method whose clients update the model once in a round, to be averaged.

  The arguments that are not told here are those of `LinearMethod`.

  Args:
    client_update: `(model, samples of one client, seed) -> model`, pure.
    server_update: From the uniform mean of the clients' shared parts, by name,
      to the new shared parts.
  """

  def client_work(model, samples, seed):
    updated = client_update(model, samples, seed)
    return Contribution(
      message=model_lib.select(updated, shared_names),
      local=model_lib.select(updated, method.local_names),
    )

  def server_work(shared, mean):
    del shared
    return server_update(mean)

  method = LinearMethod(
    name, shared_names, (Phase(client_work, server_work),), min_samples
  )
  return method


def fed_rep(learning_rate: float, *, ridge: float = 0.0) -> LinearMethod:
  """FedRep, Algorithm 2: exact heads, one gradient step on B, QR.

  Args:
    learning_rate: For the step on the representation; positive.
    ridge: Added to the head's loss as ridge |w|^2 / 2, at least 0. Clients with
      fewer than k samples need it.
  """
  errors.expect_positive('learning_rate', learning_rate)
  errors.expect_non_negative('ridge', ridge)

  def client_update(model, samples, seed):
    del seed
    features = tf.matmul(samples.x, model.representation)
    head = least_squares(features, samples.y, ridge)
    return _step_on_representation(
      LinearModel(model.representation, head), samples, learning_rate
    )

  return averaging_method(
    'fed_rep',
    ('representation',),
    client_update,
    _orthonormalize_mean,
    min_samples=lambda rank: 1 if ridge else rank,
  )


def gd_gd(
  learning_rate: float,
  *,
  head_learning_rate: Optional[float] = None,
  num_head_steps: int = 1,
) -> LinearMethod:
  """GD-GD: FedRep with gradient steps on the head instead of its minimum.

  Args:
    learning_rate: For the step on the representation; positive.
    head_learning_rate: For the steps on the head; positive; by default
      `learning_rate`.
    num_head_steps: At least 1. The head starts from the client's last.
  """
  if head_learning_rate is None:
    head_learning_rate = learning_rate
  errors.expect_positive('learning_rate', learning_rate)
  errors.expect_positive('head_learning_rate', head_learning_rate)
  errors.expect_int('num_head_steps', num_head_steps, 1)

  def client_update(model, samples, seed):
    del seed

    def step_on_head(model):
      gradient = model_lib.gradients(model, samples).head
      return model._replace(head=model.head - head_learning_rate * gradient)

    model = model_lib.repeat(step_on_head, model, num_head_steps)
    return _step_on_representation(model, samples, learning_rate)

  name = 'gd_gd' if num_head_steps == 1 else f'{num_head_steps}gd_gd'
  return averaging_method(
    name, ('representation',), client_update, _orthonormalize_mean
  )


def ten_gd_gd(
  learning_rate: float, *, head_learning_rate: Optional[float] = None
) -> LinearMethod:
  """10GD-GD: `gd_gd` with ten steps on the head."""
  return gd_gd(
    learning_rate, head_learning_rate=head_learning_rate, num_head_steps=10
  )


def fed_avg(learning_rate: float, *, num_local_steps: int = 2) -> LinearMethod:
  """FedAvg: full-batch gradient steps on B and w together, plain mean.

  Args:
    learning_rate: For both; positive.
    num_local_steps: tau, at least 1; 1 is distributed gradient descent.
  """
  return _joint_descent('fed_avg', learning_rate, num_local_steps, _BOTH)


def d_gd(learning_rate: float) -> LinearMethod:
  """D-GD, distributed gradient descent: FedAvg with one local step.

  Args:
    learning_rate: Positive.
  """
  return _joint_descent('d_gd', learning_rate, 1, _BOTH)


def fed_sgd(learning_rate: float, *, batch_size: int = 10) -> LinearMethod:
  """FedSGD: one model by distributed stochastic gradient descent.

  Args:
    learning_rate: Positive.
    batch_size: Samples that a client draws in a round, without replacement, at
      least 1.
  """
  errors.expect_positive('learning_rate', learning_rate)
  errors.expect_int('batch_size', batch_size, 1)

  def client_update(model, samples, seed):
    num_samples = samples.y.shape[0]
    order = randomness.permutations(seed, 1, num_samples, num_samples)[0]
    batch = tf.nest.map_structure(
      lambda value: tf.gather(value, order[:batch_size]), samples
    )
    return model_lib.descend(model, batch, learning_rate, 1)

  return averaging_method(
    'fed_sgd', _BOTH, client_update, min_samples=lambda rank: batch_size
  )


def local_only(
  learning_rate: float, *, num_local_steps: int = 1
) -> LinearMethod:
  """Every client its own B and w, on its own samples; nothing is shared.

  Args:
    learning_rate: For both; positive.
    num_local_steps: Gradient steps in a round, at least 1.
  """
  return _joint_descent('local_only', learning_rate, num_local_steps, ())


_BOTH = LinearModel._fields

METHODS: dict[str, Callable[..., LinearMethod]] = {
  'fed_rep': fed_rep,
  'gd_gd': gd_gd,
  '10gd_gd': ten_gd_gd,
  'fed_avg': fed_avg,
  'd_gd': d_gd,
  'fed_sgd': fed_sgd,
  'local_only': local_only,
}


def _step_on_representation(model, samples, learning_rate):
  gradient = model_lib.gradients(model, samples).representation
  return model._replace(
    representation=model.representation - learning_rate * gradient
  )


def _joint_descent(name, learning_rate, num_local_steps, shared_names):
  errors.expect_positive('learning_rate', learning_rate)
  errors.expect_int('num_local_steps', num_local_steps, 1)

  def client_update(model, samples, seed):
    del seed
    return model_lib.descend(model, samples, learning_rate, num_local_steps)

  return averaging_method(name, shared_names, client_update)
