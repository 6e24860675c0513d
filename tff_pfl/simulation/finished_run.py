"""Uses a run's models, after or during training, for clients known and new."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import functools
import hashlib
import json
import os
import urllib.parse
from collections.abc import Mapping, Sequence
from typing import Any, Optional

import numpy as np

from tff_pfl import datasets, errors
from tff_pfl import runtime as runtime_lib
from tff_pfl.client import client_examples
from tff_pfl.datasets import files
from tff_pfl.datasets.sources import table_encoding
from tff_pfl.evaluation import ensemble, personalized_evaluation
from tff_pfl.models import prediction, split_model
from tff_pfl.runtime import base as runtime_base
from tff_pfl.simulation import (
  client_population,
  experiment,
  run_config,
  run_store,
  value_codec,
  warm_up,
)
from tff_pfl.simulation import summary as summary_lib
from tff_pfl.templates import personalization as personalization_lib
from tff_pfl.templates import personalized_process

PERSONAL_MODELS_DIR = 'personal_models'
# How many numbers the inputs of a table's rows may be at a time.
_MAX_INPUTS = 2**26
# File systems take 255 bytes; a model is first written to `.NAME.npz.tmp`.
_LONGEST_NAME = 246


class FinishedRun:
  """A stored run of the `train` program, opened for reading."""

  def __init__(self, directory: str, *, data_dir: Optional[str] = None):
    """Opens the run in a folder.

    Args:
      data_dir: Folder of the data set's files, if it has moved.

    Raises:
      RunError: If there is no run, none that can be built again, or one whose
        data have changed.
    """
    with contextlib.ExitStack() as on_error:
      self._store = on_error.enter_context(
        run_store.RunStore.open_for_reading(directory)
      )
      config = run_config.RunConfig.from_settings(self._store.config)
      if data_dir is not None:
        config = dataclasses.replace(config, data_dir=data_dir)
      self.directory = directory
      self.config = config
      self.data = config.load_data()
      client_population.check_unchanged(self.data, self._store)
      self._own_model = warm_up.started(
        config, config.build_model(self.data), directory
      )
      on_error.pop_all()
    # Building one takes a second or two.
    self._processes = {}

  @functools.cached_property
  def encoding(self) -> table_encoding.TableEncoding:
    """What makes examples of a table's rows, as the training had them.

    Raises:
      RunError: If the run's data are no table.
      ValueError: If the encoding's file is missing or damaged.
    """
    if self.data.encoding is None:
      raise errors.RunError(
        f'Expected a run on a table for rows of a table, found one on'
        f' {self.data.name} in {self.directory}; give examples as arrays.'
      )
    path = os.path.join(self.directory, experiment.ENCODING_NAME)
    content = files.read_bytes(path)
    try:
      return table_encoding.TableEncoding.from_json(json.loads(content))
    except (ValueError, TypeError, KeyError) as error:
      raise files.file_error(path, 'the encoding of a table', error) from None

  @property
  def model(self) -> split_model.SplitModel:
    """The model of clients, as the method makes it of the run's own."""
    return self.build_process().model

  def build_process(
    self,
    personalization: Optional[personalization_lib.Personalization] = None,
  ) -> personalized_process.PersonalizedProcess:
    """The run's process, with other options of personalization if given."""
    config = self.config
    if personalization is not None:
      config = dataclasses.replace(config, personalization=personalization)
    options = config.personalization
    if options not in self._processes:
      self._processes[options] = config.build_process(self._own_model)
    return self._processes[options]

  def server_state(
    self,
    process: personalized_process.PersonalizedProcess,
    runtime: runtime_base.Runtime,
  ) -> personalized_process.ServerState:
    """The newest committed server state."""
    return client_population.server_state(process, runtime, self._store)

  def global_weights(
    self, runtime: runtime_base.Runtime
  ) -> split_model.Weights:
    """The weights that the server has."""
    return self.server_state(self.build_process(), runtime).global_weights

  def new_client_weights(
    self, runtime: runtime_base.Runtime
  ) -> split_model.Weights:
    """The model given to a client that contributes no data."""
    process = self.build_process()
    return runtime.run(
      process.model_without_data, self.server_state(process, runtime)
    )

  def personal_weights(
    self, client_id: str, runtime: runtime_base.Runtime
  ) -> split_model.Weights:
    """The personal model of one of the run's own clients."""
    process = self.build_process()
    return _personal_weights(
      self._store, process, self.data, client_id, runtime
    )

  @functools.cached_property
  def _forward(self):
    return prediction.compiled(self.model)

  def predict_rows(
    self, rows: table_encoding.Rows, weights: Mapping[str, Any]
  ) -> np.ndarray:
    """Outputs of a model for rows of a table.

    Args:
      rows: What `encoding` made of them.
      weights: All weights of the model.

    Returns:
      See `prediction.predict`; for regression, in the label's own unit.
    """
    encoding = self.encoding
    step = max(1, _MAX_INPUTS // len(encoding.input_names))
    outputs = []
    for start in range(0, max(1, len(rows.numbers)), step):
      part = rows.select(slice(start, start + step))
      x = encoding.inputs(part)
      outputs.append(
        prediction.predict(self.model, weights, x, part.domain, self._forward)
      )
    outputs = np.concatenate(outputs)
    return outputs if encoding.classes else encoding.label(outputs)

  def score_new_clients(
    self,
    clients: datasets.FederatedDataset,
    personalization: personalization_lib.Personalization,
    runtime: runtime_base.Runtime,
    *,
    num_samples: Optional[int] = None,
  ) -> list:
    """Fits a model to each new client's training data and scores it.

    Args:
      personalization: How they are fitted.
      num_samples: Training examples to take of each client, drawn with the
        run's seed; None takes all.

    Returns:
      The rows of a `personalized_evaluation.Evaluation`.

    Raises:
      ValueError: If the clients' data do not fit the model, or none has test
        examples.
    """
    client_population.check_data_fit(self.model, clients)
    process = self.build_process(personalization)
    return personalized_evaluation.evaluate_new_clients(
      process,
      runtime,
      self.server_state(process, runtime),
      self.data.num_clients,
      _FewerSamples(clients, num_samples, self.config.seed),
    ).rows

  def ensemble_rows(
    self, clients: datasets.FederatedDataset, runtime: runtime_base.Runtime
  ) -> list:
    """Scores new clients by the mean prediction of the run's own clients.

    Nothing is trained on the new clients' data.

    Returns:
      Rows like those of `accuracy_by_samples_and_epochs`, with 'ensemble' for
      the number of samples and 0 epochs.
    """
    process = self.build_process()
    scores = ensemble.evaluate_clients(
      process,
      runtime,
      self.server_state(process, runtime),
      client_population.ClientPopulation(process, runtime, self._store).states,
      self.data,
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

  def fit_new_clients(
    self,
    clients: datasets.FederatedDataset,
    personalization: personalization_lib.Personalization,
    runtime: runtime_base.Runtime,
    *,
    num_samples: Optional[int] = None,
  ) -> dict:
    """The models that `score_new_clients` scores: `{client_id: weights}`."""
    client_population.check_data_fit(self.model, clients)
    process = self.build_process(personalization)
    state = self.server_state(process, runtime)
    sampled = _FewerSamples(clients, num_samples, self.config.seed)
    models = {}
    for position, client_id in enumerate(clients.client_ids):
      # The index that it has in `score_new_clients`.
      (client_state,) = runtime.run(
        process.initialize_client_states, [self.data.num_clients + position]
      )
      models[client_id] = runtime.run(
        process.personalize,
        state,
        client_state,
        client_examples.padded(sampled.train(client_id)),
      ).weights
    return models

  def close(self) -> None:
    """Closes the run's store."""
    self._store.close()

  def __enter__(self) -> FinishedRun:
    return self

  def __exit__(self, *_: Any) -> None:
    self.close()


def personal_weights(
  directory: str,
  process: personalized_process.PersonalizedProcess,
  data: datasets.FederatedDataset,
  client_id: str,
  *,
  runtime: str = runtime_lib.DEFAULT,
) -> split_model.Weights:
  """The personal model of a client of a run, of the library or a program.

  Args:
    directory: The run's folder.
    process: The process of the run, built as it was then.
    data: The data of the run.
    client_id: One of its clients.
    runtime: A key of `runtime.RUNTIMES`.

  Returns:
    All weights; see `prediction.predict` for their use.

  Raises:
    RunError: If there is no run, or one of another process or other data.
    ValueError: If there is no such client.
  """
  errors.expect(
    client_id in data.client_ids,
    'client_id',
    f'a client of {data.name!r}, such as {data.client_ids[0]!r}',
    client_id,
  )
  with run_store.RunStore.open_for_reading(directory) as store:
    client_population.check_unchanged(data, store)
    with runtime_lib.create_runtime(runtime) as created:
      return _personal_weights(store, process, data, client_id, created)


def server_state(
  directory: str,
  process: personalized_process.PersonalizedProcess,
  *,
  runtime: str = runtime_lib.DEFAULT,
) -> personalized_process.ServerState:
  """The newest committed server state of a run; see `personal_weights`."""
  with run_store.RunStore.open_for_reading(directory) as store:
    with runtime_lib.create_runtime(runtime) as created:
      return client_population.server_state(process, created, store)


def _personal_weights(store, process, data, client_id, runtime):
  population = client_population.ClientPopulation(process, runtime, store)
  (state,) = population.states([data.client_ids.index(client_id)])
  return runtime.run(
    process.personalize,
    client_population.server_state(process, runtime, store),
    state,
    personalized_evaluation.training_examples(
      process, state, client_examples.ClientExamples(data.train), client_id
    ),
  ).weights


class _FewerSamples:
  """Clients that train on `num_samples` of their examples, or all (None)."""

  def __init__(self, data, num_samples, seed):
    self._data = data
    self._num_samples = num_samples
    self._seed = seed
    self.client_ids = data.client_ids
    self.test = data.test
    self.num_test_examples = data.num_test_examples

  def num_train_examples(self, client_id):
    available = self._data.num_train_examples(client_id)
    return min(self._num_samples or available, available)

  def train(self, client_id):
    """The first of a seeded shuffle: smaller samples are within larger ones."""
    examples = self._data.train(client_id)
    if self._num_samples is None:
      return examples
    position = self.client_ids.index(client_id)
    order = np.random.default_rng([self._seed, position]).permutation(
      len(examples.y)
    )
    kept = np.sort(order[: self._num_samples])
    return examples.select(kept)


def save_personal_model(path: str, weights: split_model.Weights) -> None:
  """Writes a personal model as .npz: weight name to array."""
  with summary_lib.atomic_file(path, 'wb') as file:
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
  """Where `personalize` puts a client's model in its output folder.

  Characters of the id that could lead out of the folder are escaped; an id that
  is too long for a file's name is cut, with a checksum in place of the rest.
  """
  name = urllib.parse.quote(client_id, safe=' ')
  if len(name) > _LONGEST_NAME:
    # No escaped name has such a sign.
    name = f'{name[:100]}%~{hashlib.sha256(name.encode()).hexdigest()}'
  return os.path.join(directory, PERSONAL_MODELS_DIR, f'{name}.npz')


def accuracy_by_samples_and_epochs(
  run: FinishedRun,
  clients: datasets.FederatedDataset,
  runtime: runtime_base.Runtime,
  sample_counts: Sequence[Optional[int]],
  variants: Mapping[int, personalization_lib.Personalization],
) -> tuple:
  """Scores new clients for every number of samples and of epochs.

  Args:
    sample_counts: Training examples of each client; None for all.
    variants: From the number of epochs to the options that train for them.

  Returns:
    `(rows, models)`: a dict for each setting and each client with test
    examples, and all clients' models of the last setting,
    `{client_id: weights}`.
  """
  rows = []
  for samples in sample_counts:
    for epochs, personalization in variants.items():
      scores = run.score_new_clients(
        clients, personalization, runtime, num_samples=samples
      )
      rows += [
        {
          'samples': 'all' if samples is None else samples,
          'epochs': epochs,
          **value_codec.flatten(score),
        }
        for score in scores
      ]
  models = run.fit_new_clients(
    clients, personalization, runtime, num_samples=samples
  )
  return rows, models
