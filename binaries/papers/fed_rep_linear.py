"""Linear regression with a shared representation: what FedRep learns.

The ground truth is known (`linear.problem`).

* `fedrep_linear_samples` (figure 1): the clients' error by the number of their
  samples, with FedRep, with one model for all and alone.
* `fedrep_linear_new_client` (figure 4): how many samples a client needs that
  did not train, with a learned representation and alone.
* `fedrep_linear_convergence` (figure 3, appendix A.1): the principal angle
  distance by round, in [0, 1], of FedRep and of methods that take gradient
  steps on the head instead of its minimum, from two starts; and what Theorem 1
  promises of FedRep (`linear.theorem`).

The heads are the Q factor of a Gaussian matrix, scaled, as in the paper. The
scale is lost in the copy that we have; ours is sqrt(n), with which the mean
square of their lengths is k (Assumption 3 has each of length sqrt(k)). A new
client's head has independent normal elements.

Deviations from the paper: the dimensions and step sizes of its figures are
unreadable in its text as we have it; here they are those of `Sizes`, one step
size for all methods but FedSGD. Of figure 1 and of appendix A.1 we have neither
picture nor caption, only what the text says of them. The start is random, but
in figure 3: GD-GD needs a good one, which is the method of moments of FedRep's
theory instead of projected gradient descent on another objective. There clients
have few samples: with more, ten gradient steps find almost the exact head, and
10GD-GD almost FedRep's rate.

Theorem 1's bound (the formulas of the copy that we have are lost; FedDAR's
Theorem A.4 has the same one) is for new samples in each round, and for enough
of them, but for an unspecified constant. Here a client has the same few in all
rounds. The step size is one that the theorem allows, up to 1 / 4, as all
singular values of the heads / sqrt(n) are 1. The bound is for all clients in a
round. With 10% of them it is about the worst cohort that can be drawn, whose
heads have almost one direction, and promises next to nothing.

References:
  Collins, Hassani, Mokhtari, Shakkottai: Exploiting Shared Representations for
  Personalized Federated Learning, ICML 2021, section 5.1, figures 1, 3 and 4,
  appendix A.1.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence

import numpy as np

from binaries.papers.engine import claims, panels, paper, trials
from binaries.papers.linear import methods, model, problem, simulation, theorem

_FIGURE_1, _FIGURE_3, _FIGURE_4 = (f'FedRep, figure {i}' for i in (1, 3, 4))
_THEOREM_1, _A_1 = 'FedRep, Theorem 1', 'FedRep, appendix A.1'
_FED_REP, _FED_SGD, _LOCAL = 'FedRep', 'FedSGD', 'Local only'
_GD_GD, _10GD_GD = 'GD-GD', '10GD-GD'
_FED_REP_NOISE = 'FedRep, noisy labels'
_RANDOM_START = '{}, random start'.format
# The errors of an accurate model and of one that is of no use, in mean
# variances of the labels.
_ACCURATE, _USELESS = 0.01, 0.1
# Rates that differ by a smaller share are alike.
_ALIKE = 0.1


@dataclasses.dataclass(frozen=True)
class Sizes:
  """Sizes of the experiments.

  Attributes:
    nums_clients: Numbers of training clients (n), fewest first.
    dimension: Length of an input (d).
    rank: Columns of the representation (k).
    samples_per_client: Samples, the same in each round (m).
    noise_std: Standard deviation of the labels' noise, where there is any.
    learning_rate: Learning rate of all methods but FedSGD, for representation
      and head.
    num_seeds: Ground truths.
    sample_counts: Numbers of samples of a new client; of figure 1 those of the
      training clients, instead of `samples_per_client`.
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
  num_seeds: int = 5
  sample_counts: Sequence[int] = ()
  num_new_clients: int = 100
  num_test_samples: int = 200
  fed_sgd_learning_rate: float = 0.05
  fed_sgd_batch_size: int = 5
  fed_sgd_num_rounds: int = 500


