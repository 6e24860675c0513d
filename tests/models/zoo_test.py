import functools
import re

import keras
import numpy as np
import pytest
import tensorflow as tf
import tree

from tff_pfl.datasets import examples as examples_lib
from tff_pfl.models import augmentation, keras_bridge, split_model, zoo


def _spec(x_shape=(8, 8), y_shape=(), y_dtype=tf.int32):
  return examples_lib.element_spec(
    tf.TensorSpec(x_shape, tf.float32), tf.TensorSpec(y_shape, y_dtype)
  )


def _text_spec(length=5, y_shape=(), y_dtype=tf.int32):
  return examples_lib.element_spec(
    tf.TensorSpec((length,), tf.int32), tf.TensorSpec(y_shape, y_dtype)
  )


# What a model is made of where it is one of many.
_ARGUMENTS = {
  'linear': {},
  'mlp': {},
  'cnn': {},
  'resnet_18': dict(base_filters=2),
  'resnet_34': dict(base_filters=2),
  'vgg_16': dict(base_filters=2, widths=(4,)),
  'image_and_record': dict(depth=18, base_filters=2, record_widths=(3,)),
  'text_mlp': dict(vocabulary_size=20),
  'text_lstm': dict(vocabulary_size=20, units=6),
}


_LARGE = ('resnet_18', 'resnet_34', 'vgg_16', 'image_and_record', 'text_lstm')


def _small(name, *y, num_classes=3, seed=0):
  spec = _spec((8, 8), *y)
  if name.startswith('text'):
    spec = _text_spec(8, *y)
  if name == 'image_and_record':
    spec['x'] = {'image': spec['x'], 'record': tf.TensorSpec((2,), tf.float32)}
  return zoo.make_model(name, spec, num_classes, seed, **_ARGUMENTS[name])


_slow = functools.partial(pytest.param, marks=pytest.mark.slow)
# Large models are slow to make; their layers are made as the others'.
_every_model = pytest.mark.parametrize(
  'kind',
  [_slow(name) if name in _LARGE else name for name in zoo.MODELS],
)
_FED_REP_CNN = dict(filters=(64, 128), widths=(256, 128), dropout=0.6)
_FED_BN_CNN = dict(
  filters=(64, 64, 128),
  num_poolings=2,
  padding='same',
  normalization='batch',
  normalize_dense=True,
  widths=(2048, 512),
)
_BLOCKS_OF_TWO = dict(
  filters=(32, 64, 128, 128, 256, 256),
  kernel_size=3,
  convolutions_per_pooling=2,
  padding='same',
  widths=(1024, 512),
)
_LEAF_LSTM = dict(units=256, num_layers=2)
_TWEETS_LSTM = dict(
  vocabulary_size=1000, embedding_size=300, widths=(10,), dropout=0.5
)


