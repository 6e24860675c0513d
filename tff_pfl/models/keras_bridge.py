"""Makes a `SplitModel` from a Keras model, and takes its weights back.

A call of the result is a pure function of the weights: it can be
differentiated, compiled and run inside a TFF computation (see `keras_purity`).
What Keras does otherwise in training is done so here:

* `BatchNormalization`: normalizes with the statistics of the batch's real
  examples (padding does not count) and hands the new moving statistics out
  as values. They are weights of the model, listed in `statistics`.
* Dropout, also inside recurrent layers, noise and random changes of images draw
  from the seed that the caller gives.
* Regularizers of weights are in `regularizers`, for the loss of training.
* In mixed precision the weights and the outputs are float32. Losses are not
  scaled, so prefer `mixed_bfloat16` to `mixed_float16`.
* Integers that a layer keeps (`Normalization.count`) are constants.

Unsupported layers raise an error that names them: stateful recurrent layers,
activity regularizers and other losses of layers, batch normalization of masked
sequences, and layers that assign, read variables which are not their weights or
draw without Keras's random generator.
Layers with `trainable=False` keep their weights, as in Keras.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Optional, Union

import numpy as np
import tensorflow as tf

from tff_pfl import errors
from tff_pfl.models import (
  keras_graph,
  keras_losses,
  keras_purity,
  split_model,
)

keras = tf.keras

# How the names of operations begin that 'auto' does not compile: convolutions,
# which XLA makes many times slower in loops on a CPU; rotations and shifts of
# images, which it does not know; and draws, of flips and contrasts, that it
# makes other numbers.
_NOT_FOR_XLA = (
  'Conv2D',
  'Conv3D',
  'DepthwiseConv2d',
  'ImageProjectiveTransform',
  'StatelessRandomUniformV2',
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
  output: Optional[str] = None,
) -> split_model.SplitModel:
  """Makes a `SplitModel` from a Keras model.

  The Keras model is read, not changed; its current weights become the initial
  weights.

  Args:
    model: A sequential, functional or subclassed Keras model that knows its
      inputs. Of several inputs, an example's `x` is a dict, by the keys or else
      the names of the inputs. A subclassed model is divided as its `call` uses
      its layers, and `call` must do the same in training, where its layers do
      not do otherwise.
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
    jit_compile: Whether client training is compiled by XLA: True, False or
      'auto', which is False for models with convolutions and else leaves out
      phases that train many weights, which are faster in place
      (`client/in_place.py`). Evaluation is never compiled.
    output: Which of several outputs to train, by its name in
      `model.output_names`; layers that only others need are left out. To train
      several, concatenate them and give a loss that takes them apart.

  Raises:
    TypeError: If `model` is no Keras model that knows its inputs, or another
      argument is of the wrong type.
    ValueError: If a layer does not exist or is not supported; the message names
      it.
  """
  for name, value in (('head_layers', head_layers), ('metrics', metrics)):
    if isinstance(value, str):
      raise TypeError(errors.message(name, 'a list', value))
  errors.expect_one_of('jit_compile', jit_compile, (True, False, 'auto'))
  model = keras_graph.with_output(keras_graph.graph_of(model), output)
  nodes = keras_graph.graph_nodes(model)
  keras_purity.check_layers(model, nodes)
  variables, layers, statistics = keras_graph.name_weights(model)
  head_nodes = keras_graph.head_nodes(model, nodes, tuple(head_layers))
  body_model, head_model = keras_graph.cut_at_head(model, head_nodes)
  head_names = {node.layer.name for node in head_nodes}
  label_spec, of_outputs = keras_losses.resolve(
    model, loss, tuple(metrics), label_spec, higher_is_better, class_weight
  )
  pure = keras_purity.PureCalls(model, variables)
  result = split_model.SplitModel(
    name=model.name,
    initial_weights=collections.OrderedDict(
      (name, variable.numpy()) for name, variable in variables.items()
    ),
    layers=layers,
    head_layers=tuple(name for name in layers if name in head_names),
    statistics=statistics,
    element_spec=collections.OrderedDict(
      x=keras_graph.input_spec(model),
      y=label_spec,
    ),
    body=pure.bind(body_model),
    head=_in_float32(pure.bind(head_model)),
    jit_compile=jit_compile,
    layer_outputs=keras_purity.layer_outputs(model, nodes, layers, pure),
    elements=keras_graph.find_elements(nodes, layers, variables),
    regularizers=keras_purity.regularizers(model, variables),
    keras_model=model,
    **of_outputs,
  )
  operations = keras_purity.check_pure(result, variables)
  if jit_compile == 'auto' and any(
    operation.startswith(_NOT_FOR_XLA) for operation in operations
  ):
    result = dataclasses.replace(result, jit_compile=False)
  return result


def _in_float32(head):
  """The head whose outputs, of mixed precision, are float32 for the loss."""

  def call(weights, features, mode=split_model.INFERENCE):
    outputs, statistics = head(weights, features, mode)
    if outputs.dtype.size < 4:
      outputs = tf.cast(outputs, tf.float32)
    return outputs, statistics

  return call


def to_keras(model: keras.Model, weights: split_model.Weights) -> None:
  """Gives a Keras model weights of the `SplitModel` made of it.

  Args:
    model: The model that `from_keras` was given, or one built in the same way.
    weights: Name to value, by the names of `SplitModel.initial_weights`, such
      as a client's personal weights. Weights that are not named stay.

  Raises:
    ValueError: If the Keras model has no such weight, or one of another shape.
  """
  variables, _, _ = keras_graph.name_weights(keras_graph.graph_of(model))
  for name, value in weights.items():
    errors.expect(
      name in variables,
      'weights',
      f'those of {model.name!r} ({", ".join(variables)})',
      name,
    )
    errors.expect(
      variables[name].shape == np.shape(value),
      'weights',
      f'of shape {tuple(variables[name].shape)} for {name!r}',
      np.shape(value),
    )
  for name, value in weights.items():
    variables[name].assign(value)
