import dataclasses

import numpy as np
import pytest
from matplotlib.figure import Figure

from binaries.papers import fed_fac, fed_fac_simulation
from tests.papers import untrained

_STUDY = next(s for s in fed_fac.STUDIES if s.name == 'fedfac_simulation')
_STUDY = _STUDY.at('small').with_settings(
  num_clients=6, num_inputs=16, others=((0.3, 0.4),), random_starts=True
)
_SMALL = _STUDY.parameters


@pytest.mark.slow
def test_dynamic_fed_fac_finds_the_truth_where_clients_start_near_it():
  # With fewer examples the accuracy of two wrong neurons varies by 20 points.
  sizes = dataclasses.replace(_SMALL, num_examples=200)
  problem = fed_fac_simulation.make_problem(sizes, 0.5, 0.4, seed=0)
  with untrained.context(_STUDY).create_runtime() as runtime:
    arguments = sizes, problem, problem.weights
    actual, given = (
      list(fed_fac_simulation.train(*arguments, split, 0, runtime))
      for split in ('weights', problem.is_personal)
    )
  assert len(actual) == len(given) == 2
  for is_personal, unchanged, accuracy in given:
    np.testing.assert_array_equal(is_personal, problem.is_personal)
    assert unchanged == 1
    # No client is far from the network that gave the labels.
    assert accuracy > 0.95
  is_personal, unchanged, accuracy = actual[-1]
  assert np.mean(is_personal == problem.is_personal) > 0.85
  assert unchanged > 0.85
  assert accuracy > 0.8


def test_all_partitions_are_trained_in_all_cases(monkeypatch):
  def train(sizes, problem, starts, split, seed, runtime):
    assert starts.shape == problem.weights.shape
    is_near = np.abs(starts - problem.weights).mean() < 0.1
    for index in range(sizes.num_rounds):
      # One neuron after another leaves its true side.
      is_personal = np.arange(20) < problem.is_personal.sum() - index
      if not isinstance(split, str):
        is_personal = split
      yield is_personal, 0.5, 0.75 if is_near else 0.5

  monkeypatch.setattr(fed_fac_simulation, 'train', train)
  numbers = untrained.Context(_STUDY).measured()
  assert len(numbers.distinct('case')) == 3
  assert numbers.distinct('accuracy', given_starts=True) == [0.75]
  assert numbers.distinct('accuracy', given_starts=False) == [0.5]
  of_case = numbers.where(case='p=0.3, alpha=0.4, given starts')
  column = 'neurons_on_true_side'
  right = {
    name: of_case.curve(column, 'round', partition=name)[0].tolist()
    for name in of_case.distinct('partition')
  }
  assert right['true'] == [1, 1]
  assert right['random'][0] == right['random'][1] < 1
  # The static mode keeps what the dynamic one has after the first round.
  assert right['static'] == [1, 1]
  assert right['dynamic'] == right['dynamic, updates'] == [1, 0.95]
  _STUDY.draw(numbers, _STUDY, Figure())


def test_the_data_are_those_of_the_paper():
  sizes = {'num_clients': 40, 'num_inputs': 50, 'num_neurons': 30}
  sizes = fed_fac_simulation.Sizes(num_examples=200, **sizes)
  problem = fed_fac_simulation.make_problem(sizes, 0.4, 0.6, seed=1)
  assert problem.is_personal.tolist() == [True] * 18 + [False] * 12
  weights = problem.weights
  shared, personal = weights[..., 18:], weights[..., :18]
  # The first 20 inputs are a client's own.
  assert np.all(shared == shared[:1])
  assert np.abs(shared[:, :20]).max() <= 0.1 < np.abs(shared[:, 20:]).max() <= 1
  assert np.abs(personal[:, 20:]).max() <= 0.1
  # Around a center of the client's, each of variance 1.
  np.testing.assert_allclose(personal[:, :20].var(), 2, rtol=0.15)
  np.testing.assert_allclose(personal[:, :20].var(axis=-1).mean(), 1, rtol=0.1)
  x = problem.train.x
  centered = x[..., :20] - x[..., :20].mean(axis=1, keepdims=True)
  covariance = np.einsum('cni,cnj->ij', centered, centered)
  covariance /= centered[..., 0].size
  actual = [np.diag(covariance, k).mean() for k in range(3)]
  np.testing.assert_allclose(actual, [1, 0.5, 0.25], rtol=0.1)
  # The clients' centers are N(0, I), what is common has none.
  np.testing.assert_allclose(x[..., :20].mean(axis=1).var(), 1, rtol=0.2)
  assert np.abs(x[..., 20:].mean(axis=1)).max() < 0.5
  # Labels are what the network says, half of them 1.
  labels = np.concatenate([problem.train.y, problem.test.y])
  assert abs(labels.mean() - 0.5) < 1e-3
  outputs = np.maximum(problem.test.x[3] @ weights[3], 0) @ problem.head
  sure = np.abs(outputs + problem.bias) > 1e-3
  is_one = problem.test.y[3] == 1
  np.testing.assert_array_equal(
    (outputs + problem.bias > 0)[sure], is_one[sure]
  )


def test_the_oracle_finds_the_true_partition():
  sizes = {'num_clients': 40, 'num_inputs': 60, 'num_neurons': 60}
  sizes = fed_fac_simulation.Sizes(num_examples=10, **sizes)
  problem = fed_fac_simulation.make_problem(sizes, 0.5, 0.4, seed=4)
  actual = fed_fac_simulation.oracle(problem, sizes.explained_variance)
  assert np.mean(actual == problem.is_personal) > 0.97
