import numpy as np
import pytest
import tensorflow as tf

from tff_pfl.models import keras_bridge, weight_partition

layers = tf.keras.layers


@pytest.fixture(scope='module')
def model():
  return keras_bridge.from_keras(
    tf.keras.Sequential(
      [
        tf.keras.Input((4,)),
        layers.Dense(3, name='first'),
        layers.BatchNormalization(name='norm'),
        layers.Dense(2, name='head'),
      ]
    ),
    head_layers=['head'],
    loss='sparse_categorical_crossentropy',
  )


FIRST = ('first/kernel', 'first/bias')
NORM = (
  'norm/gamma',
  'norm/beta',
  'norm/moving_mean',
  'norm/moving_variance',
)
HEAD = ('head/kernel', 'head/bias')


def _by_layer(model, **arguments):
  return weight_partition.WeightPartition.by_layer(model, **arguments)


@pytest.mark.parametrize(
  'arguments, global_names, local_names',
  [
    ({'local_layers': ['head']}, FIRST + NORM, HEAD),
    ({'global_layers': ['head']}, HEAD, FIRST + NORM),
    ({'local_layers': []}, FIRST + NORM + HEAD, ()),
    ({'global_layers': []}, (), FIRST + NORM + HEAD),
    # The order is the model's, not the caller's.
    ({'local_layers': ('head', 'first')}, NORM, FIRST + HEAD),
    (
      {'local_layers': iter(['norm']), 'global_layers': ['head', 'first']},
      FIRST + HEAD,
      NORM,
    ),
  ],
)
def test_layers_divide_all_weights(model, arguments, global_names, local_names):
  partition = _by_layer(model, **arguments)
  assert tuple(partition.global_names) == global_names
  assert tuple(partition.local_names) == local_names
  assert tuple(partition.names) == tuple(model.initial_weights)


@pytest.mark.parametrize(
  'arguments, reason',
  [
    ({}, '`local_layers` or `global_layers` to be given'),
    (
      {'local_layers': ['head', 'norm'], 'global_layers': ['first', 'norm']},
      'both global and local: norm/beta, norm/gamma, norm/moving_mean',
    ),
    (
      {'local_layers': ['head'], 'global_layers': ['norm']},
      'neither global nor local: first/bias, first/kernel',
    ),
    ({'local_layers': ['nowhere']}, r"\(first, norm, head\), found 'nowhere'"),
    ({'global_layers': ['nowhere']}, "found 'nowhere'"),
  ],
)
def test_wrong_divisions_name_what_is_wrong(model, arguments, reason):
  with pytest.raises(ValueError, match=reason):
    _by_layer(model, **arguments)


def test_unknown_weights_are_refused():
  with pytest.raises(ValueError, match='not weights of the model: c, d'):
    weight_partition.WeightPartition(
      names=('a', 'b'), global_names=('a', 'd'), local_names=('b', 'c')
    )


def test_split_and_merge_are_inverse_and_keep_the_order(model):
  partition = _by_layer(model, local_layers=['first', 'head'])
  shuffled = dict(reversed(list(model.initial_weights.items())))
  global_weights, local_weights = partition.split(shuffled)
  assert tuple(global_weights) == NORM
  assert tuple(local_weights) == FIRST + HEAD
  merged = partition.merge(global_weights, local_weights)
  assert tuple(merged) == tuple(model.initial_weights)
  for name, value in model.initial_weights.items():
    np.testing.assert_array_equal(merged[name], value)
