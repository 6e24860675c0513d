"""New clients served by the personal models of those who were trained.

A client that took no part in training, and trains nothing now, gets the mean of
what all known clients' personal models predict: for classifiers of the classes'
probabilities, otherwise of the outputs. Every known client counts alike.

In federated terms the new client's inputs are broadcast, every known client
predicts, and the predictions are summed; nobody but a client sees its model.

Sources: FedSplit (Wang, Tang, Li: Factor-Assisted Federated Learning for
Personalized Optimization with Heterogeneous Data, arXiv:2312.04281, section
3.2, "Ensemble"); LG-FedAvg (Liang et al.: Think Locally, Act Globally, 2020,
section 2.2) does the same.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_pfl import datasets, errors
from tff_pfl.client import client_examples, example_tensors, objectives
from tff_pfl.evaluation import personalized_evaluation
from tff_pfl.models import domains
from tff_pfl.runtime import base as runtime_base
from tff_pfl.templates import client_work, personalized_process


class NoModelsError(ValueError):
  """There is no model whose predictions could be averaged."""


def evaluate_clients(
  process: personalized_process.PersonalizedProcess,
  runtime: runtime_base.Runtime,
  server_state: personalized_process.ServerState,
  states_of: Callable[[Sequence[int]], list],
  known: datasets.FederatedDataset,
  new: datasets.FederatedDataset,
) -> list:
  """Scores new clients by the mean prediction of all known ones.

  Args:
    states_of: From known clients' indices to their states.
    known: The clients of the training; those that never took part, or whose
      model is not finite, have no say.
    new: The new clients; all with test examples are scored.

  Returns:
    A dict for each: `client`, `num_test_examples`, `num_models` (whose
    predictions are averaged), and `after`: a dict of metrics, means over the
    test examples.

  Raises:
    NoModelsError: If no known client has a say.
  """
  ids = [name for name in new.client_ids if new.num_test_examples(name)]
  tests = [new.test(client_id) for client_id in ids]
  if not tests:
    return []
  fields = [test.as_dict() for test in tests]
  together = collections.OrderedDict(
    (
      name,
      tf.nest.map_structure(
        lambda *arrays: np.concatenate(arrays),
        *(of_client[name] for of_client in fields),
      ),
    )
    for name in process.model.element_spec
    if name != 'y'
  )
  total, num_models = _sum_of_predictions(
    process, runtime, server_state, states_of, known, together
  )
  if not num_models:
    raise NoModelsError(
      errors.message(
        'known',
        'clients of which at least one took part in a round, with a finite '
        'model',
        'none',
      )
    )
  sizes = [new.num_test_examples(client_id) for client_id in ids]
  predictions = np.split(total / num_models, np.cumsum(sizes)[:-1])
  return [
    {
      'client': client_id,
      'num_test_examples': size,
      'num_models': num_models,
      'after': _metrics(process.model, prediction, test.y),
    }
    for client_id, size, prediction, test in zip(ids, sizes, predictions, tests)
  ]


def _computations(process: personalized_process.PersonalizedProcess) -> tuple:
  """What the known clients compute.

  Returns:
    Two computations: the clients' models, each with whether all of it is
    finite, `(<S@SERVER, C@CLIENTS, D*@CLIENTS> -> <weights, bool>@CLIENTS)`,
    see `PersonalizedProcess.personalize`; and the sum of their predictions,
    `(<weights@CLIENTS, inputs@SERVER> -> float32 [rows, ...]@SERVER)`. The
    inputs are an `OrderedDict(x=[rows, ...])` of `CHUNK_SIZE` rows, with
    `domain=[rows]` where there are domains.
  """
  model = process.model
  personalize = process.personalize
  state_type, client_type, data_type = personalize.type_signature.parameter
  inputs_type = tff.types.tensorflow_to_type(
    collections.OrderedDict(
      (
        name,
        tf.nest.map_structure(
          lambda spec: tf.TensorSpec(
            [example_tensors.CHUNK_SIZE, *spec.shape], spec.dtype
          ),
          spec,
        ),
      )
      for name, spec in model.element_spec.items()
      if name != 'y'
    )
  )

  @tff.tensorflow.computation(personalize.type_signature.result)
  def with_finiteness(personal):
    return personal.weights, client_work.all_finite(personal.weights)

  @tff.federated_computation(
    tff.FederatedType(state_type, tff.SERVER),
    tff.FederatedType(client_type, tff.CLIENTS),
    tff.FederatedType(data_type, tff.CLIENTS),
  )
  def personal_models(state, client_states, data):
    personal = tff.federated_map(
      personalize, (tff.federated_broadcast(state), client_states, data)
    )
    return tff.federated_map(with_finiteness, personal)

  weights_type = with_finiteness.type_signature.result[0]

  @tff.tensorflow.computation(weights_type, inputs_type)
  def predict_alone(weights, inputs):
    x, _ = domains.join({**inputs, 'y': ()})
    outputs, _ = model.forward(weights, x)
    if model.classifier is not None:
      outputs = model.classifier.probabilities(outputs)
    return tf.cast(outputs, tf.float32)

  @tff.federated_computation(
    tff.FederatedType(weights_type, tff.CLIENTS),
    tff.FederatedType(inputs_type, tff.SERVER),
  )
  def sum_of_predictions(weights, inputs):
    predicted = tff.federated_map(
      predict_alone, (weights, tff.federated_broadcast(inputs))
    )
    return tff.federated_sum(predicted)

  return personal_models, sum_of_predictions


def _sum_of_predictions(
  process, runtime, server_state, states_of, known, inputs
):
  """The sum of all known clients' predictions, and the number of them."""
  personal_models, sum_of_predictions = _computations(process)
  num_inputs = len(tf.nest.flatten(inputs)[0])
  (train,) = runtime.share(client_examples.ClientExamples(known.train))
  total, num_models = 0.0, 0
  indices = range(known.num_clients)
  for first in range(0, len(indices), runtime.clients_per_call):
    chunk = indices[first : first + runtime.clients_per_call]
    members = [
      (state, known.client_ids[index])
      for index, state in zip(chunk, states_of(chunk))
      if state.num_rounds
    ]
    if not members:
      continue
    found = runtime.run(
      personal_models,
      server_state,
      [state for state, _ in members],
      [
        personalized_evaluation.training_examples(process, state, train, name)
        for state, name in members
      ],
    )
    # A model that diverged has no say.
    models = [weights for weights, is_finite in found if is_finite]
    if not models:
      continue
    total += np.concatenate(
      [
        np.asarray(runtime.run(sum_of_predictions, models, rows))
        for rows in _padded(inputs)
      ]
    )[:num_inputs]
    num_models += len(models)
  return total, num_models


def _padded(inputs):
  """The inputs, so many at a time; the last ones are padded with zeros."""
  rows = example_tensors.CHUNK_SIZE
  for start in range(0, len(tf.nest.flatten(inputs)[0]), rows):

    def part(value, start=start):
      value = value[start : start + rows]
      missing = rows - len(value)
      return np.pad(value, [(0, missing)] + [(0, 0)] * (value.ndim - 1))

    yield tf.nest.map_structure(part, inputs)


def _metrics(model, prediction, y) -> dict[str, Any]:
  outputs = tf.constant(prediction, tf.float32)
  if model.classifier is not None:
    outputs = model.classifier.outputs_of(outputs)
  sums = objectives.metric_sums(
    model, outputs, tf.constant(y), tf.ones([len(y)])
  )
  return {name: float(value) for name, value in objectives.means(sums).items()}
