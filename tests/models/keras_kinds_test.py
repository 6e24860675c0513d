"""Keras models of all kinds beyond plain layers, each against Keras itself."""

import collections
import dataclasses

import keras
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.models import keras_models
from tff_pfl import datasets
from tff_pfl.core import objectives
from tff_pfl.methods import registry
from tff_pfl.models import copies, keras_bridge, prediction, weight_partition
from tff_pfl.runs import training

layers = keras.layers
sequential = keras_models.sequential


class _InList(layers.Layer):
  """Keeps a weight in a list, and reads it through a function."""

  def build(self, input_shape):
    self.scales = [self.add_weight(shape=(), name='scale')]
    scale = self.scales[0]
    self.function = lambda x: x * scale

  def call(self, inputs):
    return self.function(inputs) + self.scales[0]


class _Tied(layers.Layer):
  def __init__(self, dense):
    super().__init__(name='tied')
    self.dense = dense

  def call(self, inputs):
    return tf.matmul(inputs, self.dense.kernel, transpose_b=True)


class _Subclassed(keras.Model):
  def __init__(self):
    super().__init__(name='subclassed')
    self.blocks = [layers.Dense(5, name='first'), layers.Dropout(0.5)]
    self.end = layers.Dense(keras_models.NUM_CLASSES, name='head')

  def call(self, inputs, training=None):
    hidden = self.blocks[0](inputs)
    return self.end(self.blocks[1](keras.ops.relu(hidden), training=training))


class _OtherInTraining(_Subclassed):
  def call(self, inputs, training=None):
    hidden = self.blocks[0](inputs)
    return self.end(keras.ops.relu(hidden) if training else hidden)


def _called(model):
  model(tf.ones([1, 4]))
  return model


def _tied():
  dense = layers.Dense(5, use_bias=False, name='dense')
  return sequential(dense, _Tied(dense))


def _shared():
  inputs = keras.Input((4,))
  dense, norm = layers.Dense(4, 'tanh'), layers.BatchNormalization()
  hidden = norm(dense(norm(dense(inputs))))
  return keras.Model(inputs, layers.Dense(3, name='head')(hidden))


def _normalized():
  layer = layers.Normalization(name='normalization')
  layer.adapt(np.random.default_rng(0).normal(2, 3, [20, 4]))
  return sequential(layer, layers.Dense(5))


def _two_inputs(form):
  left = keras.Input((4,), name='left')
  right = keras.Input((3,), name='right')
  hidden = layers.Concatenate()([layers.Dense(5, 'relu')(left), right])
  inputs = {'right': right, 'left': left} if form is dict else [right, left]
  return keras.Model(inputs, layers.Dense(3, name='head')(hidden))


def _two_outputs():
  inputs = keras.Input((4,))
  hidden = layers.Dense(5, 'relu')(inputs)
  outputs = [
    layers.Dense(n, name=k)(hidden) for k, n in [('b', 2), ('head', 3)]
  ]
  return keras.Model(inputs, outputs, name='two')


# Name -> (model, whether it draws random numbers in training).
KINDS = {
  'shared': (_shared, False),
  'tied': (_tied, False),
  'in_a_list': (lambda: sequential(_InList(name='in_list')), False),
  'subclassed': (lambda: _called(_Subclassed()), True),
  'inputs_list': (lambda: _two_inputs(list), False),
  'inputs_dict': (lambda: _two_inputs(dict), False),
  'normalization': (_normalized, False),
  'mixed_precision': (
    lambda: sequential(
      layers.Conv1D(4, 2, dtype='mixed_bfloat16'),
      layers.BatchNormalization(dtype='mixed_bfloat16'),
      layers.GRU(3, dtype='mixed_bfloat16', dropout=0.5),
      layers.Dense(4, dtype='mixed_float16'),
      shape=(5, 3),
    ),
    True,
  ),
  'noise': (
    lambda: sequential(
      layers.GaussianNoise(0.1),
      layers.GaussianDropout(0.1),
      layers.AlphaDropout(0.1),
    ),
    True,
  ),
  'images': (
    lambda: sequential(
      layers.RandomFlip(),
      layers.RandomRotation(0.2),
      layers.RandomContrast(0.1),
      layers.Flatten(),
      shape=(4, 4, 3),
    ),
    True,
  ),
  'recurrent_dropout': (
    lambda: sequential(
      layers.LSTM(2, dropout=0.2, recurrent_dropout=0.2), shape=(3, 4)
    ),
    True,
  ),
}


