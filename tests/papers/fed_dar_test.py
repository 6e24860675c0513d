"""Tests of FedDAR's experiments with networks, at their small sizes."""

import numpy as np
import pytest
from matplotlib.figure import Figure

from binaries.papers import feddar_images
from tff_pfl.experiments import paper as experiment


def _run(name, directory, **settings):
  (entry,) = [e for e in feddar_images.EXPERIMENTS if e.name == name]
  return entry.run(
    experiment.Settings(
      directory=str(directory), fast=True, show_progress=False, **settings
    )
  )


@pytest.fixture(scope='module', name='domains')
def _domains(tmp_path_factory):
  # A folder that is for other experiments' data does no harm.
  return _run(
    'feddar_domains', tmp_path_factory.mktemp('domains'), data_dir='elsewhere'
  )


def test_rows_have_every_method_and_every_domain(domains):
  assert [(row['partition'], row['method']) for row in domains.rows] == [
    ('alpha=0.5', name)
    for name in ('FedAvg', 'FedAvg + FT', 'FedDAR-WA', 'FedDAR-SA')
  ]
  for row in domains.rows:
    of_domains = [v for name, v in row.items() if name.startswith('domain/')]
    assert len(of_domains) == 5
    # One seed: the figures are of these very values.
    np.testing.assert_allclose(row['mean'], np.mean(of_domains), rtol=1e-6)
    if row['method'] == 'FedAvg + FT':  # Of one round, not means of rounds.
      np.testing.assert_allclose(row['min'], min(of_domains), rtol=1e-6)
    assert row['min'] <= row['mean'] <= row['max']
    assert row['mean_std_over_seeds'] == 0


def test_claims_are_leads_over_the_best_baseline(domains):
  row_of = {row['method']: row for row in domains.rows}

  def lead(methods, figure):
    return max(row_of[name][figure] for name in methods) - max(
      row_of[name][figure] for name in ('FedAvg', 'FedAvg + FT')
    )

  np.testing.assert_allclose(
    [claim.measured for claim in domains.claims],
    [
      lead(methods, figure)
      for methods in (
        ['FedDAR-SA'],
        ['FedDAR-WA'],
        ['FedDAR-SA', 'FedDAR-WA'],
      )
      for figure in ('mean', 'min')
    ],
  )


def test_the_figure_has_a_panel_for_the_mean_and_one_for_the_worst(domains):
  figure = Figure()
  domains.draw(figure)
  assert [axes.get_title(loc='left') for axes in figure.axes] == [
    'Mean over domains',
    'Worst domain',
  ]


@pytest.mark.parametrize('dataset', feddar_images.FULL)
@pytest.mark.parametrize('fast', [False, True])
def test_every_method_can_be_configured_for_every_dataset(dataset, fast):
  settings = experiment.Settings(directory='.', dataset=dataset, fast=fast)
  sizes = feddar_images.sizes_of(settings)
  names = set()
  for method in [
    *feddar_images.baselines(sizes),
    *feddar_images.fed_dar(sizes),
    *feddar_images.ablation(sizes),
  ]:
    hparams = sizes.hparams_of(method)
    assert hparams.batch_size == sizes.batch_size
    names.add(method.name)
  assert len(names) == 14 + 11


def test_experiments_take_the_data_sets_that_have_sizes():
  for entry in feddar_images.EXPERIMENTS:
    assert entry.takes(None)
    assert entry.takes('heart_disease')
    assert not entry.takes('mnist')


@pytest.mark.slow
def test_the_dimension_of_the_representation_is_an_axis(tmp_path):
  result = _run('feddar_k', tmp_path)
  assert [(row['method'], row['dimension']) for row in result.rows] == [
    ('FedDAR-SA', 4),
    ('FedDAR-WA', 4),
  ]
  result.draw(Figure())


@pytest.mark.slow
def test_the_ablation_has_a_row_for_nothing_and_one_for_everything(tmp_path):
  result = _run('feddar_ablation', tmp_path)
  assert [row['components'] for row in result.rows] == [
    'nothing',
    'RW, MH, Alter, Proj, SA',
  ]
  result.draw(Figure())
