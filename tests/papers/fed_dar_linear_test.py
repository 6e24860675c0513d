import collections

import numpy as np
import pytest
from matplotlib.figure import Figure

from binaries.papers import feddar_linear, registry
from tff_pfl.experiments import paper as experiment

(_ENTRY,) = feddar_linear.EXPERIMENTS


def _settings(tmp_path, seed=0):
  return experiment.Settings(
    str(tmp_path), fast=True, seed=seed, show_progress=False
  )


def test_the_claims_hold_at_small_size(tmp_path):
  result = _ENTRY.run(_settings(tmp_path))
  for claim in result.claims:
    assert claim.passed, claim
  assert len(result.claims) == 7
  figure = Figure(layout='constrained')
  result.draw(figure)
  figure.canvas.draw()
  assert [len(axes.get_lines()) for axes in figure.axes[:2]] == [7 * 3] * 2
  errors = [row for row in result.rows if row['quantity'] == 'error']
  assert len(errors) == 2 * 7
  assert {row['round'] for row in errors} == {feddar_linear.FAST.num_rounds}
  assert all(np.isfinite(row['mean']) for row in result.rows)
  # Nothing is left to be resumed.
  assert not list(tmp_path.iterdir())


@pytest.fixture
def measured(monkeypatch):
  """Errors by domains, method and number of samples, instead of runs."""
  errors = collections.defaultdict(lambda: 1.0)
  seeds = set()

  def measure(sizes, *key_and_seeds):
    *key, its_seeds = key_and_seeds
    seeds.update(its_seeds)
    return feddar_linear._Measured(
      np.full(len(its_seeds), errors[tuple(key)]),
      np.full((len(its_seeds), 2), 0.5),
      np.array([0, sizes.num_rounds]),
    )

  monkeypatch.setattr(feddar_linear, 'FAST', feddar_linear.FULL)
  monkeypatch.setattr(feddar_linear, '_measure', measure)
  for domains in ('unequal', 'equal'):
    for count in feddar_linear.FULL.sample_counts:
      errors[domains, 'FedDAR-SA', count] = 1e-7
  return errors, seeds


def test_the_seeds_are_those_from_the_settings_on(measured, tmp_path):
  _ENTRY.run(_settings(tmp_path, seed=4))
  assert measured[1] == {4, 5, 6}


def _passed(tmp_path):
  return [claim.passed for claim in _ENTRY.run(_settings(tmp_path)).claims]


@pytest.mark.parametrize(
  'key, error, failing',
  [
    (('unequal', 'Separate FedAvg', 15), 9e-6, {0}),
    (('unequal', 'FedRep', 5), 9e-6, {0}),
    (('equal', 'Local only', 20), 9e-6, {1}),
    (('equal', 'Separate FedAvg', 5), 9e-6, {2}),
    (('equal', 'Separate FedAvg', 20), 2e-7, set()),
    (('equal', 'Separate FedAvg', 20), 9e-8, {3}),
    (('equal', 'FedDAR-SA', 10), 2e-5, {4}),
    (('unequal', 'FedDAR-WA', 10), 9.9e-6, {5, 6}),
    (('equal', 'FedDAR-WA', 20), 2e-8, {5, 6}),
    # No claim is about it.
    (('equal', 'FedDAR-WA, nearest to broadcast', 20), 1e-9, set()),
  ],
)
def test_each_claim_is_about_its_numbers(
  measured, tmp_path, key, error, failing
):
  assert all(_passed(tmp_path))
  measured[0][key] = error
  assert {
    index for index, passed in enumerate(_passed(tmp_path)) if not passed
  } == failing


def test_full_sizes_are_those_of_the_paper():
  sizes = feddar_linear.FULL
  assert (sizes.num_clients, len(sizes.prior), sizes.rank) == (100, 5, 2)
  assert tuple(sizes.sample_counts) == (5, 10, 15, 20)
  assert (sizes.concentration, sizes.noise_std) == (0.4, 1e-3)
  assert sizes.num_seeds == 3
  assert sum(sizes.prior) == pytest.approx(1)


def test_it_can_be_asked_for_by_name():
  assert registry.get_experiment('feddar_linear') is _ENTRY
