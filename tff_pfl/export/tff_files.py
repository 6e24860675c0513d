"""A method without client state, as files of serialized TFF computations.

    manifest.json              versions, types, the method's options, checksums
    initialize.pb, next.pb     a `LearningProcess`: computation.proto
    (get, set)_model_weights.pb, (get, set)_hparams.pb    its other functions
    state.pb                   the server's state: executor.proto's Value
    map_reduce/*.pb            the parts of a `MapReduceForm`
    distribute_aggregate/*.pb  the parts of a `DistributeAggregateForm`

`load` and `load_learning_process` read the files without the method's code. The
computations request no XLA and have no variables, because a worker may lack
these: training keeps weights as values (`core.training_loop`).
"""

from __future__ import annotations

import hashlib
import inspect
import json
import os
from collections.abc import Mapping
from typing import Any, NamedTuple

import tensorflow as tf

import tff_pfl
from tff_pfl import errors
from tff_pfl import tff_api as tff
from tff_pfl.system import folders, graph_defs
from tff_pfl.system.private_api import computation_pb2, executor_pb2

_MANIFEST = 'manifest.json'
_COMPUTATIONS = (
  'initialize',
  'next',
  'get_model_weights',
  'set_model_weights',
  'get_hparams',
  'set_hparams',
)
_FORMS = {
  'map_reduce': (tff.backends.mapreduce.get_map_reduce_form_for_computation),
  'distribute_aggregate': (
    tff.backends.mapreduce.get_distribute_aggregate_form_for_computation
  ),
}


class SerializedProcess(NamedTuple):
  """A process that `load` has read.

  Attributes:
    initialize: `( -> S@SERVER)`.
    next: `(<S@SERVER, {D*}@CLIENTS> -> <state, metrics>)`, for any number of
      clients with batches of examples. Its results are dicts by name.
    state: The saved server state, for `next`, as dicts by name.
    manifest: The result of `save`.
  """

  initialize: tff.Computation
  next: tff.Computation
  state: Any
  manifest: Mapping[str, Any]


def save(
  directory: str,
  process: tff.learning.templates.LearningProcess,
  state: Any,
  description: Mapping[str, Any],
) -> dict[str, Any]:
  """Writes a process and its state.

  Args:
    directory: The folder, created if needed.
    process: A process, such as `PersonalizedProcess.to_learning_process()`.
    state: Server state, from which training continues.
    description: The process's options (such as its aggregator) as JSON types,
      for the manifest.

  Returns:
    The manifest: `versions` of the packages, the `description`, the `types` of
    the server state and a client's data in TFF's notation, the `forms` (a round
    with several aggregations has no `map_reduce`), and the SHA-256 of each of
    the `files`.
  """
  directory = folders.output_path(directory, 'directory')
  computations = {
    name: _portable(getattr(process, name)) for name in _COMPUTATIONS
  }
  state_type = process.initialize.type_signature.result.member
  value, _ = tff.framework.serialize_value(state, state_type)
  messages = {
    f'{name}.pb': tff.framework.serialize_computation(computation)
    for name, computation in computations.items()
  }
  messages['state.pb'] = value
  forms = []
  for form, of in _FORMS.items():
    parts = _parts(of, computations['next'])
    messages.update({f'{form}/{name}.pb': part for name, part in parts.items()})
    forms += [form] if parts else []
  checksums = {}
  for name, message in messages.items():
    content = message.SerializeToString(deterministic=True)
    path = os.path.join(directory, name)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with folders.atomic_file(path, 'wb') as file:
      file.write(content)
    checksums[name] = hashlib.sha256(content).hexdigest()
  manifest = {
    'versions': {
      module.__name__: module.__version__ for module in (tff_pfl, tff, tf)
    },
    'description': description,
    'types': {
      'state': str(state_type),
      'client_data': str(process.next.type_signature.parameter[1].member),
    },
    'forms': forms,
    'files': checksums,
  }
  # Written last, because nothing loads without it.
  with folders.atomic_file(os.path.join(directory, _MANIFEST)) as file:
    json.dump(manifest, file, indent=2)
  return manifest


