"""Several copies of a model's weights, as one set of weights.

Methods that train more than one model at once (a global and a personal one,
the components of a mixture, the models of clusters) keep them under the names
`copy/layer/weight`, so that one loop trains, one partition divides and one
aggregator averages them.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tff_pfl import errors
from tff_pfl.models import split_model


@dataclasses.dataclass(frozen=True)
class Copies:
  """Names for several copies of a model's weights.

  Attributes:
    names: What the copies are called, without '/'.
  """

  model: split_model.SplitModel
  names: Sequence[str]

  def join(
    self, parts: Mapping[str, split_model.Weights]
  ) -> collections.OrderedDict:
    """The values of all copies as one, from some values of each by weight."""
    return collections.OrderedDict(
      (f'{name}/{key}', value)
      for name in self.names
      for key, value in parts[name].items()
    )

  def part(
    self, weights: split_model.Weights, name: str
  ) -> collections.OrderedDict:
    """Those weights that are of one copy, under the model's own names."""
    return collections.OrderedDict(
      (key, weights[f'{name}/{key}'])
      for key in self.model.initial_weights
      if f'{name}/{key}' in weights
    )

  def parts(self, weights: split_model.Weights) -> collections.OrderedDict:
    """The weights of each copy."""
    return collections.OrderedDict(
      (name, self.part(weights, name)) for name in self.names
    )

  def layers(self, names: Sequence[str]) -> collections.OrderedDict:
    """All copies of some layers: `copy/layer` to the names of its weights."""
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
    """All copies' body or head, each on a value of its own.

    Args:
      function: The model's body or head.
      weights: Of all copies.
      values: By copy.
      mode: Of all of them.

    Returns:
      The results, and the new statistics by the copies' names.
    """
    results, statistics = [], {}
    for name, value in zip(self.names, values):
      result, new = function(self.part(weights, name), value, mode)
      results.append(result)
      statistics.update((f'{name}/{key}', v) for key, v in new.items())
    return tuple(results), statistics

  @property
  def statistics(self) -> frozenset:
    """The names of weights that have no gradient."""
    return frozenset(
      f'{name}/{key}' for name in self.names for key in self.model.statistics
    )

  @property
  def regularizers(self) -> collections.OrderedDict:
    """The regularizers of all copies' weights, by name."""
    return self.join({name: self.model.regularizers for name in self.names})

  @property
  def trained(self) -> split_model.SplitModel:
    """The model of all copies together, as the training loop takes it."""
    return dataclasses.replace(
      self.model, statistics=self.statistics, regularizers=self.regularizers
    )


def components(model: split_model.SplitModel, number: int) -> Copies:
  """Copies called `component_0` and so on."""
  errors.expect_int('number', number, 1)
  return Copies(model, tuple(f'component_{m}' for m in range(number)))


def drawn_apart(copies: Copies, seed: int) -> collections.OrderedDict:
  """Initial weights of all copies, that differ from copy to copy.

  The first copy has the model's own. The others have the same numbers of every
  kernel and embedding in another, random order, so that what was drawn
  independently is so again, with the same distribution. Recurrent kernels have
  their rows and columns permuted and so stay orthogonal. Vectors (biases,
  scales, moving statistics) stay. Weights that were trained before would be
  destroyed.

  Args:
    copies: At least one.
    seed: Fixes the orders; any integer.

  Returns:
    Arrays by the copies' names.
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
  """From means over the cohort to means over each copy's members.

  Args:
    update: By the copies' names: the mean over the cohort of each client's
      value times its share in the copy.
    shares: float `[copies]`, the mean over the cohort of the clients' shares.
    least_share: A smaller share is nobody's: where noise is added, none is
      exactly 0.

  Returns:
    By the copies' names; 0 for a copy without members.
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
  """The model that mixes its components' predictions.

    p(y | x) = sum_m weight_m p_m(y | x)

  for classifiers; the mean of the outputs for regression. Its weights are those
  of the components and `mixture/log_weights` `[num_components]`, the
  unnormalized logarithms of the mixture's weights.

  Args:
    copies: The components of a model.
    initial_weights: Those of all components, under the copies' names. The
      weights of the mixture are equal at first.
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
  """The outputs of a mixture from those of its components."""
  shares = tf.unstack(tf.nn.softmax(log_weights))
  if model.classifier is not None:
    outputs = map(model.classifier.probabilities, outputs)
  mean = tf.add_n([s * value for s, value in zip(shares, outputs)])
  return mean if model.classifier is None else model.classifier.outputs_of(mean)
