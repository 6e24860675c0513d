"""pFedMe: personal models by Moreau envelopes.

    F_i(w) = min over theta of  f_i(theta) + lambda / 2 |theta - w|^2

    client:  w <- w_t;  R times, with a mini-batch D each:
               theta <- K gradient steps on f(theta; D) + lambda/2 |theta - w|^2
                        from w
               w <- w - eta lambda (w - theta)
    server:  w_{t+1} = (1 - beta) w_t + beta mean(w_i)
    before a model is scored:  theta_i, solved by epochs over the client's data

lambda (w - theta) is the gradient of the envelope F_i, so a client's round is
gradient descent on it.

Symbols: eta -> learning_rate, R -> num_steps or the steps of num_epochs, lambda
-> proximal_strength, K -> num_inner_steps, the inner solver's rate ->
inner_learning_rate, beta -> the learning rate of the server's optimizer.

Deviations from the paper: an inner solve starts from w, not from the client's
last theta, so clients need no state. Clients have equal weights, as in the
paper.

References:
  T. Dinh, Tran, Nguyen: Personalized Federated Learning with Moreau Envelopes,
  NeurIPS 2020, Algorithm 1.
"""

from tff_pfl import fields
from tff_pfl.core import hparams as hparams_lib
from tff_pfl.core import objectives, personalization
from tff_pfl.methods import registry
from tff_pfl.methods.shared import joint_training
from tff_pfl.models import split_model


@fields.dataclass
class PFedMeHParams(hparams_lib.LocalTrainingHParams):
  """Hyperparameters of pFedMe: envelope descent and inner solver.

  Attributes:
    learning_rate: Learning rate of the global model w (eta), positive.
    momentum: Momentum of the SGD on w, in [0, 1).
    proximal_strength: Strength of the pull of theta toward w (lambda),
      positive.
    num_inner_steps: Gradient steps on theta for each batch (K), at least 1.
    inner_learning_rate: Learning rate of the inner steps, positive.
    num_adaptation_epochs: Epochs of mini-batches that solve theta_i before it
      is scored, at least 1.
  """

  learning_rate: fields.Positive = 0.01
  momentum: fields.ShareBelowOne = 0.0
  proximal_strength: fields.Positive = 15.0
  num_inner_steps: fields.Size = 5
  inner_learning_rate: fields.Positive = 0.02
  num_adaptation_epochs: fields.integer(1, 10**6) = 5


def envelope(
  model: split_model.SplitModel, hparams: PFedMeHParams
) -> objectives.Objective:
  """The gradient lambda (w - theta(w)) of a batch's Moreau envelope."""
  loss = objectives.joint_loss(model)
  strength, rate = hparams.proximal_strength, hparams.inner_learning_rate

  def objective(weights, batch, *, seed):
    pulled = objectives.proximal(loss, weights, strength)
    theta = weights
    for _ in range(hparams.num_inner_steps):
      output = pulled(theta, batch, seed=seed)
      moved = {
        name: theta[name] - rate * slope
        for name, slope in output.gradient.items()
      }
      theta = {**theta, **moved}
    return output._replace(
      gradient={
        name: strength * (weights[name] - theta[name])
        for name in output.gradient
      }
    )

  return objective


@registry.method(
  'a global model, personalized by solving its Moreau envelope', PFedMeHParams
)
def p_fed_me(model, hparams):
  """PFedMe."""
  return joint_training.joint_training_work(
    model,
    hparams,
    objective=envelope(model, hparams),
    # Solves theta_i before a client's model is scored.
    adaptation=personalization.Personalization(
      fine_tune='all',
      num_epochs=hparams.num_adaptation_epochs,
      learning_rate=hparams.inner_learning_rate,
      momentum=0.0,
      batch_size=hparams.batch_size,
      proximal_strength=hparams.proximal_strength,
    ),
    default_weighting='uniform',
  )
