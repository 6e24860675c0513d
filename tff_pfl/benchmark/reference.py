"""The plain loops that a TFF user writes today, for comparison.

Nothing of this library's: FedAvg is `tff.learning.algorithms`' over a Keras
model; FedRep and Per-FedAvg are written by hand the way TFF's tutorials write
algorithms of their own: a loop over the client's dataset, compiled by
`tf.function`, on a Keras model's variables. Clients' datasets are shuffled,
batched and prefetched pipelines of examples.
"""

from __future__ import annotations

import abc
import collections
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_pfl import errors
from tff_pfl.benchmark import timing, workloads
from tff_pfl.runtime import base

keras = tf.keras


def make_keras_model(workload: workloads.Workload) -> keras.Model:
  """The workload's model in Keras, its last layer the head."""
  arguments = workload.model_arguments
  layers = [keras.layers.Input(workload.shape)]
  activation = arguments.get('activation', 'relu')
  if workload.model == 'cnn':
    for _ in range(2):
      layers += [
        keras.layers.Conv2D(arguments['filters'], 5, activation=activation),
        keras.layers.MaxPooling2D(2),
      ]
    layers.append(keras.layers.Flatten())
  layers += [
    keras.layers.Dense(width, activation) for width in arguments['widths']
  ]
  return keras.Sequential([*layers, keras.layers.Dense(workloads.NUM_CLASSES)])


def _loss():
  return keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def _batch_spec(workload):
  return collections.OrderedDict(
    x=tf.TensorSpec([None, *workload.shape], tf.float32),
    y=tf.TensorSpec([None], tf.int32),
  )


class Reference(abc.ABC):
  """Rounds of a plain loop; call it with a cohort."""

  def __init__(
    self,
    runtime: base.Runtime,
    datasets: Mapping[int, tf.data.Dataset],
  ):
    self._runtime = runtime
    self._datasets = datasets

  @abc.abstractmethod
  def __call__(self, cohort: Sequence[int]) -> None:
    """Runs a round with these clients, to its very end."""

  @property
  def datasets(self) -> Mapping[int, tf.data.Dataset]:
    """The clients' pipelines."""
    return self._datasets

  @property
  @abc.abstractmethod
  def weights(self) -> list:
    """The global weights (of FedRep: of the body), as Keras orders them."""


class FedAvgReference(Reference):
  """FedAvg of `tff.learning`."""

  def __init__(
    self,
    workload: workloads.Workload,
    runtime: base.Runtime,
    tensors: Mapping[int, Mapping[str, tf.Tensor]],
    initial_weights: Sequence[np.ndarray],
  ):
    """Builds the process, see `build_reference`."""
    hparams = workload.hparams

    def pipeline(examples):
      dataset = _batches(examples, hparams.batch_size)
      if hparams.num_steps is not None:
        dataset = dataset.repeat().take(hparams.num_steps)
      else:
        dataset = dataset.repeat(hparams.num_epochs)
      return dataset.prefetch(tf.data.AUTOTUNE)

    super().__init__(
      runtime, {index: pipeline(value) for index, value in tensors.items()}
    )

    def model_fn():
      return tff.learning.models.from_keras_model(
        make_keras_model(workload),
        loss=_loss(),
        input_spec=_batch_spec(workload),
        metrics=[keras.metrics.SparseCategoricalAccuracy()],
      )

    self._process = tff.learning.algorithms.build_weighted_fed_avg(
      model_fn,
      client_optimizer_fn=tff.learning.optimizers.build_sgdm(
        hparams.learning_rate, hparams.momentum or None
      ),
    )
    self._state = self._process.set_model_weights(
      runtime.run(self._process.initialize),
      tff.learning.models.ModelWeights(list(initial_weights), []),
    )

  def __call__(self, cohort: Sequence[int]) -> None:
    """Runs a round."""
    output = self._runtime.run(
      self._process.next,
      self._state,
      [self._datasets[index] for index in cohort],
    )
    timing.force(output)
    self._state = output.state

  @property
  def weights(self) -> list:
    """The global weights."""
    return self._process.get_model_weights(self._state).trainable


class _ClientOutput(NamedTuple):
  body: Any
  head: Any
  num_examples: Any
  loss: Any


