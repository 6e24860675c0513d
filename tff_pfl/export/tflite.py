"""A client's functions as one TensorFlow Lite file, for phones."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from tff_pfl import errors
from tff_pfl.export import client_module
from tff_pfl.models import split_model

QUANTIZATIONS = ('none', 'int8', 'float16')


def convert(
  client: client_module.ClientModule, quantization: str = 'none'
) -> bytes:
  """Makes a TFLite file of a client's functions.

  Its signatures are `predict` and `evaluate`, with the weights that the file
  keeps in variables; `personalize`, which changes these and returns what
  `evaluate` then says of the same examples; `save` and `restore`, which write
  and read them: `checkpoint_path` (a string) is the file. Whoever runs it needs
  TensorFlow Lite with the select TensorFlow operators.

  A quantized file only predicts, and needs no such operators where the model
  does not.

  Args:
    client: The functions and the weights, which stay as they are.
    quantization: 'none', 'int8' (weights; computed in float32 where there is no
      integer kernel) or 'float16' (weights).

  Raises:
    ValueError: If TensorFlow Lite cannot have one of them.
  """
  errors.expect_one_of('quantization', quantization, QUANTIZATIONS)
  rows = client.row_specs(with_labels=False)
  examples = client.row_specs(with_labels=True)
  path = {'checkpoint_path': tf.TensorSpec([], tf.string)}
  functions = {'predict': (client.predict, rows)}
  if quantization == 'none':
    functions.update(
      evaluate=(client.evaluate, examples),
      personalize=(_personalize(client), examples),
      save=(_save(client), path),
      restore=(_restore(client), path),
    )
  with tempfile.TemporaryDirectory() as directory:
    tf.saved_model.save(
      client,
      directory,
      signatures={
        name: client_module.traced(*function)
        for name, function in functions.items()
      },
    )
    converter = tf.lite.TFLiteConverter.from_saved_model(directory)
    converter.target_spec.supported_ops = [
      tf.lite.OpsSet.TFLITE_BUILTINS,
      tf.lite.OpsSet.SELECT_TF_OPS,
    ]
    if quantization == 'none':
      converter.experimental_enable_resource_variables = True
    else:
      converter.optimizations = [tf.lite.Optimize.DEFAULT]
    if quantization == 'float16':
      converter.target_spec.supported_types = [tf.float16]
    try:
      content = converter.convert()
      _try_out(content, {**rows, **examples})
      return content
    except Exception as e:  # The converter's error has no public name.
      reason = next(filter(None, map(str.strip, str(e).splitlines())), '')
      raise ValueError(
        errors.message(
          'model',
          'one that TensorFlow Lite has (GroupNormalization it has not; a '
          'SavedModel can have any)',
          reason,
        )
      ) from e


def _try_out(content, specs):
  """Runs a file's functions of rows once: some fail that were converted."""
  for name, arguments in _interpreter(content).get_signature_list().items():
    if name not in ('save', 'restore'):
      runner = _interpreter(content).get_signature_runner(name)
      runner(
        **{
          key: np.zeros(
            [2, *specs[key].shape[1:]], specs[key].dtype.as_numpy_dtype
          )
          for key in arguments['inputs']
        }
      )


def _interpreter(content):
  return tf.lite.Interpreter(model_content=content)


def predictor(content: bytes) -> Callable[..., Mapping[str, np.ndarray]]:
  """`predict` of a file's content, by TensorFlow's own interpreter."""
  return _interpreter(content).get_signature_runner('predict')


def mean_score(model: split_model.SplitModel, y: Any, outputs: Any) -> float:
  """The mean of a model's primary metric over examples."""
  score = model.metrics.get(model.primary_metric.name, model.loss)
  return float(tf.reduce_mean(score(tf.constant(y), tf.constant(outputs))))


def _personalize(client):
  def personalize(**rows):
    for name, value in client.personalize(**rows).items():
      client.weights[name].assign(value)
    return client.evaluate(**rows)

  return personalize


def _save(client):
  def save(checkpoint_path):
    tf.raw_ops.Save(
      filename=checkpoint_path,
      tensor_names=list(client.weights),
      data=[value.read_value() for value in client.weights.values()],
    )
    return {'checkpoint_path': checkpoint_path}

  return save


def _restore(client):
  def restore(checkpoint_path):
    for name, variable in client.weights.items():
      variable.assign(
        tf.raw_ops.Restore(
          file_pattern=checkpoint_path, tensor_name=name, dt=variable.dtype
        )
      )
    return {'checkpoint_path': checkpoint_path}

  return restore
