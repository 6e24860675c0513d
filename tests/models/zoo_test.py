import collections

import numpy as np
import pytest
import tensorflow as tf

from tff_pfl.models import zoo


def _spec(x_shape, y_shape=(), y_dtype=tf.int32):
  return collections.OrderedDict(
    x=tf.TensorSpec(x_shape, tf.float32), y=tf.TensorSpec(y_shape, y_dtype)
  )


def _num_parameters(model):
  return sum(value.size for value in model.initial_weights.values())


def _shapes(model):
  return {
    name: value.shape
    for name, value in model.initial_weights.items()
    if name.endswith('kernel')
  }


@pytest.mark.parametrize('x_shape', [(784,), (28, 28), (28, 28, 1)])
def test_the_mlp_of_the_paper(x_shape):
  model = zoo.make_model('mlp', _spec(x_shape), 10, widths=(512, 256, 64))
  assert _shapes(model) == {
    'dense_1/kernel': (784, 512),
    'dense_2/kernel': (512, 256),
    'dense_3/kernel': (256, 64),
    'head/kernel': (64, 10),
  }
  # 784*512+512 + 512*256+256 + 256*64+64 + 64*10+10
  assert _num_parameters(model) == 550346
  assert model.head_layers == ('head',)
  assert model.body_layers == ('dense_1', 'dense_2', 'dense_3')
  assert model.uses_xla
  assert model.num_classes == 10
  outputs, _ = model.forward(model.initial_weights, tf.zeros([2, *x_shape]))
  assert outputs.shape == (2, 10)


@pytest.mark.parametrize(
  'x_shape, flat, num_parameters',
  [
    # 32 -> 28 -> 14 -> 10 -> 5: 5*5*64 features.
    # 3*25*64+64 + 64*25*64+64 + 1600*120+120 + 120*64+64 + 64*10+10
    ((32, 32, 3), 1600, 307842),
    # 28 -> 24 -> 12 -> 8 -> 4: 4*4*64 features.
    # 25*64+64 + 64*25*64+64 + 1024*120+120 + 120*64+64 + 64*10+10
    ((28, 28, 1), 1024, 235522),
    ((28, 28), 1024, 235522),
    # Padded: 8 -> 8 -> 4 -> 4 -> 2.
    ((8, 8), 256, 143362),
  ],
)
def test_the_cnn_of_the_paper(x_shape, flat, num_parameters):
  model = zoo.make_model('cnn', _spec(x_shape), 10)
  channels = x_shape[2] if len(x_shape) == 3 else 1
  assert _shapes(model) == {
    'conv_1/kernel': (5, 5, channels, 64),
    'conv_2/kernel': (5, 5, 64, 64),
    'dense_1/kernel': (flat, 120),
    'dense_2/kernel': (120, 64),
    'head/kernel': (64, 10),
  }
  assert _num_parameters(model) == num_parameters
  assert model.head_layers == ('head',)
  assert not model.uses_xla
  outputs, _ = model.forward(model.initial_weights, tf.zeros([2, *x_shape]))
  assert outputs.shape == (2, 10)


def test_the_linear_model_is_all_head():
  model = zoo.make_model('linear', _spec((8, 8)), 10)
  assert _shapes(model) == {'head/kernel': (64, 10)}
  assert _num_parameters(model) == 650
  assert model.head_layers == ('head',)
  assert model.body_layers == ()
  x = np.random.default_rng(0).normal(size=(3, 8, 8)).astype(np.float32)
  outputs, _ = model.forward(model.initial_weights, tf.constant(x))
  np.testing.assert_allclose(
    outputs,
    x.reshape(3, 64) @ model.initial_weights['head/kernel'],
    rtol=1e-4,
    atol=1e-5,
  )


@pytest.mark.parametrize('name', zoo.MODELS)
def test_the_seed_decides_the_weights(name):
  first, again, other = (
    zoo.make_model(name, _spec((8, 8)), 3, seed) for seed in (4, 4, 5)
  )
  for key, value in first.initial_weights.items():
    np.testing.assert_array_equal(value, again.initial_weights[key])
    if key.endswith('kernel'):
      assert not np.any(value == other.initial_weights[key]), key


def test_layers_of_the_same_shape_start_differently():
  model = zoo.make_model('mlp', _spec((4,)), 4, widths=(4, 4))
  kernels = [v for k, v in model.initial_weights.items() if 'kernel' in k]
  for i in range(3):
    assert not np.any(kernels[i] == kernels[i - 1])


@pytest.mark.parametrize('seed', [0, -3, 2**31, 2**40])
def test_any_integer_is_a_seed(seed):
  model = zoo.make_model('linear', _spec((4,)), 3, seed)
  assert np.all(np.isfinite(model.initial_weights['head/kernel']))


@pytest.mark.parametrize('name', zoo.MODELS)
@pytest.mark.parametrize('y_shape, units', [((), 1), ((2,), 2)])
def test_without_classes_it_is_regression(name, y_shape, units):
  model = zoo.make_model(name, _spec((8, 8), y_shape, tf.float32), None)
  assert model.num_classes is None
  assert model.probabilities is None
  assert tuple(model.metrics) == ('mae',)
  assert model.element_spec['y'] == tf.TensorSpec(y_shape, tf.float32)
  outputs, _ = model.forward(model.initial_weights, tf.zeros([3, 8, 8]))
  assert outputs.shape == (3, units)
  np.testing.assert_allclose(
    model.loss(tf.fill([3, *y_shape], 2.0), tf.zeros_like(outputs)), [4, 4, 4]
  )


def test_activation_and_widths_are_used():
  model = zoo.make_model('mlp', _spec((2,)), 2, widths=[3], activation='tanh')
  x = np.array([[0.5, -1.0]], np.float32)
  weights = model.initial_weights
  features, _ = model.body(weights, tf.constant(x))
  np.testing.assert_allclose(
    features, np.tanh(x @ weights['dense_1/kernel']), rtol=1e-5
  )


@pytest.mark.parametrize(
  'name, x_shape, num_classes, arguments, reason',
  [
    ('resnet', (4,), 3, {}, "one of linear, mlp, cnn, found 'resnet'"),
    ('mlp', (4,), 1, {}, 'at least 2.*found 1'),
    ('mlp', (4,), 3, {'widths': (4, 0)}, r'found \(4, 0\)'),
    ('mlp', (4,), 3, {'widths': (2.5,)}, r'found \(2.5,\)'),
    ('mlp', (4,), 3, {'activation': 'rulu'}, "activation, found 'rulu'"),
    ('cnn', (64,), 3, {}, r'images.*found \(64,\)'),
    ('cnn', (3, 8, 1), 3, {}, r'images.*found \(3, 8, 1\)'),
    ('cnn', (8, 8, 1), 3, {'filters': -1}, r'found \(-1, 120, 64\)'),
  ],
)
def test_what_does_not_fit_is_refused(
  name, x_shape, num_classes, arguments, reason
):
  with pytest.raises(ValueError, match=reason):
    zoo.make_model(name, _spec(x_shape), num_classes, **arguments)
