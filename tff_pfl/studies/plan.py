"""Plan of a study: its trials, and the points to try before them."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import re
import typing
import urllib.parse
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Optional, Union

import pydantic

from tff_pfl import errors, fields
from tff_pfl.core import hparams as hparams_lib
from tff_pfl.methods import registry
from tff_pfl.runs import settings as settings_lib
from tff_pfl.studies import trial

if TYPE_CHECKING:
  from tff_pfl.studies import study as study_lib

# Points are compared by the mean over this many last rounds.
_TUNING_EVALUATIONS = 10
# The condition of a run, and the method that names it.
Key = tuple[Hashable, str]


class Range(NamedTuple):
  """Numbers to search, with either two integers or two floats as limits.

  Attributes:
    low: Smallest number.
    high: Largest number.
    log: True to search on a logarithmic scale, for positive numbers.
  """

  low: Union[int, float]
  high: Union[int, float]
  log: bool = False


class Entry(NamedTuple):
  """A method in a condition with a seed, and the trial with its result.

  Attributes:
    fold: Number of the fold, or None without cross-validation.
    trial: The trial, which other methods may share.
    variant: `trial.OWN_VARIANT`, or one of the trial's `variants`.
  """

  condition: Hashable
  method: str
  seed: int
  fold: Optional[int]
  trial: trial.Trial
  variant: str


@functools.cache
def personalization_names() -> frozenset[str]:
  """The settings in which methods of one run may differ, by flat name."""
  return frozenset(
    name
    for name, path in fields.flat_names(settings_lib.Settings).items()
    if path[:2] == ('process', 'personalization')
  )


def is_of_last(settings: Mapping[str, Any]) -> bool:
  """True if a method's own settings say how its last models are fine-tuned."""
  names = personalization_names() - {'new_client_epochs'}
  return not names.isdisjoint(settings)


def runs(study: study_lib.Study) -> dict[Key, tuple[str, ...]]:
  """The methods of each run, by condition and first method.

  The first is a method without its own fine-tuning, if there is one. Its models
  are scored in all evaluations, and the models of the others after the last
  round. A run is left out if none of its methods is selected and in the
  condition.
  """
  groups = []
  for name, method in study.methods.items():
    for group in groups:
      if study.methods[group[0]].training == method.training:
        group.append(name)
        break
    else:
      groups.append([name])
  for group in groups:
    group.sort(key=lambda name: is_of_last(study.methods[name].settings))
  names_by_run = {}
  for condition, values in study.conditions.items():
    known = values.get('methods', study.methods)
    for group in groups:
      names = tuple(name for name in group if name in known)
      if {*names} & {*study.method_names}:
        names_by_run[condition, names[0]] = names
  return names_by_run


def folds(study: study_lib.Study) -> Sequence[Optional[tuple[int, int]]]:
  """The `Trial.fold`s of a method's runs with a seed."""
  if study.num_folds is None:
    return (None,)
  return tuple((fold, study.num_folds) for fold in range(study.num_folds))


def entries(
  study: study_lib.Study,
  chosen: Optional[Mapping[Key, Optional[Mapping[str, Any]]]] = None,
) -> list[Entry]:
  """The entries with the study's results.

  Args:
    chosen: The chosen points, by the keys of `runs`. A missing run uses its
      first point. A run with None, for which no point is left, is left out.

  Raises:
    ValueError: If settings are invalid, or two trials have the same name.
  """
  for name in study.method_names:
    of_new = study.methods[name].score.startswith('new_clients')
    errors.expect(
      study.num_new_clients or not of_new,
      'num_new_clients',
      f'at least 1, because {name} is scored on new clients',
      study.num_new_clients,
    )
  chosen = {
    **{key: points(study, *key)[0] for key in runs(study)},
    **(chosen or {}),
  }
  all_entries = []
  for seed, fold in itertools.product(study.seeds, folds(study)):
    for key, names in runs(study).items():
      if chosen[key] is None:
        continue
      condition, first = key
      settings = study.settings_of(condition, first, seed, chosen[key])
      own = settings.process.personalization
      options = {
        name: study.settings_of(condition, name, seed).process.personalization
        for name in names
      }
      one = trial.Trial(
        name=trial_name(study, key, seed, fold),
        settings=settings,
        variants={n: o for n, o in options.items() if o != own},
        num_new_clients=study.num_new_clients,
        fold=fold,
        modules=study.modules,
      )
      all_entries += [
        Entry(
          condition,
          name,
          seed,
          None if fold is None else fold[0],
          one,
          trial.OWN_VARIANT if options[name] == own else name,
        )
        for name in names
        if name in study.methods_of(condition)
      ]
  trials = {entry.trial.name: entry.trial for entry in all_entries}
  for entry in all_entries:
    if entry.trial is not trials[entry.trial.name]:
      raise ValueError(
        'Expected names of methods and conditions that differ in letters or '
        f'digits, found two trials called {entry.trial.name}.'
      )
  order = {name: i for i, name in enumerate(study.methods)}
  return sorted(all_entries, key=lambda entry: order[entry.method])


