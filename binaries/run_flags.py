"""Flags of a run, and the `RunConfig` that they give."""

import dataclasses
import inspect
import os
import typing
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Optional, Union

from absl import flags

from tff_pfl import datasets, errors
from tff_pfl.core import (
  aggregators,
  attacks,
  options,
  personalization,
  phases,
  schedules,
  training_options,
)
from tff_pfl.core import hparams as hparams_lib
from tff_pfl.methods import registry
from tff_pfl.models import (
  augmentation,
  class_weights,
  client_metrics,
  domain_models,
  weight_files,
  zoo,
)
from tff_pfl.runs import client_sampling, privacy, run_config, warm_up

from . import program, runtime_flags


def _define_field(
  name: str,
  owner: type,
  field: str,
  text: Optional[str] = None,
  choices: Collection[str] = (),
  lower_bound: Optional[int] = None,
) -> None:
  """Defines a flag of a dataclass's field; unset means the field's default.

  Args:
    name: The flag's name.
    owner: The dataclass.
    field: Name of the field.
    text: Help text; None for that of the dataclass's docstring.
    choices: Values that a string may have; empty for any.
    lower_bound: Least value of an integer.
  """
  text = text or hparams_lib.help_text(owner, field)
  default = getattr(owner, field)
  if field in hparams_lib.none_for_zero(owner):
    text += ' 0 stands for None.'
  if '(default: ' not in text:
    text += f' (default: {default})'
  hint = typing.get_type_hints(owner)[field]
  if choices:
    flags.DEFINE_enum(name, None, list(choices), text)
  elif lower_bound is not None:
    flags.DEFINE_integer(name, None, text, lower_bound)
  else:
    _define(hint)(name, None, text)


def _define(hint):
  """The function that defines a flag of a type."""
  if _is_list(hint):
    return flags.DEFINE_list
  kinds = [hint, *typing.get_args(hint)]
  for kind, define in (
    (float, flags.DEFINE_float),
    (str, flags.DEFINE_string),
    (bool, flags.DEFINE_boolean),
  ):
    if kind in kinds:
      return define
  return flags.DEFINE_integer


class ArgumentFlags:
  """A flag for each keyword argument that functions of one kind have.

  Help texts are those of the functions' docstrings; unset means a function's
  default.
  """

  def __init__(
    self,
    kind: str,
    functions: Mapping[str, Callable[..., Any]],
    common: Collection[str] = (),
    prefix: Optional[str] = None,
  ):
    """Defines the flags.

    Args:
      kind: Flag that selects one of the functions, such as 'model'.
      functions: Functions by the flag's value.
      common: Arguments that have flags of their own.
      prefix: Beginning of the flags' names; None for `kind`.
    """
    self._kind = kind
    self._prefix = prefix or kind
    self._hints: dict[str, Any] = {}
    # By argument the default of each function that has it.
    self._defaults: dict[str, dict[str, Any]] = {}
    for name, function in functions.items():
      hints = typing.get_type_hints(function)
      parameters = inspect.signature(function).parameters
      for argument in errors.own_arguments(function, common):
        self._hints.setdefault(argument, hints[argument])
        by_owner = self._defaults.setdefault(argument, {})
        by_owner[name] = parameters[argument].default
    for name, by_owner in self._defaults.items():
      text = hparams_lib.help_text(functions[next(iter(by_owner))], name)
      text += f' (default: {_each(by_owner)})'
      of = f'--{kind}={" or ".join(by_owner)}'
      define = _define(self._hints[name])
      define(f'{self._prefix}_{name}', None, f'With {of}: {text}')

  def names(self, of: Optional[str] = None) -> list[str]:
    """The names of all flags, or of those that one function has."""
    return [
      f'{self._prefix}_{name}'
      for name, by_owner in self._defaults.items()
      if of is None or any(of in owner.split(' or ') for owner in by_owner)
    ]

  def given(self, of: str) -> dict[str, Any]:
    """The arguments whose flags are given.

    Args:
      of: The function that takes them.

    Raises:
      ValueError: If that has no such argument, or one should be integers and is
        not.
    """
    arguments = {}
    own = self.names(of)
    for name, hint in self._hints.items():
      flag = f'{self._prefix}_{name}'
      value = flags.FLAGS[flag].value
      # An empty list takes a flag back that a preset gives.
      if value is not None and value != []:
        if flag not in own:
          taken = ', '.join(f'--{one}' for one in own) or 'none'
          raise ValueError(
            f'Expected no --{flag}: --{self._kind}={of} does not take it, of '
            f'such flags it takes {taken}.'
          )
        if _is_list(hint, int):
          value = _integers(flag, value)
          if len(value) == 1 and hint == Union[int, Sequence[int]]:
            (value,) = value
        arguments[name] = value
    return arguments


