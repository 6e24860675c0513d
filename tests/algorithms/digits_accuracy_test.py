"""The claim of FedRep's paper, in small, on real handwritten digits."""

import pytest

from tff_pfl.simulation import run_config


def _run(algorithm, output_dir):
  config = run_config.RunConfig(
    algorithm=algorithm,
    dataset='digits',
    num_clients=20,
    partition='shards:2',
    num_rounds=15,
    cohort_size=10,
    rounds_per_evaluation=15,
    num_final_evaluations=1,
    seed=2,
  )
  return config.run(str(output_dir), show_progress=False)


@pytest.mark.slow
def test_personal_heads_beat_one_global_model(tmp_path):
  fed_rep = _run('fed_rep', tmp_path / 'fed_rep')
  fed_avg = _run('fed_avg', tmp_path / 'fed_avg')
  assert fed_rep['global_accuracy'] is None
  personal = fed_rep['accuracy']['last']
  shared = fed_avg['global_accuracy']['last']
  assert personal > 0.9
  # Above chance, so that it is no straw man.
  assert 0.2 < shared < personal - 0.15