@pytest.mark.parametrize(
  'name, x_shape, num_classes, arguments, body_layers, num_parameters',
  [
    # 784*512+512 + 512*256+256 + 256*64+64 + 64*10+10
    ('mlp', (28, 28, 1), 10, {'widths': (512, 256, 64)}, 'dense 3', 550346),
    # 32 -> 28 -> 14 -> 10 -> 5: 5*5*64 features.
    # 3*25*64+64 + 64*25*64+64 + 1600*120+120 + 120*64+64 + 64*10+10
    ('cnn', (32, 32, 3), 10, {}, 'conv 2 dense 2', 307842),
    # 28 -> 24 -> 12 -> 8 -> 4: 4*4*64 features.
    # 25*64+64 + 64*25*64+64 + 1024*120+120 + 120*64+64 + 64*10+10
    ('cnn', (28, 28), 10, {}, 'conv 2 dense 2', 235522),
    # Padded: 8 -> 8 -> 4 -> 4 -> 2.
    ('cnn', (8, 8), 10, {}, 'conv 2 dense 2', 143362),
    # FedRep's for CIFAR-100.
    # 3*25*64+64 + 64*25*128+128 + 3200*256+256 + 256*128+128 + 128*100+100
    ('cnn', (32, 32, 3), 100, _FED_REP_CNN, 'conv 2 dense 2', 1075044),
    # FedBN's and FedDAR's for digits: 28 -> 14 -> 7: 7*7*128 features.
    # (3*64 + 64*64 + 64*128) * 25 + 4 * (64 + 64 + 128), with statistics
    # + 6272*2048 + 2048*512 + 4 * (2048 + 512) + 512*10+10
    _slow('cnn', (28, 28, 3), 10, _FED_BN_CNN, 'conv 3 dense 2', 14222026),
    # Of FedAvg with fine-tuning: 32 -> 16 -> 8 -> 4: 4*4*256 features.
    # (3*32 + 32*64 + 64*128 + 128*128 + 128*256 + 256*256) * 9 + 864
    # + 4096*1024+1024 + 1024*512+512 + 512*100+100
    ('cnn', (32, 32, 3), 100, _BLOCKS_OF_TWO, 'conv 6 dense 2', 5897508),
    # That of many implementations, with batch or with group normalization.
    ('resnet_18', (32, 32, 3), 10, {}, 'conv 17 shortcut 3', 11173962),
    # What torchvision says of its resnet34.
    _slow(
      'resnet_34',
      (64, 64, 3),
      1000,
      {'torchvision': True},
      'conv 33 shortcut 3',
      21797672,
    ),
    # 14,714,688 of the convolutions, as Keras says of its VGG16 without top,
    # and 2 * 4,224 of the normalizations, for torchvision's 138,365,992 of
    # vgg16_bn; 49*512*2+2 + 2*10+10.
    _slow(
      'vgg_16',
      (32, 32, 3),
      10,
      {'torchvision': True, 'widths': (2,)},
      'conv 13 dense 1',
      14723136 + 50178 + 30,
    ),
    # 14,710,464 of the kernels, 2 * 4,224 of the normalizations; after five
    # poolings one pixel is left: 2 * (512 * 512 + 512) + 512 * 100 + 100.
    ('vgg_16', (32, 32, 3), 100, {}, 'conv 13 dense 2', 15295524),
    # LEAF's of Shakespeare.
    # 98*8 + 4*((8+256)*256+256) + 4*((256+256)*256+256) + 256*98+98
    _slow('text_lstm', 80, 98, _LEAF_LSTM, 'embedding lstm 2', 822642),
    # FedRep's of tweets.
    # 1000*300 + 4*((300+128)*128+128) + 128*10+10 + 10*2+2
    _slow('text_lstm', 25, 2, _TWEETS_LSTM, 'embedding lstm 1 dense 1', 520960),
  ],
)
def test_the_networks_of_the_papers(
  name, x_shape, num_classes, arguments, body_layers, num_parameters
):
  spec = (_text_spec if name == 'text_lstm' else _spec)(x_shape)
  model = zoo.make_model(name, spec, num_classes, **arguments)
  weights = model.initial_weights
  assert sum(value.size for value in weights.values()) == num_parameters
  # The first to the last of each kind.
  expected = re.sub(
    r'(\w+) (\d+)',
    lambda kind: ' '.join(f'{kind[1]}_{i + 1}' for i in range(int(kind[2]))),
    body_layers,
  )
  assert {k for k in model.body_layers if 'norm' not in k} == {
    *expected.split()
  }
  assert model.head_layers == ('head',)
  assert model.uses_xla == (name in ('mlp', 'text_lstm'))


def test_a_network_of_torchvision_is_padded_on_both_sides():
  model = zoo.make_model(
    'resnet_18',
    _spec((32, 32, 3)),
    3,
    base_filters=2,
    normalization='none',
    torchvision=True,
  )
  # The first stage gives what it gets.
  weights = {
    name: value * (name.split('/')[0] not in ('conv_3', 'conv_5'))
    for name, value in model.initial_weights.items()
  }
  x = tf.random.stateless_normal([2, 32, 32, 3], [1, 2])
  outputs = model.layer_outputs(weights, x)

  def convolved(x, name, size):
    sides = [[0, 0], [size, size], [size, size], [0, 0]]
    return tf.nn.relu(tf.nn.conv2d(x, weights[f'{name}/kernel'], 2, sides))

  first = convolved(x, 'conv_1', 3)
  np.testing.assert_allclose(outputs['conv_1'], first, atol=1e-5)
  # No feature after an activation is negative: zeros never win.
  pooled = tf.nn.max_pool2d(first, 3, 2, [[0, 0], [1, 1], [1, 1], [0, 0]])
  assert pooled.shape == (2, 8, 8, 2)
  np.testing.assert_allclose(
    outputs['conv_6'], convolved(pooled, 'conv_6', 1), atol=1e-5
  )
  np.testing.assert_allclose(
    outputs['shortcut_1'],
    tf.nn.conv2d(pooled, weights['shortcut_1/kernel'], 2, 'SAME'),
    atol=1e-5,
  )


