"""Tests of initial weights from files."""

import functools
import zipfile

import h5py
import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.datasets import shared
from tests.methods import toy_problems
from tests.models import keras_models
from tff_pfl.datasets import examples
from tff_pfl.models import keras_bridge, weight_files, zoo

_SPEC = examples.element_spec(tf.TensorSpec((8, 8, 3), tf.float32))


@functools.cache
def _cnn(num_classes=3, seed=0, **arguments):
  arguments = {'filters': 2, 'widths': (4,), **arguments}
  return zoo.make_model('cnn', _SPEC, num_classes, seed, **arguments)


def _write(path, network, is_text=False):
  """Writes a Keras model's weights in the form that a file's name tells.

  Args:
    is_text: True for names as h5py 3 writes them, False for h5py 2's bytes.
  """
  if path.endswith('.npz'):
    weights = {f'array_{i}': w for i, w in enumerate(network.get_weights())}
    np.savez(path, **weights)
  elif path.endswith('.keras'):
    network.save(path)
  elif path.endswith('.weights.h5'):
    network.save_weights(path)
  else:
    # As the files of keras.applications, which Keras 3 does not write.
    with h5py.File(path, 'w') as file:
      layers = [layer for layer in network.layers if layer.weights]
      kind = object if is_text else np.bytes_
      names = [layer.name for layer in layers]
      file.attrs['layer_names'] = np.array(names, kind)
      for layer in layers:
        names = [f'{layer.name}/{w.name}:0' for w in layer.weights]
        group = file.create_group(layer.name)
        group.attrs['weight_names'] = np.array(names, kind)
        for name, weight in zip(names, layer.weights):
          group[name] = weight.numpy()
  return path


def _network(seed, normalized=False, top=True):
  """The network of `_cnn` by other names, of 5 classes."""
  keras.utils.set_random_seed(seed)
  layers = [keras.layers.Input((8, 8, 3))]
  for _ in range(2):
    layers.append(
      keras.layers.Conv2D(2, 5, padding='same', use_bias=not normalized)
    )
    if normalized:
      layers.append(keras.layers.BatchNormalization())
    layers += [keras.layers.ReLU(), keras.layers.MaxPooling2D()]
  if top:
    layers += [keras.layers.Flatten(), keras.layers.Dense(4, name='hidden')]
    layers.append(keras.layers.Dense(5))
  model = keras.Sequential(layers)
  model.set_weights(
    [
      np.random.default_rng(seed).uniform(size=w.shape)
      for w in model.get_weights()
    ]
  )
  return model


@pytest.mark.parametrize('normalized', [False, True])
@pytest.mark.parametrize('ending', weight_files.ENDINGS)
def test_layers_get_the_weights_of_a_file_in_order(
  tmp_path, ending, normalized
):
  network = _network(7, normalized)
  path = _write(str(tmp_path / f'weights{ending}'), network)
  own = _cnn(normalization='batch' if normalized else 'none')
  model = weight_files.with_weights(own, path)
  names = list(own.initial_weights)
  assert list(model.initial_weights) == names
  # The head has other classes.
  toy_problems.assert_same(
    dict(model.initial_weights),
    {
      **dict(zip(names, network.get_weights())),
      'head/kernel': own.initial_weights['head/kernel'],
      'head/bias': own.initial_weights['head/bias'],
    },
  )
  # What is read does not stay in the network.
  x = np.ones((1, 8, 8, 3), np.float32)
  network = own.keras_graph.model
  np.testing.assert_array_equal(
    network(x), own.forward(own.initial_weights, tf.constant(x))[0]
  )


def test_the_same_head_is_taken_by_order_and_by_name(tmp_path):
  other, own = _cnn(seed=1), _cnn()
  by_order, by_name = (str(tmp_path / f'{n}.npz') for n in ('a', 'b'))
  np.savez(by_order, *other.initial_weights.values())
  np.savez(by_name, **dict(reversed(other.initial_weights.items())))
  saved = str(tmp_path / 'c.keras')
  keras_bridge.save_keras(saved, other, other.initial_weights)
  for path in (by_order, by_name, saved):
    model = weight_files.with_weights(own, path)
    toy_problems.assert_same(
      dict(model.initial_weights), dict(other.initial_weights)
    )


