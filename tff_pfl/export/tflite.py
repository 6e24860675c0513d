"""A client's functions as one TensorFlow Lite file, for phones."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf
from ai_edge_litert import interpreter

from tff_pfl import errors, fields
from tff_pfl.export import builtin_ops, client_module
from tff_pfl.models import split_model
from tff_pfl.system import messages

# Lines that the converter prints when it raises an error.
_CONVERTER_MESSAGE = re.compile(rb'error: |loc\(|<unknown>:')
QUANTIZATIONS = ('none', 'int8', 'float16')


@fields.checked_call
def convert(
  client: client_module.ClientModule,
  quantization: fields.one_of(QUANTIZATIONS) = 'none',
) -> bytes:
  """Makes a TFLite file of a client's functions.

  The signatures:

    predict, evaluate  with the weights that the file keeps in variables
    personalize        changes these and returns `evaluate` on the same examples
    weights            returns the weights by their `plain_name`
    set_weights        takes weights by their `plain_name` and returns them

  LiteRT runs the file with builtin operators only. A quantized file only
  predicts.

  Args:
    client: The functions and the weights, which stay unchanged.
    quantization: 'none', or the type of the weights, 'int8' or 'float16'.
      int8 computes in float32 if there is no integer kernel.

  Returns:
    The content of the file.

  Raises:
    ValueError: If LiteRT cannot run one of the functions.
  """
  functions = _functions(client)
  if quantization != 'none':
    functions = {'predict': functions['predict']}
  with tempfile.TemporaryDirectory() as directory:
    tf.saved_model.save(
      client,
      directory,
      signatures={
        name: builtin_ops.substituted(client_module.traced(*function))
        for name, function in functions.items()
      },
    )
    converter = tf.lite.TFLiteConverter.from_saved_model(directory)
    converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS]
    # Otherwise the converter of TensorFlow 2.21 drops the ReLU of a product of
    # two tensors that are not constant.
    converter.unfold_batchmatmul = True
    if quantization == 'none':
      converter.experimental_enable_resource_variables = True
    else:
      converter.optimizations = [tf.lite.Optimize.DEFAULT]
    if quantization == 'float16':
      converter.target_spec.supported_types = [tf.float16]
    try:
      with messages.held_back(_CONVERTER_MESSAGE):
        content = converter.convert()
      _try_out(content, functions)
      return content
    except Exception as e:  # The converter's error has no public name.
      raise ValueError(
        errors.message(
          'model',
          'one that LiteRT can run (a SavedModel can have any)',
          _reason(str(e)),
        )
      ) from e


def _functions(client):
  """Returns the functions and their argument specs, by name."""

  def personalize(**rows):
    for name, value in client.personalize(**rows).items():
      client.weights[name].assign(value)
    return client.evaluate(**rows)

  def weights():
    return {
      client_module.plain_name(name): variable.read_value()
      for name, variable in client.weights.items()
    }

  def set_weights(**values):
    for name, variable in client.weights.items():
      variable.assign(values[client_module.plain_name(name)])
    # A function without results would not be run.
    return weights()

  return {
    'predict': (client.predict, client.row_specs(with_labels=False)),
    'evaluate': (client.evaluate, client.row_specs(with_labels=True)),
    'personalize': (
      personalize,
      client.row_specs(with_labels=True, with_weights=True),
    ),
    'weights': (weights, {}),
    'set_weights': (set_weights, client.weight_specs()),
  }


def _reason(error):
  """Returns the operations that LiteRT lacks, or the error's first line."""
  for pattern in (r'^TF Select ops: (.*)$', r"'tf\.(\w+)' op "):
    missing = re.search(pattern, error, re.MULTILINE)
    if missing:
      return f'with {missing[1]}'
  return next(filter(None, map(str.strip, error.splitlines())), '')


def _try_out(content, functions):
  """Runs a file's functions of rows once, as some fail only when they run."""
  for name, arguments in _interpreter(content).get_signature_list().items():
    if name not in ('weights', 'set_weights'):
      specs = {key: functions[name][1][key] for key in arguments['inputs']}
      _interpreter(content).get_signature_runner(name)(
        **{
          key: np.zeros([2, *spec.shape[1:]], spec.dtype.as_numpy_dtype)
          for key, spec in specs.items()
        }
      )


def _interpreter(content):
  return interpreter.Interpreter(model_content=content)


def predictor(content: bytes) -> Callable[..., Mapping[str, np.ndarray]]:
  """Returns `predict` of a file's content, run by LiteRT's interpreter."""
  return _interpreter(content).get_signature_runner('predict')


def mean_score(model: split_model.SplitModel, y: Any, outputs: Any) -> float:
  """Returns the mean of a model's primary metric over examples."""
  score = model.metrics.get(model.primary_metric.name, model.loss)
  y, outputs = tf.constant(y), tf.constant(outputs)
  return float(model.mean(score(y, outputs), y, outputs))