@pytest.mark.parametrize(
  ('name', 'normalization'),
  [
    ('cnn', 'batch'),
    ('cnn', 'group'),
    _slow('resnet_18', 'batch'),
    _slow('vgg_16', 'none'),
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
    'cnn', _spec(), 3, filters=2, widths=(400,), dropout=0.6
  )
  weights, x = model.initial_weights, tf.ones([1, 8, 8])
  features, dropped = (
    model.body(weights, x, mode)[0].numpy()
    for mode in (
      split_model.INFERENCE,
      split_model.Mode(training=True, seed=tf.constant([1, 2])),
    )
  )
  active = features > 0
  kept = dropped[active] > 0
  assert 0.2 < kept.mean() < 0.6
  np.testing.assert_allclose(
    dropped[active][kept], features[active][kept] / 0.4, 1e-5
  )


@pytest.mark.slow
@pytest.mark.parametrize(
  'torchvision, kinds',
  [(True, 'Dense Dropout ' * 2), (False, 'Dense Dense Dropout ')],
)
def test_dropout_is_after_each_dense_layer_of_torchvisions_vgg(
  torchvision, kinds
):
  model = zoo.make_model(
    'vgg_16',
    _spec(),
    3,
    widths=(4, 4),
    dropout=0.5,
    base_filters=1,
    torchvision=torchvision,
  )
  actual = [type(node.operation).__name__ for node in model.keras_graph.nodes]
  assert actual[-len(kinds.split()) - 1 :] == f'{kinds}Dense'.split()


def test_an_image_and_a_record_are_side_by_side():
  spec = _spec()
  spec['x'] = {
    'image': tf.TensorSpec((8, 8, 1), tf.float32),
    'record': tf.TensorSpec((22,), tf.float32),
  }
  model = zoo.make_model(
    'image_and_record',
    spec,
    2,
    depth=18,
    base_filters=2,
    normalization='none',
  )
  assert {'conv_17', 'dense_1'} < set(model.body_layers)
  rng = np.random.default_rng(0)
  x = {
    name: rng.normal(size=(3, *of.shape)).astype(np.float32)
    for name, of in spec['x'].items()
  }
  features, _ = model.body(model.initial_weights, x)
  assert features.shape == (3, 278)
  np.testing.assert_array_equal(features[:, 256:], x['record'])
  assert np.ptp(features[:, :256], axis=0).max() > 1e-3
  other, _ = model.body(model.initial_weights, {**x, 'image': x['image'][::-1]})
  np.testing.assert_allclose(other[:, :256], features[::-1, :256], atol=1e-5)
  # Only the image is changed in training.
  mode = split_model.Mode(True, tf.constant([1, 2]), tf.ones([3]))
  changed, _ = augmentation.augmented(model, 'crop:2').body(
    model.initial_weights, x, mode
  )
  assert np.any(np.abs(changed[:, :256] - features[:, :256]) > 1e-3)
  np.testing.assert_array_equal(changed[:, 256:], x['record'])
  for name, of in (('mlp', spec), ('image_and_record', _spec())):
    with pytest.raises(ValueError, match='`model` to be image_and_record for'):
      zoo.make_model(name, of, 2)


def test_text_mlp_takes_the_mean_of_the_words_without_padding():
  model = zoo.make_model(
    'text_mlp', _text_spec(4), 2, vocabulary_size=6, widths=(3,)
  )
  assert model.body_layers == ('embedding', 'normalization', 'dense_1')
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


@pytest.mark.parametrize(
  'name', ['text_mlp', pytest.param('text_lstm', marks=pytest.mark.slow)]
)
def test_texts_have_gradients_also_without_words(name):
  model = zoo.make_model(
    name, _text_spec(), 5, vocabulary_size=5, embedding_size=3
  )
  weights = {k: tf.constant(v) for k, v in model.initial_weights.items()}
  for words in ([0, 0, 0, 0, 0], [1, 2, 3, 4, 0]):
    with tf.GradientTape() as tape:
      tape.watch(weights)
      outputs, _ = model.forward(weights, tf.constant([words]))
      loss = model.loss(tf.constant([3]), outputs)
    for key, value in tape.gradient(loss, weights).items():
      value = tf.convert_to_tensor(value)
      assert np.all(np.isfinite(value)), key
      assert np.any(value) or not any(words), key


def test_text_lstm_skips_padding():
  model = zoo.make_model('text_lstm', _text_spec(5), 7, units=4)
  features, _ = model.body(
    model.initial_weights, tf.constant([[3, 5, 0, 0, 0], [0, 3, 0, 0, 5]])
  )
  np.testing.assert_allclose(features[0], features[1], atol=1e-6)
  assert np.any(features[0])


@pytest.mark.parametrize('shape', [(), (8, 8)])
def test_the_linear_model_is_all_head_also_of_one_number(shape):
  model = zoo.make_model('linear', _spec(shape), 10)
  assert model.head_layers == ('head',)
  assert model.body_layers == ()
  x = np.random.default_rng(0).normal(size=(3, *shape)).astype(np.float32)
  outputs, _ = model.forward(model.initial_weights, tf.constant(x))
  np.testing.assert_allclose(
    outputs,
    x.reshape(3, -1) @ model.initial_weights['head/kernel'],
    rtol=1e-4,
    atol=1e-5,
  )


@_every_model
def test_the_seed_decides_the_weights(kind):
  first, again, other = (_small(kind, seed=seed) for seed in (4, 4, 5))
  drawn = []
  for key, value in first.initial_weights.items():
    np.testing.assert_array_equal(value, again.initial_weights[key])
    if key.endswith(('kernel', 'embeddings')):
      drawn += [value.ravel()[0], other.initial_weights[key].ravel()[0]]
  # Layers of the same shape, too, start differently.
  assert len(set(drawn)) == len(drawn)


@pytest.mark.parametrize('seed', [-3, 2**63 - 1])
def test_any_integer_is_a_seed(seed):
  by_fan_in = zoo.mlp(_spec((4,)), 3, seed, initialization='fan_in')
  for model in (_small('linear', seed=seed), by_fan_in):
    assert np.all(np.isfinite(model.initial_weights['head/kernel']))


@_every_model
def test_without_classes_it_is_regression(kind):
  for y_shape, units in (((), 1), ((2,), 2)):
    model = _small(kind, y_shape, tf.float32, num_classes=None)
    assert model.classifier is None
    assert tuple(model.metrics) == ('mae',)
    assert model.element_spec['y'] == tf.TensorSpec(y_shape, tf.float32)
    x = tree.map_structure(
      lambda of: tf.zeros([3, *of.shape], of.dtype), model.element_spec['x']
    )
    outputs, _ = model.forward(model.initial_weights, x)
    assert outputs.shape == (3, units)
    np.testing.assert_allclose(
      model.loss(tf.fill([3, *y_shape], 2.0), tf.zeros_like(outputs)), [4, 4, 4]
    )


def test_of_several_labels_each_has_an_output():
  model = zoo.make_model('mlp', _spec((4,), [3]), 2, widths=(4,))
  assert model.classifier.is_multilabel
  y, outputs = tf.constant([[0, 1, 1]]), tf.constant([[-2.0, 2.0, -2.0]])
  np.testing.assert_allclose(
    model.loss(y, outputs), [np.log1p(np.exp(-2)) + 2 / 3], rtol=1e-6
  )
  np.testing.assert_allclose(model.metrics['accuracy'](y, outputs), [2 / 3])


def test_activation_and_widths_are_used():
  model = zoo.make_model('mlp', _spec((2,)), 2, widths=[3], activation='tanh')
  x = np.array([[0.5, -1.0]], np.float32)
  weights = model.initial_weights
  features, _ = model.body(weights, tf.constant(x))
  np.testing.assert_allclose(
    features, np.tanh(x @ weights['dense_1/kernel']), rtol=1e-5
  )


_BYTES = tf.TensorSpec((8, 8), tf.uint8)


@pytest.mark.parametrize(
  'name, spec, arguments, reason',
  [
    ('resnet', _spec((4,)), {}, "one of linear, mlp, cnn, .*'resnet'"),
    ('mlp', {'x': 5, 'y': 6}, {}, '`element_spec` to be OrderedDict'),
    ('mlp', _spec((4,)), {'num_classes': 1}, 'at least 2.*found 1'),
    ('mlp', _spec((4,)), {'seed': 1.5}, '`seed` to be an integer, found 1.5'),
    ('mlp', _spec((4,)), {'widths': 5}, '`widths` to be of type Sequence'),
    ('mlp', _spec((4,), [3]), {}, '`num_classes` to be 2 for several labels'),
    ('mlp', _spec((4,)), {'widths': (4, 0)}, '`widths` .*least 1, found 0'),
    ('mlp', _spec((4,)), {'width': (4,)}, '`width`. Did you mean widths'),
    ('mlp', _spec((4,)), {'activation': 'rulu'}, 'activation .*rulu'),
    ('cnn', _spec((3, 8, 1)), {}, r'images.*found .*\(3, 8, 1\)'),
    ('cnn', {**_spec(), 'x': _BYTES}, {}, 'float images .*x / 255.*tf.uint8'),
    ('cnn', _spec(), {'filters': ()}, '`filters` to be 1 numbers'),
    ('cnn', _spec(), {'num_poolings': 3}, '`num_poolings`.*found 3'),
    ('cnn', _spec(), {'filters': (1,) * 4}, '`num_poolings` .*less than 4'),
    ('cnn', _spec((9, 9)), {'padding': 'valid'}, 'padding=valid'),
    ('cnn', _spec(), {'dropout': 1.0}, '`dropout` .*less than 1, found 1.0'),
    ('text_lstm', _text_spec(), {'num_layers': 101}, '`num_layers` .*most 100'),
    ('vgg_16', _spec((64, 64)), {'torchvision': True}, 'at most 32'),
    ('resnet_18', _spec(), {'normalization': 'x'}, "group, batch, none.*'x'"),
    ('vgg_16', _spec(), {'groups': 0}, '`groups`.*0'),
    ('text_mlp', _spec((8,)), {}, 'sequences of integers'),
    ('text_lstm', _text_spec(), {'num_classes': 2}, '`vocabulary_size` to be'),
  ],
)
def test_what_does_not_fit_is_refused(name, spec, arguments, reason):
  with pytest.raises((TypeError, ValueError), match=reason):
    zoo.make_model(name, spec, **{'num_classes': 3, **arguments})


def _own_network(element_spec, num_classes, seed, *, width: int = 4):
  """A network with weights that Keras and NumPy draw.

  Args:
    width: Units of the hidden layer.
  """
  network = keras.Sequential(
    [
      keras.Input(element_spec['x'].shape),
      keras.layers.Dense(width, name='features'),
      keras.layers.Dense(num_classes, name='scores'),
    ]
  )
  network.layers[-1].bias.assign(np.random.normal(size=num_classes))
  return keras_bridge.from_keras(
    network,
    head_layers=['scores'],
    loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
  )


@pytest.mark.usefixtures('registers')
def test_a_function_of_ones_own_is_a_model_by_its_name():
  zoo.model(_own_network)

  def weights(seed, **arguments):
    model = zoo.make_model('_own_network', _spec((3,)), 2, seed, **arguments)
    return model.initial_weights

  first, again, other = weights(1, width=5), weights(1, width=5), weights(2)
  assert first['features/kernel'].shape == (3, 5)
  assert other['features/kernel'].shape == (3, 4)
  for name, value in first.items():
    np.testing.assert_array_equal(value, again[name])
  assert not np.array_equal(first['scores/bias'], other['scores/bias'])
  with pytest.raises(
    TypeError, match='no argument `widht`.*Did you mean width'
  ):
    weights(1, widht=5)


@pytest.mark.usefixtures('registers')
def test_a_function_that_is_no_model_is_refused():
  with pytest.raises(ValueError, match='a type for its argument width'):
    zoo.model(lambda element_spec, num_classes, seed, *, width=1: None)
  expected = r'\(element_spec, num_classes, seed, \*, own arguments\)'
  for function in (lambda spec: None, lambda element_spec, num_classes: None):
    with pytest.raises(ValueError, match=expected):
      zoo.model(function)

  def mlp(element_spec, num_classes, seed):
    """Has the name of a model of the library."""

  with pytest.raises(ValueError, match="another name.*found 'mlp'"):
    zoo.model(mlp)

  @zoo.model
  def nothing(element_spec, num_classes, seed):
    """Makes no model."""

  with pytest.raises(TypeError, match='`nothing` to be a SplitModel'):
    nothing(_spec((3,)), 2)
