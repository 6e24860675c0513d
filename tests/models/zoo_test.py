import collections

import numpy as np
import pytest
import tensorflow as tf

from tff_pfl.models import split_model, zoo


def _spec(x_shape, y_shape=(), y_dtype=tf.int32):
  return collections.OrderedDict(
    x=tf.TensorSpec(x_shape, tf.float32), y=tf.TensorSpec(y_shape, y_dtype)
  )


def _text_spec(length=5, y_shape=(), y_dtype=tf.int32):
  return collections.OrderedDict(
    x=tf.TensorSpec((length,), tf.int32), y=tf.TensorSpec(y_shape, y_dtype)
  )


# What a model is made of where it is one of many.
_IMAGES = ('linear', 'mlp', 'cnn', 'resnet_18', 'vgg_16')
_LARGE = ('resnet_18', 'vgg_16', 'text_lstm')
_SPECS = {name: _spec for name in _IMAGES}
_SPECS.update({name: _text_spec for name in ('text_mlp', 'text_lstm')})
_SIZES = {name: (8, 8) for name in _IMAGES}
_SIZES.update({'text_mlp': 8, 'text_lstm': 8})
_ARGUMENTS = {name: {} for name in ('linear', 'mlp', 'cnn')}
_ARGUMENTS['resnet_18'] = dict(base_filters=2)
_ARGUMENTS['vgg_16'] = dict(base_filters=2, widths=(4,))
_ARGUMENTS['text_mlp'] = dict(vocabulary_size=20)
_ARGUMENTS['text_lstm'] = dict(vocabulary_size=20, units=6)


def _names(kind, number):
  return {f'{kind}_{i + 1}' for i in range(number)}


@pytest.mark.parametrize(
  'name, x_shape, num_classes, arguments, body_layers, num_parameters',
  [
    *(
      # 784*512+512 + 512*256+256 + 256*64+64 + 64*10+10
      (
        'mlp',
        shape,
        10,
        dict(widths=(512, 256, 64)),
        _names('dense', 3),
        550346,
      )
      for shape in ((784,), (28, 28), (28, 28, 1))
    ),
    *(
      ('cnn', shape, 10, {}, _names('conv', 2) | _names('dense', 2), number)
      for shape, number in (
        # 32 -> 28 -> 14 -> 10 -> 5: 5*5*64 features.
        # 3*25*64+64 + 64*25*64+64 + 1600*120+120 + 120*64+64 + 64*10+10
        ((32, 32, 3), 307842),
        # 28 -> 24 -> 12 -> 8 -> 4: 4*4*64 features.
        # 25*64+64 + 64*25*64+64 + 1024*120+120 + 120*64+64 + 64*10+10
        ((28, 28, 1), 235522),
        ((28, 28), 235522),
        # Padded: 8 -> 8 -> 4 -> 4 -> 2.
        ((8, 8), 143362),
      )
    ),
    # FedRep's for CIFAR-100.
    # 3*25*64+64 + 64*25*128+128 + 3200*256+256 + 256*128+128 + 128*100+100
    (
      'cnn',
      (32, 32, 3),
      100,
      dict(filters=(64, 128), widths=(256, 128), dropout=0.6),
      _names('conv', 2) | _names('dense', 2),
      1075044,
    ),
    # That of many implementations, with batch or with group normalization.
    (
      'resnet_18',
      (32, 32, 3),
      10,
      {},
      _names('conv', 17) | _names('shortcut', 3),
      11173962,
    ),
    # 14,710,464 of the kernels, 2 * 4,224 of the normalizations; after five
    # poolings one pixel is left: 2 * (512 * 512 + 512) + 512 * 100 + 100.
    (
      'vgg_16',
      (32, 32, 3),
      100,
      {},
      _names('conv', 13) | _names('dense', 2),
      15295524,
    ),
    # LEAF's of Shakespeare.
    # 98*8 + 4*((8+256)*256+256) + 4*((256+256)*256+256) + 256*98+98
    pytest.param(
      'text_lstm',
      80,
      98,
      dict(units=256, num_layers=2),
      {'embedding'} | _names('lstm', 2),
      822642,
      marks=pytest.mark.slow,
    ),
    # FedRep's of tweets.
    # 1000*300 + 4*((300+128)*128+128) + 128*10+10 + 10*2+2
    pytest.param(
      'text_lstm',
      25,
      2,
      dict(vocabulary_size=1000, embedding_size=300, widths=(10,), dropout=0.5),
      {'embedding', 'lstm_1', 'dense_1'},
      520960,
      marks=pytest.mark.slow,
    ),
  ],
)
def test_the_networks_of_the_papers(
  name, x_shape, num_classes, arguments, body_layers, num_parameters
):
  spec = _SPECS[name](x_shape)
  model = zoo.make_model(name, spec, num_classes, **arguments)
  weights = model.initial_weights
  assert sum(value.size for value in weights.values()) == num_parameters
  assert {k for k in model.body_layers if 'norm' not in k} == body_layers
  assert model.head_layers == ('head',)
  assert model.uses_xla == (name in ('mlp', 'text_lstm'))
  if name in ('mlp', 'cnn'):
    outputs, _ = model.forward(weights, tf.zeros([2, *x_shape]))
    assert outputs.shape == (2, num_classes)


