"""A client's model as a Keras file."""

from __future__ import annotations

import os
from typing import Union

from tff_pfl import errors
from tff_pfl.models import keras_graph, split_model


def check(model: split_model.SplitModel) -> None:
  """Raises `ValueError` if a model is more than the Keras model it is made of.

  Models that a method makes of several (FedEM's mixture, a head for each
  domain) or changes (FedDAR's projection) have no Keras model.
  """
  names = []
  if model.keras_graph is not None:
    names = list(keras_graph.name_weights(model.keras_graph)[0])
  errors.expect(
    names == list(model.initial_weights),
    'model',
    'a Keras model with the weights that it was made with, for a Keras file '
    '(a SavedModel or a TFLite file can have any)',
    f'{model.name!r}, which a method made of one',
  )


def save(
  path: Union[str, os.PathLike],
  model: split_model.SplitModel,
  weights: split_model.Weights,
) -> None:
  """Writes the Keras model that a `SplitModel` was made of, with some weights.

  The file's model has the outputs of `model.forward` (logits, for a loss of
  logits). They are the same bit for bit on a CPU, but up to rounding after
  batch normalization, which Keras computes by another kernel.

  Args:
    path: Ends in `.keras`.
    model: Made by `keras_bridge.from_keras`, or a network of `zoo`.
    weights: All of the model's, such as a client's personal ones. The Keras
      model has its own again afterwards.

  Raises:
    ValueError: If `check` does.
  """
  check(model)
  network = model.keras_graph.model
  variables, _, _ = keras_graph.name_weights(model.keras_graph)
  before = network.get_weights()
  try:
    for name, variable in variables.items():
      variable.assign(weights[name])
    network.save(path)
  finally:
    network.set_weights(before)
