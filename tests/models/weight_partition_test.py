import keras
import pytest

from tests.models import keras_models
from tff_pfl.models import weight_partition

layers = keras.layers


@pytest.fixture(scope='module')
def model():
  return keras_models.bridge(
    keras_models.sequential(
      layers.Dense(3, name='first'), layers.BatchNormalization(name='norm')
    )
  )


FIRST = ('first/kernel', 'first/bias')
NORM = ('norm/gamma', 'norm/beta', 'norm/moving_mean', 'norm/moving_variance')
HEAD = ('head/kernel', 'head/bias')


@pytest.mark.parametrize(
  'local_layers, global_names, local_names',
  [
    (['head'], FIRST + NORM, HEAD),
    ([], FIRST + NORM + HEAD, ()),
    (['first', 'norm', 'head'], (), FIRST + NORM + HEAD),
    # The order is the model's, not the caller's.
    (('head', 'first'), NORM, FIRST + HEAD),
  ],
)
def test_layers_divide_all_weights(
  model, local_layers, global_names, local_names
):
  partition = weight_partition.WeightPartition.by_layer(model, local_layers)
  assert tuple(partition.global_names) == global_names
  assert tuple(partition.local_names) == local_names
  assert tuple(partition.names) == tuple(model.initial_weights)
