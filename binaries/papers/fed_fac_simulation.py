"""FedFac's simulation: does factor analysis find who is shared?

The data (section 4.3.1): client c has covariates x = (x^p, x^s), of which the
share alpha are x^s ~ N(0, I), and x^p ~ N(mu_c, Sigma) with mu_c ~ N(0, I) and
Sigma_ij = 0.5^|i - j|. Labels come from a network with one hidden layer of m
neurons, of which the share p have the same weights for all clients,
U(-0.1, 0.1) on x^p and U(-1, 1) on x^s; those of all others are the client's,
N(nu_c, I) on x^p and U(-0.1, 0.1) on x^s. a ~ N(0, I). A network of that size
with the given a is trained under five partitions of its neurons: the true one,
the oracle's (factor analysis of the true weights), those of static and of
dynamic FedFac, and one at random.

What the paper does not say, or cannot mean:

* It has nu_c = mu_c. Then every personal neuron is on for every example of its
  client and their sum is so far from 0 that 99.9% of all labels are 1. Here
  nu_c ~ N(0, I) is drawn by itself, and y = 1 where the network's output is
  above its median, which is the given b.
* Where networks start. Under random weights, neurons are exchangeable: neuron j
  knows nothing of the true neuron j, so that any two partitions of the same
  size are alike, the true one and a random one, too. (The rows of the start
  'random' show it.) Here client c starts from its true weights with noise, and
  the server from the mean over clients.
* What dynamic FedFac analyses: "updates (weights or gradients)", the paper has
  it. From this start weights tell the neurons apart, and their updates less so
  (rows 'dynamic, updates'): they put 62% to 95% of the neurons on their true
  side in the last round, and move 18% to 38% in each round.
* kappa = 0.75, of the paper's grid: with 0.5 there are fewer factors than the
  shared neurons have, and with 0.9 personal ones get theirs, too. tau makes as
  many neurons personal as are in truth.
* SGD, one epoch a round, 100 examples of each client, all of which take part.

'static' is the partition of dynamic FedFac's first round, kept: that of the
weights after all clients' first local training. (Clients' own starts have no
place in what a client of the static mode keeps.)

References:
  Wang, Tang, Li: Factor-Assisted Federated Learning for Personalized
  Optimization with Heterogeneous Data, arXiv:2312.04281, section 4.3, figures 6
  and 7.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from matplotlib.figure import Figure

from binaries.papers import repeats, two_layer
from tff_pfl.algorithms import fed_fac
from tff_pfl.algorithms.parts import factor_analysis
from tff_pfl.datasets import examples
from tff_pfl.experiments import panels as figures
from tff_pfl.experiments import paper as experiment
from tff_pfl.runtime import base as runtime_base

_PAPER = 'FedFac, figure 6'
_STABILITY_PAPER = 'FedFac, figure 7'
_TRUE, _ORACLE, _STATIC, _DYNAMIC, _RANDOM = (
  'true',
  'oracle',
  'static',
  'dynamic',
  'random',
)
_ALIKE = (_TRUE, _ORACLE, _STATIC, _DYNAMIC)
_OF_UPDATES = 'dynamic, updates'
_NEAR_TRUTH, _ANYWHERE = 'near the truth', 'random'


@dataclasses.dataclass(frozen=True)
class Sizes:
  """Sizes and hyperparameters.

  Attributes:
    num_clients: C.
    num_inputs: d.
    num_neurons: m.
    num_examples: Examples of a client, for training and again for tests.
    settings: (p, alpha): the shared parts of neurons and of covariates. The
      first of each is that of the other's variation.
    random_start: Whether the first setting also runs from random weights.
    start_noise: Standard deviation of what is added to true weights.
    explained_variance: kappa.
    learning_rate: Learning rate of SGD.
  """

  num_clients: int = 100
  num_inputs: int = 100
  num_neurons: int = 200
  num_examples: int = 100
  settings: Sequence[tuple] = (
    (0.5, 0.4),
    (0.3, 0.4),
    (0.7, 0.4),
    (0.5, 0.2),
    (0.5, 0.6),
  )
  random_start: bool = True
  start_noise: float = 0.1
  explained_variance: float = 0.75
  num_rounds: int = 20
  learning_rate: float = 0.05
  batch_size: int = 20
  num_seeds: int = 3


FULL = Sizes()
FAST = Sizes(
  num_clients=12,
  num_inputs=40,
  num_neurons=60,
  settings=((0.5, 0.4),),
  random_start=False,
  num_rounds=2,
  num_seeds=1,
)


class Problem(NamedTuple):
  """What the labels come from, and the clients' data.

  Attributes:
    weights: The clients' true neurons, `[clients, inputs, neurons]`.
    is_personal: Which are a client's own: bool `[neurons]`.
    head: a, `[neurons]`, scaled so that the outputs have variance 1.
    bias: b, minus the median of the outputs.
  """

  weights: np.ndarray
  is_personal: np.ndarray
  head: np.ndarray
  bias: float
  clients: Sequence[two_layer.Client]


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
    [
      two_layer.Client(
        examples.Examples(x[c, :half], y[c, :half]),
        examples.Examples(x[c, half:], y[c, half:]),
      )
      for c in range(num_clients)
    ],
  )


def oracle(problem: Problem, explained_variance: float) -> np.ndarray:
  """Which neurons factor analysis of the true weights makes personal."""
  columns = np.reshape(problem.weights, [-1, problem.weights.shape[-1]])
  factors = factor_analysis.principal_factors(
    factor_analysis.correlations(
      factor_analysis.client_sums(tf.constant(columns))
    ),
    explained_variance,
  )
  return factor_analysis.least(
    factors.communalities, int(problem.is_personal.sum())
  ).numpy()


class _Run(NamedTuple):
  """What one run found, each by round.

  Attributes:
    accuracy: Mean over the clients' test accuracies.
    unchanged: Share of neurons that are on the same side as the round before.
    agrees: Share of neurons that are on their true side.
  """

  accuracy: np.ndarray
  unchanged: np.ndarray
  agrees: np.ndarray


class _Case(NamedTuple):
  """A setting of the simulation.

  Attributes:
    neurons_shared: p.
    covariates_shared: alpha.
    start: `_NEAR_TRUTH` or `_ANYWHERE`.
  """

  neurons_shared: float
  covariates_shared: float
  start: str = _NEAR_TRUTH


class _Simulation:
  """All partitions' runs on one problem, from one start."""

  def __init__(
    self, sizes: Sizes, case: _Case, seed: int, runtime: runtime_base.Runtime
  ):
    self._sizes = sizes
    self._seed = seed
    self._runtime = runtime
    self._problem = make_problem(
      sizes, case.neurons_shared, case.covariates_shared, seed
    )
    rng = np.random.default_rng([seed, 1])
    truth = self._problem.weights
    if case.start == _NEAR_TRUTH:
      noise = rng.normal(size=truth.shape)
      self._starts = truth + sizes.start_noise * noise
    else:
      scale = 1 / np.sqrt(sizes.num_inputs)
      start = scale * rng.normal(size=truth.shape[1:])
      self._starts = np.broadcast_to(start, truth.shape)
    self._at_random = rng.permutation(self._problem.is_personal)
    self._network = two_layer.make_network(
      self._starts.mean(0),
      self._problem.head,
      self._problem.bias,
      classifies=True,
    )

  def run(self, partition: str) -> _Run:
    """Trains under a partition, one of those that the module names."""
    if partition == _DYNAMIC:
      return self._dynamic('weights')
    if partition == _OF_UPDATES:
      return self._dynamic('updates')
    if partition == _STATIC:
      ((state, *_),) = self._dynamic_rounds('weights', 1)
      return self._given(~state.algorithm['is_shared'][two_layer.LAYER])
    return self._given(
      {
        _TRUE: lambda: self._problem.is_personal,
        _ORACLE: lambda: oracle(self._problem, self._sizes.explained_variance),
        _RANDOM: lambda: self._at_random,
      }[partition]()
    )

  def _given(self, is_personal):
    process = two_layer.build_fed_split(
      self._network, is_personal, self._seed, **self._training()
    )
    rounds = two_layer.run(
      process,
      self._problem.clients,
      self._runtime,
      self._sizes.num_rounds,
      [two_layer.own_neurons(start, is_personal) for start in self._starts],
    )
    accuracy = np.array([tests['accuracy'] for _, _, tests in rounds])
    agrees = np.mean(is_personal == self._problem.is_personal)
    return _Run(
      accuracy, np.ones_like(accuracy), np.full_like(accuracy, agrees)
    )

  def _dynamic(self, analysed):
    accuracy, unchanged, agrees = [], [], []
    for state, metrics, tests in self._dynamic_rounds(
      analysed, self._sizes.num_rounds
    ):
      accuracy.append(tests['accuracy'])
      unchanged.append(metrics['unchanged_elements'][two_layer.LAYER])
      is_shared = state.algorithm['is_shared'][two_layer.LAYER]
      agrees.append(np.mean(~is_shared == self._problem.is_personal))
    return _Run(np.array(accuracy), np.array(unchanged), np.array(agrees))

  def _dynamic_rounds(self, analysed, num_rounds):
    num_personal = self._problem.is_personal.sum()
    process = fed_fac.build_fed_fac(
      self._network,
      fed_fac.FedFacHParams(
        mode='dynamic',
        analysed=analysed,
        layers=two_layer.LAYER,
        # Between the last personal neuron's communality and the next one's.
        threshold=float((num_personal - 0.5) / (self._sizes.num_neurons - 1)),
        explained_variance=self._sizes.explained_variance,
        **self._training(),
      ),
      client_weighting='uniform',
      seed=self._seed,
    )
    return two_layer.run(
      process,
      self._problem.clients,
      self._runtime,
      num_rounds,
      [two_layer.own_neurons(start) for start in self._starts],
    )

  def _training(self):
    return {
      'learning_rate': self._sizes.learning_rate,
      'momentum': 0.0,
      'batch_size': self._sizes.batch_size,
      'num_epochs': 1,
    }


