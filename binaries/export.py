r"""Writes a finished run's model, or its method, in formats for production.

    python -m binaries.export --run_dir=runs/digits --format=tflite \
      --client=client_3 --output=client_3.tflite

--format=keras: the Keras model, whose outputs are those of the run's model
(scores, of which `predict` shows the probabilities). --output ends in .keras.

--format=tflite: one file for phones, with the signatures `predict`, `evaluate`,
`personalize` (fits a new client's model to its examples), `weights` (returns
them) and `set_weights`; LiteRT runs it with its builtin operators alone.
With --quantize it only predicts, and the loss of accuracy on the clients' test
examples is printed. --output ends in .tflite.

--format=saved_model: a folder for TensorFlow Serving, with the signatures
`predict`, `evaluate`, `personalize` and `predict_with_weights`; its version is
the run's number of rounds.

--format=tff: a folder with the method's serialized TFF computations, the
server's state and a manifest, for methods whose clients keep no state.

The model is the personal one of --client, by default that of a new client that
has no data. `personalize` does what the program of that name does: methods with
local weights fit those, others fine-tune as the run did or, by default, all
weights, with the `--fine_tune` flags in both cases.

Of a run on a table its encoding.json, and the names of classes in the order of
the outputs, classes.json, are written beside the model.
"""

import dataclasses
import os
import pathlib
from typing import NamedTuple

import numpy as np
import tensorflow as tf
from absl import flags

from tff_pfl import errors, fields
from tff_pfl import runtime as runtime_lib
from tff_pfl.core import privacy
from tff_pfl.export import client_module, saved_model, tff_files, tflite
from tff_pfl.models import keras_bridge, split_model
from tff_pfl.runs import run as run_lib
from tff_pfl.runs import settings as settings_lib
from tff_pfl.runs import summary as summary_lib
from tff_pfl.runtime import base as runtime_base
from tff_pfl.system import folders

from . import program, run_flags, runtime_flags

_FORMATS = ('keras', 'saved_model', 'tff', 'tflite')
_FITTING_FLAGS = tuple(
  name for name in flags.FLAGS if name.startswith(('fine_tune', 'new_client'))
)

_RUN_DIR = flags.DEFINE_string(
  'run_dir', None, 'Folder of a run of `train`.', required=True
)
_FORMAT = flags.DEFINE_enum(
  'format', None, _FORMATS, 'Format of the output.', required=True
)
_OUTPUT = flags.DEFINE_string(
  'output',
  None,
  'The .keras or .tflite file, or the folder, to write.',
  required=True,
)
_CLIENT = flags.DEFINE_string(
  'client',
  None,
  "The id of one of the run's clients, whose personal model it is.",
)
_QUANTIZE = flags.DEFINE_enum(
  'quantize',
  'none',
  tflite.QUANTIZATIONS,
  'Type of the weights of --format=tflite.',
)
for _name in ('data_dir', *_FITTING_FLAGS, *runtime_flags.NAMES):
  flags.declare_key_flag(_name)
program.define_overwrite()
flags.adopt_module_key_flags(program)


class _Source(NamedTuple):
  """A run, opened, and the runtime of its computations."""

  run: run_lib.Run
  runtime: runtime_base.Runtime

  def weights(self) -> split_model.Weights:
    """The weights of the model to export."""
    if _CLIENT.value is None:
      return self.run.new_client_weights(self.runtime)
    with errors.naming({'client_id': '--client'}):
      return self.run.personal_weights(_CLIENT.value, self.runtime)

  def client(self) -> client_module.ClientModule:
    """The functions of a client."""
    process = self.run.build_process(_personalization(self.run))
    errors.expect(
      process.fits_new_clients,
      '--fine_tune',
      f'other than none for {process.name}, which has no local weights to fit',
      'none',
    )
    state = self.run.server_state(process, self.runtime)
    if not isinstance(self.run.settings.process.aggregator, str):
      # By the run's seed its noise could be taken off the weights.
      state = state._replace(
        seed=np.int64(0),
        aggregator=tf.nest.map_structure(np.zeros_like, state.aggregator),
      )
    return client_module.new_client_module(
      process,
      state,
      # As the first of the new clients of `personalize`.
      self.run.data.num_clients,
      weights=self.weights(),
      runtime=self.runtime,
    )


def _personalization(run):
  """The options of new clients: those of the run, or to fit all weights."""
  options = {'fine_tune': 'all'}
  if run.build_process().fits_new_clients:
    options = dataclasses.asdict(run.settings.process.personalization)
  return run_flags.personalization_from_flags(**options)


def _export_keras(source):
  keras_bridge.save_keras(_OUTPUT.value, source.run.model, source.weights())
  return 'Keras model'


def _export_saved_model(source):
  client = source.client()
  process = source.run.build_process()
  num_rounds = source.run.server_state(process, source.runtime).round_number
  saved_model.save(_OUTPUT.value, client, int(num_rounds))
  return f'SavedModel, version {num_rounds}'


