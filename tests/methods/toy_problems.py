"""Tiny models and seeded data that the tests of methods share."""

import collections
import dataclasses
import functools

import keras
import numpy as np
import pytest
import tensorflow as tf

from tff_pfl import tff_api as tff
from tff_pfl.core import padding
from tff_pfl.datasets import examples
from tff_pfl.methods import registry
from tff_pfl.models import domain_models, domains, keras_bridge, zoo

NUM_CLASSES = 3
DOMAINS = domains.Domains(('a', 'b', 'c'), (20, 10, 15))


@functools.cache
def classifier(*, jit_compile=False):
  """A classifier of 5 features; no two of its weights share a shape.

  Args:
    jit_compile: Of the `SplitModel`. For so few numbers XLA takes more time to
      compile than it saves, and a process never gives the memory of compiled
      programs back.
  """
  spec = collections.OrderedDict(
    x=tf.TensorSpec([5], tf.float32), y=tf.TensorSpec([], tf.int32)
  )
  model = zoo.mlp(spec, NUM_CLASSES, seed=1, widths=(4,))
  return dataclasses.replace(model, jit_compile=jit_compile)


def classifier_from(network, *, jit_compile=False):
  """A classifier from a Keras model whose head is the layer `head`."""
  return keras_bridge.from_keras(
    network,
    head_layers=['head'],
    loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    jit_compile=jit_compile,
  )


def dropout_and_normalization():
  """A network of 5 features that draws numbers and has moving statistics."""
  return keras.Sequential(
    [
      keras.layers.Input([5]),
      keras.layers.Dense(4, name='dense'),
      keras.layers.BatchNormalization(name='norm'),
      keras.layers.ReLU(),
      keras.layers.Dropout(0.5),
      keras.layers.Dense(NUM_CLASSES, name='head'),
    ]
  )


def convolutional_and_recurrent():
  """A network of 5 features with a convolution and an LSTM."""
  return keras.Sequential(
    [
      keras.layers.Input([5]),
      keras.layers.Reshape([5, 1, 1]),
      keras.layers.Conv2D(2, [2, 1], activation='relu', name='conv'),
      keras.layers.Reshape([4, 2]),
      keras.layers.LSTM(3, name='lstm'),
      keras.layers.Dense(NUM_CLASSES, name='head'),
    ]
  )


def model_for(name, model):
  """The model as the method called `name` takes it: with domains, or not."""
  if registry.ALGORITHMS[name].needs_domains:
    return domain_models.with_domains(model, DOMAINS)
  return model


def examples_for(name, clients):
  """Each client's examples, likewise: with domains in turn, or as they are."""
  if registry.ALGORITHMS[name].needs_domains:
    return [in_turn(client) for client in clients]
  return list(clients)


def in_turn(client):
  """The examples, of the first domain, the second, and so on, and again."""
  return in_domains(client, range(DOMAINS.number))


def in_domains(client, pattern):
  """The examples, of domains that repeat a pattern."""
  domain = np.resize(np.array(pattern, np.int32), len(client.y))
  return changed(client, domain=domain)


def changed(client, **fields):
  """The examples with other fields."""
  return examples.Examples(**{**client.as_dict(), **fields})


def domains_of(clients, names=DOMAINS.names):
  """The domains of the clients' examples, with their numbers."""
  counts = sum(np.bincount(c.domain, minlength=len(names)) for c in clients)
  return domains.Domains(
    names, tuple(int(n) for n in counts), sum(counts) / len(clients)
  )


def named(names, fast):
  """Runs a test for methods by name, those but `fast` in the slow suite."""
  return pytest.mark.parametrize(
    'name',
    [
      pytest.param(name, marks=() if name in fast else pytest.mark.slow)
      for name in names
    ],
  )


def hparams_for(name, **changes):
  """The method's defaults with changes."""
  return registry.ALGORITHMS[name].hparams(**changes)


