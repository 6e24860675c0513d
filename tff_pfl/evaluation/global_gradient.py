"""The gradient of the global loss: whether a model is stationary for it.

That says nothing about its representation: FedAvg learns one without becoming
stationary, and gradient descent on the global loss becomes stationary without
learning one.

References:
  L. Collins, H. Hassani, A. Mokhtari, S. Shakkottai. FedAvg with Fine Tuning:
    Local Updates Lead to Representation Learning. NeurIPS 2022. Figure 3.
"""

from __future__ import annotations

import collections
from typing import Any, NamedTuple, Optional

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_pfl import datasets, errors
from tff_pfl.client import example_tensors, scoring
from tff_pfl.datasets import batches
from tff_pfl.evaluation import personalized_evaluation
from tff_pfl.models import split_model
from tff_pfl.runtime import base as runtime_base
from tff_pfl.templates import federated_round


class GlobalGradient(NamedTuple):
  """The gradient of some clients' mean loss.

  Attributes:
    gradient: Name of each weight that has a gradient to its value, the weighted
      mean over the clients; NaN for a total weight of 0.
    weight: float32, the clients' total weight.
  """

  gradient: Any
  weight: Any


def build_global_gradient(
  model: split_model.SplitModel, *, client_weighting: str = 'num_examples'
) -> tff.Computation:
  """Builds the gradient of the global loss, as a federated computation.

  The server broadcasts the weights, each client computes the gradient of its
  mean loss over all of its examples, and the server averages. The network runs
  in inference mode (no dropout, normalization by moving statistics), so that
  the loss is one function of the weights. Weights in `model.statistics` have no
  gradient.

  A client's examples go through the network a bounded number at a time, so that
  besides them it needs the memory of a few hundred examples' activations.

  Args:
    model: The model.
    client_weighting: 'num_examples' or 'uniform' (over clients with examples).

  Returns:
    `(<weights@SERVER, {D*}@CLIENTS> -> GlobalGradient@SERVER)`, where `weights`
    are all weights of the model and `D*` batches of `model.element_spec`.

  Raises:
    ValueError: If `client_weighting` is out of its range.
  """
  errors.expect(
    client_weighting in federated_round.CLIENT_WEIGHTINGS,
    'client_weighting',
    f'one of {", ".join(federated_round.CLIENT_WEIGHTINGS)}',
    client_weighting,
  )
  examples_of = example_tensors.build_examples_of(model.element_spec)
  weights_type = tff.types.tensorflow_to_type(
    collections.OrderedDict(
      (name, tf.TensorSpec(value.shape, value.dtype))
      for name, value in model.initial_weights.items()
    )
  )

  @tff.tensorflow.computation(weights_type, examples_of.type_signature.result)
  def client_gradient(weights, examples):
    has_examples = examples.num_examples > 0
    weight = tf.where(
      has_examples,
      1.0
      if client_weighting == 'uniform'
      else tf.cast(examples.num_examples, tf.float32),
      0.0,
    )
    gradient = collections.OrderedDict(
      # Without examples it is that of padding, which may be NaN.
      (name, tf.where(has_examples, value * tf.cast(weight, value.dtype), 0))
      for name, value in scoring.mean_gradient(model, weights, examples).items()
    )
    return GlobalGradient(gradient, weight)

  @tff.tensorflow.computation(client_gradient.type_signature.result)
  def mean(total):
    return GlobalGradient(
      collections.OrderedDict(
        (name, value / tf.cast(total.weight, value.dtype))
        for name, value in total.gradient.items()
      ),
      total.weight,
    )

  @tff.federated_computation(
    tff.FederatedType(weights_type, tff.SERVER),
    tff.FederatedType(examples_of.type_signature.parameter, tff.CLIENTS),
  )
  def global_gradient(weights, client_data):
    gradients = tff.federated_map(
      client_gradient,
      (
        tff.federated_broadcast(weights),
        tff.federated_map(examples_of, client_data),
      ),
    )
    return tff.federated_map(mean, tff.federated_sum(gradients))

  return global_gradient


def global_gradient_norm(
  model: split_model.SplitModel,
  runtime: runtime_base.Runtime,
  weights: split_model.Weights,
  data: datasets.FederatedDataset,
  *,
  gradient: Optional[tff.Computation] = None,
  train: Optional[batches.ClientBatches] = None,
) -> float:
  """The norm of the gradient of the global loss over all training examples.

  Args:
    model: The model.
    runtime: Executes the clients' work.
    weights: All weights of the model.
    data: The clients. Those without training examples do not count.
    gradient: The result of `build_global_gradient`, to build it only once or to
      weight clients otherwise than by their numbers of examples.
    train: The clients' training data, if kept from one call to the next.

  Returns:
    The Euclidean norm over all weights that have a gradient; not finite where a
    client's gradient is not.

  Raises:
    ValueError: If no client has training examples, or weights are not the
      model's.
  """
  weights = split_model.check_weights(model, weights, model.layers)
  gradient = gradient or build_global_gradient(model)
  train = train or batches.ClientBatches(data.train)
  ids = [c for c in data.client_ids if data.num_train_examples(c)]
  errors.expect(
    ids, 'data', 'of at least one client with training examples', data
  )
  total, total_weight = None, 0.0
  for start in range(0, len(ids), personalized_evaluation.CLIENTS_PER_CALL):
    chunk = ids[start : start + personalized_evaluation.CLIENTS_PER_CALL]
    result = runtime.run(gradient, weights, [train[c] for c in chunk])
    weight = float(result.weight)
    part = np.concatenate(
      [
        weight * np.asarray(value, np.float64).ravel()
        for value in result.gradient.values()
      ]
    )
    total = part if total is None else total + part
    total_weight += weight
  return float(np.linalg.norm(total / total_weight))
