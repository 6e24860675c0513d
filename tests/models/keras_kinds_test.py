"""Keras models of all kinds, each against Keras itself."""

import collections

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.methods import toy_problems
from tests.models import keras_models
from tff_pfl import datasets
from tff_pfl.methods import fed_alt, registry
from tff_pfl.models import keras_bridge, prediction, weight_partition
from tff_pfl.runs import loop

layers = keras.layers
sequential = keras_models.sequential
called = keras_models.called


class _InList(layers.Layer):
  """Keeps a weight in a list, and reads it through a function."""

  def build(self, input_shape):
    self.scales = [self.add_weight(shape=(), name='scale')]
    scale = self.scales[0]
    self.function = lambda x: x * scale

  def call(self, inputs):
    return self.function(inputs) + self.scales[0]


class _OfLayers(layers.Layer):
  def __init__(self, name):
    super().__init__(name=name)
    self.dense = layers.Dense(5)
    self.norm = layers.BatchNormalization()
    self.scale = self.add_weight(shape=(), initializer='ones', name='scale')

  def call(self, inputs):
    return self.scale * keras.ops.relu(self.norm(self.dense(inputs)))


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
    self.head = layers.Dense(3, name='head')

  def call(self, inputs, training=None):
    hidden = self.blocks[0](inputs - tf.constant(0.5)) + 0.37
    hidden = self.blocks[1](keras.ops.relu(hidden), training=training)
    return self.head(hidden)


class _OwnTraining(keras.Model):
  """Keeps the statistics of its base, as in Keras's guide to transfer."""

  def __init__(self):
    super().__init__()
    self.base = _base()
    self.head = layers.Dense(3, name='head')

  def call(self, inputs):
    return self.head(self.base(inputs, training=False))


def _base():
  return keras.Sequential(
    [
      keras.Input((4,)),
      layers.Dense(5),
      layers.BatchNormalization(),
      layers.ReLU(),
    ],
    name='base',
  )


def _tied():
  dense = layers.Dense(5, use_bias=False, name='dense')
  return sequential(dense, _Tied(dense))


def _shared():
  inputs = keras.Input((4,))
  dense, norm = layers.Dense(4, 'tanh'), layers.BatchNormalization()
  hidden = norm(dense(norm(dense(inputs))))
  return keras.Model(inputs, layers.Dense(3, name='head')(hidden))


def _holding_tensors():
  adapted = layers.Normalization(name='normalization')
  adapted.adapt(np.random.default_rng(0).normal(2, 3, [20, 4]))
  shift = tf.constant([1.0, 2.0, 3.0, 4.0])
  return sequential(
    adapted,
    layers.Lambda(lambda x: x - shift),
    layers.Normalization(mean=[1.0, 2, 3, 4], variance=[1.0] * 4, name='given'),
    layers.Dense(5),
  )


def _attention(inputs, hidden, dropout=0.0):
  attention = layers.MultiHeadAttention(2, 3, dropout=dropout, name='attention')
  hidden = hidden + attention(hidden, hidden)
  hidden = layers.GlobalAveragePooling1D()(hidden)
  return keras.Model(inputs, layers.Dense(3, name='head')(hidden))


def _attention_to_steps(dropout=0.0):
  inputs = keras.Input((5, 4))
  return _attention(inputs, layers.LayerNormalization()(inputs), dropout)


def _attention_to_words():
  inputs = keras.Input((6,), dtype='int32')
  return _attention(inputs, layers.Embedding(7, 4, mask_zero=True)(inputs))


_IN_IMAGES = dict(shape=(8, 8, 2))
_IN_STEPS = dict(shape=(6, 3))

