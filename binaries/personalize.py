r"""Fits a finished run's model to new clients, by number of samples and epochs.

    python -m binaries.personalize --run_dir=runs/digits \
      --clients_npz=new_clients.npz --num_samples=5,10,all \
      --num_epochs=1,10 --output_dir=runs/digits/new_clients

The new clients come from one of these sources:

* --clients_npz: an .npz file with arrays `x` `[n, ...]` and `y` `[n]`. Several
  clients need `client` `[n]` (each example's owner), and data with domains
  `domain` `[n]` (in the order of the run's domains).
* --clients_csv: for a run on a table, a CSV file with the table's columns.
* --dataset: a dataset by name, with its flags, --partition, --num_clients and
  --seed. The run's own values give its own clients, as if they were new.

Each client's examples are divided into training and test examples, unless the
.npz file has test examples (`x_test` and so on).

Methods with local weights fit these and freeze the global weights. Others
fine-tune in the method's own way (Per-FedAvg: full-batch steps with its inner
learning rate) or, by default, all weights. The `--fine_tune` flags apply in
both cases, except --fine_tune=trained, which has no number of epochs.
`--ensemble` also scores a model for new clients that cannot train: the mean
prediction of the personal models of the run's own clients.

The output folder gets `new_clients.csv` (every client and setting) and, for
`predict`, `personal_models/CLIENT.npz`, fitted with the last number of samples
and of epochs.
"""

import dataclasses
import itertools
import os
import shutil

import numpy as np
from absl import flags, logging

from tff_pfl import datasets, errors
from tff_pfl.datasets.sources import npz_file, own_files, table
from tff_pfl.runs import client_population, evaluation
from tff_pfl.runs import settings as settings_lib
from tff_pfl.runs import summary as summary_lib

from . import made_flags, program, run_flags, runtime_flags

FLAGS = flags.FLAGS

# Flags of `train` that choose the new clients' data and the fit.
_KEY_DATA_FLAGS = ('dataset', 'data_dir', 'partition', 'num_clients', 'seed')
_DATA_FLAGS = (*_KEY_DATA_FLAGS, *run_flags.DATASET_ARGUMENTS.names())
_FITTING_FLAGS = (
  # They include epochs and steps, for fits that --num_epochs does not set.
  *(name for name in FLAGS if name.startswith('fine_tune')),
  *runtime_flags.NAMES,
)

_RUN_DIR = flags.DEFINE_string(
  'run_dir', None, 'Folder of a run of `train`.', required=True
)
_OUTPUT_DIR = flags.DEFINE_string(
  'output_dir', None, 'Folder for the results.', required=True
)
_CLIENTS_NPZ = flags.DEFINE_string(
  'clients_npz', None, "An .npz file with the new clients' x, y and client."
)
_CLIENTS_CSV = flags.DEFINE_string(
  'clients_csv',
  None,
  "A file (.csv, .tsv, .csv.gz, .parquet) with new clients' rows of the run's "
  'table. Without the client column, all rows belong to one client.',
)
_TEST_FRACTION = flags.DEFINE_float(
  'test_fraction',
  None,
  'Test part of the examples of each client in --clients_npz or --clients_csv '
  "(default: 0.2, or the table's split column).",
)
_NUM_SAMPLES = flags.DEFINE_list(
  'num_samples', ['all'], 'Numbers of training examples of each client, or all.'
)
_ENSEMBLE = flags.DEFINE_bool(
  'ensemble',
  False,
  "Also score the mean prediction of the run's own clients' personal models.",
)
_NUM_EPOCHS = flags.DEFINE_list(
  'num_epochs', ['10'], 'Numbers of epochs to fit for.'
)
for _name in (*_KEY_DATA_FLAGS, *_FITTING_FLAGS):
  flags.declare_key_flag(_name)
# Sources of the new clients.
flags.mark_flags_as_mutual_exclusive(
  ['clients_npz', 'clients_csv', 'dataset'], required=True
)
program.define_overwrite()
flags.adopt_module_key_flags(program)


def _load_clients(run):
  if FLAGS.dataset is not None:
    run_flags.refuse(
      ['test_fraction'], 'it is for --clients_npz and --clients_csv'
    )
    # `_variants` checks the flags of fine-tuning.
    settings = run_flags.settings_from_flags(
      run.settings.algorithm, has_variants=True
    )
    scaled = [
      (one.arguments.get('normalize', False), one.name, one.data_dir)
      for one in (settings.data, run.settings.data)
    ]
    if scaled[0] != scaled[1] and (scaled[0][0] or scaled[1][0]):
      logging.warning(
        'New clients may be scaled in another way than the run was, because '
        '--dataset_normalize scales a dataset by its own mean and deviation.'
      )
    data = settings.load_data()
    if data.encoding is not None and data.encoding.text != run.encoding.text:
      raise ValueError(
        "Expected rows of a table with the encoding of the run's rows, found "
        'other means or words: give new rows as --clients_csv.'
      )
    return data
  path = _CLIENTS_CSV.value
  source = '--clients_npz' if path is None else '--clients_csv'
  run_flags.refuse(_DATA_FLAGS, f'{source} has the clients')
  if path is not None:
    frame = table.read_new(path, run.encoding)
    with own_files.naming(path):
      return datasets.FederatedDataset.from_frame(
        frame,
        encoding=run.encoding,
        seed=run.settings.seed,
        test_fraction=_TEST_FRACTION.value,
        name=os.path.basename(path),
      )
  arrays = npz_file.read(_CLIENTS_NPZ.value, source)
  if not {'client', 'client_test'} & set(arrays):
    # All examples are one client's.
    for name in {'y', 'y_test'} & set(arrays):
      count = np.shape(arrays[name])[:1]
      arrays[name.replace('y', 'client')] = np.full(count, 'client')
  if 'weight' in run.data.element_spec:
    arrays.setdefault('weight', np.ones(np.shape(arrays['y'])[:1]))
  fraction = _TEST_FRACTION.value
  with errors.naming({'keys': '`client`', 'keys_test': '`client_test`'}):
    return datasets.FederatedDataset.from_arrays(
      keys=arrays.pop('client', None),
      keys_test=arrays.pop('client_test', None),
      **arrays,
      domain_names=run.data.domain_names if 'domain' in arrays else None,
      test_fraction=0.2 if fraction is None else fraction,
      num_classes=run.data.num_classes,
      name=os.path.basename(_CLIENTS_NPZ.value),
      seed=run.settings.seed,
    )


