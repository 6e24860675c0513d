import collections

import numpy as np
import pytest
import tensorflow as tf

from tests.methods import toy_problems
from tests.runs import clients
from tff_pfl.methods import registry
from tff_pfl.models import domain_models
from tff_pfl.runs import ensemble

_RNG = np.random.default_rng(4)


@pytest.fixture(scope='module', name='fed_per')
def _fed_per():
  body, head = (
    _RNG.normal(size=shape).astype(np.float32) for shape in ([5, 4], [4, 3])
  )
  return registry.build('fed_per', toy_problems.linear_classifier(body, head))


def _labeled(sizes, seed):
  return [
    toy_problems.labeled_examples(n, seed + i) for i, n in enumerate(sizes)
  ]


def _trained(process, runtime, known, num_rounds=1):
  """The state and the clients' states, of whom the last took no part."""
  state = runtime.run(process.initialize)
  states = runtime.run(
    process.initialize_client_states, list(range(len(known)))
  )
  data = toy_problems.padded(known)
  for _ in range(num_rounds):
    output = runtime.run(process.next, state, states[:-1], data[:-1])
    state, states = output.state, [*output.client_states, states[-1]]
  return state, states


def _scores(process, runtime, known, new, state, states, members=None):
  return ensemble.evaluate_clients(
    process,
    runtime,
    state,
    lambda indices: [states[index] for index in indices],
    clients.Clients(known, known),
    clients.Clients(new, new),
    members,
  )


def _softmax(values):
  exponentials = np.exp(values - values.max(axis=-1, keepdims=True))
  return exponentials / exponentials.sum(axis=-1, keepdims=True)


def test_new_clients_get_the_mean_of_the_known_models_probabilities(
  runtime, fed_per
):
  # More clients than are personalized in one call, and more test examples than
  # are predicted in one.
  num_known, new_sizes = 24, (300, 0, 2)
  known = _labeled([4 + i % 3 for i in range(num_known)], 0)
  new = _labeled(new_sizes, 100)
  state, states = _trained(fed_per, runtime, known)
  rows = _scores(fed_per, runtime, known, new, state, states)

  tested = [i for i, size in enumerate(new_sizes) if size]
  assert [row['client'] for row in rows] == [f'client {i}' for i in tested]
  shared = toy_problems.kernels(state.global_weights)['body']
  for row, index in zip(rows, tested):
    probabilities = np.mean(
      [
        _softmax(new[index].x @ shared @ toy_problems.kernels(s.local)['head'])
        for s in states[:-1]
      ],
      axis=0,
    )
    y = new[index].y
    assert row['num_test_examples'] == new_sizes[index]
    assert row['num_models'] == num_known - 1
    np.testing.assert_allclose(
      row['after']['accuracy'],
      np.mean(np.argmax(probabilities, axis=-1) == y),
      rtol=1e-6,
    )
    np.testing.assert_allclose(
      row['after']['loss'],
      -np.mean(np.log(probabilities[np.arange(len(y)), y])),
      rtol=1e-4,
    )


def test_regression_takes_the_mean_of_the_outputs(runtime):
  body = _RNG.normal(size=[4, 2]).astype(np.float32)
  head = _RNG.normal(size=[2, 3]).astype(np.float32)
  process = registry.build('fed_per', toy_problems.linear_network(body, head))
  known = [toy_problems.regression_examples(6, 4, 3, seed=i) for i in range(4)]
  new = [toy_problems.regression_examples(7, 4, 3, seed=9)]
  state, states = _trained(process, runtime, known)
  (row,) = _scores(process, runtime, known, new, state, states)
  mean_head = np.mean(
    [toy_problems.kernels(s.local)['head'] for s in states[:-1]], axis=0
  )
  shared = toy_problems.kernels(state.global_weights)['body']
  np.testing.assert_allclose(
    row['after']['loss'],
    np.mean((new[0].x @ shared @ mean_head - new[0].y) ** 2),
    rtol=1e-4,
  )


def test_a_model_that_diverged_has_no_say(runtime, fed_per):
  known, new = _labeled((4, 5, 6), 0), _labeled((8,), 50)
  state, states = _trained(fed_per, runtime, known)
  broken = states[0]._replace(
    local=tf.nest.map_structure(
      lambda value: np.full_like(value, np.nan), states[0].local
    )
  )
  (row,) = _scores(fed_per, runtime, known, new, state, [broken, *states[1:]])
  (expected,) = _scores(fed_per, runtime, known[1:], new, state, states[1:])
  assert row == expected
  assert row['num_models'] == 1


def test_some_of_the_known_clients_predict(runtime, fed_per):
  known, new = _labeled((4, 5, 6, 7), 0), _labeled((8,), 50)
  state, states = _trained(fed_per, runtime, known)
  some = [0, 2]
  rows = _scores(fed_per, runtime, known, new, state, states, some)
  known_part, states_part = ([x[i] for i in some] for x in (known, states))
  assert rows == _scores(fed_per, runtime, known_part, new, state, states_part)
  assert rows[0]['num_models'] == 2
  assert rows != _scores(fed_per, runtime, known, new, state, states)


def test_it_takes_a_trained_model_and_a_test_example(runtime, fed_per):
  known, nobody = _labeled((4, 5), 0), _labeled((0,), 7)
  state, states = _trained(fed_per, runtime, known, num_rounds=0)
  assert not _scores(fed_per, runtime, known, nobody, state, states)
  with pytest.raises(ensemble.NoModelsError, match='finite model'):
    _scores(fed_per, runtime, known, known, state, states)


def test_fine_tuned_models_predict_as_such(runtime):
  # Per-FedAvg's clients keep nothing; their models need their data.
  process = registry.build(
    'per_fed_avg', toy_problems.classifier(), variant='first_order'
  )
  known, new = _labeled((4, 5, 6), 0), _labeled((8,), 50)
  state, states = _trained(process, runtime, known)
  (row,) = _scores(process, runtime, known, new, state, states)
  data = toy_problems.padded(known)
  probabilities = []
  for client_state, examples_of in zip(states[:-1], data):
    weights = runtime.run(
      process.personalize, state, client_state, examples_of
    ).weights
    outputs, _ = process.model.forward(weights, tf.constant(new[0].x))
    probabilities.append(_softmax(np.asarray(outputs)))
  mean = np.mean(probabilities, axis=0)
  np.testing.assert_allclose(
    row['after']['loss'],
    -np.mean(np.log(mean[np.arange(8), new[0].y])),
    rtol=1e-4,
  )


@pytest.mark.slow
def test_examples_with_domains_are_predicted_by_domain(runtime):
  model = domain_models.with_domains(
    toy_problems.classifier(), toy_problems.DOMAINS
  )
  process = registry.build(
    'fed_dar', model, toy_problems.hparams_for('fed_dar')
  )
  known = [toy_problems.in_turn(c) for c in _labeled((6, 7, 8), 0)]
  (of_new,) = _labeled((9,), 50)
  new = toy_problems.in_turn(of_new)
  state, states = _trained(process, runtime, known)
  (row,) = _scores(process, runtime, known, [new], state, states)
  # All clients' models are the global one.
  outputs, _ = process.model.forward(
    runtime.run(
      process.personalize, state, states[0], toy_problems.padded(known)[0]
    ).weights,
    collections.OrderedDict(
      inputs=tf.constant(new.x), domain=tf.constant(new.domain)
    ),
  )
  expected = _softmax(np.asarray(outputs))[np.arange(9), new.y]
  np.testing.assert_allclose(
    row['after']['loss'], -np.mean(np.log(expected)), rtol=1e-4
  )