KINDS = {
  'separable_conv': lambda: sequential(
    layers.DepthwiseConv2D(3),
    layers.SeparableConv2D(4, 3),
    layers.BatchNormalization(momentum=0.8),
    layers.GroupNormalization(2),
    layers.GlobalMaxPooling2D(),
    **_IN_IMAGES,
  ),
  'renormalization': lambda: sequential(
    layers.Dense(5), layers.BatchNormalization(renorm=True)
  ),
  'padded_words': lambda: keras_models.words(layers.LSTM(4)),
  'normalized_words': lambda: keras_models.words(
    layers.BatchNormalization(), layers.GRU(4)
  ),
  'tags': lambda: keras_models.words(
    layers.SimpleRNN(4, return_sequences=True)
  ),
  'attention': _attention_to_steps,
  'model_in_a_model': lambda: sequential(_base()),
  'layer_of_layers': lambda: sequential(_OfLayers(name='of_layers')),
  'in_a_list': lambda: sequential(_InList(name='in_list')),
  'shared': _shared,
  'tied': _tied,
  'holding_tensors': _holding_tensors,
  'own_training': lambda: called(_OwnTraining()),
  'inputs_dict': lambda: keras_models.two_inputs(dict),
}


@pytest.mark.parametrize('kind', KINDS)
def test_reports_and_a_step_are_those_of_keras(kind):
  keras.utils.set_random_seed(4)
  keras_models.assert_as_keras(KINDS[kind]())


@pytest.mark.slow
@pytest.mark.parametrize('kind', KINDS)
def test_a_step_compiles_with_xla(kind):
  bridged = keras_models.bridge(keras_models.jitter(KINDS[kind]()))
  x, y = keras_models.examples(bridged)

  def step():
    return keras_models.step_of(bridged, x, y)

  tf.nest.map_structure(
    lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4),
    tf.function(step, jit_compile=True)(),
    tf.function(step)(),
  )


@pytest.mark.parametrize(
  'make, head_layers',
  [
    (_attention_to_words, ['attention', 'head']),
    (_tied, ['tied', 'head']),
    (keras_models.ending_in_its_embedding, ['embedding']),
    (keras_models.ending_in_its_embedding, ['rnn']),
  ],
)
def test_masks_and_weights_cross_the_cut(make, head_layers):
  keras_models.assert_as_keras(make(), head_layers=head_layers)


def test_weights_that_both_sides_read_are_the_bodys():
  network = keras_models.ending_in_its_embedding()
  whole, last = (
    keras_models.bridge(network, head)
    for head in (['rnn', 'embedding'], ['embedding'])
  )
  assert whole.head_layers == ('embedding', 'rnn') and not whole.tied
  assert last.body_layers == ('embedding', 'rnn') and not last.head_layers
  assert last.tied == ('embedding/embeddings',)
  registry.build('fed_avg', last)


def test_a_new_clients_head_fits_where_it_reads_the_bodys_weights():
  network = keras_models.ending_in_its_embedding()
  model = keras_models.bridge(network, ['rnn'], jit_compile=False)
  process = registry.build('fed_per', model)
  client = toy_problems.labeled_examples(8, seed=0)
  client = toy_problems.changed(client, x=np.resize(np.int32(range(7)), [8, 6]))
  state = process.initialize()
  personal = toy_problems.new_client(process, state, client).weights
  before = model.initial_weights
  moved = [n for n, v in before.items() if not np.array_equal(v, personal[n])]
  assert moved == list(model.layers['rnn'])


def test_layers_within_a_layer_are_numbered_there():
  names = ['of_layers/dense', 'of_layers/batch_normalization', 'of_layers']
  # Keras numbers all layers of the process.
  for _ in range(2):
    model = keras_models.bridge(sequential(_OfLayers(name='of_layers')))
    assert [*model.layers][: len(names)] == names


# These draw random numbers in training.
_RANDOM = {
  'subclassed': lambda: called(_Subclassed()),
  'mixed_precision': lambda: sequential(
    layers.Conv1D(4, 2, dtype='mixed_bfloat16'),
    layers.BatchNormalization(dtype='mixed_bfloat16'),
    layers.SimpleRNN(3, dtype='mixed_bfloat16', dropout=0.5),
    layers.Dense(4, dtype='mixed_float16'),
    **_IN_STEPS,
  ),
  'noise': lambda: sequential(
    layers.GaussianNoise(0.1),
    layers.GaussianDropout(0.1),
    layers.AlphaDropout(0.1),
  ),
  'images': lambda: sequential(
    layers.RandomFlip(),
    layers.RandomRotation(0.2),
    layers.RandomContrast(0.1),
    layers.Flatten(),
    **_IN_IMAGES,
  ),
  'attention': lambda: _attention_to_steps(dropout=0.5),
}


