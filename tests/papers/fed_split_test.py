import numpy as np
from matplotlib.figure import Figure

from binaries.papers import fedsplit_convergence
from tff_pfl.experiments import paper as experiment

(_ENTRY,) = fedsplit_convergence.EXPERIMENTS


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
  sizes = fedsplit_convergence.FAST
  assert len(result.rows) == 3 * (sizes.num_rounds + 1)
  assert all(row['loss_share'] == 1 for row in result.rows if not row['round'])


def test_the_kernel_is_the_expectation_over_neurons():
  rng = np.random.default_rng(0)
  x = rng.normal(size=[4, 3])
  x /= np.linalg.norm(x, axis=1, keepdims=True)
  is_on = rng.normal(size=[200_000, 3]) @ x.T >= 0
  both = np.einsum('wi,wj->ij', is_on.astype(float), is_on) / len(is_on)
  np.testing.assert_allclose(
    fedsplit_convergence.neural_tangent_kernel(x), (x @ x.T) * both, atol=0.01
  )


def test_smallest_eigenvalues_are_of_all_examples_and_of_clients():
  # The clients' inputs are orthogonal but for one pair between them.
  x = np.zeros([2, 2, 4])
  x[0, 0, 0] = x[0, 1, 1] = x[1, 0, 2] = 1
  x[1, 1, [1, 3]] = np.sqrt(0.5)
  shared, personal = fedsplit_convergence.smallest_eigenvalues(x)
  np.testing.assert_allclose(personal, 0.5)
  # The pair's angle is 45 degrees: sqrt(1/2) (pi - pi / 4) / (2 pi).
  np.testing.assert_allclose(shared, 0.5 - np.sqrt(0.5) * 0.375)
