"""Initial weights from files that Keras, NumPy or a run have written.

A file's arrays go to the model's weights by name, or by order if more arrays
fit that way. In this order, each layer's normalization comes right after it, as
in PyTorch. An `.h5` file has Keras's order, and only names that the user gave
to its layers count, because Keras numbers the others as they are made. For a
`.weights.h5` file, which has no order, Keras finds the place of each layer
among the layers of its class.

The last layers keep their weights if the file has none that fit. This is so for
a head with another number of classes, or for all dense layers if the file has
the convolutions only. Other layers must fit.
"""

from __future__ import annotations

import collections
import dataclasses
import os
import re
import warnings
import zipfile
from collections.abc import Mapping
from typing import Union

import h5py
import keras
import numpy as np
from absl import logging

from tff_pfl import errors, fields
from tff_pfl.datasets import files
from tff_pfl.models import keras_graph, split_model
from tff_pfl.system import folders

ENDINGS = ('.keras', '.weights.h5', '.h5', '.npz')
# The place of a weight in its layer, by the end of its name in files of several
# libraries. Shapes do not help, as a normalization's weights have the same one.
_PLACES = {
  name: place
  for place, names in enumerate(
    (
      ('kernel', 'weight', 'gamma', 'scale'),
      ('bias', 'beta'),
      ('mean', 'moving_mean', 'running_mean'),
      ('var', 'variance', 'moving_variance', 'running_var'),
    )
  )
  for name in names
}


def expect_known(path: Union[str, os.PathLike[str]]) -> None:
  """Raises `ValueError` if a file's name does not show its format."""
  errors.expect(
    os.fspath(path).endswith(ENDINGS),
    'initial_weights',
    f'a file whose name ends in {" or ".join(ENDINGS)}',
    path,
  )


@fields.checked_call
def with_weights(
  model: split_model.SplitModel, path: Union[str, os.PathLike[str]]
) -> split_model.SplitModel:
  """Returns the model with initial weights from a file.

  Args:
    model: Made by `from_keras`, or a model of `zoo`.
    path: A file whose name ends in `.keras` (a model), `.weights.h5` (its
      weights), `.h5` (either, in the older form of `keras.applications`), or
      `.npz` (arrays).

  Raises:
    ValueError: If the file is missing or damaged, or does not fit the model
      except for its last layers. The message names the first weight that does
      not fit.
  """
  path = folders.local_path(path, 'path')
  expect_known(path)
  layers = _in_order(model.keras_graph, model.layers)
  own = model.initial_weights
  arrays = _read(path, model)
  if not path.endswith('.weights.h5'):
    names = [name for layer in layers for name in layers[layer]]
    known = set(own)
    if path.endswith('.h5'):
      names = _in_keras_order(model.keras_graph)
      known -= {*model.weight_names(model.keras_graph.numbered)}
    in_order = {
      own_name: arrays[name]
      for own_name, name in zip(names, arrays)
      if len({*map(_place, (own_name, name))} - {None}) < 2
    }
    by_name = {name: arrays[name] for name in arrays if name in known}
    tried = [by_name, in_order] if by_name else [in_order]
    arrays = min(tried, key=lambda candidate: len(_unfit(own, candidate)))
  unfit = _unfit(own, arrays)
  taken = [layer for layer in layers if not set(layers[layer]) & set(unfit)]
  rest = [layer for layer in layers if layer not in taken]
  if not taken or [*taken, *rest] != [*layers]:
    name = next(name for name in layers[rest[0]] if name in unfit)
    place = f'of shape {arrays[name].shape}' if name in arrays else 'missing'
    raise ValueError(
      errors.message(
        'initial_weights',
        'a file of the same network except for its last layers, with '
        f'{name} of shape {own[name].shape}',
        f'{place} in {path}, where of {len(layers)} layers {len(taken)} fit '
        f'({", ".join(taken) or "none"})',
      )
    )
  if rest:
    logging.warning(
      '%s has no weights that fit %s, which start at random.',
      path,
      ', '.join(rest),
    )
  weights = collections.OrderedDict(own)
  for layer in taken:
    for name in layers[layer]:
      weights[name] = np.asarray(arrays[name], own[name].dtype)
      errors.expect(
        np.isfinite(weights[name]).all(),
        'initial_weights',
        'a file of finite numbers',
        f'NaN or infinite ones for {name} in {path}',
      )
  return dataclasses.replace(model, initial_weights=weights)


