"""The number of samples of a client that the linear methods need.

FedRep's Theorem 1 requires about log n + d / n samples of each client, up to
factors of k, and FedDAR's Theorem A.4 requires d k^2 / n. Many clients find the
d k numbers of the representation together, so that each needs almost none. A
new client with the representation needs about k samples. Alone it needs d.

A number of samples suffices if the representation comes within a distance of
0.01, with the largest step size that the theorem allows, the method of moments
as the start, and labels without noise. The result is the first number in a list
that suffices. A new client's result is the first number in the list from which
on the median new client's error is below 1% of its labels' variance. The
largest number of training clients then have ten samples each, with noise.

The theorems are for new samples in each round, and guarantee convergence up to
constants that they do not name. Here samples are the same in all rounds.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Iterator, Sequence

import numpy as np

from tff_pfl.studies import claims, measures
from tff_pfl.studies.numbers import Numbers
from tff_pfl.studies.study import Study

from .. import panels
from . import methods, model, problem, simulation, theorem

_FED_REP, _FED_DAR = 'FedRep', 'FedDAR-SA'
_METHODS = {
  _FED_REP: (methods.fed_rep, {'head_distribution': 'normalized'}),
  _FED_DAR: (methods.fed_dar, {'num_domains': 5}),
}
_CLIENTS = '{} clients'.format
_NEW, _ALONE = 'a new client', 'a client alone'
# A representation at a smaller distance is found.
_FOUND = 0.01
# A number with a higher power of d grows with d, others hardly do.
_POWER = 0.5


@dataclasses.dataclass(frozen=True)
class Sizes:
  """Sizes of the studies.

  Attributes:
    dimensions: Lengths of an input (d), shortest first.
    nums_clients: Numbers of training clients (n), fewest first.
    ranks: Columns of the representation (k). The first is for all numbers of
      clients, the others for the second number.
    sample_counts: Numbers of samples that are tried, fewest first.
    samples_per_client: Samples of a training client before new clients join.
    num_new_clients: New clients for each seed.
    noise_std: Standard deviation of the labels' noise when new clients join.
  """

  dimensions: Sequence[int] = (10, 20, 40, 80)
  nums_clients: Sequence[int] = (10, 40, 160)
  ranks: Sequence[int] = (2, 4)
  sample_counts: Sequence[int] = (
    *(1, 2, 3, 4, 5, 6, 8, 10, 12, 15, 20, 25, 30, 40, 50, 60, 80, 100, 120),
  )
  num_rounds: int = 300
  samples_per_client: int = 10
  num_new_clients: int = 100
  noise_std: float = 1e-3


def _run(name, seed, num_rounds, *sizes, **options):
  """A ground truth, and the first and last states of a run."""
  build, its_options = _METHODS[name]
  truth = problem.LinearProblem(*sizes, seed=seed, **its_options, **options)
  history = simulation.run_method(
    build(theorem.largest_learning_rate(truth.heads)),
    truth,
    num_rounds,
    initial=model.with_zero_head(model.method_of_moments(truth)),
    seed=seed,
    rounds_per_record=num_rounds,
  )
  return truth, history


def _needed(name, seed, sizes, cell):
  """The first number of samples that suffices, twice the last if none does."""
  for number in sizes.sample_counts:
    _, history = _run(
      name, seed, sizes.num_rounds, *cell, samples_per_client=number
    )
    if history.distance[-1] < _FOUND:
      return number
  return 2 * sizes.sample_counts[-1]


def measure(context: measures.Context, name: str) -> measures.Rows:
  """The samples needed, by dimension, rank and number of clients.

  Args:
    name: 'FedRep', which also has new clients, or 'FedDAR-SA'.
  """
  sizes = context.parameters
  first, *others = sizes.ranks
  cells = [
    *itertools.product(sizes.nums_clients, sizes.dimensions, [first]),
    *itertools.product(sizes.nums_clients[1:2], sizes.dimensions, others),
  ]
  for cell, seed in context.each(cells):
    needed = _needed(name, seed, sizes, cell)
    yield _row(_CLIENTS(cell[0]), cell, seed, needed)
  if name != _FED_REP:
    return
  for dimension, seed in context.each(sizes.dimensions):
    cell = sizes.nums_clients[-1], dimension, first
    own = {n: getattr(sizes, n) for n in ('samples_per_client', 'noise_std')}
    truth, history = _run(name, seed, sizes.num_rounds, *cell, **own)
    learned = simulation.with_exact_head(history.model.representation)
    for label, regressor in (
      (_NEW, learned),
      (_ALONE, simulation.local_only),
    ):
      errors = simulation.new_client_errors(
        regressor, truth, sizes.sample_counts, sizes.num_new_clients
      )
      fails = np.median(errors, axis=1) >= simulation.ACCURATE * first
      (needed,) = simulation.first_lasting(sizes.sample_counts, fails[None])
      needed = min(needed, 2 * sizes.sample_counts[-1])
      yield _row(label, cell, seed, needed)


def _row(label, cell, seed, needed):
  sizes = dict(zip(('num_clients', 'dimension', 'rank'), cell))
  return {'method': label, **sizes, 'seed': seed, 'samples_needed': needed}


def check_claims(numbers: Numbers, study: Study) -> Iterator[claims.Claim]:
  """Claims about the samples that clients need, by d, n and k."""
  sizes = study.parameters
  first, *others = sizes.ranks
  dimensions, most = np.array(sizes.dimensions), sizes.dimensions[-1]

  def needed(num_clients, rank=first):
    """The samples needed, by seed and dimension."""
    return numbers.curve(
      'samples_needed', 'dimension', method=_CLIENTS(num_clients), rank=rank
    )

  def power(num_clients):
    logs = np.log(needed(num_clients))
    return np.polyfit(np.log(dimensions), logs.T, 1)[0]

  fewest_clients, most_clients = sizes.nums_clients[0], sizes.nums_clients[-1]
  yield claims.difference(
    f'With {fewest_clients} clients the samples that each needs grow with d: '
    'the power of d',
    power(fewest_clients),
    above=_POWER,
  )
  yield claims.difference(
    f'With {most_clients} clients they hardly do: the same power',
    power(most_clients),
    below=_POWER,
  )
  for fewer, more in itertools.pairwise(sizes.nums_clients):
    yield claims.difference(
      f'Each of {more} clients needs fewer samples than each of {fewer}, with '
      f'd = {most}: the difference',
      (needed(fewer) - needed(more))[:, -1],
    )
  for rank in others:
    number = sizes.nums_clients[1]
    powers = np.log(needed(number, rank) / needed(number))
    yield claims.difference(
      f'With k = {rank} in place of {first} each of {number} clients needs at '
      'most as much more as k^2 grows: the power of k, mean over d',
      powers.mean(axis=1) / np.log(rank / first),
      below=2,
      # The theorem of FedRep has its power of k in a formula that is lost.
      of_paper=_NEW not in numbers.distinct('method'),
    )
  if _NEW in numbers.distinct('method'):
    yield claims.measured(
      f'No client needs as many as alone with d = {most}: the largest number, '
      'divided by d',
      np.stack([needed(n)[:, -1] for n in sizes.nums_clients]).T / most,
      below=1,
    )
    of_new, alone = (
      numbers.curve('samples_needed', 'dimension', method=label)
      for label in (_NEW, _ALONE)
    )
    yield claims.measured(
      'A new client needs about k samples whatever d: the largest number, '
      'divided by k',
      of_new / first,
      below=3,
    )
    yield claims.measured(
      'Alone it needs d: the smallest number, divided by d',
      alone / dimensions,
      above=0.9,
    )


def make_study(method: str, **own: str) -> Study:
  """A study of the samples that clients need with a method.

  Args:
    method: 'FedRep' or 'FedDAR-SA'.
    **own: Its `name`, `source` and `summary`.
  """
  return Study(
    parameters=Sizes(),
    seeds=range(5),
    measure=functools.partial(measure, name=method),
    claims=[check_claims],
    draw=panels.curves(
      'samples_needed',
      over='dimension',
      panel='rank',
      title='k = {}'.format,
      sharey=True,
      x_label='Length of an input (d)',
      y_label='Samples that a client needs',
      log_x=True,
      log_y=True,
    ),
    scales={
      'small': {
        'dimensions': (4, 8),
        'nums_clients': (10, 20),
        'ranks': (2,),
        'sample_counts': (4, 8, 16, 32),
        'num_rounds': 60,
      }
    },
    deviations=__doc__,
    **own,
  )
