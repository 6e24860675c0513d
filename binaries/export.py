r"""Writes a finished run's model, or its method, in formats for production.

    python -m binaries.export --run_dir=runs/digits --format=tflite \
      --client=client_3 --output=client_3.tflite

--format=keras: the Keras model, with the same outputs as the run's model
(scores, which `predict` turns into probabilities). --output ends in .keras.

--format=tflite: one file for phones, with the signatures `predict`, `evaluate`,
`personalize` (fits a new client's model to its examples), `weights` (returns
them) and `set_weights`. LiteRT runs it with builtin operators alone. A file
with --quantize only predicts, and the program prints the scores on the clients'
test examples with and without quantization. --output ends in .tflite.

--format=saved_model: a folder for TensorFlow Serving, with the signatures
`predict`, `evaluate`, `personalize` and `predict_with_weights`. Its version is
the run's number of rounds, and the folder may have other versions.

--format=tff: a folder with the method's serialized TFF computations, the
server's state and a manifest, for methods whose clients keep no state.

The model is the personal model of --client or, by default, the model of a new
client without data. `personalize` does the same as the program of that name:
methods with local weights fit these, others fine-tune as the run did or, by
default, all weights. The `--fine_tune` flags apply in both cases.

For a run on a table, the program also writes encoding.json next to the model,
and for classifiers classes.json, with the class names in order of the outputs.
"""

import dataclasses
import os
import pathlib

import numpy as np
from absl import flags

from tff_pfl import errors, fields
from tff_pfl.core import privacy
from tff_pfl.export import client_module, tff_files, tflite
from tff_pfl.runs import model_files
from tff_pfl.runs import settings as settings_lib
from tff_pfl.system import folders

from . import program, run_flags, runtime_flags

# The ending of the output, by format.
_ENDINGS = {**model_files.ENDINGS, 'tff': ''}
_FITTING_FLAGS = tuple(
  name for name in flags.FLAGS if name.startswith(('fine_tune', 'new_client'))
)

_RUN_DIR = flags.DEFINE_string(
  'run_dir', None, 'Folder of a run of `train`.', required=True
)
_FORMAT = flags.DEFINE_enum(
  'format', None, sorted(_ENDINGS), 'Format of the output.', required=True
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
  "The id of the run's client whose personal model is exported (default: a new "
  'client without data).',
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


def _export_model(run, runtime):
  personalization = None
  if _FORMAT.value != 'keras':
    # The run's options for new clients, or else all weights are fitted.
    options = {'fine_tune': 'all'}
    if run.process.fits_new_clients:
      options = dataclasses.asdict(run.settings.process.personalization)
    personalization = run_flags.personalization_from_flags(**options)
  names = {'client_id': '--client', 'personalization.fine_tune': '--fine_tune'}
  with errors.naming(names):
    path = run.export(
      _CLIENT.value,
      _OUTPUT.value,
      personalization=personalization,
      quantization=_QUANTIZE.value,
      runtime=runtime,
    )
  if _QUANTIZE.value != 'none':
    plain = model_files.client_functions(
      run, _CLIENT.value, personalization, runtime
    )
    _print_cost(run, plain, tflite.predictor(pathlib.Path(path).read_bytes()))
  return {
    'keras': 'Keras model',
    'saved_model': f'SavedModel, version {os.path.basename(path)}',
    'tflite': f'TFLite file, {os.path.getsize(path):,} bytes',
  }[_FORMAT.value]


def _export_tff(run, runtime):
  if isinstance(run.settings.process.aggregator, privacy.PrivateMean):
    raise errors.RunError(
      "The noise of --aggregator=dp comes from the run's seed, which the files "
      "would contain. For production, build the method with TFF's own private "
      'aggregator and save it with tff_pfl.export.tff_files.'
    )
  process = run.build_process()
  try:
    learning_process = process.to_learning_process()
  except ValueError as e:
    raise ValueError(
      f'{e} The formats saved_model and tflite support all methods.'
    ) from e
  manifest = tff_files.save(
    _OUTPUT.value,
    learning_process,
    run.server_state(process, runtime),
    {'settings': fields.to_json(run.settings), **process.description},
  )
  for path, text in model_files.encoding_files(run, _OUTPUT.value).items():
    with folders.atomic_file(path) as file:
      file.write(text)
  forms = ', '.join(['learning_process', *manifest['forms']])
  return f'TFF computations ({forms})'


def _print_cost(run, client, quantized):
  """Prints the test scores of a model with and without quantization."""
  clients = run.data.client_ids
  if _CLIENT.value is not None:
    clients = [run.data.find_client(_CLIENT.value)]
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


def _check_flags():
  run_flags.refuse_all_but(
    ['data_dir', *_FITTING_FLAGS, *runtime_flags.NAMES],
    'the run sets the method, model and rounds',
  )
  ending = _ENDINGS[_FORMAT.value]
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
  """Writes the model or the method."""
  _check_flags()
  create_runtime = runtime_flags.selected()
  output = folders.output_path(_OUTPUT.value, '--output')
  run = settings_lib.open_run(_RUN_DIR.value, data_dir=flags.FLAGS.data_dir)
  if _FORMAT.value == 'saved_model':
    # Versions have a folder each.
    output = os.path.join(output, str(run.last_round))
  program.new_path(output, '--output')
  for path, text in model_files.encoding_files(run, _OUTPUT.value).items():
    if os.path.exists(path) and pathlib.Path(path).read_text('utf-8') != text:
      # The file belongs to another model in this folder.
      program.new_path(path, '--output')
  export = _export_tff if _FORMAT.value == 'tff' else _export_model
  with create_runtime() as runtime:
    described = export(run, runtime)
  print(f'{described}: {_OUTPUT.value}')


if __name__ == '__main__':
  program.run_program(main)
