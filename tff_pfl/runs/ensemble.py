"""New clients served by the personal models of those who were trained.

A client that took no part in training, and trains nothing now, gets the mean
prediction of known clients' personal models: of the classes' probabilities for
classifiers, otherwise of the outputs. Every one of them counts alike.

In federated terms the new client's inputs are broadcast, these clients predict,
and the predictions are summed. The paper has all existing clients, its authors'
code those of the last round.

Sources: FedSplit (Wang, Tang, Li: Factor-Assisted Federated Learning for
Personalized Optimization with Heterogeneous Data, arXiv:2312.04281, section
3.2, "Ensemble"); LG-FedAvg (Liang et al.: Think Locally, Act Globally, 2020,
section 2.2) does the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Optional

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_pfl import datasets
from tff_pfl.core import client_examples, objectives, personalized_process
from tff_pfl.models import client_metrics, prediction
from tff_pfl.runs import personalized_evaluation
from tff_pfl.runtime import base as runtime_base


class NoModelsError(ValueError):
  """There is no model whose predictions could be averaged."""


def evaluate_clients(
  process: personalized_process.PersonalizedProcess,
  runtime: runtime_base.Runtime,
  server_state: personalized_process.ServerState,
  states_of: Callable[[Sequence[int]], list],
  known: datasets.FederatedDataset,
  new: datasets.FederatedDataset,
  members: Optional[Sequence[int]] = None,
) -> list:
  """Scores new clients by the mean prediction of known ones.

  Args:
    states_of: Function from known clients' indices to their states.
    known: The clients of the training; those that never took part, or whose
      model is not finite, have no say.
    new: The new clients; all with test examples are scored.
    members: Indices of the known clients that predict; None for all.

  Returns:
    A dict for each: `client`, `num_test_examples`, `num_models` (whose
    predictions are averaged), and `after`: a dict of metrics, as in the rows of
    a `personalized_evaluation.Evaluation`.

  Raises:
    NoModelsError: If no known client has a say.
  """
  ids = [name for name in new.client_ids if new.num_test_examples(name)]
  tests = [new.test(client_id) for client_id in ids]
  if not tests:
    return []
  if members is None:
    members = range(known.num_clients)
  total, num_models = _sum_of_predictions(
    process, runtime, server_state, states_of, known, members, tests
  )
  if not num_models:
    raise NoModelsError('No known client has a finite model that was trained.')
  sizes = [new.num_test_examples(client_id) for client_id in ids]
  means = np.split(total / num_models, np.cumsum(sizes)[:-1])
  return [
    {
      'client': client_id,
      'num_test_examples': size,
      'num_models': num_models,
      'after': _metrics(process.model, mean, test.y),
    }
    for client_id, size, mean, test in zip(ids, sizes, means, tests)
  ]


def _sum_of_predictions(
  process, runtime, server_state, states_of, known, indices, tests
):
  """The sum of known clients' predictions, and the number of them."""
  model, domain = process.model, None
  x = tf.nest.map_structure(
    lambda *parts: np.concatenate(parts), *(test.x for test in tests)
  )
  if model.domains is not None:
    domain = np.concatenate([test.domain for test in tests])
  forward = prediction.compiled(model)
  personal_models = _personal_models(process)
  (train,) = runtime.share(client_examples.ClientExamples(known.train))
  total, num_models = 0.0, 0
  for first in range(0, len(indices), runtime.clients_per_call):
    chunk = indices[first : first + runtime.clients_per_call]
    present = [
      (state, known.client_ids[index])
      for index, state in zip(chunk, states_of(chunk))
      if state.num_rounds
    ]
    if not present:
      continue
    states, names = map(list, zip(*present))
    personal = runtime.run(
      personal_models,
      server_state,
      states,
      personalized_evaluation.training_examples(
        process, runtime, states, train, names
      ),
    )
    for weights in (one.weights for one in personal):
      # A model that diverged has no say.
      if all(np.isfinite(value).all() for value in weights.values()):
        total += prediction.predict(model, weights, x, domain, forward)
        num_models += 1
  return total, num_models


def _personal_models(process):
  """`process.personalize` of several clients."""
  state_type, *client_types = process.personalize.type_signature.parameter

  @tff.federated_computation(
    tff.FederatedType(state_type, tff.SERVER),
    *(
      tff.FederatedType(client_type, tff.CLIENTS)
      for client_type in client_types
    ),
  )
  def personal_models(state, client_states, data):
    return tff.federated_map(
      process.personalize,
      (tff.federated_broadcast(state), client_states, data),
    )

  return personal_models


def _metrics(model, predicted, y) -> dict[str, Any]:
  outputs = tf.constant(predicted, tf.float32)
  if model.classifier is not None:
    outputs = model.classifier.outputs_of(outputs)
  sums = objectives.metric_sums(
    model, outputs, tf.constant(y), tf.ones([len(y)])
  )
  return {
    **{name: float(value) for name, value in objectives.means(sums).items()},
    **client_metrics.scores(model, np.asarray(y), predicted),
  }
