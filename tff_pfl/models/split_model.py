"""The one form of a model in this library: pure functions with named layers.

A `SplitModel` has a *body* (from the examples to features) and a *head* (from
the features to the outputs). Both are pure: everything they read comes in
through their arguments, weights and seed included, and the moving statistics
that a layer would assign during training come out as a value.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, Optional, Union

import numpy as np
import tensorflow as tf

from tff_pfl import errors
from tff_pfl.models import domains as domains_lib
from tff_pfl.models import hidden_elements

# What the names of the moving statistics of batch normalization end with.
MOVING = ('/moving_mean', '/moving_variance')
# Name of a weight, `layer/weight`, to its value.
Weights = Mapping[str, Any]


class Mode(NamedTuple):
  """How a forward pass runs.

  Attributes:
    training: Whether dropout is active and batch statistics are used. A frozen
      part of a network always runs with `training=False`.
    seed: int32 tensor `[2]`, read by dropout when `training`, and by
      augmentation, which a frozen body has, too.
    example_weights: float32 `[batch]`, 1 for examples and 0 for padding, or
      None for "no padding". Only layers that mix examples (batch
      normalization) read it.
  """

  training: bool = False
  seed: Optional[tf.Tensor] = None
  example_weights: Optional[tf.Tensor] = None


INFERENCE = Mode()


class Classifier(NamedTuple):
  """What the outputs of a classifier mean.

  Attributes:
    num_classes: The outputs are scores `[batch, ..., num_classes]`, or one
      score for two classes.
    probabilities: From outputs to class probabilities
      `[batch, ..., num_classes]`.
    outputs_of: From class probabilities to outputs that have them.
    is_multilabel: Whether the outputs are scores `[batch, ..., labels]` of
      several labels, each of two classes; probabilities have the classes last.
  """

  num_classes: int
  probabilities: Callable[[Any], tf.Tensor]
  outputs_of: Callable[[tf.Tensor], tf.Tensor]
  is_multilabel: bool = False


class PrimaryMetric(NamedTuple):
  """The metric by which models are compared.

  Attributes:
    name: A key of `SplitModel.metrics`, or 'loss'.
  """

  name: str
  higher_is_better: bool

  @property
  def title(self) -> str:
    """The name, for tables and pictures."""
    return self.name.replace('_', ' ')

  @property
  def heading(self) -> str:
    """The title at the beginning of a line."""
    return self.title[0].upper() + self.title[1:]

  @property
  def is_fraction(self) -> bool:
    """Whether it is shown in percent, as accuracies are."""
    return 'accuracy' in self.name or self.name == 'AUC'

  def label(self, of_what: str = '') -> str:
    """The label of an axis of test scores, such as those " of the client"."""
    return f'Test {self.title}{of_what}{" (%)" if self.is_fraction else ""}'

  def text(self, value: float) -> str:
    """A value, with its unit."""
    return f'{value:.1%}' if self.is_fraction else f'{value:.4g}'

  def merit(self, values: Any) -> np.ndarray:
    """Values of which more is better, NaN the least of all."""
    values = np.asarray(values, np.float64)
    merit = values if self.higher_is_better else -values
    return np.where(np.isnan(merit), -np.inf, merit)


ACCURACY = PrimaryMetric('accuracy', True)
LOSS = PrimaryMetric('loss', False)


@dataclasses.dataclass(frozen=True)
class SplitModel:
  """A model as pure functions of named weights.

  Attributes:
    initial_weights: Weight name to float array; the order is the model's.
    layers: Layer name to the names of its weights, for layers that have any.
    head_layers: The layers (with weights) that make the head; all others make
      the body.
    statistics: Names of weights that have no gradient: the moving mean and
      variance of batch normalization, which the forward pass updates, and
      weights of layers with `trainable=False`, which keep their values.
    element_spec: `OrderedDict(x=..., y=...)` of `tf.TensorSpec` of one example,
      without a batch dimension; with a `weight` and a `domain` where examples
      have such.
    body: `(weights, x [batch, ...], mode) -> (features, new_statistics)`.
    head: `(weights, features, mode) -> (outputs, new_statistics)`. Both read
      only their own layers' weights from `weights`, which may hold more.
    loss: `(y, outputs) -> [batch]`, the loss of each example, in reports.
    metrics: Metric name to `(y, outputs) -> [batch]`; a client's metric is the
      mean over its examples.
    primary_metric: Which of them, or the loss, models are compared by.
    classifier: What the outputs mean where they are scores of classes; None for
      regression.
    jit_compile: Whether client training is compiled by XLA on a CPU: True,
      False or 'auto' for all phases but those that are faster in place.
      Programs of several clients on a GPU are compiled wherever XLA can.
    layer_outputs: `(weights, x) -> OrderedDict` from the name of each layer in
      `layers`, in that order, to its output in inference mode: a tensor or,
      where the layer gives several, a structure of tensors. A layer's own
      activation is included, that of a layer after it is not. None where the
      model does not tell.
    domains: Where examples have a domain, the domains. The body's `x` then is
      `OrderedDict(inputs=..., domain=int32 [batch])`.
    elements: Layer name to its hidden elements, in the order of `layers`, for
      layers whose weights can be divided among them.
    regularizers: Weight name to what training adds to the loss,
      `(weight) -> scalar`, where the weight is trained.
    keras_graph: The graph of the Keras model that `keras_bridge` made it of,
      whose own weights nothing reads; None where there is none. A model that
      was made of this one keeps it, and may have other weights.
    counted: `(y, outputs) -> [batch]`, float32 in [0, 1], the part of an
      example's elements that count in means, where padding of sequences is
      masked or a class is ignored; None where all count.
    is_augmented: Whether the body changes `x` at random if it gets a seed.
    training_loss: The loss of each example in training, such as one with
      weights of classes; None where it is `loss`.
    reported: Metrics that reports have beside the primary one. Those that are
      not in `metrics` are of all predictions of a client
      (`models.client_metrics`).
    metric_of: From a metric as `from_keras` takes it to a `PrimaryMetric` and
      its function as in `metrics`; None of models that it did not make.
  """

  name: str
  initial_weights: Mapping[str, np.ndarray]
  layers: Mapping[str, tuple]
  head_layers: tuple
  statistics: frozenset
  element_spec: Mapping[str, tf.TensorSpec]
  body: Callable[..., tuple]
  head: Callable[..., tuple]
  loss: Callable[[tf.Tensor, tf.Tensor], tf.Tensor]
  metrics: Mapping[str, Callable[[tf.Tensor, tf.Tensor], tf.Tensor]]
  primary_metric: PrimaryMetric = LOSS
  classifier: Optional[Classifier] = None
  jit_compile: Union[bool, str] = 'auto'
  layer_outputs: Optional[Callable[..., collections.OrderedDict]] = None
  domains: Optional[domains_lib.Domains] = None
  elements: Mapping[str, hidden_elements.HiddenElements] = dataclasses.field(
    default_factory=dict
  )
  regularizers: Mapping[str, Callable[[tf.Tensor], tf.Tensor]] = (
    dataclasses.field(default_factory=dict)
  )
  keras_graph: Any = None
  counted: Optional[Callable[[tf.Tensor, tf.Tensor], tf.Tensor]] = None
  is_augmented: bool = False
  training_loss: Optional[Callable[[tf.Tensor, tf.Tensor], tf.Tensor]] = None
  reported: tuple = ()
  metric_of: Optional[Callable[[Any], tuple]] = None

  @property
  def client_metrics(self) -> tuple:
    """Names of the metrics that are of all predictions of a client."""
    return tuple(
      metric.name for metric in self.reported if metric.name not in self.metrics
    )

  def predictions(self, outputs: tf.Tensor) -> tf.Tensor:
    """The probabilities of a classifier's outputs, else the outputs."""
    if self.classifier is None:
      return outputs
    return self.classifier.probabilities(outputs)

  @property
  def in_training(self) -> SplitModel:
    """The model whose `loss` is that of training."""
    if self.training_loss is None:
      return self
    return dataclasses.replace(
      self, loss=self.training_loss, training_loss=None
    )

  @property
  def uses_xla(self) -> bool:
    """Whether phases that are not in place are compiled."""
    return bool(self.jit_compile)

  @property
  def body_layers(self) -> tuple:
    """The layers with weights that are not in the head."""
    return tuple(name for name in self.layers if name not in self.head_layers)

  def mean(
    self, values: tf.Tensor, y: tf.Tensor, outputs: tf.Tensor
  ) -> tf.Tensor:
    """The mean of examples' values `[batch]`, of each as far as it counts."""
    if self.counted is None:
      return tf.reduce_mean(values)
    counted = tf.cast(self.counted(y, outputs), values.dtype)
    return tf.math.divide_no_nan(
      tf.reduce_sum(values * counted), tf.reduce_sum(counted)
    )

  def layers_within(self, name: str) -> tuple:
    """The layers with weights that are called so, or are within what is."""
    return names_within(name, self.layers)

  def weight_names(self, layers) -> tuple:
    """The names of the weights of `layers`, in the model's order.

    The name of a model within the model stands for all its layers.

    Raises:
      ValueError: If the model has no such layer with weights.
    """
    wanted = set()
    for layer in layers:
      matching = self.layers_within(layer)
      errors.expect(
        matching,
        'layers',
        f"names of the model's layers with weights ({', '.join(self.layers)})",
        layer,
      )
      wanted.update(name for known in matching for name in self.layers[known])
    return tuple(name for name in self.initial_weights if name in wanted)

  def layers_to_divide(self, names: Optional[str] = None) -> tuple:
    """The layers that a method divides by their hidden elements.

    Args:
      names: Layers, separated by commas; None for the last layer of the body
        that can be divided.

    Returns:
      Their names, in the model's order.

    Raises:
      ValueError: If there is no such layer, or one cannot be divided.
    """
    if names is None:
      in_body = [name for name in self.elements if name in self.body_layers]
      names = ','.join(in_body[-1:])
    layers = [name.strip() for name in names.split(',') if name.strip()]
    hidden_elements.check_layers(self.elements, layers, self.layers)
    return tuple(name for name in self.elements if name in layers)

  def last_layers(self, number: Optional[int], argument: str) -> tuple:
    """The last layers with weights; for None the head's.

    Args:
      number: At least 1 and less than there are layers.
      argument: What the error calls it.
    """
    if number is None:
      return tuple(self.head_layers)
    errors.expect_int(argument, number, 1, len(self.layers) - 1)
    return tuple(self.layers)[-number:]

  def forward(
    self, weights: Weights, x: tf.Tensor, mode: Mode = INFERENCE
  ) -> tuple:
    """Runs body and head: `(outputs, new_statistics)`."""
    features, body_statistics = self.body(weights, x, mode)
    outputs, head_statistics = self.head(weights, features, mode)
    return outputs, {**body_statistics, **head_statistics}


