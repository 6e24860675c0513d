"""FedSplit's theorems: the fall of the loss, and the error on new examples.

A network with one hidden layer and a fixed head,

    h_c(x) = sum_q a_q relu(w_cq x) / sqrt(m_1)
           + sum_r a_r relu(w_r x) / sqrt(m_2)

with m_1 personal neurons w_cq and m_2 shared ones w_r, all from N(0, I), and a
from {-1, 1}, is trained by gradient descent on the sum of squared errors. All
clients take G local steps of length eta_l in each round, and eta_g = 1. Let
H^s_ij = E_w[x_i x_j 1(w x_i >= 0, w x_j >= 0)] over all examples, and H^p the
same within clients and 0 between them. Then theorem 1 has

    |h(t) - y|^2 <= (1 - (rho_1 lambda_s + rho_2 lambda_p) / 2)^t |h(0) - y|^2,

with the smallest eigenvalues lambda, rho_1 = eta_g eta_l G / C, and
rho_2 = eta_l G.

Inputs have norm 1 and labels are uniform in [-1, 1], so that the clients have
nothing in common, which is enough for the theorem. FedAvg trains the same
network from the same weights with all neurons shared. The paper's loss has a
factor 1 / (2 n), its updates have none. Here eta_l is the step of the updates.
As the number of clients grows for the same n, rho_1 and the bound's rate fall.
We compare this rate with the rate of the loss.

Theorem 2 bounds a 1-Lipschitz loss in [0, 1] of the trained network by

    2 sqrt(C / n y^T (H^s + H^p)^-1 y) + O(sqrt(log(N / (lambda delta)) / 2 N)),

with N = C n. We compare the first term, the complexity, with the root mean
squared error on new examples, which is not less than the mean absolute error.
In this study labels are (u + v_c) x, with u common to the clients and v_c a
client's own, both uniform with norm 1 / 2, and neurons start from
N(0, alpha^2 I).

The studies are in `fed_fac`.

References:
  Wang, Tang, Li: Factor-Assisted Federated Learning for Personalized
  Optimization with Heterogeneous Data, arXiv:2312.04281, section 3, theorems 1
  and 2.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

import tff_pfl as pfl
from tff_pfl.runtime import base as runtime_base
from tff_pfl.studies import claims, measures
from tff_pfl.studies.numbers import Numbers
from tff_pfl.studies.study import Study

from . import two_layer

_FED_SPLIT, _FED_AVG, _BOUND = 'FedSplit', 'FedAvg', "theorem's bound"
_ERROR, _COMPLEXITY = 'error on new examples', "theorem's complexity"


@dataclasses.dataclass(frozen=True)
class Sizes:
  """Sizes and hyperparameters.

  Attributes:
    nums_clients: Values of C, fewest first.
    num_examples: n, examples of each client.
    num_neurons: m_1 and m_2 each.
    num_local_steps: G.
    step_size: eta_l.
  """

  nums_clients: Sequence[int] = (2, 5, 10)
  num_examples: int = 10
  num_inputs: int = 50
  num_neurons: int = 1000
  num_local_steps: int = 5
  step_size: float = 0.1
  num_rounds: int = 40


@dataclasses.dataclass(frozen=True)
class GeneralizationSizes(Sizes):
  """Sizes and hyperparameters of `fedsplit_generalization`.

  Attributes:
    num_examples: N, examples of all clients together.
    step_size: eta_l, times a client's number of examples.
    initial_scale: alpha.
    num_test_examples: New examples of each client.
  """

  nums_clients: Sequence[int] = (2, 5, 10, 20)
  num_examples: int = 200
  num_inputs: int = 10
  step_size: float = 1.0
  num_rounds: int = 300
  initial_scale: float = 0.1
  num_test_examples: int = 500


def neural_tangent_kernel(x: np.ndarray) -> np.ndarray:
  """H^s for inputs of norm 1, `[n, inputs]` -> `[n, n]`, in closed form."""
  products = np.clip(x @ x.T, -1, 1)
  return products * (np.pi - np.arccos(products)) / (2 * np.pi)


def smallest_eigenvalues(x: np.ndarray) -> tuple[float, float]:
  """(lambda_s, lambda_p) for the clients' inputs `[clients, n, inputs]`."""
  shared = np.linalg.eigvalsh(neural_tangent_kernel(np.concatenate(x)))
  personal = [np.linalg.eigvalsh(neural_tangent_kernel(own)) for own in x]
  return float(shared.min()), float(np.min(personal))