# By case and partition, with a first axis of seeds.
_Runs = Mapping[tuple, _Run]


def _fedfac_simulation(settings: experiment.Settings) -> experiment.Result:
  """The accuracy under each partition, over p and over alpha."""
  sizes = FAST if settings.fast else FULL
  cases = [_Case(*pair) for pair in sizes.settings]
  others = [cases[0]._replace(start=_ANYWHERE)] if sizes.random_start else []
  runs = {}
  with settings.create_runtime() as runtime:
    seeds = repeats.seeds(settings, sizes.num_seeds)
    for case, seed in repeats.with_progress(
      [(case, seed) for case in cases + others for seed in seeds], settings
    ):
      simulation = _Simulation(sizes, case, seed, runtime)
      for partition in (*_ALIKE, _RANDOM, _OF_UPDATES):
        runs.setdefault((case, partition), []).append(simulation.run(partition))
  runs = {key: _Run(*map(np.stack, zip(*found))) for key, found in runs.items()}
  return experiment.Result(
    claims=_claims(cases, runs),
    rows=_rows(runs),
    setup=dataclasses.asdict(sizes),
    draw=functools.partial(_draw, sizes, runs),
  )


def _last(run: _Run) -> np.ndarray:
  """The accuracies of the last round, by seed."""
  return run.accuracy[:, -1]


