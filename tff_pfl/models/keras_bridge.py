"""Makes a `SplitModel` from any functional or sequential Keras model.

A call of the result is a pure function of the weights: it can be
differentiated, compiled and run inside a TFF computation (see `keras_purity`).
Layers that assign or draw random numbers in training do otherwise here:

* `BatchNormalization`: normalizes with the statistics of the batch's real
  examples (padding does not count) and hands the new moving statistics out
  as values. They are weights of the model, listed in `statistics`.
* `Dropout`, `SpatialDropout*`: draw from the seed that the caller gives.

Unsupported layers raise an error that names them: layers used more than once,
stateful recurrent layers, dropout inside recurrent layers, other random layers,
regularizers, and layers that read variables of their own.
Layers with `trainable=False` keep their weights, as in Keras.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Optional, Union

import tensorflow as tf

from tff_pfl import errors
from tff_pfl.models import (
  keras_elements,
  keras_graph,
  keras_losses,
  keras_purity,
  split_model,
)

keras = tf.keras

_CONVOLUTIONS = (
  keras.layers.Conv1D,
  keras.layers.Conv2D,
  keras.layers.Conv3D,
  keras.layers.DepthwiseConv1D,
  keras.layers.DepthwiseConv2D,
  keras.layers.SeparableConv1D,
  keras.layers.SeparableConv2D,
)


def from_keras(
  model: keras.Model,
  *,
  head_layers: Iterable[str],
  loss: Union[str, keras.losses.Loss, Callable[..., tf.Tensor]],
  metrics: Iterable[Any] = ('accuracy',),
  label_spec: Optional[tf.TensorSpec] = None,
  higher_is_better: Optional[bool] = None,
  class_weight: Optional[Mapping[int, float]] = None,
  jit_compile: Union[bool, str] = 'auto',
) -> split_model.SplitModel:
  """Makes a `SplitModel` from a Keras model.

  The Keras model is read, not changed; its current weights become the initial
  weights.

  Args:
    model: A built functional or sequential Keras model with one input and one
      output.
    head_layers: Names of the layers that make the head. Layers without weights
      that follow them (activations, dropout) belong to the head too.
    loss: A loss by Keras name, a Keras loss object, or a function
      `(y_true, y_pred) -> [batch]` (a function gets `y_true` with the type and
      the rank of `y_pred`, but classes as they are where it takes them). For
      cross-entropies given by name, whether the outputs are logits is read off
      the last layer's activation.
    metrics: Metrics by Keras name (`'accuracy'` fits itself to the loss), Keras
      metric objects that are means over examples, or functions. The first one
      is the primary one, by which models are compared; without any the loss.
    label_spec: `tf.TensorSpec` of one label, without the batch dimension. By
      default int32 for sparse and binary cross-entropies, else float32, and
      scalar where the output is one number. Of a loss of one's own, what it
      can be called with and whether `metrics` has `'accuracy'` tell the kind.
    higher_is_better: Whether more of the first metric is better; None for what
      Keras's own is: less of what is a loss, too, else more.
    class_weight: Class to the factor of the loss of its examples, in training
      as in scores, of all methods; 1 for classes that are not named.
    jit_compile: See `SplitModel.jit_compile`.

  Raises:
    TypeError: If `model` is not a functional or sequential Keras model, or
      another argument is of the wrong type.
    ValueError: If a layer does not exist or is not supported; the message names
      it.
  """
  for name, value in (('head_layers', head_layers), ('metrics', metrics)):
    if isinstance(value, str):
      raise TypeError(errors.message(name, 'a list', value))
  keras_graph.check_graph_network(model)
  nodes = keras_graph.graph_nodes(model)
  keras_purity.check_layers(model, nodes)
  weight_slots, layers, statistics = keras_graph.name_weights(model)
  head_nodes = keras_graph.head_nodes(model, nodes, tuple(head_layers))
  body_model, head_model = keras_graph.cut_at_head(model, head_nodes)
  head_names = {node.layer.name for node in head_nodes}
  metrics = tuple(metrics)
  kind, gives_logits, loss_fn = keras_losses.resolve_loss(
    loss, model, label_spec, metrics
  )
  metrics, primary_metric = keras_losses.resolve_metrics(
    metrics, kind, gives_logits, higher_is_better
  )
  pure = keras_purity.PureCalls(model, weight_slots)
  output_shape = model.output_shape[1:]
  if label_spec is None:
    label_spec = keras_losses.default_label_spec(kind, output_shape)
  classifier = keras_losses.classifier_of(kind, gives_logits, output_shape)
  if class_weight is not None:
    loss_fn = keras_losses.class_weighted(loss_fn, class_weight, classifier)
  result = split_model.SplitModel(
    name=model.name,
    initial_weights=collections.OrderedDict(
      (name, variable.numpy())
      for name, (_, _, variable) in weight_slots.items()
    ),
    layers=layers,
    head_layers=tuple(name for name in layers if name in head_names),
    statistics=statistics,
    element_spec=collections.OrderedDict(
      x=tf.TensorSpec(model.input_shape[1:], model.inputs[0].dtype),
      y=label_spec,
    ),
    body=pure.bind(body_model),
    head=pure.bind(head_model),
    loss=keras_losses.per_example(loss_fn, kind),
    metrics=metrics,
    primary_metric=primary_metric,
    classifier=classifier,
    has_convolutions=any(
      isinstance(module, _CONVOLUTIONS) for module in model.submodules
    ),
    jit_compile=jit_compile,
    layer_outputs=keras_purity.layer_outputs(model, nodes, layers, pure),
    elements=keras_elements.find_elements(nodes, layers, weight_slots),
  )
  keras_purity.check_pure(result, weight_slots)
  return result
