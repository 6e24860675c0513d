from binaries.papers import per_fed_avg
from tests.papers import untrained
from tff_pfl.comparisons import claims, tables
from tff_pfl.methods import registry

_ACCURACIES = {
  'FedAvg': 0.5,
  'FedAvg + one step': 0.75,
  'Per-FedAvg': 0.625,
  'Per-FedAvg, Hessian-free': 0.875,
  'Per-FedAvg, exact': 0.875,
}


def test_claims_are_of_the_last_round_and_of_each_setting():
  sizes = per_fed_avg.Sizes(num_rounds=20)
  table = tables.Table.from_rows(
    {
      'setting': condition,
      'method': method,
      'seed': seed,
      'round': round_number,
      'accuracy': accuracy if round_number == 20 else 0.1,
    }
    for condition in sizes.conditions
    for method, accuracy in _ACCURACIES.items()
    for seed in range(5)
    for round_number in (10, 20)
  )
  found = list(per_fed_avg.make_claims(table, sizes))
  assert [claim.measured for claim in found] == [*(-0.125, 0.25) * 4, 0]
  assert [claim.verdict for claim in found] == [
    *(claims.FAILS, claims.HOLDS) * 4,
    claims.HOLDS,
  ]


def test_one_run_of_fed_avg_is_scored_with_and_without_a_step():
  sizes = per_fed_avg.Sizes(num_seeds=1, panels=((4, 20), (10, 10)))
  run = untrained.finished(
    0,
    evaluations=[
      {'round': 5, 'global': {'accuracy': 0.25}, 'personal': {'accuracy': 1}}
    ],
  )
  context = untrained.Context(sizes, lambda wanted: run)
  rows = list(per_fed_avg.measure(context))
  few, many = 'tau = 4, r = 0.4', 'tau = 10, r = 0.2'
  assert [(r['setting'], r['method'], r['accuracy']) for r in rows] == [
    (few, 'FedAvg', 0.25),
    (few, 'FedAvg + one step', 1),
    (few, 'Per-FedAvg', 1),
    (many, 'FedAvg', 0.25),
    (many, 'FedAvg + one step', 1),
    (many, 'Per-FedAvg', 1),
    (many, 'Per-FedAvg, Hessian-free', 1),
    (many, 'Per-FedAvg, exact', 1),
  ]
  assert [one.config.cohort_size for one in context.trials] == [20] * 2 + [
    10
  ] * 4
  wanted = context.trials
  assert len({one.name for one in wanted}) == 6
  shared = {
    'num_steps': 10,
    'learning_rate': 0.001,
    'momentum': 0.0,
    'batch_size': 40,
  }
  assert wanted[-1].config.hparams == registry.get_algorithm(
    'per_fed_avg'
  ).hparams(variant='exact', inner_learning_rate=0.01, **shared)
  # The step at test time is that of Per-FedAvg, on all of a client's data.
  options = wanted[-1].config.personalization
  assert (options.fine_tune, options.num_steps) == ('all', 1)
  assert (options.learning_rate, options.batch_size) == (0.01, None)
