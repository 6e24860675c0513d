"""Measures of a model's learned representation.

* `principal_angle_distance`: distance between two subspaces.
* `linear_cka`, `layer_cka`: similarity of features, layer by layer.
* `class_cosine_similarity`: similarity of features within and between classes.

References:
  S. Kornblith, M. Norouzi, H. Lee, G. Hinton. Similarity of Neural Network
    Representations Revisited. ICML 2019.
  L. Collins, H. Hassani, A. Mokhtari, S. Shakkottai. FedAvg with Fine Tuning:
    Local Updates Lead to Representation Learning. NeurIPS 2022. Definition 1
    and figures 2 to 4.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from tff_pfl import errors
from tff_pfl.core import example_tensors
from tff_pfl.models import split_model

# Columns of features that are converted to float64 at once.
_COLUMNS_PER_BLOCK = 4096


def principal_angle_distance(a: Any, b: Any) -> float:
  """The sine of the largest principal angle between two column spaces.

  It is the largest singular value of `b - a a^T b` for orthonormal bases `a`
  and `b`, the norm of the part of `b` outside the space of `a`. This way, even
  angles far below the square root of the machine precision are accurate.

  Args:
    a: Any basis of the first space, floats `[d, k1]` of full column rank.
    b: Any basis of the second space, floats `[d, k2]` of full column rank.

  Returns:
    A number in [0, 1]: 0 if the second space lies in the first, 1 if some
    direction of the second is orthogonal to all of the first (always true for
    `k2 > k1`). It is symmetric for `k1 == k2`.

  Raises:
    ValueError: If a basis is not finite or rank deficient.
  """
  a, b = _orthonormal(a, 'a'), _orthonormal(b, 'b')
  residual = b - a @ (a.T @ b)
  # Rounding may leave a trace of `a` in it.
  residual -= a @ (a.T @ residual)
  return float(min(np.linalg.norm(residual, 2), 1.0))


def linear_cka(a: Any, b: Any) -> float:
  """The linear centered kernel alignment of two sets of features.

  It is `||a^T b||^2 / (||a^T a|| ||b^T b||)` for centered columns, in Frobenius
  norms (Kornblith et al. 2019, section 3): how similar the examples' pairwise
  similarities are. Rotating or scaling the features does not change it.

  It is computed from the examples' `[n, n]` Gram matrices if there are fewer
  examples than features, else from the features' covariances.

  Args:
    a: Floats `[n, p]`, features of n examples.
    b: Floats `[n, q]`, other features of the same examples in the same order.

  Returns:
    A number in [0, 1], 1 for features that are the same up to rotation and
    scale. NaN if `a` or `b` is the same for all examples.

  Raises:
    ValueError: If the features are not finite.
  """
  a, b = _finite(a, 'a'), _finite(b, 'b')
  if len(a) < max(a.shape[1], b.shape[1]):
    grams = _gram(a), _gram(b)
    similarity = np.vdot(*grams)
    norms = [np.linalg.norm(gram) for gram in grams]
  else:
    a, b = _centered(a), _centered(b)
    similarity = np.linalg.norm(a.T @ b) ** 2
    norms = [np.linalg.norm(features.T @ features) for features in (a, b)]
  if not all(norms):
    return float('nan')
  return float(np.clip(similarity / norms[0] / norms[1], 0, 1))


def class_cosine_similarity(
  features: Any, labels: Any, num_classes: int
) -> np.ndarray:
  """The mean cosine similarity between examples of each pair of classes.

  The mean over pairs of examples is the inner product of the classes' mean unit
  vectors, from which pairs of an example with itself are removed.

  Args:
    features: Floats `[n, p]`, features of n examples. An example with zero
      features has similarity 0 to all others.
    labels: Integers `[n]` in `[0, num_classes)`.
    num_classes: Number of classes, at least 1.

  Returns:
    Symmetric float64 `[num_classes, num_classes]` in [-1, 1]. The diagonal is
    over pairs of distinct examples. NaN for a class without examples, and on
    the diagonal for a class with a single example.

  Raises:
    ValueError: If features are not finite.
  """
  features = _finite(features, 'features')
  labels = np.asarray(labels)
  means = np.full([num_classes, features.shape[1]], np.nan)
  self_similarity = np.full([num_classes], np.nan)
  counts = np.bincount(labels, minlength=num_classes)
  for label in np.flatnonzero(counts):
    members = features[labels == label].astype(np.float64)
    lengths = np.linalg.norm(members, axis=1, keepdims=True)
    members /= np.where(lengths > 0, lengths, 1)
    means[label] = members.mean(axis=0)
    self_similarity[label] = np.count_nonzero(lengths) / counts[label]
  similarity = means @ means.T
  pairs = np.where(counts > 1, counts - 1.0, np.nan)
  np.fill_diagonal(
    similarity, (counts * np.diag(similarity) - self_similarity) / pairs
  )
  return np.clip(similarity, -1, 1)


def layer_features(
  model: split_model.SplitModel,
  weights: split_model.Weights,
  x: Any,
  layer: str,
) -> np.ndarray:
  """The outputs of one of a model's layers, in inference mode.

  The outputs of all examples are held in memory. The forward pass takes a
  bounded number of examples at a time.

  Args:
    model: A model with `layer_outputs`, such as a Keras model.
    weights: All weights.
    x: Inputs `[n, ...]` as the model takes them, n at least 1.
    layer: Name of a layer with weights.

  Returns:
    `[n, p]`, with an example's outputs in one row, after the layer's own
    activation.
  """

  def outputs_of(weights, x):
    return model.layer_outputs(weights, x)[layer]

  return _features(model, outputs_of, weights, tuple(model.layers), x)


def layer_cka(
  model: split_model.SplitModel,
  weights_a: split_model.Weights,
  weights_b: split_model.Weights,
  x: Any,
) -> dict[str, float]:
  """The similarity of each layer's outputs under two sets of weights.

  It computes one layer after another, so that the memory is a few times the
  outputs of the widest layer, and not the outputs of all layers.

  Args:
    model: A model with `layer_outputs`, such as a Keras model.
    weights_a: All weights of the model, for example before fine-tuning.
    weights_b: All weights of the model, for example after fine-tuning.
    x: Inputs `[n, ...]` as the model takes them, n at least 2.

  Returns:
    The `linear_cka` of the outputs of each layer with weights, in the model's
    order. NaN for a layer with the same output for all examples.

  Raises:
    ValueError: If an output is not finite.
  """
  similarities = {}
  for layer in model.layers:
    a, b = (
      layer_features(model, weights, x, layer)
      for weights in (weights_a, weights_b)
    )
    similarities[layer] = linear_cka(a, b)
  return similarities


def body_features(
  model: split_model.SplitModel, weights: split_model.Weights, x: Any
) -> np.ndarray:
  """The features that the head reads, one tensor, in inference mode.

  Args:
    weights: At least the weights of the body.
    x: Inputs `[n, ...]` as the model takes them, n at least 1.

  Returns:
    `[n, p]`, with an example's features in one row.
  """

  def outputs_of(weights, x):
    return model.body(weights, x, split_model.INFERENCE)[0]

  return _features(model, outputs_of, weights, model.body_layers, x)


def _features(model, outputs_of, weights, layers, x) -> np.ndarray:
  """Outputs of all examples, `[n, p]`, computed for some at a time.

  Args:
    outputs_of: `(weights, x) -> outputs` `[rows, ...]`, traced once.
    weights: At least the weights of the layers.
    layers: Names of the layers whose weights `outputs_of` takes.
    x: Inputs `[n, ...]`.
  """
  weights = split_model.check_weights(model, weights, layers)
  spec = model.element_spec['x']
  x = np.asarray(x, spec.dtype.as_numpy_dtype)

  @tf.function(
    autograph=False,
    input_signature=[tf.TensorSpec([None, *spec.shape], spec.dtype)],
  )
  def rows_of(x):
    outputs = outputs_of(weights, x)
    return tf.reshape(outputs, [tf.shape(outputs)[0], -1])

  size = example_tensors.CHUNK_SIZE
  return np.concatenate(
    [rows_of(x[i : i + size]) for i in range(0, len(x), size)]
  )


def _finite(value: Any, name: str) -> np.ndarray:
  """Returns an array of finite floats without loss of precision."""
  value = np.asarray(value)
  if not np.issubdtype(value.dtype, np.floating):
    value = value.astype(np.float64)
  errors.expect(
    np.isfinite(value).all(), name, 'finite', 'a number that is not'
  )
  return value


def _centered(features: np.ndarray) -> np.ndarray:
  """Returns float64 columns of mean 0."""
  features = features.astype(np.float64)
  # Makes constant columns exactly zero.
  features -= features[0].copy()
  features -= features.mean(axis=0)
  return features


def _gram(features: np.ndarray) -> np.ndarray:
  """Returns the float64 inner products `[n, n]` of centered features."""
  gram = np.zeros([len(features)] * 2)
  for start in range(0, features.shape[1], _COLUMNS_PER_BLOCK):
    columns = _centered(features[:, start : start + _COLUMNS_PER_BLOCK])
    gram += columns @ columns.T
  return gram


def _orthonormal(basis: Any, name: str) -> np.ndarray:
  """Returns an orthonormal basis of the column space."""
  basis = _finite(basis, name).astype(np.float64)
  # Columns of very different lengths do not make a basis deficient.
  lengths = np.linalg.norm(basis, axis=0)
  scaled = basis / np.where(lengths > 0, lengths, 1)
  rank = int(np.linalg.matrix_rank(scaled))
  errors.expect(
    rank == basis.shape[1],
    name,
    f'of full column rank {basis.shape[1]}',
    f'rank {rank}',
  )
  return np.linalg.qr(scaled)[0]
