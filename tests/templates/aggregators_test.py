import pytest
import tensorflow_federated as tff

from tff_pfl.templates import aggregators


@pytest.mark.parametrize('name', aggregators.AGGREGATORS)
def test_named_aggregators_are_weighted(name):
  assert isinstance(
    aggregators.make_aggregator(name),
    tff.aggregators.WeightedAggregationFactory,
  )


def test_unknown_aggregator_is_refused_with_those_there_are():
  with pytest.raises(ValueError, match='mean, robust, secure, compressed'):
    aggregators.make_aggregator('median')
