"""Linear regression with a shared representation: what FedRep learns.

The ground truth is known (`problem`).

* Figure 1: the clients' error by their number of samples, with FedRep, with one
  model for all, and alone.
* Figure 4: the number of samples that a client that did not train needs, with a
  learned representation and alone.
* Figure 3 and appendix A.1: the principal angle distance by round, in [0, 1],
  of FedRep and of methods that take gradient steps on the head instead of its
  minimum, from two starts, compared with Theorem 1 (`theorem`).

Heads are normalized (Assumption 3): each has the length sqrt(k), including new
clients' heads. The start is random except for figure 3 and Theorem 1. These
start from the method of moments of FedRep's theory, because GD-GD needs a good
start. The paper's start is projected gradient descent on another objective.

Theorem 1's bound assumes new samples in each round, and enough of them up to an
unspecified constant. (The formulas are lost in our copy, but FedDAR's Theorem
A.4 has the same bound.) Here a client has the same few samples in all rounds.
The bound is checked with figure 3's number of samples and with more, with all
clients in each round, and with the largest step size that the theorem allows.
For 10% of the clients the bound is about the worst possible cohort, whose heads
have almost one direction, and guarantees almost nothing.

The studies are in `fed_rep`, with the reference.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Optional

import numpy as np
from matplotlib.figure import Figure

from tff_pfl import errors as errors_lib
from tff_pfl.studies import claims, measures
from tff_pfl.studies.numbers import Numbers
from tff_pfl.studies.study import Study

from .. import panels
from . import methods, model, problem, simulation, theorem

_FIGURE_3 = 'FedRep, figure 3'
_FED_REP, _FED_SGD, _LOCAL = 'FedRep', 'FedSGD', 'Local only'
_GD_GD, _10GD_GD = 'GD-GD', '10GD-GD'
_FED_REP_NOISE = 'FedRep, noisy labels'
_FED_REP_ALL = 'FedRep, all clients in a round'
_RANDOM_START = '{}, random start'.format
# Functions of the learning rate for the methods of figure 3.
_BY_STEPS = {
  _FED_REP: methods.fed_rep,
  _GD_GD: methods.gd_gd,
  _10GD_GD: functools.partial(methods.gd_gd, num_head_steps=10),
}
# The errors of an accurate and of a useless model, in mean variances of labels.
_ACCURATE, _USELESS = simulation.ACCURATE, 0.1
# Rates that differ by a smaller share count as alike.
_ALIKE = 0.1
# A distance that gradient steps on heads reach from any start.
_ROUGH = 0.1


@dataclasses.dataclass(frozen=True)
class Sizes:
  """Sizes of the studies.

  Attributes:
    num_clients: Training clients (n).
    dimension: Length of an input (d).
    rank: Columns of the representation (k).
    samples_per_client: Samples of a client, the same in each round (m).
    noise_std: Standard deviation of the labels' noise, if there is any.
    learning_rate: Learning rate of FedRep.
    sample_counts: Numbers of samples of a new client. In figure 1 numbers of
      samples of the training clients, instead of `samples_per_client`.
    num_new_clients: New clients for each seed.
    fed_sgd_learning_rate: Learning rate of FedSGD, which is smaller because its
      gradients are noisy.
    fed_sgd_batch_size: Samples that a client draws in a round of FedSGD.
  """

  num_clients: int = 100
  dimension: int = 20
  rank: int = 2
  samples_per_client: int = 5
  noise_std: float = 1e-3
  learning_rate: float = 0.2
  num_rounds: int = 500
  sample_counts: Sequence[int] = ()
  num_new_clients: int = 100
  num_test_samples: int = 200
  fed_sgd_learning_rate: float = 0.05
  fed_sgd_batch_size: int = 5
  fed_sgd_num_rounds: int = 500


@dataclasses.dataclass(frozen=True)
class ConvergenceSizes(Sizes):
  """Sizes of figure 3.

  Attributes:
    nums_clients: Numbers of training clients, fewest first.
    participation: Fraction of the clients in a round.
    sample_counts: Numbers of samples for the check of Theorem 1. Everything
      else uses `samples_per_client`.
    random_start: True for a random start instead of the method of moments.
    learning_rates: Learning rates for representation and head. Each method has
      the best one for each number of clients.
  """

  num_clients: Optional[int] = None
  nums_clients: Sequence[int] = (10, 100, 1000)
  dimension: int = 10
  num_rounds: int = 200
  sample_counts: Sequence[int] = (5, 20)
  participation: float = 0.1
  random_start: bool = False
  learning_rates: Sequence[float] = (0.05, 0.1, 0.2, 0.4, 0.8, 1.6)


def _problem(sizes, seed):
  return problem.LinearProblem.of(
    sizes, head_distribution='normalized', seed=seed
  )


def _random_start(sizes, seed):
  return model.with_zero_head(
    model.random_representation(sizes.dimension, sizes.rank, seed)
  )


def _train(
  sizes: Sizes, truth: problem.LinearProblem, seed: int
) -> Mapping[str, simulation.History]:
  """FedRep and FedSGD from a random start."""
  fed_sgd = methods.fed_sgd(
    sizes.fed_sgd_learning_rate, batch_size=sizes.fed_sgd_batch_size
  )
  initial = _random_start(sizes, seed)
  return {
    name: simulation.run_method(
      method, truth, num_rounds, initial=initial, seed=seed
    )
    for name, method, num_rounds in (
      (_FED_REP, methods.fed_rep(sizes.learning_rate), sizes.num_rounds),
      (_FED_SGD, fed_sgd, sizes.fed_sgd_num_rounds),
    )
  }


def _row(method, seed, num_samples, error, sizes):
  """A row with the error divided by the labels' mean variance, which is k."""
  return {
    'method': method,
    'seed': seed,
    'num_samples': num_samples,
    'relative_error': error / sizes.rank,
  }


