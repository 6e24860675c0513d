import collections
import dataclasses

import numpy as np
import pytest

from tests.methods import toy_problems
from tff_pfl.methods import fed_sa_lora, registry

_BODY, _HEAD = toy_problems.BODY, toy_problems.HEAD
_CLIENTS = toy_problems.DEEP_CLIENTS
_RATE = 0.1


def test_rounds_by_hand():
  process = toy_problems.deep_linear(
    'fed_sa_lora', num_steps=2, learning_rate=_RATE, rank=1, scaling=2.0
  )

  def rounds():
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
      yield {
        'global_weights': {'body/kernel/shared': shared},
        'local': [
          {'body/kernel/personal': b, 'head': head}
          for b, head in zip(personal, heads)
        ],
        'models': [
          {'body': _BODY + 2 * shared @ b, 'head': head}
          for b, head in zip(personal, heads)
        ],
      }

  state, states, _ = toy_problems.check_rounds(process, _CLIENTS, rounds())
  # Nothing else is kept by the server or sent.
  assert list(state.global_weights) == ['body/kernel/shared']
  assert process.bytes_per_round.up == 4 * 4
  assert list(states[0].local) == ['body/kernel/personal', 'head/kernel']


def test_only_dense_layers_and_a_trained_head_change_from_the_given_network():
  model = toy_problems.classifier_from(toy_problems.dropout_and_normalization())
  # As a run does that starts from the model of another.
  given = collections.OrderedDict(
    (name, value + 1) for name, value in model.initial_weights.items()
  )
  model = dataclasses.replace(model, initial_weights=given)
  process = registry.build('fed_sa_lora', model, rank=2)
  toy_problems.assert_same(
    process.model_without_data(process.initialize()), given
  )
  clients = [toy_problems.labeled_examples(12, 0)]
  state, states, _ = toy_problems.train(process, clients)
  (weights,) = toy_problems.personal_models(process, state, states)
  changed = [
    name
    for name, value in given.items()
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
