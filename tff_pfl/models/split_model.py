"""The library's only form of a model: pure functions with named layers.

A `SplitModel` has a *body* (from the examples to features) and a *head* (from
the features to the outputs). Both are pure. They read only their arguments,
including weights and seed, and they return the moving statistics that a layer
would assign during training.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, NamedTuple, Optional, Union

import numpy as np
import tensorflow as tf

from tff_pfl import errors
from tff_pfl.models import domains as domains_lib
from tff_pfl.models import units as units_lib

# Suffixes of batch normalization's moving statistics.
MOVING = ('/moving_mean', '/moving_variance')
# Values by weight name, `layer/weight`.
Weights = Mapping[str, Any]


class Mode(NamedTuple):
  """The mode of a forward pass.

  Attributes:
    training: True to use dropout and the batch's statistics. A frozen part of a
      network always runs with False.
    seed: int32 tensor `[2]`, read by dropout in training, and by augmentation
      even if the body is frozen.
    example_weights: float32 `[batch]`, 1 for examples and 0 for padding, or
      None without padding. Only layers that mix examples (batch normalization)
      read it.
  """

  training: bool = False
  seed: Optional[tf.Tensor] = None
  example_weights: Optional[tf.Tensor] = None


INFERENCE = Mode()


class Classifier(NamedTuple):
  """The meaning of a classifier's outputs.

  Attributes:
    num_classes: Number of classes. The outputs are scores
      `[batch, ..., num_classes]`, or one score for two classes.
    probabilities: Function from outputs to class probabilities
      `[batch, ..., num_classes]`.
    outputs_of: The inverse function, from class probabilities to outputs.
    is_multilabel: True if the outputs are scores `[batch, ..., labels]` of
      several labels, each of two classes. Probabilities have the classes last.
  """

  num_classes: int
  probabilities: Callable[[Any], tf.Tensor]
  outputs_of: Callable[[tf.Tensor], tf.Tensor]
  is_multilabel: bool = False


class PrimaryMetric(NamedTuple):
  """The metric by which models are compared.

  Attributes:
    name: A key of `SplitModel.metrics`, or 'loss'.
    higher_is_better: True if models with larger values are better.
  """

  name: str
  higher_is_better: bool

  @property
  def title(self) -> str:
    """The name for tables and plots."""
    return self.name.replace('_', ' ')

  @property
  def heading(self) -> str:
    """The title with a capital letter."""
    return self.title[0].upper() + self.title[1:]

  @property
  def is_fraction(self) -> bool:
    """True for metrics shown in percent, such as accuracy."""
    return 'accuracy' in self.name or self.name == 'AUC'

  def label(self, suffix: str = '') -> str:
    """Returns the label of a plot's axis, such as 'Test loss' + suffix."""
    return f'Test {self.title}{suffix}{" (%)" if self.is_fraction else ""}'

  def text(self, value: float) -> str:
    """Formats a value, in percent for fractions."""
    return f'{value:.1%}' if self.is_fraction else f'{value:.4g}'

  def merit(self, values: Any) -> np.ndarray:
    """Returns values signed so that higher is better, -inf for NaN."""
    values = np.asarray(values, np.float64)
    merit = values if self.higher_is_better else -values
    return np.where(np.isnan(merit), -np.inf, merit)


ACCURACY = PrimaryMetric('accuracy', True)
LOSS = PrimaryMetric('loss', False)