def measure_samples(context: measures.Context) -> measures.Rows:
  """The training clients' mean error, by their number of samples."""
  for num_samples, seed in context.each(context.parameters.sample_counts):
    sizes = dataclasses.replace(
      context.parameters, samples_per_client=num_samples
    )
    truth = _problem(sizes, seed)
    samples = truth.samples()
    trained = _train(sizes, truth, seed)
    results = {name: history.regressors for name, history in trained.items()}
    results[_LOCAL] = simulation.local_only(samples.x, samples.y)
    for name, regressors in results.items():
      errors = simulation.client_errors(
        regressors, truth, sizes.num_test_samples
      )
      yield _row(name, seed, num_samples, errors.mean(), sizes)


def samples_claims(numbers: Numbers, study: Study) -> Iterator[claims.Claim]:
  """Claims about figure 1: local training and one model for all fall short."""
  fed_rep, fed_sgd, alone = (
    numbers.curve('relative_error', 'num_samples', method=method)
    for method in (_FED_REP, _FED_SGD, _LOCAL)
  )
  yield claims.measured(
    "FedRep's clients are accurate with any number of samples: their largest "
    'error',
    fed_rep,
    below=_ACCURATE,
  )
  yield claims.measured(
    'One model for all (FedSGD) is not, with any number: the smallest error',
    fed_sgd,
    above=_USELESS,
  )
  counts = np.array(study.parameters.sample_counts)
  many = counts >= 2 * study.parameters.dimension
  few = counts < study.parameters.dimension
  yield from claims.each(
    'With {} samples a client alone has a larger error than with FedRep: the '
    'decimal logarithm of their ratio',
    counts[few],
    np.log10(alone / fed_rep)[:, few],
  )
  yield from claims.each(
    "With {} samples a client is better alone than with FedSGD's model: the "
    'decimal logarithm of the ratio of errors',
    counts[many],
    np.log10(alone / fed_sgd)[:, many],
    below=0,
  )