def _variants(run):
  """The options of the fit, by number of epochs."""
  process = run.build_process()
  trains = process.trains_new_clients
  if not trains:
    run_flags.refuse(
      ['fine_tune_num_epochs', 'fine_tune_num_steps'],
      f'{run.settings.algorithm} fine-tunes new clients for --num_epochs',
    )
  # As in the method or the run. An exported model does the same.
  asked = run.settings.process.personalization.resolved(process.adaptation)
  own = {} if trains else {'fine_tune': 'all'}
  if asked.fine_tune != 'none':
    own = dataclasses.asdict(asked)
  variants = {}
  for epochs in made_flags.integers('--num_epochs', _NUM_EPOCHS.value, 1):
    if trains:
      options = {**own, 'new_client_epochs': epochs}
    else:
      options = {**own, 'num_steps': None, 'num_epochs': epochs}
    variants[epochs] = run_flags.personalization_from_flags(**options)
    scope = variants[epochs].fine_tune
    errors.expect(
      trains or scope in ('head', 'all'),
      '--fine_tune',
      f'head or all for {process.name}, which has no local weights to fit',
      scope,
    )
    errors.expect(
      scope != 'trained',
      '--fine_tune',
      'other than trained, which trains as long as in a round, whatever '
      '--num_epochs is',
      scope,
    )
  return variants


def _table(rows, metric):
  """Yields the means of a metric over clients, for each setting."""
  settings = rows.groupby(['samples', 'epochs'], sort=False)
  for (samples, epochs), members in settings:
    after = members[f'after/{metric}']
    yield {
      'samples': samples,
      'epochs': epochs,
      'clients': len(members),
      metric: after.mean(skipna=False),
      'std': after.std(ddof=0, skipna=False),
      # An ensemble has no such score.
      f'{metric}_before': members[f'before/{metric}'].mean(skipna=False),
      'loss': members['after/loss'].mean(skipna=False),
    }


def main() -> None:
  """Fits, scores and saves the new clients' models."""
  run_flags.refuse_all_but(
    [*_DATA_FLAGS, *_FITTING_FLAGS], 'the run sets the method, model and rounds'
  )
  sample_counts = made_flags.integers(
    '--num_samples', _NUM_SAMPLES.value, 1, none='all'
  )
  output_dir = program.new_path(_OUTPUT_DIR.value, '--output_dir')
  run = settings_lib.open_run(_RUN_DIR.value)
  clients = _load_clients(run)
  client_population.check_test_examples(clients)
  variants = _variants(run)
  create_runtime = runtime_flags.selected()
  # Before the work, so that an unwritable folder fails early.
  models_dir = os.path.join(output_dir, evaluation.PERSONAL_MODELS_DIR)
  os.makedirs(models_dir, exist_ok=True)
  with create_runtime() as runtime:
    rows = []
    for samples, epochs in itertools.product(sample_counts, variants):
      setting = {'samples': samples or 'all', 'epochs': epochs}
      fit = run, clients, variants[epochs], runtime
      scores = evaluation.score(*fit, num_samples=samples)
      rows += [{**setting, **row} for row in scores]
    # Fitted with the last setting.
    models = evaluation.personalize(*fit, num_samples=samples)
    if _ENSEMBLE.value:
      setting = {'samples': 'ensemble', 'epochs': 0, 'num_train_examples': 0}
      scores = evaluation.score_by_ensemble(run, clients, runtime)
      rows += [{**setting, **row} for row in scores]
  # Models of earlier clients.
  shutil.rmtree(models_dir, ignore_errors=True)
  os.makedirs(models_dir)
  for client_id, weights in models.items():
    evaluation.save_personal_model(
      evaluation.personal_model_path(output_dir, client_id), weights
    )
  rows = summary_lib.frame(rows)
  summary_lib.write_csv(os.path.join(output_dir, 'new_clients.csv'), rows)
  table = _table(rows, run.model.primary_metric.name)
  print(summary_lib.format_table(table))
  print(f'Models: {models_dir}')


if __name__ == '__main__':
  program.run_program(main, {'dataset': run_flags.FLAGS_OF['dataset']})
