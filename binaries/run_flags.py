"""Flags of a run, and the `RunConfig` that they give."""

import dataclasses
from collections.abc import Collection, Iterable
from typing import Any

from absl import flags

from binaries import argument_flags, runtime_flags
from tff_pfl import datasets
from tff_pfl.algorithms import registry
from tff_pfl.client import hparams as hparams_lib
from tff_pfl.client import phases, schedules, training_options
from tff_pfl.models import augmentation, domain_models, zoo
from tff_pfl.simulation import (
  client_sampling,
  privacy,
  run_config,
  warm_up,
)
from tff_pfl.templates import (
  aggregators,
  attacks,
  options,
  personalization,
  private_mean,
)

_ALGORITHM = flags.DEFINE_enum(
  'algorithm',
  'fed_rep',
  list(registry.ALGORITHMS),
  'The method: '
  + '; '.join(f'{n}: {a.summary}' for n, a in registry.ALGORITHMS.items())
  + '.',
)
_DATASET = flags.DEFINE_enum(
  'dataset',
  'digits',
  list(datasets.DATASETS),
  f'The data. {datasets.describe_datasets()}.',
)
_DATA_DIR = flags.DEFINE_string(
  'data_dir',
  None,
  "Folder with the data set's files, if it reads any, or the file itself "
  '(--csv is the same).',
)
flags.DEFINE_alias('csv', 'data_dir')  # For data sets that are one table.
_PARTITION = flags.DEFINE_string(
  'partition',
  'shards:2',
  f'How the data are divided among clients. {datasets.describe_partitioners()}',
)
_NUM_CLIENTS = flags.DEFINE_integer(
  'num_clients', 30, 'Number of clients.', lower_bound=1
)
_MODEL = flags.DEFINE_enum(
  'model',
  'mlp',
  list(zoo.MODELS),
  'The network. linear; mlp; cnn: the 5-layer CNN of FedRep; resnet_18 and '
  'vgg_16: with group normalization; text_mlp: of the mean of the '
  "words' embeddings; text_lstm: of characters or words.",
)
_MODEL_ARGUMENTS = argument_flags.ArgumentFlags('model', zoo.MODELS)
_POOLED = [
  name for name, its in datasets.DATASETS.items() if not its.comes_by_client
]
DATASET_ARGUMENTS = argument_flags.ArgumentFlags(
  'dataset',
  {
    # What these take besides their loaders' own arguments.
    ' or '.join(_POOLED): datasets.load_dataset,
    **{name: entry.loader for name, entry in datasets.DATASETS.items()},
  },
  common=(*datasets.COMMON_ARGUMENTS, 'num_clients', 'partition', 'classes'),
)
_DOMAIN_MODEL = flags.DEFINE_enum(
  'domain_model',
  'shared',
  list(domain_models.KINDS),
  'What the model does with domains: shared ignores them, multi_head has a '
  'head for each, input gives the head the domain beside the features.',
)
_REWEIGHT_DOMAINS = flags.DEFINE_boolean(
  'reweight_domains',
  False,
  'Whether all domains count the same in the loss, where all weights are '
  'trained together.',
)
_INITIAL_RUN = flags.DEFINE_string(
  'initial_run',
  None,
  'Folder of a finished run of the same network, whose global model this one '
  '(or its warm-up) starts from.',
)
_INITIAL_RUN_PART = flags.DEFINE_enum(
  'initial_run_part',
  'all',
  list(warm_up.INITIAL_RUN_PARTS),
  'What of the model of --initial_run is taken: all, or the body alone, with a '
  'random head, as where the other run had other classes.',
)
_NUM_WARMUP_ROUNDS = flags.DEFINE_integer(
  'num_warmup_rounds',
  0,
  'Rounds of FedAvg before those of the run, with the local training of the '
  'method (or of each baseline), which starts from their model.',
  lower_bound=0,
)
_NUM_ROUNDS = flags.DEFINE_integer(
  'num_rounds', 100, 'Rounds of training.', lower_bound=1
)
_COHORT_SIZE = flags.DEFINE_integer(
  'cohort_size', None, 'Clients in a round.', lower_bound=1
)
_PARTICIPATION = flags.DEFINE_float(
  'participation',
  None,
  'Fraction of the clients in a round, instead of --cohort_size '
  '(default: 0.1).',
)
_BATCH_SIZE = flags.DEFINE_integer(
  'batch_size',
  None,
  "Examples per batch of the clients' training; 0 is the full batch (default: "
  "the method's: 10, of per_fed_avg 40, of fed_dar 32; give it where methods "
  'are compared).',
  lower_bound=0,
)
_ROUNDS_PER_EVALUATION = flags.DEFINE_integer(
  'rounds_per_evaluation',
  10,
  'Rounds between evaluations of all clients.',
  lower_bound=1,
)
_NUM_FINAL_EVALUATIONS = flags.DEFINE_integer(
  'num_final_evaluations',
  10,
  'How many of the last rounds are all evaluated.',
  lower_bound=1,
)
_SEED = flags.DEFINE_integer(
  'seed',
  0,
  'Seed of the partition, the initial weights, the sampling and all client '
  'work.',
  lower_bound=0,
)
_AGGREGATOR = flags.DEFINE_string(
  'aggregator',
  'mean',
  "How clients' updates are aggregated: "
  f'{", ".join(aggregators.AGGREGATORS)}, {privacy.PRIVATE} or '
  f'{privacy.DISTRIBUTED} (secure: simulated, the worker sums in the clear; '
  'trimmed_mean:<share of clients at either end>; dp: clipped, with noise, see '
  '--dp_epsilon; ddp: the noise is added by the clients, and sums are secure).',
)
_DP_EPSILON = flags.DEFINE_float(
  'dp_epsilon',
  None,
  'With --aggregator=dp: what the run may tell of a client; the noise for it '
  'is found.',
)
_DP_NOISE_MULTIPLIER = flags.DEFINE_float(
  'dp_noise_multiplier',
  None,
  'With --aggregator=dp, in place of --dp_epsilon, or ddp: the noise of a '
  'round, in clipping norms.',
)
_DP_DELTA = flags.DEFINE_float(
  'dp_delta', None, 'The δ of ε (default: number of clients ** -1.1).'
)
_DP_CLIP = flags.DEFINE_string(
  'dp_clip',
  'adaptive:0.5',
  'With --aggregator=dp or ddp, the norm to which what a client sends is '
  f'clipped: {private_mean.CLIP_FORMS} of the norms (not with ddp).',
)
_DP_BITS = flags.DEFINE_integer(
  'dp_bits', 20, 'With --aggregator=ddp: bits of a number of the sum.'
)
_DP_METRICS = flags.DEFINE_enum(
  'dp_metrics',
  'plain',
  list(options.TRAINING_METRICS),
  'With --aggregator=dp or ddp, whether losses, metrics and counts of training '
  'leave clients, which are not private.',
)
_ATTACK = flags.DEFINE_string(
  'attack',
  'none',
  f'What attacked clients do: {attacks.FORMS}. The others are scored.',
)
_ATTACKED_FRACTION = flags.DEFINE_float(
  'attacked_fraction', 0.0, 'Share of the clients that are attacked.'
)
_CLIENT_WEIGHTING = flags.DEFINE_enum(
  'client_weighting',
  None,
  list(options.CLIENT_WEIGHTINGS),
  "Clients' weights in the aggregation (default: the method's own, "
  'num_examples of most; uniform of l2gd, p_fed_me, scaffold).',
)
_STATISTICS = flags.DEFINE_enum(
  'statistics',
  'global',
  list(options.STATISTICS),
  'Where batch normalization has its moving statistics: averaged with the '
  'global weights, kept by the client (local), or kept with its scales and '
  'offsets (local_all).',
)
_AUGMENTATION = flags.DEFINE_string(
  'augmentation',
  'none',
  'Random changes of images in training, drawn anew in each step: '
  f'{augmentation.FORMS}.',
)
_LEARNING_RATE_SCHEDULE = flags.DEFINE_string(
  'learning_rate_schedule',
  'constant',
  "Factor of the clients' learning rates by round: "
  f'{schedules.FORMS}, or several joined by +.',
)
_SERVER_LEARNING_RATE_SCHEDULE = flags.DEFINE_string(
  'server_learning_rate_schedule',
  'constant',
  "The same for the server optimizer's learning rate.",
)
_STATELESS = flags.DEFINE_boolean(
  'stateless',
  False,
  'Whether clients forget their local state after each round, as in '
  'deployments that cannot tell clients apart; it is fitted anew for scoring.',
)
_SERVER_OPTIMIZER = flags.DEFINE_enum(
  'server_optimizer',
  'sgd',
  list(phases.OPTIMIZERS),
  'Applied to the aggregated update; sgd with learning rate 1 takes the mean '
  "of the clients' weights.",
)
_SERVER_LEARNING_RATE = flags.DEFINE_float(
  'server_learning_rate', 1.0, "The server optimizer's learning rate."
)
_SERVER_MOMENTUM = flags.DEFINE_float(
  'server_momentum', 0.0, 'Momentum of --server_optimizer=sgd.'
)


