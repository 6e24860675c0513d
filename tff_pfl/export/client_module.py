"""A client's model functions in plain TensorFlow.

    predict      rows of inputs -> outputs and, for classifiers, probabilities
    evaluate     examples -> the loss, the metrics, the number of examples
    personalize  examples -> a new client's weights, by the method

The functions run without TFF, this library or XLA.
"""

from __future__ import annotations

import collections
import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf
import tree

from tff_pfl import errors
from tff_pfl import tff_api as tff
from tff_pfl.core import (
  example_tensors,
  objectives,
  personalization,
  personalized_process,
  scoring,
)
from tff_pfl.datasets import examples as examples_lib
from tff_pfl.models import domains, split_model
from tff_pfl.runtime import base as runtime_base
from tff_pfl.runtime import graph_programs
from tff_pfl.system import graph_defs


class ClientModule(tf.Module):
  """A client's model and functions.

  Rows are keyword arguments `[n, ...]`: `x` (or `x_NAME` for each of several
  inputs), `domain` (int32 `[n]`) if examples have one, and `y`. `personalize`
  also takes `weight` (float32 `[n]`) if examples have one.

  Attributes:
    weights: Variables by name, with the weights of `predict` and `evaluate`.
  """

  def __init__(
    self,
    process: personalized_process.PersonalizedProcess,
    state: personalized_process.ServerState,
    client_state: personalized_process.ClientState,
    weights: split_model.Weights,
  ):
    """Extracts the functions from a method's process.

    Args:
      process: The method.
      state: Server state, from which `personalize` starts each time.
      client_state: Initial state of a new client. Its index seeds the client's
        work, so no client of the run should have the same index.
      weights: All weights of `process.model`, by name.
    """
    super().__init__()
    self._model = process.model
    _check_plain_names(process.model)
    self.weights = {
      name: tf.Variable(weights[name], trainable=False, name=plain_name(name))
      for name in process.model.initial_weights
    }
    self._weights_of = _weights_of(process.personalize)
    self._start = [tf.constant(leaf) for leaf in _leaves((state, client_state))]

  def row_specs(
    self, with_labels: bool, with_weights: bool = False
  ) -> dict[str, tf.TensorSpec]:
    """Returns the argument specs of a function of rows.

    Args:
      with_labels: True to include labels.
      with_weights: True to include example weights, if there are any.
    """
    takes = {'y': with_labels, 'weight': with_weights}
    element = {
      key: spec
      for key, spec in self._model.element_spec.items()
      if takes.get(key, True)
    }
    return {
      plain_name('_'.join(path)): spec
      for path, spec in tree.flatten_with_path(domains.batched_spec(element))
    }

  def weight_specs(self) -> dict[str, tf.TensorSpec]:
    """Returns the argument specs of a function of weights."""
    return {
      plain_name(name): tf.TensorSpec(variable.shape, variable.dtype)
      for name, variable in self.weights.items()
    }

  def predict(self, **rows: tf.Tensor) -> dict[str, tf.Tensor]:
    """Returns the model's `outputs` and, for a classifier, `probabilities`."""
    return self._predict(self._values(), rows)

  def predict_with_weights(self, **arguments: tf.Tensor) -> dict[str, Any]:
    """Predicts with weights given as arguments, by their `plain_name`."""
    weights = {name: arguments.pop(plain_name(name)) for name in self.weights}
    return self._predict(weights, arguments)

  def evaluate(self, **rows: tf.Tensor) -> dict[str, tf.Tensor]:
    """Returns the mean loss and metrics, and the number of `examples`."""
    examples = example_tensors.from_rows(self._element(rows))
    sums = scoring.score(self._model, self._values(), examples).sums
    return {**objectives.means(sums), 'examples': examples.num_examples}

  def personalize(self, **rows: tf.Tensor) -> dict[str, tf.Tensor]:
    """Returns a new client's weights by name, trained on these examples."""
    examples = example_tensors.from_rows(self._element(rows))
    return self._weights_of([*self._start, *_leaves(examples)])

  def _values(self):
    return {name: value.read_value() for name, value in self.weights.items()}

  def _predict(self, weights, rows):
    x, _ = domains.join({'y': (), **self._element(rows)})
    outputs = self._model.forward(weights, x)[0]
    results = {'outputs': outputs}
    if self._model.classifier is not None:
      results['probabilities'] = self._model.classifier.probabilities(outputs)
    return results

  def _element(self, rows):
    """Returns rows in the structure of a dataset's elements."""
    element = collections.OrderedDict(
      (key, spec)
      for key, spec in self._model.element_spec.items()
      if key not in ('y', 'weight') or key in rows
    )
    return tree.map_structure_with_path(
      lambda path, _: rows[plain_name('_'.join(path))], element
    )


