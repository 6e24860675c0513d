"""Trials that leave made-up results, without training."""

import contextlib
import functools
import os
import zlib

import numpy as np
import pytest

from tff_pfl import errors
from tff_pfl.runs import report, run_store, summary
from tff_pfl.studies import page, results, trial, trials
from tff_pfl.studies import study as study_lib

FAILING = 'Local-seed1'
SETTINGS = {
  **{'dataset': 'synthetic', 'num_clients': 4, 'model': 'linear'},
  **{'num_rounds': 2, 'cohort_size': 2, 'num_final_evaluations': 2},
}
METHODS = {
  'FedAvg': study_lib.Method('fed_avg'),
  'FedAvg + FT': study_lib.Method('fed_avg', fine_tune='head'),
  'Local': study_lib.Method('local_only'),
}
TWO_METHODS = {name: METHODS[name] for name in ('FedAvg', 'Local')}


def study(**changes):
  """Methods of which two share a run."""
  return study_lib.Study(
    **{'settings': SETTINGS, 'methods': METHODS, 'seeds': (0, 1), **changes}
  )


def tuned_study(**changes):
  """The study, with a choice among the points of a grid for one of its runs."""
  rates = {'fed_avg.learning_rate': (0.05, 1e-9), 'momentum': (0.5, 2.0)}
  return study(**{'tune': rates, 'num_new_clients': 1, **changes})


def run_study(of, directory, run=None, *, has_page=False, **options):
  """Runs a study with made-up trials; returns the results.

  Args:
    run: Replaces `trial.run_trial`. None uses this module's `run`.
    has_page: True to write the page, too, which takes seconds.
    **options: Further arguments of `Study.run`.
  """
  with _made_up(run) as patches:
    if not has_page:
      patches.setattr(results.Results, 'page', lambda actual: None)
    options = {'num_processes': 0, 'show_progress': False, **options}
    return of.run(str(directory), **options)


def run_trials(of, directory, run=None, **options):
  """The results of a study's made-up trials, without files of the study.

  Args:
    **options: Further arguments of this module's `run`.
  """
  with _made_up(run or functools.partial(globals()['run'], **options)):
    return trials.run_trials(
      of, str(directory), trials.Place(0, show_progress=False)
    )


@contextlib.contextmanager
def _made_up(run):
  with pytest.MonkeyPatch.context() as patches:
    patches.setattr(trial, 'run_trial', run or globals()['run'])
    yield patches


def without_pictures(patches):
  """Pages have the texts of pictures, but none is written."""
  patches.setattr(
    page, '_picture', lambda drawn, *texts: page._image('png', b'', *texts)
  )


class Ran:
  """Takes the place of `trial.run_trial`, and knows what it ran.

  Attributes:
    names: Of the trials that ran, in order.
    fails: Names of trials that fail.
    options: Further arguments of `run`.
  """

  def __init__(self, *fails, **options):
    self.names, self.fails, self.options = [], fails, options

  def __call__(self, spec, directory, **options):
    self.names.append(spec.name)
    if spec.name in self.fails:
      raise errors.RunError('no memory')
    run(spec, directory, **self.options, **options)

  def taken(self):
    """The names since the last call."""
    names, self.names = self.names, []
    return names


