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

`__init__.pyi` lists the public names. Each is imported on first use. The first
import also makes TensorFlow give each client its share of the cores, so use a
name before you run any operation.
"""

import ast
import importlib
import importlib.util
import pathlib
from typing import Any

__version__ = '0.4.0'

for _name in ('tensorflow', 'tensorflow_federated'):
  if importlib.util.find_spec(_name) is None:
    raise ImportError(
      f'tff_pfl needs TensorFlow 2.21 and TensorFlow Federated 0.87, and '
      f'{_name} is not installed here: install tff_pfl with its dependencies, '
      'then run `tff-pfl-setup` (docs/programs.md, "In an environment of your '
      'own").',
      name=_name,
    )

from tff_pfl import tff_repairs  # noqa: E402
from tff_pfl.system import collector, environment  # noqa: E402

tff_repairs.before_tff()
# TensorFlow reads these when it first looks for GPUs, which building a model
# does.
environment.set_defaults()

# From a public name to its module, as `__init__.pyi` imports it for editors.
_MODULES = {
  alias.name: statement.module
  for statement in ast.parse(
    pathlib.Path(__file__).with_suffix('.pyi').read_text('utf-8')
  ).body
  if isinstance(statement, ast.ImportFrom)
  for alias in statement.names
}

__all__ = sorted(_MODULES)


def __getattr__(name: str) -> Any:
  if name not in _MODULES:
    raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
  with collector.paused():
    importlib.import_module('tff_pfl.system.tf_import')
    members = vars(importlib.import_module(_MODULES[name]))
    if name not in members:  # The name is a module.
      members = {name: importlib.import_module(f'{_MODULES[name]}.{name}')}
  globals()[name] = members[name]
  return members[name]


def __dir__() -> list[str]:
  return __all__
