"""Names outside the public APIs of other libraries.

New versions of these libraries may move or change them. That breaks only this
module, from which all others import them.
"""

# ruff: noqa: F401

# Keras: masks of tensors, layers' random numbers.
from keras.src.backend import get_keras_mask, set_keras_mask
from keras.src.backend.tensorflow import random as keras_random

# TensorFlow: calls of functions without Python layers, and unloading.
from tensorflow.python.eager import context as eager_context
from tensorflow.python.eager import execute as eager_execute

# Definitions of operations: statefulness and names of outputs.
from tensorflow.python.framework import op_def_registry

# Vectorization: graphs of a library's functions, additional rules.
from tensorflow.python.framework.function_def_to_graph import (
  function_def_to_graph,
)

# Eager tensors, for their conversion in graphs.
from tensorflow.python.framework.ops import _EagerTensorBase as EagerTensorBase
from tensorflow.python.ops.parallel_for.pfor import PFor, RegisterPFor, wrap
from tensorflow.python.ops.parallel_for.pfor import (
  _convert_function_call as convert_function_call,
)
from tensorflow.python.ops.parallel_for.pfor import (
  _pfor_converter_registry as pfor_converters,
)

# TFF: the workers' protocol and serialized computations.
from tensorflow_federated.proto.v0 import (
  computation_pb2,
  executor_pb2,
  executor_pb2_grpc,
)

# Compilation: local computations to one graph, secure sums to sums in clear.
from tensorflow_federated.python.core.backends.mapreduce import (
  compiler as mapreduce_compiler,
)
from tensorflow_federated.python.core.backends.test import (
  compiler as test_compiler,
)

# Analysis and construction of computations.
from tensorflow_federated.python.core.impl.compiler import (
  array,
  building_block_factory,
  transformation_utils,
  tree_analysis,
)

# Arguments: numbers of clients and datasets.
from tensorflow_federated.python.core.impl.executors import cardinalities_utils
from tensorflow_federated.python.core.impl.types import type_conversions