def full_batches(name, model, options=None, **changes):
  """The method by plain gradient descent on all of a client's examples."""
  hparams = hparams_for(
    name, **{'momentum': 0.0, 'batch_size': None, **changes}
  )
  return registry.build(name, model, hparams, **(options or {}))


# How clients may weigh, as options of `build`.
WEIGHTINGS = {
  'num_examples': {'client_weighting': 'num_examples'},
  'uniform': {'client_weighting': 'uniform'},
  'unweighted': {'aggregator': tff.aggregators.UnweightedMeanFactory()},
}


def labeled_examples(num_examples, seed):
  """Examples for `classifier`, with a rule to learn."""
  rng = np.random.default_rng(seed)
  x = rng.normal(size=(num_examples, 5)).astype(np.float32)
  y = np.argmax(x[:, :NUM_CLASSES], axis=1).astype(np.int32)
  return examples.Examples(x, y)


def planted_examples(num_examples, shares, seed):
  """Examples whose labels follow one of two opposite rules, by chance."""
  rng = np.random.default_rng(seed)
  x = rng.normal(size=(num_examples, 5)).astype(np.float32)
  # The second rule moves every class on by one.
  rule = rng.choice(2, num_examples, p=shares)
  y = (np.argmax(x[:, :NUM_CLASSES], axis=1) + rule) % NUM_CLASSES
  return examples.Examples(x, y.astype(np.int32))


def linear_network(body, head):
  """The network `x @ body @ head` with the mean squared error.

  Args:
    body: Kernel `[inputs, features]`, or None for a network of the head only.
    head: Kernel `[features, outputs]`.

  Returns:
    A `SplitModel` with the layers `body` (unless None) and `head`.
  """
  kernels = {'head': head} if body is None else {'body': body, 'head': head}
  num_inputs = next(iter(kernels.values())).shape[0]
  model = keras.Sequential(
    [
      keras.layers.Input([num_inputs]),
      *(
        keras.layers.Dense(kernel.shape[1], use_bias=False, name=name)
        for name, kernel in kernels.items()
      ),
    ]
  )
  model.set_weights(list(kernels.values()))
  return keras_bridge.from_keras(
    model,
    head_layers=['head'],
    loss='mse',
    metrics=[],
    # XLA would take more time to compile than it saves.
    jit_compile=False,
  )


def regression_examples(num_examples, num_inputs, num_outputs, seed):
  """Examples for `linear_network`; one output gives scalar targets."""
  rng = np.random.default_rng(seed)
  x = rng.normal(size=(num_examples, num_inputs)).astype(np.float32)
  y = rng.normal(size=(num_examples, num_outputs)).astype(np.float32)
  return examples.Examples(x, y[:, 0] if num_outputs == 1 else y)


# Kernels of networks `x @ BODY @ HEAD` and `x @ KERNEL`, and clients for both.
_RNG = np.random.default_rng(3)
BODY = _RNG.normal(size=[4, 2]).astype(np.float32)
HEAD = _RNG.normal(size=[2, 3]).astype(np.float32)
DEEP_CLIENTS = [regression_examples(n, 4, 3, seed=n) for n in (6, 20)]
KERNEL = np.array([[0.5], [-1.0]], np.float32)
CLIENTS = [regression_examples(n, 2, 1, seed=n) for n in (4, 12)]


def deep_linear(name, options=None, **hparams):
  """A method with full batches on the network `x @ BODY @ HEAD`."""
  return full_batches(name, linear_network(BODY, HEAD), options, **hparams)


def linear(name, options=None, **hparams):
  """A method with full batches on the network `x @ KERNEL`."""
  return full_batches(name, linear_network(None, KERNEL), options, **hparams)


def linear_classifier(body=BODY, head=HEAD):
  """The classifier with the scores `x @ body @ head`."""
  network = keras.Sequential(
    [
      keras.layers.Input([len(body)]),
      keras.layers.Dense(body.shape[1], use_bias=False, name='body'),
      keras.layers.Dense(head.shape[1], use_bias=False, name='head'),
    ]
  )
  network.set_weights([body, head])
  return classifier_from(network)


