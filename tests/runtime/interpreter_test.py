import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tff_pfl.runtime import graph_functions, interpreter, lowering, values

_CLIENT_FLOATS = tff.FederatedType(np.float32, tff.CLIENTS)
_PAIRS = tff.FederatedType((np.float32, np.float32), tff.CLIENTS)


class _RecordingMapper:
  """Runs clients one by one and keeps what it was asked for."""

  def __init__(self):
    self.arguments: list[values.ClientsValue] = []

  def map(self, function, argument, num_clients):
    self.arguments.append(argument)
    if argument is None:
      return values.PerClient([function() for _ in range(num_clients)])
    rows = values.rows(argument, num_clients)
    return values.PerClient([function(row) for row in rows])


@pytest.fixture(name='mapper')
def _mapper():
  return _RecordingMapper()


@pytest.fixture(name='make')
def _make(mapper):
  library = graph_functions.FunctionLibrary()
  return lambda block: interpreter.Interpreter(block, library, mapper)


@tff.tensorflow.computation(np.float32, np.float32)
def _subtract(x, y):
  return x - y


def _tensors(*numbers):
  return values.PerClient([tf.constant(n) for n in numbers])


def _numbers(clients_value, num_clients):
  return [float(t) for t in values.rows(clients_value, num_clients)]


def test_lambda_arranges_columns_around_the_function_it_calls(make, mapper):
  @tff.federated_computation(_PAIRS)
  def comp(pairs):
    return tff.federated_map(
      tff.federated_computation(
        lambda pair: (_subtract(pair[1], pair[0]), pair[0])
      ),
      pairs,
    )

  first, second = _tensors(1.0, 2.0), _tensors(3.0, 5.0)
  result = make(lowering.lower(comp)).run(values.Columns((first, second)), 2)
  (argument,) = mapper.arguments
  assert argument.columns == (second, first)
  assert _numbers(result.select(0), 2) == [2.0, 3.0]
  assert result.select(1) is first


def test_broadcast_is_passed_to_clients_once(make, mapper):
  @tff.federated_computation(
    tff.FederatedType(np.float32, tff.SERVER), _CLIENT_FLOATS
  )
  def comp(server, clients):
    return tff.federated_map(
      _subtract, (clients, tff.federated_broadcast(server))
    )

  server = tf.constant(1.0)
  result = make(lowering.lower(comp)).run((server, _tensors(3.0, 4.0)), 2)
  assert _numbers(result, 2) == [2.0, 3.0]
  (argument,) = mapper.arguments
  assert argument.columns[1].value is server
