"""A study: methods, in conditions, with several seeds, described as data.

    study = pfl.Study(
      settings=dict(dataset='digits', num_clients=30, num_rounds=50),
      methods={
        'FedRep': pfl.Method('fed_rep', num_head_epochs=10),
        'FedAvg': pfl.Method('fed_avg'),
        'FedAvg + FT': pfl.Method('fed_avg', fine_tune='head'),
      },
      conditions={
        '2 classes': dict(partition='shards:2'),
        '5 classes': dict(partition='shards:5'),
      },
      seeds=range(5),
      claims=[pfl.better('FedRep', than='FedAvg', source='FedRep, table 1')],
    )
    results = study.run('runs/my_table')

Each method runs in each condition with each seed, as a trial. A trial is an
ordinary run in its own folder, in its own process or on a Ray cluster. Methods
share a run if they differ only in how their last models are fine-tuned, or in
which models are scored. Finished trials are not run again. Methods, conditions
and seeds may be added later.

Settings come from the study, the condition, the method and the scale, in this
order, and later values override earlier ones. A hyperparameter applies to each
method that has it. `fed_avg.momentum` applies to one method alone.
"""

from __future__ import annotations

import dataclasses
import numbers
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Annotated, Any, Optional

import pydantic

from tff_pfl import datasets, errors, fields
from tff_pfl import runtime as runtime_lib
from tff_pfl.core import hparams as hparams_lib
from tff_pfl.methods import registry
from tff_pfl.runs import settings as settings_lib
from tff_pfl.studies import claims as claims_lib
from tff_pfl.studies import cluster as cluster_lib
from tff_pfl.studies import plan, results, runner, trials

# The models that score a method after training: the clients' personal models,
# the global model, or models for new clients. These are fitted to the new
# clients' examples, or predict the mean of the last cohort's models.
SCORES = ('personal', 'global', 'new_clients', 'new_clients_by_ensemble')
SCALES = ('paper', 'cpu', 'small')
# The settings of scale `small`, unless a study has its own values.
_SMALL = {
  'dataset': 'digits',
  'dataset_arguments': {},
  'num_clients': 4,
  'cohort_size': 2,
  'num_rounds': 2,
  'num_epochs': 1,
  'num_head_epochs': 1,
  'fine_tune_num_epochs': 1,
  'model': 'mlp',
  'model_arguments': {'widths': (4,)},
  'initial_weights': None,
}
# By the name of a parameter's hint.
_KINDS = {
  'int': (numbers.Integral, 'an integer'),
  'float': (numbers.Real, 'a number'),
}
# Setting one of these clears the other.
_EXCLUSIVE = {
  'cohort_size': 'participation',
  'participation': 'cohort_size',
}


@dataclasses.dataclass(frozen=True, init=False)
class Method:
  """A method of a study.

  Attributes:
    algorithm: A key of `ALGORITHMS`.
    score: The models that are scored, one of `SCORES`.
    settings: The method's own hyperparameters and settings, by their names in
      `pfl.Settings`, including the options of fine-tuning (`fine_tune=`,
      `fine_tune_num_epochs=`).
  """

  algorithm: str
  score: str
  settings: Mapping[str, Any]

  def __init__(
    self, algorithm: str, *, score: str = 'personal', **settings: Any
  ):
    registry.get_algorithm(algorithm)
    errors.expect_one_of('score', score, SCORES)
    _expect_known(settings, algorithm)
    own = {'algorithm': algorithm, 'score': score, 'settings': settings}
    for name, value in own.items():
      object.__setattr__(self, name, value)

  @property
  def training(self) -> tuple[str, dict[str, Any]]:
    """The algorithm and the settings that methods of one run share."""
    return self.algorithm, {
      name: value
      for name, value in self.settings.items()
      if name not in plan.personalization_names()
    }


def _named_methods(value):
  """Methods by name. A list of algorithms gives them their own names."""
  if isinstance(value, Mapping):
    return dict(value)
  errors.expect_type(value, (list, tuple), 'methods', 'a mapping or a list')
  errors.expect(len({*value}) == len(value), 'methods', 'none twice', value)
  return {name: Method(name) for name in value}


def _plain_settings(value):
  """Settings by flat name, from a `Settings` or a mapping."""
  if isinstance(value, settings_lib.Settings):
    owner = settings_lib.Settings
    names = fields.flat_names(owner)
    parts = {path[:-1] for path in names.values()}
    values = {
      name: fields.get(value, name)
      for name, path in names.items()
      if path not in parts and name not in ('method', 'seed')
    }
    # A default would override a method's default.
    return {n: v for n, v in values.items() if v != fields.default(owner, n)}
  return value


