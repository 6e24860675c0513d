"""Scores of personal models, for a run's clients and for new clients.

New clients did not take part in training. Each gets a model fitted to its
training data. A client that cannot train gets an *ensemble* instead: the mean
prediction of the trained clients' personal models. It averages class
probabilities for classifiers, and outputs otherwise. In federated terms, the
server broadcasts the new client's inputs, the trained clients predict, and
their predictions are summed.

References:
  FedSplit: Wang, Tang, Li. Factor-Assisted Federated Learning for Personalized
    Optimization with Heterogeneous Data. arXiv:2312.04281, section 3.2: an
    ensemble of all clients. The authors' code uses the clients of the last
    round.
  LG-FedAvg: Liang et al. Think Locally, Act Globally. 2020, section 2.2.
"""

from __future__ import annotations

import hashlib
import os
import urllib.parse
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Optional

import numpy as np
import tensorflow as tf

from tff_pfl import datasets
from tff_pfl import tff_api as tff
from tff_pfl.core import objectives, padding, personalized_process
from tff_pfl.core import personalization as personalization_lib
from tff_pfl.datasets import files
from tff_pfl.models import client_metrics, prediction, split_model
from tff_pfl.runs import client_population, run_store, scores
from tff_pfl.runtime import base as runtime_base
from tff_pfl.system import folders

if TYPE_CHECKING:
  # It imports this module.
  from tff_pfl.runs import run as run_lib

PERSONAL_MODELS_DIR = 'personal_models'
# File names have at most 255 bytes, and the file is first `.NAME.npz.tmp`.
_LONGEST_NAME = 246

# From client ids to examples, as `Runtime.share` returns it.
ClientMapping = Mapping[str, Any]


class Evaluation(NamedTuple):
  """An evaluation of clients that have test examples.

  Attributes:
    rows: A dict for each client: `client`, `num_train_examples`,
      `num_test_examples`, `num_rounds` (in which it took part), and `before`
      and `after` personalization. These two are dicts of metrics on its test
      examples: means over the examples, or metrics of `client_metrics`, which
      are None if undefined. A process with domains adds `domains`, see
      `scores.client_domains`.
    summary: The result of `scores.summarize`.
  """

  rows: list
  summary: dict


class NoModelsError(ValueError):
  """There is no model whose predictions can be averaged."""


def training_examples(
  process: personalized_process.PersonalizedProcess,
  runtime: runtime_base.Runtime,
  client_states: Sequence[personalized_process.ClientState],
  train: ClientMapping,
  client_ids: Sequence[str],
) -> list:
  """The clients' `ExampleTensors`, empty for clients that need no examples.

  If clients run as one program and any of them needs examples, all get theirs.
  Otherwise each number of such clients would need its own program.
  """
  needed = list(map(process.needs_training_data, client_states))
  if runtime.batches_clients and any(needed):
    needed = [True] * len(needed)
  nothing = padding.no_examples(process.model.element_spec)
  return [
    train[client_id] if is_needed else nothing
    for client_id, is_needed in zip(client_ids, needed)
  ]


def _calls(runtime, data, states_of, indices):
  """Yields a list of clients, as `(id, state)`, for each call."""
  for start in range(0, len(indices), runtime.clients_per_call):
    chunk = indices[start : start + runtime.clients_per_call]
    ids = [data.client_ids[index] for index in chunk]
    yield list(zip(ids, states_of(chunk)))