def _read(path, model):
  """The arrays of a file by name. From `.weights.h5`, the model's weights."""
  with files.reading(path, 'a file of weights that Keras has written'):
    if path.endswith('.npz'):
      return files.read_npz(path)
    if path.endswith('.keras'):
      return _of_keras(path, model.keras_graph.keep_names)
    with h5py.File(path) as file:
      files.expect_all_within(file, path)
      if not path.endswith('.weights.h5'):
        return _of_h5(file)
    return _placed_by_keras(path, model)


def _place(name):
  return _PLACES.get(re.split(r'[/.]', name)[-1])


def _unfit(weights, arrays):
  """Names of weights that are missing or of another shape in a file."""
  return [
    name
    for name, value in weights.items()
    if name not in arrays or arrays[name].shape != value.shape
  ]


def _in_order(graph, layers) -> Mapping[str, tuple[str, ...]]:
  """The weights of layers, each with its normalization right after it."""
  variables, known, _ = keras_graph.name_weights(graph)
  units = keras_graph.find_units(graph, known, variables)
  owner = {name: layer for layer, names in layers.items() for name in names}
  ordered = {}
  for layer, names in layers.items():
    gates = units[layer].gates if layer in units else names
    for each in dict.fromkeys([layer, *map(owner.get, gates)]):
      ordered[each] = layers[each]
  return ordered


def _in_keras_order(graph):
  """The names of weights as in an `.h5` file, '' for integers."""
  variables, _, _ = keras_graph.name_weights(graph)
  names = {id(variable): name for name, variable in variables.items()}
  return [
    names.get(id(variable), '')
    for layer in graph.model.layers
    for variable in (*layer.trainable_weights, *layer.non_trainable_weights)
  ]


def _placed_by_keras(path, model):
  """The model's weights that Keras finds in a file for its network."""
  network = model.keras_graph.model
  variables, _, _ = keras_graph.name_weights(model.keras_graph)
  with keras_graph.restoring_weights(network):
    for variable in variables.values():
      variable.assign(np.full(variable.shape, np.nan))
    with warnings.catch_warnings():
      warnings.simplefilter('ignore')  # About what it cannot load.
      network.load_weights(path, skip_mismatch=True)
    return {
      name: variable.numpy()
      for name, variable in variables.items()
      if not np.isnan(variable).any()
    }


def _of_keras(path, keep_names):
  with zipfile.ZipFile(path) as archive:
    for name in archive.namelist():
      if name.endswith('.h5'):
        with archive.open(name) as member, h5py.File(member) as file:
          files.expect_all_within(file, path)
  model = keras.saving.load_model(path, compile=False)
  graph = keras_graph.Graph(keras_graph.functional_of(model), keep_names)
  variables, layers, _ = keras_graph.name_weights(graph)
  return {
    name: variables[name].numpy()
    for names in _in_order(graph, layers).values()
    for name in names
  }


def _of_h5(file):
  group = file if 'layer_names' in file.attrs else file['model_weights']
  arrays = {}
  # The names are bytes in files of h5py 2, else text.
  for layer in group.attrs['layer_names'].astype(str):
    for name in group[layer].attrs['weight_names'].astype(str):
      key = name.partition(':')[0]
      # Layers of nested models are named without their models.
      key = f'{layer}/{key}' if key in arrays else key
      arrays[key] = group[layer][name][()]
  return arrays