def _portable(computation):
  """Applies `graph_defs.make_portable` to a computation's graphs."""

  def transform(block):
    if not isinstance(block, tff.framework.CompiledComputation):
      return block, False
    proto = computation_pb2.Computation()
    proto.CopyFrom(block.proto)
    graph_def = tf.compat.v1.GraphDef()
    proto.tensorflow.graph_def.Unpack(graph_def)
    graph_defs.make_portable(graph_def)
    proto.tensorflow.graph_def.Pack(graph_def)
    return tff.framework.CompiledComputation(
      proto, type_signature=block.type_signature
    ), True

  block, _ = tff.framework.transform_postorder(
    computation.to_building_block(), transform
  )
  return tff.framework.ConcreteComputation.from_building_block(block)


def _parts(form_of, computation):
  """Returns a form's serialized parts, or {} if the round lacks the form."""
  try:
    form = form_of(computation)
  except ValueError:  # A broadcast depends on an aggregate.
    return {}
  return {
    name: tff.framework.serialize_computation(getattr(form, name))
    for name in inspect.signature(type(form)).parameters
    if name != 'type_signature'
  }


def load(directory: str) -> SerializedProcess:
  """Reads a process that `save` wrote.

  Raises:
    RunError: If a file is missing or differs from the saved one.
  """
  manifest, contents = _read(directory)
  initialize, next_fn = (
    _computation(contents[name]) for name in ('initialize.pb', 'next.pb')
  )
  state_type = initialize.type_signature.result.member
  state, _ = tff.framework.deserialize_value(
    executor_pb2.Value.FromString(contents['state.pb']), state_type
  )
  state = tff.types.type_to_py_container(state, state_type)
  return SerializedProcess(initialize, next_fn, state, manifest)


def load_learning_process(
  directory: str,
) -> tff.learning.templates.LearningProcess:
  """Reads a process that `save` wrote, for TFF's programs.

  States are dicts by name. Pass the `state` from `load` to `train_model` as its
  `initial_train_state`.

  Raises:
    RunError: If a file is missing or differs from the saved one.
  """
  _, contents = _read(directory)
  initialize, next_fn, get_weights, set_weights, get_hparams, set_hparams = (
    _computation(contents[f'{name}.pb']) for name in _COMPUTATIONS
  )
  return tff.learning.templates.LearningProcess(
    initialize,
    _returning(tff.learning.templates.LearningProcessOutput, next_fn),
    _returning(tff.learning.models.ModelWeights, get_weights),
    set_weights,
    get_hparams_fn=get_hparams,
    set_hparams_fn=set_hparams,
  )


def _returning(container, computation):
  """Restores a result's container, which files do not store."""
  types = computation.type_signature
  if not isinstance(types.result, tff.StructType):
    return computation
  elements = tff.structure.to_elements(types.result)
  if tuple(name for name, _ in elements) != container._fields:
    return computation
  result = tff.StructWithPythonType(elements, container)
  return tff.framework.ConcreteComputation.with_type(
    computation, tff.FunctionType(types.parameter, result)
  )


def load_map_reduce_form(
  directory: str,
) -> tff.backends.mapreduce.MapReduceForm:
  """Reads the parts of a round for a map-reduce production system.

  Raises:
    RunError: If a file is missing or differs from the saved one, or if the
      round has no such form.
  """
  manifest, contents = _read(directory)
  if 'map_reduce' not in manifest['forms']:
    raise errors.RunError(
      f'The process in {directory} has no MapReduceForm, as its round has '
      'several aggregations: use its DistributeAggregateForm or `load`.'
    )
  start = 'map_reduce/'
  return tff.backends.mapreduce.MapReduceForm(
    _computation(contents['next.pb']).type_signature,
    **{
      name.removeprefix(start).removesuffix('.pb'): _computation(content)
      for name, content in contents.items()
      if name.startswith(start)
    },
  )


def _computation(content):
  return tff.framework.deserialize_computation(
    computation_pb2.Computation.FromString(content)
  )


def _read(directory):
  """Returns the manifest and the contents of its files."""
  try:
    with open(os.path.join(directory, _MANIFEST), encoding='utf-8') as file:
      manifest = json.load(file)
    contents = {}
    for name, checksum in manifest['files'].items():
      with open(os.path.join(directory, name), 'rb') as file:
        contents[name] = file.read()
      if hashlib.sha256(contents[name]).hexdigest() != checksum:
        raise ValueError(f'{name} is not the file of the manifest')
  except (OSError, ValueError, KeyError, TypeError) as e:
    raise errors.RunError(
      f'Cannot read an exported process in {directory}: {e}'
    ) from e
  return manifest, contents
