"""Whether a TensorFlow graph gives equal results for equal arguments."""

import re
from collections.abc import Iterator
from typing import Any

import tensorflow as tf
from tensorflow.core.framework import dataset_options_pb2
from tensorflow.python.framework import op_def_registry

# TensorFlow marks operations as stateful that must not be folded or shared.
# These of them depend on nothing but their arguments: control flow, checks,
# data sets made of tensors, and resources that live as long as one call.
_DETERMINISTIC_STATEFUL_OPS = re.compile(
  '|'.join(
    [
      r'StatefulPartitionedCall|While|If|Case|Assert|CheckNumerics(V2)?',
      r'(TensorSlice|SparseTensorSlice|Tensor|Range|List|Reduce)Dataset',
      r'DatasetToSingleElement|CacheDatasetV2|(Dummy|Anonymous)MemoryCache',
      r'DummyIterationCounter|StatelessRandomGetAlg|VariableShape',
      r'IsTensorFloat32Enabled|DeviceIndex|TensorArray\w*',
      r'AnonymousIterator(V2|V3)?|MakeIterator|IteratorGetNext(\w*)',
      r'DeleteIterator|_Arg|_Retval|XlaLaunch',
    ]
  )
)
# Variables and tables: as deterministic as what sets them at each call's begin.
_RESOURCE_OPS = re.compile(
  r'VarHandleOp|\w*VariableOp|VarIsInitializedOp|DestroyResourceOp'
  r'|Resource(Sparse)?Apply\w+|Resource(Scatter|Gather|StridedSlice)\w*'
  r'|HashTableV2|InitializeTableV2|LookupTable(Find|Size|Export)V2'
)
# What depends on more than its arguments without being marked as stateful.
_NOT_DETERMINISTIC_OPS = re.compile(
  r'(?!Stateless)(\w*(Shuffle|Random|Sampl(e|ing))\w*)|ReadFile|MatchingFiles'
  r'|Snapshot\w*Dataset\w*|Fractional(Max|Avg)Pool'
)


def all_nodes(graph_def: tf.compat.v1.GraphDef) -> Iterator[Any]:
  """Yields the nodes of a graph and of its library's functions."""
  yield from graph_def.node
  for function in graph_def.library.function:
    yield from function.node_def


def is_deterministic(
  graph_def: tf.compat.v1.GraphDef, sets_resources: bool = False
) -> bool:
  """Whether a graph gives equal results each time, and does nothing else.

  Args:
    graph_def: The graph with its library of functions; all of it counts.
    sets_resources: Whether all variables and tables are set by the graph itself
      whenever it runs.

  Returns:
    False if in doubt: a graph that shuffles or draws unseeded random numbers,
    calls Python, reads files, prints, or holds state.
  """
  nodes = list(all_nodes(graph_def))
  library = {function.signature.name for function in graph_def.library.function}
  kinds = {node.op for node in nodes} - library
  return all(_is_deterministic_op(kind, sets_resources) for kind in kinds) and (
    not any(map(_asks_for_any_order, nodes))
  )


def _is_deterministic_op(kind: str, sets_resources: bool) -> bool:
  if _NOT_DETERMINISTIC_OPS.fullmatch(kind):
    return False
  definition = op_def_registry.get(kind)
  if definition is None:
    return False
  if not definition.is_stateful:
    return True
  if _DETERMINISTIC_STATEFUL_OPS.fullmatch(kind):
    return True
  return sets_resources and bool(_RESOURCE_OPS.fullmatch(kind))


def _asks_for_any_order(node: tf.compat.v1.NodeDef) -> bool:
  """Whether the elements of a data set may come in another order each time."""
  if 'deterministic' in node.attr and node.attr['deterministic'].s == b'false':
    return True
  if 'sloppy' in node.attr and node.attr['sloppy'].b:
    return True
  if node.op != 'OptionsDataset':
    return False
  options = dataset_options_pb2.Options.FromString(
    node.attr['serialized_options'].s
  )
  return (
    options.WhichOneof('optional_deterministic') is not None
    and not options.deterministic
  )
