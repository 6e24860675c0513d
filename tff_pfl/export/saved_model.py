"""A client's functions as a SavedModel, for TensorFlow Serving."""

from __future__ import annotations

import os
import shutil
from typing import Union

import tensorflow as tf

from tff_pfl import errors, fields
from tff_pfl.export import client_module


@fields.checked_call
def save(
  directory: Union[str, os.PathLike],
  client: client_module.ClientModule,
  version: fields.CountOrZero,
) -> str:
  """Writes a SavedModel with the signatures of a client's functions.

    predict (also serving_default), evaluate   with the client's weights
    personalize                                examples -> weights
    predict_with_weights                       weights, rows -> predictions

  None of them changes any state, so one server can serve many clients:
  `predict_with_weights` takes the results of `personalize`.

  Args:
    directory: TensorFlow Serving's base path of the model.
    client: The functions and the weights.
    version: Non-negative version. TensorFlow Serving takes the largest.

  Returns:
    The new folder, `directory/version`.
  """
  rows = client.row_specs(with_labels=False)
  examples = client.row_specs(with_labels=True)

  def personalize(**rows):
    weights = client.personalize(**rows)
    return {client_module.plain_name(n): v for n, v in weights.items()}

  predict = client_module.traced(client.predict, rows)
  signatures = {
    tf.saved_model.DEFAULT_SERVING_SIGNATURE_DEF_KEY: predict,
    'predict': predict,
    'predict_with_weights': client_module.traced(
      client.predict_with_weights, {**client.weight_specs(), **rows}
    ),
    'evaluate': client_module.traced(client.evaluate, examples),
    'personalize': client_module.traced(
      personalize, client.row_specs(with_labels=True, with_weights=True)
    ),
  }
  path = os.path.join(directory, str(version))
  # TensorFlow Serving ignores them.
  new, old = (
    os.path.join(directory, f'.{version}.{n}') for n in ('new', 'old')
  )
  shutil.rmtree(new, ignore_errors=True)
  try:
    tf.saved_model.save(client, new, signatures=signatures)
    if os.path.exists(path):
      shutil.rmtree(old, ignore_errors=True)
      os.replace(path, old)
    os.replace(new, path)
  except (OSError, tf.errors.OpError) as error:
    raise errors.RunError(f'Cannot write {path}: {error}') from error
  finally:
    if not os.path.exists(path) and os.path.exists(old):
      os.replace(old, path)
    for folder in (new, old):
      shutil.rmtree(folder, ignore_errors=True)
  return path
