"""Tests of Per-FedAvg's experiment on images, at its small sizes."""

import dataclasses
import os

import numpy as np
import pytest
from matplotlib.figure import Figure

from binaries.papers import per_fed_avg_images
from tff_pfl.experiments import paper as experiment

SIZES = per_fed_avg_images.FAST


def _settings(directory):
  return experiment.Settings(
    directory=str(directory), fast=True, show_progress=False
  )


@pytest.fixture(scope='module')
def finished(tmp_path_factory):
  directory = tmp_path_factory.mktemp('perfedavg_mnist')
  (entry,) = per_fed_avg_images.EXPERIMENTS
  return entry.run(_settings(directory)), directory


def _last(result, method, num_steps):
  (row,) = [
    row
    for row in result.rows
    if row['method'] == method
    and row['num_local_steps'] == num_steps
    and row['round'] == SIZES.num_rounds
  ]
  return row['mean_accuracy']


def test_the_papers_order_holds(finished):
  result, _ = finished
  assert [c for c in result.claims if not c.passed] == []
  assert len(result.claims) == 2 * len(SIZES.nums_local_steps) + 1


def test_claims_are_measured_on_the_last_round(finished):
  result, _ = finished
  gains = [
    _last(result, better, num_steps) - _last(result, worse, num_steps)
    for num_steps in SIZES.nums_local_steps
    for better, worse in (
      ('Per-FedAvg', 'FedAvg + one step'),
      ('FedAvg + one step', 'FedAvg'),
    )
  ]
  np.testing.assert_allclose([c.measured for c in result.claims[:-1]], gains)


def test_rows_cover_every_method_step_and_evaluation(finished):
  result, _ = finished
  found = [
    (row['num_local_steps'], row['method'], row['round']) for row in result.rows
  ]
  rounds = range(
    SIZES.rounds_per_evaluation,
    SIZES.num_rounds + 1,
    SIZES.rounds_per_evaluation,
  )
  always = ['FedAvg', 'FedAvg + one step', 'Per-FedAvg']
  extra = ['Per-FedAvg, Hessian-free', 'Per-FedAvg, exact']
  assert found == [
    (num_steps, method, round_number)
    for num_steps, methods in ((4, always), (10, always + extra))
    for method in methods
    for round_number in rounds
  ]


def test_fed_avg_is_trained_once_for_both_of_its_scores(finished):
  _, directory = finished
  runs = os.listdir(directory / 'runs')
  assert len([run for run in runs if run.startswith('fed_avg')]) == 2


def test_spread_is_over_the_seeds():
  curve = per_fed_avg_images._Curve(
    np.array([1, 2]), np.array([[0.2, 0.5], [0.4, 0.9]])
  )
  rows = per_fed_avg_images._rows({4: {'FedAvg': curve}})
  assert [row['mean_accuracy'] for row in rows] == pytest.approx([0.3, 0.7])
  assert [row['std_over_seeds'] for row in rows] == pytest.approx(
    [0.1 * 2**0.5, 0.2 * 2**0.5]
  )


def test_one_seed_that_contradicts_fails_the_claim():
  def curve(*last):
    return per_fed_avg_images._Curve(
      np.array([1]), np.array(last)[:, np.newaxis]
    )

  claims = per_fed_avg_images._claims(
    {
      10: {
        'FedAvg': curve(0.5, 0.6),
        'FedAvg + one step': curve(0.6, 0.7),
        'Per-FedAvg': curve(0.9, 0.69),
        'Per-FedAvg, Hessian-free': curve(0.9, 0.9),
        'Per-FedAvg, exact': curve(0.9, 0.95),
      }
    }
  )
  assert [c.passed for c in claims] == [False, True, False]
  assert [c.measured for c in claims] == pytest.approx([-0.01, 0.1, 0.05])


def test_figure_has_a_panel_for_each_number_of_local_steps(finished):
  figure = Figure()
  finished[0].draw(figure)
  assert [len(axes.containers) for axes in figure.axes] == [3, 5]


def test_full_sizes_are_the_papers():
  paper = dataclasses.asdict(per_fed_avg_images.FULL)
  assert paper['partition'] == 'fallah_digits:196'
  assert (paper['num_clients'], paper['cohort_size']) == (50, 10)
  assert (paper['inner_learning_rate'], paper['learning_rate']) == (0.01, 0.001)