@pytest.mark.parametrize(
  'kind',
  [
    pytest.param(
      kind, marks=pytest.mark.slow if kind == 'recurrent_dropout' else ()
    )
    for kind in KINDS
  ],
)
def test_models_of_all_kinds_equal_keras_and_train_by_seed(kind):
  make, is_random = KINDS[kind]
  keras.utils.set_random_seed(5)
  model = make()
  state = keras_models.state_of(model)
  bridged = keras_models.bridge(model)
  rng = np.random.default_rng(0)
  x = tf.nest.map_structure(
    lambda spec: tf.constant(rng.normal(size=[6, *spec.shape]), spec.dtype),
    bridged.element_spec['x'],
  )
  y = tf.constant([0, 1, 2, 0, 1, 2])
  weights = keras_models.tensors(bridged)

  @tf.function(jit_compile=bridged.uses_xla)
  def step(seed):
    batch = objectives.Batch(x, y, tf.ones([6]))
    return objectives.joint_loss(bridged)(weights, batch, seed=seed)

  outputs, _ = bridged.forward(weights, x)
  assert outputs.dtype == tf.float32
  # Traced, because Keras at once rounds 16 bits more often.
  expected = tf.function(model)(x, training=False)
  np.testing.assert_allclose(outputs, expected, rtol=1e-6, atol=1e-6)
  first, again, other = (
    step(tf.constant(seed)) for seed in ((1, 2), (1, 2), (3, 4))
  )
  tf.nest.map_structure(np.testing.assert_array_equal, first, again)
  assert np.allclose(first.metrics['loss'], other.metrics['loss']) != is_random
  assert set(first.gradient) == set(weights) - bridged.statistics
  for name, value in first.gradient.items():
    assert np.all(np.isfinite(value)), name
    assert name == 'head/bias' or np.any(value), name
  assert keras_models.state_of(model) == state


def test_two_inputs_are_divided_at_a_cut_and_named_as_in_keras():
  bridged = keras_models.bridge(_two_inputs(list))
  spec = bridged.element_spec['x']
  assert {k: v.shape for k, v in spec.items()} == {'left': [4], 'right': [3]}
  x = {k: tf.ones([2, *v.shape]) for k, v in spec.items()}
  features, _ = bridged.body(bridged.initial_weights, x)
  assert features.shape == [2, 8]


def test_several_inputs_go_from_arrays_to_predictions(tmp_path):
  rng = np.random.default_rng(0)
  x = {'right': rng.normal(size=[40, 3]), 'left': rng.normal(size=[40, 4])}
  y = np.arange(40) % 3
  data = datasets.FederatedDataset.from_arrays(
    x, y, num_clients=2, transform=lambda x: {k: v / 2 for k, v in x.items()}
  )
  assert repr(data).endswith("x={'left': [4], 'right': [3]})")
  examples = data.train('client_0')
  assert [list(v.shape) for v in examples.x.values()] == [[16, 4], [16, 3]]
  model = _two_inputs(list)
  bridged = keras_models.bridge(model, jit_compile=False)
  process = registry.build('fed_avg', bridged)
  arguments = dict(num_rounds=1, cohort_size=2, show_progress=False)
  run = training.run(process, data, str(tmp_path / 'run'), **arguments)
  weights = run.personal_weights('client_0')
  keras_bridge.to_keras(model, weights)
  np.testing.assert_allclose(
    prediction.predict(bridged, weights, examples.x),
    tf.nn.softmax(model(examples.x)),
    rtol=1e-5,
  )
  with pytest.raises(ValueError, match='dict of the inputs left, right, found'):
    prediction.predict(bridged, weights, examples.x['left'])
  other = datasets.FederatedDataset.from_arrays(x['left'], y, num_clients=2)
  with pytest.raises(ValueError, match=r'x.left is float32\(4,\) and x.right'):
    training.run(process, other, output_dir=str(tmp_path / 'o'), **arguments)
  with pytest.raises(ValueError, match=r'as long as `x` \(5 examples\)'):
    datasets.FederatedDataset.from_arrays(
      {**x, 'left': x['left'][:5]}, y, num_clients=2
    )