def new_client_module(
  process: personalized_process.PersonalizedProcess,
  state: personalized_process.ServerState,
  client_index: int,
  *,
  weights: split_model.Weights,
  runtime: runtime_base.Runtime,
) -> ClientModule:
  """Makes the functions for clients that never trained.

  Args:
    process: The method. If it trains no part of a new client's model,
      `personalize` fine-tunes all weights, as the programs do.
    state: Server state.
    client_index: An index that no client of the run has, such as the number of
      clients. It seeds the client's work.
    weights: Weights of `predict` before `personalize`.
    runtime: Runtime for the process.
  """
  if not process.fits_new_clients:
    process = process.with_personalization(
      personalization.Personalization(fine_tune='all')
    )
  client_state = runtime.run(process.initialize_client_state, client_index)
  return ClientModule(process, state, client_state, weights)


def rows_of(examples: examples_lib.Examples) -> dict[str, np.ndarray]:
  """Returns a client's examples as arguments for a function of rows."""
  return {
    plain_name('_'.join(path)): value
    for path, value in tree.flatten_with_path(examples.as_dict())
  }


def plain_name(name: str) -> str:
  """Returns a name as a valid argument name."""
  return re.sub(r'\W', '_', name)


def _check_plain_names(model):
  """Raises `ValueError` if names are equal when they are plain."""
  rows = tree.flatten_with_path(dict(model.element_spec))
  names = [*('/'.join(path) for path, _ in rows), *model.initial_weights]
  counts = collections.Counter(map(plain_name, names))
  alike = [name for name in names if counts[plain_name(name)] > 1]
  errors.expect(
    not alike,
    'model',
    'one whose inputs and weights have distinct names also with _ for all but '
    'letters and digits (rename inputs or layers)',
    ', '.join(alike),
  )


def traced(
  function: Callable[..., Any], specs: Mapping[str, tf.TensorSpec]
) -> Any:
  """Traces a function of keyword arguments as a signature."""
  specs = {
    name: tf.TensorSpec(spec.shape, spec.dtype, name)
    for name, spec in specs.items()
  }
  return tf.function(function, autograph=False).get_concrete_function(**specs)


def _leaves(value):
  """Returns a value's tensors in TFF's order."""
  return tff.structure.flatten(
    tff.structure.from_container(value, recursive=True)
  )


def _weights_of(personalize):
  """Makes a function of standard operations from `personalize`.

  Returns:
    A function from TFF's leaves of the argument to the weights by name.
  """
  proto = tff.framework.serialize_computation(personalize).tensorflow
  graph_def = tf.compat.v1.GraphDef()
  proto.graph_def.Unpack(graph_def)
  graph_defs.choose_forms(graph_def, graph_defs.TOGETHER)
  graph_defs.without_xla(graph_def)
  for node in graph_defs.all_nodes(graph_def):
    # An identity, which TensorFlow Lite does not know by this name.
    if node.op == 'Snapshot':
      node.op = 'Identity'
  graph_defs.make_names_unique(graph_def)
  tensors = graph_programs.tensor_names(proto.result.struct.element[0])
  function = graph_programs.import_graph(
    graph_def, graph_programs.tensor_names(proto.parameter), tensors
  )
  names = tff.structure.name_list(personalize.type_signature.result.weights)

  def weights_of(leaves):
    # The function returns repeated tensors once.
    values = dict(zip(dict.fromkeys(tensors), function(*leaves)))
    return {name: values[tensor] for name, tensor in zip(names, tensors)}

  return weights_of
