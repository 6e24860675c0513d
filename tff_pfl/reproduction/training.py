"""Training and scoring for the experiments with networks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Optional

from tff_pfl import datasets, errors
from tff_pfl.evaluation import personalized_evaluation
from tff_pfl.reproduction import experiment as experiment_lib
from tff_pfl.runtime import base as runtime_base
from tff_pfl.simulation import client_population, experiment, run_store
from tff_pfl.templates import personalized_process

# Data sets whose images have one shape and whose classes differ: new clients of
# the one can be given a model that was trained on the other.
OTHER_DATASETS = {'fashion_mnist': 'mnist', 'mnist': 'fashion_mnist'}


class Trained(NamedTuple):
  """A finished run.

  Attributes:
    state: The server's last state; `state.global_weights` are the weights.
    evaluations: One mapping for each evaluated round: `round`, `personal`,
      `global` (means of metrics over clients) and `fairness`.
    summary: As in the run's `summary.json`.
  """

  state: personalized_process.ServerState
  evaluations: Sequence[Mapping[str, Any]]
  summary: Mapping[str, Any]


def data_dir_for(
  dataset: str, settings: experiment_lib.Settings
) -> Optional[str]:
  """The settings' folder, if the data set takes one.

  The folder may be for other experiments' data.

  Args:
    dataset: A key of `datasets.DATASETS`.
    settings: Of the experiment.
  """
  has_files = datasets.DATASETS[dataset].takes_data_dir
  return settings.data_dir if has_files else None


def load_arrays(
  default: str, settings: experiment_lib.Settings
) -> datasets.Arrays:
  """The data set that the settings name, or else the experiment's own.

  Args:
    default: The experiment's own.
    settings: Of the experiment; their folder is for data sets with files.
  """
  name = settings.dataset or default
  return datasets.load_arrays(name, data_dir_for(name, settings))


def expect_examples(arrays: datasets.Arrays, num_examples: int) -> None:
  """Raises `ValueError` if there are not so many training examples."""
  errors.expect(
    len(arrays.y) >= num_examples,
    'dataset',
    f'one with {num_examples} training examples for the new clients',
    f'{len(arrays.y)} in {arrays.name}',
  )


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
    name: Of the run among those of the experiment.
    process: The method.
    data: The clients.
    settings: Of the experiment.
    num_rounds: Rounds of training.
    cohort_size: Clients in a round.
    rounds_per_evaluation: Rounds between evaluations of all clients.
    num_final_evaluations: How many of the last rounds are all evaluated.
  """
  directory = settings.run_dir(name)
  summary = experiment.run(
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
      state = client_population.decode_state(
        store.server_state(), runtime.run(process.initialize)
      )
    return Trained(state, store.evaluations(), summary)


def score_new_clients(
  process: personalized_process.PersonalizedProcess,
  runtime: runtime_base.Runtime,
  state: personalized_process.ServerState,
  clients: datasets.FederatedDataset,
  *,
  first_index: int,
) -> list:
  """Scores clients that took no part in training.

  Args:
    process: The method, with the options of personalization to score with; it
      need not be the very process that was trained.
    runtime: Executes it; one for all calls, as it keeps what it compiled.
    state: The server's state after training.
    clients: The new clients.
    first_index: Client index of the first; the number of training clients, so
      that no client's seed is used twice.

  Returns:
    As `personalized_evaluation.evaluate_clients`: a dict for each client, with
    its metrics `before` and `after` personalization.
  """
  return personalized_evaluation.evaluate_clients(
    process,
    runtime,
    state,
    lambda positions: runtime.run(
      process.initialize_client_states, [first_index + i for i in positions]
    ),
    clients,
  )
