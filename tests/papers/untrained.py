"""Made-up runs, for studies without training."""

import types

from tff_pfl.studies import measures, plan, results, trials
from tff_pfl.studies.numbers import Numbers


def finished(accuracy, fine_tuned=None, num_rounds=0, **values):
  """A stand-in for a finished trial; `open` raises `Opened`.

  Args:
    accuracy: That of the last ten rounds, also by domain.
    fine_tuned: That of the last models with any fine-tuning.
    num_rounds: After which it was evaluated.
    **values: Other attributes.
  """

  def domains(value):
    scores = dict.fromkeys(('min', 'mean', 'max', 'client_mean'), value)
    by_domain = {'0': value, '1': value}
    return {'personal': {'accuracy': {**scores, 'by_domain': by_domain}}}

  def score(value):
    return {'personal': {'accuracy': value}, 'global': {'accuracy': value}}

  clients = [{'before': {'accuracy': 0.1}, 'after': {'accuracy': accuracy}}]
  names = ('clients', 'new_clients', 'new_clients_by_ensemble')
  last = dict.fromkeys(names, clients)
  last['evaluation'] = {**score(fine_tuned), 'domains': domains(fine_tuned)}
  mean = {'last_10_mean': accuracy}
  told = {'accuracy': mean, 'global_accuracy': mean}
  told['domains'] = domains({'last': 0.9, **mean})
  told.update(seconds_per_round=1.0)
  return types.SimpleNamespace(
    **{
      'summary': told,
      'history': [{'loss': 1.0}, {'loss': 0.5}],
      'evaluations': [{'round': num_rounds, **score(accuracy)}],
      'variant': lambda name: last,
      'open': _opened,
      **values,
    }
  )


class Opened(Exception):
  """A run's models would have been used."""


def _opened():
  raise Opened


def context(study, directory='unused'):
  """A context that trains, without progress bars."""
  place = trials.Place(show_progress=False)
  return measures.Context(study, str(directory), place)


class Context(measures.Context):
  """One without training.

  Attributes:
    trials: All that were to run, in order.
  """

  def __init__(self, study, finish=lambda expected: finished(0.5, 0.4)):
    """Takes what a trial finds.

    Args:
      finish: From a trial to what stands for the finished one.
    """
    super().__init__(study, 'unused', trials.Place(show_progress=False))
    self.trials = []
    self._finish = finish

  @property
  def configs(self):
    return [expected.settings for expected in self.trials]

  def run(self, study=None):
    study = study or self.study
    entries = plan.entries(study)
    expected = plan.trials_of(entries)
    self.trials += expected
    runs = {one.name: self._finish(one) for one in expected}
    methods = study.methods
    return [
      results.Result(
        *(entry.condition, entry.method, methods[entry.method].algorithm),
        *(entry.seed, entry.fold, runs[entry.trial.name], entry.variant),
        methods[entry.method].score,
      )
      for entry in entries
    ]

  def measured(self, measure=None):
    """The study's numbers: what a measure finds, or the results' scores.

    Args:
      measure: The measure; None for the study's, if it has one.
    """
    measure = measure or self.study.measure or _scores
    return Numbers(list(measure(self)))


def _scores(context):
  for result in context.run():
    yield {**result.columns(), 'score': result.score()}
