import dataclasses

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.models import keras_models
from tff_pfl.models import split_model, weight_partition

layers = keras.layers


@pytest.fixture(scope='module')
def model():
  return keras_models.bridge(
    keras_models.sequential(
      layers.Dense(3, name='first'),
      layers.BatchNormalization(name='body_norm'),
      layers.Dense(3, name='second'),
      layers.BatchNormalization(name='head_norm'),
    ),
    ['second', 'head_norm', 'head'],
  )


def test_forward_is_the_head_on_the_body_with_both_statistics(model):
  assert model.body_layers == ('first', 'body_norm')
  x = tf.random.stateless_normal([6, 4], [1, 2])
  weights = model.initial_weights
  mode = split_model.Mode(True, tf.constant([1, 2]), tf.ones([6]))
  outputs, statistics = model.forward(weights, x, mode)
  features, body_statistics = model.body(weights, x, mode)
  expected, head_statistics = model.head(weights, features, mode)
  np.testing.assert_array_equal(outputs, expected)
  assert all(name.startswith('body_norm/') for name in body_statistics)
  assert all(name.startswith('head_norm/') for name in head_statistics)
  assert set(statistics) == model.statistics


def test_weight_names_are_in_the_models_order(model):
  names = 'first/kernel first/bias head/kernel head/bias'
  assert model.weight_names(['head', 'first']) == tuple(names.split())
  assert model.weight_names([]) == ()
  with pytest.raises(ValueError, match="first, body_norm.*found 'third'"):
    model.weight_names(['first', 'third'])


_NORM = 'gamma', 'beta', 'moving_mean', 'moving_variance'
_FIRST = ('first/kernel', 'first/bias')
_BETWEEN = (
  *(f'body_norm/{name}' for name in _NORM),
  *('second/kernel', 'second/bias'),
  *(f'head_norm/{name}' for name in _NORM),
)
_HEAD = ('head/kernel', 'head/bias')
_ALL = ['first', 'body_norm', 'second', 'head_norm', 'head']


@pytest.mark.parametrize(
  'local_layers, global_names, local_names',
  [
    (['head'], _FIRST + _BETWEEN, _HEAD),
    ([], _FIRST + _BETWEEN + _HEAD, ()),
    (_ALL, (), _FIRST + _BETWEEN + _HEAD),
    # The order is the model's, not the caller's.
    (('head', 'first'), _BETWEEN, _FIRST + _HEAD),
  ],
)
def test_layers_divide_all_weights(
  model, local_layers, global_names, local_names
):
  partition = weight_partition.WeightPartition.by_layer(model, local_layers)
  assert tuple(partition.global_names) == global_names
  assert tuple(partition.local_names) == local_names
  assert tuple(partition.names) == tuple(model.initial_weights)


def test_features_are_described_where_they_are_one_tensor(model):
  assert split_model.feature_spec(model, 'this') == tf.TensorSpec([3])
  several = dataclasses.replace(
    model, body=lambda weights, x, mode=None: ({'a': x, 'b': x}, {})
  )
  with pytest.raises(ValueError, match='one tensor.*this demands.*several'):
    split_model.feature_spec(several, 'this')
  without = dataclasses.replace(model, head_layers=tuple(model.layers))
  with pytest.raises(ValueError, match='weights for this to share'):
    split_model.feature_spec(without, 'this')
