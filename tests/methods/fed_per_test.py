import numpy as np
import pytest

from tests.methods import toy_problems
from tff_pfl.methods import fed_per, lg_fed_avg, registry
from tff_pfl.models import zoo

pytestmark = pytest.mark.usefixtures('runtime')


@pytest.mark.parametrize('number', [1, 2])
def test_the_cut_may_be_anywhere(number):
  """LG-FedAvg with the same cut keeps what FedPer shares."""
  network = zoo.mlp(toy_problems.classifier().element_spec, 3, widths=(4, 2))
  process = registry.build(
    'fed_per', network, fed_per.FedPerHParams(local_depth=number)
  )
  shared = set(process.initialize().global_weights)
  layers = ('dense_1', 'dense_2', 'head')[: 3 - number]
  assert shared == set(network.weight_names(layers))
  mirrored = registry.build(
    'lg_fed_avg', network, lg_fed_avg.LgFedAvgHParams(global_depth=number)
  )
  (state,) = mirrored.initialize_client_states([0])
  assert set(state.local) == shared


@pytest.mark.parametrize('number', [0, 2])
def test_a_cut_leaves_layers_on_both_sides(number):
  with pytest.raises(ValueError, match=r'`local_depth` .* in \[1, 1\]'):
    registry.build(
      'fed_per',
      toy_problems.linear_network(np.eye(2), np.eye(2)),
      fed_per.FedPerHParams(local_depth=number),
    )
