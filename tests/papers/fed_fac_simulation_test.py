import numpy as np

from binaries.papers import fed_fac_simulation
from tff_pfl.experiments import claims, paper, tables


def test_all_partitions_are_trained_and_scored(tmp_path):
  sizes = fed_fac_simulation.Sizes(
    num_clients=6,
    num_inputs=16,
    num_neurons=20,
    others=(),
    random_starts=False,
    num_rounds=2,
    num_seeds=1,
  )
  settings = paper.Settings(str(tmp_path), show_progress=False)
  lab = paper.Laboratory(settings, sizes)
  table = tables.Table.from_rows(fed_fac_simulation.measure(lab))

  def of(column, partition):
    return table.curve(column, 'round', partition=partition)[1][0].tolist()

  assert of('neurons_on_true_side', 'true') == [1, 1]
  assert max(of('neurons_on_true_side', 'random')) < 1
  # The static mode keeps what the dynamic one finds in the first round.
  first, _ = of('neurons_on_true_side', 'dynamic')
  assert of('neurons_on_true_side', 'static') == [first, first]
  for partition in ('true', 'oracle', 'static', 'random'):
    assert of('unchanged_neurons', partition) == [1, 1]
  for partition in table.distinct('partition'):
    assert 0.4 < min(of('accuracy', partition))
  assert len(table.distinct('partition')) == 6


def test_claims_are_made_of_the_last_round_of_each_case():
  # By partition accuracies, unchanged neurons and those on their true side.
  scores = {
    'true': (0.9, 1, 1),
    'oracle': (0.89, 1, 1),
    'static': (0.9, 1, 0.97),
    'dynamic': (0.895, 0.98, 0.96),
    'random': (0.7, 1, 0.5),
    'dynamic, updates': (0.8, 0.7, 0.6),
  }
  table = tables.Table.from_rows(
    {
      'case': case,
      'partition': partition,
      'seed': seed,
      'round': index,
      # Nothing is said of the first round.
      'accuracy': (accuracy + 0.001 * seed) * (index > 1),
      'unchanged_neurons': unchanged * (index > 1),
      'neurons_on_true_side': right * (index > 1),
    }
    for case in ('p=0.5', 'p=0.7')
    for partition, (accuracy, unchanged, right) in scores.items()
    for seed in range(5)
    for index in (1, 2)
  )
  sizes = fed_fac_simulation.Sizes(num_rounds=2)
  found = list(fed_fac_simulation.make_claims(table, sizes))
  assert len(found) == 2 * 7
  np.testing.assert_allclose(
    [claim.measured for claim in found[:7]],
    [0.01, 0.19, 0.98, 0.7, 0.97, 0.96, 0.6],
  )
  verdicts = [claim.verdict == claims.HOLDS for claim in found[7:]]
  assert verdicts == [True, True, True, False, True, True, False]
  assert all(claim.statement.startswith('p=0.7: ') for claim in found[7:])


def test_the_data_are_those_of_the_paper():
  sizes = fed_fac_simulation.Sizes(
    num_clients=40, num_inputs=50, num_neurons=30, num_examples=200
  )
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
  sizes = fed_fac_simulation.FULL
  problem = fed_fac_simulation.make_problem(sizes, 0.5, 0.4, seed=4)
  found = fed_fac_simulation.oracle(problem, sizes.explained_variance)
  assert np.mean(found == problem.is_personal) > 0.97