@dataclasses.dataclass(frozen=True)
class ConvergenceSizes(Sizes):
  """Sizes of `fedrep_linear_convergence`.

  Attributes:
    participation: The fraction of the clients in a round, where it is not all.
  """

  participation: float = 0.1

  @property
  def fed_rep_partial(self) -> str:
    """The name of FedRep with few clients in a round."""
    return f'FedRep, {self.participation:.0%} of clients'


SAMPLES_FULL = Sizes(
  nums_clients=(100,), sample_counts=(5, 10, 15, 20, 25, 30, 40)
)
SAMPLES_FAST = dataclasses.replace(
  SAMPLES_FULL, sample_counts=(10, 30), num_rounds=200, num_seeds=1
)
NEW_CLIENT_FULL = Sizes(
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
CONVERGENCE_FULL = ConvergenceSizes(nums_clients=(50, 100, 200, 400))
CONVERGENCE_FAST = ConvergenceSizes(nums_clients=(50, 200), num_seeds=1)


def _problem(sizes, seed, *, num_clients=None, noise_std=None):
  """The ground truth and the clients' samples."""
  return problem.LinearProblem(
    sizes.nums_clients[0] if num_clients is None else num_clients,
    sizes.dimension,
    sizes.rank,
    samples_per_client=sizes.samples_per_client,
    noise_std=sizes.noise_std if noise_std is None else noise_std,
    seed=seed,
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
    name: simulation.run(method, truth, num_rounds, initial=initial, seed=seed)
    for name, method, num_rounds in (
      (_FED_REP, methods.fed_rep(sizes.learning_rate), sizes.num_rounds),
      (_FED_SGD, fed_sgd, sizes.fed_sgd_num_rounds),
    )
  }


def _row(method, seed, num_samples, error, sizes):
  """A row; an error is divided by the labels' mean variance, which is k."""
  return {
    'method': method,
    'seed': seed,
    'num_samples': num_samples,
    'relative_error': error / sizes.rank,
  }


def measure_samples(context: trials.Context) -> paper.Rows:
  """The training clients' mean error by the number of their samples."""
  for num_samples, seed in context.each(context.sizes.sample_counts):
    sizes = dataclasses.replace(context.sizes, samples_per_client=num_samples)
    truth = _problem(sizes, seed)
    samples = truth.samples()
    found = {
      name: history.regressors
      for name, history in _train(sizes, truth, seed).items()
    }
    found[_LOCAL] = simulation.local_only(samples.x, samples.y)
    for name, regressors in found.items():
      errors = simulation.client_errors(
        regressors, truth, sizes.num_test_samples
      )
      yield _row(name, seed, num_samples, errors.mean(), sizes)


def samples_claims(table: paper.Table, sizes: Sizes) -> paper.Claims:
  """Claims on figure 1: local training and one model for all fall short."""
  fed_rep, fed_sgd, alone = (
    table.curve('relative_error', 'num_samples', method=method)
    for method in (_FED_REP, _FED_SGD, _LOCAL)
  )
  yield claims.measured(
    "FedRep's clients are accurate with any number of samples: their largest "
    'error',
    _FIGURE_1,
    fed_rep,
    below=_ACCURATE,
  )
  yield claims.measured(
    'One model for all (FedSGD) is not, with any number: the smallest error',
    _FIGURE_1,
    fed_sgd,
    above=_USELESS,
  )
  for index, num_samples in enumerate(sizes.sample_counts):
    if num_samples >= 2 * sizes.dimension:
      yield claims.difference(
        f'With {num_samples} samples a client is better alone than with '
        "FedSGD's model: the decimal logarithm of the ratio of errors",
        _FIGURE_1,
        np.log10(alone / fed_sgd)[:, index],
        below=0,
      )
    elif num_samples < sizes.dimension:
      yield claims.difference(
        f'With {num_samples} samples a client alone has a larger error than '
        'with FedRep: the decimal logarithm of their ratio',
        _FIGURE_1,
        np.log10(alone / fed_rep)[:, index],
      )


def measure_new_client(context: trials.Context) -> paper.Rows:
  """The median new client's error, with a learned representation or none."""
  sizes = context.sizes
  for (seed,) in context.each():
    truth = _problem(sizes, seed)
    found = {
      name: simulation.with_exact_head(history.model.representation)
      for name, history in _train(sizes, truth, seed).items()
    }
    found[_LOCAL] = simulation.local_only
    for name, regressor in found.items():
      errors = simulation.new_client_errors(
        regressor, truth, sizes.sample_counts, sizes.num_new_clients
      )
      # With as many samples as unknowns the error has no mean over clients.
      medians = np.median(errors, axis=1)
      for num_samples, error in zip(sizes.sample_counts, medians):
        yield _row(name, seed, num_samples, error, sizes)


def samples_needed(table: paper.Table, method: str) -> np.ndarray:
  """The number of samples by seed from which on errors are below 1%.

  Returns:
    `[num_seeds]`, infinite where no number suffices.
  """
  counts = table.distinct('num_samples')
  errors = table.curve('relative_error', 'num_samples', method=method)
  failing = errors >= _ACCURATE
  # One after the last number that does not do.
  first = failing.shape[1] - np.argmax(failing[:, ::-1], axis=1)
  first = np.where(failing.any(axis=1), first, 0)
  return np.append(counts, np.inf)[first]


def new_client_claims(table: paper.Table, sizes: Sizes) -> paper.Claims:
  """Claims on figure 4: k samples suffice instead of d."""
  yield claims.measured(
    "With FedRep's representation about k samples suffice: the largest number "
    f"for the median client's error to be below {_ACCURATE:.0%}, divided by k",
    _FIGURE_4,
    samples_needed(table, _FED_REP) / sizes.rank,
    below=3,
  )
  yield claims.measured(
    'Alone it needs about d samples: the smallest such number divided by d',
    _FIGURE_4,
    samples_needed(table, _LOCAL) / sizes.dimension,
    above=0.9,
  )
  yield claims.measured(
    "With FedSGD's representation the error stays large: the smallest with "
    'the most samples',
    _FIGURE_4,
    table.values(
      'relative_error', method=_FED_SGD, num_samples=sizes.sample_counts[-1]
    ),
    above=_USELESS,
  )


def measure_convergence(context: trials.Context) -> paper.Rows:
  """The distance by round, and the rate at which it fell in each run."""
  sizes = context.sizes
  rate = sizes.learning_rate
  random_start = _RANDOM_START(_FED_REP), _RANDOM_START(_GD_GD)
  compared = {
    _FED_REP: methods.fed_rep(rate),
    _GD_GD: methods.gd_gd(rate),
    _10GD_GD: methods.gd_gd(rate, num_head_steps=10),
    _FED_REP_NOISE: methods.fed_rep(rate),
    sizes.fed_rep_partial: methods.fed_rep(rate),
    random_start[0]: methods.fed_rep(rate),
    random_start[1]: methods.gd_gd(rate),
  }
  for num_clients, name, seed in context.each(sizes.nums_clients, compared):
    noise_std = sizes.noise_std if name == _FED_REP_NOISE else 0.0
    truth = _problem(sizes, seed, num_clients=num_clients, noise_std=noise_std)
    if name in random_start:
      initial = _random_start(sizes, seed)
    else:
      initial = model.with_zero_head(model.method_of_moments(truth))
    is_partial = name == sizes.fed_rep_partial
    history = simulation.run(
      compared[name],
      truth,
      sizes.num_rounds,
      initial=initial,
      seed=seed,
      participation=sizes.participation if is_partial else 1.0,
    )
    columns = {'num_clients': num_clients, 'seed': seed, 'method': name}
    if name == _FED_REP:
      yield from theorem.rows(history, truth.heads, rate, columns)
    else:
      yield from simulation.rows(history, columns)


def convergence_claims(
  table: paper.Table, sizes: ConvergenceSizes
) -> paper.Claims:
  """Figure 3: FedRep is fastest, and the more so the more clients there are."""
  last = table.where(round=sizes.num_rounds)
  nums_clients = sizes.nums_clients

  def of_last(column, method):
    """The last values by seed and number of clients."""
    return last.curve(column, 'num_clients', method=method)

  for num_clients in nums_clients:
    yield from theorem.make_claims(
      f'{num_clients} clients',
      table.where(num_clients=num_clients),
      _FED_REP,
      f'{_FIGURE_3}, Theorem 1',
    )
    yield claims.measured(
      f'{num_clients} clients: it converges with {sizes.participation:.0%} of '
      'them in a round: its largest last distance',
      f'{_THEOREM_1}, Algorithm 2',
      last.values(
        'distance', num_clients=num_clients, method=sizes.fed_rep_partial
      ),
      below=simulation.CLOSE,
    )
  rates = of_last('rate', _FED_REP)
  yield from claims.each(
    '{0[1]} clients make FedRep faster than {0[0]}: the difference of its '
    'rates',
    _FIGURE_3,
    zip(nums_clients, nums_clients[1:]),
    np.diff(rates, axis=1),
  )
  # GD-GD does not come as close. What comes nowhere near counts as all rounds.
  for other, column, distance in (
    (_GD_GD, 'rounds_to_near', simulation.NEAR),
    (_10GD_GD, 'rounds_to_close', simulation.CLOSE),
  ):
    exact, steps = of_last(column, _FED_REP), of_last(column, other)
    yield from claims.each(
      f'FedRep needs fewer rounds to a distance of {distance:g} than {other} '
      'with {} clients: the difference',
      _FIGURE_3,
      nums_clients,
      steps - exact,
    )
    yield claims.difference(
      f'{other} gains less from more clients than FedRep: the difference of '
      f'the factors by which the rounds to {distance:g} fall',
      f'{_FIGURE_3}, section 5.1',
      exact[:, 0] / exact[:, -1] - steps[:, 0] / steps[:, -1],
    )
  # FedRep does not need a warm start.
  share = np.abs(of_last('rate', _RANDOM_START(_FED_REP)) / rates - 1)
  fed_rep_loses, gd_gd_loses = (
    of_last('rounds_to_near', _RANDOM_START(method))
    - of_last('rounds_to_near', method)
    for method in (_FED_REP, _GD_GD)
  )
  for index, num_clients in enumerate(nums_clients):
    yield claims.difference(
      f'{num_clients} clients: FedRep converges alike from a random start: by '
      'which share its rate differs',
      _A_1,
      share[:, index],
      below=_ALIKE,
    )
    yield claims.difference(
      f'{num_clients} clients: GD-GD is more sensitive to its start: by how '
      f'many rounds to {simulation.NEAR:g} more than FedRep a random one sets '
      'it back',
      _A_1,
      (gd_gd_loses - fed_rep_loses)[:, index],
    )


_curves = functools.partial(
  panels.curves, 'relative_error', over='num_samples', log_y=True
)
EXPERIMENTS = (
  paper.Experiment(
    name='fedrep_linear_samples',
    summary='FedRep is accurate where clients alone have too few samples and '
    'one model cannot suit all',
    paper=_FIGURE_1,
    measure=measure_samples,
    claims=samples_claims,
    draw=_curves(
      x_label='Samples of each client',
      y_label='Mean error of the clients / mean variance of labels',
    ),
    full={None: SAMPLES_FULL},
    fast=SAMPLES_FAST,
  ),
  paper.Experiment(
    name='fedrep_linear_new_client',
    summary="A new client needs about k samples with FedRep's representation, "
    'd alone',
    paper=_FIGURE_4,
    measure=measure_new_client,
    claims=new_client_claims,
    draw=_curves(
      x_label='Samples of the new client',
      y_label='Median error of new clients / mean variance of labels',
    ),
    full={None: NEW_CLIENT_FULL},
    fast=NEW_CLIENT_FAST,
  ),
  paper.Experiment(
    name='fedrep_linear_convergence',
    summary='FedRep contracts geometrically, faster with more clients and with '
    'exact heads',
    paper=f'{_FIGURE_3} and appendix A.1',
    measure=measure_convergence,
    claims=convergence_claims,
    draw=theorem.curves(
      panel='num_clients', title='{} clients'.format, shared_legend=True
    ),
    full={None: CONVERGENCE_FULL},
    fast=CONVERGENCE_FAST,
  ),
)
