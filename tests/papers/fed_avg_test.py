import numpy as np
import pytest
from matplotlib.figure import Figure

from binaries.papers import fedavg_images
from tff_pfl.experiments import paper as experiment

_EXPERIMENTS = {entry.name: entry for entry in fedavg_images.EXPERIMENTS}


def _run(name, directory):
  return _EXPERIMENTS[name].run(
    experiment.Settings(str(directory), fast=True, show_progress=False)
  )


def _expect_passed(result):
  failed = [claim for claim in result.claims if not claim.passed]
  assert result.claims and not failed, failed


def _expect_drawn(result, num_panels):
  figure = Figure()
  result.draw(figure)
  # A matrix has an axes of its own for its color bar.
  panels = [axes for axes in figure.axes if axes.get_label() != '<colorbar>']
  assert len(panels) == num_panels


def test_cosine_claims_hold_and_all_pairs_of_classes_have_a_row(tmp_path):
  result = _run('fedavg_cosine', tmp_path)
  _expect_passed(result)
  sizes = fedavg_images.COSINE_FAST
  assert len(result.rows) == (
    len(sizes.nums_local_steps) * sizes.num_seeds * 10 * 10
  )
  of_pair = {
    (row['num_local_steps'], row['seed'], row['class_a'], row['class_b']): row[
      'mean_cosine_similarity'
    ]
    for row in result.rows
  }
  assert len(of_pair) == len(result.rows)
  for (steps, seed, a, b), value in of_pair.items():
    assert value == pytest.approx(of_pair[steps, seed, b, a])
  _expect_drawn(result, len(sizes.nums_local_steps))


def test_new_classes_claims_hold_and_all_points_have_a_row(tmp_path):
  result = _run('fedavg_new_classes', tmp_path)
  _expect_passed(result)
  sizes = fedavg_images.NEW_CLASSES_FAST
  assert [
    (row['num_local_steps'], row['num_examples']) for row in result.rows
  ] == [
    (steps, n)
    for steps in (1, sizes.num_local_steps)
    for n in sizes.nums_examples
  ]
  assert all(0 < row['mean_accuracy'] <= 1 for row in result.rows)
  # No other data set has images of the digits' shape.
  assert {row['new_clients'] for row in result.rows} == {'new_classes'}
  _expect_drawn(result, 1)


def test_cka_claims_are_differences_of_the_rows_of_all_layers(tmp_path):
  result = _run('fedavg_cka', tmp_path)
  sizes = fedavg_images.CKA_FAST
  layers = [f'dense_{i + 1}' for i in range(len(sizes.widths))] + ['head']
  assert [(row['num_local_steps'], row['layer']) for row in result.rows] == [
    (steps, layer) for steps in (1, sizes.num_local_steps) for layer in layers
  ]
  assert all(0 <= row['mean_cka'] < 1 for row in result.rows)
  cka = np.reshape([row['mean_cka'] for row in result.rows], [2, len(layers)])
  difference = (cka[1] - cka[0])[:-1]
  assert [claim.measured for claim in result.claims] == pytest.approx(
    [
      difference.mean(),
      # Of the only seed.
      difference.mean(),
      difference[: len(difference) // 2].mean(),
    ]
  )
  _expect_drawn(result, 1)


@pytest.mark.parametrize(
  'sizes',
  [
    fedavg_images.COSINE_FULL,
    fedavg_images.COSINE_FAST,
    fedavg_images.NEW_CLASSES_FULL,
    fedavg_images.NEW_CLASSES_FAST,
    fedavg_images.CKA_FULL,
    fedavg_images.CKA_FAST,
  ],
)
def test_all_methods_make_the_same_number_of_local_updates(sizes):
  nums_local_steps = getattr(sizes, 'nums_local_steps', None) or (
    1,
    sizes.num_local_steps,
  )
  assert all(sizes.num_local_updates % n == 0 for n in nums_local_steps)
  assert nums_local_steps[0] == 1
  assert list(np.unique(nums_local_steps)) == list(nums_local_steps)


def test_another_data_set_of_the_same_shape_is_a_panel_of_its_own(monkeypatch):
  digits = fedavg_images.datasets.load_arrays('digits')
  loaded = []

  def load_arrays(name, data_dir):
    loaded.append((name, data_dir))
    return fedavg_images.dataclasses.replace(digits, name=name)

  monkeypatch.setattr(fedavg_images.datasets, 'load_arrays', load_arrays)
  sizes = fedavg_images.NEW_CLASSES_FAST
  transfers = fedavg_images._transfers(
    sizes, experiment.Settings('unused', dataset='mnist', data_dir='folder')
  )
  assert list(transfers) == ['new_classes', 'new_dataset']
  assert loaded == [('mnist', 'folder'), ('fashion_mnist', 'folder')]
  old, new = transfers['new_classes'].old, transfers['new_classes'].new
  assert not set(old.y) & set(sizes.new_classes)
  assert set(new.y) == set(sizes.new_classes)
  # All of the one data set, and all of the other.
  assert set(transfers['new_dataset'].old.y) == set(range(10))
  assert transfers['new_dataset'].old.name == 'mnist'
  assert transfers['new_dataset'].new.name == 'fashion_mnist'


def test_more_examples_than_there_are_are_refused():
  digits = fedavg_images.datasets.load_arrays('digits').of_classes([7, 8, 9])
  with pytest.raises(
    ValueError, match='`dataset` to be one with 1000 training'
  ):
    fedavg_images._new_clients(digits, 2, 500, seed=0)


def test_new_clients_have_as_many_examples_as_asked_for():
  digits = fedavg_images.datasets.load_arrays('digits').of_classes([7, 8, 9])
  clients = fedavg_images._new_clients(digits, 3, 20, seed=0)
  counts = [clients.num_train_examples(c) for c in clients.client_ids]
  assert sum(counts) == 60
  assert max(counts) - min(counts) <= len((7, 8, 9))
  assert sum(clients.num_test_examples(c) for c in clients.client_ids) == len(
    digits.y_test
  )


def test_initial_weights_are_those_of_pytorch_and_differ_by_seed():
  data = fedavg_images.datasets.load_arrays('digits').to_clients(2, 'iid')
  first, same, other = (
    fedavg_images._make_model(data, (16, 8), seed).initial_weights
    for seed in (0, 0, 1)
  )
  for name, value in first.items():
    np.testing.assert_array_equal(value, same[name])
    assert not np.array_equal(value, other[name])
  num_inputs = {'dense_1': 64, 'dense_2': 16, 'head': 8}
  for name, value in first.items():
    limit = num_inputs[name.split('/')[0]] ** -0.5
    assert np.abs(value).max() <= limit
    # Uniform on [-limit, limit], whose standard deviation is limit / sqrt(3).
    if np.size(value) > 100:
      assert np.std(value) == pytest.approx(limit / np.sqrt(3), rel=0.1)