def _claims(cases: Sequence[_Case], runs: _Runs) -> Sequence[experiment.Claim]:
  def largest(difference):
    return max(difference(case) for case in cases)

  return [
    experiment.below(
      'True, oracle, static and dynamic decomposition have nearly the same '
      'test accuracy: the largest difference of their means over seeds, of all '
      'p and alpha',
      _PAPER,
      largest(
        lambda case: np.ptp([_last(runs[case, p]).mean() for p in _ALIKE])
      ),
      0.02,
    ),
    experiment.above(
      'Random decomposition is much inferior: its smallest distance from the '
      'worst of these',
      _PAPER,
      -largest(
        lambda case: (
          _last(runs[case, _RANDOM]).mean()
          - min(_last(runs[case, p]).mean() for p in _ALIKE)
        )
      ),
      0.05,
    ),
    experiment.above(
      'The share of neurons that keep their state between rounds of the '
      'dynamic mode tends to 1: the smallest in the last round of all runs',
      _STABILITY_PAPER,
      min(runs[case, _DYNAMIC].unchanged[:, -1].min() for case in cases),
      0.95,
    ),
    experiment.above(
      'Static and dynamic mode find the true decomposition: the smallest share '
      'of neurons on their true side, of all runs',
      'FedFac, section 4.3.2',
      min(
        runs[case, partition].agrees[:, -1].min()
        for case in cases
        for partition in (_STATIC, _DYNAMIC)
      ),
      0.95,
    ),
  ]


