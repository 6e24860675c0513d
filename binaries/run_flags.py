"""Flags of a run, generated from the fields of `Settings`."""

import dataclasses
import os
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from absl import flags

from tff_pfl import datasets, errors, fields
from tff_pfl.core import hparams as hparams_lib
from tff_pfl.core import (
  personalization,
  privacy,
  process_options,
  training_options,
)
from tff_pfl.methods import registry
from tff_pfl.models import zoo
from tff_pfl.runs import loop, settings, start

from . import made_flags, program, runtime_flags

# Help texts of flags after the documentation of the field.
_MORE = {
  'dataset': datasets.describe_datasets() + '.',
  'partition': datasets.describe_partitioners(),
  'participation': '(default: 0.1)',
}
_PARTICIPATION = 0.1
# Flags for the hyperparameters of all methods that have or end with the name.
_SHARED = {
  'batch_size': "Examples per batch of the clients' training. 0 is the full "
  'batch. Set it to compare methods. (default: 40 for per_fed_avg, 32 for '
  'fed_dar, 10 for other methods)',
  'learning_rate': "Learning rate of the clients' training, for each part of "
  "the model for which the method has one. (default: the method's)",
}


def _define_part(owner: type) -> list[str]:
  """Defines the flags of a part of `Settings` and returns their names."""
  names = []
  for name, path in fields.flat_names(owner).items():
    is_part = dataclasses.is_dataclass(fields.hints(owner)[path[0]])
    if not is_part and path[0] not in ('arguments', 'runtime'):
      made_flags.define_field(name, owner, path[0], more=_MORE.get(name, ''))
      names.append(name)
  return names


flags.DEFINE_enum(
  'algorithm',
  None,
  list(registry.ALGORITHMS),
  'The method. '
  + '; '.join(f'{n}: {a.summary}' for n, a in registry.ALGORITHMS.items())
  + '. (default: fed_rep)',
)
for _name in registry.SHARED:
  _kind = int if _name == 'batch_size' else float
  made_flags.define(_name, _kind, _SHARED[_name], None)
_DATA = _define_part(settings.DataOptions)
_MODEL = _define_part(settings.ModelOptions)
_PROCESS = _define_part(process_options.ProcessOptions)
_TRAINING = _define_part(training_options.TrainingOptions)
_PERSONALIZATION_FLAGS = _define_part(personalization.Personalization)
_ROUNDS = _define_part(loop.RunOptions)
_START = _define_part(start.Start)
made_flags.define_field('seed', settings.Settings, 'seed')
_MODEL_ARGUMENTS = made_flags.ArgumentFlags('model', zoo.MODELS)
_POOLED = [
  name for name, its in datasets.DATASETS.items() if not its.comes_by_client
]
_PRIVACY_ARGUMENTS = made_flags.ArgumentFlags(
  'aggregator', privacy.AGGREGATORS, common=('kind',), prefix='dp_'
)
DATASET_ARGUMENTS = made_flags.ArgumentFlags(
  'dataset',
  {
    # Arguments of these datasets besides the arguments of their loaders.
    ' or '.join(_POOLED): datasets.load_dataset,
    **{name: entry.loader for name, entry in datasets.DATASETS.items()},
  },
  common=(*datasets.COMMON_ARGUMENTS, 'num_clients', 'partition'),
)
# By field of `Personalization` its flag.
_PERSONALIZATION = {
  path[0]: name
  for name, path in fields.flat_names(personalization.Personalization).items()
}
_HPARAM_FLAGS: dict[str, dict[str, str]] = {
  name: {
    field.name: f'{name}_{field.name}'
    for field in dataclasses.fields(algorithm.hparams)
    if field.name != 'batch_size'
  }
  for name, algorithm in registry.ALGORITHMS.items()
}
for _algorithm, _own_flags in _HPARAM_FLAGS.items():
  _owner = registry.ALGORITHMS[_algorithm].hparams
  for _field, _name in _own_flags.items():
    made_flags.define_field(_name, _owner, _field, start=f'{_algorithm}: ')
