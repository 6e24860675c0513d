"""Per-FedAvg: an initial model that a step of gradient descent personalizes.

The objective is the mean over clients of f_i(w - alpha * gradient f_i(w)). A
local iteration of client i, with independent batches D, D', D'':

    w~ <- w - alpha * gradient f_i(w; D)
    v  <- gradient f_i(w~; D')
    w  <- w - beta * (v - alpha * Hessian f_i(w; D'') v)

    server:  w_{t+1} = sum_i n_i w_i / sum_i n_i

Variants: `exact` computes the product of Hessian and v by automatic
differentiation, `hessian_free` by a central difference of two gradients at
w +- delta * v, and `first_order` leaves it out. If alpha = 0, all three are
FedAvg.

D, D' and D'' may have different sizes: batches of the largest size are drawn,
and each of the three uses the first examples of one.

Several inner steps lead to w~, each on its own batch D. v is carried back
through them, each with its own batch D''. If `inner_scope='head'`, only the
head moves in them (ANIL), and (I - alpha H) becomes (I - alpha H P), with P the
projection onto the head. All weights are global. A client's model is scored
after inner steps on its training data, in full batches (`num_adaptation_steps`,
or other rules by `fine_tune`).

The batches of an iteration have no example in common, which makes them
independent draws of the client's distribution. A client with fewer batches than
an iteration takes uses some of them twice, which biases the gradient. If it has
two batches, D is D'. If it has one, all are the client's full batch.

Symbols:
  alpha -> inner_learning_rate, beta -> learning_rate, tau -> num_steps
  delta -> hessian_free_step
  r -> the cohort's share of the clients (an option of the run)

Deviations from the paper: its server takes the plain mean
(`client_weighting='uniform'`), while the default here weights clients by their
numbers of examples. Its step before scoring is on the test data, here on the
training data. Several inner steps and `inner_scope` are extensions. Dropout
draws anew for every batch. Moving statistics come from D', at w~.

References:
  Fallah, Mokhtari, Ozdaglar: Personalized Federated Learning with Theoretical
  Guarantees: A Model-Agnostic Meta-Learning Approach, NeurIPS 2020,
  Algorithm 1.
  Raghu, Raghu, Bengio, Vinyals: Rapid Learning or Feature Reuse? Towards
  Understanding the Effectiveness of MAML, ICLR 2020 (ANIL).
"""

import dataclasses
from typing import Literal, Optional

import tensorflow as tf

from tff_pfl import fields
from tff_pfl.core import hparams as hparams_lib
from tff_pfl.core import objectives, personalization, phases
from tff_pfl.methods import registry
from tff_pfl.methods.shared import joint_training
from tff_pfl.models import randomness, split_model