@pytest.mark.parametrize('ending', weight_files.ENDINGS)
def test_without_the_top_dense_layers_are_random(tmp_path, ending, caplog):
  network = _network(7, top=False)
  path = _write(str(tmp_path / f'weights{ending}'), network)
  own = _cnn()
  model = weight_files.with_weights(own, path)
  assert 'dense_1, head, which start at random' in caplog.text
  for i, (name, value) in enumerate(model.initial_weights.items()):
    expected = network.get_weights()[i] if i < 4 else own.initial_weights[name]
    np.testing.assert_array_equal(value, expected)


def _made_last_layer_first(seed):
  keras.utils.set_random_seed(seed)
  last, first = keras.layers.Dense(4, 'tanh'), keras.layers.Dense(4, 'relu')
  branches = [
    [
      keras.layers.Dense(4, 'relu'),
      keras.Sequential([keras.Input([4]), keras.layers.Dense(4, name='inner')]),
    ]
    for _ in range(2)
  ]
  inputs = keras.Input([4])
  hidden = last(first(inputs))
  both = keras.layers.Concatenate()([b(a(hidden)) for a, b in branches])
  return keras.Model(inputs, keras.layers.Dense(3, name='head')(both))


@pytest.mark.parametrize('ending', ['.keras', '.weights.h5', '.h5'])
def test_unnamed_layers_of_one_shape_get_their_own_weights(tmp_path, ending):
  network, path = _made_last_layer_first(1), str(tmp_path / f'a{ending}')
  save = network.save_weights if 'weights' in ending else network.save
  save(path)
  own = keras_models.bridge(_made_last_layer_first(2))
  model = weight_files.with_weights(own, path)
  x = tf.random.stateless_normal([5, 4], [1, 2])
  outputs, _ = model.forward(model.initial_weights, x)
  np.testing.assert_allclose(outputs, network(x), rtol=1e-5)


def test_residual_networks_take_the_order_of_torchvision(tmp_path):
  arguments = dict(base_filters=2, normalization='batch', torchvision=True)
  own = zoo.make_model('resnet_18', _SPEC, 3, **arguments)
  layers, number = ['conv_1', 'norm_1'], 1
  for stage in range(4):
    for block in range(2):
      for _ in range(2):
        number += 1
        layers += [f'conv_{number}', f'norm_{number}']
      if stage and not block:
        layers += [f'shortcut_{stage}', f'shortcut_norm_{stage}']
  rng = np.random.default_rng(0)
  weights = {
    name: rng.normal(size=own.initial_weights[name].shape)
    for layer in [*layers, 'head']
    for name in own.layers[layer]
  }
  assert len(weights) == len(own.initial_weights)
  path = str(tmp_path / 'resnet.npz')
  np.savez(path, *weights.values())
  model = weight_files.with_weights(own, path)
  for name, value in model.initial_weights.items():
    np.testing.assert_array_equal(value, weights[name].astype(np.float32))


@pytest.mark.slow
def test_a_vgg_has_the_features_of_keras_applications(tmp_path):
  keras.utils.set_random_seed(0)
  applied = keras.applications.VGG16(
    weights=None, include_top=False, input_shape=(32, 32, 3)
  )
  for ending in ('.keras', '.weights.h5', '.h5'):
    path = _write(str(tmp_path / f'vgg16_notop{ending}'), applied)
    spec = examples.element_spec(tf.TensorSpec((32, 32, 3), tf.float32))
    own = zoo.make_model('vgg_16', spec, 10, normalization='none', widths=(4,))
    model = weight_files.with_weights(own, path)
    x = tf.random.stateless_normal([2, 32, 32, 3], [1, 2])
    actual = model.layer_outputs(model.initial_weights, x)['conv_13']
    np.testing.assert_allclose(
      tf.nn.max_pool2d(actual, 2, 2, 'SAME'), applied(x), rtol=1e-4, atol=1e-6
    )


