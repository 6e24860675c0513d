"""Plain loops, as a TFF user writes them, for comparison.

They use nothing of this library: FedAvg is that of `tff.learning.algorithms`
with a Keras model; FedRep and Per-FedAvg are written by hand like the
algorithms of TFF's tutorials: a loop over the client's dataset, compiled by
`tf.function`, on a Keras model's variables. Clients' datasets are shuffled,
batched and prefetched pipelines of examples.
"""

from __future__ import annotations

import abc
import collections
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf
import tensorflow_federated as tff
import tf_keras

from binaries.benchmark import timing, workloads
from tff_pfl import errors
from tff_pfl.runtime import base


def make_keras_model(workload: workloads.Workload, keras: Any) -> Any:
  """Makes the workload's model in Keras; the last layer is the head.

  Args:
    workload: The workload.
    keras: The module of Keras 3 or 2.
  """
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


def _loss(y, logits):
  return tf.reduce_mean(
    tf.nn.sparse_softmax_cross_entropy_with_logits(y, logits)
  )


def _batch_spec(workload):
  return collections.OrderedDict(
    x=tf.TensorSpec([None, *workload.shape], tf.float32),
    y=tf.TensorSpec([None], tf.int32),
  )


class Reference(abc.ABC):
  """Rounds of a plain loop; call it with a cohort.

  Attributes:
    datasets: Client index to its pipeline.
  """

  def __init__(
    self,
    runtime: base.Runtime,
    datasets: Mapping[int, tf.data.Dataset],
  ):
    self._runtime = runtime
    self.datasets = datasets

  @abc.abstractmethod
  def __call__(self, cohort: Sequence[int]) -> None:
    """Runs a round with these clients and waits for all results."""

  @property
  @abc.abstractmethod
  def weights(self) -> list:
    """Global weights (for FedRep the body's), in Keras's order."""


class _FedAvg(Reference):
  """FedAvg of `tff.learning`; the workload must have a number of epochs."""

  def __init__(self, workload, runtime, tensors, initial_weights):
    hparams = workload.hparams

    def pipeline(examples):
      dataset = _batches(examples, hparams.batch_size)
      return dataset.repeat(hparams.num_epochs).prefetch(tf.data.AUTOTUNE)

    super().__init__(
      runtime, {index: pipeline(value) for index, value in tensors.items()}
    )

    model = make_keras_model(workload, keras)

    @tf.function
    def predict(weights, x, training):
      outputs, _ = model.stateless_call(*weights, x, training=training)
      return outputs

    def loss(output, label, sample_weight=None):
      del sample_weight
      return _loss(label, output)

    self._process = tff.learning.algorithms.build_weighted_fed_avg(
      tff.learning.models.FunctionalModel(
        initial_weights=(tuple(v.numpy() for v in model.weights), ()),
        predict_on_batch_fn=predict,
        loss_fn=loss,
        input_spec=_batch_spec(workload),
      ),
      client_optimizer_fn=tff.learning.optimizers.build_sgdm(
        hparams.learning_rate, hparams.momentum or None
      ),
    )
    self._state = self._process.set_model_weights(
      runtime.run(self._process.initialize),
      tff.learning.models.ModelWeights(list(initial_weights), []),
    )

  def __call__(self, cohort: Sequence[int]) -> None:
    output = self._runtime.run(
      self._process.next,
      self._state,
      [self.datasets[index] for index in cohort],
    )
    timing.force(output)
    self._state = output.state

  @property
  def weights(self) -> list:
    return self._process.get_model_weights(self._state).trainable


class _ByHand(Reference):
  """A loop by hand; local weights are client-placed values.

  Attributes:
    local: Client index to local weights.
    num_local: Number of the last weights that are local.
  """

  num_local = 0

  def __init__(self, workload, runtime, tensors, initial_weights):
    super().__init__(
      runtime,
      {
        index: self.pipeline(value, workload.hparams)
        for index, value in tensors.items()
      },
    )
    num_global = len(initial_weights) - self.num_local
    self._weights = list(initial_weights[:num_global])
    self.local = dict.fromkeys(tensors, list(initial_weights[num_global:]))
    self._next = self._build_round(workload, initial_weights[num_global:])

  @abc.abstractmethod
  def pipeline(
    self, examples: Mapping[str, tf.Tensor], hparams: Any
  ) -> tf.data.Dataset:
    """Returns a client's batches."""

  @abc.abstractmethod
  def trainer(self, model: tf_keras.Model, hparams: Any) -> Callable[..., Any]:
    """Returns a function that trains a model on a client's dataset.

    Its results are the sum of the examples' losses and their number.
    """

  def _build_round(self, workload, local):
    """Builds (weights@SERVER, {local, dataset}@CLIENTS) -> the same, loss."""
    dataset_type = tff.SequenceType(
      tff.types.tensorflow_to_type(
        next(iter(self.datasets.values())).element_spec
      )
    )
    weights_type, local_type = (
      tff.to_type([(np.float32, value.shape) for value in weights])
      for weights in (self._weights, local)
    )

    @tff.tensorflow.computation(weights_type, local_type, dataset_type)
    def client_update(weights, local, dataset):
      # Keras 2, whose variables and optimizers TFF's workers know.
      model = make_keras_model(workload, tf_keras)
      train = self.trainer(model, workload.hparams)

      @tf.function
      def update(dataset, initial):
        variables = model.trainable_variables
        for variable, value in zip(variables, initial):
          variable.assign(value)
        total_loss, num_examples = train(dataset)
        values = [variable.read_value() for variable in variables]
        num_global = len(values) - self.num_local
        return (
          values[:num_global],
          values[num_global:],
          num_examples,
          total_loss / num_examples,
        )

      return update(dataset, [*weights, *local])

    @tff.federated_computation(
      tff.FederatedType(weights_type, tff.SERVER),
      tff.FederatedType(local_type, tff.CLIENTS),
      tff.FederatedType(dataset_type, tff.CLIENTS),
    )
    def next_fn(weights, local, datasets):
      outputs = tff.federated_map(
        client_update, (tff.federated_broadcast(weights), local, datasets)
      )
      return (
        tff.federated_mean(outputs[0], weight=outputs[2]),
        outputs[1],
        tff.federated_mean(outputs[3], weight=outputs[2]),
      )

    return next_fn

  def __call__(self, cohort: Sequence[int]) -> None:
    output = self._runtime.run(
      self._next,
      self._weights,
      [self.local[index] for index in cohort],
      [self.datasets[index] for index in cohort],
    )
    timing.force(output)
    self._weights, local, _ = output
    self.local.update(zip(cohort, local))

  @property
  def weights(self) -> list:
    return self._weights