def trials_of(found: Sequence[Entry]) -> list[trial.Trial]:
  """The trials of entries, each once, sorted by seed."""
  trials = {entry.trial.name: entry.trial for entry in found}
  return sorted(trials.values(), key=lambda one: one.settings.seed)


def _slug(text):
  """A part of a file name, from any text."""
  return re.sub(r'[^\w.=+-]', '_', str(text)).strip('-')


def run_name(study: study_lib.Study, key: Key) -> str:
  """The name of a run without its seed, from condition and method."""
  condition, method = key
  parts = [method] if condition == '' else [condition, method]
  return '-'.join(map(_slug, parts))


def trial_name(
  study: study_lib.Study,
  key: Key,
  seed: int,
  fold: Optional[tuple[int, int]] = None,
) -> str:
  """The name of the trial of a run with a seed, in a fold."""
  name = f'{run_name(study, key)}-seed{seed}'
  return name if fold is None else f'{name}-fold{fold[0]}of{fold[1]}'


def is_trial_of(run: str, name: str) -> bool:
  """True if a trial of a run has a name, with any seed and fold."""
  pattern = rf'{re.escape(run)}-seed\d+(-fold\d+of\d+)?'
  return re.fullmatch(pattern, name) is not None


def names_for(
  algorithm: str, names: Iterable[str]
) -> Iterator[tuple[str, str, tuple[str, ...]]]:
  """The names that apply to a method, from general to specific ones.

  A name for the method alone is more specific than others, and so is the exact
  name of a hyperparameter than an ending that several names share.

  Yields:
    The name, the name without a method, and the hyperparameters that it sets.
  """
  hparams = registry.ALGORITHMS[algorithm].hparams

  def specificity(name):
    owner, _, hparam = name.rpartition('.')
    return bool(owner), hparam in hparams.__dataclass_fields__

  for name in sorted(names, key=specificity):
    owner, _, hparam = name.rpartition('.')
    if owner in ('', algorithm):
      yield name, hparam, registry.fields_called(hparam, hparams)


def axes(
  study: study_lib.Study, method: str
) -> dict[tuple[str, ...], Union[Range, Sequence[Any]]]:
  """The values to try for a method, by the hyperparameters that share them."""
  algorithm = study.methods[method].algorithm
  # The most specific name of each hyperparameter.
  names = {}
  for name, _, targets in names_for(algorithm, study.tune):
    names.update(dict.fromkeys(targets, name))
  by_targets = {}
  for name in sorted(study.tune, key=lambda name: '.' in name):
    targets = tuple(target for target in names if names[target] == name)
    if targets:
      values = study.tune[name]
      is_range = isinstance(values, Range)
      by_targets[targets] = values if is_range else tuple(values)
  return by_targets


def is_tuned(study: study_lib.Study, key: Key) -> bool:
  """True if there are several points for a run, or a search."""
  if study.num_search_trials is None:
    return len(_judged(study, key)) > 1
  return bool(axes(study, key[1]))


def points(
  study: study_lib.Study, condition: Hashable, method: str
) -> list[dict[str, Any]]:
  """The points of a run's grid that the method allows.

  Returns:
    A dict for each: the hyperparameters that differ from the method's own. If
    there is no grid, or for a search, there is one point without differences.

  Raises:
    ValueError: If the method allows no point, with the first reason.
  """
  judged = _judged(study, (condition, method))
  allowed = [point for point, reason in judged if reason is None]
  if not allowed:
    raise ValueError(judged[0][1])
  return allowed


def _judged(study, key):
  """The points of the grid, each with the reason if it is not allowed."""
  own = axes(study, key[1]) if study.num_search_trials is None else {}
  judged = []
  for values in itertools.product(*own.values()):
    candidate = point(study, key, dict(zip(own, values)))
    try:
      study.settings_of(*key, study.seeds[0], candidate)
      judged.append((candidate, None))
    except ValueError as error:
      if not candidate:
        raise
      judged.append((candidate, str(error)))
  return judged