@pytest.mark.parametrize('kind', _RANDOM)
def test_models_that_draw_predict_as_keras_and_train_by_seed(kind):
  model = keras_models.jitter(_RANDOM[kind]())
  state = keras_models.state_of(model)
  bridged = keras_models.bridge(model)
  x, y = keras_models.examples(bridged)
  outputs, _ = bridged.forward(bridged.initial_weights, x)
  assert outputs.dtype == tf.float32
  features, _ = bridged.body(bridged.initial_weights, x)
  of_16_bits = {tf.float16, tf.bfloat16}
  assert not of_16_bits & {of.dtype for of in tf.nest.flatten(features)}
  # Traced, because Keras at once rounds 16 bits more often.
  expected = tf.function(model)(x, training=False)
  np.testing.assert_allclose(outputs, expected, rtol=1e-6, atol=1e-6)

  @tf.function(jit_compile=kind == 'noise')
  def step(seed):
    return keras_models.step_of(bridged, x, y, seed)

  first, again, other = map(step, map(tf.constant, [(1, 2), (1, 2), (3, 4)]))
  tf.nest.map_structure(np.testing.assert_array_equal, first, again)
  assert not np.allclose(first.metrics['loss'], other.metrics['loss'])
  assert set(first.gradient) == {*bridged.initial_weights} - bridged.statistics
  for name, value in first.gradient.items():
    assert np.all(np.isfinite(value)) and np.any(value), name
  assert keras_models.state_of(model) == state


# Several inputs and outputs.


def test_several_inputs_go_from_arrays_to_predictions(tmp_path):
  rng = np.random.default_rng(0)
  x = {'right': rng.normal(size=[40, 3]), 'left': rng.normal(size=[40, 4])}
  model = keras_models.two_inputs()
  bridged = keras_models.bridge(model, jit_compile=False)

  def data_and_run(x, **options):
    """A round of training on twenty examples of each of two clients."""
    data = datasets.FederatedDataset.from_arrays(
      x, np.arange(40) % 3, num_clients=2, **options
    )
    process = registry.build('fed_avg', bridged)
    arguments = dict(num_rounds=1, cohort_size=2, show_progress=False)
    return data, loop.run(process, data, str(tmp_path / 'run'), **arguments)

  with pytest.raises(ValueError, match=r'x.left float32\(4,\) and x.right'):
    data_and_run(x['left'])
  data, run = data_and_run(
    x, transform=lambda x: {k: v / 2 for k, v in x.items()}
  )
  assert repr(data).endswith("x={'left': [4], 'right': [3]})")
  examples = data.train('client_0')
  assert [list(v.shape) for v in examples.x.values()] == [[16, 4], [16, 3]]
  weights = run.personal_weights('client_0')
  keras_bridge.to_keras(model, weights)
  np.testing.assert_allclose(
    prediction.predict(bridged, weights, examples.x),
    tf.nn.softmax(model(examples.x)),
    rtol=1e-5,
  )
  with pytest.raises(ValueError, match='dict of the inputs left, right, found'):
    prediction.predict(bridged, weights, examples.x['left'])


@pytest.mark.parametrize('form', [list, dict])
def test_one_of_several_outputs_is_chosen(form):
  inputs = keras.Input((4,))
  hidden = layers.Dense(5, 'relu')(inputs)
  outputs = collections.OrderedDict(
    (k, layers.Dense(n, name=k)(hidden)) for k, n in [('head', 3), ('b', 2)]
  )
  model = keras.Model(
    inputs, form(outputs.values()) if form is list else outputs
  )
  with pytest.raises(ValueError, match='`output` .* head, b, found None'):
    keras_models.bridge(model)
  bridged = keras_models.bridge(model, output='head')
  assert list(bridged.layers) == ['dense', 'head']
  weights = {k: v + 1 for k, v in bridged.initial_weights.items()}
  keras_bridge.to_keras(model, weights, output='head')
  x = tf.ones([2, 4])
  np.testing.assert_allclose(
    bridged.forward(weights, x)[0], keras.tree.flatten(model(x))[0], rtol=1e-6
  )


