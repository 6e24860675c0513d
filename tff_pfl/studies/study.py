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

Each method runs in each condition with each seed, as a trial: an ordinary run
in a folder of its own, in a process of its own or on a Ray cluster. Methods
that differ only in how their last models are fine-tuned, or in what is scored,
share a run. What has ended is not run again; methods, conditions and seeds may
be added later.

Settings are looked up in this order, the last one counts: the study's, the
condition's, the method's own, the scale's. A hyperparameter is for each method
that has it; `fed_avg.momentum` is for one method alone.
"""

from __future__ import annotations

import dataclasses
import functools
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

# What a method is scored by: the clients' own models, or the server's, after
# training, or clients that took no part: by models fitted to their examples, or
# by the mean prediction of the last cohort's models.
SCORES = ('personal', 'global', 'new_clients', 'new_clients_by_ensemble')
SCALES = ('paper', 'cpu', 'small')
# What any study has at scale `small`, unless it has other values there.
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
# Setting one of these takes another one back.
_EXCLUSIVE = {
  'cohort_size': 'participation',
  'participation': 'cohort_size',
}


@dataclasses.dataclass(frozen=True, init=False)
class Method:
  """A method of a study.

  Attributes:
    algorithm: A key of `ALGORITHMS`.
    score: What is scored, one of `SCORES`.
    settings: The method's own hyperparameters and settings, by their names in
      `pfl.Settings`; among them the options of fine-tuning (`fine_tune=`,
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
      if name not in _personalization_names()
    }


def _named_methods(value):
  """Methods by name; a list of algorithms gives them their own names."""
  if isinstance(value, Mapping):
    return dict(value)
  errors.expect_type(value, (list, tuple), 'methods', 'a mapping or a list')
  errors.expect(len({*value}) == len(value), 'methods', 'none twice', value)
  return {name: Method(name) for name in value}


