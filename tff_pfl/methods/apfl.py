"""APFL: a personal model mixed with the global one.

    client, with v = a v_i + (1 - a) w the model it is scored with, per batch:
      w   <- w   - eta gradient f(w)
      v_i <- v_i - eta a gradient f(v)
    server:  w_{t+1} = sum_i n_i w_i / sum_i n_i

The mixing weight a is fixed, or each client adapts its own once a round, before
it trains:

    a <- clip(a - eta_a <v_i - w, gradient f_i(v)>, 0, 1)

If a = 1, the personal models are trained locally only. If a = 0, the method is
FedAvg.

Symbols: alpha -> mixing_weight, eta -> learning_rate, the step on alpha ->
mixing_learning_rate, tau -> num_steps or num_epochs.

Deviations from the paper: the step on alpha has its own learning rate and takes
the gradient over all of the client's examples (the paper: a mini-batch). A
cohort is aggregated after each round of local training, which is the paper's
algorithm with its gap tau. The server weights clients by their numbers of
examples (the paper: equally, `client_weighting='uniform'`). Moving statistics
of batch normalization are not mixed: the personal ones come from running the
mixed network (for a = 0, the global ones). A personal model starts from the
initial weights, or from the global model if a client is scored but never took
part.

References:
  Deng, Kamani, Mahdavi: Adaptive Personalized Federated Learning,
  arXiv:2003.13461, Algorithm 1 and equation 10.
"""

import collections

import numpy as np
import tensorflow as tf

from tff_pfl import fields
from tff_pfl.core import client_work, objectives, scoring
from tff_pfl.core import hparams as hparams_lib
from tff_pfl.methods import registry
from tff_pfl.models import copies


@fields.dataclass
class ApflHParams(hparams_lib.LocalTrainingHParams):
  """Hyperparameters of APFL: local training and the mixing weight.

  Attributes:
    mixing_weight: Initial share of the personal model (alpha), in [0, 1].
    mixing_learning_rate: Learning rate of the mixing weight, at least 0. If 0,
      the weight is fixed.
  """

  mixing_weight: fields.Share = 0.5
  mixing_learning_rate: fields.NonNegative = 0.0


def _mix(model, share, personal, shared):
  """`share * personal + (1 - share) * shared`, weight by weight."""

  def mixed(name, value):
    a = tf.cast(share, value.dtype)
    if name in model.statistics:
      return tf.where(a > 0, value, shared[name])
    return a * value + (1 - a) * shared[name]

  return collections.OrderedDict(
    (name, mixed(name, tf.convert_to_tensor(value)))
    for name, value in personal.items()
  )


def _personal_loss(model, share, shared):
  """The loss of the mixed model as a function of the personal one."""
  loss = objectives.joint_loss(model)

  def objective(personal, batch, *, seed):
    output = loss(_mix(model, share, personal, shared), batch, seed=seed)
    gradient = {
      name: tf.cast(share, slope.dtype) * slope
      for name, slope in output.gradient.items()
    }
    return output._replace(gradient=gradient)

  return objective


@registry.method('a personal model mixed with the global one', ApflHParams)
def apfl(model, hparams):
  """APFL."""
  loss = objectives.joint_loss(model)
  both = copies.Copies(model, ('global', 'personal'))

  def adapted_share(client):
    """The mixing weight after the client's step on it."""
    shared, examples = client.received, client.examples
    share, personal = client.local['mixing_weight'], client.local['weights']
    if not hparams.mixing_learning_rate:
      return share
    gradient = scoring.mean_gradient(
      model, _mix(model, share, personal, shared), examples
    )
    slope = tf.add_n(
      [
        tf.reduce_sum((personal[name] - shared[name]) * value)
        for name, value in gradient.items()
      ]
    )
    moved = share - hparams.mixing_learning_rate * tf.cast(slope, tf.float32)
    # Without examples the gradient comes from padding and may be NaN.
    return tf.where(
      examples.num_examples > 0, tf.clip_by_value(moved, 0.0, 1.0), share
    )

  def train(client):
    share = adapted_share(client)

    def objective(weights, batch, *, seed):
      shared, personal = both.parts(weights).values()
      personal_loss = _personal_loss(model, share, shared)
      outputs = {
        'global': loss(shared, batch, seed=seed),
        'personal': personal_loss(personal, batch, seed=seed),
      }
      return objectives.StepOutput(
        both.join({name: out.gradient for name, out in outputs.items()}),
        both.join({name: out.statistics for name, out in outputs.items()}),
        outputs['personal'].metrics,
      )

    start = both.join(
      {'global': client.received, 'personal': client.local['weights']}
    )
    trained = client.sgd(objective, start, hparams.phase(), model=both.trained)
    shared, personal = both.parts(trained.weights).values()
    local = collections.OrderedDict(weights=personal, mixing_weight=share)
    return client.result(trained._replace(weights=shared), local=local)

  def fit_new_client(client, num_epochs):
    share = client.local['mixing_weight']
    objective = _personal_loss(model, share, client.received)
    personal = client.sgd(objective, client.received, hparams.phase(num_epochs))
    return collections.OrderedDict(
      weights=personal.weights, mixing_weight=share
    )

  return client_work.global_weights_work(
    model,
    client_work.Exchange(train),
    initial_local=collections.OrderedDict(
      weights=collections.OrderedDict(model.initial_weights),
      mixing_weight=np.float32(hparams.mixing_weight),
    ),
    personal_weights=lambda broadcast, local: _mix(
      model, local['mixing_weight'], local['weights'], broadcast.global_weights
    ),
    fit_new_client=fit_new_client,
  )
