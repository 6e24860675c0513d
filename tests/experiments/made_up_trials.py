"""Trials that leave made-up results, without training."""

import os
import zlib

import numpy as np

from tff_pfl.experiments import trial
from tff_pfl.simulation import report, run_store, summary


def run(wanted, directory, *, runtime_options=None):
  """As `trial.run`: the files of a finished trial of a network without domains.

  Numbers depend on the trial's name; of methods, `local_only` has no global
  model, and clients of the others no weights of their own. A sweep's accuracy
  is its learning rate.
  """
  del runtime_options
  config, data = wanted.config, trial.load_data(wanted)
  rng = np.random.default_rng(zlib.crc32(wanted.name.encode()))
  has_global = config.algorithm != 'local_only'

  def evaluation():
    accuracy, loss = rng.uniform(size=2)
    if wanted.validation_fraction is not None:
      accuracy = config.hparams.learning_rate
    means = {'accuracy': accuracy, 'loss': loss}
    fairness = {
      'worst_10_percent': accuracy / 2,
      'fraction_hurt': accuracy / 4 if has_global else None,
    }
    return {
      'personal': means,
      'global': means if has_global else None,
      'fairness': fairness,
      'non_finite_clients': 0,
    }

  evaluations = [evaluation() for _ in range(config.num_rounds)]
  store_evaluations(directory, evaluations)
  last = evaluations[-1]
  accuracies = [e['personal']['accuracy'] for e in evaluations]
  over_rounds = {'last_10_mean': np.mean(accuracies), 'last': accuracies[-1]}
  summary.write_json(
    os.path.join(directory, report.SUMMARY_NAME),
    {
      'accuracy': over_rounds,
      'global_accuracy': over_rounds if has_global else None,
      'fairness': last['fairness'],
      'loss': last['personal']['loss'],
      'seconds_per_round': rng.uniform(),
      'non_finite_clients': 0,
    },
  )

  def clients(data):
    return [_client(rng, i) for i in (data.client_ids if data else ())]

  variants = {}
  for name in (trial.OWN_VARIANT, *wanted.fine_tune_variants):
    variants[name] = {
      'evaluation': last if name == trial.OWN_VARIANT else evaluation(),
      'clients': clients(data.trained),
      'new_clients': clients(data.new),
    }
  own = variants[trial.OWN_VARIANT]
  own['new_clients_by_ensemble'] = [] if has_global else clients(data.new)
  write_scores(directory, variants, has_global)


def store_evaluations(directory, evaluations):
  """Leaves a run's store with evaluations after the rounds from 1 on."""
  with run_store.RunStore.open(directory, {'num_rounds': 0}) as store:
    for evaluation in [None, *evaluations]:
      store.commit_round(
        server_state=b'',
        client_states={},
        metrics={},
        evaluation=evaluation,
      )


def write_scores(directory, variants, has_global_model=False):
  """Leaves the scores of a trial, which is then finished."""
  summary.write_json(
    os.path.join(directory, trial.SCORES_NAME),
    {
      'has_global_model': has_global_model,
      'adaptation': 'none',
      'bytes_per_round': {'down': 3, 'up': 2},
      'variants': variants,
    },
  )


def _client(rng, client_id):
  before, after = (
    {'accuracy': rng.uniform(), 'loss': rng.uniform()} for _ in range(2)
  )
  return {
    'client': client_id,
    'num_train_examples': 3,
    'num_test_examples': 2,
    'num_rounds': 1,
    'before': before,
    'after': after,
  }
