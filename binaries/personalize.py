r"""Fits a finished run's model to new clients, by number of samples and epochs.

    python -m binaries.personalize --run_dir=runs/digits \
      --clients_npz=new_clients.npz --num_samples=5,10,all \
      --num_epochs=1,10 --output_dir=runs/digits/new_clients

The new clients come from an .npz file with arrays `x` `[n, ...]`, `y` `[n]`
and, for more than one client, `client` `[n]` (whose example it is), or from a
data set by name (`--dataset`, `--partition`, `--num_clients`). Each is divided
into training and test examples. Methods with local weights fit those with the
global ones frozen; others fine-tune (`--fine_tune`, by default all weights).

Written to --output_dir: `new_clients.csv` (every client and setting),
`new_clients.json`, and `personal_models/CLIENT.npz`, fitted with the last
number of samples and of epochs, for `predict`.
"""

import os

import numpy as np
from absl import flags

from binaries import program, run_flags
from tff_pfl import datasets, errors
from tff_pfl import runtime as runtime_lib
from tff_pfl.simulation import finished_run
from tff_pfl.simulation import summary as summary_lib

FLAGS = flags.FLAGS

_RUN_DIR = flags.DEFINE_string(
  'run_dir', None, 'Folder of a run of binaries.train.', required=True
)
_OUTPUT_DIR = flags.DEFINE_string(
  'output_dir', None, 'Folder for the results.', required=True
)
_CLIENTS_NPZ = flags.DEFINE_string(
  'clients_npz', None, "An .npz file with the new clients' x, y and client."
)
_TEST_FRACTION = flags.DEFINE_float(
  'test_fraction',
  0.2,
  'Part of each client in --clients_npz that is tested on.',
)
_NUM_SAMPLES = flags.DEFINE_list(
  'num_samples', ['all'], 'Training examples of each client; "all" for all.'
)
_NUM_EPOCHS = flags.DEFINE_list('num_epochs', ['10'], 'Epochs of fitting.')
flags.adopt_module_key_flags(run_flags)
flags.adopt_module_key_flags(program)


def _positive_int(text, name):
  errors.expect(
    text.isdigit() and int(text) > 0, name, 'positive integers', text
  )
  return int(text)


def _load_clients(run):
  if _CLIENTS_NPZ.value is None:
    errors.expect(
      FLAGS['dataset'].present,
      '--clients_npz or --dataset',
      'given: whose are the new clients?',
      'neither',
    )
    return run_flags.config_from_flags(run.config.algorithm).load_data()
  try:
    with np.load(_CLIENTS_NPZ.value) as stored:
      arrays = {name: stored[name] for name in stored.files}
  except (OSError, ValueError) as e:
    raise ValueError(
      errors.message(
        '--clients_npz', 'a readable .npz file', _CLIENTS_NPZ.value
      )
    ) from e
  errors.expect(
    {'x', 'y'} <= set(arrays),
    '--clients_npz',
    'a file with arrays x and y (and client)',
    f'arrays {", ".join(arrays) or "none"} in {_CLIENTS_NPZ.value}',
  )
  keys = arrays.get('client', np.full(len(arrays['y']), 'client'))
  return datasets.FederatedDataset.from_arrays(
    arrays['x'],
    arrays['y'],
    keys=keys,
    test_fraction=_TEST_FRACTION.value,
    num_classes=run.model.num_classes,
    name=os.path.basename(_CLIENTS_NPZ.value),
    seed=run.config.seed,
  )


def _variants(run):
  """From the number of epochs to the options that train for them."""
  has_local_weights = run.build_process().has_local_weights
  variants = {}
  for text in _NUM_EPOCHS.value:
    epochs = _positive_int(text, '--num_epochs')
    if has_local_weights:
      options = {'new_client_epochs': epochs}
    else:
      options = {'fine_tune': 'all', 'num_epochs': epochs}
    variants[epochs] = run_flags.personalization_from_flags(**options)
  return variants


def _table(rows):
  settings = {}
  for row in rows:
    settings.setdefault((row['samples'], row['epochs']), []).append(row)
  lines = []
  for (samples, epochs), members in settings.items():
    scored = [row for row in members if row['num_test_examples']]
    for row in scored:
      if 'after/accuracy' not in row:
        row['after/accuracy'] = row['before/accuracy'] = None
    after = [row['after/accuracy'] for row in scored]
    known = bool(after) and after[0] is not None
    lines.append(
      {
        'samples': samples,
        'epochs': epochs,
        'clients': len(scored),
        'accuracy': float(np.mean(after)) if known else None,
        'std': float(np.std(after)) if known else None,
        'accuracy_before': float(
          np.mean([row['before/accuracy'] for row in scored])
        )
        if known
        else None,
        'loss': float(np.mean([row['after/loss'] for row in scored]))
        if scored
        else None,
      }
    )
  return lines


def main() -> None:
  """Fits, scores and saves the new clients' models."""
  sample_counts = [
    None if text == 'all' else _positive_int(text, '--num_samples')
    for text in _NUM_SAMPLES.value
  ]
  with finished_run.FinishedRun(_RUN_DIR.value) as run:
    clients = _load_clients(run)
    variants = _variants(run)
    with runtime_lib.create_runtime(FLAGS.runtime) as runtime:
      rows, models = finished_run.accuracy_by_samples_and_epochs(
        run, clients, runtime, sample_counts, variants
      )
  output_dir = _OUTPUT_DIR.value
  os.makedirs(
    os.path.join(output_dir, finished_run.PERSONAL_MODELS_DIR), exist_ok=True
  )
  for client_id, weights in models.items():
    finished_run.save_personal_model(
      finished_run.personal_model_path(output_dir, client_id), weights
    )
  table = _table(rows)
  summary_lib.write_csv(os.path.join(output_dir, 'new_clients.csv'), rows)
  summary_lib.write_json(
    os.path.join(output_dir, 'new_clients.json'),
    {
      'run_dir': _RUN_DIR.value,
      'algorithm': run.config.algorithm,
      'dataset': clients.name,
      'settings': table,
    },
  )
  print(
    summary_lib.format_table(
      [list(line.values()) for line in table], list(table[0])
    )
  )
  print(f'Models: {os.path.join(output_dir, finished_run.PERSONAL_MODELS_DIR)}')


if __name__ == '__main__':
  program.run(main)
