"""Plan of a comparison: its methods, seeds and grids, and their trials."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import typing
import urllib.parse
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, NamedTuple, Optional, Union

import pydantic

from tff_pfl import errors, fields
from tff_pfl.comparisons import trial
from tff_pfl.core import hparams as hparams_lib
from tff_pfl.methods import registry
from tff_pfl.runs import settings as settings_lib

# Of a grid: all methods that have such a hyperparameter.
ANY_METHOD = '*'
# What the sweep decides by is a mean over so many last rounds.
_TUNING_EVALUATIONS = 10


class Range(NamedTuple):
  """Numbers from `low` to `high` for a search; both integers or neither.

  Attributes:
    low: Least number.
    high: Largest number.
    log: True to search logarithms, of positive numbers.
  """

  low: Union[int, float]
  high: Union[int, float]
  log: bool = False


def _distinct(item):
  are_distinct = fields.where(
    lambda values: 0 < len(values) == len({*map(str, values)}),
    lambda: 'a list of at least one, none twice',
  )
  return Annotated[tuple[item, ...], pydantic.Field(strict=False), are_distinct]


_Axis = Annotated[
  Union[fields.instance_of(Range), _distinct(Any)],
  pydantic.Field(union_mode='left_to_right'),
]


@fields.dataclass
class Comparison:
  """Several methods on the same data.

  Every method runs with every seed, in every fold. Where a grid has several
  points for a method, these are first run with the first seed, and fold, on the
  clients' training data alone, and the best one is taken (see `tuning`).

  Attributes:
    base: Settings that the runs share. Its method and seed have no effect; its
      number of clients is that of trained ones.
    methods: Distinct methods, at least one, each as `Settings.method`: its
      hyperparameters where the grid says nothing, or its name for the defaults.
    seeds: Seeds of the runs, distinct and non-negative, at least one. A seed is
      also that of the partition.
    grid: Values to try, by method, or `ANY_METHOD`, and hyperparameter, as
      `parse_grid` reads them. A method that has no hyperparameter of that name
      takes the value for all that end in it (`learning_rate` is FedRep's
      `head_learning_rate` and `body_learning_rate`). A method's own values go
      before those of any method. A number of epochs sets a number
      of steps that would take its place (see `hparams.steps_instead_of`) to
      None, unless the grid has that, too.
    num_search_trials: Points that Optuna proposes for each method, one after
      the other (see `tuning`), from a grid that may have a `Range` instead of
      values; None for all points of the grid.
    fine_tune_variants: Ways, among none, head, all and trained, in which the
      models of the last round are fine-tuned and scored, in addition to that of
      --fine_tune and with its other options.
    num_new_clients: Clients besides --num_clients that are scored without
      having taken part.
    validation_fraction: Part of each client's training examples, in (0, 1), on
      which the grid or search chooses.
    tuning_rounds: Rounds of the runs by which the grid or search chooses; None
      for --num_rounds.
    num_folds: Folds of cross-validation, at least 2: with each seed so many
      runs of a method, each with another fold of all of a client's examples as
      its test set; None for the test set of the data.
  """

  base: settings_lib.Settings
  methods: _distinct(settings_lib.Method)
  seeds: _distinct(fields.Seed) = (0,)
  grid: Mapping[str, Mapping[str, _Axis]] = dataclasses.field(
    default_factory=dict
  )
  num_search_trials: Optional[fields.Count] = None
  fine_tune_variants: Annotated[
    tuple[fields.one_of(trial.VARIANTS), ...], pydantic.Field(strict=False)
  ] = ()
  num_new_clients: fields.CountOrZero = 0
  validation_fraction: fields.InnerShare = 0.2
  tuning_rounds: Optional[fields.Count] = None
  num_folds: Optional[fields.integer(2)] = None

  def __post_init__(self):
    errors.expect(
      len(self.hparams) == len(self.methods),
      'methods',
      'a list of at least one, none twice',
      self.algorithms,
    )
    self._check_grid_names()
    for axes in self.grid.values():
      for name, values in axes.items():
        if isinstance(values, Range):
          errors.expect(
            self.num_search_trials is not None,
            'num_search_trials',
            f'given for {name}, a range that is searched',
            None,
          )
          errors.expect(
            values.low < values.high and (values.low > 0 or not values.log),
            'search',
            'from a lower to a higher number, of logarithms from above 0',
            f'{name}={values.low}:{values.high}',
          )
    for algorithm in self.algorithms:
      self._check_points(algorithm)

  @functools.cached_property
  def hparams(self) -> Mapping[str, Any]:
    """The `methods` by name."""
    return {registry.method_of(one): one for one in self.methods}

  @property
  def algorithms(self) -> Sequence[str]:
    """The names of the methods."""
    return list(self.hparams)

  def points(self, algorithm: str) -> list[dict[str, Any]]:
    """The points of a method's grid that the method allows.

    Returns:
      A dict for each: the hyperparameters that differ from the method's
      `hparams`. Without a grid, and of a search, it is one point, at which none
      do.
    """
    judged = self._judged(algorithm)
    return [point for point, reason in judged if reason is None]

  def is_tuned(self, algorithm: str) -> bool:
    """True if a method's grid has several points, or there is a search."""
    if self.num_search_trials is None:
      return len(self._judged(algorithm)) > 1
    return bool(self.axes(algorithm))

  def _judged(self, algorithm):
    """The points of the grid, each with why the method does not allow it."""
    axes = self.axes(algorithm) if self.num_search_trials is None else {}
    judged = []
    for values in itertools.product(*axes.values()):
      point = self.point(algorithm, dict(zip(axes, values)))
      try:
        self._hparams(algorithm, point)
        judged.append((point, None))
      except ValueError as error:
        judged.append((point, str(error)))
    return judged

  def axes(self, algorithm: str) -> dict[tuple[str, ...], Any]:
    """A method's grid: by the hyperparameters that share a value the values."""
    axes = {}
    for owner in (ANY_METHOD, algorithm):
      for name, values in self.grid.get(owner, {}).items():
        targets = self._targets(algorithm, name)
        # What is said of the method itself replaces what is said of any.
        axes = {
          other: axis
          for other, axis in axes.items()
          if not set(other) & set(targets)
        }
        if targets:
          axes[targets] = values
    return axes

  def point(
    self, algorithm: str, values: Mapping[Sequence[str], Any]
  ) -> dict[str, Any]:
    """The hyperparameters of a point.

    Args:
      values: Values by the keys of `axes`.
    """
    point = {
      target: value for targets, value in values.items() for target in targets
    }
    # Steps would make the epochs mean nothing.
    hparams = self.hparams[algorithm]
    steps = [
      hparams_lib.steps_instead_of(type(hparams), name) for name in point
    ]
    given = [name for name in steps if name and getattr(hparams, name)]
    return {**point, **{name: None for name in given if name not in point}}

  def tuning_trial(
    self, algorithm: str, point: Mapping[str, Any]
  ) -> trial.Trial:
    """The run that a point of a grid or a search is judged by."""
    num_rounds = self.tuning_rounds or self.base.rounds.num_rounds
    return trial.Trial(
      name=f'tune-{algorithm}-{_point_name(point)}',
      config=self._config(
        algorithm,
        point,
        self.seeds[0],
        num_rounds=num_rounds,
        rounds_per_evaluation=num_rounds,
        num_final_evaluations=_TUNING_EVALUATIONS,
      ),
      # The same clients as in the comparison.
      num_new_clients=self.num_new_clients,
      validation_fraction=self.validation_fraction,
      fold=self.folds[0],
    )

  @property
  def folds(self) -> Sequence[Optional[tuple[int, int]]]:
    """The `Trial.fold`s of the runs of a method with a seed."""
    if self.num_folds is None:
      return (None,)
    return tuple((fold, self.num_folds) for fold in range(self.num_folds))

  def trials(
    self, chosen: Optional[Mapping[str, Mapping[str, Any]]] = None
  ) -> list:
    """The runs that are compared.

    Args:
      chosen: The point that the sweep chose, by method; of those that are
        missing it is the first one. A method whose sweep found nothing (None)
        is left out.

    Returns:
      A trial for each method, seed and fold; all methods' of a seed and fold,
      then the next.
    """
    first = {
      algorithm: self.points(algorithm)[0] for algorithm in self.algorithms
    }
    chosen = {**first, **(chosen or {})}
    return [
      trial.Trial(
        name=trial_name(algorithm, seed, fold),
        config=self._config(algorithm, chosen[algorithm], seed),
        fine_tune_variants=self.fine_tune_variants,
        num_new_clients=self.num_new_clients,
        fold=fold,
      )
      for seed in self.seeds
      for fold in self.folds
      for algorithm in self.algorithms
      if chosen[algorithm] is not None
    ]

  def _targets(self, algorithm, name):
    """The hyperparameters of a method that a name in a grid stands for."""
    return registry.fields_called(name, type(self.hparams[algorithm]))

  def _hparams(self, algorithm, point):
    return dataclasses.replace(self.hparams[algorithm], **point)

  def _config(self, algorithm, point, seed, **changes):
    hparams = self._hparams(algorithm, point)
    return dataclasses.replace(self.base, method=hparams, seed=seed, **changes)

  def _check_grid_names(self):
    """Raises `ValueError` for names of a grid that no method takes."""
    for owner, axes in self.grid.items():
      for name in axes:
        errors.expect(
          any(
            self._targets(one, name)
            for one in self.algorithms
            if owner in (one, ANY_METHOD)
          ),
          'grid',
          f'of hyperparameters of {", ".join(self.algorithms)}',
          f'{owner}.{name}',
        )

  def _check_points(self, algorithm):
    """Raises `ValueError` for what is said of this very method and not allowed.

    It does so too if the method allows no point at all.
    """
    own = [
      target
      for name in self.grid.get(algorithm, {})
      for target in self._targets(algorithm, name)
    ]
    allowed = [_restricted(point, own) for point in self.points(algorithm)]
    for point, reason in self._judged(algorithm):
      if _restricted(point, own) not in allowed:
        raise ValueError(reason)


