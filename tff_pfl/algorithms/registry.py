"""All methods by name. A method registers itself with `method`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from tff_pfl import errors
from tff_pfl.models import domain_models, split_model
from tff_pfl.templates import (
  client_work,
  federated_round,
  personalized_process,
)
from tff_pfl.templates import options as options_lib


class Algorithm(NamedTuple):
  """A registered method.

  Attributes:
    hparams: Its hyperparameters' frozen dataclass; the defaults are usable.
    build: `(model, hparams, **options) -> PersonalizedProcess`.
    summary: One line for help texts and tables.
    needs_domains: Whether it takes only models of examples with a domain.
    needs_classes: Whether it takes only classifiers of examples that have one
      class each.
    refuses: Settings of a run (`RunConfig`) that would do nothing for it, or
      harm.
  """

  hparams: type
  build: Callable[..., personalized_process.PersonalizedProcess]
  summary: str
  needs_domains: bool = False
  needs_classes: bool = False
  refuses: Sequence[str] = ()


# Filled by `method`; importing `tff_pfl.algorithms` imports all of them.
ALGORITHMS: dict[str, Algorithm] = {}


def method(
  hparams_class: type, summary: str, **traits: Any
) -> Callable[[Callable[..., client_work.ClientWork]], Callable[..., Any]]:
  """Registers a method under its function's name without `build_`.

  The function is from a `SplitModel` and hyperparameters to the method's
  `ClientWork`. In its place comes one that builds the method's process:
  `(model, hparams=None, **options) -> PersonalizedProcess`, with the defaults
  for None and the fields of `ProcessOptions` as options. It raises `TypeError`
  if `model` is no `SplitModel` or `hparams` is another method's.

  Args:
    hparams_class: Its hyperparameters' frozen dataclass.
    summary: See `Algorithm`.
    **traits: The other fields of `Algorithm`.
  """

  def register(work_of):
    name = work_of.__name__.replace('build_', '', 1)

    def build(
      model: split_model.SplitModel, hparams: Any = None, **options: Any
    ) -> personalized_process.PersonalizedProcess:
      hparams = hparams_class() if hparams is None else hparams
      errors.expect_type(
        model,
        split_model.SplitModel,
        'model',
        'a SplitModel (keras_bridge.from_keras makes one of a Keras model)',
      )
      split_model.check_float32(model)
      errors.expect_type(
        hparams, hparams_class, 'hparams', f'a {hparams_class.__name__}'
      )
      if algorithm.needs_domains:
        domain_models.expect_domains(model, name)
      if algorithm.needs_classes:
        split_model.check_has_classes(model, name)
      options = options_lib.ProcessOptions(**options)
      return federated_round.build_personalized_process(
        name, work_of(model, hparams), options, hparams
      )

    for attribute in ('__module__', '__name__', '__qualname__', '__doc__'):
      setattr(build, attribute, getattr(work_of, attribute))
    algorithm = Algorithm(hparams_class, build, summary, **traits)
    ALGORITHMS[name] = algorithm
    return build

  return register


def get_algorithm(name: str) -> Algorithm:
  """Returns the method called `name`.

  Raises:
    ValueError: If there is none; the message lists those there are.
  """
  errors.expect_one_of('algorithm', name, ALGORITHMS)
  return ALGORITHMS[name]


def build(
  name: str, model: split_model.SplitModel, hparams: Any = None, **options: Any
) -> personalized_process.PersonalizedProcess:
  """The method called `name`.

  Args:
    name: A key of `ALGORITHMS`.
    model: The process' model is this or one that the method makes of it.
    **options: The fields of `templates.options.ProcessOptions`.

  Raises:
    TypeError: If `model` is no `SplitModel` or `hparams` is another method's.
    ValueError: If there is no such method.
  """
  return get_algorithm(name).build(model, hparams, **options)
