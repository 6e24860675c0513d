import pytest

from binaries.papers import registry


def test_all_experiments_are_there_in_order():
  assert list(registry.EXPERIMENTS) == [
    'fedrep_linear_convergence',
    'fedrep_linear_new_client',
    'fedavg_linear_representation',
    'fedavg_linear_new_client',
    'feddar_linear',
    'fedsplit_convergence',
    'fedfac_simulation',
    'fedavg_cosine',
    'fedavg_new_classes',
    'fedavg_cka',
    'perfedavg_mnist',
    'fedrep_local_epochs',
    'fedrep_new_clients',
    'feddar_domains',
    'feddar_k',
    'feddar_ablation',
    'fedfac_tuning',
    'fedfac_comparison',
    'fedfac_new_clients',
    'fedfac_ablation',
  ]


@pytest.mark.parametrize(
  'entry', registry.EXPERIMENTS.values(), ids=list(registry.EXPERIMENTS)
)
def test_an_experiment_tells_what_it_shows_and_of_which_figure(entry):
  assert registry.get_experiment(entry.name) is entry
  assert len(entry.summary.split()) > 3
  assert '\n' not in entry.summary
  assert any(word in entry.paper for word in ('figure', 'table', 'theorem'))
  generates_data = ('linear', 'simulation', 'convergence')
  assert entry.uses_images != any(word in entry.name for word in generates_data)


def test_an_unknown_name_is_answered_with_those_there_are():
  with pytest.raises(ValueError, match="fedavg_cka.*found 'fedavg'") as error:
    registry.get_experiment('fedavg')
  assert '\n' not in str(error.value)
