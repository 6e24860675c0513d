from tests.algorithms import toy_problems
from tff_pfl.algorithms import registry


def test_initial_states_of_many_clients_are_those_of_each(runtime):
  del runtime
  process = registry.build('fed_rep', toy_problems.classifier())
  indices = [5, 0, 2**40]
  states = process.initialize_client_states(indices)
  for index, state in zip(indices, states):
    toy_problems.assert_same(state, process.initialize_client_state(index))
    assert state.client_index == index
    assert state.num_rounds == 0