# Models within models, and names.


def _base_and_head():
  return sequential(_base())


def test_a_model_within_a_model_is_divided_by_its_layers():
  bridged = keras_models.bridge(_base_and_head())
  norm = 'base/batch_normalization'
  assert list(bridged.layers) == ['base/dense', norm, 'head']
  names = 'gamma', 'beta', 'moving_mean', 'moving_variance'
  assert bridged.layers[norm] == tuple(f'{norm}/{k}' for k in names)
  assert set(bridged.units) == {'base/dense', 'head'}
  partition = weight_partition.WeightPartition.by_layer(bridged, [norm])
  assert partition.local_names == bridged.layers[norm]
  # Two units of five, with their normalization.
  partition = fed_alt.personal_partition(bridged, 'base/dense:0-1')
  own = bridged.layers['base/dense'] + bridged.layers[norm]
  assert partition.local_names == own
  assert bridged.weight_names(['base']) == tuple(bridged.initial_weights)[:6]
  whole = keras_models.bridge(_base_and_head(), ['base', 'head'])
  assert whole.body_layers == ()


def test_layers_are_numbered_within_their_model():
  # A second build is the same model.
  for _ in range(2):
    model = sequential(
      layers.Dense(5),
      layers.LayerNormalization(name='dense_1'),
      layers.Bidirectional(layers.LSTM(2), name='both'),
      layers.Dense(4),
      **_IN_STEPS,
    )
    bridged = keras_models.bridge(model)
    assert bridged.name == 'sequential'
    assert ' '.join(bridged.layers) == 'dense dense_1 both dense_2 head'
    assert bridged.layers['both'][0] == 'both/forward_lstm/lstm_cell/kernel'


def test_layers_are_found_by_the_names_that_keras_gave():
  model = sequential(layers.Dense(5), layers.Dense(4))
  names = [layer.name for layer in model.layers]
  bridged = keras_models.bridge(model, names[1:])
  assert bridged.head_layers == ('dense_1', 'head')
  kept = keras_models.bridge(model, names[1:], keep_names=True)
  assert kept.head_layers == tuple(names[1:])


# Subclassed models.


class _Words(keras.Model):
  def __init__(self):
    super().__init__(name='words')
    self.embedding = layers.Embedding(5, 3)
    self.head = layers.Dense(3, name='head')

  def call(self, inputs):
    return self.head(keras.ops.mean(self.embedding(inputs), axis=1))


class _Both(keras.Model):
  def __init__(self):
    super().__init__(name='both')
    self.head = layers.Dense(3, name='head')

  def call(self, inputs):
    return self.head(keras.ops.concatenate(keras.tree.flatten(inputs), -1))


@pytest.mark.parametrize(
  'model, x, input_spec',
  [
    (
      _Words(),
      tf.constant([[1, 2, 3, 4]]),
      tf.TensorSpec([4], tf.int32, name='x'),
    ),
    (_Both(), [tf.ones([1, 4]), tf.zeros([1, 4])], None),
    (_Both(), {'b': tf.ones([1, 4]), 'a': tf.zeros([1, 4])}, None),
  ],
  ids=['integers', 'list', 'dict'],
)
def test_a_subclassed_model_may_take_what_others_take(model, x, input_spec):
  expected = model(x)
  bridged = keras_models.bridge(model, input_spec=input_spec)
  spec = bridged.element_spec['x']
  if isinstance(x, list):
    x = dict(zip(spec, x))
  assert [s.dtype for s in tf.nest.flatten(spec)] == [
    value.dtype for value in tf.nest.flatten(x)
  ]
  np.testing.assert_allclose(
    bridged.forward(bridged.initial_weights, x)[0], expected, rtol=1e-6
  )


