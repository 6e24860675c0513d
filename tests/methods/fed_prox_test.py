from tests.methods import toy_problems

_INITIAL, _STRENGTH = toy_problems.KERNEL, 0.7


def test_steps_by_hand():
  process = toy_problems.linear(
    'fed_prox', num_steps=3, learning_rate=0.1, proximal_strength=_STRENGTH
  )
  models = [
    toy_problems.descended(
      lambda weight, client=client: (
        toy_problems.squared_error_gradient(weight, client)
        + _STRENGTH * (weight - _INITIAL)
      ),
      *(_INITIAL, 3, 0.1),
    )
    for client in toy_problems.CLIENTS
  ]
  mean = toy_problems.weighted_mean(models, toy_problems.CLIENTS)
  toy_problems.check_rounds(
    process, toy_problems.CLIENTS, [{'global_weights': {'head': mean}}]
  )