@dataclasses.dataclass(frozen=True)
class SplitModel:
  """A model as pure functions of named weights.

  Attributes:
    initial_weights: Float arrays by weight name, in the model's order.
    layers: Weight names by layer name, for layers that have weights.
    head_layers: Names of the head's layers with weights. All others are in the
      body.
    statistics: Names of weights that have no gradient: the moving mean and
      variance of batch normalization, which the forward pass updates, and
      weights of layers with `trainable=False`, which keep their values.
    element_spec: `OrderedDict(x=..., y=...)` of `tf.TensorSpec` of one example,
      without a batch dimension. It also has `weight` and `domain` if examples
      have them.
    body: `(weights, x [batch, ...], mode) -> (features, new_statistics)`.
    head: `(weights, features, mode) -> (outputs, new_statistics)`. Body and
      head read only their own layers' weights from `weights`, which may hold
      more.
    loss: `(y, outputs) -> [batch]`, the reported loss of each example.
    metrics: Functions `(y, outputs) -> [batch]` by metric name. A client's
      metric is the mean over its examples.
    primary_metric: The metric, or the loss, by which models are compared.
    classifier: The meaning of outputs that are scores of classes, None for
      regression.
    jit_compile: True or 'auto' to compile client training by XLA on a CPU, and
      False for models with convolutions, for example. Programs of several
      clients on a GPU are compiled wherever XLA can.
    layer_outputs: `(weights, x) -> OrderedDict` from layer name to output in
      inference mode, in the order of `layers`, without layers inside a custom
      layer. An output is a tensor, or a structure of tensors for several
      outputs or calls. It includes the layer's own activation, but not the
      activation of a following layer. None if unknown.
    domains: The domains of the examples, or None. If there are domains, the
      body's `x` is `OrderedDict(inputs=..., domain=int32 [batch])`.
    units: Units by layer name, in the order of `layers`, for layers that have
      any.
    regularizers: Functions `(weight) -> scalar` by weight name, added to the
      training loss if the weight is trained.
    keras_graph: The graph of the original Keras model, or None. Its own weights
      are never read. Models derived from this one keep the graph and may have
      other weights.
    counted: `(y, outputs) -> [batch]`, float32 in [0, 1]: the share of an
      example's elements that count in means, if padding of sequences is masked
      or a class is ignored. None if all count.
    is_augmented: True if the body changes `x` at random when it gets a seed.
    training_loss: The loss in training, such as one with class weights. None
      means `loss`.
    reported: Additional metrics in reports. Those outside `metrics` are
      computed from all predictions of a client (`models.client_metrics`).
    tied: Names of the body's weights that the head also reads.
    metric_of: Function from a metric, in a form that `from_keras` takes, to a
      `PrimaryMetric` and its function as in `metrics`. None for other models.
    made_with: Arguments with which its functions were made, by name (`loss`,
      `class_weight`, `augmentation`), for its description.
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
  units: Mapping[str, units_lib.LayerUnits] = dataclasses.field(
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
  tied: tuple = ()
  metric_of: Optional[Callable[[Any], tuple]] = None
  made_with: Mapping[str, Any] = dataclasses.field(default_factory=dict)

  @property
  def client_metrics(self) -> tuple:
    """Names of the reported metrics that need all predictions of a client."""
    return tuple(
      metric.name for metric in self.reported if metric.name not in self.metrics
    )

  def predictions(self, outputs: tf.Tensor) -> tf.Tensor:
    """Returns a classifier's probabilities, or the outputs in regression."""
    if self.classifier is None:
      return outputs
    return self.classifier.probabilities(outputs)

  @property
  def in_training(self) -> SplitModel:
    """The model with the training loss as its `loss`."""
    if self.training_loss is None:
      return self
    return dataclasses.replace(
      self, loss=self.training_loss, training_loss=None
    )

  @property
  def uses_xla(self) -> bool:
    """True if XLA compiles client training."""
    return bool(self.jit_compile)

  @property
  def body_layers(self) -> tuple:
    """The layers with weights that are not in the head."""
    return tuple(name for name in self.layers if name not in self.head_layers)

  def mean(
    self, values: tf.Tensor, y: tf.Tensor, outputs: tf.Tensor
  ) -> tf.Tensor:
    """Returns the mean of examples' values `[batch]`, weighted by `counted`."""
    if self.counted is None:
      return tf.reduce_mean(values)
    counted = tf.cast(self.counted(y, outputs), values.dtype)
    return tf.math.divide_no_nan(
      tf.reduce_sum(values * counted), tf.reduce_sum(counted)
    )

  def layers_within(self, name: str) -> tuple:
    """Returns the layers with weights that are `name` or lie within it."""
    return names_within(name, self.layers)

  def weight_names(self, layers) -> tuple:
    """Returns the names of the weights of `layers`, in the model's order.

    Args:
      layers: Names of layers with weights. The name of a nested model stands
        for all its layers.
    """
    chosen = set()
    for layer in layers:
      matching = self.layers_within(layer)
      errors.expect(
        matching,
        'layers',
        f"names of the model's layers with weights ({', '.join(self.layers)})",
        layer,
      )
      chosen.update(name for known in matching for name in self.layers[known])
    return tuple(name for name in self.initial_weights if name in chosen)

  def layers_to_divide(self, names: Optional[str] = None) -> tuple:
    """Returns the layers that a method divides by their units.

    Args:
      names: Layer names, separated by commas. None means the last layer of the
        body that has units.

    Returns:
      Layer names in the model's order.
    """
    if names is None:
      in_body = [name for name in self.units if name in self.body_layers]
      errors.expect(
        in_body, 'model', 'a model with a hidden layer to divide', self.name
      )
      names = ','.join(in_body[-1:])
    layers = [name.strip() for name in names.split(',') if name.strip()]
    units_lib.check_layers(self.units, layers, self.layers)
    return tuple(name for name in self.units if name in layers)

  def last_layers(self, number: Optional[int], argument: str) -> tuple:
    """Returns the names of the last layers with weights.

    Args:
      number: Number of layers, from 1 to all but one. None means the head's
        layers.
      argument: Name of `number` in the error.
    """
    if number is None:
      errors.expect(
        self.head_layers,
        'model',
        f'a model whose head has weights of its own, as {argument} demands',
        f'{self.name!r}, whose head reads {", ".join(self.tied)} alone',
      )
      return tuple(self.head_layers)
    errors.expect_int(argument, number, 1, len(self.layers) - 1)
    return tuple(self.layers)[-number:]

  def forward(
    self, weights: Weights, x: tf.Tensor, mode: Mode = INFERENCE
  ) -> tuple:
    """Runs body and head, and returns `(outputs, new_statistics)`."""
    features, body_statistics = self.body(weights, x, mode)
    outputs, head_statistics = self.head(weights, features, mode)
    return outputs, {**body_statistics, **head_statistics}


