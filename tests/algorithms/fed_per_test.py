import functools

import numpy as np
import pytest

from tests.algorithms import toy_problems
from tff_pfl.algorithms import fed_per, lg_fed_avg
from tff_pfl.models import zoo

pytestmark = pytest.mark.usefixtures('runtime')

_RNG = np.random.default_rng(8)
_BODY = _RNG.normal(size=[4, 2]).astype(np.float32)
_HEAD = _RNG.normal(size=[2, 3]).astype(np.float32)
_CLIENTS = [toy_problems.regression_examples(n, 4, 3, seed=n) for n in (6, 20)]


@functools.cache
def _process():
  return fed_per.build_fed_per(
    toy_problems.linear_network(_BODY, _HEAD),
    fed_per.FedPerHParams(
      num_steps=3, learning_rate=0.1, momentum=0.5, batch_size=None
    ),
  )


def test_rounds_are_those_of_the_paper():
  body, heads = _BODY, [_HEAD, _HEAD]
  for state, states, _ in toy_problems.rounds(
    _process(), _CLIENTS, [(0, 1), (0, 1)]
  ):
    bodies, heads = zip(
      *[
        toy_problems.descended_together(body, head, client, 3, 0.1, 0.5)
        for client, head in zip(_CLIENTS, heads)
      ]
    )
    body = toy_problems.weighted_mean(bodies, _CLIENTS)
    toy_problems.assert_kernels(state.global_weights, body=body)
    for client_state, head in zip(states, heads):
      toy_problems.assert_kernels(client_state.local, head=head)


def test_new_client_fits_only_its_head():
  process = _process()
  client = _CLIENTS[0]
  personal = toy_problems.new_client(process, process.initialize(), client)
  head = toy_problems.descended(
    lambda head: toy_problems.gradients(_BODY, head, client)[1],
    _HEAD,
    num_steps=3,
    learning_rate=0.1,
    momentum=0.5,
  )
  np.testing.assert_array_equal(personal.weights['body/kernel'], _BODY)
  toy_problems.assert_kernels(personal.weights, head=head)


@pytest.mark.parametrize('number', [1, 2])
def test_the_cut_may_be_anywhere(number):
  """LG-FedAvg with the same cut keeps what FedPer shares."""
  network = zoo.mlp(toy_problems.classifier().element_spec, 3, widths=(4, 2))
  process = fed_per.build_fed_per(
    network, fed_per.FedPerHParams(local_depth=number)
  )
  shared = set(process.initialize().global_weights)
  layers = ('dense_1', 'dense_2', 'head')[: 3 - number]
  assert shared == set(network.weight_names(layers))
  mirrored = lg_fed_avg.build_lg_fed_avg(
    network, lg_fed_avg.LgFedAvgHParams(global_depth=number)
  )
  (state,) = mirrored.initialize_client_states([0])
  assert set(state.local) == shared


@pytest.mark.parametrize('number', [0, 2])
def test_a_cut_leaves_layers_on_both_sides(number):
  with pytest.raises(ValueError, match=r'`local_depth` .* in \[1, 1\]'):
    fed_per.build_fed_per(
      toy_problems.linear_network(_BODY, _HEAD),
      fed_per.FedPerHParams(local_depth=number),
    )