class _FedRep(_ByHand):
  """FedRep; the workload must have numbers of epochs, not of steps."""

  num_local = 2  # A kernel and a bias.

  def pipeline(self, examples, hparams):
    return _batches(examples, hparams.batch_size).prefetch(tf.data.AUTOTUNE)

  def trainer(self, model, hparams):
    variables = model.trainable_variables
    head, body = variables[-self.num_local :], variables[: -self.num_local]
    head_optimizer, body_optimizer = (
      # The newer Keras optimizers take several times as many operations.
      tf_keras.optimizers.legacy.SGD(rate, hparams.momentum)
      for rate in (hparams.head_learning_rate, hparams.body_learning_rate)
    )

    def train(dataset):
      for batch in dataset.repeat(hparams.num_head_epochs):
        _, gradients = _gradients(model, batch, head)
        head_optimizer.apply_gradients(zip(gradients, head))
      total_loss, num_examples = 0.0, 0.0
      for batch in dataset.repeat(hparams.num_body_epochs):
        loss, gradients = _gradients(model, batch, body)
        body_optimizer.apply_gradients(zip(gradients, body))
        batch_size = tf.cast(tf.shape(batch['y'])[0], tf.float32)
        total_loss += loss * batch_size
        num_examples += batch_size
      return total_loss, num_examples

    return train


class _PerFedAvg(_ByHand):
  """Per-FedAvg; a step's batches come from pipelines of their own.

  The workload must have one inner step on all weights and a number of steps.
  """

  def pipeline(self, examples, hparams):
    batches = tuple(
      _batches(examples, hparams.batch_size, seed).repeat()
      for seed in range(hparams.phase().batches_per_step)
    )
    steps = tf.data.Dataset.zip(batches).take(hparams.num_steps)
    return steps.prefetch(tf.data.AUTOTUNE)

  def trainer(self, model, hparams):
    variables = model.trainable_variables

    def add(factor, values):
      for variable, value in zip(variables, values):
        variable.assign_add(factor * value)

    def hessian_times(batch, vector):
      if hparams.variant == 'exact':
        with tf.GradientTape() as tape:
          _, slopes = _gradients(model, batch, variables)
        return tape.gradient(slopes, variables, output_gradients=vector)
      delta = hparams.hessian_free_step
      differences = []
      for step in (delta, -2 * delta):
        add(step, vector)
        differences.append(_gradients(model, batch, variables)[1])
      add(delta, vector)
      return [(a - b) / (2 * delta) for a, b in zip(*differences)]

    def train(dataset):
      alpha = hparams.inner_learning_rate
      total_loss, num_examples = 0.0, 0.0
      for batches in dataset:
        _, inner = _gradients(model, batches[1], variables)
        add(-alpha, inner)
        loss, vector = _gradients(model, batches[0], variables)
        add(alpha, inner)
        if hparams.variant != 'first_order':
          products = hessian_times(batches[2], vector)
          vector = [v - alpha * p for v, p in zip(vector, products)]
        add(-hparams.learning_rate, vector)
        batch_size = tf.cast(tf.shape(batches[0]['y'])[0], tf.float32)
        total_loss += loss * batch_size
        num_examples += batch_size
      return total_loss, num_examples

    return train


def _gradients(model, batch, variables):
  """Returns the loss and its gradients."""
  with tf.GradientTape() as tape:
    loss = _loss(batch['y'], model(batch['x'], training=True))
  return loss, tape.gradient(loss, variables)


def _batches(examples, batch_size, seed=0):
  """Returns batches of a client's examples, shuffled anew in every pass."""
  num_examples = len(examples['y'])
  return (
    tf.data.Dataset.from_tensor_slices(examples)
    .shuffle(num_examples, seed=seed)
    .batch(batch_size or num_examples)
  )


_REFERENCES = {
  'fed_avg': _FedAvg,
  # There is no plain loop of FedFac; FedAvg's shows its cost.
  'fed_fac': _FedAvg,
  'fed_rep': _FedRep,
  'per_fed_avg': _PerFedAvg,
}


def build_reference(
  workload: workloads.Workload,
  runtime: base.Runtime,
  tensors: Mapping[int, Mapping[str, tf.Tensor]],
  initial_weights: Sequence[np.ndarray],
) -> Reference:
  """Builds the plain loop of a workload's method.

  Args:
    workload: The workload.
    runtime: The runtime; TFF's native one for a reference.
    tensors: Client index to its `x` and `y`.
    initial_weights: Initial weights of the whole model, in Keras's order.

  Raises:
    ValueError: If there is no plain loop of the method.
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
