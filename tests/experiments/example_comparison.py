"""Results as a comparison leaves them, made up."""

import numpy as np

from tff_pfl.algorithms import registry
from tff_pfl.experiments import metrics as metrics_lib
from tff_pfl.experiments import results

VARIANT_LABELS = {
  'method': '',
  'none': ' without FT',
  'head': ' + FT (head)',
  'all': ' + FT (all)',
}


def make_results(
  algorithms=('fed_avg', 'fed_rep'),
  *,
  variants=('method', 'head'),
  num_clients=20,
  num_new_clients=4,
  seeds=(0, 1, 2),
  rounds=range(10, 101, 10),
  dataset='digits',
  partition='shards:2',
  tunings=None,
  failures=(),
):
  """Makes up the results of some methods, all else being like a real one's."""
  rng = np.random.default_rng(0)
  return results.ComparisonResults(
    title=f'{dataset}, {num_clients} clients, {partition}',
    settings=tuple(
      results.Setting(name, value)
      for name, value in {
        'dataset': dataset,
        'partition': partition,
        'num_clients': num_clients,
        'cohort_size': 10,
        'num_rounds': rounds[-1],
        'model': 'mlp',
        'seeds': list(seeds),
        'num_new_clients': num_new_clients,
      }.items()
    ),
    methods=tuple(
      _method(rng, name, variant, num_clients, num_new_clients, seeds, rounds)
      for name in algorithms
      for variant in variants
    ),
    partition=_partition(rng, num_clients, num_new_clients),
    tunings=_tunings(algorithms[:2]) if tunings is None else tunings,
    failures=tuple(failures),
  )


def _method(rng, name, variant, num_clients, num_new_clients, seeds, rounds):
  level = rng.uniform(0.55, 0.9) + (0.05 if variant in ('head', 'all') else 0)
  has_global = name not in ('fed_rep', 'fed_per', 'local_only', 'lg_fed_avg')
  curves = tuple(_curve(rng, seed, rounds, level, has_global) for seed in seeds)
  clients = _clients(rng, seeds, num_clients, level, 'client')
  metrics = dict.fromkeys(metric.name for metric in metrics_lib.METRICS)
  metrics.update(
    personal_accuracy=results.spread(
      [level + rng.normal(0, 0.01) for _ in seeds]
    ),
    worst_10_percent=results.spread([level - 0.2 for _ in seeds]),
    bytes_up_per_client=results.spread([623_890 for _ in seeds]),
    bytes_up_per_round=results.spread([6_238_900 for _ in seeds]),
    seconds_per_round=results.spread([rng.uniform(0.1, 2) for _ in seeds]),
    personal_loss=results.spread([1 - level for _ in seeds]),
  )
  if variant == 'method':
    metrics['personal_accuracy_last_10'] = results.spread(
      [level + rng.normal(0, 0.01) for _ in seeds]
    )
  if has_global:
    metrics['global_accuracy'] = results.spread([0.4 for _ in seeds])
    metrics['fraction_hurt'] = results.spread([0.05 for _ in seeds])
  return results.MethodResult(
    algorithm=name,
    variant=variant,
    label=name + VARIANT_LABELS[variant],
    summary=registry.ALGORITHMS[name].summary,
    has_global_model=has_global,
    hparams={'learning_rate': 0.1, 'momentum': 0.5, 'batch_size': 10},
    metrics=metrics,
    curves=curves if variant == 'method' else (),
    clients=clients,
    new_clients=_clients(rng, seeds, num_new_clients, level - 0.05, 'new'),
  )


def _curve(rng, seed, rounds, level, has_global):
  rounds = tuple(rounds)

  def rising(last):
    shape = 1 - np.exp(-np.array(rounds) / rounds[-1] * rng.uniform(3, 12))
    noise = rng.normal(0, 0.012, len(rounds)) + rng.normal(0, 0.02)
    return tuple(float(v) for v in np.clip(last * shape + noise, 0, 1))

  return results.AccuracyCurve(
    seed=seed,
    rounds=rounds,
    personal=rising(level),
    global_model=rising(0.4) if has_global else None,
  )


def _clients(rng, seeds, num_clients, level, prefix):
  scores = []
  for seed in seeds:
    for i in range(num_clients):
      # As with 50 test examples a client.
      before = np.clip(rng.normal(0.4, 0.15), 0, 1).round(2)
      after = np.clip(rng.normal(level, 0.12), 0, 1).round(2)
      scores.append(
        results.ClientScore(
          seed=seed,
          client=f'{prefix}_{i}',
          num_train_examples=100,
          num_test_examples=50,
          num_rounds=10,
          accuracy_before=float(before),
          accuracy_after=float(after),
          loss_before=1.5,
          loss_after=0.5,
        )
      )
  return tuple(scores)


def _partition(rng, num_clients, num_new_clients):
  total = num_clients + num_new_clients
  counts = np.zeros((total, 10), int)
  for row in counts:
    row[rng.choice(10, 2, replace=False)] = rng.integers(20, 60, 2)
  return results.Partition(
    seed=0,
    client_ids=tuple(f'client_{i}' for i in range(total)),
    num_new_clients=num_new_clients,
    class_counts=tuple(tuple(map(int, row)) for row in counts),
    num_train_examples=tuple(map(int, counts.sum(axis=1))),
  )


def _tunings(algorithms):
  return tuple(
    results.Tuning(
      algorithm=name,
      seed=0,
      num_rounds=20,
      points=(
        results.TuningPoint({'learning_rate': 0.01}, 0.61, 1.2, False, None),
        results.TuningPoint({'learning_rate': 0.1}, 0.72, 0.9, True, None),
        results.TuningPoint(
          {'learning_rate': 10.0}, None, None, False, 'It diverged.'
        ),
      ),
    )
    for name in algorithms
  )
