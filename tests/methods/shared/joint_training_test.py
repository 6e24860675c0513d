"""Rounds and newcomers where all weights train together, by hand."""

import numpy as np
import pytest

from tests.methods import toy_problems
from tff_pfl.methods import registry
from tff_pfl.models import zoo

_RNG = np.random.default_rng(5)
_BODY = _RNG.normal(size=[4, 5]).astype(np.float32)
_HEAD = _RNG.normal(size=[5, 3]).astype(np.float32)
_CLIENTS = [toy_problems.regression_examples(n, 4, 3, seed=n) for n in (6, 20)]
_SOME = np.array([False, True, True, False, True])


@pytest.mark.parametrize(
  ('name', 'options', 'local_body', 'local_head'),
  [
    ('fed_per', {}, False, True),
    ('lg_fed_avg', {}, True, False),
    ('local_only', {}, True, True),
    ('fed_split', {'personal_elements': 'body:1-2,body:4'}, _SOME, False),
  ],
)
def test_all_weights_train_and_the_local_ones_stay(
  name, options, local_body, local_head
):
  model = toy_problems.linear_network(_BODY, _HEAD)
  process = toy_problems.full_batches(
    name, model, num_steps=3, learning_rate=0.1, momentum=0.5, **options
  )

  def newcomer(body, head):
    """Trains what is local from the initial one, with the rest frozen."""
    start = np.where(local_body, _BODY, body), np.where(local_head, _HEAD, head)
    body, head = toy_problems.descended_together(
      *(*start, _CLIENTS[0], 3, 0.1, 0.5), trained=(local_body, local_head)
    )
    return {'body': body, 'head': head}

  def rounds():
    bodies, heads = [_BODY] * 2, [_HEAD] * 2
    for _ in range(2):
      ends = [
        toy_problems.descended_together(*start, client, 3, 0.1, 0.5)
        for *start, client in zip(bodies, heads, _CLIENTS)
      ]
      body, head = (
        toy_problems.weighted_mean(part, _CLIENTS) for part in zip(*ends)
      )
      bodies = [np.where(local_body, own, body) for own, _ in ends]
      heads = [np.where(local_head, own, head) for _, own in ends]
      yield {
        'models': [{'body': b, 'head': h} for b, h in zip(bodies, heads)],
        'new': [newcomer(body, head)],
      }

  state, states, _ = toy_problems.check_rounds(process, _CLIENTS, rounds())
  # Nothing is at both places, or at the wrong one.
  for values, is_local in ((state.global_weights, 0), (states[0].local, 1)):
    sizes = {layer: v.size for layer, v in toy_problems.kernels(values).items()}
    expected = {
      'body': 4 * np.sum(np.broadcast_to(local_body, 5) == is_local),
      'head': 15 * (local_head == is_local),
    }
    assert sizes == {layer: size for layer, size in expected.items() if size}


def test_the_cut_may_be_anywhere():
  """LG-FedAvg with the same cut keeps what FedPer shares."""
  network = zoo.mlp(toy_problems.classifier().element_spec, 3, widths=(4, 2))
  work, mirrored = (
    registry.ALGORITHMS[name].work(
      network, toy_problems.hparams_for(name, **depth)
    )
    for name, depth in (
      ('fed_per', {'local_depth': 2}),
      ('lg_fed_avg', {'global_depth': 2}),
    )
  )
  shared = set(work.initial_global)
  assert shared == set(network.weight_names(['dense_1']))
  assert set(mirrored.initial_local) == shared