def _plain_settings(value):
  """Settings by flat name, of a `Settings` or a mapping."""
  if isinstance(value, settings_lib.Settings):
    owner = settings_lib.Settings
    names = fields.flat_names(owner)
    parts = {path[:-1] for path in names.values()}
    given = {
      name: fields.get(value, name)
      for name, path in names.items()
      if path not in parts and name not in ('method', 'seed')
    }
    # A default would go before that of a method.
    return {n: v for n, v in given.items() if v != fields.default(owner, n)}
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
      in `pfl.Settings`, or a `pfl.Settings`, whose method and seed do not
      count.
    methods: Methods by their names in tables, or a list of keys of
      `ALGORITHMS`.
    conditions: Settings and hyperparameters by the name of the condition, such
      as `{'2 classes': {'partition': 'shards:2'}}`. A hyperparameter is for
      each method that has it. `methods`, a list of names, has the methods of
      the condition, where these are not all.
    seeds: Seeds of the trials, distinct and non-negative. A seed is also the
      seed of the partition.
    num_folds: Folds of cross-validation, at least 2: with each seed so many
      trials of a method, each with another fold of all of a client's examples
      as its test set. None keeps the test set of the data.
    num_new_clients: Clients besides `num_clients` that are scored without
      having taken part.
    tune: Values to try by hyperparameter, `{'learning_rate': (0.01, 0.1)}` or
      `{'fed_avg.momentum': (0, 0.9)}`, or a `Range` for a search. A method's
      points are first run with the first seed on a part of the clients'
      training examples, and the best point is taken (see `tuning`).
    num_search_trials: Points that Optuna proposes for each method. None tries
      all points of the grid.
    validation_fraction: Part of each client's training examples, in (0, 1), on
      which points are compared.
    tuning_rounds: Rounds of the trials that points are compared by. None takes
      as many as the study has.
    metric: Column of the numbers that the table shows and claims compare:
      'score' is the primary metric of what the method is scored by, a mean over
      the evaluations of the last ten rounds, or over the last models alone
      where these are fine-tuned.
    measure: Function `(context) -> rows` of the study's numbers, see
      `measures.Context`; None gives a row for each trial.
    parameters: Further sizes that the measure and claims read, a frozen
      dataclass.
    claims: What is claimed: `better(...)`, `at_least(...)`, `close(...)`, or
      functions `(numbers, study) -> claims.Claim`s.
    draw: Function `(numbers, study, figure)` that draws the study's picture;
      None draws bars of the methods by condition.
    published: Published figures, in percent, by method and condition.
    scales: Sizes of the study by name, such as `paper`, `cpu` or `small` (see
      `at`): other values of its fields, or of settings, hyperparameters and
      parameters. `conditions` and `methods` may be lists of names to keep;
      `settings` are added to the study's, and all other names go before what
      conditions and methods have.
    name: Name of the study, for its folder.
    source: What it repeats, such as 'FedRep, table 1'.
    summary: One line on its question.
    deviations: What differs from the source, in words, for the page.
    modules: Modules, or .py files, that register methods of one's own; each
      trial imports them.
    overrides: Settings, hyperparameters and parameters that go before all
      others.
    selected: Methods that are run. None runs all.
    scale: The scale that it has.
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
  tune: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  num_search_trials: Optional[fields.Count] = None
  validation_fraction: fields.InnerShare = 0.2
  tuning_rounds: Optional[fields.Count] = None
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
    if not (self.scales or self.measure):
      self._check_names()
      if not self.tune:
        # Wrong values are refused before anything runs.
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
        f'of hyperparameters of {", ".join(sorted(algorithms))}',
        name,
      )
      self._check_values(name, values)

  def _check_names(self):
    """Refuses claims and published figures of what the study does not have."""
    methods = [method for method, _ in self.published]
    conditions = [condition for _, condition in self.published]
    for check in self.claims:
      if isinstance(check, claims_lib.MethodCheck):
        methods += check.named_methods
        conditions += check.named_conditions
    for name in methods:
      errors.expect_one_of('methods', name, self.methods)
    for name in conditions:
      errors.expect_one_of('conditions', name, self.conditions)

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
      f'given for {name}, a range that is searched',
      None,
    )
    errors.expect(
      values.low < values.high and (values.low > 0 or not values.log),
      'tune',
      'from a lower to a higher number, of logarithms from above 0',
      f'{name}={values.low}:{values.high}',
    )

  # Sizes and parts.

  def at(self, scale: str) -> Study:
    """The study at a scale: `paper`, `cpu` or `small`, or another one it has.

    Where the study says nothing of a scale, it is the study itself, but `small`
    has one seed, two rounds of two of four clients, one epoch, and the bundled
    digits.
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
    scaled = dataclasses.replace(self, scale=scale, **own, **replaced)
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
    """A part of the study: some methods, conditions or other seeds."""
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
      kept = [by_text[str(name)] for name in conditions]
      changes['conditions'] = {name: self.conditions[name] for name in kept}
    if seeds is not None:
      changes['seeds'] = tuple(seeds)
    return dataclasses.replace(self, **changes)

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
      point: Hyperparameters that go before all others.
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
      for name, value in others.items():
        if value is not None:
          shared.pop(_EXCLUSIVE.get(name), None)
        shared[name] = value
    if not _takes_data_dir(
      shared.get('dataset', settings_lib.DataOptions.name)
    ):
      # It is for the data sets of other conditions.
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
    """Runs the study, as far as not yet done, and writes its results.

    A trial that fails is reported among the results, and the others run; but a
    study with a measure of its own needs all of its trials.

    Args:
      directory: Folder of the study. What has ended there is not run again.
      num_processes: Trials at the same time. None uses one on each usable
        core, 0 runs them one after another in this process.
      cluster: Cluster to run them on, instead of this machine; its nodes share
        `directory`.
      runtime: Runtime of the trials, a key of `runtime.RUNTIMES`.
      runtime_options: Keyword arguments of the runtime, as JSON types.
      data_dir: Folder of the data sets' files, for those that read any.
      rerun: True to delete what the folder has and start anew.
      show_progress: True for progress bars on stderr.

    Returns:
      The results.

    Raises:
      RunError: If the folder holds a trial with other settings, or numbers of
        other parameters, is in use by a running process, or cannot be used; or
        if what a measure needs failed.
    """
    study = self
    if runtime != runtime_lib.DEFAULT:
      study = study.with_settings(runtime=runtime)
    if data_dir is not None:
      study = study.with_settings(data_dir=data_dir)
    return runner.run(
      study,
      directory,
      trials.Place(num_processes, cluster, runtime_options, show_progress),
      rerun=rerun,
    )


@functools.cache
def _personalization_names():
  return {
    name
    for name, path in fields.flat_names(settings_lib.Settings).items()
    if path[:2] == ('process', 'personalization')
  }


def _divided(layer, algorithm):
  """A method's hyperparameters among settings, and the settings of runs.

  What is said of the method alone goes before the rest of its layer, and a
  hyperparameter's own name before one that several end in.
  """
  known = fields.flat_names(settings_lib.Settings)
  hparams = registry.ALGORITHMS[algorithm].hparams
  unsupported = registry.ALGORITHMS[algorithm].unsupported
  own, shared = {}, {}

  def specificity(name):
    owner, _, hparam = name.rpartition('.')
    return bool(owner), hparam in hparams.__dataclass_fields__

  for name in sorted(layer, key=specificity):
    owner, _, hparam = name.rpartition('.')
    if owner not in ('', algorithm):
      continue
    targets = registry.fields_called(hparam, hparams)
    if hparam in known and not (targets and hparam in unsupported):
      shared[hparam] = layer[name]
    elif targets:
      own.update(dict.fromkeys(targets, layer[name]))
    elif _is_argument(hparam):
      shared[hparam] = layer[name]
  # Steps would make the epochs mean nothing.
  for name in [*own]:
    steps = hparams_lib.steps_instead_of(hparams, name)
    if steps is not None:
      own.setdefault(steps, None)
  return own, shared


def _takes_data_dir(dataset):
  errors.expect_one_of('dataset', dataset, datasets.DATASETS)
  return datasets.DATASETS[dataset].takes_data_dir


def _is_argument(name):
  return name.startswith(('model_', 'dataset_'))


def _expect_known(layer, algorithm=None):
  """Refuses names that are neither settings nor hyperparameters.

  Args:
    algorithm: The method whose hyperparameters are meant; None for any.
  """
  # Methods and seeds are fields of their own.
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
