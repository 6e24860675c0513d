"""FedEM: every client's data are a mixture of the same few distributions.

    client, with M component models theta_m and its mixture weights pi_i:
      E-step:  q_j(m) ~ pi_i(m) exp(-loss(theta_m; x_j, y_j)), normalized over m
      M-step:  pi_i(m) <- mean_j q_j(m)
               theta_m <- SGD on mean_j q_j(m) loss(theta; x_j, y_j)
    server:  theta_m <- sum_i n_i theta_m,i / sum_i n_i, for each m

A client predicts with sum_m pi_i(m) p_m(y | x). Its model is the mixture, which
has the weights of all components and the logarithms of pi_i. The loss must be a
negative log-likelihood, such as the cross-entropy. If M = 1, this is FedAvg.
Before it is scored, a client that never took part finds its pi_i by E- and
M-steps on its data, with the components frozen. Clients that forget their state
(`stateless`) do so in every round, before the M-step on the components.

Symbols: M -> num_components, log pi_i -> `mixture/log_weights`, E ->
num_epochs, eta -> learning_rate.

Deviations from the paper: the mini-batches of a step are the same for all
components. The components start from one draw of the initial weights in
different orders (`models.copies.drawn_apart`). In the E-step, the components
run in inference mode. If outputs are sequences, the loss of an example is its
mean, not its sum. Class and example weights count only in the training of the
components, not in the E-step.

References:
  Marfoq, Neglia, Bellet, Kameni, Vidal: Federated Multi-Task Learning under a
  Mixture of Distributions, NeurIPS 2021, Algorithm 1 (FedEM).
"""

import collections
import dataclasses
import functools

import tensorflow as tf

from tff_pfl import fields
from tff_pfl.core import client_work, example_tensors, objectives
from tff_pfl.core import hparams as hparams_lib
from tff_pfl.methods import registry
from tff_pfl.models import copies

_SHARES = 'mixture/log_weights'


@fields.dataclass
class FedEmHParams(hparams_lib.LocalTrainingHParams):
  """Hyperparameters of FedEM: local training and the mixture.

  Attributes:
    num_components: Number of component models (M), at least 1.
    num_mixture_steps: Number of E- and M-steps, at least 1, that find the
      mixture weights of a client without weights from an earlier round.
    component_seed: Seed of the components' initial weights.
  """

  num_components: fields.Size = 3
  num_mixture_steps: fields.Size = 10
  component_seed: fields.Seed = 0


def responsibilities(
  losses: tf.Tensor, log_shares: tf.Tensor, num_examples: tf.Tensor
) -> tuple:
  """The E-step, and the M-step of the mixture weights.

  Args:
    losses: float32 `[capacity, num_components]`, each example's losses.
    log_shares: float32 `[num_components]`, log pi.
    num_examples: int32 scalar. Later rows are padding.

  Returns:
    q `[capacity, num_components]`, and the new log pi, or the old one without
    examples.
  """
  q = tf.nn.softmax(log_shares - losses)
  is_example = tf.range(tf.shape(q)[0]) < num_examples
  # Padding may give any loss, even NaN.
  q = tf.where(is_example[:, tf.newaxis], q, 0.0)
  shares = tf.math.divide_no_nan(
    tf.reduce_sum(q, axis=0), tf.cast(num_examples, q.dtype)
  )
  # A share of exactly 0 would stay 0.
  new = tf.math.log(tf.maximum(shares, 1e-30))
  return q, tf.where(num_examples > 0, new, log_shares)


def _example_losses(model, parts, components, examples):
  """Losses in inference mode, float32 `[capacity, num_components]`."""

  def outputs(x):
    return tuple(
      model.forward(weights, x)[0]
      for weights in parts.parts(components).values()
    )

  return tf.stack(
    [
      tf.cast(model.loss(examples.y, each), tf.float32)
      for each in example_tensors.in_chunks(outputs, examples)
    ],
    axis=1,
  )


def _weighted_model(model, parts, log_shares):
  """All components as one model of examples with responsibilities."""

  def forward(components, x_and_q, mode):
    x, q = x_and_q
    results = [
      model.forward(weights, x, mode)
      for weights in parts.parts(components).values()
    ]
    statistics = parts.join(
      {name: new for name, (_, new) in zip(parts.names, results)}
    )
    return ([outputs for outputs, _ in results], q), statistics

  def loss(y, outputs_and_q):
    loss_of = model.in_training.loss
    losses = [loss_of(y, outputs) for outputs in outputs_and_q[0]]
    q = tf.cast(outputs_and_q[1], losses[0].dtype)
    return tf.add_n([q[:, m] * each for m, each in enumerate(losses)])

  def mixture_metric(metric):
    return lambda y, outputs_and_q: metric(
      y, copies.mixed_outputs(model, outputs_and_q[0], log_shares)
    )

  trained = dataclasses.replace(
    parts.trained.in_training,
    loss=loss,
    metrics={name: mixture_metric(m) for name, m in model.metrics.items()},
    counted=model.counted
    and (lambda y, outputs_and_q: model.counted(y, outputs_and_q[0][0])),
  )
  return trained, objectives.prediction_loss(trained, forward)


@registry.method(
  'clients are mixtures of a few global models',
  FedEmHParams,
  unsupported=('reweight_domains', 'num_warmup_rounds'),
)
def fed_em(model, hparams):
  """FedEM. The process' model is the mixture, `model` one component."""
  parts = copies.components(model, hparams.num_components)
  initial = copies.drawn_apart(parts, hparams.component_seed)
  mixture = copies.mixture(parts, initial)

  def expectation_steps(components, log_shares, examples, num_steps):
    """Responsibilities and mixture weights after some E- and M-steps."""

    @tf.function(jit_compile=model.uses_xla, autograph=False)
    def steps(components, log_shares, examples):
      losses = _example_losses(model, parts, components, examples)
      number = examples.num_examples
      for _ in range(num_steps):
        q, log_shares = responsibilities(losses, log_shares, number)
      return q, log_shares

    return steps(components, log_shares, examples)

  def train(client, *, num_steps=1):
    examples = client.examples
    q, log_shares = expectation_steps(
      client.received, client.local[_SHARES], examples, num_steps
    )
    weighted, loss = _weighted_model(model, parts, log_shares)
    trained = client.sgd(
      loss,
      client.received,
      hparams.phase(),
      model=weighted,
      examples=examples._replace(x=(examples.x, q)),
    )
    local = collections.OrderedDict([(_SHARES, log_shares)])
    return client.result(trained, local=local)

  def fit_new_client(client, num_epochs):
    steps = hparams.num_mixture_steps if num_epochs is None else num_epochs
    if not steps:
      return client.local
    _, log_shares = expectation_steps(
      client.received, client.local[_SHARES], client.examples, steps
    )
    return collections.OrderedDict([(_SHARES, log_shares)])

  def with_shares(components, local):
    return collections.OrderedDict({**components, **local})

  no_preference = collections.OrderedDict(
    [(_SHARES, mixture.initial_weights[_SHARES])]
  )
  # A client without mixture weights finds them first.
  train_anew = functools.partial(train, num_steps=hparams.num_mixture_steps)
  return client_work.ClientWork(
    mixture,
    [client_work.Exchange(train)],
    initial_global=initial,
    initial_local=no_preference,
    personal_weights=lambda broadcast, local: with_shares(
      broadcast.global_weights, local
    ),
    global_model=lambda components: with_shares(
      components, tf.nest.map_structure(tf.constant, no_preference)
    ),
    fit_new_client=fit_new_client,
    exchanges_when_forgetting=[client_work.Exchange(train_anew)],
  )