def _none_for_zero(owner: type, given: dict[str, Any]) -> dict[str, Any]:
  """Turns 0 into None where None is a value and not the default."""
  resettable = hparams_lib.none_for_zero(owner)
  return {
    name: None if value == 0 and name in resettable else value
    for name, value in given.items()
  }


def _personalization_flag(field_name: str) -> str:
  if field_name.startswith(('fine_tune', 'new_client')):
    return field_name
  return f'fine_tune_{field_name}'


# Of training, whatever the method; the schedule is given by name.
_TRAINING = ('weight_decay', 'decoupled_weight_decay', 'max_gradient_norm')
_FIELD_FLAGS = [
  argument_flags.define_field(
    _personalization_flag(_field.name), personalization.Personalization, _field
  )
  for _field in dataclasses.fields(personalization.Personalization)
] + [
  argument_flags.define_field(
    _field.name, training_options.TrainingOptions, _field
  )
  for _field in dataclasses.fields(training_options.TrainingOptions)
  if _field.name in _TRAINING
]
for _name in (*_FIELD_FLAGS, *runtime_flags.names()):
  flags.declare_key_flag(_name)

# `batch_size` is one flag for all methods.
_HPARAM_FLAGS: dict[str, dict[str, str]] = {
  name: {
    field.name: argument_flags.define_field(
      f'{name}_{field.name}', algorithm.hparams, field, f'{name}: '
    )
    for field in dataclasses.fields(algorithm.hparams)
    if field.name != 'batch_size'
  }
  for name, algorithm in registry.ALGORITHMS.items()
}


