"""All that this library takes from TensorFlow and TFF beyond their public API.

Another version of either may move or change these; what then breaks is found
here. Other modules import from this one.
"""

from tensorflow.python.eager import cancellation as tf_cancellation
from tensorflow.python.eager import context as eager_context
from tensorflow.python.eager import execute as eager_execute
from tensorflow.python.framework import op_def_registry
from tensorflow.python.framework.function_def_to_graph import (
  function_def_to_graph,
)
from tensorflow.python.ops.parallel_for.pfor import (
  RegisterPFor,
  wrap,
)
from tensorflow.python.ops.parallel_for.pfor import (
  _pfor_converter_registry as pfor_converters,
)
from tensorflow_federated.proto.v0 import (
  computation_pb2,
  executor_pb2,
  executor_pb2_grpc,
)
from tensorflow_federated.python.core.backends.mapreduce import (
  compiler as mapreduce_compiler,
)
from tensorflow_federated.python.core.backends.test import (
  compiler as test_compiler,
)
from tensorflow_federated.python.core.impl.compiler import (
  array,
  building_block_factory,
  intrinsic_defs,
  transformation_utils,
  tree_analysis,
)
from tensorflow_federated.python.core.impl.executors import cardinalities_utils
from tensorflow_federated.python.core.impl.types import type_conversions
from tensorflow_federated.python.core.impl.utils import tensorflow_utils

__all__ = [
  # TensorFlow: ends functions that are under way.
  'tf_cancellation',
  # Calls functions without Python's layers, and unloads them.
  'eager_context',
  'eager_execute',
  # Which operations are stateful.
  'op_def_registry',
  # Vectorizing: graphs of functions that come in a library, further rules.
  'function_def_to_graph',
  'RegisterPFor',
  'pfor_converters',
  'wrap',
  # TFF: what it and its workers say to each other.
  'executor_pb2',
  'executor_pb2_grpc',
  # TFF: computations as they are sent.
  'computation_pb2',
  # Compiling: local computations to one graph, secure sums to open ones.
  'mapreduce_compiler',
  'test_compiler',
  # Looking into computations and building them.
  'building_block_factory',
  'intrinsic_defs',
  'transformation_utils',
  'tree_analysis',
  # Arguments and results: numbers, client lists, data sets.
  'array',
  'cardinalities_utils',
  'tensorflow_utils',
  'type_conversions',
]
