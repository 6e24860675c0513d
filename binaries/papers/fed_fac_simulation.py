"""FedFac's simulation: does factor analysis find which neurons are shared?

The data (section 4.3.1): client c has covariates x = (x^p, x^s). A share alpha
of them are x^s ~ N(0, I), the others x^p ~ N(mu_c, Sigma) with mu_c ~ N(0, I)
and Sigma_ij = 0.5^|i - j|. Labels come from a network with one hidden layer of
m neurons. A share p of the neurons have the same weights for all clients,
U(-0.1, 0.1) on x^p and U(-1, 1) on x^s. The others are the client's own,
N(nu_c, I) on x^p and U(-0.1, 0.1) on x^s. The head is a ~ N(0, I). A network of
the same size with the given a is trained under five partitions of its neurons:
the true one, the oracle's (factor analysis of the true weights), static
FedFac's, dynamic FedFac's, and a random one.

'static' keeps the partition of dynamic FedFac's first round, which depends on
the weights after all clients' first local training. The deviations in `fed_fac`
include what the paper leaves open.

References:
  Wang, Tang, Li: Factor-Assisted Federated Learning for Personalized
  Optimization with Heterogeneous Data, arXiv:2312.04281, section 4.3, figures 6
  and 7.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import NamedTuple, Union

import numpy as np
import tensorflow as tf
from matplotlib.figure import Figure

import tff_pfl as pfl
from tff_pfl import plots
from tff_pfl.methods.shared import factor_analysis
from tff_pfl.runtime import base as runtime_base
from tff_pfl.studies import claims, measures
from tff_pfl.studies.numbers import Numbers
from tff_pfl.studies.study import Study

from . import panels, two_layer

_TRUE, _ORACLE, _STATIC, _DYNAMIC = 'true', 'oracle', 'static', 'dynamic'
_RANDOM, _DYNAMIC_UPDATES = 'random', 'dynamic, updates'
_ALIKE = (_TRUE, _ORACLE, _STATIC, _DYNAMIC)


@dataclasses.dataclass(frozen=True)
class Sizes:
  """Sizes and hyperparameters.

  Attributes:
    num_clients: C.
    num_inputs: d.
    num_neurons: m.
    num_examples: Examples of a client for training, and as many for tests.
    middle: (p, alpha), the shared parts of the neurons and of the covariates.
      Each stays at this value while the other one varies.
    others: Further pairs (p, alpha).
    random_starts: True to also run the middle from random weights.
    start_noise: Standard deviation of the noise that is added to true weights.
    explained_variance: kappa.
  """

  num_clients: int = 100
  num_inputs: int = 100
  num_neurons: int = 200
  num_examples: int = 100
  middle: tuple[float, float] = (0.5, 0.4)
  others: Sequence[tuple[float, float]] = (
    (0.3, 0.4),
    (0.7, 0.4),
    (0.5, 0.2),
    (0.5, 0.6),
  )
  random_starts: bool = True
  start_noise: float = 0.1
  explained_variance: float = 0.75
  num_rounds: int = 20
  learning_rate: float = 0.05
  batch_size: int = 20


class Problem(NamedTuple):
  """The network of the labels, and the data for `two_layer.run_rounds`.

  Attributes:
    weights: The clients' true neurons, `[clients, inputs, neurons]`.
    is_personal: bool `[neurons]`, True for a client's own neurons.
    head: a, `[neurons]`, scaled so that the outputs have variance 1.
    bias: b, minus the median of the outputs.
  """

  weights: np.ndarray
  is_personal: np.ndarray
  head: np.ndarray
  bias: float
  train: pfl.Examples
  test: pfl.Examples


def make_problem(
  sizes: Sizes, neurons_shared: float, covariates_shared: float, seed: int
) -> Problem:
  """Draws a problem.

  Args:
    neurons_shared: p, in (0, 1).
    covariates_shared: alpha, in [0, 1].
  """
  rng = np.random.default_rng(seed)
  num_clients = sizes.num_clients
  num_personal = round((1 - neurons_shared) * sizes.num_neurons)
  num_common = round(covariates_shared * sizes.num_inputs)
  num_own = sizes.num_inputs - num_common
  is_personal = np.arange(sizes.num_neurons) < num_personal
  head = rng.normal(size=sizes.num_neurons)
  weights = np.empty([num_clients, sizes.num_inputs, sizes.num_neurons])
  shape = [sizes.num_neurons - num_personal]
  weights[:, :num_own, ~is_personal] = rng.uniform(-0.1, 0.1, [num_own, *shape])
  weights[:, num_own:, ~is_personal] = rng.uniform(-1, 1, [num_common, *shape])
  centers = rng.normal(size=[num_clients, num_own, 1])
  weights[:, :num_own, is_personal] = centers + rng.normal(
    size=[num_clients, num_own, num_personal]
  )
  weights[:, num_own:, is_personal] = rng.uniform(
    -0.1, 0.1, [num_clients, num_common, num_personal]
  )
  places = np.arange(num_own)
  covariance = 0.5 ** np.abs(places[:, np.newaxis] - places)
  x = rng.normal(size=[num_clients, 2 * sizes.num_examples, sizes.num_inputs])
  x[..., :num_own] = x[..., :num_own] @ np.linalg.cholesky(
    covariance
  ).T + rng.normal(size=[num_clients, 1, num_own])
  outputs = np.maximum(x @ weights, 0) @ head
  scale, median = outputs.std(), np.median(outputs)
  x, y = x.astype(np.float32), (outputs > median).astype(np.int32)
  half = sizes.num_examples
  return Problem(
    weights,
    is_personal,
    head / scale,
    -median / scale,
    pfl.Examples(x[:, :half], y[:, :half]),
    pfl.Examples(x[:, half:], y[:, half:]),
  )


def oracle(problem: Problem, explained_variance: float) -> np.ndarray:
  """The neurons that factor analysis of the true weights makes personal."""
  columns = problem.weights.reshape([-1, problem.weights.shape[-1]])
  sums = factor_analysis.client_sums(tf.constant(columns))
  factors = factor_analysis.principal_factors(
    factor_analysis.correlations(sums), explained_variance
  )
  num_personal = int(problem.is_personal.sum())
  return factor_analysis.least(factors.communalities, num_personal).numpy()


def train(
  sizes: Sizes,
  problem: Problem,
  starts: np.ndarray,
  split: Union[np.ndarray, str],
  seed: int,
  runtime: runtime_base.Runtime,
) -> Iterator[tuple[np.ndarray, float, float]]:
  """Trains under a partition.

  Args:
    starts: Clients' initial weights, `[clients, inputs, neurons]`.
    split: bool `[neurons]`, True for personal neurons, or the quantity that
      dynamic FedFac analyzes to find them, 'weights' or 'updates'.

  Yields:
    After each round the personal neurons, bool `[neurons]`, the share of
    neurons on the same side as before, and the clients' mean test accuracy.
  """
  network = two_layer.make_network(
    starts.mean(0), problem.head, problem.bias, classifies=True
  )
  training = {
    'learning_rate': sizes.learning_rate,
    'momentum': 0.0,
    'batch_size': sizes.batch_size,
    'num_epochs': 1,
  }
  is_given = not isinstance(split, str)
  if is_given:
    process = two_layer.build_fed_split(network, split, seed, **training)
  else:
    num_personal = problem.is_personal.sum()
    process = pfl.build(
      'fed_fac',
      network,
      mode='dynamic',
      analysed=split,
      layers=two_layer.LAYER,
      # Between the communalities of the last personal neuron and the next one.
      threshold=float((num_personal - 0.5) / (sizes.num_neurons - 1)),
      explained_variance=sizes.explained_variance,
      **training,
      client_weighting='uniform',
      seed=seed,
    )
  mask = split if is_given else None
  own = [two_layer.own_neurons(start, mask) for start in starts]
  for state, metrics, tests in two_layer.run_rounds(
    process, problem.train, problem.test, runtime, sizes.num_rounds, own
  ):
    is_personal, unchanged = split, 1.0
    if not is_given:
      is_personal = ~np.asarray(state.algorithm['is_shared'][two_layer.LAYER])
      unchanged = metrics['unchanged_elements'][two_layer.LAYER]
    yield is_personal, unchanged, tests['accuracy']


def measure(context: measures.Context) -> measures.Rows:
  """The accuracy under each partition, over p and over alpha."""
  sizes = context.parameters
  cases = [(*pair, True) for pair in sorted([sizes.middle, *sizes.others])]
  if sizes.random_starts:
    cases.append((*sizes.middle, False))
  with context.create_runtime() as runtime:
    for case, seed in context.each(cases):
      p, alpha, given_starts = case
      starts = 'given starts' if given_starts else 'random starts'
      columns = {
        'case': f'p={p:g}, alpha={alpha:g}, {starts}',
        'p': p,
        'alpha': alpha,
        'given_starts': given_starts,
        'seed': seed,
      }
      for scores in _run_all(sizes, *case, seed, runtime):
        yield {**columns, **scores}


def _run_all(sizes, p, alpha, given_starts, seed, runtime):
  """Yields the scores under each partition after each round."""
  problem = make_problem(sizes, p, alpha, seed)
  rng = np.random.default_rng([seed, 1])
  truth = problem.weights
  if given_starts:
    starts = truth + sizes.start_noise * rng.normal(size=truth.shape)
  else:
    scale = 1 / np.sqrt(sizes.num_inputs)
    start = scale * rng.normal(size=truth.shape[1:])
    starts = np.broadcast_to(start, truth.shape)

  def run_split(split):
    return train(sizes, problem, starts, split, seed, runtime)

  first_round, *_ = next(run_split('weights'))
  splits = {
    _TRUE: problem.is_personal,
    _ORACLE: oracle(problem, sizes.explained_variance),
    _STATIC: first_round,
    _DYNAMIC: 'weights',
    _RANDOM: rng.permutation(problem.is_personal),
    _DYNAMIC_UPDATES: 'updates',
  }
  for partition, split in splits.items():
    for number, (is_personal, unchanged, accuracy) in enumerate(
      run_split(split), 1
    ):
      is_true = is_personal == problem.is_personal
      yield {
        'partition': partition,
        'round': number,
        'accuracy': float(accuracy),
        'unchanged_neurons': float(unchanged),
        'neurons_on_true_side': float(np.mean(is_true)),
      }


def make_claims(numbers: Numbers, study: Study) -> Iterator[claims.Claim]:
  """Claims of figures 6 and 7, for each case."""
  sizes = study.parameters
  for case in numbers.distinct('case'):
    last = numbers.where(case=case, round=sizes.num_rounds)
    accuracies = [last.values('accuracy', partition=p) for p in _ALIKE]
    yield claims.difference(
      f'{case}: true, oracle, static and dynamic decomposition have nearly the '
      'same test accuracy: the largest difference',
      np.ptp(accuracies, axis=0),
      source='FedFac, figure 6',
      below=0.02,
    )
    yield claims.difference(
      f'{case}: random decomposition is much inferior: its distance from the '
      'worst of these',
      np.min(accuracies, axis=0) - last.values('accuracy', partition=_RANDOM),
      source='FedFac, figure 6',
      above=0.05,
    )
    for partition in (_STATIC, _DYNAMIC, _DYNAMIC_UPDATES):
      is_ours = partition == _DYNAMIC_UPDATES
      if partition != _STATIC:
        yield claims.measured(
          f'{case}, {partition}: nearly all neurons keep their state between '
          'the last two rounds: their share',
          last.values('unchanged_neurons', partition=partition),
          source='FedFac, figure 7',
          above=0.95,
          is_ours=is_ours,
        )
      yield claims.measured(
        f'{case}, {partition}: the true decomposition is found: the share of '
        'neurons on their true side',
        last.values('neurons_on_true_side', partition=partition),
        source='FedFac, section 4.3.2',
        above=0.95,
        is_ours=is_ours,
      )


def draw(numbers: Numbers, study: Study, figure: Figure) -> None:
  """Draws accuracy by p, alpha and round, and the partitions' stability."""
  sizes = study.parameters
  panels.prepare(figure, 14, 8.4, len(study.seeds))
  given = numbers.where(given_starts=True)
  last = given.where(round=sizes.num_rounds)
  p, alpha = sizes.middle
  top, (left, right) = figure.subplots(2, 2)
  options = {'y': 'accuracy', 'by': 'partition', 'y_label': 'Test accuracy'}
  for ax, x, title, fixed in (
    (top[0], 'p', f'Shared neurons p, alpha = {alpha:g}', {'alpha': alpha}),
    (top[1], 'alpha', f'Shared covariates alpha, p = {p:g}', {'p': p}),
  ):
    plots.bars(last.where(**fixed).frame, x=x, title=title, ax=ax, **options)
    ax.set_ylim(bottom=0.5)
  middle = given.where(p=p, alpha=alpha).frame
  title = f'p = {p:g}, alpha = {alpha:g}, starts near the truth'
  plots.curves(middle, title=title, ax=left, **options)
  dynamic = given.where(partition=_DYNAMIC).frame
  plots.curves(dynamic, y='unchanged_neurons', by='case', ax=right)
  right.set(title='Dynamic FedFac', ylabel='Neurons that keep their state')
  right.set_ylim(-0.05, 1.05)
