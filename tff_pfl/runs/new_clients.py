"""New clients of a run: models fitted to their data, and their files."""

from __future__ import annotations

import collections
import hashlib
import os
import urllib.parse
from collections.abc import Mapping, Sequence
from typing import Optional

import numpy as np

from tff_pfl import datasets
from tff_pfl.core import client_examples
from tff_pfl.core import personalization as personalization_lib
from tff_pfl.datasets import files
from tff_pfl.models import split_model
from tff_pfl.runs import (
  client_population,
  ensemble,
  personalized_evaluation,
  run_store,
  value_codec,
)
from tff_pfl.runs import run as run_lib
from tff_pfl.runtime import base as runtime_base
from tff_pfl.system import folders

PERSONAL_MODELS_DIR = 'personal_models'
# File systems take 255 bytes; a model is first written to `.NAME.npz.tmp`.
_LONGEST_NAME = 246


def score(
  run: run_lib.Run,
  clients: datasets.FederatedDataset,
  personalization: personalization_lib.Personalization,
  runtime: runtime_base.Runtime,
  *,
  num_samples: Optional[int] = None,
) -> list:
  """Fits a model to each new client's training data and scores it.

  Args:
    personalization: Options of the fit.
    num_samples: Training examples to take of each client, drawn with the run's
      seed; None takes all.

  Returns:
    The rows of a `personalized_evaluation.Evaluation`.
  """
  client_population.check_data_fit(run.model, clients)
  process = run.build_process(personalization)
  return personalized_evaluation.evaluate_new_clients(
    process,
    runtime,
    run.server_state(process, runtime),
    run.data.num_clients,
    _fewer_samples(clients, num_samples, process.seed),
  ).rows


def personalize(
  run: run_lib.Run,
  clients: datasets.FederatedDataset,
  personalization: Optional[personalization_lib.Personalization] = None,
  runtime: Optional[runtime_base.Runtime] = None,
  *,
  num_samples: Optional[int] = None,
) -> dict[str, split_model.Weights]:
  """Fits a personal model to each new client's training data.

  Args:
    run: The run, whose method does it.
    clients: The new clients, such as `FederatedDataset.from_frame` makes them
      with `Run.encoding`.
    personalization: Options of the fit; None for the run's own, or for
      fine-tuning of all weights where these fit nothing.
    runtime: Runtime; None for the run's own.
    num_samples: Training examples to take of each client; None takes all.

  Returns:
    Client id to all weights of the model, for `Run.predict`.
  """
  client_population.check_data_fit(run.model, clients)
  runtime = runtime or run.cpu
  if personalization is None and not run.process.fits_new_clients:
    personalization = personalization_lib.Personalization(fine_tune='all')
  process = run.build_process(personalization)
  state = run.server_state(process, runtime)
  sampled = _fewer_samples(clients, num_samples, process.seed)
  models = {}
  for position, client_id in enumerate(clients.client_ids):
    # The index that it has in `score`.
    (client_state,) = runtime.run(
      process.initialize_client_states, [run.data.num_clients + position]
    )
    models[client_id] = runtime.run(
      process.personalize,
      state,
      client_state,
      client_examples.padded(sampled.train(client_id)),
    ).weights
  return models


def ensemble_rows(
  run: run_lib.Run,
  clients: datasets.FederatedDataset,
  runtime: runtime_base.Runtime,
) -> list:
  """Scores new clients by the mean prediction of the run's own clients.

  Nothing is trained on the new clients' data.

  Returns:
    Rows like those of `accuracy_by_samples_and_epochs`, with 'ensemble' for the
    number of samples and 0 epochs.
  """
  process = run.process
  with run_store.RunStore.open_for_reading(run.directory) as store:
    scores = ensemble.evaluate_clients(
      process,
      runtime,
      run.server_state(process, runtime),
      client_population.ClientPopulation(process, runtime, store).states,
      run.data,
      clients,
    )
  return [
    {
      'samples': 'ensemble',
      'epochs': 0,
      **value_codec.flatten({**score, 'num_train_examples': 0}),
    }
    for score in scores
  ]


def accuracy_by_samples_and_epochs(
  run: run_lib.Run,
  clients: datasets.FederatedDataset,
  runtime: runtime_base.Runtime,
  sample_counts: Sequence[Optional[int]],
  variants: Mapping[int, personalization_lib.Personalization],
) -> tuple:
  """Scores new clients for every number of samples and of epochs.

  Args:
    sample_counts: Training examples of each client; None for all.
    variants: Options of the fit by number of epochs.

  Returns:
    `(rows, models)`: a dict for each setting and each client with test
    examples, and all clients' models of the last setting,
    `{client_id: weights}`.
  """
  rows = []
  for samples in sample_counts:
    for epochs, personalization in variants.items():
      scores = score(
        run, clients, personalization, runtime, num_samples=samples
      )
      rows += [
        {
          'samples': 'all' if samples is None else samples,
          'epochs': epochs,
          **value_codec.flatten(row),
        }
        for row in scores
      ]
  models = personalize(
    run, clients, personalization, runtime, num_samples=samples
  )
  return rows, models


def save_personal_model(path: str, weights: split_model.Weights) -> None:
  """Writes a personal model as .npz: weight name to array."""
  with folders.atomic_file(path, 'wb') as file:
    np.savez(file, **weights)


def load_personal_model(
  path: str, model: split_model.SplitModel
) -> collections.OrderedDict:
  """Reads a personal model of the given model.

  Raises:
    ValueError: If the file is missing or damaged, or lacks one of the model's
      weights, or has one of another shape.
  """
  weights = files.read_npz(path, list(model.initial_weights))
  return split_model.check_weights(model, weights, tuple(model.layers))


def personal_model_path(directory: str, client_id: str) -> str:
  """The path of a client's model in the output folder of `personalize`.

  Characters of the id that could lead out of the folder are escaped; an id that
  is too long for a file's name is cut, with a checksum in place of the rest.
  """
  name = urllib.parse.quote(client_id, safe=' ')
  if len(name) > _LONGEST_NAME:
    # No escaped name has such a sign.
    name = f'{name[:100]}%~{hashlib.sha256(name.encode()).hexdigest()}'
  return os.path.join(directory, PERSONAL_MODELS_DIR, f'{name}.npz')


def _fewer_samples(clients, num_samples, seed):
  """Clients that train on `num_samples` of their examples, or all (None).

  They begin a seeded shuffle, so that smaller samples are within larger ones.
  """

  def load(client_id, split):
    if split == 'test':
      return clients.test(client_id)
    examples = clients.train(client_id)
    position = clients.client_ids.index(client_id)
    rng = np.random.default_rng([seed, position])
    kept = rng.permutation(len(examples))[:num_samples]
    return examples.select(np.sort(kept))

  return clients if num_samples is None else clients.replaced(load=load)