def run(
  spec,
  directory,
  *,
  runtime_options=None,
  metric='accuracy',
  domains=None,
  reported=None,
  scores=None,
):
  """As `trial.run_trial`: the files of a finished trial.

  Numbers depend on the trial's name; of methods, `local_only` has no global
  model, and clients of the others no weights of their own. A sweep's accuracy
  is its learning rate.

  Args:
    metric: The primary one; of others than the accuracy less is better.
    domains: Scores of domains, as evaluations have them, if any, or such by the
      name of the trial; over the last rounds they are a tenth.
    reported: Further metrics, as evaluations have them, if any.
    scores: The primary metric by name of the trial, where it is not made up.
  """
  del runtime_options
  config, (trained, new) = spec.settings, trial.load_data(spec)
  rng = np.random.default_rng(zlib.crc32(spec.name.encode()))
  has_global = config.algorithm != 'local_only'
  primary = {'name': metric, 'higher_is_better': False}
  domains = (domains or {}).get(spec.name, domains)

  def evaluation():
    score, loss = rng.uniform(size=2)
    if spec.validation_fraction is not None:
      score = config.method.learning_rate
    score = (scores or {}).get(spec.name, score)
    means = {metric: score, 'loss': loss, **dict.fromkeys(reported or (), 0.5)}
    return {
      'personal': means,
      'global': means if has_global else None,
      'fairness': {
        'weighted_mean': score / 3,
        'worst_10_percent': score / 2,
        'fraction_hurt': score / 4 if has_global else None,
      },
      'non_finite_clients': 0,
      **({} if metric == 'accuracy' else {'primary_metric': primary}),
      **({} if reported is None else {'reported': reported}),
      **({} if domains is None else {'domains': domains}),
    }

  def clients(data):
    def scores():
      return {metric: rng.uniform(), 'loss': rng.uniform()}

    sizes = {'num_train_examples': 3, 'num_test_examples': 2, 'num_rounds': 1}
    return [
      {'client': client_id, **sizes, 'before': scores(), 'after': scores()}
      for client_id in (data.client_ids if data else ())
    ]

  evaluations = [evaluation() for _ in range(config.rounds.num_rounds)]
  last = evaluations[-1]
  of = {'data_sha256': trained.fingerprint}
  with run_store.RunStore.open(directory, of, resume=True) as store:
    for of_round in [None, *evaluations][store.last_round + 1 :]:
      states = {'server_state': b'', 'client_states': {}}
      store.commit_round(**states, metrics={}, evaluation=of_round)
  found_scores = [e['personal'][metric] for e in evaluations]
  over_rounds = {'last_10_mean': np.mean(found_scores)}
  over_rounds.update(num_last_10=len(found_scores), last=found_scores[-1])
  actual = {
    'num_rounds': config.rounds.num_rounds,
    'accuracy': over_rounds,
    'global_accuracy': over_rounds if has_global else None,
    'weighted': {'best_10_mean': found_scores[-1] / 4},
    'fairness': last['fairness'],
    'loss': last['personal']['loss'],
    'seconds_per_round': rng.uniform(),
    'non_finite_clients': 0,
  }
  if metric != 'accuracy':
    names = {'personal': 'accuracy', 'global': 'global_accuracy'}
    of = primary | {name: actual[old] for name, old in names.items()}
    actual.update(dict.fromkeys(names.values()), primary_metric=of)
  if domains is not None:
    personal = _tenths(domains['personal'])
    actual['domains'] = {**domains, 'personal': personal}
  summary.write_json(os.path.join(directory, report.SUMMARY_NAME), actual)
  variants = {
    name: {
      'evaluation': last if name == trial.OWN_VARIANT else evaluation(),
      'clients': clients(trained),
      'new_clients': clients(new),
    }
    for name in (trial.OWN_VARIANT, *spec.variants)
  }
  own = variants[trial.OWN_VARIANT]
  own['new_clients_by_ensemble'] = [] if has_global else clients(new)
  told = {'bytes_per_round': {'down': 3, 'up': 2}, 'variants': variants}
  summary.write_json(os.path.join(directory, trial.SCORES_NAME), told)


def _tenths(value):
  if isinstance(value, dict):
    return {name: _tenths(item) for name, item in value.items()}
  return {'last': value, 'last_10_mean': None if value is None else value / 10}


def domains(sea, hills, metric='accuracy'):
  """Scores of domains, as an evaluation has them; the AUC is half of them."""

  def figure(a, b):
    scores = {'min': min(a, b), 'mean': (a + b) / 2, 'max': max(a, b)}
    by_domain = {'sea': a, 'hills': b, 'moon': None}
    return {'by_domain': by_domain, 'client_mean': a, **scores}

  auc = {'auc': figure(sea / 2, hills / 2)}
  return {
    'num_test_examples': {'sea': 4, 'hills': 2, 'moon': 0},
    'without_test_examples': ['moon'],
    'personal': {'loss': figure(1.0, 2.0), metric: figure(sea, hills), **auc},
    'global': None,
  }