class _Odd(keras.Model):
  """Calls its layers in a way of its own."""

  def __init__(self, way):
    super().__init__(name='odd')
    self.way = way
    self.first = layers.Dense(4)
    self.head = layers.Dense(3, name='head')

  def build(self, input_shape):
    if self.way == 'weight':
      self.scale = self.add_weight(shape=(), name='scale')

  def call(self, inputs, training=None):
    hidden = self.first(inputs)
    if self.way == 'layer' and training:
      hidden = keras.ops.relu(hidden)
    elif self.way == 'tied':
      hidden = keras.ops.matmul(hidden, keras.ops.transpose(self.first.kernel))
    elif self.way == 'weight':
      hidden *= keras.ops.exp(self.scale)
    elif self.way == 'constant':
      hidden *= 3.0 if training else 1.0
    return self.head(hidden)


class _OwnStep:
  def train_step(self, data):
    return {}


class _FromMixin(_OwnStep, keras.Model):
  pass


def _with_own_loss():
  model = sequential()
  model.compute_loss = lambda *unused: {}
  return model


class _OwnCall(keras.Sequential):
  def call(self, inputs, training=None, mask=None):
    return 2 * super().call(inputs, training=training, mask=mask)


def _functional():
  inputs = keras.Input((4,))
  return inputs, layers.Dense(3, name='head')(inputs)


def _called_with_a_mask():
  inputs = keras.Input((5, 3))
  base = keras.Sequential([keras.Input((5, 3)), layers.LSTM(4)], name='base')
  masked = base(inputs, mask=keras.ops.any(inputs > 0, axis=-1))
  return keras.Model(inputs, layers.Dense(3, name='head')(masked))


def _called_on_another_type():
  inputs = keras.Input((4,), dtype='int32')
  base = keras.Sequential([inputs, layers.Dense(3)], name='base')
  numbers = keras.Input((4,))
  return keras.Model(numbers, layers.Dense(3, name='head')(base(numbers)))


@pytest.mark.parametrize(
  'make, reason',
  [
    (_Subclassed, "call a subclassed model on examples once.*'subclassed'"),
    (lambda: called(_Odd('layer')), 'only hands `training` on'),
    (lambda: called(_Odd('tied')), 'other numbers for other weights'),
    (lambda: called(_Odd('weight')), 'has others'),
    (lambda: called(_Odd('constant')), 'other numbers in training'),
    (
      lambda: _OwnCall([keras.Input((4,)), layers.Dense(3, name='head')]),
      'without a `call` of its own',
    ),
    (
      lambda: _FromMixin(*_functional()),
      'without a `train_step` of its own.*_FromMixin',
    ),
    (_with_own_loss, 'a `compute_loss` of its own'),
    (_called_with_a_mask, "'base' .*called with a mask"),
    (_called_on_another_type, 'is called on float32; its inputs are'),
  ],
)
def test_models_that_are_more_than_their_layers_are_refused(make, reason):
  with pytest.raises((TypeError, ValueError), match=reason):
    keras_models.bridge(make())


# In graphs of TFF.


def _scaled_loss(factor):
  def loss(y, p):
    y = tf.cast(y, tf.int32)
    return factor * tf.nn.sparse_softmax_cross_entropy_with_logits(y, p)

  return loss


def test_layers_and_losses_may_hold_tensors():
  bridged = keras_models.bridge(
    _holding_tensors(),
    loss=_scaled_loss(tf.constant(2.0)),
    task='classification',
    jit_compile=False,
  )
  client = toy_problems.client_of_classes([0, 1, 2], 4, seed=0)
  process = registry.build('fed_avg', bridged)
  state, _, _ = toy_problems.train(process, [client])
  assert toy_problems.differ(state.global_weights, bridged.initial_weights)


def test_weights_of_another_type_or_without_a_value_are_refused():
  wide = keras_models.bridge(sequential(layers.Dense(4, dtype='float64')))
  with pytest.raises(ValueError, match='float32, found .*float64'):
    registry.build('fed_avg', wide)
  model = sequential(layers.Dense(4, name='odd'))
  model.layers[0].kernel.assign(np.full([4, 4], np.nan))
  with pytest.raises(ValueError, match='finite weights, .* in odd/kernel'):
    keras_models.bridge(model)
