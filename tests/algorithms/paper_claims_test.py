"""The claim of FedRep's paper on MNIST and Fashion-MNIST (minutes)."""

import os

import pytest

from tff_pfl.simulation import run_config

pytestmark = [
  pytest.mark.slow,
  pytest.mark.timeout(3600),
  pytest.mark.skipif(
    not os.environ.get('TFF_PFL_DATA_DIR'),
    reason='TFF_PFL_DATA_DIR does not name a folder with the real idx files',
  ),
]


def _run(algorithm, dataset, output_dir):
  """100 clients of 2 classes each, 10 of them in each of 50 rounds.

  The methods' defaults are the paper's: batches of 10, SGD with momentum 0.5
  and learning rate 0.01; FedRep trains the head for 10 epochs and the body for
  1, FedAvg everything for 5.
  """
  config = run_config.RunConfig(
    algorithm=algorithm,
    dataset=dataset,
    data_dir=os.environ['TFF_PFL_DATA_DIR'],
    partition='shards:2',
    num_clients=100,
    model='mlp',
    model_arguments={'widths': [512, 256, 64]},
    num_rounds=50,
    cohort_size=10,
    rounds_per_evaluation=5,
  )
  assert config.hparams.momentum == 0.5
  assert config.hparams.batch_size == 10
  return config.run(str(output_dir), show_progress=False)


@pytest.mark.parametrize(
  ('dataset', 'least_personal'), [('mnist', 0.97), ('fashion_mnist', 0.95)]
)
def test_fed_rep_is_far_above_the_global_model_of_fed_avg(
  dataset, least_personal, tmp_path
):
  personal = _run('fed_rep', dataset, tmp_path / 'fed_rep')['accuracy']
  shared = _run('fed_avg', dataset, tmp_path / 'fed_avg')['global_accuracy']
  assert personal['last'] >= least_personal
  assert personal['last_10_mean'] >= least_personal
  # Several times as many mistakes.
  assert 1 - shared['last_10_mean'] > 3 * (1 - personal['last_10_mean'])
