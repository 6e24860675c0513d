"""Linear regression with a shared representation: what FedAvg learns.

Clients have the gradients of their population losses, and the ground truth is
known (`problem`). Distances of learned representations from it are principal
angle distances, in [0, 1]. FedAvg is compared with D-GD, which is FedAvg with
one local step. The studies are in `papers.fed_avg`.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from tff_pfl import plots
from tff_pfl.studies import claims, measures
from tff_pfl.studies.numbers import Numbers
from tff_pfl.studies.study import Study

from .. import panels
from . import methods, model, problem, simulation

PAPER = 'FedAvg with fine-tuning'
_FIGURE_1 = f'{PAPER}, figure 1'
_FIGURE_3_LEFT = f'{PAPER}, figure 3 left'
_FED_AVG, _D_GD = 'FedAvg', 'D-GD'
_RANDOM, _CLOSE_BY = 'random', 'close'
# A power with a smaller error counts as 1.
_PROPORTIONAL = 0.25
_PARTIAL = '{}, {:.0%} of clients'.format


@dataclasses.dataclass(frozen=True)
class Parameters:
  """Sizes of the studies.

  Attributes:
    num_clients: Training clients (M).
    dimension: Length of an input (d).
    rank: Columns of the representation (k).
    learning_rate: Learning rate of all methods (alpha).
    num_local_steps: FedAvg's local steps in a round (tau).
    participation: Share of the clients in a round with fewer than all clients.
    proposition_distance: Distance of a start from the ground truth, with all k
      directions equally far from it (Proposition 1).
    sample_counts: Numbers of samples of a new client.
    new_clients_per_seed: New clients for each seed.
    noise_std: Standard deviation of the noise of a new client's labels.
    nums_local_steps: Numbers of local steps (tau) whose rates are compared,
      fewest first.
    fine_tuning_rate: Learning rate of new clients.
    num_fine_tuning_steps: Full-batch steps on representation and head (tau').
  """

  num_clients: int = 40
  dimension: int = 100
  rank: int = 5
  learning_rate: float = 0.4
  num_local_steps: int = 2
  num_rounds: int = 1000
  participation: float = 0.5
  proposition_distance: float = 0.5
  sample_counts: Sequence[int] = (10, 20, 30, 50, 75, 100, 150, 200)
  new_clients_per_seed: int = 10
  noise_std: float = 0.1
  fine_tuning_rate: float = 0.02
  num_fine_tuning_steps: int = 200
  nums_local_steps: Sequence[int] = (2, 4, 8, 16)


def _train(
  sizes: Parameters, start: str, seed: int, **options: Any
) -> Iterator[tuple[str, problem.LinearProblem, simulation.History]]:
  """Yields name, ground truth and run of FedAvg and D-GD from the same start.

  Args:
    **options: Arguments of `simulation.run_method`.
  """
  truth = problem.LinearProblem.of(
    sizes, head_distribution='gaussian', seed=seed
  )
  if start == _RANDOM:
    representation = model.random_representation(
      sizes.dimension, sizes.rank, seed
    )
  else:
    representation = model.representation_at_distance(
      truth.representation, sizes.proposition_distance, seed
    )
  rate = sizes.learning_rate
  initial = model.with_zero_head(representation / np.sqrt(rate))
  for name, num_steps in ((_FED_AVG, sizes.num_local_steps), (_D_GD, 1)):
    method = methods.fed_avg(rate, num_local_steps=num_steps)
    yield (
      name,
      truth,
      simulation.run_method(
        method, truth, sizes.num_rounds, initial=initial, seed=seed, **options
      ),
    )


def measure_representation(context: measures.Context) -> measures.Rows:
  """Distance and gradient by round, and the rate at which distances fall."""
  sizes = context.parameters
  for (seed,) in context.each():
    for start, share in (
      (_RANDOM, 1.0),
      (_RANDOM, sizes.participation),
      (_CLOSE_BY, 1.0),
    ):
      for name, _, history in _train(sizes, start, seed, participation=share):
        method = name if share == 1 else _PARTIAL(name, share)
        columns = {'start': start, 'method': method, 'seed': seed}
        yield from simulation.rows(history, columns)


def representation_claims(
  table: Numbers, study: Study
) -> Iterator[claims.Claim]:
  """Claims about the representations in figures 1 and 3 left."""
  sizes = study.parameters
  first, last = (table.where(round=r) for r in (0, sizes.num_rounds))

  def share_left(start, method=_D_GD):
    run = {'start': start, 'method': method}
    return last.values('distance', **run) / first.values('distance', **run)

  def norm_left(method):
    # Divides by the mean, so that the mean over seeds is the figure's ratio.
    run = {'start': _RANDOM, 'method': method}
    norms = [rows.values('gradient_norm', **run) for rows in (first, last)]
    return norms[1] / norms[0].mean()

  for start, source in (
    (_RANDOM, _FIGURE_1),
    (_CLOSE_BY, f'{PAPER}, Proposition 1'),
  ):
    yield claims.measured(
      f'FedAvg finds the representation from a {start} start: its largest last '
      'distance',
      last.values('distance', start=start, method=_FED_AVG),
      source=source,
      below=simulation.CLOSE,
    )
    yield claims.measured(
      f'D-GD does not from a {start} start: the smallest share of the initial '
      'distance that is left',
      share_left(start),
      source=source,
      above=0.7,
    )
  of_few, d_gd_of_few = (
    _PARTIAL(name, sizes.participation) for name in (_FED_AVG, _D_GD)
  )
  yield claims.measured(
    f'{of_few}, finds it, too: its largest last distance',
    last.values('distance', start=_RANDOM, method=of_few),
    source=f'{PAPER}, Theorem 1',
    below=simulation.CLOSE,
  )
  yield claims.measured(
    f'{d_gd_of_few}, does not: the smallest share of the initial distance '
    'that is left',
    share_left(_RANDOM, d_gd_of_few),
    source=f'{PAPER}, Theorem 1',
    above=0.7,
  )
  yield claims.measured(
    'FedAvg converges geometrically: the smallest R² of a line through the '
    f'logarithm of the distance, from {simulation.FIT_START:g} down to '
    f'{simulation.CLOSE:g}',
    last.values('r_squared', start=_RANDOM, method=_FED_AVG),
    source=f'{_FIGURE_1}, Theorem 1',
    above=0.98,
  )
  yield claims.difference(
    'D-GD comes to a stationary point of the global loss: the share of its '
    "gradient's norm that is left",
    norm_left(_D_GD),
    source=_FIGURE_3_LEFT,
    below=1e-3,
  )
  yield claims.difference(
    'FedAvg does not: the same share',
    norm_left(_FED_AVG),
    source=_FIGURE_3_LEFT,
    above=0.1,
  )


def draw_representation(table: Numbers, study: Study, figure: Figure) -> None:
  """Draws the distance by round from both starts, and the gradient's norm."""
  panels.prepare(figure, 13.2, 4.0, len(study.seeds))
  distance = 'Principal angle distance'
  close_by = f'Start at distance {study.parameters.proposition_distance:g}'
  norm = "Norm of the global loss's gradient"
  drawn = (
    (_RANDOM, 'distance', distance, 'Random start'),
    (_CLOSE_BY, 'distance', distance, close_by),
    (_RANDOM, 'gradient_norm', norm, 'Random start'),
  )
  for axes, (start, column, label, title) in zip(figure.subplots(1, 3), drawn):
    plots.curves(
      table.where(start=start).frame,
      ax=axes,
      y=column,
      x='round',
      x_label='Round',
      y_label=label,
      log_y=True,
      title=title,
    )


def measure_rate(context: measures.Context) -> measures.Rows:
  """The rate at which FedAvg's distance falls, by local steps and step size.

  The larger step size is twice the other, and has the fewest local steps only.
  """
  sizes = context.parameters
  points = [(sizes.learning_rate, num) for num in sizes.nums_local_steps]
  points.append((2 * sizes.learning_rate, sizes.nums_local_steps[0]))
  for (learning_rate, num_steps), seed in context.each(points):
    changed = dataclasses.replace(
      sizes, learning_rate=learning_rate, num_local_steps=num_steps
    )
    # The first run is FedAvg.
    _, _, history = next(_train(changed, _RANDOM, seed))
    yield {
      'method': f'step size {learning_rate:g}',
      'num_local_steps': num_steps,
      'seed': seed,
      **simulation.fit_decay(history.distance),
    }


def rate_claims(table: Numbers, study: Study) -> Iterator[claims.Claim]:
  """Claims that the number of rounds falls as 1 / (alpha^2 tau) (Theorem 1)."""
  sizes = study.parameters
  rates, doubled = (
    table.curve('rate', 'num_local_steps', method=f'step size {alpha:g}')
    for alpha in (sizes.learning_rate, 2 * sizes.learning_rate)
  )
  yield from claims.each(
    '{0[1]} local steps in place of {0[0]} make FedAvg converge in fewer '
    'rounds: the ratio of the rates',
    itertools.pairwise(sizes.nums_local_steps),
    rates[:, 1:] / rates[:, :-1],
    above=1,
    of_paper=True,
  )
  logs = np.log(sizes.nums_local_steps)
  powers = np.polyfit(logs, np.log(rates).T, 1)[0]
  for words, power in (
    ('the number of local steps', powers),
    ("the step size's square", np.log2(doubled / rates)[:, 0] / 2),
  ):
    yield claims.difference(
      f'The rate grows as {words} does: how far the power is from 1',
      abs(power - 1),
      below=_PROPORTIONAL,
    )


def measure_new_client(context: measures.Context) -> measures.Rows:
  """The new clients' mean error, by number of samples."""
  sizes = context.parameters
  for (seed,) in context.each():
    for name, truth, history in _train(
      sizes, _RANDOM, seed, rounds_per_record=sizes.num_rounds
    ):
      regressor = simulation.fine_tuned(
        history.model, sizes.fine_tuning_rate, sizes.num_fine_tuning_steps
      )
      errors = simulation.new_client_errors(
        regressor, truth, sizes.sample_counts, sizes.new_clients_per_seed
      )
      for num_samples, error in zip(sizes.sample_counts, errors.mean(axis=1)):
        yield {
          'method': name,
          'seed': seed,
          'num_samples': num_samples,
          'error': error,
        }


def new_client_claims(table: Numbers, study: Study) -> Iterator[claims.Claim]:
  """Claims that FedAvg's model is better for fine-tuning (figure 3, right)."""
  fed_avg, d_gd = (
    table.curve('error', 'num_samples', method=name)
    for name in (_FED_AVG, _D_GD)
  )
  return claims.each(
    "FedAvg's model fine-tuned on {} samples of a new client has a smaller "
    "error than D-GD's: the difference",
    study.parameters.sample_counts,
    d_gd - fed_avg,
  )