def _is_list(hint, *items) -> bool:
  """True for a sequence of integers or strings, or a type that may be one."""
  return any(
    f'Sequence[{item.__name__}]' in str(hint) for item in items or (int, str)
  )


def _each(defaults):
  """One default that all share, or each owner's."""
  if len({str(value) for value in defaults.values()}) == 1:
    return next(iter(defaults.values()))
  return ', '.join(f'{owner} {value}' for owner, value in defaults.items())


def _integers(flag, texts):
  try:
    return [int(text) for text in texts]
  except ValueError:
    raise ValueError(
      errors.message(
        f'--{flag}', 'integers separated by commas', ','.join(texts)
      )
    ) from None


# Help texts of fields of `RunConfig` that are not those of its docstring.
_TEXTS = {
  'algorithm': 'The method: '
  + '; '.join(f'{n}: {a.summary}' for n, a in registry.ALGORITHMS.items())
  + '.',
  'dataset': f'The data. {datasets.describe_datasets()}.',
  'data_dir': "Folder with the data set's files, if it reads any, or the file "
  'itself.',
  'partition': 'Partition of the data among clients. '
  + datasets.describe_partitioners()
  + ' (default: natural if the data name their clients, or else shards:2)',
  'num_clients': 'Number of clients (default: all with the partition natural, '
  'or else 30).',
  'model': 'The network. linear; mlp; cnn: the 5-layer CNN of FedRep, '
  'or other convolutions; resnet_18, resnet_34 and vgg_16: with group '
  'normalization, or as torchvision has them; image_and_record: a residual '
  'network and the columns of a record; text_mlp: of the mean of '
  "the words' embeddings; text_lstm: of characters or words.",
  'domain_model': 'Use of domains by the model: shared ignores them, '
  'multi_head has a head for each, input gives the head the domain beside the '
  'features.',
  'initial_run': 'Folder of a finished run of the same network, whose global '
  'model this one (or its warm-up) starts from.',
  'initial_run_part': 'Part of the model of --initial_run that is taken: all, '
  'or the body alone, with a random head, as where the other run had other '
  'classes.',
  'initial_weights': 'File of weights that this run (or its warm-up) starts '
  f'from ({", ".join(weight_files.ENDINGS)}), such as those of '
  'keras.applications; the last layers start at random where it has none that '
  'fit.',
  'num_warmup_rounds': 'Rounds of FedAvg before those of the run, with the '
  'local training of the method (or of each baseline), which starts from their '
  'model.',
  'num_warmup_epochs': 'Local epochs of these rounds (default: the local '
  'training of the method).',
  'cohort_size': 'Clients in a round (default: by --participation).',
  'aggregator': "Aggregation of clients' updates: "
  f'{", ".join(aggregators.AGGREGATORS)}, {" or ".join(privacy.AGGREGATORS)} '
  '(secure: simulated, the worker sums in the clear; trimmed_mean:<share of '
  'clients at either end>; dp: clipped, with noise of the server, see '
  '--dp_epsilon; ddp: clipped, with noise of the clients, under secure sums).',
  'attack': f'Attack by some clients: {attacks.FORMS}. The others are scored.',
  'client_weighting': "Clients' weights in the aggregation (default: the "
  "method's own, num_examples of most; uniform of l2gd, p_fed_me, scaffold).",
  'statistics': 'Moving statistics of batch normalization: global (averaged '
  'with the global weights), local (kept by the client) or local_all (kept '
  'with the scales and offsets).',
  'augmentation': 'Random changes of images in training, drawn anew in each '
  f'step: {augmentation.FORMS}.',
  'class_weight': 'Weights of the classes in the loss of training, not in '
  f'reported losses: {class_weights.FORMS}.',
  'metrics': 'Further metrics to report, such as auc,f1_macro or rmse,r2: '
  f'{", ".join(client_metrics.NAMES)}, and those of Keras that are means over '
  'examples, such as mse and top_5_accuracy (default: none).',
  **{
    name: hparams_lib.help_text(training_options.TrainingOptions, name)
    for name in ('weight_decay', 'decoupled_weight_decay', 'max_gradient_norm')
  },
  'learning_rate_schedule': "Factor of the clients' learning rates by round: "
  f'{schedules.FORMS}, or several joined by +.',
  'server_learning_rate_schedule': "Factor of the server optimizer's learning "
  'rate by round, in the same forms.',
  'server_optimizer': 'Optimizer of the aggregated update; sgd with learning '
  "rate 1 takes the mean of the clients' weights.",
}
_CHOICES = {
  'algorithm': registry.ALGORITHMS,
  'dataset': datasets.DATASETS,
  'model': zoo.MODELS,
  'domain_model': domain_models.KINDS,
  'initial_run_part': warm_up.INITIAL_RUN_PARTS,
  'client_weighting': options.CLIENT_WEIGHTINGS,
  'statistics': options.STATISTICS,
  'server_optimizer': phases.OPTIMIZERS,
}
_HINTS = typing.get_type_hints(run_config.RunConfig)
# Those that have a flag of their own name.
_FIELDS = [
  name
  for name in _HINTS
  if not name.endswith(('hparams', 'arguments', 'personalization', 'runtime'))
]
for _name in _FIELDS:
  _default = getattr(run_config.RunConfig, _name)
  _define_field(
    _name,
    run_config.RunConfig,
    _name,
    _TEXTS.get(_name),
    _CHOICES.get(_name, ()),
    lower_bound=min(_default, 1) if _HINTS[_name] is int else None,
  )