class FedRepReference(Reference):
  """FedRep by hand: local heads are client-placed values."""

  def __init__(
    self,
    workload: workloads.Workload,
    runtime: base.Runtime,
    tensors: Mapping[int, Mapping[str, tf.Tensor]],
    initial_weights: Sequence[np.ndarray],
  ):
    """Builds the computation of a round, see `build_reference`.

    The workload must have numbers of epochs, not of steps.
    """
    batch_size = workload.hparams.batch_size
    super().__init__(
      runtime,
      {
        index: _batches(value, batch_size).prefetch(tf.data.AUTOTUNE)
        for index, value in tensors.items()
      },
    )
    # The head is a kernel and a bias.
    self._body = list(initial_weights[:-2])
    self._heads = dict.fromkeys(tensors, list(initial_weights[-2:]))
    self._next = _build_fed_rep_round(
      workload, self._body, initial_weights[-2:]
    )

  def __call__(self, cohort: Sequence[int]) -> None:
    """Runs a round."""
    output = self._runtime.run(
      self._next,
      self._body,
      [self._heads[index] for index in cohort],
      [self._datasets[index] for index in cohort],
    )
    timing.force(output)
    self._body, heads, _ = output
    self._heads.update(zip(cohort, heads))

  @property
  def weights(self) -> list:
    """The global weights: those of the body."""
    return self._body

  @property
  def heads(self) -> Mapping[int, list]:
    """The clients' heads."""
    return self._heads


class PerFedAvgReference(Reference):
  """Per-FedAvg by hand; a step's batches come from pipelines of their own."""

  def __init__(
    self,
    workload: workloads.Workload,
    runtime: base.Runtime,
    tensors: Mapping[int, Mapping[str, tf.Tensor]],
    initial_weights: Sequence[np.ndarray],
  ):
    """Builds the computation of a round, see `build_reference`.

    The workload must have one inner step on all weights and a number of
    steps.
    """
    hparams = workload.hparams
    num_batches = hparams.phase().batches_per_step

    def pipeline(examples):
      batches = tuple(
        _batches(examples, hparams.batch_size, seed).repeat()
        for seed in range(num_batches)
      )
      return (
        tf.data.Dataset.zip(batches)
        .take(hparams.num_steps)
        .prefetch(tf.data.AUTOTUNE)
      )

    super().__init__(
      runtime, {index: pipeline(value) for index, value in tensors.items()}
    )
    self._weights = list(initial_weights)
    self._next = _build_per_fed_avg_round(workload, self._weights, num_batches)

  def __call__(self, cohort: Sequence[int]) -> None:
    """Runs a round."""
    output = self._runtime.run(
      self._next, self._weights, [self._datasets[index] for index in cohort]
    )
    timing.force(output)
    self._weights, _ = output

  @property
  def weights(self) -> list:
    """The global weights."""
    return self._weights


def _batches(examples, batch_size, seed=0):
  """Batches of a client's examples, shuffled anew in every pass."""
  num_examples = len(examples['y'])
  return (
    tf.data.Dataset.from_tensor_slices(examples)
    .shuffle(num_examples, seed=seed)
    .batch(batch_size or num_examples)
  )


def _build_fed_rep_round(workload, body, head):
  """`next`: (body@SERVER, {head}@CLIENTS, {dataset}@CLIENTS) -> the same."""
  hparams = workload.hparams

  @tf.function
  def train(model, loss_fn, optimizers, dataset, body, head):
    head_variables = model.layers[-1].trainable_variables
    body_variables = model.trainable_variables[: -len(head_variables)]
    tf.nest.map_structure(
      lambda variable, value: variable.assign(value),
      (body_variables, head_variables),
      (list(body), list(head)),
    )
    head_optimizer, body_optimizer = optimizers
    for batch in dataset.repeat(hparams.num_head_epochs):
      with tf.GradientTape() as tape:
        loss = loss_fn(batch['y'], model(batch['x'], training=True))
      gradients = tape.gradient(loss, head_variables)
      head_optimizer.apply_gradients(zip(gradients, head_variables))
    total_loss, num_examples = 0.0, 0.0
    for batch in dataset.repeat(hparams.num_body_epochs):
      with tf.GradientTape() as tape:
        loss = loss_fn(batch['y'], model(batch['x'], training=True))
      gradients = tape.gradient(loss, body_variables)
      body_optimizer.apply_gradients(zip(gradients, body_variables))
      batch_size = tf.cast(tf.shape(batch['y'])[0], tf.float32)
      total_loss += loss * batch_size
      num_examples += batch_size
    return _ClientOutput(
      [variable.read_value() for variable in body_variables],
      [variable.read_value() for variable in head_variables],
      num_examples,
      total_loss / num_examples,
    )

  body_type, head_type = (
    tff.to_type([(np.float32, value.shape) for value in weights])
    for weights in (body, head)
  )
  dataset_type = tff.SequenceType(
    tff.types.tensorflow_to_type(_batch_spec(workload))
  )

  @tff.tensorflow.computation(body_type, head_type, dataset_type)
  def client_update(body, head, dataset):
    optimizers = [
      # The newer Keras optimizers take several times as many operations.
      keras.optimizers.legacy.SGD(rate, hparams.momentum)
      for rate in (hparams.head_learning_rate, hparams.body_learning_rate)
    ]
    return train(
      make_keras_model(workload), _loss(), optimizers, dataset, body, head
    )

  @tff.federated_computation(
    tff.FederatedType(body_type, tff.SERVER),
    tff.FederatedType(head_type, tff.CLIENTS),
    tff.FederatedType(dataset_type, tff.CLIENTS),
  )
  def next_fn(body, heads, datasets):
    outputs = tff.federated_map(
      client_update, (tff.federated_broadcast(body), heads, datasets)
    )
    return (
      tff.federated_mean(outputs.body, weight=outputs.num_examples),
      outputs.head,
      tff.federated_mean(outputs.loss, weight=outputs.num_examples),
    )

  return next_fn


