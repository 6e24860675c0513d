"""Rounds and newcomers where all weights train together, by hand."""

import numpy as np
import pytest

from tests.methods import toy_problems
from tff_pfl.methods import registry

pytestmark = pytest.mark.usefixtures('runtime')

_RNG = np.random.default_rng(5)
_BODY = _RNG.normal(size=[4, 5]).astype(np.float32)
_HEAD = _RNG.normal(size=[5, 3]).astype(np.float32)
_CLIENTS = [toy_problems.regression_examples(n, 4, 3, seed=n) for n in (6, 20)]
_SOME = np.array([False, True, True, False, True])


@pytest.mark.parametrize(
  ('name', 'options', 'local_body', 'local_head'),
  [
    ('fed_avg', {}, False, False),
    ('fed_per', {}, False, True),
    ('lg_fed_avg', {}, True, False),
    ('local_only', {}, True, True),
    ('fed_split', {'personal_elements': 'body:1-2,body:4'}, _SOME, False),
    ('fed_alt', {'updates': 'simultaneous', 'personal': 'input'}, True, False),
  ],
)
def test_all_weights_train_and_the_local_ones_stay(
  name, options, local_body, local_head
):
  hparams = toy_problems.hparams_for(
    name, num_steps=3, learning_rate=0.1, batch_size=None, **options
  )
  model = toy_problems.linear_network(_BODY, _HEAD)
  process = registry.build(name, model, hparams)
  bodies, heads = [_BODY] * 2, [_HEAD] * 2
  for state, states, _ in toy_problems.rounds(process, _CLIENTS, [(0, 1)] * 2):
    ends = [
      toy_problems.descended_together(*start, client, 3, 0.1, 0.5)
      for *start, client in zip(bodies, heads, _CLIENTS)
    ]
    body, head = (
      toy_problems.weighted_mean(part, _CLIENTS) for part in zip(*ends)
    )
    bodies = [np.where(local_body, own, body) for own, _ in ends]
    heads = [np.where(local_head, own, head) for _, own in ends]
    models = toy_problems.personal_models(process, state, states)
    for weights, *expected in zip(models, bodies, heads):
      toy_problems.assert_kernels(weights, body=expected[0], head=expected[1])
  # Nothing is at both places, or at the wrong one.
  for values, is_local in ((state.global_weights, 0), (states[0].local, 1)):
    sizes = {layer: v.size for layer, v in toy_problems.kernels(values).items()}
    expected = {
      'body': 4 * np.sum(np.broadcast_to(local_body, 5) == is_local),
      'head': 15 * (local_head == is_local),
    }
    assert sizes == {layer: size for layer, size in expected.items() if size}
  # A newcomer trains what is local, with the rest frozen.
  new = toy_problems.new_client(process, process.initialize(), _CLIENTS[0])
  body, head = toy_problems.descended_together(
    _BODY, _HEAD, _CLIENTS[0], 3, 0.1, 0.5, trained=(local_body, local_head)
  )
  toy_problems.assert_kernels(new.weights, body=body, head=head)
