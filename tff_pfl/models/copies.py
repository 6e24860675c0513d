"""Several copies of a model's weights, as one set of weights.

Some methods train several models at once: a global and a personal one, the
components of a mixture, or the models of clusters. They name their weights
`copy/layer/weight`, so that one loop trains, one partition divides and one
aggregator averages all of them.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tff_pfl.models import split_model


@dataclasses.dataclass(frozen=True)
class Copies:
  """Copies of a model's weights, by name.

  Attributes:
    model: The model that is copied.
    names: Names of the copies, without '/'.
  """

  model: split_model.SplitModel
  names: Sequence[str]

  def join(
    self, parts: Mapping[str, split_model.Weights]
  ) -> collections.OrderedDict:
    """Joins each copy's values, by weight name, into one mapping."""
    return collections.OrderedDict(
      (f'{name}/{key}', value)
      for name in self.names
      for key, value in parts[name].items()
    )

  def part(
    self, weights: split_model.Weights, name: str
  ) -> collections.OrderedDict:
    """Returns the weights of one copy, under the model's own names."""
    return collections.OrderedDict(
      (key, weights[f'{name}/{key}'])
      for key in self.model.initial_weights
      if f'{name}/{key}' in weights
    )

  def parts(self, weights: split_model.Weights) -> collections.OrderedDict:
    """Returns the weights of each copy, by its name."""
    return collections.OrderedDict(
      (name, self.part(weights, name)) for name in self.names
    )

  def layers(self, names: Sequence[str]) -> collections.OrderedDict:
    """Returns the weight names of each `copy/layer`, for the named layers."""
    return collections.OrderedDict(
      (
        f'{copy}/{layer}',
        tuple(f'{copy}/{k}' for k in self.model.layers[layer]),
      )
      for copy in self.names
      for layer in names
    )

  def each(
    self,
    function: Callable[..., tuple],
    weights: split_model.Weights,
    values: Sequence[Any],
    mode: split_model.Mode,
  ) -> tuple:
    """Runs the body or head of each copy on its own value.

    Args:
      function: The model's body or head.
      weights: The weights of all copies.
      values: One input per copy.
      mode: The mode of all calls.

    Returns:
      One result per copy, and the new statistics under the copies' names.
    """
    results, statistics = [], {}
    for name, value in zip(self.names, values):
      result, new = function(self.part(weights, name), value, mode)
      results.append(result)
      statistics.update((f'{name}/{key}', v) for key, v in new.items())
    return tuple(results), statistics

  @property
  def statistics(self) -> frozenset:
    """Names of all copies' weights that have no gradient."""
    return frozenset(
      f'{name}/{key}' for name in self.names for key in self.model.statistics
    )

  @property
  def regularizers(self) -> collections.OrderedDict:
    """Regularizers of all copies, by weight name."""
    return self.join({name: self.model.regularizers for name in self.names})

  @property
  def trained(self) -> split_model.SplitModel:
    """The model with which the training loop trains all copies at once."""
    return dataclasses.replace(
      self.model, statistics=self.statistics, regularizers=self.regularizers
    )


def components(model: split_model.SplitModel, number: int) -> Copies:
  """Makes copies named `component_0`, `component_1`, …."""
  return Copies(model, tuple(f'component_{m}' for m in range(number)))


def drawn_apart(copies: Copies, seed: int) -> collections.OrderedDict:
  """Draws initial weights that differ from copy to copy.

  The first copy has the model's own weights. In the others, the numbers of each
  kernel and embedding are shuffled, which keeps their distribution. Recurrent
  kernels get permuted rows and columns, so that they stay orthogonal. Vectors
  (biases, scales, moving statistics) do not change. Do not call this for
  trained weights, as it would destroy them.

  Args:
    copies: At least one copy.
    seed: Any integer.

  Returns:
    Arrays under the copies' names.
  """
  rng = np.random.default_rng([seed % 2**63, *b'copies'])

  def shuffled(name, value):
    if value.ndim < 2 or name in copies.model.statistics:
      return value
    if name.rpartition('/')[2] == 'recurrent_kernel':
      return rng.permutation(rng.permutation(value, axis=0), axis=1)
    return rng.permutation(value.ravel()).reshape(value.shape)

  initial = copies.model.initial_weights
  parts = {copies.names[0]: initial}
  for name in copies.names[1:]:
    parts[name] = {key: shuffled(key, value) for key, value in initial.items()}
  return copies.join(parts)


def means_of_members(
  copies: Copies,
  update: split_model.Weights,
  shares: tf.Tensor,
  least_share: Any,
) -> collections.OrderedDict:
  """Turns means over the cohort into means over each copy's members.

  Args:
    copies: The copies.
    update: Means over the cohort of each client's value times its share in the
      copy, under the copies' names.
    shares: Means over the cohort of the clients' shares, float `[copies]`.
    least_share: A copy with a smaller share counts as one without members.
      Added noise keeps shares from being exactly 0.

  Returns:
    Means under the copies' names, 0 for a copy without members.
  """
  shares = tf.where(shares >= least_share, shares, float('inf'))
  return copies.join(
    {
      copy: {
        name: tf.math.divide_no_nan(value, tf.cast(shares[k], value.dtype))
        for name, value in part.items()
      }
      for k, (copy, part) in enumerate(copies.parts(update).items())
    }
  )


def mixture(
  copies: Copies, initial_weights: split_model.Weights
) -> split_model.SplitModel:
  """Makes the model that mixes its components' predictions.

  A classifier's probabilities are

      p(y | x) = sum_m weight_m p_m(y | x)

  and a regression's outputs are the weighted mean of the components' outputs.
  The model has the components' weights and `mixture/log_weights`
  `[num_components]`, the unnormalized logarithms of the mixture's weights,
  which start at 0.

  Args:
    copies: The components.
    initial_weights: Weights of all components, under the copies' names.
  """
  model = copies.model
  log_weights = 'mixture/log_weights'

  def body(weights, x, mode=split_model.INFERENCE):
    return copies.each(model.body, weights, [x] * len(copies.names), mode)

  def head(weights, features, mode=split_model.INFERENCE):
    outputs, statistics = copies.each(model.head, weights, features, mode)
    return mixed_outputs(model, outputs, weights[log_weights]), statistics

  initial = collections.OrderedDict(initial_weights)
  initial[log_weights] = np.zeros([len(copies.names)], np.float32)
  return dataclasses.replace(
    model,
    name=f'{model.name}_mixture',
    initial_weights=initial,
    layers={**copies.layers(model.layers), 'mixture': (log_weights,)},
    head_layers=(*copies.layers(model.head_layers), 'mixture'),
    statistics=copies.statistics,
    regularizers=copies.regularizers,
    body=body,
    head=head,
    layer_outputs=None,
  )


def mixed_outputs(
  model: split_model.SplitModel,
  outputs: Sequence[tf.Tensor],
  log_weights: tf.Tensor,
) -> tf.Tensor:
  """Computes a mixture's outputs from its components' outputs.

  Args:
    model: The model that the components are copies of.
    outputs: Outputs of each component.
    log_weights: Unnormalized logarithms of the mixture's weights,
      `[num_components]`.
  """
  shares = tf.unstack(tf.nn.softmax(log_weights))
  if model.classifier is not None:
    outputs = map(model.classifier.probabilities, outputs)
  mean = tf.add_n([s * value for s, value in zip(shares, outputs)])
  return mean if model.classifier is None else model.classifier.outputs_of(mean)