_PARTICIPATION = flags.DEFINE_float(
  'participation',
  None,
  'Fraction of the clients in a round, instead of --cohort_size (default: '
  '0.1).',
)
_BATCH_SIZE = flags.DEFINE_integer(
  'batch_size',
  None,
  "Examples per batch of the clients' training; 0 is the full batch (default: "
  "the method's: 10, of per_fed_avg 40, of fed_dar 32; give it where methods "
  'are compared).',
  lower_bound=0,
)
_MODEL_ARGUMENTS = ArgumentFlags('model', zoo.MODELS)
_POOLED = [
  name for name, its in datasets.DATASETS.items() if not its.comes_by_client
]
_PRIVACY_ARGUMENTS = ArgumentFlags(
  'aggregator', privacy.AGGREGATORS, prefix='dp'
)
DATASET_ARGUMENTS = ArgumentFlags(
  'dataset',
  {
    # What these take besides their loaders' own arguments.
    ' or '.join(_POOLED): datasets.load_dataset,
    **{name: entry.loader for name, entry in datasets.DATASETS.items()},
  },
  common=(*datasets.COMMON_ARGUMENTS, 'num_clients', 'partition'),
)


# By field of `Personalization` its flag.
_PERSONALIZATION = {
  field.name: field.name
  if field.name.startswith(('fine_tune', 'new_client'))
  else f'fine_tune_{field.name}'
  for field in dataclasses.fields(personalization.Personalization)
}
for _field, _name in _PERSONALIZATION.items():
  _define_field(_name, personalization.Personalization, _field)
# `batch_size` is one flag for all methods.
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
    _text = f'{_algorithm}: {hparams_lib.help_text(_owner, _field)}'
    _define_field(_name, _owner, _field, _text)
# All but those of methods, models and such, which --help has where selected.
KEY_FLAGS = (
  *_FIELDS,
  *('participation', 'batch_size'),
  *_PERSONALIZATION.values(),
  *runtime_flags.NAMES,
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
  personalization=lambda name: [_PERSONALIZATION[name]],
)


def flags_of_algorithm(name: str) -> Collection[str]:
  """The names of the flags of a method's hyperparameters."""
  return _HPARAM_FLAGS.get(name, {}).values()


# Flags that --help shows only with the flag that selects them.
FLAGS_OF = {
  'algorithm': flags_of_algorithm,
  'dataset': DATASET_ARGUMENTS.names,
  'model': _MODEL_ARGUMENTS.names,
  'aggregator': _PRIVACY_ARGUMENTS.names,
}


def check_selected(*selected: str) -> None:
  """Refuses hyperparameter flags of methods that are not selected.

  A preset may have them, so that some of its methods can be selected.

  Raises:
    ValueError: If there is one; the message names it.
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
    *_PRIVACY_ARGUMENTS.names(),
    *_MODEL_ARGUMENTS.names(),
    *DATASET_ARGUMENTS.names(),
    *(
      flag
      for own_flags in _HPARAM_FLAGS.values()
      for flag in own_flags.values()
    ),
  ]


def _given(owner: type, flag_of: Mapping[str, str]) -> dict[str, Any]:
  """The fields of a dataclass whose flags are given, 0 as None where it is."""
  resettable = hparams_lib.none_for_zero(owner)
  values = {field: flags.FLAGS[flag].value for field, flag in flag_of.items()}
  return {
    field: None if value == 0 and field in resettable else value
    for field, value in values.items()
    if value is not None
  }


def refuse(names: Iterable[str], reason: str) -> None:
  """Raises `ValueError` if one of these flags of a run is given."""
  for name in names:
    if flags.FLAGS[name].present:
      raise ValueError(f'Expected no --{name}: {reason}.')


def refuse_all_but(names: Collection[str], reason: str) -> None:
  """Raises `ValueError` if any other flag of a run is given."""
  refuse([name for name in _names() if name not in names], reason)


def selected_algorithm() -> str:
  """The method that --algorithm names."""
  return flags.FLAGS.algorithm or run_config.RunConfig.algorithm


def hparams_from_flags(algorithm: str) -> Any:
  """A method's hyperparameters, with defaults where flags are not given."""
  owner = registry.get_algorithm(algorithm).hparams
  flag_of = {**_HPARAM_FLAGS[algorithm], 'batch_size': 'batch_size'}
  with _naming(flag_of):
    hparams = owner(**_given(owner, flag_of))
  _expect_steps_or_epochs(_HPARAM_FLAGS[algorithm], hparams)
  return hparams