@fields.dataclass
class PerFedAvgHParams(hparams_lib.LocalTrainingHParams):
  """Hyperparameters of Per-FedAvg, with defaults from the paper's experiment.

  Attributes:
    num_epochs: Epochs of local iterations in a round if `num_steps` is None. An
      epoch passes through the examples in batches of the largest size.
    num_steps: Local iterations in a round (tau).
    learning_rate: Learning rate of the local iterations (beta), positive.
    momentum: SGD momentum of the local iterations, in [0, 1). Adam ignores it.
    optimizer: Optimizer of the local iterations: sgd or adam.
    batch_size: Examples in each D'. None, or 0, takes all.
    inner_batch_size: Examples in each D. None uses `batch_size`.
    curvature_batch_size: Examples in each D''. None uses `batch_size`.
    variant: Computation of the meta-gradient: 'first_order', 'hessian_free' or
      'exact'.
    inner_learning_rate: Learning rate of the inner steps and of adaptation
      (alpha), at least 0.
    num_inner_steps: Inner steps of an iteration, at least 1.
    inner_scope: Weights that inner steps and adaptation change: 'all' or
      'head'.
    hessian_free_step: Factor of the gradient v in the differences of
      'hessian_free' (delta), positive. If w +- delta v crosses kinks (ReLU,
      max-pooling), the difference is not of one smooth piece, and smaller
      values are better.
    num_adaptation_steps: Steps before a client's model is scored, at least 0.
      None uses `num_inner_steps`.
  """

  num_epochs: fields.Epochs = 5
  num_steps: Optional[fields.Steps] = 10
  learning_rate: fields.Positive = 0.001
  momentum: fields.ShareBelowOne = 0.0
  batch_size: Optional[fields.CountOrZero] = 40
  inner_batch_size: Optional[fields.Count] = None
  curvature_batch_size: Optional[fields.Count] = None
  variant: Literal['first_order', 'hessian_free', 'exact'] = 'first_order'
  inner_learning_rate: fields.NonNegative = 0.01
  num_inner_steps: fields.Size = 1
  inner_scope: Literal['all', 'head'] = 'all'
  hessian_free_step: fields.Positive = 1e-3
  num_adaptation_steps: Optional[fields.integer(0, 10**7)] = None

  @property
  def batch_sizes(self) -> tuple[Optional[int], Optional[int], Optional[int]]:
    """The sizes of D', D and D''. None means all examples."""
    size = self.batch_size or None
    return (
      size,
      self.inner_batch_size or size,
      self.curvature_batch_size or size,
    )

  def phase(self, num_epochs: Optional[int] = None) -> phases.Phase:
    """The local iterations. The batches of a step are D', all D and all D''."""
    per_inner_step = 1 if self.variant == 'first_order' else 2
    sizes = self.batch_sizes[: 1 + per_inner_step]
    return dataclasses.replace(
      super().phase(num_epochs),
      batch_size=None if None in sizes else max(sizes),
      batches_per_step=1 + per_inner_step * self.num_inner_steps,
    )

  def adaptation(self) -> personalization.Personalization:
    """The inner steps before a client's model is scored."""
    num_steps = self.num_adaptation_steps
    if num_steps is None:
      num_steps = self.num_inner_steps
    if not (num_steps and self.inner_learning_rate):
      return personalization.NO_ADAPTATION
    return personalization.Personalization(
      fine_tune=self.inner_scope,
      num_steps=num_steps,
      learning_rate=self.inner_learning_rate,
      momentum=0.0,
      batch_size=None,
    )


def meta_loss(
  model: split_model.SplitModel, hparams: PerFedAvgHParams
) -> objectives.Objective:
  """f(w - alpha * gradient f(w)) on the batches of `hparams.phase`."""
  num_inner = hparams.num_inner_steps
  outer_size, inner_size, curvature_size = hparams.batch_sizes
  loss = objectives.joint_loss(model)
  difference = None
  if hparams.variant == 'hessian_free':
    difference = hparams.hessian_free_step
  layers = model.layers
  if hparams.inner_scope == 'head':
    layers = model.last_layers(None, "inner_scope='head'")
  adapted = [
    name for name in model.weight_names(layers) if name not in model.statistics
  ]

  def descend(values, slopes):
    return {
      name: value - hparams.inner_learning_rate * slopes[name]
      for name, value in values.items()
    }

  def objective(weights, outer, *batches, seed):
    (outer,) = _first(outer_size, [outer])
    inner = _first(inner_size, batches[:num_inner])
    curvature = _first(curvature_size, batches[num_inner:])
    path = [weights]
    for s in range(num_inner):
      gradient = loss(
        path[s], inner[s], seed=randomness.fold_in(seed, 1 + s)
      ).gradient
      moved = descend(split_model.select(path[s], adapted), gradient)
      path.append({**path[s], **moved})
    output = loss(path[-1], outer, seed=seed)
    v = output.gradient
    if hparams.variant != 'first_order':
      for s in reversed(range(num_inner)):
        product = objectives.curvature_along(
          loss,
          path[s],
          split_model.select(v, adapted),
          curvature[s],
          seed=randomness.fold_in(seed, 1 + num_inner + s),
          difference=difference,
        )
        v = descend(v, product)
    return output._replace(gradient=v)

  return objective


def _first(number, batches):
  """The first examples of each batch."""
  return [
    tf.nest.map_structure(lambda value: value[:number], batch)
    for batch in batches
  ]


@registry.method(
  'one global model that a gradient step on the client personalizes (MAML)',
  PerFedAvgHParams,
)
def per_fed_avg(model, hparams):
  """Per-FedAvg."""
  return joint_training.joint_training_work(
    model,
    hparams,
    objective=meta_loss(model, hparams),
    adaptation=hparams.adaptation(),
  )
