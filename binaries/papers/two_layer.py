"""Networks with one hidden layer, a fixed head, and clients' own neurons.

The experiments of FedSplit and FedFac on generated data train such a network,
h(x) = sum_j a_j relu(w_j x) + b, with given a and b. Each neuron j is shared or
personal. Clients may start from their own neurons.
"""

from __future__ import annotations

import collections
from collections.abc import Iterator, Sequence
from typing import Any, Optional

import keras
import numpy as np

import tff_pfl as pfl
from tff_pfl.core import personalized_process
from tff_pfl.runtime import base as runtime_base

LAYER = 'dense_1'
_KERNEL = f'{LAYER}/kernel'


def padded(clients: pfl.Examples) -> list:
  """Each client's examples, from arrays with the clients as the first axis."""
  return [pfl.padded(pfl.Examples(*own)) for own in zip(clients.x, clients.y)]


def make_network(
  kernel: np.ndarray, head: np.ndarray, bias: float = 0.0, *, classifies: bool
) -> pfl.SplitModel:
  """A network to train.

  Args:
    kernel: The server's first kernel, `[inputs, neurons]`.
    head: a, `[neurons]`.
    bias: b.
    classifies: True if outputs are scores of class 1. If False, the loss is the
      mean squared error.
  """
  num_inputs, num_neurons = kernel.shape
  model = keras.Sequential(
    [
      keras.layers.Input([num_inputs]),
      keras.layers.Dense(
        num_neurons, activation='relu', use_bias=False, name=LAYER
      ),
      keras.layers.Dense(1, name='head', trainable=False),
    ]
  )
  model.set_weights([kernel, np.reshape(head, [-1, 1]), np.array([bias])])
  return pfl.from_keras(
    model,
    head_layers=['head'],
    keep_names=True,
    loss=keras.losses.BinaryCrossentropy(from_logits=True)
    if classifies
    else 'mse',
    metrics=['accuracy'] if classifies else [],
    # There are many short runs, for which XLA takes longer to compile.
    jit_compile=False,
  )


def build_fed_split(
  network: pfl.SplitModel,
  is_personal: np.ndarray,
  seed: int,
  **hparams: Any,
) -> personalized_process.PersonalizedProcess:
  """FedSplit with given personal neurons and equal weights of the clients.

  Args:
    network: The model, as from `make_network`.
    is_personal: bool `[neurons]`.
  """
  chosen = ','.join(f'{LAYER}:{j}' for j in np.flatnonzero(is_personal))
  return pfl.build(
    'fed_split',
    network,
    personal_elements=chosen,
    **hparams,
    client_weighting='uniform',
    seed=seed,
  )


def run_rounds(
  process: personalized_process.PersonalizedProcess,
  train: pfl.Examples,
  test: pfl.Examples,
  runtime: runtime_base.Runtime,
  num_rounds: int,
  initial_local: Optional[Sequence[Any]] = None,
) -> Iterator[tuple]:
  """Trains with all clients in every round.

  Args:
    process: FedSplit or FedFac in its dynamic mode.
    train: The clients' examples, float32 `[clients, n, inputs]`, and labels
      `[clients, n]`, int32 if the network classifies, else float32.
    test: Test examples of the same form.
    initial_local: The clients' states before the first round, as from
      `own_neurons`. None uses the process's states, without own neurons.

  Yields:
    After each round the server's state, the round's metrics, and the test
    scores of the personal models by metric, means over the clients.
  """
  train, test = map(padded, (train, test))
  state = runtime.run(process.initialize)
  client_states = runtime.run(
    process.initialize_client_states, list(range(len(train)))
  )
  if initial_local is not None:
    client_states = [
      client_state._replace(local=local)
      for client_state, local in zip(client_states, initial_local)
    ]
  for _ in range(num_rounds):
    output = runtime.run(process.next, state, client_states, train)
    state, client_states = output.state, output.client_states
    tests = [
      scores['after']
      for scores in runtime.run(
        process.evaluate_clients, state, client_states, train, test
      )
    ]
    yield (
      state,
      output.metrics,
      {name: np.mean([float(t[name]) for t in tests]) for name in tests[0]},
    )


def own_neurons(
  start: np.ndarray, is_personal: Optional[np.ndarray] = None
) -> collections.OrderedDict:
  """The state of a client that starts from its own neurons.

  Args:
    start: `[inputs, neurons]`.
    is_personal: FedSplit's partition, bool `[neurons]`. None means FedFac in
      its dynamic mode.
  """
  start = start.astype(np.float32)
  if is_personal is not None:
    return collections.OrderedDict({_KERNEL: start[:, is_personal]})
  return collections.OrderedDict(
    values=collections.OrderedDict({_KERNEL: start}),
    is_own=np.bool_(True),
  )
