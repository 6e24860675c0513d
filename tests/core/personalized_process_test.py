from tests.methods import toy_problems
from tff_pfl.core import personal_models
from tff_pfl.methods import registry


def test_personal_models_are_built_once_and_when_first_used(monkeypatch):
  built = []

  def build(*_):
    built.append(personal_models.PersonalModels('a', 'b', 'c', 'd'))
    return built[0]

  monkeypatch.setattr(personal_models, 'build_personal_models', build)
  process = registry.build('fed_avg', toy_problems.classifier())
  assert not built
  assert process.personalize == 'a'
  assert process.model_without_data == 'b'
  assert process.evaluate == 'c'
  assert process.evaluate_clients == 'd'
  assert len(built) == 1


def test_initial_states_of_many_clients_are_those_of_each(runtime):
  del runtime
  process = registry.build('fed_rep', toy_problems.classifier())
  indices = [5, 0, 2**40]
  states = process.initialize_client_states(indices)
  for index, state in zip(indices, states):
    toy_problems.assert_same(state, process.initialize_client_state(index))
    assert state.client_index == index
    assert state.num_rounds == 0
