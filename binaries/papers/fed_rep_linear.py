"""Linear regression with a shared representation: what FedRep learns.

The ground truth is known (`linear.problem`).

* `fedrep_linear_samples` (figure 1): the clients' error by the number of their
  samples, with FedRep, with one model for all and alone.
* `fedrep_linear_new_client` (figure 4): how many samples a client needs that
  did not train, with a learned representation and alone.

The heads are the Q factor of a Gaussian matrix, scaled, as in the paper. The
scale is lost in the copy that we have; ours is sqrt(n), with which the mean
square of their lengths is k (Assumption 3 has each of length sqrt(k)). A new
client's head has independent normal elements.

Deviations from the paper: the dimensions and step sizes of its figures are
unreadable in its text as we have it; here they are those of `Sizes`, one step
size for all methods but FedSGD. Of figure 1 we have neither picture nor
caption, only what the text says of it. The start is random.

References:
  Collins, Hassani, Mokhtari, Shakkottai: Exploiting Shared Representations for
  Personalized Federated Learning, ICML 2021, section 5.1, figures 1 and 4.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Mapping, Sequence

import numpy as np

from binaries.papers.linear import methods, model, problem, simulation
from tff_pfl.comparisons import claims, panels, paper
from tff_pfl.comparisons import context as context_lib

_FIGURE_1, _FIGURE_4 = 'FedRep, figure 1', 'FedRep, figure 4'
FED_REP, _FED_SGD, _LOCAL = 'FedRep', 'FedSGD', 'Local only'
# The errors of an accurate model and of one that is of no use, in mean
# variances of the labels.
_ACCURATE, _USELESS = 0.01, 0.1


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
    num_test_samples: Test samples of each training client.
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


def make_problem(
  sizes: Sizes, num_clients: int, noise_std: float, seed: int
) -> problem.LinearProblem:
  """The ground truth and the clients' samples."""
  return problem.LinearProblem(
    num_clients,
    sizes.dimension,
    sizes.rank,
    samples_per_client=sizes.samples_per_client,
    noise_std=noise_std,
    seed=seed,
  )


def random_start(sizes: Sizes, seed: int) -> model.LinearModel:
  """A random representation with heads of zeros."""
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
  trained = {
    FED_REP: (methods.fed_rep(sizes.learning_rate), sizes.num_rounds),
    _FED_SGD: (fed_sgd, sizes.fed_sgd_num_rounds),
  }
  initial = random_start(sizes, seed)
  return {
    name: simulation.run(method, truth, num_rounds, initial=initial, seed=seed)
    for name, (method, num_rounds) in trained.items()
  }


def measure_samples(context: context_lib.Context) -> paper.Rows:
  """The training clients' mean error by the number of their samples."""
  sizes = context.sizes
  (num_clients,) = sizes.nums_clients
  for num_samples, seed in context.progress(
    itertools.product(sizes.sample_counts, context.seeds)
  ):
    own = dataclasses.replace(sizes, samples_per_client=num_samples)
    truth = make_problem(own, num_clients, sizes.noise_std, seed)
    samples = truth.samples()
    found = {
      name: history.regressors
      for name, history in _train(own, truth, seed).items()
    }
    found[_LOCAL] = simulation.local_only(samples.x, samples.y)
    for name, regressors in found.items():
      errors = simulation.client_errors(
        regressors, truth, sizes.num_test_samples
      )
      yield {
        'method': name,
        'seed': seed,
        'num_samples': num_samples,
        'relative_error': errors.mean() / sizes.rank,
      }


def samples_claims(table: paper.Table, sizes: Sizes) -> paper.Claims:
  """Claims on figure 1: local training and one model for all fall short."""

  def errors(method):
    """The errors by seed and number of samples."""
    return table.curve('relative_error', 'num_samples', method=method)[1]

  yield claims.measured(
    "FedRep's clients are accurate with any number of samples: their largest "
    'error',
    _FIGURE_1,
    errors(FED_REP),
    below=_ACCURATE,
  )
  yield claims.measured(
    'One model for all (FedSGD) is not, with any number: the smallest error',
    _FIGURE_1,
    errors(_FED_SGD),
    above=_USELESS,
  )
  orders = np.log10(errors(_LOCAL) / errors(_FED_SGD))
  for index, num_samples in enumerate(sizes.sample_counts):
    if num_samples >= 2 * sizes.dimension:
      yield claims.difference(
        f'With {num_samples} samples a client is better alone than with '
        "FedSGD's model: the decimal logarithm of the ratio of errors",
        _FIGURE_1,
        orders[:, index],
        below=0,
      )
    elif num_samples < sizes.dimension:
      yield claims.difference(
        f'With {num_samples} samples a client alone has a larger error than '
        'with FedRep: the decimal logarithm of their ratio',
        _FIGURE_1,
        np.log10(errors(_LOCAL) / errors(FED_REP))[:, index],
      )


def measure_new_client(context: context_lib.Context) -> paper.Rows:
  """The median new client's error, with a learned representation or none."""
  sizes = context.sizes
  (num_clients,) = sizes.nums_clients
  counts = sizes.sample_counts
  for seed in context.progress(context.seeds):
    truth = make_problem(sizes, num_clients, sizes.noise_std, seed)
    found = {
      name: simulation.with_exact_head(history.model.representation)
      for name, history in _train(sizes, truth, seed).items()
    }
    found[_LOCAL] = simulation.local_only
    for name, regressor in found.items():
      errors = simulation.new_client_errors(
        regressor, truth, counts, sizes.num_new_clients
      )
      # With as many samples as unknowns the error has no mean over clients.
      # The labels' variance, a head's square, is k on average.
      medians = np.median(errors, axis=1) / sizes.rank
      for num_samples, error in zip(counts, medians):
        yield {
          'method': name,
          'seed': seed,
          'num_samples': num_samples,
          'relative_error': error,
        }


def samples_needed(table: paper.Table, method: str) -> np.ndarray:
  """The number of samples by seed from which on errors are below 1%.

  Args:
    table: With the columns `method`, `num_samples` and `relative_error`.

  Returns:
    `[num_seeds]`, infinite where no number suffices.
  """
  counts, errors = table.curve('relative_error', 'num_samples', method=method)
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
    samples_needed(table, FED_REP) / sizes.rank,
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
)
