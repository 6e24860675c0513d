from tests.methods import toy_problems
from tff_pfl.core import client_computations, personalization
from tff_pfl.methods import registry


def test_personal_models_are_built_once_and_when_first_used(monkeypatch):
  built = []

  def build(*_):
    built.append(client_computations.PersonalModels('a', 'b', 'c', 'd'))
    return built[0]

  monkeypatch.setattr(client_computations, 'build_personal_models', build)
  process = registry.build('fed_avg', toy_problems.classifier())
  assert not built
  assert process.personalize == 'a'
  assert process.model_without_data == 'b'
  assert process.evaluate == 'c'
  assert process.evaluate_clients == 'd'
  assert len(built) == 1


def test_personalization_may_be_chosen_after_a_process_is_built(runtime):
  model = toy_problems.classifier()
  options = personalization.Personalization(fine_tune='all', num_steps=2)
  expected = registry.build('fed_avg', model, personalization=options)
  process = registry.build('fed_avg', model)
  tuned = process.with_personalization(options)
  assert tuned.next is process.next
  assert tuned.initialize is process.initialize
  assert tuned.description == expected.description != process.description
  state = runtime.run(process.initialize)
  client_state = process.initialize_client_state(0)
  (examples,) = toy_problems.padded([toy_problems.labeled_examples(6, seed=1)])
  scores = [
    runtime.run(of.evaluate, state, client_state, examples, examples)
    for of in (tuned, expected, process)
  ]
  toy_problems.assert_same(scores[0], scores[1])
  assert toy_problems.differ(scores[0], scores[2])


def test_initial_states_of_many_clients_are_those_of_each(runtime):
  del runtime
  process = registry.build('fed_rep', toy_problems.classifier())
  indices = [5, 0, 2**40]
  states = process.initialize_client_states(indices)
  for index, state in zip(indices, states):
    toy_problems.assert_same(state, process.initialize_client_state(index))
    assert state.client_index == index
    assert state.num_rounds == 0
