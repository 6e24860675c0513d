from tests.methods import toy_problems

_CLIENTS = toy_problems.DEEP_CLIENTS


def test_body_is_trained_under_the_initial_head_which_is_then_fine_tuned():
  process = toy_problems.deep_linear(
    'fed_babu', num_steps=2, num_fine_tune_epochs=3, learning_rate=0.05
  )
  bodies = [
    toy_problems.descended_together(
      *(toy_problems.BODY, toy_problems.HEAD, client, 2, 0.05),
      trained=(True, False),
    )[0]
    for client in _CLIENTS
  ]
  mean = toy_problems.weighted_mean(bodies, _CLIENTS)
  _, head = toy_problems.descended_together(
    *(mean, toy_problems.HEAD, _CLIENTS[0], 3, 0.05), trained=(False, True)
  )
  expected = {
    'global_weights': {'body': mean},
    'new': [{'body': mean, 'head': head}],
  }
  state, _, _ = toy_problems.check_rounds(process, _CLIENTS, [expected])
  assert list(state.global_weights) == ['body/kernel']
