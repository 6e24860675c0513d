import collections

import numpy as np
import pytest
import tensorflow_federated as tff

from tests.algorithms import toy_problems
from tff_pfl.algorithms import registry
from tff_pfl.templates import (
  personal_models,
  personalization,
  personalized_process,
)

_STATE = tff.FederatedType(np.int32, tff.SERVER)
_CLIENT_STATES = tff.FederatedType(np.int64, tff.CLIENTS)
_DATA = tff.FederatedType(np.float32, tff.CLIENTS)


@tff.federated_computation
def _initialize():
  return tff.federated_value(0, tff.SERVER)


@tff.tensorflow.computation(np.int64)
def _initialize_client_state(client_index):
  return client_index


@tff.federated_computation(_STATE, _CLIENT_STATES, _DATA)
def _next(state, client_states, data):
  del data
  return state, client_states, state


def _process(**replaced):
  arguments = {
    'name': 'none',
    'model': None,
    'initialize': _initialize,
    'initialize_client_state': _initialize_client_state,
    'next_fn': _next,
    'personal_models': lambda: None,
    'learning_process': lambda: None,
    'has_global_model': True,
    'has_local_weights': False,
    'adapts_known_clients': False,
    'bytes_per_round': personalized_process.BytesPerRound(0, 0),
    'seed': 0,
    'description': {},
    'adaptation': personalization.NO_ADAPTATION,
  }
  return personalized_process.PersonalizedProcess(**{**arguments, **replaced})


def test_well_typed_process_keeps_its_computations():
  process = _process()
  assert process.initialize is _initialize
  assert process.initialize_client_state is _initialize_client_state
  assert process.next is _next


def test_personal_models_are_built_once_and_when_first_used():
  built = []

  def build():
    built.append(personal_models.PersonalModels('a', 'b', 'c'))
    return built[0]

  process = _process(personal_models=build)
  assert not built
  assert process.personalize == 'a'
  assert process.evaluate == 'b'
  assert process.evaluate_clients == 'c'
  assert len(built) == 1


@tff.federated_computation(_STATE, _CLIENT_STATES, _DATA)
def _next_with_another_server_state(state, client_states, data):
  del data
  return tff.federated_value(0.5, tff.SERVER), client_states, state


@tff.federated_computation(_STATE, _CLIENT_STATES, _DATA)
def _next_with_other_client_states(state, client_states, data):
  return state, data, client_states


@tff.federated_computation(_STATE, _CLIENT_STATES)
def _next_without_data(state, client_states):
  return state, client_states, state


@tff.federated_computation(_STATE, _CLIENT_STATES, _DATA)
def _next_without_metrics(state, client_states, data):
  del data
  return state, client_states


@pytest.mark.parametrize(
  ('next_fn', 'message'),
  [
    (_next_with_another_server_state, 'first return argument of `next_fn`'),
    (
      _next_with_other_client_states,
      '`next` to take the client states that it returns',
    ),
    (_next_without_data, '`next` to take <state, client states, examples>'),
    (_next_without_metrics, '`next` to return <state, client states, metrics>'),
  ],
)
def test_ill_typed_next_is_refused(next_fn, message):
  with pytest.raises(TypeError, match=message):
    _process(next_fn=next_fn)


@tff.tensorflow.computation(np.int64)
def _initialize_another_client_state(client_index):
  return client_index, client_index


def test_client_state_that_does_not_fit_next_is_refused():
  with pytest.raises(TypeError, match='`initialize_client_state`'):
    _process(initialize_client_state=_initialize_another_client_state)


@pytest.mark.parametrize(
  ('has_local_weights', 'adapts_known_clients', 'new', 'known'),
  [
    (False, False, False, False),
    (True, False, True, False),
    (False, True, True, True),
    (True, True, True, True),
  ],
)
def test_training_data_is_needed_to_fit_or_to_adapt(
  has_local_weights, adapts_known_clients, new, known
):
  process = _process(
    has_local_weights=has_local_weights,
    adapts_known_clients=adapts_known_clients,
  )
  state = personalized_process.ClientState(
    np.int64(3), np.int32(0), collections.OrderedDict()
  )
  assert process.needs_training_data(state) is new
  assert process.needs_training_data(state._replace(num_rounds=2)) is known


def test_initial_states_of_many_clients_are_those_of_each(runtime):
  del runtime
  process = registry.build('fed_rep', toy_problems.classifier())
  indices = [5, 0, 2**40]
  states = process.initialize_client_states(indices)
  for index, state in zip(indices, states):
    toy_problems.assert_same(state, process.initialize_client_state(index))
    assert state.client_index == index
    assert state.num_rounds == 0
