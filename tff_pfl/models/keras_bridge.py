"""Conversion of Keras models to `SplitModel`s and back.

A call of a `SplitModel` is a pure function of the weights: it can be
differentiated, compiled and run inside a TFF computation (see `keras_purity`).
Special cases in Keras:

* `BatchNormalization` uses the statistics of the batch's real examples, without
  padding. New moving statistics, like all values that layers assign to weights
  without gradient, are returned. They are weights of the model, listed in
  `statistics`.
* Dropout, noise and random changes of images draw from the caller's seed,
  including dropout inside recurrent layers.
* Weight regularizers are in `regularizers`, for the training loss.
* In mixed precision the weights, the features and the outputs are float32.
  Losses are not scaled, so prefer `mixed_bfloat16` to `mixed_float16`.
* Tensors that a layer or a loss keeps are constants, except the mean and the
  variance of `Normalization`, which are weights.
* Layers with `trainable=False` keep their weights.
* A head may read weights of the body, such as an embedding that is also the
  last layer. Methods that run the head without the body refuse such a model.

Unsupported layers raise an error that names them. These are stateful recurrent
layers, layers with constraints, activity regularizers or other losses, and
layers that assign to a trained weight, read variables that are not their
weights, or draw without a `keras.random.SeedGenerator`.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import os
import pathlib
import tempfile
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
from tff_pfl.system import folders
from tff_pfl.system.private_api import get_keras_mask, set_keras_mask

# Prefixes of operations that 'auto' does not compile. XLA makes convolutions in
# loops on a CPU many times slower, lacks rotations and shifts of images, and
# changes the random numbers of flips and contrasts.
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

  The Keras model does not change. Its current weights become the initial
  weights. Layers of a nested model are called `model/layer`.

  Args:
    model: A sequential, functional or subclassed model of Keras 3 that knows
      its inputs. If it has several inputs, an example's `x` is a dict by the
      inputs' keys, or else by their names. A subclassed model is divided by the
      layers that its `call` uses. Apart from its layers, `call` must do the
      same in training and inference.
    head_layers: Names of the head's layers. The name of a nested model stands
      for all its layers. Layers without weights that follow (activations,
      dropout) also belong to the head.
    loss: A loss by Keras name, a Keras loss object, or a function
      `(y_true, y_pred) -> [batch]`. As in Keras, cross-entropies take
      probabilities unless their object says `from_logits=True`.
    metrics: Metrics by Keras name (`'accuracy'` adapts to the loss), Keras
      metric objects that are means over examples, functions, or names from
      `client_metrics`, such as 'auc'. Models are compared by the first metric
      that is not from `client_metrics`, or else by the loss.
    task: The task of a loss that is not from Keras: 'classification' (labels
      are classes), 'one_hot_classification', 'binary_classification' (of one or
      several labels) or 'regression', the default. Outputs are logits unless
      the loss has an attribute `from_logits` that is False.
    label_spec: `tf.TensorSpec` of one label, without the batch dimension. The
      default is int32 for sparse and binary cross-entropies, else float32,
      without the outputs' last axis if that holds one number or scores of
      sparse classes.
    input_spec: `tf.TensorSpec`s of one example's inputs, for a subclassed model
      whose inputs are not float32.
    higher_is_better: True if larger values of the first metric are better.
      None, for a Keras metric, means lower if it is also a loss, else higher.
    class_weight: The factor of each class's training loss, as in Keras's `fit`,
      1 for classes that are not named. If there are several labels, it applies
      to each label's loss.
    jit_compile: True compiles client training with XLA, and False does not.
      'auto' is False for models with convolutions, which XLA runs slowly in
      loops on a CPU. Evaluation is never compiled.
    output: Name of the output to train, in `model.output_names`, if there are
      several. Layers that only other outputs need are left out. To train
      several, concatenate them and give a loss that takes them apart.
    keep_names: True to keep names of layers with weights that Keras may have
      generated, such as `dense_1`. The default renumbers them within the model,
      so that a second build in the same process gives the same model.
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
  features, masked = keras_graph.features_of(graph, head_nodes)
  to_features = pure.bind(graph.inputs, features)
  to_output = pure.bind(features, [graph.output])

  def body(weights, x, mode=split_model.INFERENCE):
    values, statistics = to_features(weights, graph.flat_inputs(x), mode)
    # The head's inputs carry no masks, so these are passed separately.
    masks = [get_keras_mask(values[features.index(key)]) for key in masked]
    values = [*map(_float32, values), *masks]
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
    # Removes Keras's note of a final softmax.
    outputs = _float32(outputs)
    if graph.masks_output:
      outputs = _with_mask(outputs, mask)
    return outputs, statistics

  return body, head


def _float32(values):
  """Returns a new tensor, in float32 if mixed precision gives 16 bits."""
  if values.dtype.is_floating and values.dtype.size < 4:
    return tf.cast(values, tf.float32)
  return tf.identity(values)


def _with_tied(model, tied):
  """Returns the model with a head that refuses to run without these weights."""

  def head(weights, x, mode=split_model.INFERENCE):
    split_model.check_tied(result, weights)
    return model.head(weights, x, mode)

  result = dataclasses.replace(model, head=head, tied=tuple(tied))
  return result


def _with_mask(outputs, mask):
  """Makes masked outputs, and no others, NaN."""
  for _ in range(outputs.shape.rank - mask.shape.rank):
    mask = mask[..., tf.newaxis]
  outputs = tf.where(
    tf.math.is_nan(outputs), tf.constant(np.inf, outputs.dtype), outputs
  )
  return tf.where(mask, outputs, tf.constant(np.nan, outputs.dtype))


def _layer_outputs(graph, pure, layers):
  uses = {
    name: [node for node in graph.nodes if name == node.name] for name in layers
  }
  # A layer within a custom layer has no node.
  keys = {
    name: [list(node.results) for node in nodes]
    for name, nodes in uses.items()
    if nodes
  }
  result_keys = tf.nest.flatten(keys)
  call = pure.bind(graph.inputs, result_keys)

  def layer_outputs(weights, x):
    values, _ = call(weights, graph.flat_inputs(x))
    by_key = dict(zip(result_keys, values))

    def of(results):
      values = [by_key[key] for key in results]
      return values[0] if len(values) == 1 else values

    return collections.OrderedDict(
      # A layer that is used once gets no list.
      (name, of(calls[0]) if len(calls) == 1 else list(map(of, calls)))
      for name, calls in keys.items()
    )

  return layer_outputs


def _check_same(model, result, pure):
  """Raises `ValueError` if a Keras model differs from its graph.

  The model's `call` may read weights outside of layers, which are constants in
  the graph. To detect this, both are called with changed weights.
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
    'a Keras model whose weights all belong to its layers',
    f'{type(model).__name__} {model.name!r}, which has others (put them into '
    'a layer)',
  )
  x = keras_losses.some_inputs(result, rng)
  inputs = x
  if isinstance(result.keras_graph.model.input, list):
    inputs = result.keras_graph.flat_inputs(x)
  for mode in (
    split_model.INFERENCE,
    split_model.Mode(True, tf.constant([1, 2]), None),
  ):
    outputs, _ = result.forward(weights, x, mode)
    with pure.swapped(weights, mode):
      expected = model(inputs, training=mode.training)
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
  """Assigns weights of a `SplitModel` to the Keras model it was made from.

  Args:
    model: The argument of `from_keras`, or a model built in the same way.
    weights: Values by weight name, as in `SplitModel.initial_weights`, such as
      a client's personal weights. Weights that are not named do not change.
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
  keras_graph.update_kept_tensors(model)


def keras_model(
  model: split_model.SplitModel, weights: split_model.Weights
) -> keras.Model:
  """Makes a Keras model from a `SplitModel` and weights, such as a client's.

  On a CPU its outputs equal `model.forward` bit for bit (logits, if the loss
  takes logits). Models with batch normalization, for which Keras uses another
  kernel, are equal up to rounding.

  Args:
    model: Made by `from_keras`, or a model of `zoo`.
    weights: All of the model's weights, by name.

  Raises:
    ValueError: If the model has other weights than its Keras model, as FedEM's
      mixture does.
  """
  with _network_with(model, weights) as network:
    made = keras.models.clone_model(
      network, clone_function=_clone_layer, recursive=True
    )
    made.set_weights(network.get_weights())
    keras_graph.update_kept_tensors(made)
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

  Raises:
    RunError: If the file cannot be written. An earlier file stays unchanged.
  """
  # Keras would destroy an existing file before it is done.
  with (
    folders.atomic_file(path, 'wb') as file,
    tempfile.TemporaryDirectory(
      prefix='.', dir=os.path.dirname(path) or '.'
    ) as folder,
    _network_with(model, weights) as network,
  ):
    saved = pathlib.Path(folder, os.path.basename(path))
    network.save(saved)
    file.write(saved.read_bytes())


@contextlib.contextmanager
def _network_with(model, weights) -> Iterator[keras.Model]:
  """Yields the Keras model of a `SplitModel`, with other weights meanwhile."""
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
    # Otherwise it expects a list of one input and warns about anything else.
    network = keras.Model(
      network.inputs[0], network.outputs[0], name=network.name
    )
  with keras_graph.restoring_weights(network):
    for name, variable in variables.items():
      variable.assign(weights[name])
    yield network


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
