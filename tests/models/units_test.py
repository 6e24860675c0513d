"""Units of layers, and partitions by them, by what they compute."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.models import keras_models
from tff_pfl.models import domain_models, domains, units, weight_partition

layers = keras.layers

_RNG = np.random.default_rng(2)


@pytest.fixture(autouse=True)
def _names_from_the_start():
  # Without a look at all of the process's memory.
  keras.utils.clear_session(free_memory=False)


def _bridge(*network, shape):
  model = keras_models.sequential(
    *network, layers.Flatten(), shape=shape, units=2
  )
  return keras_models.bridge(model, loss='mse', metrics=[], jit_compile=False)


def _dense():
  return _bridge(layers.Dense(4, 'relu', name='dense'), shape=[3])


_NETWORKS = {
  'dense': ([layers.Dense(5, 'tanh', name='layer')], [3]),
  'conv_2d': ([layers.Conv2D(5, 2, name='layer')], [4, 4, 3]),
  'grouped': ([layers.Conv2D(6, 2, groups=3, name='layer')], [3, 3, 3]),
  # After one step a unit's state is its own.
  'lstm': ([layers.LSTM(5, name='layer')], [1, 3]),
  'gru': ([layers.GRU(5, name='layer')], [1, 3]),
  'gru, reset': ([layers.GRU(5, reset_after=False, name='layer')], [1, 3]),
  'rnn': ([layers.SimpleRNN(5, name='layer')], [1, 3]),
  'normalized': (
    [layers.Conv2D(5, 2, name='layer'), layers.BatchNormalization(name='norm')],
    [4, 4, 3],
  ),
  'normalized after activation': (
    [
      layers.Dense(5, name='layer'),
      layers.ReLU(),
      layers.BatchNormalization(name='norm'),
    ],
    [3],
  ),
}


@pytest.mark.parametrize('kind', _NETWORKS)
def test_a_units_slices_change_its_own_output_and_no_other(kind):
  network, shape = _NETWORKS[kind]
  network = [type(layer).from_config(layer.get_config()) for layer in network]
  model = _bridge(*network, shape=shape)
  layer_units = model.units['layer']
  owners = {layer.name for layer in network if layer.name in ('layer', 'norm')}
  assert set(layer_units.gates) == {
    name for name in model.initial_weights if name.split('/')[0] in owners
  }
  weights = {
    name: tf.constant(_RNG.uniform(0.1, 1, value.shape), value.dtype)
    for name, value in model.initial_weights.items()
  }
  x = tf.constant(_RNG.uniform(0.1, 1, [2, *shape]), tf.float32)
  read = 'norm' if 'norm' in owners else 'layer'

  def output(weights):
    return np.asarray(model.layer_outputs(weights, x)[read])

  before = output(weights)
  for unit in range(layer_units.number):
    is_local = np.arange(layer_units.number) == unit
    partition = weight_partition.WeightPartition.by_unit(
      model, {'layer': is_local}
    )
    shared, local = partition.split(weights)
    changed = output(
      partition.merge(shared, {name: 0.7 * v for name, v in local.items()})
    )
    moved = np.any(changed != before, axis=tuple(range(before.ndim - 1)))
    np.testing.assert_array_equal(moved, is_local)


def test_kernels_and_no_other_weights_are_what_a_unit_computes():
  model = _bridge(
    layers.LSTM(4, return_sequences=True, name='lstm'),
    layers.Conv1D(3, 2, name='conv'),
    shape=[5, 2],
  )
  lstm, conv = model.units['lstm'], model.units['conv']
  weights = model.initial_weights
  kernels = [weights[f'lstm/lstm_cell/{k}kernel'] for k in ('', 'recurrent_')]
  assert lstm.gates['lstm/lstm_cell/bias'] == 4
  columns = units.as_vectors(lstm, weights).numpy()
  assert columns.shape == (4 * 2 + 4 * 4, 4)
  # Unit 1 of 4: columns 1, 5, 9 and 13.
  np.testing.assert_array_equal(
    np.sort(columns[:, 1]),
    np.sort(np.concatenate([kernel[:, 1::4].ravel() for kernel in kernels])),
  )
  np.testing.assert_array_equal(
    units.as_vectors(conv, weights), weights['conv/kernel'].reshape([-1, 3])
  )


def _normalized(*network, shape):
  inputs = outputs = layers.Input(shape)
  for layer in network:
    outputs = layer(outputs)
  return inputs, outputs


def _norm_of_another_axis():
  return _normalized(
    layers.Dense(4, name='own'),
    layers.Dropout(0.5),
    layers.GroupNormalization(2, name='norm_1'),
    layers.Reshape([2, 2]),
    # The axes are others than the layer's.
    layers.LayerNormalization(name='norm_2'),
    shape=[3],
  )


def _norm_of_positions():
  return _normalized(
    layers.Conv1D(3, 2, name='own'),
    layers.BatchNormalization(axis=1, name='norm'),
    shape=[4, 2],
  )


def _norm_of_a_sum():
  x = layers.Input([3])
  both = [layers.Dense(4, name=name)(x) for name in ('own', 'other')]
  return x, layers.LayerNormalization(name='norm')(layers.Add()(both))


@pytest.mark.parametrize(
  'make, owned',
  [
    (_norm_of_another_axis, {'norm_1/gamma', 'norm_1/beta'}),
    (_norm_of_positions, set()),
    (_norm_of_a_sum, set()),
  ],
)
def test_a_normalization_belongs_to_the_layer_right_before_it(make, owned):
  inputs, outputs = make()
  outputs = layers.Dense(2, name='head')(layers.Flatten()(outputs))
  model = keras_models.bridge(keras.Model(inputs, outputs))
  assert set(model.units['own'].gates) == {'own/kernel', 'own/bias'} | owned
  assert not any('norm' in layer for layer in model.units)


def test_layers_of_other_kinds_cannot_be_divided():
  model = _bridge(
    layers.Embedding(7, 3, name='embedding'),
    layers.SeparableConv1D(3, 2, name='separable'),
    layers.Conv1D(4, 2, data_format='channels_last', name='conv'),
    shape=[5],
  )
  assert list(model.units) == ['conv', 'head']
  with pytest.raises(
    ValueError, match=r"\(conv, head\).*'embedding', which is of another kind"
  ):
    model.layers_to_divide('embedding')


def test_by_default_the_last_hidden_layer_is_divided():
  model = _bridge(
    layers.Dense(4, name='a'), layers.Dense(3, name='b'), shape=[2]
  )
  assert tuple(model.layers_to_divide()) == ('b',)
  assert tuple(model.layers_to_divide('head, a')) == ('a', 'head')
  with pytest.raises(ValueError, match="found 'none'"):
    model.layers_to_divide('')
  with pytest.raises(ValueError, match='a model with a hidden layer to divide'):
    keras_models.bridge(keras_models.sequential()).layers_to_divide()


# Texts of units.


def _parse(text):
  known = {'a': units.LayerUnits(4, {}, ()), 'b': units.LayerUnits(2, {}, ())}
  chosen = units.parse(text, known, ['a', 'norm', 'b'])
  return {layer: list(np.flatnonzero(mask)) for layer, mask in chosen.items()}


def test_units_are_read_from_text():
  assert _parse('') == {}
  assert _parse('b') == {'b': [0, 1]}
  assert _parse('b:1, a:1-2,a:2-3') == {'a': [1, 2, 3], 'b': [1]}


@pytest.mark.parametrize(
  'text, message',
  [
    ('c', "a, b.*'c'"),
    ('norm:1', "'norm', which is of another kind"),
    *((text, f'a:0-3, .*{text}') for text in ('a:4', 'a:2-1', 'a:x')),
  ],
)
def test_wrong_texts_are_answered_with_what_is_possible(text, message):
  with pytest.raises(ValueError, match=message):
    _parse(text)


# Partitions.


def test_a_partition_by_units_divides_every_weight_of_theirs():
  model = _bridge(
    layers.LSTM(3, name='lstm'), layers.Dense(4, name='dense'), shape=[2, 2]
  )
  partition = weight_partition.WeightPartition.by_unit(
    model,
    {
      'lstm': np.array([False, True, False]),
      'dense': np.ones(4, bool),
      'head': np.zeros(2, bool),
    },
  )
  weights = model.initial_weights
  # In the model's order, whatever the given one is.
  shared, local = partition.split(dict(reversed(weights.items())))
  assert tuple(shared) == model.weight_names(['lstm', 'head'])
  assert tuple(local) == model.weight_names(['lstm', 'dense'])
  np.testing.assert_array_equal(
    local['lstm/lstm_cell/kernel'], weights['lstm/lstm_cell/kernel'][:, 1::3]
  )
  assert shared['lstm/lstm_cell/bias'].shape == (8,)
  merged = partition.merge(shared, local)
  assert list(merged) == list(weights)
  for name, value in weights.items():
    np.testing.assert_array_equal(merged[name], value)


def test_models_that_are_made_of_others_have_no_units():
  model = domain_models.with_domains(
    _dense(), domains.Domains(('a', 'b'), (1, 1))
  )
  assert list(model.units) == ['dense', 'head']
  with pytest.raises(ValueError, match='the model has none'):
    domain_models.multi_head(model).layers_to_divide('dense')
