"""Tests of FedRep's experiments on images, at their small sizes."""

import types

import numpy as np
import pytest
from matplotlib.figure import Figure

from binaries.papers import fedrep_images
from tff_pfl import datasets
from tff_pfl.experiments import paper as experiment


def _run(name, directory):
  (entry,) = [e for e in fedrep_images.EXPERIMENTS if e.name == name]
  return entry.run(
    experiment.Settings(
      directory=str(directory), fast=True, show_progress=False
    )
  )


@pytest.fixture(scope='module')
def local_epochs(tmp_path_factory):
  return _run('fedrep_local_epochs', tmp_path_factory.mktemp('local_epochs'))


@pytest.fixture(scope='module')
def new_clients(tmp_path_factory):
  return _run('fedrep_new_clients', tmp_path_factory.mktemp('new_clients'))


def test_more_epochs_on_the_head_do_not_hurt(local_epochs):
  assert [c for c in local_epochs.claims if not c.passed] == []


def test_rows_of_local_epochs_are_complete(local_epochs):
  assert [(row['method'], row['num_epochs']) for row in local_epochs.rows] == [
    (method, num_epochs)
    for method in ('FedRep', 'FedAvg')
    for num_epochs in fedrep_images.LOCAL_EPOCHS_FAST.nums_epochs
  ]


def test_claims_of_new_clients_are_leads_of_fed_rep(new_clients):
  # Whether they hold is left to the full size: the digits of so few new clients
  # tell the methods' bodies from each other too coarsely.
  accuracy = {
    (row['method'], row['num_epochs']): row['mean_accuracy']
    for row in new_clients.rows
  }
  leads = [
    min(
      accuracy['FedRep', num_epochs] - accuracy[other, num_epochs]
      for num_epochs in fedrep_images.NEW_CLIENTS_FAST.nums_epochs
    )
    for other in ('FedAvg', 'Per-FedAvg')
  ]
  np.testing.assert_allclose([c.measured for c in new_clients.claims], leads)


def test_rows_of_new_clients_are_complete(new_clients):
  assert {(row['method'], row['num_epochs']) for row in new_clients.rows} == {
    (method, num_epochs)
    for method in ('FedRep', 'FedAvg', 'Per-FedAvg', 'Untrained body')
    for num_epochs in fedrep_images.NEW_CLIENTS_FAST.nums_epochs
  }


def test_a_trained_body_serves_new_clients_better_than_none(new_clients):
  first = {
    row['method']: row['mean_accuracy']
    for row in new_clients.rows
    if row['num_epochs'] == fedrep_images.NEW_CLIENTS_FAST.nums_epochs[0]
  }
  assert first['FedRep'] > first['Untrained body'] + 0.1


def test_figures_have_a_curve_for_each_method(local_epochs, new_clients):
  for result, num_methods in ((local_epochs, 2), (new_clients, 4)):
    figure = Figure()
    result.draw(figure)
    (axes,) = figure.axes
    assert len(axes.containers) == num_methods


def test_new_clients_have_classes_that_training_has_not():
  sizes = fedrep_images.NEW_CLIENTS_FAST
  old, new = fedrep_images._old_and_new(
    sizes, experiment.Settings(directory='unused')
  )
  assert sorted(set(old.y)) == [0, 1, 2, 3, 4, 5, 6]
  clients = fedrep_images._new_clients(new, sizes, seed=0)
  assert clients.num_clients == sizes.num_new_clients
  counts = clients.class_counts()
  assert not counts[:, :7].any()
  assert counts.sum(axis=1).min() >= sizes.num_new_client_examples


def test_new_clients_of_fashion_mnist_are_of_mnist(monkeypatch):
  monkeypatch.setattr(
    datasets,
    'load_arrays',
    lambda name, data_dir: types.SimpleNamespace(name=name, data_dir=data_dir),
  )
  old, new = fedrep_images._old_and_new(
    fedrep_images.NEW_CLIENTS_FULL,
    experiment.Settings(directory='unused', data_dir='folder'),
  )
  assert (old.name, new.name) == ('fashion_mnist', 'mnist')
  assert old.data_dir == new.data_dir == 'folder'


def test_the_largest_fall_is_below_the_best_so_far():
  fall = fedrep_images._largest_fall
  assert fall({1: [0.5], 2: [0.6], 5: [0.6]}) == 0
  assert fall({1: [0.8], 2: [0.75], 5: [0.7, 0.74], 10: [0.9]}) == (
    pytest.approx(0.08)
  )


def test_the_smallest_lead_is_of_any_seed():
  accuracies = {
    'a': {1: [0.5, 0.7], 5: [0.9, 0.9]},
    'b': {1: [0.4, 0.4], 5: [0.8, 0.88]},
  }
  assert np.isclose(fedrep_images._smallest_lead(accuracies, 'a', 'b'), 0.02)
