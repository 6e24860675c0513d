"""All methods by name. A method registers itself with `method`."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

from tff_pfl import errors
from tff_pfl.models import domain_models, split_model
from tff_pfl.templates import (
  client_work,
  federated_round,
  options,
  personalized_process,
)


class Algorithm(NamedTuple):
  """A registered method.

  Attributes:
    hparams: Its hyperparameters' frozen dataclass; the defaults are usable.
    build: `(model, hparams, **options) -> PersonalizedProcess`.
    summary: One line for help texts and tables.
    needs_domains: Whether it takes only models of examples with a domain.
  """

  hparams: type
  build: Callable[..., personalized_process.PersonalizedProcess]
  summary: str
  needs_domains: bool = False


# Filled by `method`; importing `tff_pfl.algorithms` imports all of them.
ALGORITHMS: dict[str, Algorithm] = {}


def method(
  hparams: type, summary: str, *, needs_domains: bool = False
) -> Callable[[Callable[..., client_work.ClientWork]], Callable[..., Any]]:
  """Registers a method under its function's name without `build_`.

  The function is from a `SplitModel` and hyperparameters to the method's
  `ClientWork`. In its place comes one that builds the method's process:
  `(model, hparams=<defaults>, **options) -> PersonalizedProcess`, with the
  fields of `ProcessOptions` as options. It raises `TypeError` if `model` is no
  `SplitModel` or `hparams` is another method's.

  Args:
    hparams: Its hyperparameters' frozen dataclass.
    summary: One line for help texts and tables.
    needs_domains: Whether it takes only models of examples with a domain.
  """

  def register(work_of):
    name = work_of.__name__.replace('build_', '', 1)

    @functools.wraps(work_of)
    def build(model, given=None, **process_options):
      given = hparams() if given is None else given
      errors.expect_type(
        model,
        split_model.SplitModel,
        'model',
        'a SplitModel (keras_bridge.from_keras makes one of a Keras model)',
      )
      errors.expect_type(given, hparams, 'hparams', f'a {hparams.__name__}')
      if needs_domains:
        domain_models.expect_domains(model, name)
      return federated_round.build_personalized_process(
        name,
        work_of(model, given),
        options.ProcessOptions(**process_options),
        given,
      )

    ALGORITHMS[name] = Algorithm(hparams, build, summary, needs_domains)
    return build

  return register


def get_algorithm(name: str) -> Algorithm:
  """Returns the method called `name`.

  Raises:
    ValueError: If there is none; the message lists those there are.
  """
  errors.expect(
    name in ALGORITHMS, 'algorithm', f'one of {", ".join(ALGORITHMS)}', name
  )
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
