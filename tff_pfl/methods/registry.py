"""All methods by name. A method registers itself with `method`."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from tff_pfl import errors
from tff_pfl.core import client_work, personalized_process
from tff_pfl.core import options as options_lib
from tff_pfl.core import round as round_lib
from tff_pfl.models import domain_models, split_model


class Algorithm(NamedTuple):
  """A registered method.

  Attributes:
    hparams: Frozen dataclass of its hyperparameters; the defaults are usable.
    work: `(model, hparams) -> ClientWork`, the method itself.
    summary: One line for help texts and tables.
    needs_domains: True if it takes only models of examples with a domain.
    needs_classes: True if it takes only classifiers of examples that have one
      class each.
    unsupported: Settings of a run (`RunConfig`) that have no effect on it or do
      harm.
  """

  hparams: type
  work: Callable[[split_model.SplitModel, Any], client_work.ClientWork]
  summary: str
  needs_domains: bool = False
  needs_classes: bool = False
  unsupported: Sequence[str] = ()


# Filled by `method`; importing `tff_pfl.methods` imports all of them.
ALGORITHMS: dict[str, Algorithm] = {}


def method(
  summary: str,
  hparams: type,
  *,
  needs_domains: bool = False,
  needs_classes: bool = False,
  unsupported: Sequence[str] = (),
) -> Callable[[Callable[..., client_work.ClientWork]], Callable[..., Any]]:
  """Registers a method under the name of the decorated function.

  The function takes a `SplitModel` and hyperparameters and returns the method's
  `ClientWork`. It stays as it is; `build` makes the process. The arguments are
  fields of `Algorithm`.
  """

  def register(work):
    ALGORITHMS[work.__name__] = Algorithm(
      hparams, work, summary, needs_domains, needs_classes, unsupported
    )
    return work

  return register


def get_algorithm(name: str) -> Algorithm:
  """Returns the method called `name`."""
  errors.expect_one_of('algorithm', name, ALGORITHMS)
  return ALGORITHMS[name]


@errors.typed
def build(
  name: str, model: split_model.SplitModel, hparams: Any = None, **options: Any
) -> personalized_process.PersonalizedProcess:
  """Builds the process of a method.

      build('fed_rep', model, num_head_epochs=5, seed=1)

  Args:
    name: A key of `ALGORITHMS`.
    model: The model, of which the method may make its own (`process.model`).
    hparams: The method's hyperparameters, `get_algorithm(name).hparams(...)`;
      None for its defaults.
    **options: Hyperparameters by name, which replace those of `hparams`, and
      fields of `core.options.ProcessOptions`.
  """
  algorithm = get_algorithm(name)
  split_model.check_float32(model)
  hparams = algorithm.hparams() if hparams is None else hparams
  errors.expect_type(
    hparams, algorithm.hparams, 'hparams', f'a {algorithm.hparams.__name__}'
  )
  own = {field.name for field in dataclasses.fields(hparams)} & set(options)
  hparams = dataclasses.replace(hparams, **{n: options.pop(n) for n in own})
  options = options_lib.ProcessOptions(**options)
  if algorithm.needs_domains:
    domain_models.expect_domains(model, name)
  if algorithm.needs_classes:
    split_model.check_has_classes(model, name)
  return round_lib.build_personalized_process(
    name, algorithm.work(model, hparams), options, hparams
  )