def _export_tff(source):
  if isinstance(source.run.settings.process.aggregator, privacy.PrivateMean):
    raise errors.RunError(
      'The noise of --aggregator=dp comes from the seed of the run, which the '
      "files would hold. For production, build the method with TFF's own "
      'private aggregator and save it by tff_pfl.export.tff_files.'
    )
  process = source.run.build_process()
  try:
    learning_process = process.to_learning_process()
  except ValueError as e:
    raise ValueError(
      f'{e} The formats saved_model and tflite have all methods.'
    ) from e
  manifest = tff_files.save(
    _OUTPUT.value,
    learning_process,
    source.run.server_state(process, source.runtime),
    {'settings': fields.to_json(source.run.settings), **process.description},
  )
  forms = ', '.join(['learning_process', *manifest['forms']])
  return f'TFF computations ({forms})'


def _export_tflite(source):
  client = source.client()
  content = tflite.convert(client, _QUANTIZE.value)
  with folders.atomic_file(_OUTPUT.value, 'wb') as file:
    file.write(content)
  if _QUANTIZE.value != 'none':
    _print_cost(source.run, client, tflite.predictor(content))
  return f'TFLite file, {len(content):,} bytes'


def _print_cost(run, client, quantized):
  """Prints the test scores of a model with and without quantization."""
  clients = [_CLIENT.value] if _CLIENT.value else run.data.client_ids
  plain = client_module.traced(
    client.predict, client.row_specs(with_labels=False)
  )
  scores = []
  for client_id in filter(run.data.num_test_examples, clients):
    rows = client_module.rows_of(run.data.test(client_id))
    y = rows.pop('y')
    rows.pop('weight', None)
    scores.append(
      [
        tflite.mean_score(run.model, y, predict(**rows)['outputs'])
        for predict in (plain, quantized)
      ]
    )
  before, after = np.mean(scores, axis=0) if scores else (np.nan, np.nan)
  print(
    f'Test {run.model.primary_metric.title}, mean over {len(scores)} clients: '
    f'{before:.4f}, {_QUANTIZE.value} {after:.4f}'
  )


# By format: what writes it, and the ending of the output.
_EXPORTS = {
  'keras': (_export_keras, '.keras'),
  'saved_model': (_export_saved_model, ''),
  'tff': (_export_tff, ''),
  'tflite': (_export_tflite, '.tflite'),
}


def _encoding_files(run):
  """The files beside the model of a run on a table: texts by path.

  They make inputs of a table's rows, and have the names of its classes.
  """
  if run.data.encoding is None:
    return {}
  folder = _OUTPUT.value
  if _EXPORTS[_FORMAT.value][1]:
    folder = os.path.dirname(folder)
  encoding = run.encoding
  texts = {os.path.join(folder, run_lib.ENCODING_NAME): encoding.text}
  if encoding.classes:
    path = os.path.join(folder, 'classes.json')
    texts[path] = summary_lib.json_text(list(encoding.classes), indent=2) + '\n'
  for path, text in texts.items():
    if os.path.exists(path) and pathlib.Path(path).read_text('utf-8') != text:
      # Of another model in this folder.
      program.new_path(path, '--output')
  return texts


def _check_flags():
  run_flags.refuse_all_but(
    ['data_dir', *_FITTING_FLAGS, *runtime_flags.NAMES],
    'the run has its method, model and rounds',
  )
  ending = _EXPORTS[_FORMAT.value][1]
  errors.expect(
    os.path.splitext(_OUTPUT.value)[1] == ending,
    '--output',
    f'a {ending} file' if ending else 'a folder, with no ending',
    _OUTPUT.value,
  )
  for names, formats in (
    (_FITTING_FLAGS, ('saved_model', 'tflite')),
    (('client',), ('keras', 'saved_model', 'tflite')),
    (('quantize',), ('tflite',)),
  ):
    if _FORMAT.value not in formats:
      run_flags.refuse(names, f'it is for --format={" or ".join(formats)}')


def main() -> None:
  """Writes the model, or the method."""
  _check_flags()
  options = runtime_flags.options()
  program.new_path(_OUTPUT.value, '--output')
  run = settings_lib.open_run(_RUN_DIR.value, data_dir=flags.FLAGS.data_dir)
  encoding_files = _encoding_files(run)
  with runtime_lib.create_runtime(
    runtime_flags.selected_runtime(), **options
  ) as runtime:
    os.makedirs(os.path.dirname(_OUTPUT.value) or '.', exist_ok=True)
    described = _EXPORTS[_FORMAT.value][0](_Source(run, runtime))
  for path, text in encoding_files.items():
    with folders.atomic_file(path) as file:
      file.write(text)
  print(f'{described}: {_OUTPUT.value}')


if __name__ == '__main__':
  program.run(main)
