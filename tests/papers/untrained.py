"""What experiments find without training: made-up runs and numbers."""

import types

from tff_pfl.comparisons import context as context_lib
from tff_pfl.comparisons import tables


def table(names, values, *columns):
  """Numbers of five seeds that are all alike.

  Args:
    names: The columns that tell rows apart.
    values: The number by the values of these columns: mappings in mappings, of
      which a key may be a tuple, for several columns.
    *columns: Its column; or columns, which all have it.
  """
  return tables.Table.from_rows(
    {
      **dict(zip(names, key)),
      'seed': seed,
      **dict.fromkeys(columns or ['accuracy'], value),
    }
    for key, value in _leaves(values)
    for seed in range(5)
  )


def _leaves(values, path=()):
  if not isinstance(values, dict):
    yield path, values
    return
  for key, inner in values.items():
    more = key if isinstance(key, tuple) else (key,)
    yield from _leaves(inner, (*path, *more))


def finished(accuracy, fine_tuned=None, num_rounds=0, **values):
  """What stands for a finished trial; `open` raises `Opened`.

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
      'directory': 'unused',
      'open': _opened,
      **values,
    }
  )


class Opened(Exception):
  """A run's models would have been used."""


def _opened():
  raise Opened


class Context(context_lib.Context):
  """One without training.

  Attributes:
    trials: All that were to run, in order.
  """

  def __init__(self, sizes, finish=lambda wanted: finished(0), **settings):
    """Takes what a trial finds.

    Args:
      finish: From a trial to what stands for the finished one.
      **settings: Fields of `context_lib.Settings`.
    """
    super().__init__(
      context_lib.Settings('unused', show_progress=False, **settings), sizes
    )
    self.trials = []
    self._finish = finish

  def run(self, trials):
    self.trials += trials.values()
    return {key: self._finish(wanted) for key, wanted in trials.items()}
