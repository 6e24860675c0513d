"""Made-up runs, for experiments without training."""

import types

from binaries.papers.engine import tables, trials


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
  last = {
    'clients': clients,
    'new_clients': clients,
    'new_clients_by_ensemble': clients,
    'evaluation': {**score(fine_tuned), 'domains': domains(fine_tuned)},
  }
  return types.SimpleNamespace(
    **{
      'summary': {
        'accuracy': {'last_10_mean': accuracy},
        'domains': domains({'last': 0.9, 'last_10_mean': accuracy}),
        'seconds_per_round': 1.0,
        'peak_rss_mb': 1.0,
      },
      'scores': {'bytes_per_round': {'up': 1}},
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


def context(sizes, directory='unused', **settings):
  """A context that trains, without progress bars."""
  settings = trials.Settings(str(directory), show_progress=False, **settings)
  return trials.Context(settings, sizes)


class Context(trials.Context):
  """One without training.

  Attributes:
    trials: All that were to run, in order.
  """

  def __init__(self, sizes, finish=lambda wanted: finished(0.5, 0.4), **more):
    """Takes what a trial finds.

    Args:
      finish: From a trial to what stands for the finished one.
      **more: Fields of `trials.Settings`.
    """
    super().__init__(context(sizes, **more).settings, sizes)
    self.trials = []
    self._finish = finish

  @property
  def configs(self):
    return [wanted.config for wanted in self.trials]

  def finish(self, trials):
    self.trials += trials
    return [self._finish(wanted) for wanted in trials]

  def measured(self, measure):
    """The table that an experiment's function makes of it."""
    return tables.Table(list(measure(self)))
