import numpy as np
import pytest

from tests.methods import toy_problems
from tff_pfl.methods import fed_babu, registry

pytestmark = pytest.mark.usefixtures('runtime')

_CLIENTS = [toy_problems.labeled_examples(n, n) for n in (13, 24)]


def test_body_is_trained_under_the_initial_head():
  """By hand: x @ body @ head, squared error, one full-batch step."""
  body = np.array([[0.3, -0.2], [0.1, 0.5]], np.float32)
  head = np.array([[1.0], [-2.0]], np.float32)
  clients = [toy_problems.regression_examples(n, 2, 1, n) for n in (4, 12)]
  process = toy_problems.full_batches(
    'fed_babu',
    toy_problems.linear_network(body, head),
    num_steps=2,
    learning_rate=0.05,
  )
  state, _, _ = toy_problems.train(process, clients)
  models = [
    toy_problems.descended_together(
      body, head, client, 2, 0.05, trained=(True, False)
    )[0]
    for client in clients
  ]
  assert list(state.global_weights) == ['body/kernel']
  mean = toy_problems.weighted_mean(models, clients)
  toy_problems.assert_kernels(state.global_weights, rtol=1e-5, body=mean)


@pytest.mark.parametrize(
  'scope', ['head', pytest.param('all', marks=pytest.mark.slow)]
)
def test_models_are_fine_tuned_before_they_are_scored(scope):
  model = toy_problems.classifier()
  process = registry.build(
    'fed_babu',
    model,
    fed_babu.FedBabuHParams(learning_rate=0.1, fine_tune_scope=scope),
  )
  state, states, _ = toy_problems.train(process, _CLIENTS)
  data = toy_problems.padded(_CLIENTS)
  weights = process.personalize(state, states[0], data[0]).weights
  for name, value in model.initial_weights.items():
    start = state.global_weights.get(name, value)
    changes = scope == 'all' or name in model.weight_names(model.head_layers)
    assert toy_problems.differ(weights[name], start) == changes, name
  scores = process.evaluate(state, states[0], data[0], data[0])
  assert scores['after']['loss'] < scores['before']['loss']