def names_within(name: str, names: Iterable[str]) -> tuple:
  """Returns the layer names that are `name` or begin with `name/`."""
  return tuple(
    known for known in names if known == name or known.startswith(f'{name}/')
  )


def select(weights: Weights, names) -> collections.OrderedDict:
  """Returns the named weights, in the order of `names`."""
  return collections.OrderedDict((name, weights[name]) for name in names)


def difference(initial: Weights, final: Weights) -> collections.OrderedDict:
  """Returns a client's update: `initial - final` for each weight."""
  return collections.OrderedDict(
    (name, value - final[name]) for name, value in initial.items()
  )


def check_weights(
  model: SplitModel, weights: Weights, layers
) -> collections.OrderedDict:
  """Returns the weights of `layers` as tensors, in the model's order.

  Args:
    weights: Values by weight name. Other weights may be among them.
  """
  checked = collections.OrderedDict()
  for name in model.weight_names(layers):
    errors.expect(
      name in weights,
      'weights',
      f'all weights of {", ".join(layers)}',
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
  """Raises `ValueError` unless body and head each have their own weights."""
  errors.expect(
    model.body_layers,
    'model',
    f'a model whose body has weights for {method} to share',
    f'{model.name!r} without any',
  )
  model.last_layers(None, method)


def check_tied(model: SplitModel, weights: Collection[str] = ()) -> None:
  """Raises `ValueError` if the head reads weights that it does not get.

  Args:
    weights: Names of the weights that it gets in addition to its own.
  """
  for name in model.tied:
    errors.expect(
      name in weights,
      'model',
      f'a model whose head does not read {name!r} of the body, where the head '
      'is trained without the body',
      model.name,
    )


def has_classes(model: SplitModel) -> bool:
  """Returns True if examples have one class each."""
  classifier = model.classifier
  return (
    classifier is not None
    and not classifier.is_multilabel
    and model.element_spec['y'].shape.rank == 0
  )


def check_has_classes(model: SplitModel, method: str) -> None:
  """Raises `ValueError` unless examples have one class each."""
  errors.expect(
    has_classes(model),
    'model',
    f'a classifier whose labels are single numbers, as {method} demands',
    f'{model.name!r}, which is not',
  )


def feature_spec(model: SplitModel, method: str) -> tf.TensorSpec:
  """Returns the spec of the body's features of one example.

  Args:
    method: Name of the method that needs the features, for errors.

  Returns:
    The spec without the batch dimension.
  """
  check_has_body(model, method)
  x, _ = domains_lib.join(domains_lib.batched_spec(model.element_spec))
  body = tf.function(
    lambda x: model.body(model.initial_weights, x)[0], autograph=False
  )
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
