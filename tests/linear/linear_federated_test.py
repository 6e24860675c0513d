import collections

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.linear import arrays
from tff_pfl.linear import federated, methods, simulation
from tff_pfl.linear import problem as problem_lib

_OPTIONS = {'fed_avg': {'num_local_steps': 3}, 'fed_sgd': {'batch_size': 4}}


def _problem(**kwargs):
  return problem_lib.make_problem(3, 6, 2, noise_std=0.1, seed=2, **kwargs)


def _initial():
  return arrays.initial_model(6, 2)


def _run(runtime, process, problem, num_rounds):
  state = runtime.run(process.initialize)
  client_states = [
    runtime.run(process.initialize_client_state, index)
    for index in range(problem.num_clients)
  ]
  losses = []
  for round_number in range(num_rounds):
    samples = [
      problem_lib.LinearSamples(x.numpy(), y.numpy())
      for x, y in zip(*problem.samples(round_number))
    ]
    output = runtime.run(process.next, state, client_states, samples)
    state, client_states = output.state, output.client_states
    losses.append(output.metrics['loss'])
  return state, client_states, losses


_FIXED = {'samples_per_client': 5}
_FRESH = {'samples_per_client': 5, 'fresh_samples': True}


@pytest.mark.parametrize(
  'name, sampling',
  [
    *((name, _FIXED) for name in methods.METHODS),
    ('fed_rep', _FRESH),
    ('fed_sgd', _FRESH),
    ('fed_avg', {}),
  ],
)
def test_federated_rounds_equal_the_simulation(runtime, name, sampling):
  problem = _problem(**sampling)
  method = methods.METHODS[name](0.1, **_OPTIONS.get(name, {}))
  process = federated.build_process(
    method, _initial(), problem.num_rows, seed=7
  )
  state, client_states, losses = _run(runtime, process, problem, 4)
  history = simulation.run(method, problem, 4, initial=_initial(), seed=7)
  close = {'rtol': 1e-12, 'atol': 1e-12}

  assert state.round_number == 4
  if 'representation' in method.shared_names:
    np.testing.assert_allclose(
      state.shared['representation'], history.representation, **close
    )
  else:
    np.testing.assert_allclose(
      [client.local['representation'] for client in client_states],
      history.representation,
      **close,
    )
  if 'head' in method.shared_names:
    np.testing.assert_allclose(state.shared['head'], history.head, **close)
  else:
    np.testing.assert_allclose(
      [client.local['head'] for client in client_states],
      history.client_heads,
      **close,
    )
  if not problem.fresh_samples:
    np.testing.assert_allclose(losses, history.loss[:-1], **close)


@pytest.mark.parametrize('name', list(methods.METHODS))
def test_what_is_local_never_reaches_the_server(name):
  method = methods.METHODS[name](0.1)
  process = federated.build_process(method, _initial(), 12)
  assert method.name == name
  signature = process.next.type_signature
  types = {
    'representation': tff.TensorType(np.float64, [6, 2]),
    'head': tff.TensorType(np.float64, [2]),
  }

  assert signature.result.state.member.shared == tff.to_type(
    collections.OrderedDict((n, types[n]) for n in method.shared_names)
  )
  assert signature.result.client_states.member.local == tff.to_type(
    collections.OrderedDict((n, types[n]) for n in method.local_names)
  )
  assert sorted(method.shared_names + method.local_names) == sorted(types)
  assert signature.result.metrics == tff.FederatedType(
    collections.OrderedDict(loss=np.float64), tff.SERVER
  )
  assert signature.result.client_states.placement is tff.CLIENTS


def test_rounds_are_a_tff_iterative_process():
  process = federated.build_process(methods.d_gd(0.1), _initial(), 5)

  iterative = tff.templates.IterativeProcess(process.initialize, process.next)
  assert iterative.next is process.next


def test_shared_parts_are_aggregated_by_means_alone():
  process = federated.build_process(methods.fed_rep(0.1), _initial(), 5)
  text = process.next.to_building_block().compact_representation()

  assert text.count('federated_mean') == 2
  assert 'federated_collect' not in text


def test_too_few_samples_for_an_exact_head_are_refused():
  with pytest.raises(ValueError, match='at least 2 for fed_rep'):
    federated.build_process(methods.fed_rep(0.1), _initial(), 1)


def test_sequences_of_numbers_are_no_initial_model():
  with tf.Graph().as_default(), pytest.raises(TypeError, match='LinearModel'):
    federated.build_process(methods.d_gd(0.1), [[1.0]], 1)