def flags_of_algorithm(name: str) -> Collection[str]:
  """The names of the flags of a method's hyperparameters."""
  return _HPARAM_FLAGS.get(name, {}).values()


# What --help shows only with a flag that says whose flags; see `program.run`.
FLAGS_OF = {
  'algorithm': flags_of_algorithm,
  'dataset': DATASET_ARGUMENTS.names,
  'model': _MODEL_ARGUMENTS.names,
}


def check_selected(*selected: str) -> None:
  """Refuses hyperparameter flags of methods that are not selected.

  Raises:
    ValueError: If there is one; the message names it.
  """
  for name, hparam_flags in _HPARAM_FLAGS.items():
    for flag in hparam_flags.values():
      if name not in selected and flags.FLAGS[flag].present:
        raise ValueError(
          f'Expected flags of the selected method ({", ".join(selected)}) only,'
          f' found --{flag}.'
        )


def _names() -> list[str]:
  own = flags.FLAGS.get_flags_for_module(__name__)
  return [
    *(flag.name for flag in own),
    *_FIELD_FLAGS,
    *runtime_flags.names(),
    *_MODEL_ARGUMENTS.names(),
    *DATASET_ARGUMENTS.names(),
    *(flag for of_one in _HPARAM_FLAGS.values() for flag in of_one.values()),
  ]


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
  return _ALGORITHM.value


def hparams_from_flags(algorithm: str) -> Any:
  """The method's hyperparameters, defaults where flags are not given."""
  given = {
    field_name: flags.FLAGS[flag].value
    for field_name, flag in _HPARAM_FLAGS[algorithm].items()
    if flags.FLAGS[flag].value is not None
  }
  if _BATCH_SIZE.value is not None:
    given['batch_size'] = _BATCH_SIZE.value
  owner = registry.get_algorithm(algorithm).hparams
  hparams = owner(**_none_for_zero(owner, given))
  _expect_steps_or_epochs(algorithm, hparams)
  return hparams


