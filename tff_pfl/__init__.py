"""Personalized federated learning on TensorFlow Federated.

    import keras
    import tff_pfl as pfl

    data = pfl.FederatedDataset.from_arrays(
      x, y, num_clients=10, partition='dirichlet:1'
    )
    model = pfl.from_keras(
      keras_model,
      head_layers=['scores'],
      loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    process = pfl.build('fed_rep', model, num_head_epochs=5)
    run = pfl.run(process, data, 'my_run', num_rounds=20, cohort_size=5)
    run.scores  # a data frame, a row for each client
    run.personal_model('client_3').predict(x_new)

The names below are imported when they are first used. Before the first of them,
TensorFlow is told to give each client its share of the cores, so use one before
you run any operation.
"""

import importlib
import importlib.util
from typing import Any

__version__ = '0.4.0'

for _name in ('tensorflow', 'tensorflow_federated'):
  if importlib.util.find_spec(_name) is None:
    raise ImportError(
      f'tff_pfl needs TensorFlow 2.21 and TensorFlow Federated 0.87, and '
      f'{_name} is not installed here: run `tff-pfl-setup` (docs/programs.md, '
      '"In an environment of your own").',
      name=_name,
    )

from tff_pfl import tff_repairs  # noqa: E402
from tff_pfl.system import environment  # noqa: E402

tff_repairs.before_tff()
# Read when TensorFlow first looks for GPUs: before the user's model is built.
environment.set_defaults()

# By module, the names that users need. A name alone is that of the module.
_NAMES = {
  # Data.
  'datasets': (
    'Examples',
    'FederatedDataset',
    'describe_datasets',
    'load_arrays',
    'load_dataset',
  ),
  # Models.
  'models.class_weights': ('with_class_weight', 'with_sample_weight'),
  'models.client_metrics': ('with_metrics',),
  'models.domain_models': ('with_domains',),
  'models.keras_bridge': ('from_keras', 'to_keras'),
  'models.split_model': ('SplitModel',),
  'models.weight_files': ('with_weights',),
  'models.zoo': ('zoo',),
  # Methods.
  'methods.registry': ('ALGORITHMS', 'build', 'method'),
  'core.client_examples': ('padded',),
  'core.hparams': ('HeadAndBodyHParams', 'LocalTrainingHParams'),
  'core.objectives': ('body_loss', 'joint_loss', 'proximal'),
  'models.weight_partition': ('WeightPartition',),
  'core.client': ('Client', 'ClientResult'),
  'core.client_work': (
    'Exchange',
    'global_weights_work',
    'partitioned_weights_work',
  ),
  # Options.
  'core.training_options': ('TrainingOptions',),
  'core.aggregators': ('make_aggregator',),
  'core.personalization': ('Personalization',),
  # Runs.
  'errors': ('RunError',),
  'runtime': ('create_runtime',),
  'runs.callbacks': ('Callback',),
  'export.data_source': ('ClientDataSource',),
  'runs.training': ('run',),
  'runs.open_run': ('open_run',),
  'runs.run': ('Run', 'plot', 'summarize', 'tidy'),
  'runs.privacy': ('DistributedPrivateMean', 'PrivateMean'),
  'runs.run_config': ('RunConfig',),
  'plots': ('plots',),
  # Comparisons.
  'comparisons.comparison_runner': ('compare',),
  'comparisons.plan': ('Comparison',),
  'comparisons.results': ('open_comparison',),
}
_MODULES = {name: module for module, names in _NAMES.items() for name in names}

__all__ = sorted(_MODULES)


def __getattr__(name: str) -> Any:
  if name not in _MODULES:
    raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
  importlib.import_module('tff_pfl.system.tf_import')
  module = importlib.import_module(f'tff_pfl.{_MODULES[name]}')
  value = getattr(module, name, module)
  globals()[name] = value
  return value


def __dir__() -> list[str]:
  return __all__