@pytest.mark.parametrize(
  'name, content, words',
  [
    ('a.h5x', b'', r'ends in .keras or .weights.h5 or .h5 or .npz, found'),
    ('a.npz', None, 'to be a file, found none'),
    ('a.weights.h5', b'x', 'a.weights.h5` to be a'),
    ('a.h5', b'x', 'a.h5` to be a'),
    ('a.keras', b'x', 'a.keras` to be a'),
    (
      'a.npz',
      lambda arrays: arrays[2:],
      r'with conv_1/kernel of shape \(5, 5, 3, 2\), found .of shape'
      r' \(5, 5, 2, 2\) in .* where of 4 layers 0 fit \(none\)',
    ),
    (
      'a.npz',
      lambda arrays: [*arrays[:2], np.zeros(3), *arrays[3:]],
      r'conv_2/kernel of .*found .of shape \(3,\) in .* of 4 layers 3 fit '
      r'\(conv_1, dense_1, head\)',
    ),
    ('a.npz', lambda arrays: [], 'conv_1/kernel .* found .missing in '),
    ('a.npz', lambda arrays: [arrays[0] * np.nan, *arrays[1:]], 'finite'),
  ],
)
def test_files_that_do_not_fit_are_refused(tmp_path, name, content, words):
  model, path = _cnn(), tmp_path / name
  if isinstance(content, bytes):
    path.write_bytes(content)
  elif content is not None:
    np.savez(path, *content(list(model.initial_weights.values())))
  with pytest.raises(ValueError, match=words):
    weight_files.with_weights(model, str(path))


@pytest.mark.parametrize(
  ('ending', 'kind'),
  [
    *(('.h5', kind) for kind in shared.KINDS_ELSEWHERE),
    ('.weights.h5', 'external'),
    ('.keras', 'virtual'),
  ],
)
def test_other_files_are_not_read(tmp_path, ending, kind):
  found = shared.KINDS_ELSEWHERE[kind]
  layers = [keras.layers.Flatten(), keras.layers.Dense(3, name='dense')]
  network = keras.Sequential([keras.layers.Input((8, 8, 3)), *layers])
  path = _write(str(tmp_path / f'a{ending}'), network)
  model = zoo.make_model('linear', _SPEC, 3)
  weight_files.with_weights(model, path)
  weights, name = path, 'layers/dense/vars/0'
  if ending == '.keras':
    with zipfile.ZipFile(path) as archive:
      archive.extractall(tmp_path)
    weights = str(tmp_path / 'model.weights.h5')
  elif ending == '.h5':
    name = 'dense/dense/kernel:0'
  with h5py.File(weights, 'a') as file:
    shared.link_elsewhere(file, name, kind)
  if ending == '.keras':
    with zipfile.ZipFile(path, 'w') as archive:
      for part in ('metadata.json', 'config.json', 'model.weights.h5'):
        archive.write(tmp_path / part, part)
  with shared.one_line_error(f'a{ending}` to be .* found the {found}.*dense'):
    weight_files.with_weights(model, path)


def test_a_normalizations_weights_in_another_order_are_refused(tmp_path):
  # All four have one shape, so that only their names tell them apart.
  model, path = _cnn(normalization='batch'), str(tmp_path / 'sorted.npz')
  names = {
    'gamma': 'scale',
    'beta': 'bias',
    'moving_mean': 'mean',
    'moving_variance': 'var',
  }
  arrays = {}
  for name, value in model.initial_weights.items():
    layer, leaf = name.split('/')
    arrays[f'{[*model.layers].index(layer)}.{names.get(leaf, leaf)}'] = value
  np.savez(path, **arrays)
  weight_files.with_weights(model, path)
  np.savez(path, **dict(sorted(arrays.items())))
  with pytest.raises(ValueError, match='norm_1/gamma'):
    weight_files.with_weights(model, path)


def test_an_older_h5_file_is_matched_by_name(tmp_path):
  layers = keras.layers
  network = keras.Sequential(
    [
      layers.Input((8, 8, 3)),
      layers.Conv2D(3, 3, use_bias=False, name='a'),
      layers.BatchNormalization(name='a_norm'),
      layers.Conv2D(3, 3, use_bias=False, name='b'),
      layers.BatchNormalization(name='b_norm'),
      layers.Flatten(),
      layers.Dense(2, name='head'),
    ]
  )
  own = keras_bridge.from_keras(
    network,
    head_layers=['head'],
    loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
  )
  rng = np.random.default_rng(0)
  network.set_weights(
    [rng.uniform(size=w.shape) for w in network.get_weights()]
  )
  path = _write(str(tmp_path / 'weights.h5'), network, is_text=True)
  with h5py.File(path, 'a') as file:
    # Normalizations after convolutions, as in a block of ResNet50.
    file.attrs['layer_names'] = ['b', 'a', 'b_norm', 'a_norm', 'head']
  model = weight_files.with_weights(own, path)
  toy_problems.assert_same(
    list(model.initial_weights.values()), network.get_weights()
  )
