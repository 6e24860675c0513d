import collections
import dataclasses
import functools

import numpy as np
import pytest

from tests.methods import toy_problems
from tff_pfl.methods import fed_sa_lora, registry

pytestmark = pytest.mark.usefixtures('runtime')

_BODY = np.array([[0.3, -0.2], [0.1, 0.5]], np.float32)
_HEAD = np.array([[1.0], [-2.0]], np.float32)
_CLIENTS = [toy_problems.regression_examples(n, 2, 1, n) for n in (4, 12)]
_RATE = 0.1


@functools.cache
def _trained():
  """The process, and the states after two rounds of two full-batch steps."""
  process = toy_problems.full_batches(
    'fed_sa_lora',
    toy_problems.linear_network(_BODY, _HEAD),
    num_steps=2,
    learning_rate=_RATE,
    rank=1,
    scaling=2.0,
  )
  return process, *toy_problems.train(process, _CLIENTS, 2)[:2]


def test_steps_by_hand():
  process, state, states = _trained()
  shared = process.initialize().global_weights['body/kernel/shared']
  personal, heads = [np.zeros([1, 2])] * 2, [_HEAD] * 2
  for _ in range(2):
    sent = []
    for i, client in enumerate(_CLIENTS):
      a = shared
      for _ in range(2):
        kernel, of_head = toy_problems.gradients(
          _BODY + 2 * a @ personal[i], heads[i], client
        )
        a, personal[i] = (
          a - _RATE * 2 * kernel @ personal[i].T,
          personal[i] - _RATE * 2 * a.T @ kernel,
        )
        heads[i] = heads[i] - _RATE * of_head
      sent.append(a)
    shared = toy_problems.weighted_mean(sent, _CLIENTS)
  # Nothing else is kept by the server or sent.
  assert list(state.global_weights) == ['body/kernel/shared']
  assert process.bytes_per_round.up == 2 * 4
  close = functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-6)
  close(state.global_weights['body/kernel/shared'], shared)
  models = toy_problems.personal_models(process, state, states)
  for client_state, weights, b, head in zip(states, models, personal, heads):
    local = client_state.local
    toy_problems.assert_kernels(weights, body=_BODY + 2 * shared @ b, head=head)
    assert list(local) == ['body/kernel/personal', 'head/kernel']
    close(local['body/kernel/personal'], b)
    close(local['head/kernel'], head)


def test_starts_as_the_network_that_it_is_given():
  # As a run does that starts from the model of another.
  model = toy_problems.linear_network(_BODY, _HEAD)
  given = collections.OrderedDict(
    (name, value + 1) for name, value in model.initial_weights.items()
  )
  process = registry.build(
    'fed_sa_lora', dataclasses.replace(model, initial_weights=given)
  )
  toy_problems.assert_same(
    process.model_without_data(process.initialize()), given
  )


def test_only_dense_layers_and_a_trained_head_change():
  model = toy_problems.classifier_from(toy_problems.dropout_and_normalization())
  process = registry.build('fed_sa_lora', model)
  clients = [toy_problems.labeled_examples(12, 0)]
  state, states, _ = toy_problems.train(process, clients)
  (weights,) = toy_problems.personal_models(process, state, states)
  changed = [
    name
    for name, value in model.initial_weights.items()
    if toy_problems.differ(weights[name], value)
  ]
  assert changed == ['dense/kernel', 'head/kernel', 'head/bias']


@pytest.mark.parametrize(
  ('changes', 'adapted'),
  [
    ({}, ['dense_1/kernel']),
    ({'train_head': False}, ['dense_1/kernel', 'head/kernel']),
    ({'train_head': False, 'adapted_layers': ' head'}, ['head/kernel']),
    ({'adapted_layers': 'head'}, "dense_1.*'head'"),
    ({'adapted_layers': 'dense_1,nothing'}, "dense_1.*'nothing'"),
  ],
)
def test_layers_to_adapt_are_found_by_kind(changes, adapted):
  hparams = fed_sa_lora.FedSaLoraHParams(**changes)
  model = toy_problems.classifier()
  if isinstance(adapted, str):
    with pytest.raises(ValueError, match=f'adapted_layers.*{adapted}'):
      fed_sa_lora.adapted_kernels(model, hparams)
  else:
    assert fed_sa_lora.adapted_kernels(model, hparams) == adapted


def test_network_without_dense_layers_below_its_head_is_refused():
  model = toy_problems.classifier_from(
    toy_problems.convolutional_and_recurrent()
  )
  assert {'conv', 'lstm'} < set(model.units)
  with pytest.raises(ValueError, match='adapted_layers.*the model has none'):
    registry.build('fed_sa_lora', model)
