import numpy as np

from tests.methods import toy_problems

_CLIENTS = [toy_problems.regression_examples(n, 2, 1, n) for n in (6, 6)]
_STRENGTH = 0.6


def test_rounds_by_hand():
  process = toy_problems.linear(
    'fed_mtl', num_steps=2, learning_rate=0.05, coupling_strength=_STRENGTH
  )

  def rounds():
    mean = toy_problems.KERNEL
    models = [mean, mean]
    for _ in range(3):
      models = [
        toy_problems.descended(
          lambda w, client=client, mean=mean: (
            toy_problems.squared_error_gradient(w, client)
            + 2 * _STRENGTH * (w - mean)
          ),
          *(model, 2, 0.05),
        )
        for model, client in zip(models, _CLIENTS)
      ]
      mean = np.mean(models, axis=0)
      yield {
        'global_weights': {'head': mean},
        'local': [{'head': model} for model in models],
      }

  toy_problems.check_rounds(process, _CLIENTS, rounds())