def test_a_residual_network_adds_what_it_skips():
  # With kernels of zero, a block gives what it gets.
  model = zoo.make_model(
    'resnet_18', _spec((8, 8)), 3, base_filters=2, normalization='none'
  )
  names = [f'conv_{i}' for i in (2, 3, 4, 5)]
  weights = {
    name: value * (name.split('/')[0] not in names)
    for name, value in model.initial_weights.items()
  }
  x = tf.constant(np.random.default_rng(0).normal(size=(2, 8, 8)), tf.float32)
  layer_outputs = model.layer_outputs(weights, x)
  first = np.maximum(layer_outputs['conv_1'], 0)
  np.testing.assert_allclose(
    layer_outputs['shortcut_1'],
    tf.nn.conv2d(first, weights['shortcut_1/kernel'], 2, 'SAME'),
    atol=1e-5,
  )


@pytest.mark.parametrize(
  ('name', 'normalization'),
  [
    ('cnn', 'batch'),
    ('cnn', 'group'),
    *(
      pytest.param(name, normalization, marks=pytest.mark.slow)
      for name in ('resnet_18', 'vgg_16')
      for normalization in ('group', 'batch', 'none')
    ),
  ],
)
def test_convolutions_are_normalized_as_asked(name, normalization):
  size = 'filters' if name == 'cnn' else 'base_filters'
  model = zoo.make_model(
    name,
    _spec((8, 8, 1)),
    3,
    normalization=normalization,
    groups=4,
    **{**_ARGUMENTS[name], size: 6},
  )
  assert bool(model.statistics) == (normalization == 'batch')
  units = model.units['conv_1']
  assert units.number == 6
  # The normalization's scale and shift are the channel's own.
  own = {
    'group': ['norm_1/gamma', 'norm_1/beta'],
    'batch': [
      f'norm_1/{k}' for k in ('gamma', 'beta', 'moving_mean', 'moving_variance')
    ],
    'none': ['conv_1/bias'],
  }[normalization]
  assert set(units.gates) == {'conv_1/kernel', *own}
  x = tf.random.stateless_normal([4, 8, 8, 1], [1, 2])
  outputs, _ = model.forward(model.initial_weights, x)
  assert outputs.shape == (4, 3)
  assert np.ptp(outputs) > 0
  if normalization == 'group':
    # 2 groups of 6 channels, as 4 do not divide them; before the activation.
    normalized = model.layer_outputs(model.initial_weights, x)['norm_1']
    groups = np.reshape(normalized, [4, -1, 2, 3])
    np.testing.assert_allclose(groups.mean(axis=(1, 3)), 0, atol=1e-4)


def test_dropout_drops_features_in_training_only():
  model = zoo.make_model(
    'cnn', _spec((8, 8)), 3, widths=(400,), filters=2, dropout=0.6
  )
  weights, x = model.initial_weights, tf.ones([1, 8, 8])
  features, _ = model.body(weights, x)
  dropped, _ = model.body(
    weights, x, split_model.Mode(training=True, seed=tf.constant([1, 2]))
  )
  active = features.numpy() > 0
  kept = dropped.numpy()[active] > 0
  assert 0.2 < kept.mean() < 0.6
  np.testing.assert_allclose(
    dropped.numpy()[active][kept], features.numpy()[active][kept] / 0.4, 1e-5
  )


