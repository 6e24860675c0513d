"""Conversion of Keras models to `SplitModel`s and back.

A call of a `SplitModel` is a pure function of the weights: it can be
differentiated, compiled and run inside a TFF computation (see `keras_purity`).
The special cases of Keras:

* `BatchNormalization` uses the statistics of the batch's real examples (padding
  does not count). New moving statistics, like all values that layers assign to
  weights without gradient, are returned. They are weights of the model, listed
  in `statistics`.
* Dropout, also inside recurrent layers, noise and random changes of images draw
  from the caller's seed.
* Regularizers of weights are in `regularizers`, for the training loss.
* In mixed precision the weights and the outputs are float32. Losses are not
  scaled, so prefer `mixed_bfloat16` to `mixed_float16`.
* Tensors that a layer or a loss keeps (an adapted `Normalization`) are
  constants.
* Layers with `trainable=False` keep their weights.
* A head may read weights of the body, such as those of an embedding that is
  also the last layer. Methods that run the head without the body refuse it.

Unsupported layers raise an error that names them: stateful recurrent layers,
activity regularizers and other losses of layers, constraints, and layers that
assign to a trained weight, read variables that are not their weights, or draw
without a `keras.random.SeedGenerator`.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Literal, Optional, Union

import keras
import numpy as np
import tensorflow as tf

from tff_pfl import errors, fields
from tff_pfl.models import (
  client_metrics,
  keras_graph,
  keras_losses,
  keras_purity,
  split_model,
)
from tff_pfl.system.private_api import get_keras_mask, set_keras_mask

# Beginnings of the names of operations that 'auto' does not compile:
# convolutions, many times slower by XLA in loops on a CPU; rotations and shifts
# of images, which XLA lacks; and the draws of flips and contrasts, whose
# numbers XLA changes.
_NOT_FOR_XLA = (
  'Conv2D',
  'Conv3D',
  'DepthwiseConv2d',
  'ImageProjectiveTransform',
  'StatelessRandomUniformV2',
)


@fields.checked_call
def from_keras(
  model: keras.Model,
  *,
  head_layers: Iterable[str],
  loss: Union[str, keras.losses.Loss, Callable[..., tf.Tensor]],
  metrics: Iterable[Any] = ('accuracy',),
  task: Optional[fields.one_of(keras_losses.TASKS)] = None,
  label_spec: Optional[tf.TensorSpec] = None,
  input_spec: Optional[Any] = None,
  higher_is_better: Optional[bool] = None,
  class_weight: Optional[Mapping[int, float]] = None,
  jit_compile: Union[bool, Literal['auto']] = 'auto',
  output: Optional[str] = None,
  keep_names: bool = False,
) -> split_model.SplitModel:
  """Makes a `SplitModel` from a Keras model.

  The Keras model stays unchanged; its current weights become the initial
  weights. Layers of models within it are called `model/layer`.

  Args:
    model: A sequential, functional or subclassed model of Keras 3 that knows
      its inputs. With several inputs an example's `x` is a dict, by the keys or
      else the names of the inputs. A subclassed model is divided by the layers
      that its `call` uses; `call` must do the same in training, except for what
      its layers do.
    head_layers: Names of the layers that make the head; the name of a model
      within the model stands for all its layers. Layers without weights that
      follow (activations, dropout) belong to the head too.
    loss: A loss by Keras name, a Keras loss object, or a function
      `(y_true, y_pred) -> [batch]`. As in Keras, cross-entropies take
      probabilities unless their object says `from_logits=True`.
    metrics: Metrics by Keras name (`'accuracy'` fits itself to the loss), Keras
      metric objects that are means over examples, functions, or names of
      `client_metrics`, such as 'auc'. Models are compared by the first one that
      is not of `client_metrics`, or by the loss.
    task: The task of a loss that is not Keras's: 'classification' (labels are
      classes), 'one_hot_classification', 'binary_classification' (also of
      several labels) or 'regression', the default. Outputs are logits, unless
      the loss has an attribute `from_logits` that is False.
    label_spec: `tf.TensorSpec` of one label, without the batch dimension. By
      default int32 for sparse and binary cross-entropies, else float32, and
      scalar where the output is one number.
    input_spec: `tf.TensorSpec`s of one example's inputs, for a subclassed model
      whose inputs are not float32.
    higher_is_better: True if larger values of the first metric are better; None
      for a metric of Keras: lower is better for one that is also a loss, higher
      for others.
    class_weight: Class to the factor of its examples' training loss, as in
      Keras's `fit`; 1 for classes that are not named. With several labels the
      factor of each label's loss.
    jit_compile: True to compile client training by XLA, or False; 'auto' is
      False for models with convolutions, and else leaves out phases that train
      many weights, which are faster in place (`core/in_place.py`). Evaluation
      is never compiled.
    output: Name, in `model.output_names`, of the one of several outputs to
      train; layers that only other outputs need are left out. To train several,
      concatenate them and give a loss that takes them apart.
    keep_names: True to keep names of layers that Keras could have given, such
      as `dense_1`. By default they are numbered within the model, so that a
      second build in the same process is the same model.
  """
  metrics = tuple(metrics)
  errors.expect(
    keras.backend.backend() == 'tensorflow',
    'KERAS_BACKEND',
    "'tensorflow'",
    keras.backend.backend(),
  )
  functional = keras_graph.functional_of(model, input_spec)
  graph = keras_graph.Graph(
    keras_graph.with_output(functional, output),
    keep_names,
    is_traced=not isinstance(model, (keras.Function, keras.Sequential)),
  )
  variables, layers, statistics = keras_graph.name_weights(graph)
  keras_purity.check_layers(graph, variables)
  head_nodes = keras_graph.head_nodes(graph, tuple(head_layers))
  # A layer that is used on both sides has its weights in the body.
  in_body = {node.name for node in graph.nodes if node not in head_nodes}
  head_names = {
    name
    for node in head_nodes
    if node.name not in in_body
    for name in split_model.names_within(node.name, layers)
  }
  label_spec, output_fields = keras_losses.resolve(
    graph,
    loss,
    [metric for metric in metrics if metric not in client_metrics.NAMES],
    label_spec,
    task,
    higher_is_better,
    class_weight,
  )
  pure = keras_purity.PureCalls(graph, variables)
  body, head = _body_and_head(graph, pure, head_nodes)
  result = split_model.SplitModel(
    name=graph.name,
    initial_weights=collections.OrderedDict(
      (name, variable.numpy()) for name, variable in variables.items()
    ),
    layers=layers,
    head_layers=tuple(name for name in layers if name in head_names),
    statistics=statistics,
    element_spec=collections.OrderedDict(x=graph.input_spec, y=label_spec),
    body=body,
    head=head,
    jit_compile=jit_compile,
    layer_outputs=_layer_outputs(graph, pure, layers),
    units=keras_graph.find_units(graph, layers, variables),
    regularizers={
      name: variable.regularizer
      for name, variable in variables.items()
      if variable.regularizer is not None
    },
    keras_graph=graph,
    made_with={'loss': loss, 'class_weight': class_weight},
    **output_fields,
  )
  for name, value in result.initial_weights.items():
    errors.expect(
      np.isfinite(value).all(),
      'model',
      'a Keras model with finite weights',
      f'NaN or infinite numbers in {name}',
    )
  operations, last_operations, tied = keras_purity.check_pure(result, variables)
  if tied:
    result = _with_tied(result, tied)
  if output is None and not graph.is_plain:
    _check_same(model, result, pure)
  keras_losses.check(result, loss, task, last_operations)
  result = client_metrics.with_metrics(
    result, [metric for metric in metrics if metric in client_metrics.NAMES]
  )
  if jit_compile == 'auto' and any(
    operation.startswith(_NOT_FOR_XLA) for operation in operations
  ):
    result = dataclasses.replace(result, jit_compile=False)
  return result


def _body_and_head(graph, pure, head_nodes):
  """Makes the functions `SplitModel.body` and `SplitModel.head`."""
  features, masked = keras_graph.features_of(graph, head_nodes)
  to_features = pure.bind(graph.inputs, features)
  to_output = pure.bind(features, [graph.output])

  def body(weights, x, mode=split_model.INFERENCE):
    values, statistics = to_features(weights, graph.flat_inputs(x), mode)
    # The head's inputs have no masks of their own.
    masks = [get_keras_mask(values[features.index(key)]) for key in masked]
    values = [*map(tf.identity, values), *masks]
    return values[0] if len(values) == 1 else values, statistics

  def head(weights, x, mode=split_model.INFERENCE):
    values = list(x) if isinstance(x, (list, tuple)) else [x]
    values, masks = values[: len(features)], values[len(features) :]
    for key, mask in zip(masked, masks):
      place = features.index(key)
      values[place] = tf.identity(values[place])
      set_keras_mask(values[place], mask)
    (outputs,), statistics = to_output(weights, values, mode)
    mask = get_keras_mask(outputs)
    # A tensor without Keras's note of the softmax that made it and, in mixed
    # precision, of the loss's type.
    outputs = tf.identity(outputs)
    if outputs.dtype.size < 4:
      outputs = tf.cast(outputs, tf.float32)
    if graph.masks_output:
      outputs = _with_mask(outputs, mask)
    return outputs, statistics

  return body, head


def _with_tied(model, tied):
  """Returns the model, whose head refuses to run without these weights."""

  def head(weights, x, mode=split_model.INFERENCE):
    split_model.check_tied(result, weights)
    return model.head(weights, x, mode)

  result = dataclasses.replace(model, head=head, tied=tuple(tied))
  return result


def _with_mask(outputs, mask):
  """Makes outputs NaN where they are masked, and nowhere else."""
  for _ in range(outputs.shape.rank - mask.shape.rank):
    mask = mask[..., tf.newaxis]
  outputs = tf.where(
    tf.math.is_nan(outputs), tf.constant(np.inf, outputs.dtype), outputs
  )
  return tf.where(mask, outputs, tf.constant(np.nan, outputs.dtype))


def _layer_outputs(graph, pure, layers):
  """Makes the function `SplitModel.layer_outputs`."""
  uses = {
    name: [node for node in graph.nodes if name == node.name] for name in layers
  }
  # A layer within a user's own layer has no node.
  keys = {
    name: [list(node.results) for node in nodes]
    for name, nodes in uses.items()
    if nodes
  }
  wanted = tf.nest.flatten(keys)
  call = pure.bind(graph.inputs, wanted)

  def layer_outputs(weights, x):
    values, _ = call(weights, graph.flat_inputs(x))
    by_key = dict(zip(wanted, values))

    def of(results):
      values = [by_key[key] for key in results]
      return values[0] if len(values) == 1 else values

    return collections.OrderedDict(
      # A layer that is used once has no list.
      (name, of(calls[0]) if len(calls) == 1 else list(map(of, calls)))
      for name, calls in keys.items()
    )

  return layer_outputs


def _check_same(model, result, pure):
  """Raises `ValueError` if a Keras model differs from its graph.

  The `call` of such a model may read weights outside of layers, which are
  constants in the graph. Both are called with changed weights.
  """
  rng = np.random.default_rng(0)
  weights = {
    name: value + rng.uniform(0, 0.1, value.shape).astype(value.dtype)
    for name, value in result.initial_weights.items()
  }
  own = {id(variable) for variable in model.variables}
  known = {id(variable) for variable in result.keras_graph.model.variables}
  errors.expect(
    own <= known,
    'model',
    'a Keras model whose weights are those of its layers',
    f'{type(model).__name__} {model.name!r}, which has others (put them into '
    'a layer)',
  )
  x = keras_losses.some_inputs(result, rng)
  given = x
  if isinstance(result.keras_graph.model.input, list):
    given = result.keras_graph.flat_inputs(x)
  for mode in (
    split_model.INFERENCE,
    split_model.Mode(True, tf.constant([1, 2]), None),
  ):
    outputs, _ = result.forward(weights, x, mode)
    with pure.swapped(weights, mode):
      expected = model(given, training=mode.training)
    expected = keras.tree.flatten(expected)[0]
    same = tf.math.is_nan(outputs) | (
      tf.abs(outputs - tf.cast(expected, outputs.dtype))
      <= 1e-2 * (1 + tf.abs(outputs))
    )
    errors.expect(
      tf.reduce_all(same),
      'model',
      'a Keras model that does what its layers do, one after the other',
      f'{type(model).__name__} {model.name!r}, which gives other numbers '
      f'{"in training" if mode.training else "for other weights"}',
    )


def to_keras(
  model: keras.Model,
  weights: split_model.Weights,
  *,
  input_spec: Optional[Any] = None,
  output: Optional[str] = None,
  keep_names: bool = False,
) -> None:
  """Assigns weights of a `SplitModel` to the Keras model it was made of.

  Args:
    model: The argument of `from_keras`, or a model built in the same way.
    weights: Weight name, of `SplitModel.initial_weights`, to value, such as a
      client's personal weights. Weights that are not named stay.
    input_spec: The argument of `from_keras`.
    output: The argument of `from_keras`.
    keep_names: The argument of `from_keras`.
  """
  functional = keras_graph.functional_of(model, input_spec)
  graph = keras_graph.Graph(
    keras_graph.with_output(functional, output), keep_names
  )
  variables, _, _ = keras_graph.name_weights(graph)
  for name, value in weights.items():
    errors.expect_one_of('weights', name, variables)
    errors.expect(
      variables[name].shape == np.shape(value),
      'weights',
      f'of shape {variables[name].shape} for {name!r}',
      np.shape(value),
    )
  for name, value in weights.items():
    variables[name].assign(value)


def keras_model(
  model: split_model.SplitModel, weights: split_model.Weights
) -> keras.Model:
  """Makes a Keras model of a `SplitModel` and weights, such as a client's.

  Its outputs are those of `model.forward` (logits, for a loss of logits), bit
  for bit on a CPU; after batch normalization, which Keras computes by another
  kernel, up to rounding.

  Args:
    model: Made by `from_keras`, or a model of `zoo`.
    weights: All of the model's weights, by name.

  A model with other weights than its Keras model, as FedEM's mixture, has none.
  """
  with _network_with(model, weights) as network:
    made = keras.models.clone_model(
      network, clone_function=_clone_layer, recursive=True
    )
    made.set_weights(network.get_weights())
  return made


def save_keras(
  path: Union[str, os.PathLike[str]],
  model: split_model.SplitModel,
  weights: split_model.Weights,
) -> None:
  """Writes a `SplitModel` with weights as a `.keras` file.

  Args:
    path: The file to write.
    model: Made by `from_keras`, or a model of `zoo`.
    weights: All of the model's weights, by name.
  """
  with _network_with(model, weights) as network:
    network.save(path)


@contextlib.contextmanager
def _network_with(model, weights) -> Iterator[keras.Model]:
  """Gives the Keras model of a `SplitModel` some weights for a while."""
  variables = {}
  if model.keras_graph is not None:
    variables, _, _ = keras_graph.name_weights(model.keras_graph)
  errors.expect(
    list(variables) == list(model.initial_weights),
    'model',
    'one with the weights of its Keras model',
    f'{model.name!r}, which a method made',
  )
  network = model.keras_graph.model
  if len(network.inputs) == 1:
    # Otherwise it expects a list of one input, and warns of anything else.
    network = keras.Model(
      network.inputs[0], network.outputs[0], name=network.name
    )
  before = network.get_weights()
  try:
    for name, variable in variables.items():
      variable.assign(weights[name])
    yield network
  finally:
    network.set_weights(before)


def _clone_layer(layer):
  if isinstance(layer, keras.layers.Lambda):
    # Its configuration has the function as text, without its references.
    return keras.layers.Lambda(
      layer.function,
      layer._output_shape,
      layer.mask,
      layer.arguments,
      name=layer.name,
      dtype=layer.dtype_policy,
    )
  return type(layer).from_config(layer.get_config())
