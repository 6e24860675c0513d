"""All methods by name. A method registers itself with `method`."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Optional

from tff_pfl import errors, fields
from tff_pfl.core import (
  client_sampling,
  client_work,
  personalized_process,
  process_options,
)
from tff_pfl.core import hparams as hparams_lib
from tff_pfl.core import round as round_lib
from tff_pfl.models import domain_models, split_model


class Algorithm(NamedTuple):
  """A registered method.

  Attributes:
    hparams: Frozen dataclass of its hyperparameters, with usable defaults.
    work: `(model, hparams) -> ClientWork`, the method itself.
    summary: One line for help texts and tables.
    needs_domains: True if it takes only models of examples with a domain.
    needs_classes: True if it takes only classifiers of examples with one class
      each.
    unsupported: Settings of a run (`Settings`) that do not affect the method,
      or harm it.
  """

  hparams: type
  work: Callable[[split_model.SplitModel, Any], client_work.ClientWork]
  summary: str
  needs_domains: bool = False
  needs_classes: bool = False
  unsupported: Sequence[str] = ()


# Names of hyperparameters that any method takes.
SHARED = ('batch_size', 'learning_rate')
# Other names in some methods: if the head and the body are trained in turn, an
# epoch is one on the body.
_CALLED_OTHERWISE = {'num_epochs': 'num_body_epochs'}
# Filled by `method`. Importing `tff_pfl.methods` imports all of them.
ALGORITHMS: dict[str, Algorithm] = {}


def method(
  summary: str, hparams: type, **options: Any
) -> Callable[[Callable[..., client_work.ClientWork]], Callable[..., Any]]:
  """Registers a method under the name of the decorated function.

  The function takes a `SplitModel` and hyperparameters and returns the method's
  `ClientWork`. It is returned unchanged, and `build` makes the process. The
  arguments and `options` are fields of `Algorithm`. No two methods have the
  same class of hyperparameters, by which a run's settings find the method.
  """

  def register(work):
    name = work.__name__
    owner = _owner(hparams)
    errors.expect(
      owner in (None, name),
      'hparams',
      f'a class of its own for {name}, such as a subclass',
      f'{hparams.__name__} of {owner}',
    )
    ALGORITHMS[name] = Algorithm(hparams, work, summary, **options)
    return work

  return register


def get_algorithm(name: str) -> Algorithm:
  """Returns the method called `name`."""
  errors.expect_one_of('method', name, ALGORITHMS)
  return ALGORITHMS[name]


def method_of(hparams: Any) -> str:
  """The name of the method that the hyperparameters belong to."""
  name = _owner(type(hparams))
  if name is None:
    raise TypeError(
      errors.message('method', 'hyperparameters of a method', hparams)
    )
  return name


def _owner(hparams: type) -> Optional[str]:
  """The name of the method with a class of hyperparameters, if any."""
  for name, algorithm in ALGORITHMS.items():
    if algorithm.hparams is hparams:
      return name
  return None


def fields_called(name: str, of: type) -> tuple[str, ...]:
  """The hyperparameters that a name stands for: itself, or all that end in it.

  `learning_rate` stands for FedRep's `head_learning_rate` and
  `body_learning_rate`, and `num_epochs` for its `num_body_epochs`.

  Args:
    of: The class of a method's hyperparameters.
  """
  names = [field.name for field in dataclasses.fields(of)]
  if name in names:
    return (name,)
  if name in _CALLED_OTHERWISE:
    return tuple({_CALLED_OTHERWISE[name]} & {*names})
  return tuple(other for other in names if other.endswith(f'_{name}'))


def with_values(
  hparams: Any, values: Mapping[str, Any]
) -> tuple[Any, dict[str, Any]]:
  """Hyperparameters with some of their values replaced.

  Args:
    values: Values by name. The names in `SHARED` stand for all hyperparameters
      from `fields_called`, unless these are also named. Without a number of
      steps, a number of epochs replaces it.

  Returns:
    The hyperparameters, and the values that do not belong to them.
  """
  own, others = {}, {}
  for name in sorted(values, key=SHARED.__contains__, reverse=True):
    names = (name,) if name in vars(hparams) else ()
    if name in SHARED:
      names = fields_called(name, type(hparams))
    own.update(dict.fromkeys(names, values[name]))
    if not names:
      others[name] = values[name]
  own = hparams_lib.without_steps_for_epochs(type(hparams), own)
  return dataclasses.replace(hparams, **own), others


@fields.checked_call
def build(
  name: str,
  model: split_model.SplitModel,
  hparams: Any = None,
  *,
  options: Optional[process_options.ProcessOptions] = None,
  seed: fields.integer(-(2**63), 2**63 - 1) = 0,
  cohorts: Optional[client_sampling.CohortSampler] = None,
  num_rounds: Optional[fields.Count] = None,
  **values: Any,
) -> personalized_process.PersonalizedProcess:
  """Builds the process of a method.

      build('fed_rep', model, num_head_epochs=5, server_optimizer='adam')

  Args:
    name: A key of `ALGORITHMS`.
    model: The model, which the method may replace by its own (`process.model`).
    hparams: The method's hyperparameters, `get_algorithm(name).hparams(...)`.
      None uses its defaults.
    options: Options of the process. None uses the defaults.
    seed: The run's seed, any int64.
    cohorts: Sampler of the run's cohorts, needed for an attack and for a
      `PrivateMean` or `DistributedPrivateMean` as aggregator.
    num_rounds: Rounds of the run, for such an aggregator.
    **values: Hyperparameters by name and fields of `ProcessOptions` (including
      fields of its dataclasses, such as `weight_decay` and `fine_tune`), which
      replace the values in `hparams` and `options`.
  """
  algorithm = get_algorithm(name)
  split_model.check_float32(model)
  hparams = algorithm.hparams() if hparams is None else hparams
  errors.expect_type(
    hparams, algorithm.hparams, 'hparams', f'a {algorithm.hparams.__name__}'
  )
  hparams, values = with_values(hparams, values)
  known = {
    **fields.hints(process_options.ProcessOptions),
    **fields.flat_names(process_options.ProcessOptions),
  }
  for value in values:
    if value not in known:
      raise TypeError(
        fields.unknown_name(value, [*vars(hparams), *known, 'seed'])
      )
  options = dataclasses.replace(
    options or process_options.ProcessOptions(), **values
  )
  if algorithm.needs_domains:
    domain_models.expect_domains(model, name)
  if algorithm.needs_classes:
    split_model.check_has_classes(model, name)
  return round_lib.build_personalized_process(
    name,
    algorithm.work(model, hparams),
    options,
    hparams,
    seed,
    cohorts,
    num_rounds,
  )