def evaluate(
  process: personalized_process.PersonalizedProcess,
  runtime: runtime_base.Runtime,
  server_state: personalized_process.ServerState,
  states_of: client_population.StatesOf,
  data: datasets.FederatedDataset,
  train: Optional[ClientMapping] = None,
  test: Optional[ClientMapping] = None,
  client_indices: Optional[Sequence[int]] = None,
) -> Evaluation:
  """Scores clients, and summarizes the scores.

  All predictions of two classes stay in memory until the end, with 16 bytes per
  test example.

  Args:
    process: Process whose personalization is scored.
    data: The clients. A client's index is its position in `client_ids`.
    train: Their training data as shared by the runtime, to be reused. None
      shares both splits here.
    test: Their test data in the same form. Give both splits or neither.
    client_indices: Indices of clients with test examples. None scores all that
      have test examples.
  """
  if train is None or test is None:
    train, test = runtime.share(
      padding.ClientExamples(data.train),
      padding.ClientExamples(data.test),
    )
  model = process.model
  if client_indices is None:
    client_indices = [
      index
      for index, client_id in enumerate(data.client_ids)
      if data.num_test_examples(client_id)
    ]
  rows, predictions = [], []
  for clients in _calls(runtime, data, states_of, client_indices):
    ids, states = map(list, zip(*clients))
    results = runtime.run(
      process.evaluate_clients,
      server_state,
      states,
      training_examples(process, runtime, states, train, ids),
      [test[client_id] for client_id in ids],
    )
    for client_id, state, result in zip(ids, states, results):
      size = int(result['examples'])
      row = {
        'client': client_id,
        'num_train_examples': data.num_train_examples(client_id),
        'num_test_examples': size,
        'num_rounds': int(state.num_rounds),
        'before': _to_floats(result['before']),
        'after': _to_floats(result['after']),
      }
      # Copies without the padding, which would stay in memory.
      arrays = {
        kind: {k: np.array(v[:size]) for k, v in result[kind].items()}
        for kind in ('predictions', 'scores')
        if kind in result
      }
      if 'predictions' in arrays:
        y = arrays['predictions'].pop('y')
        for when, predicted in arrays['predictions'].items():
          row[when].update(client_metrics.scores(model, y, predicted))
      if 'scores' in arrays:
        predictions.append(arrays['scores'])
      if 'domains' in result:
        row['domains'] = scores.client_domains(
          result['domains'], model.domains.names
        )
      rows.append(row)
  return Evaluation(
    rows, scores.summarize(rows, process.has_global_model, model, predictions)
  )


def _to_floats(metrics):
  return {name: float(value) for name, value in metrics.items()}


def new_states(
  process: personalized_process.PersonalizedProcess,
  runtime: runtime_base.Runtime,
  num_known: int,
) -> client_population.StatesOf:
  """Initial states of new clients, for `evaluate`.

  Args:
    num_known: Number of trained clients, whose seeds are skipped.
  """
  return lambda positions: runtime.run(
    process.initialize_client_states, [num_known + i for i in positions]
  )