_METHOD_FLAGS = [
  flag for own_flags in _HPARAM_FLAGS.values() for flag in own_flags.values()
]
# Flags of the run itself, named as in `Settings`.
_FLAT = [*_DATA, *_MODEL, *_PROCESS, *_TRAINING, *_ROUNDS, *_START, 'seed']
# All except the flags of methods, models and so on, which --help shows if they
# are selected.
KEY_FLAGS = (
  *('algorithm', *_SHARED),
  *_FLAT,
  *_PERSONALIZATION_FLAGS,
  'runtime',
)


# For each selecting flag its default, and the flags that each value selects.
FLAGS_OF = {
  'algorithm': (
    'fed_rep',
    {
      name: list(own_flags.values())
      for name, own_flags in _HPARAM_FLAGS.items()
    },
  ),
  'dataset': (
    settings.DataOptions.name,
    {name: DATASET_ARGUMENTS.names(name) for name in datasets.DATASETS},
  ),
  'model': (
    settings.ModelOptions.name,
    {name: _MODEL_ARGUMENTS.names(name) for name in zoo.MODELS},
  ),
  'aggregator': (
    'mean',
    {name: _PRIVACY_ARGUMENTS.names(name) for name in privacy.AGGREGATORS},
  ),
  'runtime': runtime_flags.FLAGS_OF_RUNTIME,
}
program.GROUPS.update(
  {
    'Method': ['algorithm', *_SHARED, *_METHOD_FLAGS],
    'Data': [*_DATA, *DATASET_ARGUMENTS.names()],
    'Model': [*_MODEL, *_MODEL_ARGUMENTS.names()],
    'Rounds and evaluation': [*_ROUNDS, 'seed'],
    'Personalization': _PERSONALIZATION_FLAGS,
    'Training and aggregation': [
      *_TRAINING,
      *_PROCESS,
      *_PRIVACY_ARGUMENTS.names(),
    ],
    'Start': _START,
    'Runtime': runtime_flags.NAMES,
  }
)
program.FLAGS_WITHIN.update(
  hparams=lambda name: (
    [
      own_flags[name]
      for own_flags in _HPARAM_FLAGS.values()
      if name in own_flags
    ]
    or [name]
  ),
  model_arguments=lambda name: [f'model_{name}'],
  dataset_arguments=lambda name: [f'dataset_{name}'],
)


def check_selected(*selected: str) -> None:
  """Rejects hyperparameter flags of methods that are not selected.

  A preset may have such flags, so that a user can select some of its methods.

  Raises:
    ValueError: If the command line has such a flag. The message names it.
  """
  for name, hparam_flags in _HPARAM_FLAGS.items():
    for flag in hparam_flags.values():
      if (
        name not in selected
        and flags.FLAGS[flag].present
        and program.is_on_command_line(flag)
      ):
        raise ValueError(
          f'Expected flags of the selected method ({", ".join(selected)}) only,'
          f' found --{flag}.'
        )


def _names() -> list[str]:
  return [
    *KEY_FLAGS,
    *runtime_flags.NAMES,
    *_PRIVACY_ARGUMENTS.names(),
    *_MODEL_ARGUMENTS.names(),
    *DATASET_ARGUMENTS.names(),
    *_METHOD_FLAGS,
  ]


def _given(owner: type, flag_of: Mapping[str, str]) -> dict[str, Any]:
  """The fields whose flags are set, with None for a 0 that means None."""
  resettable = fields.none_for_zero(owner)
  return {
    field: None if value == 0 and field in resettable else value
    for field, value in made_flags.given(flag_of).items()
  }


def refuse(names: Iterable[str], reason: str) -> None:
  """Raises `ValueError` if one of these flags of a run is set."""
  for name in names:
    if flags.FLAGS[name].present:
      raise ValueError(f'Expected no --{name}: {reason}.')


def refuse_all_but(names: Collection[str], reason: str) -> None:
  """Raises `ValueError` if any other flag of a run is set."""
  refuse([name for name in _names() if name not in names], reason)


def selected_algorithm() -> str:
  """The method that --algorithm names."""
  return flags.FLAGS.algorithm or 'fed_rep'


