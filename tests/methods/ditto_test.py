from tests.methods import toy_problems


def test_rounds_by_hand():
  process = toy_problems.linear(
    'ditto',
    num_epochs=1,
    learning_rate=0.1,
    proximal_strength=0.8,
    personal_num_epochs=2,
    personal_learning_rate=0.05,
  )

  def rounds():
    shared = toy_problems.KERNEL
    personal = [shared] * 2
    for _ in range(2):
      slopes = []
      for i, client in enumerate(toy_problems.CLIENTS):
        slopes.append(toy_problems.squared_error_gradient(shared, client))
        for _ in range(2):
          slope = toy_problems.squared_error_gradient(personal[i], client)
          slope = slope + 0.8 * (personal[i] - shared)
          personal[i] = personal[i] - 0.05 * slope
      mean = toy_problems.weighted_mean(slopes, toy_problems.CLIENTS)
      shared = shared - 0.1 * mean
      yield {
        'global_weights': {'head': shared},
        'local': [{'head': v} for v in personal],
      }

  toy_problems.check_rounds(process, toy_problems.CLIENTS, rounds())