def _build_per_fed_avg_round(workload, weights, num_batches):
  """`next`: (weights@SERVER, {dataset}@CLIENTS) -> weights and loss@SERVER."""
  hparams = workload.hparams
  alpha, delta = hparams.inner_learning_rate, hparams.hessian_free_step

  def gradient(model, loss_fn, batch):
    with tf.GradientTape() as tape:
      loss = loss_fn(batch['y'], model(batch['x'], training=True))
    return loss, tape.gradient(loss, model.trainable_variables)

  def hessian_times(model, loss_fn, batch, vector):
    variables = model.trainable_variables
    if hparams.variant == 'exact':
      with tf.GradientTape() as tape:
        _, slopes = gradient(model, loss_fn, batch)
      return tape.gradient(slopes, variables, output_gradients=vector)
    differences = []
    for step in (delta, -2 * delta):
      for variable, value in zip(variables, vector):
        variable.assign_add(step * value)
      differences.append(gradient(model, loss_fn, batch)[1])
    for variable, value in zip(variables, vector):
      variable.assign_add(delta * value)
    return [(a - b) / (2 * delta) for a, b in zip(*differences)]

  @tf.function
  def train(model, loss_fn, dataset, initial):
    variables = model.trainable_variables
    for variable, value in zip(variables, initial):
      variable.assign(value)
    total_loss, num_examples = 0.0, 0.0
    for batches in dataset:
      _, inner = gradient(model, loss_fn, batches[1])
      for variable, value in zip(variables, inner):
        variable.assign_sub(alpha * value)
      loss, vector = gradient(model, loss_fn, batches[0])
      for variable, value in zip(variables, inner):
        variable.assign_add(alpha * value)
      if hparams.variant != 'first_order':
        products = hessian_times(model, loss_fn, batches[2], vector)
        vector = [v - alpha * p for v, p in zip(vector, products)]
      for variable, value in zip(variables, vector):
        variable.assign_sub(hparams.learning_rate * value)
      batch_size = tf.cast(tf.shape(batches[0]['y'])[0], tf.float32)
      total_loss += loss * batch_size
      num_examples += batch_size
    return (
      [variable.read_value() for variable in variables],
      num_examples,
      total_loss / num_examples,
    )

  weights_type = tff.to_type([(np.float32, value.shape) for value in weights])
  dataset_type = tff.SequenceType(
    tff.types.tensorflow_to_type((_batch_spec(workload),) * num_batches)
  )

  @tff.tensorflow.computation(weights_type, dataset_type)
  def client_update(initial, dataset):
    return train(make_keras_model(workload), _loss(), dataset, initial)

  @tff.federated_computation(
    tff.FederatedType(weights_type, tff.SERVER),
    tff.FederatedType(dataset_type, tff.CLIENTS),
  )
  def next_fn(weights, datasets):
    outputs = tff.federated_map(
      client_update, (tff.federated_broadcast(weights), datasets)
    )
    return (
      tff.federated_mean(outputs[0], weight=outputs[1]),
      tff.federated_mean(outputs[2], weight=outputs[1]),
    )

  return next_fn


_REFERENCES = {
  'fed_avg': FedAvgReference,
  # Nobody has a loop of FedFac; what it costs is seen beside FedAvg's.
  'fed_fac': FedAvgReference,
  'fed_rep': FedRepReference,
  'per_fed_avg': PerFedAvgReference,
}


def build_reference(
  workload: workloads.Workload,
  runtime: base.Runtime,
  tensors: Mapping[int, Mapping[str, tf.Tensor]],
  initial_weights: Sequence[np.ndarray],
) -> Reference:
  """Builds the plain loop of a workload's method.

  Args:
    runtime: What executes; TFF's native one, to be a reference.
    tensors: A client's `x` and `y` by its index.
    initial_weights: Those of the whole model, as Keras orders them.

  Raises:
    ValueError: If there is no plain loop of the method here.
  """
  errors.expect(
    workload.algorithm in _REFERENCES,
    'workload',
    f'of a method with a reference ({", ".join(_REFERENCES)})',
    workload.algorithm,
  )
  return _REFERENCES[workload.algorithm](
    workload, runtime, tensors, initial_weights
  )