def measure(context: measures.Context) -> measures.Rows:
  """The share of the initial loss that is left after each round."""
  with context.create_runtime() as runtime:
    for num_clients, seed in context.each(context.parameters.nums_clients):
      columns = {'num_clients': num_clients, 'seed': seed}
      losses = _train(context.parameters, num_clients, seed, runtime)
      for name, values in losses.items():
        for index, value in enumerate(values):
          share = {'round': index, 'loss_share': value / values[0]}
          yield {**columns, 'method': name, **share}


def _inputs(rng, sizes, *shape):
  """Inputs of norm 1, float32 `[*shape, inputs]`."""
  x = rng.normal(size=[*shape, sizes.num_inputs])
  return (x / np.linalg.norm(x, axis=-1, keepdims=True)).astype(np.float32)


def _neurons(rng, sizes):
  """Returns a first kernel from N(0, I), a, and which neurons are personal."""
  kernel = rng.normal(size=[sizes.num_inputs, 2 * sizes.num_neurons])
  head = rng.choice([-1, 1], kernel.shape[1]) / np.sqrt(sizes.num_neurons)
  return kernel, head, np.arange(len(head)) < sizes.num_neurons


def _errors(sizes, network, is_personal, step_size, seed, data, runtime):
  """The mean squared errors after each round.

  Args:
    step_size: Step for a loss that is half the sum of a client's squares.
    data: The clients' examples for training and for testing.
  """
  process = two_layer.build_fed_split(
    network,
    is_personal,
    seed,
    # The gradient of the mean is 2 / n times the gradient of half the sum.
    learning_rate=step_size * data[0].y.shape[1] / 2,
    momentum=0.0,
    batch_size=None,
    num_steps=sizes.num_local_steps,
  )
  rounds = two_layer.run_rounds(process, *data, runtime, sizes.num_rounds)
  return [tests['loss'] for *_, tests in rounds]


def _train(
  sizes: Sizes, num_clients: int, seed: int, runtime: runtime_base.Runtime
) -> Mapping[str, np.ndarray]:
  """Trains FedSplit and FedAvg with a number of clients and a seed.

  Returns:
    The sum of squared errors before each round and after the last one,
    `[num_rounds + 1]`, by method. The bound is a share of the first sum.
  """
  rng = np.random.default_rng(seed)
  x = _inputs(rng, sizes, num_clients, sizes.num_examples)
  y = rng.uniform(-1, 1, x.shape[:2]).astype(np.float32)
  kernel, head, is_personal = _neurons(rng, sizes)
  network = two_layer.make_network(kernel, head, classifies=False)
  clients = pfl.Examples(x, y)
  initial_loss = np.sum((np.maximum(x @ kernel, 0) @ head - y) ** 2)
  losses = {}
  for name, mask in (
    (_FED_SPLIT, is_personal),
    (_FED_AVG, np.zeros_like(is_personal)),
  ):
    data = (clients, clients)
    after = _errors(sizes, network, mask, sizes.step_size, seed, data, runtime)
    losses[name] = np.array([initial_loss, *(y.size * np.array(after))])
  of_shared, of_personal = smallest_eigenvalues(x)
  of_round = sizes.step_size * sizes.num_local_steps
  rate = of_round * (of_shared / num_clients + of_personal)
  losses[_BOUND] = (1 - rate / 2) ** np.arange(sizes.num_rounds + 1)
  return losses


def complexity(x: np.ndarray, y: np.ndarray) -> float:
  """The first term of theorem 2's bound.

  Args:
    x: Inputs of norm 1, `[clients, n, inputs]`.
    y: Labels, `[clients, n]`.
  """
  num_clients, num_examples = y.shape
  kernel = neural_tangent_kernel(np.concatenate(x))
  same_client = np.kron(np.eye(num_clients), np.ones([num_examples] * 2))
  y = y.ravel()
  product = y @ np.linalg.solve(kernel * (1 + same_client), y)
  return 2 * float(np.sqrt(num_clients / num_examples * product))


