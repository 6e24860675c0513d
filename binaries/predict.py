r"""Applies clients' personal models to examples.

    python -m binaries.predict --run_dir=runs/patients --client=va \
      --input=new_patients.csv --output=predictions.csv

The client is one of the run's own, or a new one that `personalize` fitted
(then give its --output_dir as --personal_models).

The input of a run on a table is a table, too (.csv, .tsv, either with .gz, or
.parquet), with the columns of its inputs in any order; the label need not be
there. Without --client, every row
is for the model of the client that the client column names. For other runs it
is an .npz file with an array `x` `[n, ...]`, scaled as the run's data, and,
where these have domains, `domain` `[n]`, integers in the order of its domains;
others that the data set npz has, such as `y`, are left aside.

The output, by its ending, is a .csv with a row an example (prediction and, for
classifiers, probabilities) or an .npz with arrays `prediction` and
`probabilities` (or `outputs` for regression). Classes have the names of the
table, numbers its unit, and several labels have columns each.
"""

import math
import os

import numpy as np
import pandas as pd
from absl import flags

from tff_pfl import errors
from tff_pfl import runtime as runtime_lib
from tff_pfl.datasets.sources import npz_file, own_files, table_files
from tff_pfl.models import prediction
from tff_pfl.runs import new_clients, open_run
from tff_pfl.runs import summary as summary_lib
from tff_pfl.system import folders

from . import program, runtime_flags

_RUN_DIR = flags.DEFINE_string(
  'run_dir', None, 'Folder of a run of `train`.', required=True
)
_CLIENT = flags.DEFINE_string(
  'client',
  None,
  "The client's id; of a table's rows, the default is what their client column "
  'says.',
)
_INPUT = flags.DEFINE_string(
  'input',
  None,
  'A table (.csv, .tsv, .csv.gz, .parquet) for a run on a table; for others an '
  '.npz file with an array x.',
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


def _weights(run, client, runtime):
  if _PERSONAL_MODELS.value is not None:
    path = new_clients.personal_model_path(_PERSONAL_MODELS.value, client)
    errors.expect(
      os.path.isfile(path), '--client', f'a client with a model {path}', client
    )
    return new_clients.load_personal_model(path, run.model)
  errors.expect(
    client in run.data.client_ids,
    '--client',
    f"one of the run's clients ({run.data.client_ids[0]} to "
    f'{run.data.client_ids[-1]}); for a new one give --personal_models',
    client,
  )
  return run.personal_weights(client, runtime)


def _predict_table(run, runtime):
  """`(outputs, rows)`: a frame with the rows to write, without outputs."""
  columns = run.encoding.columns
  errors.expect(
    columns.client or _CLIENT.value,
    '--client',
    'given, as the table of the run has no client column',
    _CLIENT.value,
  )
  by_column = _CLIENT.value is None
  table = run.encoding.read(_INPUT.value, with_clients=by_column)
  clients = pd.Series(_CLIENT.value, table.index)
  if by_column:
    owners = columns.owners(table, columns.client)
    table = table.assign(**{columns.client: owners})
    clients = table_files.complete(table, columns.client)
  rows = run.encoding.encode(table)
  outputs = None
  for client, chosen in clients.groupby(clients, sort=False).indices.items():
    weights = _weights(run, client, runtime)
    part = run.predict_rows(rows.select(chosen), weights)
    if outputs is None:
      outputs = np.empty((len(table), *part.shape[1:]), part.dtype)
    outputs[chosen] = part
  described = pd.DataFrame({'example': range(len(table)), 'client': [*clients]})
  for column in columns.labels:
    if column in table:
      heading = 'label' if column == columns.label else f'label_{column}'
      described[heading] = table[column].to_numpy()
  return outputs, described


def _predict_arrays(run, runtime):
  """As `_predict_table`."""
  path = _INPUT.value
  arrays = npz_file.read(path, '--input', ('x',))
  errors.expect(_CLIENT.value, '--client', 'given', _CLIENT.value)
  weights = _weights(run, _CLIENT.value, runtime)
  with own_files.naming(path):
    outputs = prediction.predict(
      run.model, weights, arrays['x'], arrays.get('domain')
    )
  return outputs, pd.DataFrame({'example': range(len(outputs))})


def _results(run, outputs, is_table):
  """The results to write: arrays, and for a .csv columns of as many rows."""
  classifier = run.model.classifier
  # Not -1, which has no meaning without examples.
  flat = outputs.reshape(len(outputs), math.prod(outputs.shape[1:]))
  names = range(flat.shape[1])
  if classifier is None:
    headings = ['prediction'] if is_table else [f'output_{n}' for n in names]
    return {'outputs': outputs}, dict(zip(headings, flat.T))
  predicted = np.argmax(outputs, axis=-1)
  arrays = {'probabilities': outputs, 'prediction': predicted}
  if is_table:
    names = np.array(run.encoding.classes)
    arrays.update(prediction=names[predicted], classes=names)
  if classifier.is_multilabel:
    labels = range(outputs.shape[1])
    if is_table:
      labels = run.encoding.columns.labels
    return arrays, {
      heading: column
      for label, choice, positive in zip(
        labels, arrays['prediction'].T, outputs[..., 1].T
      )
      for heading, column in (
        (f'prediction_{label}', choice),
        (f'probability_{label}', positive),
      )
    }
  columns = {f'probability_{n}': column for n, column in zip(names, flat.T)}
  if outputs.ndim == 2:
    columns = {'prediction': arrays['prediction'], **columns}
  return arrays, columns


def main() -> None:
  """Reads examples, writes predictions."""
  ending = os.path.splitext(_OUTPUT.value)[1]
  errors.expect(
    ending in ('.csv', '.npz'), '--output', 'a .csv or .npz file', _OUTPUT.value
  )
  output = program.new_path(_OUTPUT.value, '--output')
  options = runtime_flags.options()  # Fails on flags that contradict.
  is_table = not _INPUT.value.endswith('.npz')
  run = open_run.open_run(_RUN_DIR.value, data_dir=_DATA_DIR.value)
  with runtime_lib.create_runtime(
    runtime_flags.selected_runtime(), **options
  ) as runtime:
    predict = _predict_table if is_table else _predict_arrays
    outputs, rows = predict(run, runtime)
  arrays, columns = _results(run, outputs, is_table)
  if ending == '.npz':
    with folders.atomic_file(output, 'wb') as file:
      np.savez(file, **arrays)
  else:
    summary_lib.write_csv(output, rows.assign(**columns))
  print(f'{len(outputs)} predictions: {output}')


if __name__ == '__main__':
  program.run(main)