def _naming(flag_of):
  """Has errors name the flags of a dataclass's fields."""
  return errors.naming({name: f'--{flag}' for name, flag in flag_of.items()})


def _expect_steps_or_epochs(flag_of: Mapping[str, str], hparams: Any) -> None:
  """Refuses a number of epochs where a number of steps takes its place."""
  for field_name, flag in flag_of.items():
    steps = hparams_lib.steps_instead_of(type(hparams), field_name)
    if (
      steps is not None
      and flags.FLAGS[flag].present
      and getattr(hparams, steps) is not None
    ):
      raise ValueError(
        f'Expected no --{flag}: --{flag_of[steps]} is '
        f'{getattr(hparams, steps)}, and steps are instead of epochs. Give '
        f'--{flag_of[steps]}=0 for epochs.'
      )


def personalization_from_flags(
  *, has_variants: bool = False, **defaults: Any
) -> personalization.Personalization:
  """The options of personalization that the flags give.

  Args:
    has_variants: True if models are also fine-tuned in other ways than
      --fine_tune, with the same options.
    **defaults: Values of options whose flags are not given.
  """
  owner = personalization.Personalization
  set_by_flags = _given(owner, _PERSONALIZATION)
  given = {**defaults, **set_by_flags}
  if 'num_epochs' in set_by_flags:
    # Steps by default would be instead of them.
    given['num_steps'] = set_by_flags.get('num_steps')
  if not has_variants and given.get('fine_tune', 'method') not in (
    'head',
    'all',
  ):
    refuse(
      [name for name in _names() if name.startswith('fine_tune_')],
      'it is for --fine_tune=head or all (what a method does by itself has '
      "flags with the method's name)",
    )
  with _naming(_PERSONALIZATION):
    options = owner(**given)
  _expect_steps_or_epochs(_PERSONALIZATION, options)
  return options


def _aggregator(name):
  """The `RunConfig.aggregator` that the flags give."""
  given = _PRIVACY_ARGUMENTS.given(name)
  owner = privacy.AGGREGATORS.get(name)
  if owner is None:
    return name
  with _naming({f.name: f'dp_{f.name}' for f in dataclasses.fields(owner)}):
    return owner(**given)


def config_from_flags(
  algorithm: str, *, has_variants: bool = False
) -> run_config.RunConfig:
  """The settings of a run that the flags give.

  Args:
    algorithm: The method, a key of `registry.ALGORITHMS`.
    has_variants: As for `personalization_from_flags`.
  """
  given = _given(run_config.RunConfig, {name: name for name in _FIELDS})
  dataset = given.get('dataset', run_config.RunConfig.dataset)
  dataset_arguments = DATASET_ARGUMENTS.given(dataset)
  if 'cohort_size' not in given:
    given['num_clients'], given['partition'] = datasets.resolve_clients(
      dataset,
      given.get('num_clients'),
      given.get('partition'),
      data_dir=given.get('data_dir'),
      seed=given.get('seed', run_config.RunConfig.seed),
      **dataset_arguments,
    )
    participation = _PARTICIPATION.value
    given['cohort_size'] = client_sampling.cohort_size_from_participation(
      given['num_clients'],
      0.1 if participation is None else participation,
    )
  elif _PARTICIPATION.value is not None:
    raise ValueError(
      'Expected one of --cohort_size and --participation, found both.'
    )
  weights = given.get('initial_weights')
  # What has begun goes on from its own copy.
  if weights is not None and not os.path.exists(flags.FLAGS.output_dir):
    errors.expect(
      os.path.isfile(weights), '--initial_weights', 'a file', weights
    )
  return run_config.RunConfig(
    **{
      **given,
      'algorithm': algorithm,
      'aggregator': _aggregator(
        given.get('aggregator', run_config.RunConfig.aggregator)
      ),
      'hparams': hparams_from_flags(algorithm),
      'dataset_arguments': dataset_arguments,
      'model_arguments': _MODEL_ARGUMENTS.given(
        given.get('model', run_config.RunConfig.model)
      ),
      'personalization': personalization_from_flags(has_variants=has_variants),
      'runtime': runtime_flags.selected_runtime(),
    }
  )