def names_within(name: str, names: Iterable[str]) -> tuple:
  """Those of layers' names that are `name`, or of layers within it."""
  return tuple(
    known for known in names if known == name or known.startswith(f'{name}/')
  )


def select(weights: Weights, names) -> collections.OrderedDict:
  """The named weights, in the order of `names`."""
  return collections.OrderedDict((name, weights[name]) for name in names)


def difference(initial: Weights, final: Weights) -> collections.OrderedDict:
  """`initial - final`, weight by weight: a client's update."""
  return collections.OrderedDict(
    (name, value - final[name]) for name, value in initial.items()
  )


def check_weights(
  model: SplitModel, weights: Weights, layers
) -> collections.OrderedDict:
  """The weights of `layers` as tensors, in the model's order.

  A weight that is missing must not be the network's initial one by accident.

  Args:
    weights: Weight name to value; may hold more than is asked for.

  Raises:
    ValueError: If one is missing or not of its shape; the message names it.
  """
  checked = collections.OrderedDict()
  for name in model.weight_names(layers):
    errors.expect(
      name in weights,
      'weights',
      f'all those of {", ".join(layers)}',
      f'no {name!r}',
    )
    initial = model.initial_weights[name]
    value = tf.convert_to_tensor(weights[name], initial.dtype)
    errors.expect(
      value.shape == initial.shape,
      'weights',
      f'of shape {initial.shape} for {name!r}',
      tuple(value.shape),
    )
    checked[name] = value
  return checked


