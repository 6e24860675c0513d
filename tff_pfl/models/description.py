"""Descriptions of custom models, by which a run recognizes its model.

A description has the model's shapes, a checksum of its initial weights, the
known configurations of its layers and loss, and the results of its functions
for some inputs. It is small and of JSON types. If the same code builds the
model again, in any process, the description is the same.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import hashlib
import inspect
import json
import re
import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from tff_pfl.models import domains as domains_lib
from tff_pfl.models import keras_graph, keras_losses, split_model

_VALUES = 'values'
# One model's values differ by less between machines, relative to the largest.
_TOLERANCE = 0.01
# Entries of a Keras configuration that do not change the object's function
# (layers draw from a run's seed), or that the initial weights already show.
_LEFT_OUT = re.compile(
  'name|module|registered_name|build_config|seed|.*initializer'
)
_DEFAULTS = {'trainable': True, 'dtype': 'float32'}
# Longer lists, such as vocabularies, are stored as checksums.
_MAX_CHARACTERS = 200


def describe(model: split_model.SplitModel) -> dict[str, Any]:
  """Describes a model in JSON types, as the module's docstring explains."""
  description = {
    'name': model.name,
    'shapes': {
      name: list(np.shape(value))
      for name, value in model.initial_weights.items()
    },
    'initial_weights_sha256': weights_checksum(model),
    'head_layers': _plain(model.head_layers),
    'statistics': _plain(model.statistics),
    'examples': tf.nest.map_structure(
      lambda spec: f'{spec.dtype.name}{spec.shape}', dict(model.element_spec)
    ),
    'metrics': [*model.metrics, *model.client_metrics],
    'primary_metric': list(model.primary_metric),
    **_plain(model.made_with),
  }
  if model.domains is not None:
    description['domains'] = list(model.domains.names)
    description['reweight_domains'] = model.domains.reweighted
  if model.keras_graph is not None:
    description['layers'] = _layers(model.keras_graph)
  return {**description, _VALUES: _values(model)}


def weights_checksum(model: split_model.SplitModel) -> str:
  """The checksum of a model's initial weights, 16 hexadecimal digits."""
  return _checksum(
    *(np.asarray(value).tobytes() for value in model.initial_weights.values())
  )


def _checksum(*parts):
  checksum = hashlib.sha256()
  for part in parts:
    checksum.update(part)
  return checksum.hexdigest()[:16]


def is_value(name: str) -> bool:
  """True for settings that are results of functions, by their joined names."""
  return name.startswith(f'model.{_VALUES}.')


def is_same(name: str, old: Any, new: Any) -> bool:
  """True if the old and new values of a setting show no difference."""
  if is_value(name) and old and new and len(old) == len(new):
    return np.allclose(new, old, 0, _TOLERANCE * np.max(np.abs(old)))
  # Compared as texts, because NaN is not equal to itself.
  return json.dumps(old) == json.dumps(new)


def _values(model):
  """Results of a model's functions for some inputs and weights, by name."""
  rng = np.random.default_rng(0)
  # Not the initial weights, some of which may be 0.
  weights = {
    name: value + rng.uniform(0, 0.1, np.shape(value)).astype(value.dtype)
    for name, value in model.initial_weights.items()
  }
  num_classes = 2 if model.classifier is None else model.classifier.num_classes
  with tf.device('CPU'):
    examples = keras_losses.some_examples(model, rng, num_classes)
    x, y = domains_lib.join(examples)
    outputs, _ = model.forward(weights, x)
    mode = split_model.Mode(True, tf.constant([1, 2]))
    regularization = sum(
      of(weights[name]) for name, of in model.regularizers.items()
    )
    values = {
      'outputs': _numbers(outputs),
      'outputs_in_training': _numbers(model.forward(weights, x, mode)[0]),
      'predictions': _numbers(model.predictions(outputs)),
      'regularization': _numbers(regularization),
    }
    for name, function in {
      'loss': model.loss,
      'training_loss': model.in_training.loss,
      **model.metrics,
    }.items():
      # The user's code may refuse random labels.
      with contextlib.suppress(Exception):
        values[name] = _numbers(function(y, outputs))
  return values


