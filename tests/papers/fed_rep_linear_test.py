import dataclasses

import numpy as np
import pytest
from matplotlib.figure import Figure

from binaries.papers import linear_experiments, registry
from tff_pfl.experiments import paper as experiment


@pytest.mark.parametrize(
  'entry', linear_experiments.EXPERIMENTS, ids=lambda entry: entry.name
)
def test_the_claims_hold_at_small_size(entry, tmp_path):
  settings = experiment.Settings(str(tmp_path), fast=True, show_progress=False)
  result = entry.run(settings)
  assert result.claims
  for claim in result.claims:
    assert claim.passed, claim
  assert result.rows
  assert result.setup['rank'] == 2
  figure = Figure(layout='constrained')
  result.draw(figure)
  figure.canvas.draw()
  for axes in figure.axes:
    assert len(axes.get_lines()) >= 2
    assert axes.get_xlabel()
  # Nothing is left to be resumed.
  assert not list(tmp_path.iterdir())


def test_the_seed_decides_the_numbers(monkeypatch, tmp_path):
  tiny = dataclasses.replace(
    linear_experiments.FED_AVG_FAST,
    num_rounds=2,
    num_runs=1,
    sample_counts=(5,),
    num_fine_tuning_steps=2,
  )
  monkeypatch.setattr(linear_experiments, 'FED_AVG_FAST', tiny)
  entry = registry.get_experiment('fedavg_linear_new_client')

  def rows(seed):
    settings = experiment.Settings(
      str(tmp_path), fast=True, seed=seed, show_progress=False
    )
    return entry.run(settings).rows

  assert rows(0) == rows(0)
  assert rows(0) != rows(1)


def test_the_rate_of_a_geometric_decay_is_found():
  fit = linear_experiments.fit_decay(np.exp(-0.3 * np.arange(80)))
  assert fit.rate == pytest.approx(0.3)
  assert fit.r_squared == pytest.approx(1)


def test_the_fit_ends_where_the_distance_is_close_enough():
  distance = np.maximum(np.exp(-0.3 * np.arange(200)), 1e-15)
  fit = linear_experiments.fit_decay(distance)
  assert fit.rate == pytest.approx(0.3)
  assert fit.r_squared == pytest.approx(1)


def test_the_fit_begins_away_from_the_distance_of_one():
  decay = 0.4 * np.exp(-0.3 * np.arange(60))
  fit = linear_experiments.fit_decay(np.concatenate([np.full(50, 0.9), decay]))
  assert fit.rate == pytest.approx(0.3)
  assert fit.r_squared == pytest.approx(1)


def test_rounds_are_counted_until_a_distance_is_reached():
  distances = np.array([0.5, 0.1, 0.2, 0.01])
  assert linear_experiments.rounds_to(distances, 0.1) == 1
  # Where it is not, there are at least as many.
  assert linear_experiments.rounds_to(distances, 1e-3) == 3


def test_what_never_comes_close_has_a_rate_all_the_same():
  fit = linear_experiments.fit_decay(np.exp(-0.001 * np.arange(100)))
  assert fit.rate == pytest.approx(0.001)


def test_a_decay_that_slows_down_is_no_line():
  rounds = np.arange(1, 400)
  assert linear_experiments.fit_decay(1 / rounds**2).r_squared < 0.9


def test_full_sizes_are_those_of_the_paper():
  sizes = linear_experiments.FED_AVG_FULL
  assert (sizes.dimension, sizes.rank, sizes.num_clients) == (100, 5, 40)
  assert (sizes.num_local_steps, sizes.num_runs) == (2, 10)
  assert sizes.num_fine_tuning_steps == 200
  assert sizes.noise_std**2 == pytest.approx(0.01)
  assert len(linear_experiments.CONVERGENCE_FULL.nums_clients) == 4