def test_text_mlp_takes_the_mean_of_the_words_without_padding():
  model = zoo.make_model(
    'text_mlp', _text_spec(4), 2, vocabulary_size=6, widths=(3,)
  )
  assert model.body_layers == ('embedding', 'normalization', 'dense_1')
  assert model.head_layers == ('head',)
  weights = model.initial_weights
  x = tf.constant([[2, 5, 2, 0], [0, 0, 0, 0]])
  features, _ = model.body(weights, x)
  words = weights['embedding/embeddings'][[2, 5, 2]].mean(axis=0)
  normal = (words - words.mean()) / np.sqrt(words.var() + 1e-3)
  np.testing.assert_allclose(
    features[0],
    np.maximum(normal @ weights['dense_1/kernel'], 0),
    rtol=1e-4,
    atol=1e-5,
  )
  assert not np.any(features[1])


def _loss_and_gradient(model, x, y):
  weights = {k: tf.constant(v) for k, v in model.initial_weights.items()}
  with tf.GradientTape() as tape:
    tape.watch(weights)
    outputs, _ = model.forward(weights, tf.constant(x))
    loss = model.loss(tf.constant(y), outputs)
  gradient = tape.gradient(loss, weights)
  return loss, {k: tf.convert_to_tensor(v) for k, v in gradient.items()}


@pytest.mark.parametrize(
  'name', ['text_mlp', pytest.param('text_lstm', marks=pytest.mark.slow)]
)
def test_a_text_without_words_is_no_reason_for_nan(name):
  model = zoo.make_model(name, _text_spec(4), 3, vocabulary_size=6)
  loss, gradient = _loss_and_gradient(model, [[0, 0, 0, 0]], [1])
  assert np.all(np.isfinite(loss))
  for key, value in gradient.items():
    assert np.all(np.isfinite(value)), key


def test_text_lstm_skips_padding():
  model = zoo.make_model('text_lstm', _text_spec(5), 7, units=4)
  features, _ = model.body(
    model.initial_weights, tf.constant([[3, 5, 0, 0, 0], [0, 3, 0, 0, 5]])
  )
  np.testing.assert_allclose(features[0], features[1], atol=1e-6)
  assert np.any(features[0])


@pytest.mark.parametrize('num_classes', [2, None])
def test_text_lstm_needs_a_vocabulary_where_classes_are_no_words(num_classes):
  with pytest.raises(ValueError, match='`vocabulary_size` to be given'):
    zoo.make_model('text_lstm', _text_spec(), num_classes)


@pytest.mark.parametrize(
  'name', ['text_mlp', pytest.param('text_lstm', marks=pytest.mark.slow)]
)
def test_text_models_have_gradients_for_every_weight(name):
  model = zoo.make_model(
    name, _text_spec(), 5, vocabulary_size=5, embedding_size=3
  )
  _, gradient = _loss_and_gradient(model, [[1, 2, 3, 4, 0]], [3])
  for key, value in gradient.items():
    assert np.any(value), key


@pytest.mark.parametrize('name', ['linear', 'mlp'])
def test_an_input_may_be_one_number(name):
  model = zoo.make_model(name, _spec(()), 3)
  outputs, _ = model.forward(model.initial_weights, tf.constant([0.5, 2.0]))
  assert outputs.shape == (2, 3)


def test_the_linear_model_is_all_head():
  model = zoo.make_model('linear', _spec((8, 8)), 10)
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


# Large models are slow to make; their layers take seeds as the others' do.
_every_model = pytest.mark.parametrize(
  'name',
  [
    pytest.param(name, marks=[pytest.mark.slow] if name in _LARGE else [])
    for name in zoo.MODELS
  ],
)


@_every_model
def test_the_seed_decides_the_weights(name):
  spec = _SPECS[name](_SIZES[name])
  first, again, other = (
    zoo.make_model(name, spec, 3, seed, **_ARGUMENTS[name])
    for seed in (4, 4, 5)
  )
  drawn = []
  for key, value in first.initial_weights.items():
    np.testing.assert_array_equal(value, again.initial_weights[key])
    if key.endswith(('kernel', 'embeddings')):
      drawn += [value.ravel()[0], other.initial_weights[key].ravel()[0]]
  # Layers of the same shape, too, start differently.
  assert len(set(drawn)) == len(drawn)


