"""What experiments find without training: made-up runs and numbers."""

import types

from tff_pfl.experiments import laboratory, tables


def table(names, values, column='accuracy'):
  """Numbers of five seeds that are all alike.

  Args:
    names: The columns that tell rows apart.
    values: The number by the values of these columns.
    column: Its column.
  """
  return tables.Table.from_rows(
    {**dict(zip(names, key)), 'seed': seed, column: value}
    for key, value in values.items()
    for seed in range(5)
  )


def finished(accuracy, fine_tuned=None, **values):
  """What stands for a finished trial.

  Args:
    accuracy: That of the last ten rounds.
    fine_tuned: That of the last models with any fine-tuning.
    **values: Further attributes.
  """
  scores = {'evaluation': {'personal': {'accuracy': fine_tuned}}}
  return types.SimpleNamespace(
    **{
      'summary': {'accuracy': {'last_10_mean': accuracy}},
      'variant': lambda name: scores,
      **values,
    }
  )


class Laboratory(laboratory.Laboratory):
  """One without training.

  Attributes:
    trials: All that were to run, in order.
  """

  def __init__(self, sizes, finish=None, **settings):
    """Takes what a trial finds.

    Args:
      finish: From a trial to what stands for the finished one; None to have no
        runs at all.
      **settings: Fields of `laboratory.Settings`.
    """
    super().__init__(
      laboratory.Settings('unused', show_progress=False, **settings), sizes
    )
    self.trials = []
    self._finish = finish

  def run(self, trials):
    self.trials += trials.values()
    if self._finish is None:
      return {}
    return {key: self._finish(wanted) for key, wanted in trials.items()}