def class_slopes(scores, y):
  """The gradient of the mean cross-entropy in the scores `[rows, classes]`."""
  scores = np.exp(scores - scores.max(axis=1, keepdims=True))
  shares = scores / scores.sum(axis=1, keepdims=True)
  return (shares - np.eye(shares.shape[1])[y]) / len(y)


def client_of_classes(labels, num_inputs, seed):
  """Examples with given labels, for `linear_classifier`."""
  x = np.random.default_rng(seed).normal(size=[len(labels), num_inputs])
  return examples.Examples(x.astype(np.float32), np.array(labels, np.int32))


def padded(clients):
  """Each client's examples as what processes take."""
  return [padding.padded(client) for client in clients]


def as_datasets(clients):
  """Each client's examples as what a `LearningProcess` takes."""
  return [tf.data.Dataset.from_tensors(client.as_dict()) for client in clients]


def kernels(weights):
  """The kernels of a `linear_network` by layer name."""
  return {name.split('/')[0]: np.asarray(v) for name, v in weights.items()}


def check_rounds(process, clients, references, cohorts=None, **tolerances):
  """Checks rounds of a process against those of a reference.

  Args:
    process: The method.
    clients: Each client's examples.
    references: After each round the numbers that are to be found, as
      `assert_part` takes them: of the server state's fields and of `metrics`,
      by name, and in lists of the clients (None for one that is not looked at)
      of `local`, `models` and `new`, the model of a newcomer with the first
      client's examples.
    cohorts: Positions of each round's clients; by default all.
    **tolerances: See `assert_part`.

  Returns:
    The last round's state, client states and metrics.
  """
  references = list(references)
  cohorts = cohorts or [range(len(clients))] * len(references)
  found_rounds = rounds(process, clients, cohorts)
  for expected, last in zip(references, found_rounds, strict=True):
    state, states, metrics = last
    actual = {
      **state._asdict(),
      'local': [client_state.local for client_state in states],
      'metrics': metrics,
    }
    if 'models' in expected:
      actual['models'] = personal_models(process, state, states)
    if 'new' in expected:
      actual['new'] = [new_client(process, state, clients[0]).weights]
    assert_part(actual, expected, **tolerances)
  return last


def assert_part(found, wanted, rtol=1e-4, atol=1e-6):
  """Checks the numbers of a structure that are wanted, up to rounding.

  A kernel's name may be that of its layer.
  """
  if wanted is None:
    return
  if isinstance(wanted, list):
    wanted = dict(enumerate(wanted))
  if not isinstance(wanted, dict):
    np.testing.assert_allclose(found, wanted, rtol, atol)
    return
  for key, value in wanted.items():
    is_layer = isinstance(found, dict) and key not in found
    assert_part(found[f'{key}/kernel' if is_layer else key], value, rtol, atol)


def jittered(weights, seed=0, scale=0.3):
  """Other weights: variances stay positive."""
  rng = np.random.default_rng(seed)
  return collections.OrderedDict(
    (
      name,
      (value + scale * rng.uniform(0, 1, size=value.shape)).astype(value.dtype),
    )
    for name, value in weights.items()
  )


def assert_same(actual, expected):
  """Checks that two structures are equal bit for bit."""
  tf.nest.assert_same_structure(actual, expected)
  for a, b in zip(tf.nest.flatten(actual), tf.nest.flatten(expected)):
    np.testing.assert_array_equal(np.asarray(a), np.asarray(b))


def assert_close(actual, expected, rtol=1e-5, atol=1e-6):
  """Checks that two structures are equal up to rounding."""
  tf.nest.assert_same_structure(actual, expected)
  for a, b in zip(tf.nest.flatten(actual), tf.nest.flatten(expected)):
    np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol, atol)


def leaves(value):
  """The numbers of a structure whose containers TFF may have replaced."""
  return tff.structure.flatten(
    tff.structure.from_container(value, recursive=True)
  )