def measure_new_client(context: measures.Context) -> measures.Rows:
  """The median error of new clients, with a learned representation or none."""
  sizes = context.parameters
  for (seed,) in context.each():
    truth = _problem(sizes, seed)
    regressors = {
      name: simulation.with_exact_head(history.model.representation)
      for name, history in _train(sizes, truth, seed).items()
    }
    regressors[_LOCAL] = simulation.local_only
    for name, regressor in regressors.items():
      errors = simulation.new_client_errors(
        regressor, truth, sizes.sample_counts, sizes.num_new_clients
      )
      # The error has no mean over clients for as many samples as unknowns.
      medians = np.median(errors, axis=1)
      for num_samples, error in zip(sizes.sample_counts, medians):
        yield _row(name, seed, num_samples, error, sizes)


def samples_needed(numbers: Numbers, method: str) -> np.ndarray:
  """The number of samples from which on errors are below 1%, by seed.

  Returns:
    `[num_seeds]`, infinite if no number suffices.
  """
  counts = numbers.distinct('num_samples')
  errors = numbers.curve('relative_error', 'num_samples', method=method)
  return simulation.first_lasting(counts, errors >= _ACCURATE)


def new_client_claims(numbers: Numbers, study: Study) -> Iterator[claims.Claim]:
  """Claims about figure 4: k samples suffice instead of d."""
  sizes = study.parameters
  yield claims.measured(
    "With FedRep's representation about k samples suffice: the largest number "
    f"for the median client's error to be below {_ACCURATE:.0%}, divided by k",
    samples_needed(numbers, _FED_REP) / sizes.rank,
    below=3,
  )
  yield claims.measured(
    'Alone it needs about d samples: the smallest such number divided by d',
    samples_needed(numbers, _LOCAL) / sizes.dimension,
    above=0.9,
  )
  yield claims.measured(
    "With FedSGD's representation the error stays large: the smallest with "
    'the most samples',
    numbers.values(
      'relative_error', method=_FED_SGD, num_samples=sizes.sample_counts[-1]
    ),
    above=_USELESS,
  )


def _run(sizes, method, seed):
  """The ground truth and the history of a method's rounds."""
  truth = _problem(sizes, seed)
  initial = (
    _random_start(sizes, seed)
    if sizes.random_start
    else model.with_zero_head(model.method_of_moments(truth))
  )
  return truth, simulation.run_method(
    method,
    truth,
    sizes.num_rounds,
    initial=initial,
    seed=seed,
    participation=sizes.participation,
  )


def _best_rate(sizes, build, seeds):
  """The learning rate that needs the fewest rounds to `simulation.CLOSE`.

  Among rates that need as many, it is the one with the least geometric mean of
  the last distances. Below `CLOSE`, rounding errors would choose.
  """

  def cost(rate):
    num_rounds, log_distance = 0, 0.0
    for seed in seeds:
      try:
        distance = _run(sizes, build(rate), seed)[1].distance
      except errors_lib.RunError:
        distance = np.ones(sizes.num_rounds + 1)
      num_rounds += simulation.rounds_to(distance, simulation.CLOSE)
      log_distance += np.log(distance[-1])
    return num_rounds, log_distance

  return min(sizes.learning_rates, key=cost)


def measure_convergence(context: measures.Context) -> measures.Rows:
  """The distance by round, and the rate at which it falls in each run."""
  sizes = context.parameters
  exact = {
    n: dataclasses.replace(sizes, num_clients=n, noise_std=0.0)
    for n in sizes.nums_clients
  }
  # None of these seeds is reported.
  other_seeds = [seed + len(context.seeds) for seed in context.seeds]
  best = {
    (name, n): _best_rate(exact[n], build, other_seeds)
    for name, build in _BY_STEPS.items()
    for n in exact
  }
  random_start = {'random_start': True}
  compared = {
    **{name: (name, {}) for name in _BY_STEPS},
    _FED_REP_NOISE: (_FED_REP, {'noise_std': sizes.noise_std}),
    **{_RANDOM_START(of): (of, random_start) for of in (_FED_REP, _GD_GD)},
  }
  for n, name, seed in context.each(exact, compared):
    of, changes = compared[name]
    rate = best[of, n]
    changed = dataclasses.replace(exact[n], **changes)
    _, history = _run(changed, _BY_STEPS[of](rate), seed)
    columns = {'num_clients': n, 'seed': seed, 'method': name}
    columns['num_samples'] = sizes.samples_per_client
    *rows, last = simulation.rows(history, columns)
    yield from rows
    rounds = simulation.rounds_to(history.distance, _ROUGH)
    yield {**last, 'rounds_to_rough': rounds, 'learning_rate': rate}
  for n, num_samples, seed in context.each(exact, sizes.sample_counts):
    of_all = dataclasses.replace(
      exact[n], participation=1.0, samples_per_client=num_samples
    )
    rate = theorem.largest_learning_rate(_problem(of_all, seed).heads)
    truth, history = _run(of_all, methods.fed_rep(rate), seed)
    columns = {'num_clients': n, 'seed': seed, 'method': _FED_REP_ALL}
    columns['num_samples'] = num_samples
    yield from theorem.rows(history, truth.heads, rate, columns)