def score(
  run: run_lib.Run,
  clients: datasets.FederatedDataset,
  personalization: personalization_lib.Personalization,
  runtime: runtime_base.Runtime,
  *,
  num_samples: Optional[int] = None,
) -> list:
  """Scores the models of `personalize`, as rows of an `Evaluation`."""
  fit = _fit(run, clients, personalization, runtime, num_samples)
  return evaluate(*fit).rows


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
    run: The run, whose method fits the models.
    clients: The new clients, for example from `FederatedDataset.from_frame`
      with `Run.encoding`.
    personalization: Options of the fit. None uses the run's options, or
      fine-tunes all weights if these fit nothing.
    runtime: Runtime. None uses the run's own.
    num_samples: Number of training examples per client, drawn with the run's
      seed. None uses all.

  Returns:
    From client id to all weights of the model, for `Run.predict`.
  """
  runtime = runtime or run.cpu
  if personalization is None and not run.process.fits_new_clients:
    personalization = personalization_lib.Personalization(fine_tune='all')
  process, runtime, server_state, states_of, clients = _fit(
    run, clients, personalization, runtime, num_samples
  )
  return {
    client_id: runtime.run(
      process.personalize,
      server_state,
      *states_of([position]),
      padding.padded(clients.train(client_id)),
    ).weights
    for position, client_id in enumerate(clients.client_ids)
  }


def _fit(run, clients, personalization, runtime, num_samples):
  """The arguments of `evaluate`, with samples of the clients' training data.

  A sample is the start of a seeded shuffle, so larger samples contain smaller
  ones.
  """
  clients = _with_classes_of(run.data, clients)
  client_population.check_data_fit(run.model, clients)
  process = run.build_process(personalization)
  positions = {name: i for i, name in enumerate(clients.client_ids)}

  def load(client_id, split):
    if split == 'test':
      return clients.test(client_id)
    examples = clients.train(client_id)
    rng = np.random.default_rng([process.seed, positions[client_id]])
    sample = rng.permutation(len(examples))[:num_samples]
    return examples.select(np.sort(sample))

  return (
    process,
    runtime,
    run.server_state(process, runtime),
    new_states(process, runtime, run.data.num_clients),
    clients if num_samples is None else clients.replaced(load=load),
  )


def _with_classes_of(known, clients):
  """New clients with the labels of known ones, if both name their classes."""
  before, after = clients.class_names, known.class_names
  if None in (before, after) or before == after:
    return clients
  return clients.with_class_names(after)


def evaluate_by_ensemble(
  process: personalized_process.PersonalizedProcess,
  runtime: runtime_base.Runtime,
  server_state: personalized_process.ServerState,
  states_of: client_population.StatesOf,
  known: datasets.FederatedDataset,
  new: datasets.FederatedDataset,
  members: Optional[Sequence[int]] = None,
) -> list:
  """Scores new clients by the mean prediction of known ones.

  Args:
    known: The training clients. Clients that never took part, or whose model is
      not finite, are ignored. All others have the same weight.
    new: The new clients. All clients with test examples, at least one, are
      scored.
    members: Indices of the known clients that predict. None means all.

  Returns:
    A dict for each scored client: `client`, `num_test_examples`, `num_models`
    (the number of averaged models), and `after` as in the rows of an
    `Evaluation`.

  Raises:
    NoModelsError: If all known clients are ignored.
  """
  model = process.model
  ids = [name for name in new.client_ids if new.num_test_examples(name)]
  tests = [new.test(client_id) for client_id in ids]
  examples = tf.nest.map_structure(
    lambda *parts: np.concatenate(parts), *(test.as_dict() for test in tests)
  )
  inputs = examples['x'], examples.get('domain')
  if members is None:
    members = range(known.num_clients)
  forward = prediction.compiled(model)
  total, num_models = 0.0, 0
  for weights in _finite_models(
    process, runtime, server_state, states_of, known, members
  ):
    total += prediction.predict(model, weights, *inputs, forward)
    num_models += 1
  if not num_models:
    raise NoModelsError('No known client has a finite model that was trained.')
  ends = np.cumsum([len(test.y) for test in tests])
  means = np.split(total / num_models, ends[:-1])
  return [
    {
      'client': client_id,
      'num_test_examples': len(test.y),
      'num_models': num_models,
      'after': _metrics(model, mean, test.y),
    }
    for client_id, mean, test in zip(ids, means, tests)
  ]


def _finite_models(process, runtime, server_state, states_of, known, indices):
  """Yields the weights of the finite models of clients that took part."""
  state_type, *client_types = process.personalize.type_signature.parameter

  @tff.federated_computation(
    tff.FederatedType(state_type, tff.SERVER),
    *(tff.FederatedType(one, tff.CLIENTS) for one in client_types),
  )
  def personal_models(state, client_states, train):
    return tff.federated_map(
      process.personalize,
      (tff.federated_broadcast(state), client_states, train),
    )

  (train,) = runtime.share(padding.ClientExamples(known.train))
  for clients in _calls(runtime, known, states_of, indices):
    clients = [(name, state) for name, state in clients if state.num_rounds]
    if clients:
      ids, states = map(list, zip(*clients))
      models = runtime.run(
        personal_models,
        server_state,
        states,
        training_examples(process, runtime, states, train, ids),
      )
      for weights in (model.weights for model in models):
        if all(np.isfinite(value).all() for value in weights.values()):
          yield weights


def _metrics(model, predicted, y):
  outputs = tf.constant(predicted, tf.float32)
  if model.classifier is not None:
    outputs = model.classifier.outputs_of(outputs)
  sums = objectives.metric_sums(
    model, outputs, tf.constant(y), tf.ones([len(y)])
  )
  return {
    **_to_floats(objectives.means(sums)),
    **client_metrics.scores(model, np.asarray(y), predicted),
  }


def score_by_ensemble(
  run: run_lib.Run,
  clients: datasets.FederatedDataset,
  runtime: runtime_base.Runtime,
) -> list:
  """Scores new clients by the ensemble of all of the run's clients."""
  process = run.process
  with run_store.RunStore.open_for_reading(run.directory) as store:
    return evaluate_by_ensemble(
      process,
      runtime,
      run.server_state(process, runtime),
      client_population.client_states(process, runtime, store),
      run.data,
      _with_classes_of(run.data, clients),
    )


def save_personal_model(path: str, weights: split_model.Weights) -> None:
  """Writes a personal model as .npz, from weight name to array."""
  with folders.atomic_file(path, 'wb') as file:
    np.savez(file, **weights)


def load_personal_model(
  path: str, model: split_model.SplitModel
) -> split_model.Weights:
  """Reads a personal model.

  Raises:
    ValueError: If the file is damaged, or lacks or misshapes a weight.
  """
  weights = files.read_npz(path, list(model.initial_weights))
  return split_model.check_weights(model, weights, tuple(model.layers))


def personal_model_path(directory: str, client_id: str) -> str:
  """The path of a client's model in the output folder of `personalize`.

  Characters of the id that could lead out of the folder are escaped. An id that
  is too long for a file name is cut, and a checksum replaces the rest.
  """
  name = urllib.parse.quote(client_id, safe=' ')
  if len(name) > _LONGEST_NAME:
    # No escaped name contains a tilde after a percent sign.
    name = f'{name[:100]}%~{hashlib.sha256(name.encode()).hexdigest()}'
  return os.path.join(directory, PERSONAL_MODELS_DIR, f'{name}.npz')
