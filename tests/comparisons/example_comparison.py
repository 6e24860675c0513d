"""Results as a comparison leaves them, made up."""

import numpy as np

from tff_pfl.comparisons import metrics as metrics_lib
from tff_pfl.comparisons import results
from tff_pfl.methods import registry

_SEEDS = (0, 1, 2)
_NUM_NEW_CLIENTS = 4


def make_results(
  algorithms=('fed_avg', 'fed_rep'),
  *,
  variants=('method', 'head'),
  num_clients=20,
  rounds=range(10, 101, 10),
  dataset='digits',
  failures=(),
):
  """Makes up the results of some methods, all else being like a real one's."""
  rng = np.random.default_rng(0)
  settings = {
    'dataset': dataset,
    'partition': 'shards:2',
    'num_clients': num_clients,
    'num_rounds': rounds[-1],
    'seeds': list(_SEEDS),
    'num_new_clients': _NUM_NEW_CLIENTS,
  }
  return {
    'title': f'{dataset}, {num_clients} clients, shards:2',
    'settings': settings_of(**settings),
    'methods': [
      _method(rng, name, variant, num_clients, rounds)
      for name in algorithms
      for variant in variants
    ],
    'partition': _partition(rng, num_clients),
    'tunings': [
      {
        'algorithm': algorithm,
        'seed': 0,
        'num_rounds': 20,
        'points': [
          point({'learning_rate': 0.01}, 0.61, 1.2),
          point({'learning_rate': 0.1}, 0.72, 0.9, chosen=True),
          point({'learning_rate': 10.0}, failure='It diverged.'),
        ],
      }
      for algorithm in algorithms[:2]
    ],
    'failures': list(failures),
  }


def settings_of(**values):
  return [{'name': name, 'value': value} for name, value in values.items()]


def point(
  hparams, score=None, loss=None, chosen=False, failure=None, name='accuracy'
):
  return {
    'hparams': hparams,
    name: score,
    'loss': loss,
    'chosen': chosen,
    'failure': failure,
  }


def domain(seed, name, num_test_examples, score, metric='accuracy', auc=None):
  return {
    'seed': seed,
    'domain': name,
    'num_test_examples': num_test_examples,
    'loss': 1.0,
    metric: score,
    'auc': auc,
  }


def _method(rng, name, variant, num_clients, rounds):
  level = rng.uniform(0.55, 0.9)
  has_global = name != 'fed_rep'
  figures = {
    'personal_accuracy': level + rng.normal(0, 0.01, 3),
    'worst_10_percent': [level - 0.2] * 3,
    'bytes_up_per_client': [623_890] * 3,
    'bytes_up_per_round': [6_238_900] * 3,
    'seconds_per_round': rng.uniform(0.1, 2, 3),
    'personal_loss': [1 - level] * 3,
  }
  if variant == 'method':
    figures['personal_accuracy_last_10'] = level + rng.normal(0, 0.01, 3)
  if has_global:
    figures.update(global_accuracy=[0.4] * 3, fraction_hurt=[0.05] * 3)
  return {
    'algorithm': name,
    'variant': variant,
    'label': name + {'method': '', 'head': ' + FT (head)'}[variant],
    'summary': registry.ALGORITHMS[name].summary,
    'has_global_model': has_global,
    'hparams': {'learning_rate': 0.1, 'momentum': 0.5, 'batch_size': 10},
    'metrics': {
      **dict.fromkeys(metrics_lib.by_name()),
      **{key: results.mean_std(values) for key, values in figures.items()},
    },
    'curves': [
      {
        'seed': seed,
        'rounds': list(rounds),
        'personal': _rising(rng, rounds, level),
        'global_model': _rising(rng, rounds, 0.4) if has_global else None,
      }
      for seed in _SEEDS
      if variant == 'method'
    ],
    'clients': _clients(rng, num_clients, level, 'client'),
    'new_clients': _clients(rng, _NUM_NEW_CLIENTS, level - 0.05, 'new'),
    'domains': [],
  }


def _rising(rng, rounds, last):
  values = last * (1 - np.exp(-5 * np.array(rounds) / rounds[-1]))
  noise = rng.normal(0, 0.02, len(rounds))
  return np.clip(values + noise, 0, 1).tolist()


def _clients(rng, num_clients, level, prefix):
  def accuracy(mean):
    # As with 50 test examples a client.
    return float(np.clip(rng.normal(mean, 0.15), 0, 1).round(2))

  return [
    {
      'seed': seed,
      'client': f'{prefix}_{i}',
      'num_train_examples': 100,
      'num_test_examples': 50,
      'num_rounds': 10,
      'accuracy_before': accuracy(0.4),
      'accuracy_after': accuracy(level),
      'loss_before': 1.5,
      'loss_after': 0.5,
    }
    for seed in _SEEDS
    for i in range(num_clients)
  ]


def _partition(rng, num_clients):
  total = num_clients + _NUM_NEW_CLIENTS
  counts = np.zeros((total, 10), int)
  for row in counts:
    row[rng.choice(10, 2, replace=False)] = rng.integers(20, 60, 2)
  return {
    'seed': 0,
    'client_ids': [f'client_{i}' for i in range(total)],
    'num_new_clients': _NUM_NEW_CLIENTS,
    'class_counts': counts.tolist(),
    'num_train_examples': counts.sum(axis=1).tolist(),
    'domain_counts': None,
  }
