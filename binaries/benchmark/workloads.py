"""Workloads by name, and their rounds: the library's and plain loops.

All data come from a seeded generator: each class has a prototype, an example is
its prototype plus noise, and a client has 2 of 10 classes.

Plain loops are what a TFF user writes today without this library. FedAvg comes
from `tff.learning.algorithms`, with a Keras model. FedRep and Per-FedAvg are
written by hand, as in TFF's tutorials: a loop over the client's dataset that
trains a Keras model's variables, compiled by `tf.function`. Clients' datasets
are shuffled, batched and prefetched pipelines of examples.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Optional

import keras
import numpy as np
import tensorflow as tf
import tf_keras
import tree

from tff_pfl import datasets
from tff_pfl import tff_api as tff
from tff_pfl.core import (
  client_sampling,
  padding,
  personalized_process,
)
from tff_pfl.datasets import examples
from tff_pfl.datasets.sources import synthetic
from tff_pfl.methods import fed_avg, fed_fac, fed_rep, per_fed_avg, registry
from tff_pfl.models import split_model, zoo
from tff_pfl.runtime import base

NUM_CLASSES = 10


@dataclasses.dataclass(frozen=True)
class Workload:
  """A method, a model and data of given sizes.

  Attributes:
    name: Its key in `WORKLOADS`.
    description: One line for help texts.
    algorithm: A key of `registry.ALGORITHMS`.
    hparams: The method's hyperparameters.
    model: A key of `zoo.MODELS`.
    model_arguments: The model's own arguments.
    shape: Sizes of an example's `x`, without the batch dimension.
    num_clients: Clients in the population.
    cohort_size: Clients in a round.
    examples_per_client: Training examples of each client.
    num_rounds: Default number of measured rounds.
    smaller_num_clients: Size of a smaller population to compare with. Only a
      workload about the population's size has one, and a durable store.
    seed: Seed of the data, initial weights, sampling and local training.
  """

  name: str
  description: str
  algorithm: str
  hparams: Any
  model: str
  model_arguments: Mapping[str, Any]
  shape: Sequence[int]
  num_clients: int = 100
  cohort_size: int = 10
  examples_per_client: int = 500
  num_rounds: int = 10
  smaller_num_clients: Optional[int] = None
  seed: int = 0

  def make_data(
    self, num_clients: Optional[int] = None
  ) -> datasets.FederatedDataset:
    """Makes the clients, whose examples are generated on demand.

    Args:
      num_clients: Number of clients, on which a client's examples do not
        depend. None uses the workload's number.
    """
    return synthetic.make_synthetic(
      num_clients or self.num_clients,
      examples_per_client=self.examples_per_client,
      test_examples_per_client=10,
      shape=tuple(self.shape),
      num_classes=NUM_CLASSES,
      classes_per_client=2,
      seed=self.seed,
    )

  def build_model(self) -> split_model.SplitModel:
    """Builds the model for the data's shapes."""
    return zoo.make_model(
      self.model,
      self.make_data().element_spec,
      NUM_CLASSES,
      self.seed,
      **self.model_arguments,
    )

  def build_process(
    self, model: split_model.SplitModel
  ) -> personalized_process.PersonalizedProcess:
    """Builds the method for a model of `build_model`."""
    return registry.build(self.algorithm, model, self.hparams, seed=self.seed)

  def sample_cohort(
    self, round_number: int, num_clients: Optional[int] = None
  ) -> np.ndarray:
    """Draws the clients of a round, as runs do.

    Args:
      round_number: Number of the round, from 0 on.
      num_clients: Number of clients. None uses the workload's number.

    Returns:
      int64 `[cohort_size]`, client indices, ascending.
    """
    return client_sampling.CohortSampler(
      num_clients or self.num_clients, self.cohort_size, self.seed
    ).sample(round_number)

  def scaled_down(self) -> Workload:
    """Returns the workload with tiny sizes, which runs in seconds."""
    arguments = dict(self.model_arguments)
    arguments['widths'] = (8, 6, 4)[: len(arguments['widths'])]
    if 'filters' in arguments:
      arguments['filters'] = 4
    scales = self.smaller_num_clients is not None
    return dataclasses.replace(
      self,
      description=f'{self.description} (scaled down)',
      model_arguments=arguments,
      shape=(16, 16, 3) if len(self.shape) == 3 else (12,),
      num_clients=60 if scales else 6,
      cohort_size=2,
      examples_per_client=20,
      num_rounds=2,
      smaller_num_clients=6 if scales else None,
    )


