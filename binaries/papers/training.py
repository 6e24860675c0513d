"""Data and training for the experiments with networks."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Optional

from binaries.papers import repeats
from tff_pfl import datasets, errors
from tff_pfl.algorithms import registry
from tff_pfl.experiments import paper as experiment_lib
from tff_pfl.models import split_model, zoo
from tff_pfl.simulation import client_population, experiment, run_store
from tff_pfl.templates import personalized_process

# Data sets whose images have one shape and whose classes differ: new clients of
# the one can be given a model that was trained on the other.
_OTHER_DATASETS = {'fashion_mnist': 'mnist', 'mnist': 'fashion_mnist'}


class Trained(NamedTuple):
  """A finished run.

  Attributes:
    state: The server's last state; `state.global_weights` are the weights.
    evaluations: One mapping for each evaluated round: `round`, `personal`,
      `global` (means of metrics over clients) and `fairness`.
  """

  state: personalized_process.ServerState
  evaluations: Sequence[Mapping[str, Any]]


def data_dir_for(
  dataset: str, settings: experiment_lib.Settings
) -> Optional[str]:
  """The settings' folder, if the data set takes one.

  The folder may be for other experiments' data.
  """
  has_files = datasets.DATASETS[dataset].takes_data_dir
  return settings.data_dir if has_files else None


def load_arrays(
  default: str, settings: experiment_lib.Settings
) -> datasets.Arrays:
  """The data set that the settings name, or else the experiment's own."""
  name = settings.dataset or default
  return datasets.load_arrays(name, data_dir_for(name, settings))


def other_arrays(
  arrays: datasets.Arrays, settings: experiment_lib.Settings
) -> Optional[datasets.Arrays]:
  """Images of the same shape and of other classes; None if there are none."""
  if arrays.name not in _OTHER_DATASETS:
    return None
  return datasets.load_arrays(_OTHER_DATASETS[arrays.name], settings.data_dir)


def expect_examples(arrays: datasets.Arrays, num_examples: int) -> None:
  """Raises `ValueError` if there are not so many training examples."""
  errors.expect(
    len(arrays.y) >= num_examples,
    'dataset',
    f'one with {num_examples} training examples for the new clients',
    f'{len(arrays.y)} in {arrays.name}',
  )


def hparams_of(
  algorithm: str, shared: Mapping[str, Any], own: Mapping[str, Any]
) -> Any:
  """A method's hyperparameters.

  Args:
    algorithm: A key of `registry.ALGORITHMS`.
    shared: Hyperparameters of all methods of an experiment; a method takes
      those that it has.
    own: The method's own, which go before these.
  """
  hparams = registry.get_algorithm(algorithm).hparams
  names = {field.name for field in dataclasses.fields(hparams)}
  taken = {name: value for name, value in shared.items() if name in names}
  return hparams(**{**taken, **own})


class Seeded(NamedTuple):
  """What all methods of an experiment share for one seed."""

  seed: int
  data: datasets.FederatedDataset
  model: split_model.SplitModel


def seeded(
  arrays: datasets.Arrays,
  sizes: Any,
  settings: experiment_lib.Settings,
  **model_arguments: Any,
) -> Iterator[Seeded]:
  """Yields the clients and an MLP with its initial weights for each seed.

  Args:
    sizes: Their `num_clients` and `partition`, the model's `widths` and
      `jit_compile`, and `num_seeds`.
    **model_arguments: Further arguments of `zoo.mlp`.
  """
  for seed in repeats.seeds(settings, sizes.num_seeds):
    data = arrays.to_clients(sizes.num_clients, sizes.partition, seed=seed)
    model = zoo.make_model(
      'mlp',
      data.element_spec,
      data.num_classes,
      seed,
      widths=sizes.widths,
      **model_arguments,
    )
    model = dataclasses.replace(model, jit_compile=sizes.jit_compile)
    yield Seeded(seed, data, model)


def train(
  name: str,
  process: personalized_process.PersonalizedProcess,
  data: datasets.FederatedDataset,
  settings: experiment_lib.Settings,
  *,
  num_rounds: int,
  cohort_size: int,
  rounds_per_evaluation: int,
  num_final_evaluations: int = 1,
) -> Trained:
  """Trains a method, or goes on with a run that was interrupted.

  Args:
    name: The run's name among those of the experiment.
    rounds_per_evaluation: Rounds between evaluations of all clients.
    num_final_evaluations: How many of the last rounds are all evaluated.
  """
  directory = settings.run_dir(name)
  experiment.run(
    process,
    data,
    output_dir=directory,
    num_rounds=num_rounds,
    cohort_size=cohort_size,
    rounds_per_evaluation=rounds_per_evaluation,
    num_final_evaluations=num_final_evaluations,
    runtime=settings.runtime,
    runtime_options=settings.runtime_options,
    resume=True,
    show_progress=settings.show_progress,
  )
  with run_store.RunStore.open_for_reading(directory) as store:
    with settings.create_runtime() as runtime:
      state = client_population.server_state(process, runtime, store)
    return Trained(state, store.evaluations())
