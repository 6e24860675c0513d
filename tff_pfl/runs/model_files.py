"""Files of a run's models for Keras, phones and TensorFlow Serving.

The program `export` and `Run.export` write them.
"""

from __future__ import annotations

import os
import pathlib
from typing import TYPE_CHECKING, Optional

import numpy as np
import tensorflow as tf

from tff_pfl import errors
from tff_pfl.core import personalization as personalization_lib
from tff_pfl.export import client_module, saved_model, tflite
from tff_pfl.models import keras_bridge, split_model
from tff_pfl.runs import summary as summary_lib
from tff_pfl.runtime import base as runtime_base
from tff_pfl.system import folders

if TYPE_CHECKING:
  # It imports this module.
  from tff_pfl.runs import run as run_lib

# From the format to the file's ending. A folder has none.
ENDINGS = {'keras': '.keras', 'saved_model': '', 'tflite': '.tflite'}
CLASSES_NAME = 'classes.json'


def export(
  run: run_lib.Run,
  client: Optional[str],
  path: str,
  personalization: Optional[personalization_lib.Personalization],
  quantization: str,
  runtime: runtime_base.Runtime,
) -> str:
  """Writes a client's model, see `Run.export`."""
  path = folders.output_path(path, 'path')
  ending = os.path.splitext(path)[1]
  errors.expect(
    ending in ENDINGS.values(),
    'path',
    'a .keras or .tflite file, or a folder, with no ending',
    path,
  )
  errors.expect(
    quantization == 'none' or ending == ENDINGS['tflite'],
    'quantization',
    f"'none' for {path}, which is no .tflite file",
    quantization,
  )
  os.makedirs(os.path.dirname(path) or '.', exist_ok=True)
  texts = encoding_files(run, path)
  written = path
  if ending == ENDINGS['keras']:
    weights = _weights(run, client, runtime)
    keras_bridge.save_keras(path, run.model, weights)
  else:
    functions = client_functions(run, client, personalization, runtime)
    if ending == ENDINGS['tflite']:
      content = tflite.convert(functions, quantization)
      with folders.atomic_file(path, 'wb') as file:
        file.write(content)
    else:
      num_rounds = int(run.server_state(runtime=runtime).round_number)
      written = saved_model.save(path, functions, num_rounds)
  for name, text in texts.items():
    with folders.atomic_file(name) as file:
      file.write(text)
  return written


def _weights(run, client, runtime) -> split_model.Weights:
  if client is None:
    return run.new_client_weights(runtime)
  return run.personal_weights(client, runtime)


def client_functions(
  run: run_lib.Run,
  client: Optional[str],
  personalization: Optional[personalization_lib.Personalization],
  runtime: runtime_base.Runtime,
) -> client_module.ClientModule:
  """The functions of a client's model, with the arguments of `export`."""
  process = run.build_process(personalization)
  errors.expect(
    personalization is None or process.fits_new_clients,
    'personalization.fine_tune',
    f'other than none for {process.name}, which has no local weights to fit',
    'none',
  )
  state = run.server_state(process, runtime)
  if 'noise_multiplier' in process.description['aggregator']:
    # The run's seed would let readers subtract the noise from the weights.
    state = state._replace(
      seed=np.int64(0),
      aggregator=tf.nest.map_structure(np.zeros_like, state.aggregator),
    )
  return client_module.new_client_module(
    process,
    state,
    # The index of the first new client of `personalize`.
    run.data.num_clients,
    weights=_weights(run, client, runtime),
    runtime=runtime,
  )


def encoding_files(run: run_lib.Run, path: str) -> dict[str, str]:
  """The texts to store with a model, by path, for a run on a table.

  They encode a table's rows as inputs, and name its classes. Other runs have no
  such texts.
  """
  if run.data.encoding is None:
    return {}
  folder = os.path.dirname(path) if os.path.splitext(path)[1] else path
  encoding = run.encoding
  name = os.path.basename(run.encoding_path)
  # As the run has stored it.
  text = pathlib.Path(run.encoding_path).read_text('utf-8')
  texts = {os.path.join(folder, name): text}
  if encoding.classes:
    text = summary_lib.json_text(list(encoding.classes), indent=2)
    texts[os.path.join(folder, CLASSES_NAME)] = f'{text}\n'
  return texts