def test_one_of_several_outputs_is_chosen():
  model = _two_outputs()
  with pytest.raises(
    ValueError, match=r"one of .* 'two' \(b, head\), found None"
  ):
    keras_models.bridge(model)
  bridged = keras_models.bridge(model, output='head')
  assert list(bridged.layers) == ['dense', 'head']
  x = tf.ones([2, 4])
  np.testing.assert_allclose(
    bridged.forward(bridged.initial_weights, x)[0], model(x)[1], rtol=1e-6
  )
  weights = {k: v + 1 for k, v in bridged.initial_weights.items()}
  keras_bridge.to_keras(model, weights, output='head')
  np.testing.assert_allclose(
    bridged.forward(weights, x)[0], model(x)[1], rtol=1e-6
  )


def test_layer_outputs_of_a_shared_layer_are_those_of_each_use():
  model = _shared()
  bridged = keras_models.bridge(model)
  x = tf.ones([2, 4])
  outputs = bridged.layer_outputs(bridged.initial_weights, x)
  dense, norm = model.layers[1:3]
  first = dense(x)
  np.testing.assert_allclose(outputs['dense'][0], first, rtol=1e-6)
  np.testing.assert_allclose(outputs['dense'][1], dense(norm(first)), rtol=1e-5)


def test_weights_may_not_be_shared_across_the_cut():
  with pytest.raises(ValueError, match="'dense/kernel' read in '.*tied"):
    keras_models.bridge(_tied(), ['tied', 'head'])


@pytest.mark.parametrize(
  'model, error, reason',
  [
    (_Subclassed(), TypeError, 'call a subclassed model on examples once'),
    (_called(_OtherInTraining()), ValueError, 'does the same in training'),
  ],
  ids=['not_called', 'other_in_training'],
)
def test_subclassed_models_that_are_no_graph_are_refused(model, error, reason):
  with pytest.raises(error, match=f"{reason}.*'subclassed'"):
    keras_models.bridge(model)


def test_regularizers_add_to_the_gradient_and_not_to_the_metrics():
  plain, regularized = (
    keras_models.bridge(
      sequential(layers.Dense(2, name='dense', kernel_regularizer=regularizer))
    )
    for regularizer in (None, keras.regularizers.L1L2(0.25, 0.5))
  )
  kernel = np.array([[1, -2], [3, 4], [-5, 6], [7, 8]], np.float32)
  weights = {**keras_models.tensors(plain), 'dense/kernel': tf.constant(kernel)}
  batch = objectives.Batch(tf.ones([2, 4]), tf.constant([0, 1]), tf.ones([2]))
  without, output = (
    objectives.joint_loss(model)(weights, batch, seed=None)
    for model in (plain, regularized)
  )
  np.testing.assert_array_equal(output.metrics['loss'], without.metrics['loss'])
  for name, value in without.gradient.items():
    # L1L2: 0.25 |w| + 0.5 w^2.
    more = 0.25 * np.sign(kernel) + kernel if name == 'dense/kernel' else 0
    np.testing.assert_allclose(
      output.gradient[name] - value, np.zeros(value.shape) + more, atol=1e-5
    )
  # A frozen part is not pulled; copies are, each for itself.
  head = objectives.head_loss(regularized)
  features = batch._replace(x=tf.ones([2, 2]))
  assert set(
    head(
      {k: weights[k] for k in ('head/kernel', 'head/bias')}, features, seed=None
    ).gradient
  ) == {'head/kernel', 'head/bias'}
  both = copies.Copies(regularized, ('a', 'b'))
  assert set(both.trained.regularizers) == {'a/dense/kernel', 'b/dense/kernel'}


def test_weights_go_back_to_keras_by_their_names():
  def make():
    backbone = keras.Sequential(
      [keras.Input((4,)), layers.Dense(4, name='inner')], name='backbone'
    )
    return sequential(backbone, layers.BatchNormalization(name='norm'))

  model = make()
  bridged = keras_models.bridge(model)
  assert list(bridged.initial_weights)[0] == 'backbone/inner/kernel'
  weights = {k: v + 1 for k, v in bridged.initial_weights.items()}
  x = tf.ones([2, 4])
  other = make()
  keras_bridge.to_keras(other, weights)
  np.testing.assert_allclose(
    other(x), bridged.forward(weights, x)[0], rtol=1e-5
  )
  with pytest.raises(ValueError, match=r"backbone/inner/kernel.*found 'inner/"):
    keras_bridge.to_keras(model, {'inner/kernel': 0})
  with pytest.raises(ValueError, match=r"shape \(4, 4\) for 'backbone/inner"):
    keras_bridge.to_keras(model, {'backbone/inner/kernel': 0})


# Models within models, and names.