def trial_name(
  algorithm: str, seed: int, fold: Optional[tuple[int, int]] = None
) -> str:
  """The name of the run of a method with a seed, in a fold."""
  name = f'{algorithm}-seed{seed}'
  return name if fold is None else f'{name}-fold{fold[0]}of{fold[1]}'


def parse_grid(
  texts: Sequence[str], algorithms: Sequence[str], flag: str = 'grid'
) -> dict:
  """Reads grids such as 'learning_rate=0.01,0.1', and ranges for a search.

  Args:
    texts: Grids, each '[method.]hyperparameter=value,value,…'; values are
      numbers or words as the hyperparameter takes them, 'none' for None. So is
      0 where None is a value but not the default (see
      `fields.none_for_zero`). For a search also
      '[method.]hyperparameter=low:high', or 'low:high:log'.
    algorithms: Methods that are compared.
    flag: 'grid' or 'search', the flag of the texts.

  Returns:
    The grid, as `Comparison.grid`, without hyperparameters that only other
    methods have.
  """
  grid = {}
  for text in texts:
    start, _, values = text.partition('=')
    owner, dot, name = start.strip().rpartition('.')
    owner = owner if dot else ANY_METHOD
    owners = algorithms if owner == ANY_METHOD else [owner]
    errors.expect(
      name and values and set(owners) <= set(registry.ALGORITHMS),
      flag,
      '[method.]hyperparameter=value,value,… with one of the methods '
      + ', '.join(algorithms),
      text,
    )
    known = [
      (algorithm, method.hparams, target)
      for algorithm, method in registry.ALGORITHMS.items()
      if owner in (algorithm, ANY_METHOD)
      for target in registry.fields_called(name, method.hparams)
    ]
    targets = [one[1:] for one in known if one[0] in algorithms]
    if known and not targets:
      # A preset for more methods than are compared.
      continue
    errors.expect(
      targets, flag, f'of hyperparameters of {", ".join(owners)}', text
    )
    errors.expect(
      name not in grid.get(owner, {}), flag, 'given once for each name', text
    )
    # Without the limits of numbers: a method may refuse a point.
    hints = [typing.get_type_hints(owner)[target] for owner, target in targets]
    hint = Union[tuple(hints)]
    if flag == 'search' and ':' in values:
      grid.setdefault(owner, {})[name] = _parse_range(values, hint, text)
      continue
    parsed = [
      _parse_value(value.strip(), hint, text) for value in values.split(',')
    ]
    if all(one in fields.none_for_zero(hparams) for hparams, one in targets):
      parsed = [None if value == 0 else value for value in parsed]
    grid.setdefault(owner, {})[name] = tuple(parsed)
  return grid


def _parse_value(value, hint, text):
  if value == 'none' and type(None) in typing.get_args(hint):
    return None
  adapter = pydantic.TypeAdapter(hint, config={'arbitrary_types_allowed': True})
  try:
    return adapter.validate_strings(value)
  except pydantic.ValidationError:
    raise ValueError(
      errors.message('grid', 'of values that the hyperparameter takes', text)
    ) from None


def _parse_range(values, hint, text):
  low, high, *log = values.split(':')
  low, high = (_parse_value(end.strip(), hint, text) for end in (low, high))
  errors.expect(
    log in ([], ['log']) and isinstance(low, (int, float)),
    'search',
    '[method.]hyperparameter=low:high or low:high:log',
    text,
  )
  return Range(low, high, bool(log))


def _restricted(point, names):
  return {name: point[name] for name in names if name in point}


def _point_name(point):
  return '-'.join(
    f'{name}={urllib.parse.quote(str(value), safe="")}'
    for name, value in point.items()
  )
