import pytest

from tests.methods import toy_problems
from tff_pfl.methods import fed_alt
from tff_pfl.models import zoo

_CLIENTS = toy_problems.DEEP_CLIENTS


def test_with_a_personal_input_layer_its_steps_come_first():
  process = toy_problems.deep_linear(
    'fed_alt',
    personal='input',
    personal_num_epochs=3,
    personal_learning_rate=0.05,
    num_epochs=2,
    learning_rate=0.1,
  )

  def rounds():
    bodies, head = [toy_problems.BODY] * 2, toy_problems.HEAD
    train = toy_problems.descended_together
    for _ in range(2):
      bodies = [
        train(body, head, client, 3, 0.05, trained=(True, False))[0]
        for body, client in zip(bodies, _CLIENTS)
      ]
      heads = [
        train(body, head, client, 2, 0.1, trained=(False, True))[1]
        for body, client in zip(bodies, _CLIENTS)
      ]
      head = toy_problems.weighted_mean(heads, _CLIENTS)
      yield {
        'global_weights': {'head': head},
        'local': [{'body': body} for body in bodies],
      }

  state, _, _ = toy_problems.check_rounds(process, _CLIENTS, rounds())
  assert list(state.global_weights) == ['head/kernel']


@pytest.mark.parametrize(
  ('personal', 'local', 'shared'),
  [
    ('output', ['head'], ['dense_1', 'dense_2']),
    ('output:2', ['dense_2', 'head'], ['dense_1']),
    ('input', ['dense_1'], ['dense_2', 'head']),
    ('input:2', ['dense_1', 'dense_2'], ['head']),
    ('dense_2', ['dense_2'], ['dense_1', 'head']),
    ('head, dense_1:1-3', ['dense_1', 'head'], ['dense_1', 'dense_2']),
  ],
)
def test_the_personal_part_may_be_any(personal, local, shared):
  model = zoo.mlp(toy_problems.classifier().element_spec, 3, widths=(4, 2))
  partition = fed_alt.personal_partition(model, personal)
  assert list(partition.local_names) == list(model.weight_names(local))
  assert partition.global_names == list(model.weight_names(shared))
  assert set(partition.divided) == set(
    model.weight_names(set(local).intersection(shared))
  )


def test_a_normalization_is_personal_by_its_name_or_with_its_layer():
  model = toy_problems.classifier_from(toy_problems.dropout_and_normalization())
  for personal, layers in (('norm', ['norm']), ('input', ['dense', 'norm'])):
    partition = fed_alt.personal_partition(model, personal)
    assert partition.local_names == model.weight_names(layers)