def _base_and_head():
  base = keras.Sequential(
    [
      keras.Input((4,)),
      layers.Dense(5),
      layers.BatchNormalization(),
      layers.ReLU(),
    ],
    name='base',
  )
  return keras.Sequential(
    [keras.Input((4,)), base, layers.Dense(3, name='head')], name='model'
  )


def test_a_model_within_a_model_is_divided_by_its_layers():
  bridged = keras_models.bridge(_base_and_head())
  assert list(bridged.layers) == [
    'base/dense',
    'base/batch_normalization',
    'head',
  ]
  assert set(bridged.units) == {'base/dense', 'head'}
  partition = weight_partition.WeightPartition.by_layer(
    bridged, ['base/batch_normalization']
  )
  assert partition.local_names == bridged.layers['base/batch_normalization']
  assert bridged.weight_names(['base']) == tuple(bridged.initial_weights)[:6]
  whole = keras_models.bridge(_base_and_head(), ['base', 'head'])
  assert whole.body_layers == ()


_NORM = tuple(
  f'base/batch_normalization/{name}'
  for name in ('gamma', 'beta', 'moving_mean', 'moving_variance')
)
_DENSE = ('base/dense/kernel', 'base/dense/bias')


@pytest.mark.parametrize(
  'name, options, local',
  [
    ('fed_bn', {}, _NORM),
    # Two units of five, with their normalization.
    ('fed_alt', {'personal': 'base/dense:0-1'}, (*_DENSE, *_NORM)),
    ('fed_alt', {'personal': 'base'}, (*_DENSE, *_NORM)),
    (
      'fed_sa_lora',
      {},
      ('base/dense/kernel/personal', 'head/kernel', 'head/bias'),
    ),
  ],
)
def test_methods_divide_a_model_within_a_model(name, options, local):
  bridged = keras_models.bridge(_base_and_head(), jit_compile=False)
  process = registry.build(name, bridged, **options)
  found = process.initialize_client_state.type_signature.result['local']
  assert tff.structure.name_list(found) == list(local)


def test_a_second_build_is_the_same_model():
  def build():
    return keras_models.bridge(
      keras.Sequential(
        [
          keras.Input((4,)),
          layers.Dense(5, 'relu'),
          layers.BatchNormalization(),
          layers.Dense(4),
          layers.Dense(3, name='head'),
        ]
      )
    )

  first, second = build(), build()
  assert first.name == second.name == 'sequential'
  assert (
    list(first.layers)
    == list(second.layers)
    == ['dense', 'batch_normalization', 'dense_1', 'head']
  )


def test_layers_are_found_by_the_names_that_keras_gave():
  model = sequential(layers.Dense(5), layers.Dense(4))
  names = [layer.name for layer in model.layers]
  bridged = keras_models.bridge(model, names[1:])
  assert bridged.head_layers == ('dense_1', 'head')
  kept = keras_models.bridge(model, names[1:], keep_names=True)
  assert kept.head_layers == tuple(names[1:])


def test_a_subclassed_model_may_take_integers():
  class Words(keras.Model):
    def __init__(self):
      super().__init__(name='words')
      self.embedding = layers.Embedding(5, 3)
      self.head = layers.Dense(3, name='head')

    def call(self, inputs):
      return self.head(keras.ops.mean(self.embedding(inputs), axis=1))

  model = Words()
  x = tf.constant([[1, 2, 3, 4]])
  expected = model(x)
  bridged = keras_models.bridge(
    model, input_spec=tf.TensorSpec([4], tf.int32, name='x')
  )
  assert bridged.element_spec['x'].dtype == tf.int32
  np.testing.assert_allclose(
    bridged.forward(bridged.initial_weights, x)[0], expected, rtol=1e-6
  )


class _TiedOutside(keras.Model):
  def __init__(self):
    super().__init__(name='odd')
    self.first = layers.Dense(4)
    self.head = layers.Dense(3, name='head')

  def call(self, inputs):
    hidden = self.first(inputs)
    kernel = keras.ops.transpose(self.first.kernel)
    return self.head(keras.ops.matmul(hidden, kernel))


class _OwnWeight(_TiedOutside):
  def build(self, input_shape):
    self.scale = self.add_weight(shape=(), name='scale')

  def call(self, inputs):
    return self.head(self.first(inputs * keras.ops.exp(self.scale)))


class _OwnConstant(_TiedOutside):
  def call(self, inputs, training=None):
    return self.head(self.first(inputs) * (3.0 if training else 1.0))


class _OwnCall(keras.Sequential):
  def call(self, inputs, training=None, mask=None):
    return 2 * super().call(inputs, training=training, mask=mask)