def convergence_claims(
  numbers: Numbers, study: Study
) -> Iterator[claims.Claim]:
  """Claims about figure 3: FedRep is fastest, above all with many clients."""
  sizes = study.parameters
  last = numbers.where(round=sizes.num_rounds)
  nums_clients = sizes.nums_clients

  def of_last(column, method):
    """The last values, by seed and number of clients."""
    return last.curve(column, 'num_clients', method=method)

  for num_clients, num_samples in itertools.product(
    nums_clients, sizes.sample_counts
  ):
    yield from theorem.make_claims(
      f'{num_clients} clients, {num_samples} samples',
      numbers.where(num_clients=num_clients, num_samples=num_samples),
      _FED_REP_ALL,
      'FedRep, Theorem 1',
    )
  # A method that never comes near counts as all rounds. But FedRep is not ahead
  # of another method if it does not come near itself.
  exact = of_last('rounds_to_near', _FED_REP)
  reached = np.where(exact < sizes.num_rounds, exact, np.nan)
  yield from claims.each(
    f'FedRep needs fewer rounds to a distance of {simulation.NEAR:g} with '
    '{0[1]} clients than with {0[0]}: the difference',
    zip(nums_clients, nums_clients[1:]),
    exact[:, :-1] - reached[:, 1:],
    source=_FIGURE_3,
  )
  for other in (_GD_GD, _10GD_GD):
    steps = of_last('rounds_to_near', other)
    yield from claims.each(
      f'FedRep needs fewer rounds to a distance of {simulation.NEAR:g} than '
      f'{other} with {{}} clients: the difference',
      nums_clients,
      steps - reached,
      source=_FIGURE_3,
    )
    yield claims.difference(
      f'{other} gains less from more clients than FedRep: the difference of '
      f'the factors by which the rounds to {simulation.NEAR:g} fall',
      exact[:, 0] / exact[:, -1] - steps[:, 0] / steps[:, -1],
      source=f'{_FIGURE_3}, section 5.1',
    )
  # FedRep does not need a warm start.
  rates = of_last('rate', _FED_REP)
  share = np.abs(of_last('rate', _RANDOM_START(_FED_REP)) / rates - 1)
  fed_rep_loses, gd_gd_loses = (
    of_last('rounds_to_rough', _RANDOM_START(method))
    - of_last('rounds_to_rough', method)
    for method in (_FED_REP, _GD_GD)
  )
  yield from claims.each(
    '{} clients: FedRep converges alike from a random start: by which share '
    'its rate differs',
    nums_clients,
    share,
    source='FedRep, appendix A.1',
    below=_ALIKE,
  )
  yield from claims.each(
    '{} clients: GD-GD is more sensitive to its start: by how many rounds to '
    f'{_ROUGH:g} more than FedRep a random one sets it back',
    nums_clients,
    gd_gd_loses - fed_rep_loses,
    source='FedRep, appendix A.1',
  )


def draw_convergence(numbers: Numbers, study: Study, figure: Figure) -> None:
  """Draws the distance by round, with as many samples as in figure 3."""
  theorem.curves(
    panel='num_clients', title='{} clients'.format, shared_legend=True
  )(
    numbers.where(num_samples=study.parameters.samples_per_client),
    study,
    figure,
  )


# Draws the errors by number of samples.
curves = functools.partial(
  panels.curves, 'relative_error', over='num_samples', log_y=True
)