def measure_generalization(context: measures.Context) -> measures.Rows:
  """The complexity, and the error on new examples after training."""
  sizes = context.parameters
  with context.create_runtime() as runtime:
    for num_clients, seed in context.each(sizes.nums_clients):
      rng = np.random.default_rng(seed)
      weights = _inputs(rng, sizes, num_clients + 1) / 2
      regressors = weights[0] + weights[1:]
      num_examples = sizes.num_examples // num_clients
      data = []
      for number in (num_examples, sizes.num_test_examples):
        x = _inputs(rng, sizes, num_clients, number)
        y = np.einsum('cni,ci->cn', x, regressors)
        data.append(pfl.Examples(x, y))
      kernel, head, is_personal = _neurons(rng, sizes)
      network = two_layer.make_network(
        kernel * sizes.initial_scale, head, classifies=False
      )
      step_size = sizes.step_size / num_examples
      errors = _errors(
        sizes, network, is_personal, step_size, seed, data, runtime
      )
      for name, value in (
        (_ERROR, np.sqrt(errors[-1])),
        (_COMPLEXITY, complexity(data[0].x, data[0].y)),
      ):
        columns = {'num_clients': num_clients, 'seed': seed}
        yield {**columns, 'measure': name, 'value': value}


def generalization_claims(
  numbers: Numbers, study: Study
) -> Iterator[claims.Claim]:
  """Claims that both grow with more clients, and the error keeps the bound."""
  sizes = study.parameters
  of_error, of_complexity = (
    numbers.curve('value', 'num_clients', measure=name)
    for name in (_ERROR, _COMPLEXITY)
  )
  yield claims.measured(
    'The error on new examples is below the complexity: the largest ratio',
    of_error / of_complexity,
    below=1,
    of_paper=True,
  )
  for words, name in (('complexity', _COMPLEXITY), ('error', _ERROR)):
    for fewer, more in itertools.pairwise(sizes.nums_clients):
      yield claims.difference(
        f'{more} clients have a larger {words} than {fewer}, of as many '
        'examples in all',
        numbers.lead('value', more, fewer, by='num_clients', measure=name),
      )


def make_claims(numbers: Numbers, study: Study) -> Iterator[claims.Claim]:
  """Claims about the bound, the loss's geometric fall, and FedAvg's loss."""
  sizes = study.parameters
  rates = {}
  for num_clients in sizes.nums_clients:
    start = f'{num_clients} clients: '
    runs = numbers.where(num_clients=num_clients)
    rounds = runs.distinct('round')
    of_fed_split, of_fed_avg, bounds = (
      runs.curve('loss_share', 'round', method=name)
      for name in (_FED_SPLIT, _FED_AVG, _BOUND)
    )
    yield claims.measured(
      f"{start}FedSplit's loss is below the theorem's bound after every round: "
      'the largest ratio of the two',
      (of_fed_split / bounds)[:, 1:],
      below=1,
      of_paper=True,
    )
    yield claims.measured(
      f'{start}it falls geometrically: the smallest R^2 of a straight line '
      "through the loss's logarithm",
      [np.corrcoef(rounds, np.log(one))[0, 1] ** 2 for one in of_fed_split],
      above=0.98,
    )
    rates[num_clients] = -np.log(of_fed_split[:, -1]) / sizes.num_rounds
    yield claims.difference(
      f"{start}it falls faster than FedAvg's: by how many powers of ten "
      "FedAvg's loss is larger after the last round",
      np.log10(of_fed_avg[:, -1] / of_fed_split[:, -1]),
    )
  for fewer, more in itertools.pairwise(sizes.nums_clients):
    yield claims.difference(
      f'With {more} clients it falls more slowly than with {fewer}: the '
      "difference of the rates, minus the loss's logarithm by round",
      rates[fewer] - rates[more],
    )
