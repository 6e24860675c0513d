"""Linear regression with a shared representation: what FedRep and FedAvg learn.

Four experiments on the problem of `linear.problem`, whose ground truth is
known: how far a learned representation is from it is the principal angle
distance, in [0, 1].

In the figures and their numbers, values of several seeds are given as mean and
sample standard deviation; claims say what of the seeds they are about. Seeds
are those from the settings' seed on.
A rate is minus the slope of a line fitted to the natural logarithm of the
distance, by round, from 0.5 (or a closer start) down to 1e-6.

Deviations from the papers: the dimensions of FedRep's figures are unreadable in
its text as we have it; here they are those of the dataclasses below. Clients
have few samples in the first one: with more, ten gradient steps find almost the
exact head, and 10GD-GD almost FedRep's rate. For GD-GD, which needs a good
start, all methods start there from the method of moments of FedRep's theory
instead of projected gradient descent on another objective; elsewhere the start
is random. The step sizes are unreadable, too; a problem has one for all
methods, but for FedSGD's.

References:
  Collins, Hassani, Mokhtari, Shakkottai: Exploiting Shared Representations for
  Personalized Federated Learning, ICML 2021, section 5.1, figures 3 and 4.
  Collins, Hassani, Mokhtari, Shakkottai: FedAvg with Fine Tuning: Local Updates
  Lead to Representation Learning, NeurIPS 2022, section 5.1, figures 1 and 3.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import itertools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Optional

import numpy as np
from matplotlib.figure import Figure

from binaries.papers import repeats
from binaries.papers.linear import (
  initialization,
  methods,
  new_client,
  simulation,
)
from binaries.papers.linear import model as model_lib
from binaries.papers.linear import problem as problem_lib
from tff_pfl.experiments import panels as figures
from tff_pfl.experiments import paper as experiment

_FED_AVG_PAPER = 'FedAvg with fine-tuning'
_FED_REP, _GD_GD, _10GD_GD = 'FedRep', 'GD-GD', '10GD-GD'
_FED_REP_NOISE = 'FedRep, noisy labels'
_FED_SGD, _LOCAL = 'FedSGD', 'Local only'
_FED_AVG, _D_GD = 'FedAvg', 'D-GD'
# How close "converged" is, and what slower methods get to as well.
_CLOSE, _NEAR = 1e-6, 1e-3
# Both theorems' rates are of a start that is away from distance 1, and grow
# with how far; from here on they hardly change.
_FIT_START = 0.5


@dataclasses.dataclass(frozen=True)
class FedRepSizes:
  """Sizes of the two experiments with FedRep.

  Attributes:
    nums_clients: Numbers of training clients (n), fewest first.
    dimension: Length of an input (d).
    rank: Columns of the representation (k).
    samples_per_client: Samples, the same in each round (m).
    noise_std: Standard deviation of the labels' noise, where there is any.
    learning_rate: Learning rate of all methods but FedSGD, for representation
      and head.
    num_seeds: Ground truths.
    sample_counts: Numbers of samples of a new client.
    num_new_clients: New clients for each seed.
    fed_sgd_learning_rate: FedSGD's, smaller, for its gradients are noisy.
    fed_sgd_batch_size: Samples that a client draws in a round of FedSGD.
  """

  nums_clients: Sequence[int]
  dimension: int = 20
  rank: int = 2
  samples_per_client: int = 5
  noise_std: float = 1e-3
  learning_rate: float = 0.2
  num_rounds: int = 450
  num_seeds: int = 3
  sample_counts: Sequence[int] = ()
  num_new_clients: int = 100
  fed_sgd_learning_rate: float = 0.05
  fed_sgd_batch_size: int = 5
  fed_sgd_num_rounds: int = 500


CONVERGENCE_FULL = FedRepSizes(nums_clients=(50, 100, 200, 400))
CONVERGENCE_FAST = FedRepSizes(nums_clients=(50, 200), num_seeds=1)

NEW_CLIENT_FULL = FedRepSizes(
  nums_clients=(100,),
  dimension=50,
  samples_per_client=20,
  num_rounds=300,
  sample_counts=(1, 2, 3, 4, 6, 10, 20, 30, 40, 48, 50, 52, 60, 80),
)
NEW_CLIENT_FAST = dataclasses.replace(
  NEW_CLIENT_FULL,
  dimension=20,
  sample_counts=(1, 2, 4, 10, 19, 20, 22, 30),
  num_rounds=150,
  num_seeds=1,
  fed_sgd_num_rounds=150,
)


@dataclasses.dataclass(frozen=True)
class FedAvgSizes:
  """Sizes of the two experiments with FedAvg.

  Attributes:
    num_clients: Training clients (M).
    dimension: Length of an input (d).
    rank: Columns of the representation (k).
    learning_rate: Learning rate of all methods (alpha).
    num_local_steps: FedAvg's local steps in a round (tau).
    num_runs: Ground truths.
    proposition_distance: Distance of a start from the ground truth, where all k
      directions are equally far from it (Proposition 1).
    sample_counts: Numbers of samples of a new client.
    num_new_clients: New clients for each run.
    noise_std: Standard deviation of the noise of a new client's labels.
    fine_tuning_learning_rate: Learning rate of the new client's steps.
    num_fine_tuning_steps: Full-batch steps on representation and head (tau').
  """

  num_clients: int = 40
  dimension: int = 100
  rank: int = 5
  learning_rate: float = 0.4
  num_local_steps: int = 2
  num_rounds: int = 1000
  num_runs: int = 10
  proposition_distance: float = 0.5
  sample_counts: Sequence[int] = (10, 20, 30, 50, 75, 100, 150, 200)
  num_new_clients: int = 10
  noise_std: float = 0.1
  fine_tuning_learning_rate: float = 0.01
  num_fine_tuning_steps: int = 200


FED_AVG_FULL = FedAvgSizes()
FED_AVG_FAST = FedAvgSizes(
  num_clients=20, dimension=20, rank=2, num_runs=2, sample_counts=(5, 10, 30)
)


class Fit(NamedTuple):
  """A line fitted to the logarithm of a distance.

  Attributes:
    rate: Minus its slope, per round.
    r_squared: The share of the variance that it explains.
  """

  rate: float
  r_squared: float


def fit_decay(distance: np.ndarray) -> Fit:
  """Fits a line to the logarithm of a distance that falls to 1e-6.

  Args:
    distance: After each round, positive, `[num_rounds + 1]`.

  Returns:
    The fit, from the first round at 0.5 or below (or the first of all) to the
    first one at 1e-6 or below (or the last).
  """
  begun = np.flatnonzero(distance <= _FIT_START)
  first = begun[0] if begun.size else 0
  done = np.flatnonzero(distance <= _CLOSE)
  last = done[0] if done.size else distance.size - 1
  rounds = np.arange(first, last + 1)
  logs = np.log(distance[first : last + 1])
  slope, intercept = np.polyfit(rounds, logs, 1)
  residuals = logs - (slope * rounds + intercept)
  return Fit(-float(slope), float(1 - residuals.var() / logs.var()))


def _fed_rep_convergence(settings: experiment.Settings) -> experiment.Result:
  """How fast FedRep, GD-GD and 10GD-GD come close to the ground truth."""
  sizes = CONVERGENCE_FAST if settings.fast else CONVERGENCE_FULL
  head_methods = {
    _FED_REP: methods.fed_rep,
    _GD_GD: methods.gd_gd,
    _10GD_GD: methods.ten_gd_gd,
    _FED_REP_NOISE: methods.fed_rep,
  }
  distances = {}
  for num_clients, name in repeats.with_progress(
    itertools.product(sizes.nums_clients, head_methods), settings
  ):
    noise_std = sizes.noise_std if name == _FED_REP_NOISE else 0.0
    histories = []
    for seed in repeats.seeds(settings, sizes.num_seeds):
      problem = _fed_rep_problem(sizes, num_clients, noise_std, seed)
      method = head_methods[name](sizes.learning_rate)
      # From the method of moments and with a zero head.
      initial = model_lib.LinearModel(
        initialization.method_of_moments(problem), np.zeros(problem.rank)
      )
      histories.append(
        simulation.run(method, problem, sizes.num_rounds, initial=initial)
      )
    distances[num_clients, name] = np.stack([h.distance for h in histories])
  # Of the others the logarithm of the distance is no line.
  fits = {
    n: [fit_decay(distance) for distance in distances[n, _FED_REP]]
    for n in sizes.nums_clients
  }
  return experiment.Result(
    claims=_fed_rep_convergence_claims(sizes, distances, fits),
    rows=[
      {
        'num_clients': num_clients,
        'method': name,
        'round': round_number,
        'distance_mean': mean,
        'distance_std': std,
      }
      for (num_clients, name), values in distances.items()
      for round_number, mean, std in zip(*repeats.by_round(values))
    ],
    setup={
      **dataclasses.asdict(sizes),
      'rates': [
        {
          'num_clients': num_clients,
          'rate_mean': np.mean([fit.rate for fit in of_seeds]),
          'rate_std': experiment.spread([fit.rate for fit in of_seeds]),
        }
        for num_clients, of_seeds in fits.items()
      ],
    },
    draw=functools.partial(_draw_by_num_clients, sizes, distances),
  )


def _fed_rep_convergence_claims(
  sizes: FedRepSizes,
  distances: Mapping[Any, np.ndarray],
  fits: Mapping[int, Sequence[Fit]],
) -> Sequence[experiment.Claim]:
  paper = 'FedRep, figure 3'
  rates = np.array(
    [np.mean([fit.rate for fit in of_seeds]) for of_seeds in fits.values()]
  )

  def ratios_of_rounds(name, distance):
    return [
      rounds_to(distances[n, name].mean(axis=0), distance)
      / rounds_to(distances[n, _FED_REP].mean(axis=0), distance)
      for n in sizes.nums_clients
    ]

  return [
    experiment.below(
      'FedRep finds the representation: its largest last distance',
      paper,
      np.max([distances[n, _FED_REP][:, -1] for n in sizes.nums_clients]),
      _CLOSE,
    ),
    experiment.above(
      f'It converges geometrically: the smallest R² of a line through the '
      f'logarithm of the distance, from {_FIT_START:g} down to {_CLOSE:g}',
      'FedRep, figure 3, Theorem 1',
      np.min([fit.r_squared for of_n in fits.values() for fit in of_n]),
      0.98,
    ),
    experiment.above(
      'More clients make it faster: the smallest ratio of its rates with more '
      'and with fewer clients',
      paper,
      (rates[1:] / rates[:-1]).min(),
      1,
    ),
    experiment.above(
      'Exact heads need fewer rounds than one gradient step: the smallest '
      f"ratio of GD-GD's and FedRep's rounds to a distance of {_NEAR:g}",
      paper,
      np.min(ratios_of_rounds(_GD_GD, _NEAR)),
      1,
    ),
    experiment.above(
      'Exact heads need fewer rounds than ten gradient steps: the smallest '
      f"ratio of 10GD-GD's and FedRep's rounds to a distance of {_CLOSE:g}",
      paper,
      np.min(ratios_of_rounds(_10GD_GD, _CLOSE)),
      1,
    ),
  ]


def rounds_to(distances: np.ndarray, distance: float) -> int:
  """Rounds until a distance is reached; where it is not, all there are.

  Args:
    distances: `[num_rounds + 1]`, by round.
    distance: What is to be reached.
  """
  reached = np.flatnonzero(np.asarray(distances) <= distance)
  return int(reached[0]) if reached.size else len(distances) - 1


def _fed_rep_new_client(settings: experiment.Settings) -> experiment.Result:
  """How many samples a new client needs, with and without what was learned."""
  sizes = NEW_CLIENT_FAST if settings.fast else NEW_CLIENT_FULL
  (num_clients,) = sizes.nums_clients
  relative_errors = collections.defaultdict(list)
  for seed in repeats.with_progress(
    repeats.seeds(settings, sizes.num_seeds), settings
  ):
    problem = _fed_rep_problem(sizes, num_clients, sizes.noise_std, seed)
    fed_rep = simulation.run(
      methods.fed_rep(sizes.learning_rate), problem, sizes.num_rounds, seed=seed
    )
    fed_sgd = simulation.run(
      methods.fed_sgd(
        sizes.fed_sgd_learning_rate, batch_size=sizes.fed_sgd_batch_size
      ),
      problem,
      sizes.fed_sgd_num_rounds,
      seed=seed,
    )
    score = dict(
      problem=problem,
      sample_counts=sizes.sample_counts,
      num_clients=sizes.num_new_clients,
    )
    for name, errors_of_clients in (
      (_FED_REP, new_client.head_errors(fed_rep.representation, **score)),
      (_FED_SGD, new_client.head_errors(fed_sgd.representation, **score)),
      (_LOCAL, new_client.local_only_errors(**score)),
    ):
      # With as many samples as unknowns the error has no mean over clients.
      # The heads have length sqrt(k), so that k is the labels' variance.
      relative_errors[name].append(
        np.median(errors_of_clients, axis=1) / sizes.rank
      )
  return experiment.Result(
    claims=_fed_rep_new_client_claims(sizes, relative_errors),
    rows=_rows_by_samples(sizes, relative_errors, 'relative_error'),
    setup=dataclasses.asdict(sizes),
    draw=functools.partial(
      _draw_by_samples,
      sizes,
      relative_errors,
      'Error of a new client / variance of its labels',
    ),
  )


def _fed_rep_new_client_claims(
  sizes: FedRepSizes, relative_errors: Mapping[str, Sequence[np.ndarray]]
) -> Sequence[experiment.Claim]:
  paper = 'FedRep, figure 4'
  accurate = 0.01

  def samples_needed(name):
    mean = np.mean(relative_errors[name], axis=0)
    # The last number that does not do, and so the first that does.
    failing = np.flatnonzero(mean >= accurate)
    first = failing[-1] + 1 if failing.size else 0
    return (*sizes.sample_counts, np.inf)[first]

  return [
    experiment.below(
      "With FedRep's representation about k samples suffice: the number for "
      f"the median client's error to be below {accurate:.0%}, divided by k",
      paper,
      samples_needed(_FED_REP) / sizes.rank,
      3,
    ),
    experiment.above(
      'Alone it needs about d samples: that number divided by d',
      paper,
      samples_needed(_LOCAL) / sizes.dimension,
      0.9,
    ),
    experiment.above(
      "With FedSGD's representation the error stays large: the smallest with "
      'the most samples',
      paper,
      np.min(relative_errors[_FED_SGD], axis=0)[-1],
      0.1,
    ),
  ]


def _fed_avg_representation(settings: experiment.Settings) -> experiment.Result:
  """Whether FedAvg and D-GD learn the representation, and minimize the loss."""
  sizes = FED_AVG_FAST if settings.fast else FED_AVG_FULL
  histories = {
    start: collections.defaultdict(list) for start in ('random', 'close')
  }
  for seed, start in repeats.with_progress(
    itertools.product(repeats.seeds(settings, sizes.num_runs), histories),
    settings,
  ):
    problem = _fed_avg_problem(sizes, seed)
    distance = sizes.proposition_distance if start == 'close' else None
    for name, history in _train_averaged(
      sizes, problem, seed, distance=distance
    ).items():
      histories[start][name].append(history)
  series = {
    (start, name, quantity): np.stack([getattr(h, quantity) for h in of_runs])
    for start, by_name in histories.items()
    for name, of_runs in by_name.items()
    for quantity in ('distance', 'gradient_norm')
  }
  return experiment.Result(
    claims=_fed_avg_representation_claims(series),
    rows=[
      {
        'start': start,
        'method': name,
        'quantity': quantity,
        'round': round_number,
        'mean': mean,
        'std': std,
      }
      for (start, name, quantity), values in series.items()
      for round_number, mean, std in zip(*repeats.by_round(values))
    ],
    setup=dataclasses.asdict(sizes),
    draw=functools.partial(_draw_representation, sizes, series),
  )


def _fed_avg_representation_claims(
  series: Mapping[Any, np.ndarray],
) -> Sequence[experiment.Claim]:
  def share_left(start):
    distance = series[start, _D_GD, 'distance']
    return (distance[:, -1] / distance[:, 0]).min()

  def mean_norm_left(name):
    first, *_, last = series['random', name, 'gradient_norm'].mean(axis=0)
    return last / first

  figure_1 = f'{_FED_AVG_PAPER}, figure 1'
  figure_3 = f'{_FED_AVG_PAPER}, figure 3 left'
  proposition = f'{_FED_AVG_PAPER}, Proposition 1'
  random_fits = [
    fit_decay(distance) for distance in series['random', _FED_AVG, 'distance']
  ]
  return [
    experiment.below(
      'FedAvg finds the representation: its largest last distance',
      figure_1,
      series['random', _FED_AVG, 'distance'][:, -1].max(),
      _CLOSE,
    ),
    experiment.above(
      'It converges geometrically: the smallest R² of a line through the '
      f'logarithm of the distance, from {_FIT_START:g} down to {_CLOSE:g}',
      f'{figure_1}, Theorem 1',
      np.min([fit.r_squared for fit in random_fits]),
      0.98,
    ),
    experiment.above(
      'D-GD does not find it: the smallest share of its initial distance that '
      'is left',
      figure_1,
      share_left('random'),
      0.7,
    ),
    experiment.above(
      'D-GD does not even where it starts close by: the same share',
      proposition,
      share_left('close'),
      0.7,
    ),
    experiment.below(
      'FedAvg does where D-GD does not: its largest last distance from there',
      proposition,
      series['close', _FED_AVG, 'distance'][:, -1].max(),
      _CLOSE,
    ),
    experiment.below(
      'D-GD comes to a stationary point of the global loss: the share of its '
      "gradient's norm that is left, both means over the runs",
      figure_3,
      mean_norm_left(_D_GD),
      1e-3,
    ),
    experiment.above(
      'FedAvg does not: the same share', figure_3, mean_norm_left(_FED_AVG), 0.1
    ),
  ]


def _fed_avg_new_client(settings: experiment.Settings) -> experiment.Result:
  """What a new client gets by fine-tuning FedAvg's model, and D-GD's."""
  sizes = FED_AVG_FAST if settings.fast else FED_AVG_FULL
  errors_of_runs = collections.defaultdict(list)
  for seed in repeats.with_progress(
    repeats.seeds(settings, sizes.num_runs), settings
  ):
    problem = _fed_avg_problem(sizes, seed)
    for name, history in _train_averaged(sizes, problem, seed).items():
      errors_of_clients = new_client.fine_tuning_errors(
        history.model,
        problem,
        sizes.sample_counts,
        learning_rate=sizes.fine_tuning_learning_rate,
        num_steps=sizes.num_fine_tuning_steps,
        num_clients=sizes.num_new_clients,
      )
      errors_of_runs[name].append(errors_of_clients.mean(axis=1))
  fed_avg, d_gd = (
    np.mean(errors_of_runs[name], axis=0) for name in (_FED_AVG, _D_GD)
  )
  return experiment.Result(
    claims=[
      experiment.above(
        "A new client's error is smaller from FedAvg's model than from D-GD's: "
        "the smallest ratio of D-GD's mean error to FedAvg's, of all numbers "
        'of samples',
        f'{_FED_AVG_PAPER}, figure 3 right',
        (d_gd / fed_avg).min(),
        1,
      )
    ],
    rows=_rows_by_samples(sizes, errors_of_runs, 'error'),
    setup=dataclasses.asdict(sizes),
    draw=functools.partial(
      _draw_by_samples,
      sizes,
      errors_of_runs,
      f'Error after {sizes.num_fine_tuning_steps} steps of fine-tuning',
    ),
  )


def _fed_rep_problem(
  sizes: FedRepSizes, num_clients: int, noise_std: float, seed: int
) -> problem_lib.LinearProblem:
  return problem_lib.make_problem(
    num_clients,
    sizes.dimension,
    sizes.rank,
    samples_per_client=sizes.samples_per_client,
    noise_std=noise_std,
    seed=seed,
  )


def _fed_avg_problem(
  sizes: FedAvgSizes, seed: int
) -> problem_lib.LinearProblem:
  return problem_lib.make_problem(
    sizes.num_clients,
    sizes.dimension,
    sizes.rank,
    noise_std=sizes.noise_std,
    heads='gaussian',
    seed=seed,
  )


def _train_averaged(
  sizes: FedAvgSizes,
  problem: problem_lib.LinearProblem,
  seed: int,
  *,
  distance: Optional[float] = None,
) -> Mapping[str, simulation.History]:
  """FedAvg and D-GD from the same start.

  Args:
    seed: Seed of the start.
    distance: Distance of the start, the same in all k directions; None for a
      random start.
  """
  representation = None
  if distance is not None:
    representation = initialization.representation_at_distance(
      problem.representation, distance, seed
    )
  initial = initialization.theorem_1_initialization(
    sizes.dimension,
    sizes.rank,
    sizes.learning_rate,
    representation=representation,
    seed=seed,
  )
  return {
    name: simulation.run(method, problem, sizes.num_rounds, initial=initial)
    for name, method in (
      (
        _FED_AVG,
        methods.fed_avg(
          sizes.learning_rate, num_local_steps=sizes.num_local_steps
        ),
      ),
      (_D_GD, methods.d_gd(sizes.learning_rate)),
    )
  }


def _rows_by_samples(sizes, errors_by_method, name):
  return [
    {
      'method': method,
      'num_samples': num_samples,
      f'{name}_mean': mean,
      f'{name}_std': std,
    }
    for method, values in errors_by_method.items()
    for num_samples, mean, std in zip(
      sizes.sample_counts, *repeats.mean_and_std(values)
    )
  ]


def _draw_by_samples(sizes, errors_by_method, y_label, figure: Figure) -> None:
  num_seeds = len(next(iter(errors_by_method.values())))
  figures.prepare(figure, 6.4, 4.4, num_seeds)
  figures.draw_lines(
    figure.add_subplot(),
    {
      name: (sizes.sample_counts, *repeats.mean_and_std(values))
      for name, values in errors_by_method.items()
    },
    x_label='Samples of the new client',
    y_label=y_label,
    log_y=True,
  )


def _draw_by_num_clients(sizes, distances, figure: Figure) -> None:
  nums_clients = sizes.nums_clients
  figures.prepare(figure, 3.6 * len(nums_clients), 3.8, sizes.num_seeds)
  panels = figure.subplots(1, len(nums_clients), sharey=True)
  for axes, num_clients in zip(panels, nums_clients):
    figures.draw_lines(
      axes,
      {
        name: repeats.by_round(values)
        for (n, name), values in distances.items()
        if n == num_clients
      },
      x_label='Round',
      y_label='Principal angle distance' if axes is panels[0] else '',
      log_y=True,
      title=f'{num_clients} clients',
    )
    if axes is not panels[0]:
      axes.get_legend().remove()


def _draw_representation(sizes, series, figure: Figure) -> None:
  figures.prepare(figure, 13.2, 4.0, sizes.num_runs)
  panels = (
    ('random', 'distance', 'Principal angle distance', 'Random start'),
    (
      'close',
      'distance',
      'Principal angle distance',
      f'Start at distance {sizes.proposition_distance:g}',
    ),
    (
      'random',
      'gradient_norm',
      "Norm of the global loss's gradient",
      'Random start',
    ),
  )
  for axes, (start, quantity, label, title) in zip(
    figure.subplots(1, 3), panels
  ):
    figures.draw_lines(
      axes,
      {
        name: repeats.by_round(series[start, name, quantity])
        for name in (_FED_AVG, _D_GD)
      },
      x_label='Round',
      y_label=label,
      log_y=True,
      title=title,
    )


EXPERIMENTS = (
  experiment.Experiment(
    name='fedrep_linear_convergence',
    summary='FedRep contracts geometrically, faster with more clients and with '
    'exact heads',
    paper='FedRep, figure 3',
    uses_images=False,
    run=_fed_rep_convergence,
  ),
  experiment.Experiment(
    name='fedrep_linear_new_client',
    summary="A new client needs about k samples with FedRep's representation, "
    'd alone',
    paper='FedRep, figure 4',
    uses_images=False,
    run=_fed_rep_new_client,
  ),
  experiment.Experiment(
    name='fedavg_linear_representation',
    summary='FedAvg learns the representation; D-GD does not, but minimizes '
    'the loss',
    paper=f'{_FED_AVG_PAPER}, figures 1 and 3 left',
    uses_images=False,
    run=_fed_avg_representation,
  ),
  experiment.Experiment(
    name='fedavg_linear_new_client',
    summary="Fine-tuned on few samples, FedAvg's model beats D-GD's",
    paper=f'{_FED_AVG_PAPER}, figure 3 right',
    uses_images=False,
    run=_fed_avg_new_client,
  ),
)
