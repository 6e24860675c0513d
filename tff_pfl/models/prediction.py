"""Predictions of models for examples in arrays."""

from __future__ import annotations

import collections
from collections.abc import Callable, Mapping
from typing import Any, Optional

import numpy as np
import pandas as pd
import tensorflow as tf

from tff_pfl import errors
from tff_pfl.datasets import array_checks, frames
from tff_pfl.models import domains, split_model

_CHUNK = 1024
# The most numbers that the inputs of a table's rows may have at a time.
_MAX_INPUTS = 2**26


def predict(
  model: split_model.SplitModel,
  weights: Mapping[str, Any],
  x: np.ndarray,
  domain: Optional[np.ndarray] = None,
  forward: Optional[Callable[..., tf.Tensor]] = None,
) -> np.ndarray:
  """Predicts in batches.

  Args:
    model: The model.
    weights: All its weights, by name.
    x: Inputs `[n, ...]`, or a dict of arrays for several inputs.
    domain: The examples' domains, integers `[n]` from 0 on, or None for models
      without domains.
    forward: `compiled(model)`, to compile only once for many calls.

  Returns:
    Class probabilities `[n, ..., num_classes]` for classifiers, else the
    outputs.
  """
  forward = forward or compiled(model)
  x = array_checks.check_inputs(x, 'x')
  x = _as_inputs('x', model.element_spec['x'], x)
  num_examples = len(tf.nest.flatten(x)[0])
  element = {'x': x, 'y': ()}
  if model.domains is not None:
    element['domain'] = _check_domain(model, domain, num_examples)
  inputs, _ = domains.join(element)
  weights = {name: tf.constant(value) for name, value in weights.items()}

  def chunk_from(start):
    return tf.nest.map_structure(
      lambda values: values[start : start + _CHUNK], inputs
    )

  chunks = [
    forward(weights, chunk_from(start))
    # Runs even without examples, so that the outputs have all dimensions.
    for start in range(0, max(1, num_examples), _CHUNK)
  ]
  outputs = np.concatenate(chunks)
  if model.classifier is None:
    return outputs
  return np.asarray(model.classifier.probabilities(outputs))


def predict_rows(
  model: split_model.SplitModel,
  encoding: frames.FrameEncoding,
  frame: pd.DataFrame,
  owners: np.ndarray,
  weights_of: Callable[[Any], Mapping[str, Any]],
  forward: Optional[Callable[..., tf.Tensor]] = None,
) -> np.ndarray:
  """Calls `predict` on the rows of a frame, each with its owner's weights.

  Args:
    encoding: The encoding of rows as examples.
    frame: Rows with the input columns.
    owners: The owner of each row, a client or another value, `[rows]`.
    weights_of: Maps an owner to all weights of its model.
  """
  forward = forward or compiled(model)
  rows, domain = encoding.rows(frame), encoding.domain_ids(frame)
  step = max(1, _MAX_INPUTS // len(encoding.input_names))

  def outputs_of(places, weights):
    inputs = encoding.inputs(rows.select(places))
    domains_of = None if domain is None else domain[places]
    return predict(model, weights, inputs, domains_of, forward)

  if not len(frame):  # The result still needs the right shape.
    return outputs_of(slice(0), model.initial_weights)
  parts, outputs = [], []
  for owner, places in pd.Series(owners).groupby(owners).indices.items():
    weights = weights_of(owner)
    for part in np.split(places, range(step, len(places), step)):
      parts.append(part)
      outputs.append(outputs_of(part, weights))
  return np.concatenate(outputs)[np.argsort(np.concatenate(parts))]


def compiled(model: split_model.SplitModel) -> Callable[..., tf.Tensor]:
  """Compiles a model as `(weights, inputs) -> outputs`, for `predict`."""
  return tf.function(
    lambda weights, inputs: model.forward(weights, inputs)[0],
    autograph=False,
    reduce_retracing=True,
  )


def _as_inputs(name, spec, x):
  """Checks inputs against a spec and casts them to it."""
  if isinstance(spec, Mapping):
    errors.expect(
      isinstance(x, Mapping) and set(x) == set(spec),
      name,
      f'a dict of the inputs {", ".join(spec)}',
      list(x) if isinstance(x, Mapping) else type(x).__name__,
    )
    return collections.OrderedDict(
      (key, _as_inputs(f'{name}[{key!r}]', spec[key], x[key])) for key in spec
    )
  errors.expect(
    spec.shape.is_compatible_with(x.shape[1:]),
    name,
    f'examples of shape {tuple(spec.shape)}',
    f'shape {x.shape[1:]}',
  )
  kinds, expected = 'iu', f'integers, as the model takes {spec.dtype.name}'
  if spec.dtype.is_floating:
    kinds, expected = 'f', 'floats, scaled like the training data'
  elif spec.dtype.is_bool:
    kinds, expected = 'b', 'bool'
  errors.expect(x.dtype.kind in kinds, name, expected, x.dtype.name)
  if x.dtype.kind in 'iu' and x.size:
    errors.expect(
      spec.dtype.min <= x.min() and x.max() <= spec.dtype.max,
      name,
      f'in the range of {spec.dtype.name}',
      f'{x.min()} to {x.max()}',
    )
  return tf.cast(x, spec.dtype)


def _check_domain(model, domain, num_examples):
  errors.expect(
    domain is not None and np.size(domain) == num_examples,
    'domain',
    f'given for each of {num_examples} examples',
    domain,
  )
  number = model.domains.number
  return tf.constant(array_checks.check_domain_ids(domain, 'domain', number))