_MLP = {'widths': (512, 256, 64)}

WORKLOADS: Mapping[str, Workload] = {
  workload.name: workload
  for workload in (
    Workload(
      name='w1',
      description='FedRep, MLP 784-512-256-64-10, 10 head epochs and 1 body '
      'epoch',
      algorithm='fed_rep',
      hparams=fed_rep.FedRepHParams(),
      model='mlp',
      model_arguments=_MLP,
      shape=(784,),
    ),
    Workload(
      name='w2',
      description='FedAvg, MLP 784-512-256-64-10, 5 epochs',
      algorithm='fed_avg',
      hparams=fed_avg.FedAvgHParams(num_epochs=5),
      model='mlp',
      model_arguments=_MLP,
      shape=(784,),
    ),
    Workload(
      name='w2f',
      description='FedFac, dynamic, otherwise w2: factor analysis of the 512 '
      'neurons of the first layer in each round; its plain loop is FedAvg',
      algorithm='fed_fac',
      hparams=fed_fac.FedFacHParams(num_epochs=5, layers='dense_1'),
      model='mlp',
      model_arguments=_MLP,
      shape=(784,),
    ),
    Workload(
      name='w3',
      description='FedRep, 32x32x3 images, CNN of two 5x5 convolutions (64 '
      'channels) and dense 120-64-10, 10 head epochs and 1 body epoch',
      algorithm='fed_rep',
      hparams=fed_rep.FedRepHParams(),
      model='cnn',
      model_arguments={'filters': 64, 'widths': (120, 64)},
      shape=(32, 32, 3),
      num_rounds=3,
    ),
    *(
      Workload(
        name=name,
        description=f'Per-FedAvg {variant}, MLP 784-80-60-10 with ELU, 10 '
        'local iterations with batches of 40',
        algorithm='per_fed_avg',
        hparams=per_fed_avg.PerFedAvgHParams(variant=variant),
        model='mlp',
        model_arguments={'widths': (80, 60), 'activation': 'elu'},
        shape=(784,),
        num_clients=50,
        examples_per_client=400,
        num_rounds=60,
      )
      for name, variant in (
        ('w4', 'first_order'),
        ('w4h', 'hessian_free'),
        ('w4e', 'exact'),
      )
    ),
    Workload(
      name='scale',
      description='FedRep, MLP 64-32-10, 1,000 of 1,000,000 clients a round '
      'with a durable store, beside 10,000 clients',
      algorithm='fed_rep',
      hparams=fed_rep.FedRepHParams(num_head_epochs=1),
      model='mlp',
      model_arguments={'widths': (32,)},
      shape=(64,),
      num_clients=1_000_000,
      cohort_size=1000,
      examples_per_client=20,
      smaller_num_clients=10_000,
    ),
  )
}


def client_tensors(
  workload: Workload, cohorts: Iterable[Sequence[int]]
) -> Mapping[int, Mapping[str, tf.Tensor]]:
  """Generates the training examples of all clients in the cohorts.

  Returns:
    Client index to `OrderedDict(x=..., y=...)`, which the library and the plain
    loop share.
  """
  data = workload.make_data()
  # Datasets hold their data in the host's memory.
  with tf.device('CPU'):
    return {
      index: collections.OrderedDict(
        (name, tf.constant(value))
        for name, value in data.train(data.client_ids[index]).as_dict().items()
      )
      for index in sorted(set().union(*cohorts))
    }


def force(value: Any) -> None:
  """Waits for all numbers of a computation's result."""
  for leaf in tree.flatten(value):
    np.asarray(leaf)


class LibraryRounds:
  """Runs a process with all data in memory, a round for each call.

  A client has the same dataset object in all of its rounds.

  Attributes:
    state: The server's state.
    client_states: The clients' states, by index.
  """

  def __init__(
    self,
    runtime: base.Runtime,
    process: personalized_process.PersonalizedProcess,
    tensors: Mapping[int, Mapping[str, tf.Tensor]],
  ):
    self._runtime = runtime
    self._process = process
    (self._datasets,) = runtime.share(
      {
        index: padding.padded(examples.Examples(**value))
        for index, value in tensors.items()
      }
    )
    self.state = runtime.run(process.initialize)
    self.client_states = dict(
      zip(tensors, runtime.run(process.initialize_client_states, [*tensors]))
    )

  def __call__(self, cohort: Sequence[int]) -> None:
    """Runs a round with these clients, to the end."""
    output = self._runtime.run(
      self._process.next,
      self.state,
      [self.client_states[index] for index in cohort],
      [self._datasets[index] for index in cohort],
    )
    force(output)
    self.state = output.state
    self.client_states.update(zip(cohort, output.client_states))


