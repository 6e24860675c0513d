"""The claim of FedRep's paper: personal heads beat one global model."""

import pytest
import tensorflow as tf

import tff_pfl as pfl

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True, scope='module')
def _graphs_are_rewritten():
  """As outside the tests: else TensorFlow cannot inline what is in place."""
  set_options = tf.config.optimizer.set_experimental_options
  set_options({'disable_meta_optimizer': False})
  yield
  set_options({'disable_meta_optimizer': True})


def _run(algorithm, folder, **options):
  settings = pfl.Settings(
    method=algorithm, partition='shards:2', cohort_size=10, **options
  )
  # The paper's, by default.
  assert settings.method.momentum == 0.5
  assert settings.method.batch_size == 10
  return settings.run(str(folder / algorithm), show_progress=False).summary


def test_in_small_on_digits(tmp_path):
  options = dict(
    dataset='digits',
    num_clients=20,
    num_rounds=15,
    rounds_per_evaluation=15,
    num_final_evaluations=1,
    seed=2,
  )
  fed_rep = _run('fed_rep', tmp_path, **options)
  assert fed_rep['global_accuracy'] is None
  personal = fed_rep['accuracy']['last']
  shared = _run('fed_avg', tmp_path, **options)['global_accuracy']['last']
  assert personal > 0.9
  # Above chance, so that it is no straw man.
  assert 0.2 < shared < personal - 0.15


@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
  ('dataset', 'least_personal'), [('mnist', 0.97), ('fashion_mnist', 0.95)]
)
def test_on_mnist_and_fashion_mnist_in_minutes(
  dataset, least_personal, tmp_path, real_data
):
  """FedRep trains the head for 10 epochs and the body for 1, FedAvg all for 5.

  Learning rates are 0.01.
  """
  options = dict(
    dataset=dataset,
    data_dir=real_data(dataset),
    num_clients=100,
    model='mlp',
    model_arguments={'widths': [512, 256, 64]},
    num_rounds=50,
    rounds_per_evaluation=5,
  )
  personal = _run('fed_rep', tmp_path, **options)['accuracy']
  shared = _run('fed_avg', tmp_path, **options)['global_accuracy']
  assert personal['last'] >= least_personal
  assert personal['last_10_mean'] >= least_personal
  # Several times as many mistakes.
  assert 1 - shared['last_10_mean'] > 3 * (1 - personal['last_10_mean'])
