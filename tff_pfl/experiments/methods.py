"""Methods compared on partitions of the data: their runs, with every seed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from tff_pfl.experiments import laboratory, trial

# The fields of an experiment's sizes that all its methods are trained with.
_TRAINING = (
  'num_epochs',
  'num_head_epochs',
  'learning_rate',
  'momentum',
  'optimizer',
  'batch_size',
)


class Result(NamedTuple):
  """What a method reached on a partition with a seed.

  Attributes:
    partition: The partition's name.
    method: The method's name, or that of the same with fine-tuning.
    run: The run, which both have in common.
    variant: `trial.OWN_VARIANT`, or how the models are fine-tuned.
  """

  partition: str
  method: str
  seed: int
  run: trial.FinishedTrial
  variant: str

  @property
  def is_fine_tuned(self) -> bool:
    """Whether it is of the last models after fine-tuning."""
    return self.variant != trial.OWN_VARIANT

  @property
  def scores(self) -> Mapping[str, Any]:
    """The last models' scores; see `trial.FinishedTrial.variant`."""
    return self.run.variant(self.variant)

  def columns(self) -> dict[str, Any]:
    """The columns of a table that name it."""
    return {
      'partition': self.partition,
      'method': self.method,
      'seed': self.seed,
    }

  def accuracy(self) -> float:
    """Mean over the clients: of the last ten rounds, or after fine-tuning."""
    if self.is_fine_tuned:
      return self.scores['evaluation']['personal']['accuracy']
    return self.run.summary['accuracy']['last_10_mean']


def training(sizes: Any) -> dict[str, Any]:
  """The hyperparameters that methods share; see `laboratory.hparams_of`.

  Args:
    sizes: An experiment's sizes, with `num_epochs` and fields such as
      `learning_rate`.
  """
  shared = {n: getattr(sizes, n) for n in _TRAINING if hasattr(sizes, n)}
  # Where body and head are trained in turn, an epoch is one on the body.
  shared['num_body_epochs'] = sizes.num_epochs
  return shared


def run(
  lab: laboratory.Laboratory,
  methods: Mapping[str, Sequence[laboratory.Method]],
  make_trial: Callable[[laboratory.Method, str, int], trial.Trial],
) -> Iterator[Result]:
  """Runs methods on partitions with every seed of an experiment.

  Args:
    methods: By the name of a partition.
    make_trial: From a method, a partition's name and a seed to the trial.

  Yields:
    By partition, method and seed the result; of a method with `fine_tuned` that
    name's results, too, after its own.
  """
  runs = lab.run(
    {
      (partition, method.name, seed): make_trial(method, partition, seed)
      for partition, several in methods.items()
      for method in several
      for seed in lab.seeds
    }
  )
  for partition, several in methods.items():
    for method in several:
      variants = {method.name: trial.OWN_VARIANT}
      if method.fine_tuned:
        variants[method.fine_tuned] = method.fine_tuned_scope
      for name, variant in variants.items():
        for seed in lab.seeds:
          finished = runs[partition, method.name, seed]
          yield Result(partition, name, seed, finished, variant)