def _rows(runs: _Runs) -> Sequence[Mapping[str, Any]]:
  rows = []
  for (case, partition), run in runs.items():
    for index in range(run.accuracy.shape[1]):
      mean, std = repeats.mean_and_std(run.accuracy[:, index])
      rows.append(
        {
          'start': case.start,
          'p': case.neurons_shared,
          'alpha': case.covariates_shared,
          'partition': partition,
          'round': index + 1,
          'accuracy': mean,
          'accuracy_std_over_seeds': std,
          'unchanged_neurons': run.unchanged[:, index].mean(),
          'neurons_on_true_side': run.agrees[:, index].mean(),
        }
      )
  return rows


def _draw(sizes: Sizes, runs: _Runs, figure: Figure) -> None:
  figures.prepare(figure, 14, 8.4, sizes.num_seeds)
  middle = sizes.settings[0]
  over_p = sorted({pair for pair in sizes.settings if pair[1] == middle[1]})
  over_alpha = sorted({pair for pair in sizes.settings if pair[0] == middle[0]})
  (top_left, top_right), (left, right) = figure.subplots(2, 2)
  for axes, pairs, varied, title in (
    (top_left, over_p, 0, f'Shared neurons p, alpha = {middle[1]:g}'),
    (top_right, over_alpha, 1, f'Shared covariates alpha, p = {middle[0]:g}'),
  ):
    figures.draw_bars(
      axes,
      {
        f'{pair[varied]:g}': {
          partition: repeats.mean_and_std(_last(runs[_Case(*pair), partition]))
          for partition in (*_ALIKE, _RANDOM)
        }
        for pair in pairs
      },
      y_label='Test accuracy',
      title=title,
    )
    axes.set_ylim(bottom=0.5)
  rounds = np.arange(1, sizes.num_rounds + 1)
  figures.draw_lines(
    left,
    {
      partition: (rounds, *repeats.mean_and_std(run.accuracy))
      for partition in (*_ALIKE, _RANDOM, _OF_UPDATES)
      for run in (runs[_Case(*middle), partition],)
    },
    x_label='Round',
    y_label='Test accuracy',
    title=f'p = {middle[0]:g}, alpha = {middle[1]:g}',
  )
  figures.draw_lines(
    right,
    {
      f'p = {pair[0]:g}, alpha = {pair[1]:g}': (
        rounds[1:],
        runs[_Case(*pair), _DYNAMIC].unchanged.mean(0)[1:],
      )
      for pair in sizes.settings
    },
    x_label='Round',
    y_label='Neurons that keep their state',
    title='Dynamic FedFac',
  )
  right.set_ylim(-0.05, 1.05)


EXPERIMENTS = (
  experiment.Experiment(
    name='fedfac_simulation',
    summary='Factor analysis finds shared and personal neurons, and a random '
    'choice costs accuracy',
    paper='FedFac, figures 6 and 7',
    uses_images=False,
    run=_fedfac_simulation,
  ),
)