_PlainSettings = Annotated[
  Mapping[str, Any], pydantic.BeforeValidator(_plain_settings)
]


def _tuple(value):
  return tuple(value) if isinstance(value, Iterable) else value


@fields.dataclass
class Study:
  """Methods in conditions, with several seeds.

  Attributes:
    settings: Settings and hyperparameters that all trials share, by their names
      in `pfl.Settings`, or a `pfl.Settings`, whose method and seed are ignored.
    methods: Methods by their names in tables, or a list of keys of
      `ALGORITHMS`.
    conditions: Settings and hyperparameters by the name of the condition, such
      as `{'2 classes': {'partition': 'shards:2'}}`. A hyperparameter applies to
      each method that has it. `methods` lists the methods of a condition that
      does not have all of them.
    seeds: Seeds of the trials, distinct and non-negative. A seed is also the
      seed of the partition.
    num_folds: Number of folds of cross-validation, at least 2. Each method has
      one trial per seed and fold, in which this fold of all of a client's
      examples is its test set. None keeps the test set of the data.
    num_new_clients: Number of clients, in addition to `num_clients`, that are
      scored without training.
    tune: Values to try by hyperparameter, `{'learning_rate': (0.01, 0.1)}` or
      `{'fed_avg.momentum': (0, 0.9)}`, or a `Range` for a search. A method's
      points first run with `tuning_seed` on a part of the clients' training
      examples, and the best point is chosen (see `tuning`).
    num_search_trials: Number of points that Optuna proposes for each method.
      None tries all points of the grid.
    validation_fraction: Fraction of each client's training examples, in (0, 1),
      on which points are compared.
    tuning_rounds: Number of rounds of the trials that compare points. None uses
      the study's number of rounds.
    tuning_seed: Seed of the trials that compare points. None uses the first of
      `seeds`.
    metric: Column of the numbers that the table shows and claims compare.
      'score' is the primary metric of the models that are scored, a mean over
      the evaluations of the last ten rounds, or only over the last models if
      the method has its own settings of fine-tuning.
    measure: Function `(context) -> rows` of the study's numbers, see
      `measures.Context`. None gives a row for each trial.
    parameters: Further sizes for the measure and the claims, as a frozen
      dataclass.
    claims: Claims to check: `better(...)`, `at_least(...)`, `close(...)`, or
      functions `(numbers, study) -> claims.Claim`s.
    draw: Function `(numbers, study, figure)` that draws the study's picture.
      None draws bars of the methods by condition.
    published: Published figures, in percent, by method and condition.
    scales: Sizes of the study by name, such as `paper`, `cpu` or `small` (see
      `at`): other values of its fields, or of settings, hyperparameters and
      parameters. `conditions` and `methods` may be lists of names to keep.
      `settings` are added to the study's settings. All other values override
      the conditions and methods.
    name: Name of the study, for its folder.
    source: The result that it reproduces, such as 'FedRep, table 1'.
    summary: The study's question, in one line.
    deviations: Differences from the source, in words, for the page.
    modules: Modules, or .py files, that register custom methods. Each trial
      imports them.
    overrides: Settings, hyperparameters and parameters that override all
      others.
    selected: Methods to run. None runs all.
    scale: The current scale of the study.
    is_part: True for a scale or a selection of another study, whose claims and
      published figures may be of methods and conditions that it lacks.
  """

  settings: _PlainSettings = dataclasses.field(default_factory=dict)
  methods: Annotated[
    Mapping[str, fields.instance_of(Method)],
    pydantic.BeforeValidator(_named_methods),
  ] = dataclasses.field(default_factory=dict)
  conditions: Mapping[Any, Mapping[str, Any]] = dataclasses.field(
    default_factory=lambda: {'': {}}
  )
  seeds: Annotated[
    tuple[fields.Seed, ...],
    pydantic.BeforeValidator(_tuple),
    fields.where(
      lambda seeds: 0 < len(seeds) == len({*seeds}),
      lambda: 'a list of at least one, none twice',
    ),
  ] = (0,)
  num_folds: Optional[fields.integer(2)] = None
  num_new_clients: fields.CountOrZero = 0
  tune: fields.Arguments = dataclasses.field(default_factory=dict)
  num_search_trials: Optional[fields.Count] = None
  validation_fraction: fields.InnerShare = 0.2
  tuning_rounds: Optional[fields.Count] = None
  tuning_seed: Optional[fields.Seed] = None
  metric: str = 'score'
  measure: Optional[Callable[..., Any]] = None
  parameters: Any = None
  claims: Annotated[tuple[Any, ...], pydantic.BeforeValidator(_tuple)] = ()
  draw: Optional[Callable[..., Any]] = None
  published: Mapping[tuple[str, Any], Optional[float]] = dataclasses.field(
    default_factory=dict
  )
  scales: Mapping[str, Mapping[str, Any]] = dataclasses.field(
    default_factory=dict
  )
  name: str = 'study'
  source: str = ''
  summary: str = ''
  deviations: str = ''
  modules: fields.Words = ()
  overrides: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  selected: Optional[fields.Words] = None
  scale: str = 'paper'
  is_part: bool = False

  def __post_init__(self):
    errors.expect(
      self.methods or self.measure, 'methods', 'at least one', 'none'
    )
    errors.expect(self.conditions, 'conditions', 'at least one', {})
    for name in self.conditions:
      kinds = (str, int, float)
      errors.expect_type(name, kinds, 'conditions', 'named by words or numbers')
    for check in self.claims:
      errors.expect_type(
        check, Callable, 'claims', 'better(...) and such, or functions'
      )
    _expect_known(self.settings)
    _expect_known(self.overrides)
    for scale in self.scales.values():
      parameters = vars(self.parameters) if self.parameters else ()
      _expect_known({*scale} - {*vars(self), *parameters})
      _expect_known(scale.get('settings', ()))
    for condition in self.conditions.values():
      _expect_known({*condition} - {'methods'})
      for name in condition.get('methods', ()):
        errors.expect_one_of('methods', name, self.methods)
    if not (self.measure or self.is_part):
      self._check_names()
    if not (self.scales or self.measure or self.tune):
      # Invalid values raise errors before anything runs.
      for condition in self.conditions:
        for name in self.methods_of(condition):
          self.settings_of(condition, name, self.seeds[0])
    algorithms = {method.algorithm for method in self.methods.values()}
    for name, values in self.tune.items():
      owner, _, hparam = name.rpartition('.')
      targets = [
        registry.fields_called(hparam, registry.ALGORITHMS[one].hparams)
        for one in algorithms
        if owner in ('', one)
      ]
      errors.expect(
        any(targets),
        'tune',
        f'for hyperparameters of {", ".join(sorted(algorithms))}',
        name,
      )
      self._check_values(name, values)

  def _check_names(self):
    """Rejects claims and published figures with unknown names."""
    methods = [method for method, _ in self.published]
    conditions = [condition for _, condition in self.published]
    for check in self.claims:
      if isinstance(check, claims_lib.MethodCheck):
        methods += check.named_methods
        conditions += check.named_conditions
    for kind, names in (('methods', methods), ('conditions', conditions)):
      known = dict.fromkeys(getattr(self, kind))
      for scale in self.scales.values():
        known |= dict.fromkeys(scale.get(kind, ()))
      for name in names:
        errors.expect_one_of(kind, name, known)

  def _check_values(self, name, values):
    if not isinstance(values, plan.Range):
      is_list = isinstance(values, (list, tuple))
      distinct = is_list and 0 < len(values) == len({*map(str, values)})
      expected = f'a list of values of {name}, none twice, or a Range'
      errors.expect(distinct, 'tune', expected, values)
      return
    errors.expect(
      self.num_search_trials is not None,
      'num_search_trials',
      f'given for {name}, which has a range to search',
      None,
    )
    errors.expect(
      values.low < values.high and (values.low > 0 or not values.log),
      'tune',
      'from a lower to a higher number, from above 0 for a logarithmic scale',
      f'{name}={values.low}:{values.high}',
    )

  # Sizes and parts.

  def at(self, scale: str) -> Study:
    """The study at a scale: `paper`, `cpu`, `small` or a custom scale.

    A scale that the study does not define is the study itself. `small` has
    defaults: one seed, two rounds with two of four clients, one epoch, and the
    bundled digits instead of data that are read from files.
    """
    known = dict.fromkeys([*SCALES, *self.scales])
    errors.expect_one_of('scale', scale, known)
    changes = dict(self.scales.get(scale, {}))
    if scale == 'small':
      changes = {'seeds': self.seeds[:1], **self._small(), **changes}
    own = {n: changes.pop(n) for n in vars(self) if n in changes}
    names = {n: own.pop(n) for n in ('methods', 'conditions') if n in own}
    names, replaced = (
      {n: v for n, v in names.items() if isinstance(v, Mapping) == is_mapping}
      for is_mapping in (False, True)
    )
    if 'settings' in own:
      own['settings'] = {**self.settings, **own['settings']}
    own |= {'scale': scale, 'is_part': True}
    scaled = dataclasses.replace(self, **own, **replaced)
    return scaled.with_settings(**changes).select(**names)

  def _small(self):
    """The settings of scale `small`, for a study with methods."""
    own = self.scales.get('small', {})
    layers = (self.settings, *self.conditions.values())
    used = {layer['dataset'] for layer in layers if 'dataset' in layer}
    if 'dataset' in own or any(map(_takes_data_dir, used)):
      return _SMALL
    of_data = ('dataset', 'dataset_arguments')
    others = {n: v for n, v in _SMALL.items() if n not in of_data}
    return others if self.methods else {}

  def with_settings(self, **changes: Any) -> Study:
    """The study with settings, hyperparameters or parameters replaced."""
    named = vars(self.parameters) if self.parameters is not None else {}
    parameters = {n: changes.pop(n) for n in named if n in changes}
    if parameters:
      for field in dataclasses.fields(self.parameters):
        # A hint may be a string.
        kind = _KINDS.get(getattr(field.type, '__name__', field.type))
        if kind and field.name in parameters:
          types, constraint = kind
          value = parameters[field.name]
          errors.expect_type(value, types, field.name, constraint)
      changed = dataclasses.replace(self.parameters, **parameters)
      return dataclasses.replace(self, parameters=changed).with_settings(
        **changes
      )
    return dataclasses.replace(self, overrides={**self.overrides, **changes})

  def select(
    self,
    *,
    methods: Optional[Sequence[str]] = None,
    conditions: Optional[Sequence[Hashable]] = None,
    seeds: Optional[Iterable[int]] = None,
  ) -> Study:
    """A part of the study: some methods or conditions, or other seeds.

    With other seeds, a sweep keeps its seed, and so chooses the same points.
    """
    changes = {}
    if methods is not None:
      errors.expect(len(methods), 'methods', 'at least one', methods)
      for name in methods:
        errors.expect_one_of('methods', name, self.methods)
      changes['selected'] = tuple(methods)
    if conditions is not None:
      by_text = {str(name): name for name in self.conditions}
      for name in conditions:
        errors.expect_one_of('conditions', str(name), by_text)
      names = [by_text[str(name)] for name in conditions]
      changes['conditions'] = {name: self.conditions[name] for name in names}
      changes['is_part'] = True
    if seeds is not None:
      changes['seeds'] = tuple(seeds)
      changes['tuning_seed'] = self.seed_of_tuning
    return dataclasses.replace(self, **changes)

  @property
  def seed_of_tuning(self) -> int:
    """The seed of the trials that compare points."""
    return self.seeds[0] if self.tuning_seed is None else self.tuning_seed

  @property
  def method_names(self) -> tuple[str, ...]:
    """The names of the methods that are run."""
    return tuple(self.methods) if self.selected is None else self.selected

  def methods_of(self, condition: Hashable) -> tuple[str, ...]:
    """The names of the methods that are run in a condition."""
    known = self.conditions[condition].get('methods', self.methods)
    return tuple(name for name in self.method_names if name in known)

  # The settings of a trial.

  def settings_of(
    self,
    condition: Hashable,
    method: str,
    seed: int,
    point: Optional[Mapping[str, Any]] = None,
  ) -> settings_lib.Settings:
    """The settings of a method's run.

    Args:
      condition: A key of `conditions`.
      method: A key of `methods`.
      point: Hyperparameters that override all others.
    """
    algorithm = self.methods[method].algorithm
    layers = (
      self.settings,
      {n: v for n, v in self.conditions[condition].items() if n != 'methods'},
      self.methods[method].settings,
      self.overrides,
    )
    own, shared = {}, {}
    for layer in layers:
      of_method, others = _divided(layer, algorithm)
      own.update(of_method)
      for kind in ('model_', 'dataset_'):
        if f'{kind}arguments' in others:
          # They also replace arguments with names of their own.
          shared = {n: v for n, v in shared.items() if not n.startswith(kind)}
      for name, value in others.items():
        if value is not None:
          shared.pop(_EXCLUSIVE.get(name), None)
        shared[name] = value
    if not _takes_data_dir(
      shared.get('dataset', settings_lib.DataOptions.name)
    ):
      # The folder is for the datasets of other conditions.
      shared.pop('data_dir', None)
    hparams = registry.ALGORITHMS[algorithm].hparams(**own)
    hparams = dataclasses.replace(hparams, **(point or {}))
    return settings_lib.Settings(**shared, method=hparams, seed=seed)

  @fields.checked_call
  def run(
    self,
    directory: str,
    *,
    num_processes: Optional[fields.CountOrZero] = None,
    cluster: Optional[cluster_lib.Cluster] = None,
    runtime: fields.one_of(runtime_lib.RUNTIMES) = runtime_lib.DEFAULT,
    runtime_options: Optional[Mapping[str, Any]] = None,
    data_dir: Optional[fields.Path] = None,
    rerun: bool = False,
    show_progress: bool = True,
  ) -> results.Results:
    """Runs the unfinished parts of the study, and writes its results.

    A failed trial is reported in the results, and the other trials run. But a
    study with its own measure needs all of its trials.

    Args:
      directory: Folder of the study. Finished trials there are not run again.
      num_processes: Number of trials at the same time. None runs one on each
        usable core, and 0 runs them one after another in this process.
      cluster: Cluster to run them on, instead of this machine. Its nodes share
        `directory`.
      runtime: Runtime of the trials, a key of `runtime.RUNTIMES`.
      runtime_options: Keyword arguments of the runtime, as JSON types.
      data_dir: Folder of the datasets' files, for those that read any.
      rerun: True to delete the folder's results and start again.
      show_progress: True for progress bars on stderr.

    Returns:
      The results.

    Raises:
      RunError: If the folder holds a trial with other settings or numbers of
        other parameters, is in use by a running process, or cannot be used.
        Also if a trial fails that a measure needs.
    """
    study = self
    if runtime != runtime_lib.DEFAULT:
      study = study.with_settings(runtime=runtime)
    if data_dir is not None:
      study = study.with_settings(data_dir=data_dir)
    return runner.run_study(
      study,
      directory,
      trials.Place(num_processes, cluster, runtime_options, show_progress),
      rerun=rerun,
    )