def check_float32(model: SplitModel) -> None:
  """Raises `ValueError` unless all weights are float32."""
  for name, value in model.initial_weights.items():
    errors.expect(
      value.dtype == np.float32,
      'model',
      'a model with weights of float32',
      f'{name!r} of {value.dtype}',
    )


def check_has_body(model: SplitModel, method: str) -> None:
  """Raises `ValueError` if the model's body has no weights to share."""
  errors.expect(
    model.body_layers,
    'model',
    f'a model whose body has weights for {method} to share (its head is '
    f'{", ".join(model.head_layers)})',
    f'{model.name!r} without any',
  )


def check_has_classes(model: SplitModel, method: str) -> None:
  """Raises `ValueError` unless examples have one class each."""
  classifier = model.classifier
  errors.expect(
    classifier is not None
    and not classifier.is_multilabel
    and model.element_spec['y'].shape.rank == 0,
    'model',
    f'a classifier whose labels are single numbers, as {method} demands',
    f'{model.name!r}, which is none',
  )


def feature_spec(model: SplitModel, method: str) -> tf.TensorSpec:
  """What the body gives for one example, without the batch dimension.

  Args:
    method: What needs it, for errors.

  Raises:
    ValueError: If the body has no weights, or does not give one tensor of
      floats whose shape is known.
  """
  check_has_body(model, method)
  x, _ = domains_lib.join(
    tf.nest.map_structure(
      lambda spec: tf.TensorSpec([None, *spec.shape], spec.dtype),
      dict(model.element_spec),
    )
  )
  body = tf.function(lambda x: model.body(model.initial_weights, x)[0])
  features = body.get_concrete_function(x).structured_outputs
  is_tensor = not tf.nest.is_nested(features)
  errors.expect(
    is_tensor
    and features.dtype.is_floating
    and features.shape[1:].is_fully_defined(),
    'model',
    f'one whose body gives one tensor of a known shape, as {method} demands',
    f'{model.name!r}, which gives '
    + (f'{features.dtype.name} {features.shape}' if is_tensor else 'several'),
  )
  return tf.TensorSpec(features.shape[1:], features.dtype)