def differ(a, b):
  """Returns True if any number of two structures differs."""
  tf.nest.assert_same_structure(a, b)
  return any(
    not np.array_equal(x, y)
    for x, y in zip(tf.nest.flatten(a), tf.nest.flatten(b))
  )


def train(process, clients, num_rounds=1, indices=None):
  """Some rounds with all clients.

  Args:
    process: The method.
    clients: Each client's examples.
    num_rounds: At least 1.
    indices: The clients' numbers; by default 0, 1, ...

  Returns:
    The last round's state, client states and metrics.
  """
  everybody = range(len(clients))
  *_, last = rounds(process, clients, [everybody] * num_rounds, indices)
  return last


def rounds(process, clients, cohorts, indices=None):
  """The same after each round, with the clients of its cohort (positions)."""
  state = process.initialize()
  states = process.initialize_client_states(
    list(range(len(clients)) if indices is None else indices)
  )
  data = padded(clients)
  for cohort in cohorts:
    state, new_states, metrics = process.next(
      state, [states[i] for i in cohort], [data[i] for i in cohort]
    )
    for i, new in zip(cohort, new_states):
      states[i] = new
    yield state, list(states), metrics


def new_client(process, state, client):
  """The result of `personalize` for a client that never took part."""
  (data,) = padded([client])
  return process.personalize(state, process.initialize_client_state(7), data)


def personal_models(process, state, states):
  """The models of clients that took part, without fine-tuning."""
  no_data = padding.no_examples(process.model.element_spec)
  return [process.personalize(state, s, no_data).weights for s in states]


def squared_error_gradient(weight, client):
  """The slope of the mean squared error of `x @ weight`, over all outputs."""
  return 2 * client.x.T @ _errors(weight, client) / client.y.size


def gradients(body, head, client):
  """The gradients of body and head of the same error of `x @ body @ head`."""
  outputs = 2 * _errors(body @ head, client) / client.y.size
  return client.x.T @ outputs @ head.T, (client.x @ body).T @ outputs


def _errors(weight, client):
  return client.x @ weight - client.y.reshape([len(client.y), -1])


def descended(gradient, weight, num_steps, learning_rate, momentum=0.0):
  """Where gradient descent with momentum gets to, from the definition."""
  velocity = 0
  for _ in range(num_steps):
    velocity = momentum * velocity + gradient(weight)
    weight = weight - learning_rate * velocity
  return weight


def descended_alone(weight, client, num_steps, rate, momentum=0.0):
  """`descended` for the kernel of a network of the head only."""
  return descended(
    lambda w: squared_error_gradient(w, client),
    weight,
    num_steps,
    rate,
    momentum,
  )


def descended_together(
  body, head, client, num_steps, rate, momentum=0.0, trained=(True, True)
):
  """`descended` for body and head at once, or what is `trained` of them."""
  of_body = of_head = 0
  for _ in range(num_steps):
    slopes = gradients(body, head, client)
    of_body = momentum * of_body + slopes[0] * trained[0]
    of_head = momentum * of_head + slopes[1] * trained[1]
    body, head = body - rate * of_body, head - rate * of_head
  return body, head


def slopes_by_differences(loss, weights, epsilon=1e-6):
  """The gradient of a function of float64 weights, by central differences."""
  weights = {name: value.copy() for name, value in weights.items()}
  slopes = {name: np.zeros_like(value) for name, value in weights.items()}
  for name, value in weights.items():
    for index in np.ndindex(value.shape):
      center, losses = value[index], []
      for moved in (center + epsilon, center - epsilon):
        value[index] = moved
        losses.append(loss(weights))
      value[index] = center
      slopes[name][index] = (losses[0] - losses[1]) / (2 * epsilon)
  return slopes


def weighted_mean(values, clients):
  """By the clients' numbers of examples."""
  return np.average(values, axis=0, weights=[len(c.y) for c in clients])
