import numpy as np
from matplotlib.figure import Figure

from binaries.papers import fedfac_simulation
from tff_pfl.experiments import paper as experiment

(_ENTRY,) = fedfac_simulation.EXPERIMENTS


def test_the_claims_hold_at_small_size(tmp_path):
  result = _ENTRY.run(
    experiment.Settings(str(tmp_path), fast=True, show_progress=False)
  )
  for claim in result.claims:
    assert claim.passed, claim
  assert len(result.claims) == 4
  figure = Figure(layout='constrained')
  result.draw(figure)
  figure.canvas.draw()
  sizes = fedfac_simulation.FAST
  assert len(result.rows) == 6 * sizes.num_rounds
  rows = {(row['partition'], row['round']): row for row in result.rows}
  assert rows['true', 1]['neurons_on_true_side'] == 1
  assert rows['random', 1]['neurons_on_true_side'] < 1
  assert rows['oracle', 1]['unchanged_neurons'] == 1


def test_the_data_are_those_of_the_paper():
  sizes = fedfac_simulation.Sizes(
    num_clients=40, num_inputs=50, num_neurons=30, num_examples=200
  )
  problem = fedfac_simulation.make_problem(sizes, 0.4, 0.6, seed=1)
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
  x = np.stack([client.train.x for client in problem.clients])
  centered = x[..., :20] - x[..., :20].mean(axis=1, keepdims=True)
  covariance = (
    np.einsum('cni,cnj->ij', centered, centered) / centered[..., 0].size
  )
  np.testing.assert_allclose(np.diag(covariance, 0).mean(), 1, rtol=0.1)
  np.testing.assert_allclose(np.diag(covariance, 1).mean(), 0.5, rtol=0.1)
  np.testing.assert_allclose(np.diag(covariance, 2).mean(), 0.25, rtol=0.2)
  # The clients' centers are N(0, I), what is common has none.
  np.testing.assert_allclose(x[..., :20].mean(axis=1).var(), 1, rtol=0.2)
  assert np.abs(x[..., 20:].mean(axis=1)).max() < 0.5
  # Labels are what the network says, half of them 1.
  labels = np.concatenate(
    [np.concatenate([c.train.y, c.test.y]) for c in problem.clients]
  )
  assert abs(labels.mean() - 0.5) < 1e-3
  client = problem.clients[3]
  outputs = np.maximum(client.test.x @ weights[3], 0) @ problem.head
  sure = np.abs(outputs + problem.bias) > 1e-3
  np.testing.assert_array_equal(
    (outputs + problem.bias > 0)[sure], client.test.y[sure] == 1
  )


def test_the_oracle_finds_the_true_partition():
  sizes = fedfac_simulation.FULL
  problem = fedfac_simulation.make_problem(sizes, 0.5, 0.4, seed=4)
  found = fedfac_simulation.oracle(problem, sizes.explained_variance)
  assert np.mean(found == problem.is_personal) > 0.97