def _numbers(tensor):
  """Summarizes a tensor by two weighted means, or a single number by one."""
  values = np.nan_to_num(np.asarray(tensor, np.float64), posinf=0, neginf=0)
  values = values.reshape([min(2, values.size), -1])
  factors = np.random.default_rng(0).uniform(0.5, 1.5, values.shape[1])
  return [float(f'{mean:.4g}') for mean in values @ factors / len(factors)]


def _layers(graph):
  """Describes each call of a layer or operation by its name."""
  layers = {}
  labels = {key: f'input {n}' for n, key in enumerate(graph.inputs)}
  before = labels[graph.inputs[0]]
  numbers = collections.Counter()

  def new_label(name):
    numbers[name] += 1
    return name if numbers[name] == 1 else f'{name}@{numbers[name]}'

  for node in graph.nodes:
    label = new_label(node.name)
    layers[label] = called = {}
    if numbers[node.name] == 1:
      called.update(_config(node.operation))
      if node.is_layer:
        *within, _ = keras_graph.owners(node.name, node.operation)
        for name, layer in within:
          # Without the numbers that Keras counts across the process.
          name = new_label(re.sub(r'_\d+(?=/|$)', '', name))
          layers[name] = _config(layer)
    tensors = {of: f'<{labels[key]}>' for of, key in node.sources.items()}
    args, kwargs = node.arguments.convert(
      lambda value, known=tensors: known.get(id(value), value)
    )
    kwargs = _plain({**kwargs, 'training': node.training})
    # Most layers are called on the previous layer's output alone.
    if args != (f'<{before}>',) or kwargs:
      called['call'] = [_plain(args), kwargs]
    for n, key in enumerate(node.results):
      labels[key] = label if len(node.results) == 1 else f'{label}:{n}'
    before = labels[node.results[0]]
  return layers


def _config(of):
  """The configuration of a Keras object, without Keras's defaults."""
  kind = type(of)
  defaults = dict(_DEFAULTS)
  if kind.__module__.startswith('keras.'):
    defaults.update(
      (name, _plain(parameter.default))
      for name, parameter in inspect.signature(kind.__init__).parameters.items()
      if parameter.default not in (None, parameter.empty)
    )
  try:
    with warnings.catch_warnings():
      warnings.simplefilter('ignore')
      config = _plain(of.get_config())
  except Exception:
    # The user's code may raise anything. `_values` still identifies the model.
    config = {}
  return {
    'class': kind.__name__,
    **{
      name: value
      for name, value in config.items()
      if name not in defaults or defaults[name] != value
    },
  }


def _plain(value):
  """Returns what identifies a value, in JSON types."""
  if value is None or isinstance(value, (bool, int, float, str)):
    return value
  if isinstance(value, Mapping):
    return _plain_mapping(value)
  if hasattr(value, 'numpy'):
    value = value.numpy()
  if isinstance(value, (np.ndarray, np.generic)):
    return _plain(value.tolist())
  if isinstance(value, (set, frozenset)):
    value = sorted(value, key=repr)
  if isinstance(value, (list, tuple)):
    values = [_plain(item) for item in value]
    text = json.dumps(values)
    if len(text) <= _MAX_CHARACTERS:
      return values
    return {'length': len(values), 'sha256': _checksum(text.encode())}
  if hasattr(value, 'get_config'):
    return _config(value)
  if isinstance(value, functools.partial):
    return [_plain(value.func), _plain(value.args), _plain(value.keywords)]
  return getattr(value, '__name__', type(value).__name__)


def _plain_mapping(value):
  """Applies `_plain` to a mapping, which Keras may have made from an object."""
  kind, config = value.get('class_name'), value.get('config')
  if kind is not None and kind.endswith('DTypePolicy'):
    return config['name']
  is_dump = list(value) == ['value'] and isinstance(value['value'], tuple)
  if kind == '__lambda__' or is_dump:
    # Its bytecode depends on the version of Python.
    return '<lambda>'
  if kind is not None and isinstance(config, str):
    return config
  if kind is not None and isinstance(config, Mapping):
    value = {'class': kind, **config}
  return {
    str(key): _plain(item)
    for key, item in value.items()
    if item is not None and not _LEFT_OUT.fullmatch(str(key))
  }
