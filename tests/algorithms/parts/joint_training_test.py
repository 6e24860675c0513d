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
  trained = toy_problems.descended_together(_BODY, _HEAD, _CLIENT, 1, 0.1)
  return dict(zip(('body', 'head'), trained))


_any_layers = pytest.mark.parametrize(
  'local_layers', [(), ('head',), ('body',), ('body', 'head')]
)


@_any_layers
def test_all_weights_train_and_the_local_ones_stay(local_layers):
  state, (client_state,), _ = toy_problems.train(
    _process(local_layers), [_CLIENT]
  )
  at_server = toy_problems.kernels(state.global_weights)
  at_client = toy_problems.kernels(client_state.local)
  assert set(at_client) == set(local_layers)
  assert set(at_server) == {'body', 'head'} - set(local_layers)
  toy_problems.assert_kernels(
    {**state.global_weights, **client_state.local}, **_after_one_step()
  )


@_any_layers
def test_new_client_trains_exactly_its_local_weights(local_layers):
  process = _process(local_layers)
  personal = toy_problems.new_client(process, process.initialize(), _CLIENT)
  initial = {'body': _BODY, 'head': _HEAD}
  # In one step the gradients of the two do not interact.
  trained = _after_one_step()
  for name, value in toy_problems.kernels(personal.weights).items():
    if name in local_layers:
      np.testing.assert_allclose(value, trained[name], rtol=1e-4)
    else:
      np.testing.assert_array_equal(value, initial[name])
