import numpy as np

from binaries.papers import per_fed_avg, per_fed_avg_theorem
from tests.papers import untrained
from tff_pfl import runtime as runtime_lib
from tff_pfl.models import split_model


def test_one_run_of_fed_avg_is_scored_with_and_without_a_step():
  few, many = 'tau = 4, r = 0.4', 'tau = 10, r = 0.2'
  study = per_fed_avg.FIGURE_1.select(conditions=[few, many], seeds=[0])
  last = {'global': {'accuracy': 0.25}, 'personal': {'accuracy': 1}}
  run = untrained.finished(0, evaluations=[{'round': 5, **last}])
  context = untrained.Context(study, lambda expected: run)
  rows = context.measured().frame.to_dict('records')
  for row in rows:
    assert row['score'] == (0.25 if row['method'] == 'FedAvg' else 1)
  # Variants of Per-FedAvg are of many steps alone.
  assert [row['condition'] for row in rows].count(few) == 3
  expected = context.trials
  assert len(rows) == 8
  assert len({one.name for one in expected}) == len(expected) == 6
  participations = {4: 0.4, 10: 0.2}
  for config in context.configs:
    of = participations[config.method.num_steps]
    assert config.rounds.participation == of
  hparams = expected[-1].settings.method
  assert (hparams.variant, hparams.momentum) == ('exact', 0)
  rates = hparams.learning_rate, hparams.inner_learning_rate
  assert (*rates, hparams.batch_size) == (0.001, 0.01, 40)
  # The step at test time is that of Per-FedAvg, on all of a client's data.
  options = expected[-1].settings.process.personalization
  assert (options.fine_tune, options.num_steps) == ('all', 1)
  assert (options.learning_rate, options.batch_size) == (0.01, None)


def test_a_step_with_exact_gradients_is_down_the_slope_of_the_meta_loss(
  monkeypatch,
):
  monkeypatch.setattr(split_model.SplitModel, 'uses_xla', False)
  sizes = {'num_clients': 3, 'num_examples': 8, 'num_inputs': 2}
  sizes = per_fed_avg_theorem.Sizes(num_rounds=2, **sizes)
  clients = per_fed_avg_theorem.make_clients(sizes, 1.0, seed=0)

  def meta_loss(weights):
    return per_fed_avg_theorem.meta_loss(clients, weights, 1.0)

  loss, gradient = meta_loss(np.zeros(2))
  quotients = [
    (meta_loss(1e-5 * unit)[0] - meta_loss(-1e-5 * unit)[0]) / 2e-5
    for unit in np.eye(2)
  ]
  np.testing.assert_allclose(gradient, quotients, rtol=1e-6)
  condition = per_fed_avg_theorem.Condition(num_steps=1)
  with runtime_lib.create_runtime('in_process') as runtime:
    arguments = sizes, condition, clients, 0, runtime
    first, second = per_fed_avg_theorem.norms(*arguments)
  np.testing.assert_allclose(first, (loss, gradient @ gradient))
  loss, gradient = meta_loss(-sizes.learning_rate * gradient)
  np.testing.assert_allclose(second, (loss, gradient @ gradient), rtol=1e-5)
