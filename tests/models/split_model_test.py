import dataclasses

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.models import keras_models
from tff_pfl.models import split_model

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