def point(
  study: study_lib.Study, key: Key, values: Mapping[Sequence[str], Any]
) -> dict[str, Any]:
  """The hyperparameters of a point.

  Args:
    values: Values by the keys of `axes`.
  """
  by_name = {
    target: value for targets, value in values.items() for target in targets
  }
  if not by_name:
    return by_name
  # A number of steps would override the epochs.
  hparams = study.settings_of(*key, study.seeds[0]).method
  steps = [
    hparams_lib.steps_instead_of(type(hparams), name) for name in by_name
  ]
  cleared = [name for name in steps if name and getattr(hparams, name)]
  return {**by_name, **{name: None for name in cleared if name not in by_name}}


def tuning_trial(
  study: study_lib.Study, key: Key, values: Mapping[str, Any]
) -> trial.Trial:
  """The trial that judges a point."""
  settings = study.settings_of(*key, study.seed_of_tuning, values)
  num_rounds = study.tuning_rounds or settings.rounds.num_rounds
  text = '-'.join(
    f'{name}={urllib.parse.quote(str(value), safe="")}'
    for name, value in values.items()
  )
  return trial.Trial(
    name=f'tune-{run_name(study, key)}-{text}',
    settings=dataclasses.replace(
      settings,
      num_rounds=num_rounds,
      rounds_per_evaluation=num_rounds,
      num_final_evaluations=_TUNING_EVALUATIONS,
    ),
    # So that the clients are the same as in the study.
    num_new_clients=study.num_new_clients,
    validation_fraction=study.validation_fraction,
    fold=folds(study)[0],
    modules=study.modules,
  )


def parse_grid(
  texts: Sequence[str], algorithms: Sequence[str], flag: str = 'grid'
) -> dict[str, Any]:
  """Reads `Study.tune` from texts such as 'learning_rate=0.01,0.1'.

  Args:
    texts: Each is '[method.]hyperparameter=value,value,…'. Values are numbers
      or words that the hyperparameter accepts. 'none' means None, and so does 0
      if None is a value but not the default (see `fields.none_for_zero`). A
      search also takes '[method.]hyperparameter=low:high', or 'low:high:log'.
    algorithms: Methods of the study.
    flag: 'grid' or 'search', the flag of the texts.

  Returns:
    Values by name, without hyperparameters that only other methods have.
  """
  grid = {}
  for text in texts:
    start, _, values = text.partition('=')
    owner, _, name = start.strip().rpartition('.')
    owners = [owner] if owner else algorithms
    errors.expect(
      name and values and {*owners} <= {*registry.ALGORITHMS},
      flag,
      '[method.]hyperparameter=value,value,… with one of the methods '
      + ', '.join(algorithms),
      text,
    )
    known = [
      (algorithm, method.hparams, target)
      for algorithm, method in registry.ALGORITHMS.items()
      if owner in (algorithm, '')
      for target in registry.fields_called(name, method.hparams)
    ]
    targets = [one[1:] for one in known if one[0] in algorithms]
    if known and not targets:
      # A preset may be for more methods than are compared.
      continue
    errors.expect(
      targets, flag, f'for hyperparameters of {", ".join(owners)}', text
    )
    key = start.strip()
    # Without the limits of numbers, because a method may refuse a point.
    hint = Union[
      tuple(typing.get_type_hints(of)[target] for of, target in targets)
    ]
    if flag == 'search' and ':' in values:
      grid[key] = _parse_range(values, hint, text, flag)
      continue
    parsed = [
      _parse_value(value.strip(), hint, text, flag)
      for value in values.split(',')
    ]
    if all(one in fields.none_for_zero(hparams) for hparams, one in targets):
      parsed = [None if value == 0 else value for value in parsed]
    grid[key] = tuple(parsed)
  return grid


def _parse_value(value, hint, text, flag):
  if value == 'none' and type(None) in typing.get_args(hint):
    return None
  adapter = pydantic.TypeAdapter(hint, config={'arbitrary_types_allowed': True})
  try:
    return adapter.validate_strings(value)
  except pydantic.ValidationError:
    raise ValueError(
      errors.message(flag, 'of values that the hyperparameter takes', text)
    ) from None


def _parse_range(values, hint, text, flag):
  low, high, *log = values.split(':')
  low, high = (
    _parse_value(end.strip(), hint, text, flag) for end in (low, high)
  )
  errors.expect(
    log in ([], ['log']) and isinstance(low, (int, float)),
    flag,
    '[method.]hyperparameter=low:high or low:high:log',
    text,
  )
  return Range(low, high, bool(log))
