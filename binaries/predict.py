r"""Applies a client's personal model to examples.

    python -m binaries.predict --run_dir=runs/digits --client=client_03 \
      --input=examples.npz --output=predictions.csv

The client is one of the run's own, or a new one that `personalize` fitted
(then give its --output_dir as --personal_models). The input is an .npz file
with an array `x` `[n, ...]`, scaled as the run's data, and, where these have
domains, `domain` `[n]`, integers in the order of its domains. The output, by
its ending, is a .csv with a row an example (prediction and, for classifiers,
probabilities) or an .npz with arrays `prediction` and `probabilities` (or
`outputs` for regression).
"""

import math
import os

import numpy as np
from absl import flags

from binaries import program, runtime_flags
from tff_pfl import errors
from tff_pfl import runtime as runtime_lib
from tff_pfl.datasets import array_checks, files
from tff_pfl.simulation import finished_run
from tff_pfl.simulation import summary as summary_lib

_RUN_DIR = flags.DEFINE_string(
  'run_dir', None, 'Folder of a run of binaries.train.', required=True
)
_CLIENT = flags.DEFINE_string('client', None, "The client's id.", required=True)
_INPUT = flags.DEFINE_string(
  'input', None, 'An .npz file with an array x.', required=True
)
_OUTPUT = flags.DEFINE_string(
  'output', None, 'The .csv or .npz file to write.', required=True
)
_PERSONAL_MODELS = flags.DEFINE_string(
  'personal_models', None, 'The --output_dir of binaries.personalize.'
)
_DATA_DIR = flags.DEFINE_string(
  'data_dir', None, "Folder of the run's data, if it has moved."
)
flags.adopt_module_key_flags(runtime_flags)
flags.adopt_module_key_flags(program)


def _read_examples(path):
  """`(x, domain)`; domain is None where the file has none."""
  arrays = files.read_npz(path)
  errors.expect(
    'x' in arrays,
    '--input',
    'an .npz file with an array x',
    f'arrays {", ".join(arrays) or "none"} in {path}',
  )
  return array_checks.check_inputs(arrays['x'], 'x'), arrays.get('domain')


def _weights(run):
  if _PERSONAL_MODELS.value is not None:
    path = finished_run.personal_model_path(
      _PERSONAL_MODELS.value, _CLIENT.value
    )
    errors.expect(
      os.path.isfile(path),
      '--client',
      f'a client with a model {path}',
      _CLIENT.value,
    )
    return finished_run.load_personal_model(path, run.model)
  errors.expect(
    _CLIENT.value in run.data.client_ids,
    '--client',
    f"one of the run's clients ({run.data.client_ids[0]} to "
    f'{run.data.client_ids[-1]}); for a new one give --personal_models',
    _CLIENT.value,
  )
  with runtime_lib.create_runtime(
    runtime_flags.selected_runtime(), **runtime_flags.options()
  ) as runtime:
    return run.personal_weights(_CLIENT.value, runtime)


def main() -> None:
  """Reads examples, writes predictions."""
  ending = os.path.splitext(_OUTPUT.value)[1]
  errors.expect(
    ending in ('.csv', '.npz'), '--output', 'a .csv or .npz file', _OUTPUT.value
  )
  runtime_flags.options()  # Flags that contradict one another.
  x, domain = _read_examples(_INPUT.value)
  with finished_run.FinishedRun(
    _RUN_DIR.value, data_dir=_DATA_DIR.value
  ) as run:
    outputs = finished_run.predict(run.model, _weights(run), x, domain)
    classifies = run.model.classifier is not None
  arrays = {'outputs': outputs}
  if classifies:
    arrays = {
      'prediction': np.argmax(outputs, axis=-1),
      'probabilities': outputs,
    }
  if ending == '.npz':
    with summary_lib.atomic_file(_OUTPUT.value, 'wb') as file:
      np.savez(file, **arrays)
  else:
    # Not -1, which has no meaning without examples.
    flat = outputs.reshape(len(outputs), math.prod(outputs.shape[1:]))
    column = 'probability' if classifies else 'output'
    rows = []
    for index in range(len(outputs)):
      row = {'example': index}
      if classifies and outputs.ndim == 2:
        row['prediction'] = int(arrays['prediction'][index])
      row.update(
        (f'{column}_{i}', float(value)) for i, value in enumerate(flat[index])
      )
      rows.append(row)
    summary_lib.write_csv(_OUTPUT.value, rows)
  print(f'{len(x)} predictions: {_OUTPUT.value}')


if __name__ == '__main__':
  program.run(main)
