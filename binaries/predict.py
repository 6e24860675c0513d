r"""Applies clients' personal models to examples.

    python -m binaries.predict --run_dir=runs/patients --client=va \
      --input=new_patients.csv --output=predictions.csv

The client is one of the run's own, or a new one that `personalize` fitted. For
a new one, give the --output_dir of `personalize` as --personal_models.

For a run on a table, the input is also a table (.csv, .tsv, either with .gz, or
.parquet) with the input columns in any order. It need not have the label.
Without --client, each row uses the model of the client in the client column.

For other runs, the input is an .npz file with an array `x` `[n, ...]`, scaled
like the run's data. Data with domains also need `domain` `[n]`, integers in the
order of the run's domains. Other arrays of the dataset npz, such as `y`, are
ignored.

The output is a .csv file with a row for each example (prediction and, for
classifiers, probabilities), or an .npz file with arrays `prediction` and
`probabilities` (`outputs` for regression). Classes have the table's names,
numbers its unit, and each of several labels has its own columns.
"""

import contextlib
import math
import os

import numpy as np
import pandas as pd
from absl import flags

from tff_pfl import errors
from tff_pfl.datasets import columns as columns_lib
from tff_pfl.datasets.sources import npz_file, own_files, table
from tff_pfl.models import prediction
from tff_pfl.runs import evaluation
from tff_pfl.runs import settings as settings_lib
from tff_pfl.runs import summary as summary_lib
from tff_pfl.system import folders

from . import program, runtime_flags

_RUN_DIR = flags.DEFINE_string(
  'run_dir', None, 'Folder of a run of `train`.', required=True
)
_CLIENT = flags.DEFINE_string(
  'client',
  None,
  "The client's id (default for a table: the id in each row's client column).",
)
_INPUT = flags.DEFINE_string(
  'input',
  None,
  'A table (.csv, .tsv, .csv.gz, .parquet) for a run on a table, else an .npz '
  'file with an array x.',
  required=True,
)
_OUTPUT = flags.DEFINE_string(
  'output', None, 'The .csv or .npz file to write.', required=True
)
_PERSONAL_MODELS = flags.DEFINE_string(
  'personal_models', None, 'The --output_dir of `personalize`.'
)
_DATA_DIR = flags.DEFINE_string(
  'data_dir', None, "Folder of the run's data, if it has moved."
)
flags.adopt_module_key_flags(runtime_flags)
program.define_overwrite()
flags.adopt_module_key_flags(program)


@contextlib.contextmanager
def _models(run, runtime):
  """A function from a client to its weights."""
  if _PERSONAL_MODELS.value is not None:
    yield lambda client: _fitted_weights(run, client)
    return
  with run.open_personal_weights(runtime) as weights_of:
    yield lambda client: weights_of(_own_client(run, client))


def _fitted_weights(run, client):
  path = evaluation.personal_model_path(_PERSONAL_MODELS.value, client)
  errors.expect(
    os.path.isfile(path), '--client', f'a client with a model {path}', client
  )
  return evaluation.load_personal_model(path, run.model)


def _own_client(run, client):
  try:
    with errors.naming({'client_id': '--client'}):
      return run.data.find_client(client)
  except ValueError as e:
    raise ValueError(f'{e} For a new one give --personal_models.') from e


def _predict_table(run, runtime):
  """Returns the arrays and the columns to write."""
  encoding, client = run.encoding, _CLIENT.value
  frame = table.read_new(_INPUT.value, encoding)
  errors.expect(
    client or encoding.client in frame,
    '--client',
    f'given, as {_INPUT.value} has no column of clients'
    + (f', {encoding.client}' if encoding.client else ''),
    client,
  )
  with own_files.naming(_INPUT.value):
    if client is not None and _PERSONAL_MODELS.value is None:
      client = _own_client(run, client)
    owners = np.full(len(frame), client)
    if client is None:
      owners = columns_lib.owners(frame[encoding.client]).astype(str)
    with _models(run, runtime) as weights_of:
      outputs = prediction.predict_rows(
        run.model,
        encoding,
        frame,
        owners,
        lambda owner: weights_of(str(owner)),
      )
  columns = encoding.predictions(outputs)
  arrays = {'outputs': columns.to_numpy()}
  if encoding.classes:
    classes = np.array(encoding.classes)
    predicted = classes[np.argmax(outputs, axis=-1)]
    arrays = dict(probabilities=outputs, prediction=predicted, classes=classes)
  rows = pd.DataFrame({'example': range(len(frame)), 'client': owners})
  for name in encoding.label:
    if name in frame:
      heading = 'label' if len(encoding.label) == 1 else f'label_{name}'
      rows[heading] = frame[name].to_numpy()
  return arrays, rows.assign(**columns)


def _predict_arrays(run, runtime):
  """As `_predict_table`."""
  path = _INPUT.value
  examples = npz_file.read(path, '--input', ('x',))
  errors.expect(_CLIENT.value, '--client', 'given', _CLIENT.value)
  with _models(run, runtime) as weights_of:
    weights = weights_of(_CLIENT.value)
  with own_files.naming(path):
    outputs = prediction.predict(
      run.model, weights, examples['x'], examples.get('domain')
    )
  # A size of -1 would be ambiguous without examples.
  flat = outputs.reshape(len(outputs), math.prod(outputs.shape[1:]))
  rows = pd.DataFrame({'example': range(len(outputs))})
  columns, classifier = pd.DataFrame(flat), run.model.classifier
  if classifier is None:
    return {'outputs': outputs}, rows.join(columns.add_prefix('output_'))
  predicted = np.argmax(outputs, axis=-1)
  arrays = {'probabilities': outputs, 'prediction': predicted}
  if classifier.is_multilabel:
    for n, positive in enumerate(outputs[..., 1].T):
      rows[f'prediction_{n}'] = predicted[:, n]
      rows[f'probability_{n}'] = positive
    return arrays, rows
  if outputs.ndim == 2:
    rows['prediction'] = predicted
  return arrays, rows.join(columns.add_prefix('probability_'))


def main() -> None:
  """Reads examples and writes predictions."""
  ending = os.path.splitext(_OUTPUT.value)[1]
  errors.expect(
    ending in ('.csv', '.npz'), '--output', 'a .csv or .npz file', _OUTPUT.value
  )
  output = program.new_path(_OUTPUT.value, '--output')
  create_runtime = runtime_flags.selected()
  is_table = not _INPUT.value.endswith('.npz')
  run = settings_lib.open_run(_RUN_DIR.value, data_dir=_DATA_DIR.value)
  with create_runtime() as runtime:
    predict = _predict_table if is_table else _predict_arrays
    arrays, columns = predict(run, runtime)
  if ending == '.npz':
    with folders.atomic_file(output, 'wb') as file:
      np.savez(file, **arrays)
  else:
    summary_lib.write_csv(output, columns)
  print(f'{len(columns)} predictions: {output}')


if __name__ == '__main__':
  program.run_program(main)