def _divided(layer, algorithm):
  """Divides settings into a method's hyperparameters and settings of runs.

  In a layer, more specific names override others, see `plan.names_for`.
  """
  known = fields.flat_names(settings_lib.Settings)
  hparams = registry.ALGORITHMS[algorithm].hparams
  unsupported = registry.ALGORITHMS[algorithm].unsupported
  own, shared = {}, {}
  for name, hparam, targets in plan.names_for(algorithm, layer):
    if hparam in known and not (targets and hparam in unsupported):
      shared[hparam] = layer[name]
    elif targets:
      own.update(dict.fromkeys(targets, layer[name]))
    elif _is_argument(hparam):
      shared[hparam] = layer[name]
  return hparams_lib.without_steps_for_epochs(hparams, own), shared


def _takes_data_dir(dataset):
  errors.expect_one_of('dataset', dataset, datasets.DATASETS)
  return datasets.DATASETS[dataset].takes_data_dir


def _is_argument(name):
  return name.startswith(('model_', 'dataset_'))


def _expect_known(layer, algorithm=None):
  """Rejects names that are neither settings nor hyperparameters.

  Args:
    algorithm: The method that has the hyperparameters. None means any method.
  """
  # Methods and seeds are separate fields.
  known = {*fields.flat_names(settings_lib.Settings)} - {'method', 'seed'}
  for name in layer:
    owner, _, hparam = name.rpartition('.')
    if name in Study.__dataclass_fields__:
      raise TypeError(
        f'Expected no `{name}` among settings: it is an argument of '
        '`pfl.Study`.'
      )
    if owner:
      errors.expect_one_of('method', owner, registry.ALGORITHMS)
    owners = list(filter(None, [owner, algorithm])) or registry.ALGORITHMS
    hparams = [registry.ALGORITHMS[one].hparams for one in owners]
    if hparam in ('method', 'seed') or not (
      hparam in known
      or _is_argument(hparam)
      or any(registry.fields_called(hparam, one) for one in hparams)
    ):
      every = [field for one in hparams for field in one.__dataclass_fields__]
      raise TypeError(fields.unknown_name(hparam, {*known, *every}))