def hparams_from_flags(algorithm: str) -> Any:
  """A method's hyperparameters, with defaults for flags that are not set."""
  owner = registry.get_algorithm(algorithm).hparams
  flag_of = dict(_HPARAM_FLAGS[algorithm])
  for name in registry.SHARED:
    for field in registry.fields_called(name, owner):
      own = flag_of.get(field)
      if own is None or flags.FLAGS[own].value is None:
        flag_of[field] = name
  with _naming(flag_of):
    hparams = owner(**_given(owner, flag_of))
  _expect_steps_or_epochs(_HPARAM_FLAGS[algorithm], hparams)
  return hparams


def _naming(flag_of):
  """Makes errors name the flags of a dataclass's fields."""
  return errors.naming({name: f'--{flag}' for name, flag in flag_of.items()})


def _expect_steps_or_epochs(flag_of: Mapping[str, str], hparams: Any) -> None:
  """Rejects a number of epochs if a number of steps replaces it."""
  for field_name, flag in flag_of.items():
    steps = hparams_lib.steps_instead_of(type(hparams), field_name)
    if (
      steps is not None
      and flags.FLAGS[flag].present
      and getattr(hparams, steps) is not None
    ):
      raise ValueError(
        f'Expected no --{flag}: --{flag_of[steps]} is '
        f'{getattr(hparams, steps)}, and steps are used instead of epochs. '
        f'Give --{flag_of[steps]}=0 to use epochs.'
      )


def personalization_from_flags(
  *, has_variants: bool = False, **defaults: Any
) -> personalization.Personalization:
  """The personalization options from the flags.

  Args:
    has_variants: True if models are also fine-tuned in other ways than
      --fine_tune, with the same options.
    **defaults: Values of options whose flags are not set.
  """
  owner = personalization.Personalization
  set_by_flags = _given(owner, _PERSONALIZATION)
  values = {**defaults, **set_by_flags}
  if 'num_epochs' in set_by_flags:
    # A default number of steps would replace the epochs.
    values['num_steps'] = set_by_flags.get('num_steps')
  if not has_variants and values.get('fine_tune', 'method') not in (
    'head',
    'all',
  ):
    refuse(
      [name for name in _names() if name.startswith('fine_tune_')],
      "it is for --fine_tune=head or all (a method's own fine-tuning has flags "
      "with the method's name)",
    )
  with _naming(_PERSONALIZATION):
    options = owner(**values)
  _expect_steps_or_epochs(_PERSONALIZATION, options)
  return options


def _aggregator(name):
  """The `ProcessOptions.aggregator` from the flags."""
  arguments = _PRIVACY_ARGUMENTS.given(name)
  owner = privacy.AGGREGATORS.get(name)
  if owner is None:
    return name
  with _naming({name: f'dp_{name}' for name in fields.hints(owner)}):
    return owner(**arguments)


def settings_from_flags(
  algorithm: str, *, has_variants: bool = False
) -> settings.Settings:
  """The settings of a run from the flags.

  Args:
    algorithm: The method, a key of `registry.ALGORITHMS`.
    has_variants: As for `personalization_from_flags`.
  """
  values = made_flags.given({name: name for name in _FLAT})
  if not {'cohort_size', 'participation'} & set(values):
    values['participation'] = _PARTICIPATION
  weights = values.get('initial_weights')
  # A run that has begun continues from its own copy.
  if weights is not None and not os.path.exists(flags.FLAGS.output_dir):
    errors.expect(
      os.path.isfile(weights), '--initial_weights', 'a file', weights
    )
  selected = {
    name: values.get(name, default) for name, (default, _) in FLAGS_OF.items()
  }
  return settings.Settings(
    **{
      **values,
      'method': hparams_from_flags(algorithm),
      'aggregator': _aggregator(selected['aggregator']),
      'dataset_arguments': DATASET_ARGUMENTS.given(selected['dataset']),
      'model_arguments': _MODEL_ARGUMENTS.given(selected['model']),
      'personalization': personalization_from_flags(has_variants=has_variants),
      'runtime': runtime_flags.selected_runtime(),
    }
  )
