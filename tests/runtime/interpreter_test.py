import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tff_pfl import errors
from tff_pfl.runtime import graph_functions, interpreter, lowering, values
from tff_pfl.runtime.private_api import building_block_factory

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


def test_lambda_at_clients_may_refer_to_a_value_outside(make):
  number = tff.framework.Literal(2.0, tff.TensorType(np.float32))
  inner = tff.framework.Lambda(
    'x',
    np.float32,
    tff.framework.Call(
      _subtract.to_compiled_building_block(),
      tff.framework.Struct(
        [
          tff.framework.Reference('x', np.float32),
          tff.framework.Reference('number', np.float32),
        ]
      ),
    ),
  )
  block = tff.framework.Lambda(
    'values',
    _CLIENT_FLOATS,
    tff.framework.Block(
      [('number', number)],
      building_block_factory.create_federated_map(
        inner, tff.framework.Reference('values', _CLIENT_FLOATS)
      ),
    ),
  )
  result = make(block).run(_tensors(3.0, 4.0), 2)
  assert _numbers(result, 2) == [1.0, 2.0]


def test_map_of_all_equal_values_computes_once(make, mapper):
  equal = tff.FederatedType((np.float32, np.float32), tff.CLIENTS, True)
  block = tff.framework.Lambda(
    'values',
    equal,
    building_block_factory.create_federated_map_all_equal(
      _subtract.to_compiled_building_block(),
      tff.framework.Reference('values', equal),
    ),
  )
  pair = (tf.constant(3.0), tf.constant(1.0))
  result = make(block).run(values.AllEqual(pair), 2)
  assert isinstance(result, values.AllEqual)
  assert float(result.value) == 2.0
  assert not mapper.arguments


def test_accumulation_that_cannot_be_a_graph_runs_client_by_client(make):
  total = tff.framework.Reference('outside', np.float32)
  pair = tff.framework.Reference('pair', tff.to_type((np.float32, np.float32)))
  accumulate = tff.framework.Lambda(
    'pair',
    pair.type_signature,
    tff.framework.Call(
      _subtract.to_compiled_building_block(),
      tff.framework.Struct(
        [
          tff.framework.Selection(pair, index=1),
          tff.framework.Selection(pair, index=0),
        ]
      ),
    ),
  )
  block = tff.framework.Lambda(
    'values',
    _CLIENT_FLOATS,
    tff.framework.Block(
      [('outside', tff.framework.Literal(5.0, tff.TensorType(np.float32)))],
      building_block_factory.create_federated_aggregate(
        tff.framework.Reference('values', _CLIENT_FLOATS),
        total,
        accumulate,
        _subtract.to_compiled_building_block(),
        building_block_factory.create_identity(tff.TensorType(np.float32)),
      ),
    ),
  )
  assert float(make(block).run(_tensors(1.0, 2.0), 2)) == 6.0


def test_unsupported_blocks_are_named_in_one_line(make):
  with pytest.raises(errors.RunError, match='Placement') as caught:
    make(tff.framework.Placement(tff.CLIENTS)).run(None, 0)
  assert '\n' not in str(caught.value)
  with pytest.raises(errors.RunError, match='refers to nobody'):
    make(tff.framework.Reference('nobody', np.float32)).run(None, 0)
