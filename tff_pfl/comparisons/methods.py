"""Runs of methods in several conditions, with every seed."""

from __future__ import annotations

import types
from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Optional

from tff_pfl.comparisons import context as context_lib
from tff_pfl.comparisons import trial

# The fields of an experiment's sizes that all its methods are trained with.
_TRAINING = (
  'num_epochs',
  'num_head_epochs',
  'learning_rate',
  'momentum',
  'optimizer',
  'batch_size',
)


class Condition(NamedTuple):
  """A condition for a comparison of methods, such as a partition of the data.

  Attributes:
    methods: Methods to compare.
    config: Fields of `RunConfig`; a value may be a function of the seed.
    hparams: Hyperparameters, of which each method takes those that it has.
  """

  methods: Sequence[context_lib.Method]
  config: Mapping[str, Any] = types.MappingProxyType({})
  hparams: Mapping[str, Any] = types.MappingProxyType({})


class Result(NamedTuple):
  """A method's result in a condition with a seed.

  Attributes:
    condition: The condition's name, or number.
    method: The method's name, or that of the same with fine-tuning.
    hparams: Hyperparameters of the method alone.
    seed: Seed of the run.
    run: The run; the method with fine-tuning has the same.
    variant: `trial.OWN_VARIANT`, or the way in which models are fine-tuned.
  """

  condition: Hashable
  method: str
  hparams: Mapping[str, Any]
  seed: int
  run: trial.FinishedTrial
  variant: str

  @property
  def is_fine_tuned(self) -> bool:
    """True if it is of the last models after fine-tuning."""
    return self.variant != trial.OWN_VARIANT

  @property
  def scores(self) -> Mapping[str, Any]:
    """The last models' scores; see `trial.FinishedTrial.variant`."""
    return self.run.variant(self.variant)

  def columns(self, column: str = 'partition') -> dict[str, Any]:
    """The columns that name the result in a table: condition, method and seed.

    Args:
      column: Name of the condition's column.
    """
    return {column: self.condition, 'method': self.method, 'seed': self.seed}

  def accuracy(self) -> float:
    """The mean accuracy over clients: of the last ten rounds, or fine-tuned."""
    if self.is_fine_tuned:
      return self.scores['evaluation']['personal']['accuracy']
    return self.run.summary['accuracy']['last_10_mean']


def training(sizes: Any) -> dict[str, Any]:
  """The hyperparameters that methods share; see `context_lib.hparams_of`.

  Args:
    sizes: An experiment's sizes, with fields such as `learning_rate`.
  """
  shared = {n: getattr(sizes, n) for n in _TRAINING if hasattr(sizes, n)}
  if 'num_epochs' in shared:
    # Where body and head are trained in turn, an epoch is one on the body.
    shared['num_body_epochs'] = shared['num_epochs']
  return shared


def run(
  context: context_lib.Context,
  conditions: Mapping[Hashable, Condition],
  *,
  seeds: Optional[Sequence[int]] = None,
  label: str = '',
  **config: Any,
) -> Iterator[Result]:
  """Runs methods in conditions with every seed of an experiment.

  Args:
    context: Context of the experiment.
    conditions: Conditions by name, or number.
    seeds: Seeds; None for those of the experiment.
    label: Text that tells runs from others of the same names.
    **config: Fields of `RunConfig` that all runs have, and `num_new_clients`,
      besides those of the experiment's sizes; see `Context.trial`. Without
      `rounds_per_evaluation` only the last rounds are evaluated.

  Yields:
    The results by condition, method and seed; for a method with `fine_tuned`
    also those with fine-tuning, after its own.
  """
  seeds = context.seeds if seeds is None else seeds
  num_rounds = config.get('num_rounds') or context.sizes.num_rounds
  config = {'rounds_per_evaluation': num_rounds, **config}
  runs = context.run(
    {
      (name, method.name, seed): context.trial(
        method,
        {**training(context.sizes), **condition.hparams},
        seed=seed,
        label=f'{label}-{name}',
        **{
          **config,
          **{
            n: v(seed) if callable(v) else v
            for n, v in condition.config.items()
          },
        },
      )
      for name, condition in conditions.items()
      for method in condition.methods
      for seed in seeds
    }
  )
  for name, condition in conditions.items():
    for method in condition.methods:
      variants = {method.name: trial.OWN_VARIANT}
      if method.fine_tuned:
        variants[method.fine_tuned] = method.fine_tuned_scope
      for result, variant in variants.items():
        for seed in seeds:
          yield Result(
            name,
            result,
            method.hparams,
            seed,
            runs[name, method.name, seed],
            variant,
          )