@pytest.mark.parametrize('seed', [0, -3, 2**31, 2**63 - 1])
def test_any_integer_is_a_seed(seed):
  model = zoo.make_model('linear', _spec((4,)), 3, seed)
  assert np.all(np.isfinite(model.initial_weights['head/kernel']))


@_every_model
@pytest.mark.parametrize('y_shape, units', [((), 1), ((2,), 2)])
def test_without_classes_it_is_regression(name, y_shape, units):
  spec = _SPECS[name](_SIZES[name], y_shape, tf.float32)
  model = zoo.make_model(name, spec, None, **_ARGUMENTS[name])
  assert model.classifier is None
  assert tuple(model.metrics) == ('mae',)
  assert model.element_spec['y'] == tf.TensorSpec(y_shape, tf.float32)
  x = tf.zeros([3, *spec['x'].shape], spec['x'].dtype)
  outputs, _ = model.forward(model.initial_weights, x)
  assert outputs.shape == (3, units)
  np.testing.assert_allclose(
    model.loss(tf.fill([3, *y_shape], 2.0), tf.zeros_like(outputs)), [4, 4, 4]
  )


def test_of_several_labels_each_has_an_output():
  spec = _spec((4,))
  spec['y'] = tf.TensorSpec([3], tf.int32)
  model = zoo.make_model('mlp', spec, 2, widths=(4,))
  assert model.classifier.is_multilabel
  assert model.element_spec['y'] == spec['y']
  y, outputs = tf.constant([[0, 1, 1]]), tf.constant([[-2.0, 2.0, -2.0]])
  np.testing.assert_allclose(
    model.loss(y, outputs), [np.log1p(np.exp(-2)) + 2 / 3], rtol=1e-6
  )
  np.testing.assert_allclose(model.metrics['accuracy'](y, outputs), [2 / 3])
  with pytest.raises(ValueError, match='`num_classes` to be 2 for several l'):
    zoo.make_model('mlp', spec, 3, widths=(4,))


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
    ('resnet', (4,), 3, {}, "one of linear, mlp, cnn, .*'resnet'"),
    ('mlp', (4,), 1, {}, 'at least 2.*found 1'),
    ('mlp', (4,), 3, {'widths': (4, 0)}, '`widths` to be an int.*found 0'),
    ('mlp', (4,), 3, {'widths': (2.5,)}, '`widths` to be an int.*found 2.5'),
    ('mlp', (4,), 3, {'activation': 'rulu'}, "activation, found 'rulu'"),
    ('cnn', (64,), 3, {}, r'images.*found \(64,\)'),
    ('cnn', (3, 8, 1), 3, {}, r'images.*found \(3, 8, 1\)'),
    ('cnn', (8, 8, 1), 3, {'filters': -1}, '`filters`.*found -1'),
    ('cnn', (8, 8, 1), 3, {'filters': (2, 3, 4)}, r'two, found \(2, 3, 4\)'),
    ('cnn', (8, 8, 1), 3, {'dropout': 1.0}, r'in \[0, 1\), found 1.0'),
    ('resnet_18', (64,), 3, {}, r'images.*found \(64,\)'),
    ('resnet_18', (8, 8), 3, {'normalization': 'x'}, "group, batch, none.*'x'"),
    ('resnet_18', (8, 8), 3, {'base_filters': 0}, '`base_filters`.*0'),
    ('vgg_16', (8, 8), 3, {'groups': 0}, '`groups`.*0'),
    ('vgg_16', (2, 8, 1), 3, {}, r'images.*found \(2, 8, 1\)'),
    ('text_mlp', (8,), 3, {}, 'sequences of integers'),
    ('text_lstm', (8, 8), 3, {}, 'sequences of integers'),
  ],
)
def test_what_does_not_fit_is_refused(
  name, x_shape, num_classes, arguments, reason
):
  with pytest.raises(ValueError, match=reason):
    zoo.make_model(name, _spec(x_shape), num_classes, **arguments)