def _expect_steps_or_epochs(algorithm: str, hparams: Any) -> None:
  """Refuses a number of epochs where a number of steps takes its place."""
  for field_name, flag in _HPARAM_FLAGS[algorithm].items():
    steps = hparams_lib.steps_instead_of(type(hparams), field_name)
    if (
      steps is not None
      and flags.FLAGS[flag].present
      and getattr(hparams, steps) is not None
    ):
      raise ValueError(
        f'Expected no --{flag}: --{_HPARAM_FLAGS[algorithm][steps]} is '
        f'{getattr(hparams, steps)}, and steps are instead of epochs.'
      )


def personalization_from_flags(
  *, has_variants: bool = False, **defaults: Any
) -> personalization.Personalization:
  """The options of personalization.

  Args:
    has_variants: Whether models are fine-tuned also otherwise than --fine_tune
      says, with the same options.
    **defaults: Values where flags are not given.
  """
  given = dict(defaults)
  for field in dataclasses.fields(personalization.Personalization):
    value = flags.FLAGS[_personalization_flag(field.name)].value
    if value is not None:
      given[field.name] = value
  if not has_variants and given.get('fine_tune', 'method') not in (
    'head',
    'all',
  ):
    refuse(
      [name for name in _names() if name.startswith('fine_tune_')],
      'it is for --fine_tune=head or all (what a method does by itself has '
      "flags with the method's name)",
    )
  return personalization.Personalization(
    **_none_for_zero(personalization.Personalization, given)
  )


def config_from_flags(
  algorithm: str, *, has_variants: bool = False
) -> run_config.RunConfig:
  """The settings of a run that the flags give.

  Args:
    has_variants: As for `personalization_from_flags`.
  """
  if _COHORT_SIZE.value is not None and _PARTICIPATION.value is not None:
    raise ValueError(
      'Expected one of --cohort_size and --participation, found both.'
    )
  cohort_size = _COHORT_SIZE.value
  if cohort_size is None:
    participation = _PARTICIPATION.value
    cohort_size = client_sampling.cohort_size_from_participation(
      _NUM_CLIENTS.value, 0.1 if participation is None else participation
    )
  return run_config.RunConfig(
    algorithm=algorithm,
    hparams=hparams_from_flags(algorithm),
    dataset=_DATASET.value,
    data_dir=_DATA_DIR.value,
    dataset_arguments=DATASET_ARGUMENTS.given(),
    partition=_PARTITION.value,
    num_clients=_NUM_CLIENTS.value,
    model=_MODEL.value,
    model_arguments=_MODEL_ARGUMENTS.given(),
    domain_model=_DOMAIN_MODEL.value,
    reweight_domains=_REWEIGHT_DOMAINS.value,
    aggregator=_AGGREGATOR.value,
    dp_epsilon=_DP_EPSILON.value,
    dp_noise_multiplier=_DP_NOISE_MULTIPLIER.value,
    dp_delta=_DP_DELTA.value,
    dp_clip=_DP_CLIP.value,
    dp_bits=_DP_BITS.value,
    dp_metrics=_DP_METRICS.value,
    attack=_ATTACK.value,
    attacked_fraction=_ATTACKED_FRACTION.value,
    client_weighting=_CLIENT_WEIGHTING.value,
    stateless=_STATELESS.value,
    server_optimizer=_SERVER_OPTIMIZER.value,
    server_learning_rate=_SERVER_LEARNING_RATE.value,
    server_momentum=_SERVER_MOMENTUM.value,
    statistics=_STATISTICS.value,
    augmentation=_AUGMENTATION.value,
    learning_rate_schedule=_LEARNING_RATE_SCHEDULE.value,
    server_learning_rate_schedule=_SERVER_LEARNING_RATE_SCHEDULE.value,
    **{
      name: flags.FLAGS[name].value
      for name in _TRAINING
      if flags.FLAGS[name].value is not None
    },
    personalization=personalization_from_flags(has_variants=has_variants),
    initial_run=_INITIAL_RUN.value,
    initial_run_part=_INITIAL_RUN_PART.value,
    num_warmup_rounds=_NUM_WARMUP_ROUNDS.value,
    num_rounds=_NUM_ROUNDS.value,
    cohort_size=cohort_size,
    rounds_per_evaluation=_ROUNDS_PER_EVALUATION.value,
    num_final_evaluations=_NUM_FINAL_EVALUATIONS.value,
    seed=_SEED.value,
    runtime=runtime_flags.selected_runtime(),
  )