@pytest.mark.parametrize(
  'make, reason',
  [
    (lambda: _called(_TiedOutside()), 'other numbers for other weights'),
    (lambda: _called(_OwnWeight()), 'has others'),
    (lambda: _called(_OwnConstant()), 'other numbers in training'),
    (
      lambda: _OwnCall([keras.Input((4,)), layers.Dense(3, name='head')]),
      'without a `call` of its own',
    ),
  ],
  ids=['tied', 'weight', 'constant', 'call'],
)
def test_models_that_are_more_than_their_layers_are_refused(make, reason):
  with pytest.raises(ValueError, match=reason):
    keras_models.bridge(make())


def test_models_within_are_called_as_they_are_made():
  inputs = keras.Input((5, 3))
  base = keras.Sequential([keras.Input((5, 3)), layers.LSTM(4)], name='base')
  masked = base(inputs, mask=keras.ops.any(inputs > 0, axis=-1))
  model = keras.Model(inputs, layers.Dense(3, name='head')(masked))
  with pytest.raises(ValueError, match="'base' .*called with a mask"):
    keras_models.bridge(model)
  numbers = keras.Input((4,))
  base = keras.Sequential(
    [keras.Input((4,), dtype='int32'), layers.Dense(3)], name='base'
  )
  model = keras.Model(numbers, layers.Dense(3, name='head')(base(numbers)))
  with pytest.raises(ValueError, match='is called on float32; its inputs are'):
    keras_models.bridge(model)


def test_an_output_of_a_dict_is_found_by_its_key():
  inputs = keras.Input((4,))
  outputs = collections.OrderedDict(
    z=layers.Dense(3, name='head')(inputs), a=layers.Dense(2)(inputs)
  )
  model = keras.Model(inputs, outputs)
  bridged = keras_models.bridge(model, output='z')
  x = tf.ones([2, 4])
  np.testing.assert_allclose(
    bridged.forward(bridged.initial_weights, x)[0], model(x)['z'], rtol=1e-6
  )


def test_a_given_name_is_no_other_layers_too():
  bridged = keras_models.bridge(
    sequential(
      layers.Dense(4),
      layers.LayerNormalization(name='dense_1'),
      layers.Dense(4),
    )
  )
  assert list(bridged.layers) == ['dense', 'dense_1', 'dense_2', 'head']


# In graphs of TFF, and refusals.


def _with_a_tensor_of_its_own(kind):
  if kind == 'loss':
    factor = tf.constant(2.0)

    def loss(y, p):
      y = tf.cast(y, tf.int32)
      return factor * tf.nn.sparse_softmax_cross_entropy_with_logits(y, p)

    return keras_models.bridge(
      sequential(layers.Dense(4)), loss=loss, task='classification'
    )
  shift = tf.constant([1.0, 2.0, 3.0, 4.0])
  stack = {
    'adapted': _normalized().layers[0],
    'lambda': layers.Lambda(lambda x: x - shift),
    'given': layers.Normalization(mean=[1.0, 2, 3, 4], variance=[1.0] * 4),
  }[kind]
  return keras_models.bridge(sequential(stack, layers.Dense(4)))


@pytest.mark.parametrize('kind', ['adapted', 'lambda', 'given', 'loss'])
def test_layers_and_losses_may_hold_tensors(kind, tmp_path):
  bridged = dataclasses.replace(
    _with_a_tensor_of_its_own(kind), jit_compile=False
  )
  rng = np.random.default_rng(0)
  data = datasets.FederatedDataset.from_arrays(
    rng.normal(size=[20, 4]), np.arange(20) % 3, num_clients=2
  )
  process = registry.build('fed_avg', bridged)
  run = training.run(
    process,
    data,
    str(tmp_path / 'run'),
    num_rounds=1,
    cohort_size=2,
    show_progress=False,
  )
  after = run.global_weights()
  kernel = bridged.initial_weights['head/kernel']
  assert not np.array_equal(after['head/kernel'], kernel)


def test_weights_of_another_type_or_without_a_value_are_refused():
  wide = keras_models.bridge(sequential(layers.Dense(4, dtype='float64')))
  with pytest.raises(ValueError, match='float32, found .*float64'):
    registry.build('fed_avg', wide)
  model = sequential(layers.Dense(4, name='odd'))
  model.layers[0].kernel.assign(np.full([4, 4], np.nan))
  with pytest.raises(ValueError, match='finite weights, .* in odd/kernel'):
    keras_models.bridge(model)