def make_keras_model(workload: Workload, keras: Any) -> Any:
  """Makes the workload's model in Keras; the last layer is the head.

  Args:
    workload: The workload.
    keras: The module of Keras 3 or of Keras 2.
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
  return keras.Sequential([*layers, keras.layers.Dense(NUM_CLASSES)])


def _loss(y, logits):
  return tf.reduce_mean(
    tf.nn.sparse_softmax_cross_entropy_with_logits(y, logits)
  )


class _FedAvg:
  """FedAvg of `tff.learning`, for a workload with a number of epochs."""

  def __init__(self, workload, runtime, tensors, initial_weights):
    hparams = workload.hparams
    self._runtime = runtime
    self._datasets = {
      index: _batches(value, hparams.batch_size)
      .repeat(hparams.num_epochs)
      .prefetch(tf.data.AUTOTUNE)
      for index, value in tensors.items()
    }
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
        input_spec=collections.OrderedDict(
          x=tf.TensorSpec([None, *workload.shape], tf.float32),
          y=tf.TensorSpec([None], tf.int32),
        ),
      ),
      client_optimizer_fn=tff.learning.optimizers.build_sgdm(
        hparams.learning_rate, hparams.momentum or None
      ),
    )
    self._state = self._process.set_model_weights(
      runtime.run(self._process.initialize),
      tff.learning.models.ModelWeights(list(initial_weights), []),
    )

  def __call__(self, cohort):
    output = self._runtime.run(
      self._process.next,
      self._state,
      [self._datasets[index] for index in cohort],
    )
    force(output)
    self._state = output.state

  @property
  def weights(self):
    return self._process.get_model_weights(self._state).trainable


class _ByHand:
  """A loop written by hand. Local weights are client-placed values.

  `pipeline` makes a client's batches. `trainer` makes a function that trains a
  model on them and returns the sum of the examples' losses and their number.

  Attributes:
    weights: Global weights, in Keras's order.
    local: The clients' local weights, by index.
    num_local: Number of local weights, which are the model's last.
  """

  num_local = 0

  def __init__(self, workload, runtime, tensors, initial_weights):
    self._runtime = runtime
    self._datasets = {
      index: self.pipeline(value, workload.hparams)
      for index, value in tensors.items()
    }
    num_global = len(initial_weights) - self.num_local
    self.weights = list(initial_weights[:num_global])
    self.local = dict.fromkeys(tensors, list(initial_weights[num_global:]))
    self._next = self._build_round(workload, initial_weights[num_global:])

  def _build_round(self, workload, local):
    """(weights@SERVER, {local, dataset}@CLIENTS) -> (weights, local, loss)."""
    dataset_type = tff.SequenceType(
      tff.types.tensorflow_to_type(
        next(iter(self._datasets.values())).element_spec
      )
    )
    weights_type, local_type = (
      tff.to_type([(np.float32, value.shape) for value in weights])
      for weights in (self.weights, local)
    )

    @tff.tensorflow.computation(weights_type, local_type, dataset_type)
    def client_update(weights, local, dataset):
      # TFF's workers support the variables and optimizers of Keras 2.
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

  def __call__(self, cohort):
    output = self._runtime.run(
      self._next,
      self.weights,
      [self.local[index] for index in cohort],
      [self._datasets[index] for index in cohort],
    )
    force(output)
    self.weights, local, _ = output
    self.local.update(zip(cohort, local))


class _FedRep(_ByHand):
  """FedRep, for a workload with numbers of epochs instead of steps."""

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
  """Per-FedAvg, with a pipeline for each of the batches of a step.

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


# Each takes a workload, the native runtime, the clients' examples and the
# initial weights of the whole model. Calls run rounds as in `LibraryRounds`.
PLAIN_LOOPS = {
  'fed_avg': _FedAvg,
  # FedFac has no plain loop. FedAvg's loop shows its cost.
  'fed_fac': _FedAvg,
  'fed_rep': _FedRep,
  'per_fed_avg': _PerFedAvg,
}
