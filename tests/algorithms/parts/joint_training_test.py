import functools

import numpy as np
import pytest

from tests.algorithms import toy_problems
from tff_pfl.algorithms.parts import joint_training
from tff_pfl.client import hparams as hparams_lib
from tff_pfl.models import weight_partition
from tff_pfl.templates import federated_round, options

pytestmark = pytest.mark.usefixtures('runtime')

_RNG = np.random.default_rng(5)
_BODY = _RNG.normal(size=[4, 2]).astype(np.float32)
_HEAD = _RNG.normal(size=[2, 3]).astype(np.float32)
_CLIENT = toy_problems.regression_examples(8, 4, 3, seed=0)
_HPARAMS = hparams_lib.LocalTrainingHParams(
  num_steps=1, learning_rate=0.1, momentum=0.0, batch_size=None
)


@functools.cache
def _process(local_layers):
  model = toy_problems.linear_network(_BODY, _HEAD)
  partition = weight_partition.WeightPartition.by_layer(model, local_layers)
  return federated_round.build_personalized_process(
    'joint',
    joint_training.joint_training_work(model, _HPARAMS, partition),
    options.ProcessOptions(),
  )


def _after_one_step():
  """Body and head after a step of gradient descent on both together."""
  outputs = 2 * (_CLIENT.x @ _BODY @ _HEAD - _CLIENT.y) / _CLIENT.y.size
  return {
    'body': _BODY - 0.1 * _CLIENT.x.T @ outputs @ _HEAD.T,
    'head': _HEAD - 0.1 * (_CLIENT.x @ _BODY).T @ outputs,
  }


@pytest.mark.parametrize(
  'local_layers', [(), ('head',), ('body',), ('body', 'head')]
)
def test_all_weights_train_and_the_local_ones_stay(local_layers):
  process = _process(local_layers)
  output = process.next(
    process.initialize(),
    process.initialize_client_states([0]),
    toy_problems.padded([_CLIENT]),
  )
  at_server = toy_problems.kernels(output.state.global_weights)
  at_client = toy_problems.kernels(output.client_states[0].local)
  assert set(at_client) == set(local_layers)
  assert set(at_server) == {'body', 'head'} - set(local_layers)
  for name, value in _after_one_step().items():
    np.testing.assert_allclose(
      {**at_server, **at_client}[name], value, rtol=1e-4
    )


@pytest.mark.parametrize(
  'local_layers', [(), ('head',), ('body',), ('body', 'head')]
)
def test_new_client_trains_exactly_its_local_weights(local_layers):
  process = _process(local_layers)
  personal = process.personalize(
    process.initialize(),
    process.initialize_client_state(0),
    toy_problems.padded([_CLIENT])[0],
  )
  initial = {'body': _BODY, 'head': _HEAD}
  # In one step the gradients of the two do not interact.
  trained = _after_one_step()
  for name, value in toy_problems.kernels(personal.weights).items():
    if name in local_layers:
      np.testing.assert_allclose(value, trained[name], rtol=1e-4)
    else:
      np.testing.assert_array_equal(value, initial[name])
