import collections
import dataclasses

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.models import keras_models
from tff_pfl import datasets
from tff_pfl.core import objectives
from tff_pfl.datasets import examples as examples_lib
from tff_pfl.models import (
  description,
  domain_models,
  domains,
  split_model,
  zoo,
)

_DOMAINS = domains.Domains(('a', 'b', 'c'), (3, 2, 1))
_DOMAIN = np.int32([0, 1, 2, 1, 0, 0])
_RNG = np.random.default_rng(0)
_INPUTS = _RNG.normal(size=[6, 5]).astype(np.float32)
_X = collections.OrderedDict(inputs=_INPUTS, domain=_DOMAIN)
_Y = np.int32([0, 2, 1, 1, 0, 2])


@pytest.fixture(name='plain', scope='module')
def _plain():
  spec = examples_lib.element_spec(tf.TensorSpec([5], tf.float32))
  model = zoo.mlp(spec, 3, seed=1, widths=(4,))
  return dataclasses.replace(model, jit_compile=False)


@pytest.fixture(name='model', scope='module')
def _model(plain):
  return domain_models.with_domains(plain, _DOMAINS)


def _random(model, seed=3):
  """Weights that all differ, as tensors."""
  rng = np.random.default_rng(seed)
  return collections.OrderedDict(
    (name, tf.constant(rng.normal(size=value.shape), tf.float32))
    for name, value in model.initial_weights.items()
  )


def _outputs(model, weights, x=_X):
  return model.forward(weights, x)[0].numpy()


def _bridge(*head):
  """A model of 5 features whose head is the layers given."""
  network = keras.Sequential(
    [keras.layers.Input([5]), keras.layers.Dense(4, 'relu', name='d'), *head]
  )
  return keras_models.bridge(
    network, [layer.name for layer in head if layer.weights]
  )


def test_model_with_domains_gives_what_it_gives_without(plain, model):
  weights = _random(plain)
  np.testing.assert_array_equal(
    _outputs(model, weights), _outputs(plain, weights, _INPUTS)
  )
  assert list(model.element_spec) == ['x', 'y', 'domain']
  assert model.element_spec['domain'] == tf.TensorSpec([], tf.int32)
  assert model.domains == _DOMAINS
  layer_outputs = model.layer_outputs(weights, _INPUTS)
  assert list(layer_outputs) == list(model.layers)


def test_the_domains_are_those_of_a_dataset(plain):
  data = datasets.FederatedDataset.from_arrays(
    np.zeros((8, 4)),
    np.zeros(8, int),
    keys=[0, 0, 0, 0, 1, 1, 1, 1],
    domain=[0, 2, 2, 0, 2, 0, 0, 2],
    domain_names=['a', 'b', 'c'],
    test_fraction=0,
  )
  actual = domain_models.with_domains(plain, data).domains
  assert actual == domains.Domains(('a', 'b', 'c'), (4, 0, 4), 4)
  assert domain_models.with_domains(plain, datasets.make_synthetic(2)) is plain


@pytest.mark.parametrize('shares_body', [True, False])
def test_each_example_gets_what_is_of_its_domain(plain, model, shares_body):
  if not shares_body:
    model = domain_models.all_head(model)
    assert model.body_layers == ()
  of_domains = domain_models.multi_head(model)
  assert shares_body == ('dense_1/kernel' in of_domains.initial_weights)
  heads = [layer for layer in of_domains.layers if layer.endswith('head')]
  assert heads == [f'domain_{m}/head' for m in range(3)]
  # All start as the model's own.
  np.testing.assert_array_equal(
    _outputs(of_domains, of_domains.initial_weights),
    _outputs(model, model.initial_weights),
  )
  weights = _random(of_domains)
  outputs = _outputs(of_domains, weights)
  for m in range(3):
    alone = {
      name: weights.get(name, weights.get(f'domain_{m}/{name}'))
      for name in plain.initial_weights
    }
    np.testing.assert_allclose(
      outputs[_DOMAIN == m],
      _outputs(plain, alone, _INPUTS)[_DOMAIN == m],
      rtol=1e-6,
    )


def _gradient(model, weights, x, y):
  batch = objectives.Batch(x, y, tf.ones(len(y)))
  return objectives.joint_loss(model)(
    weights, batch, seed=tf.constant([0, 0])
  ).gradient


def test_heads_of_other_domains_have_no_gradient(model):
  of_domains = domain_models.multi_head(model)
  weights = _random(of_domains)
  rows = np.flatnonzero(_DOMAIN != 1)
  gradient = _gradient(
    of_domains,
    weights,
    tf.nest.map_structure(lambda v: tf.constant(v[rows]), _X),
    tf.constant(_Y[rows]),
  )
  for name, value in gradient.items():
    assert np.any(value) == (not name.startswith('domain_1/')), name


def _normalized_head():
  keras.utils.set_random_seed(0)
  return domain_models.with_domains(
    _bridge(
      keras.layers.BatchNormalization(name='norm'),
      keras.layers.Dense(3, name='head'),
    ),
    _DOMAINS,
  )


def test_moving_statistics_of_heads_are_each_heads_own():
  of_domains = domain_models.multi_head(_normalized_head())
  assert of_domains.statistics == {
    f'domain_{m}/norm/moving_{what}'
    for m in range(3)
    for what in ('mean', 'variance')
  }
  weights = _random(of_domains)
  batch = objectives.Batch(_X, _Y, tf.ones(6))
  output = objectives.joint_loss(of_domains)(
    weights, batch, seed=tf.constant([0, 0])
  )
  assert set(output.statistics) == of_domains.statistics
  assert set(output.gradient) | of_domains.statistics == set(weights)


def test_heads_normalize_with_the_examples_of_their_domain():
  model = _normalized_head()
  of_domains = domain_models.multi_head(model)
  initial = of_domains.initial_weights
  # None of the last domain, and one is padding.
  domain = np.minimum(_DOMAIN, 1)
  weights = np.float32([1, 1, 0, 1, 1, 1])
  mode = split_model.Mode(True, tf.constant([0, 0]), tf.constant(weights))
  outputs, statistics = of_domains.forward(
    initial, collections.OrderedDict(inputs=_INPUTS, domain=domain), mode
  )
  assert np.isfinite(outputs).all()
  for m in range(3):
    rows = (domain == m) & (weights > 0)
    expected = model.initial_weights
    if rows.any():
      x = collections.OrderedDict(inputs=_INPUTS[rows], domain=domain[rows])
      alone = mode._replace(example_weights=None)
      own, expected = model.forward(expected, x, alone)
      np.testing.assert_allclose(outputs[rows], own, rtol=1e-4, atol=1e-5)
    for name in model.statistics:
      np.testing.assert_allclose(
        statistics[f'domain_{m}/{name}'], expected[name], rtol=1e-5, atol=1e-6
      )


def test_each_head_has_its_penalty():
  inputs = keras.Input([4])
  features = keras.layers.Dense(5, kernel_regularizer='l2', name='d')(inputs)
  head = keras.layers.Dense(3, bias_regularizer='l2', name='head')
  model = domain_models.with_domains(
    keras_models.bridge(keras.Model(inputs, head(features))), _DOMAINS
  )
  heads = {f'domain_{m}/head/bias' for m in range(3)}
  of_domains = domain_models.multi_head(model)
  assert set(of_domains.regularizers) == {'d/kernel', *heads}
  description.describe(of_domains)
  apart = domain_models.multi_head(domain_models.all_head(model))
  bodies = {f'domain_{m}/d/kernel' for m in range(3)}
  assert set(apart.regularizers) == heads | bodies


def test_domain_as_input_is_the_one_hot_beside_the_last_features(plain, model):
  given = domain_models.domain_as_input(model)
  initial = given.initial_weights
  np.testing.assert_array_equal(
    _outputs(given, initial), _outputs(plain, plain.initial_weights, _INPUTS)
  )
  weights = _random(given)
  features = np.concatenate(
    [model.body(weights, _X)[0], np.eye(3)[_DOMAIN]], axis=1
  )
  kernel = np.concatenate(
    [weights['head/kernel'], weights['domain_input/kernel']]
  )
  np.testing.assert_allclose(
    _outputs(given, weights),
    features @ kernel + weights['head/bias'].numpy(),
    rtol=1e-5,
    atol=1e-6,
  )
  assert given.head_layers == ('head', 'domain_input')
  gradient = _gradient(given, weights, _X, _Y)
  assert np.all(np.any(gradient['domain_input/kernel'], axis=1))


@pytest.mark.parametrize('use_bias', [True, False])
def test_projection_is_a_linear_layer_before_the_head(use_bias):
  plain = _bridge(keras.layers.Dense(3, use_bias=use_bias, name='head'))
  projected = domain_models.projected(plain, 2, seed=5)
  shapes = {n: v.shape for n, v in projected.initial_weights.items()}
  assert shapes == {
    'd/kernel': (5, 4),
    'd/bias': (4,),
    'projection/kernel': (4, 2),
    'projection/bias': (2,),
    'head/kernel': (2, 3),
    **({'head/bias': (3,)} if use_bias else {}),
  }
  assert projected.body_layers == ('d', 'projection')
  assert projected.head_layers == ('head',)
  weights = _random(projected)
  hidden = np.maximum(_INPUTS @ weights['d/kernel'] + weights['d/bias'], 0)
  features = hidden @ weights['projection/kernel'] + weights['projection/bias']
  expected = features @ weights['head/kernel']
  if use_bias:
    expected += weights['head/bias']
  np.testing.assert_allclose(
    _outputs(projected, weights, _INPUTS), expected, rtol=1e-5, atol=1e-5
  )
  assert domain_models.linear_head(projected).kernel == 'head/kernel'


def test_projection_is_the_seeds_and_made_once(plain):
  first, again, other = (
    domain_models.projected(plain, 2, seed).initial_weights['projection/kernel']
    for seed in (0, 0, 1)
  )
  np.testing.assert_array_equal(first, again)
  assert np.all(first != other)
  # Of Glorot's size.
  assert np.max(np.abs(first)) <= np.sqrt(6 / (4 + 2))
  projected = domain_models.projected(plain, 2)
  assert domain_models.projected(projected, 2) is projected
  with pytest.raises(ValueError, match='projected to 3 features'):
    domain_models.projected(projected, 3)


@pytest.mark.parametrize(
  'make_head',
  [
    lambda: [keras.layers.Dense(3, 'tanh', name='head')],
    lambda: [keras.layers.Dense(3, name='head'), keras.layers.ReLU()],
    lambda: [keras.layers.Dense(3, name='head', dtype='mixed_bfloat16')],
    lambda: [keras.layers.Dense(3), keras.layers.Dense(3, name='head')],
    lambda: [
      keras.layers.Dense(3, use_bias=False),
      keras.layers.BatchNormalization(name='head'),
    ],
    lambda: [
      keras.layers.Reshape([2, 2]),
      keras.layers.SimpleRNN(4, return_sequences=True),
      keras.layers.Dense(3, name='head'),
    ],
  ],
  ids=['tanh', 'relu', 'mixed', 'two_layers', 'normalized', 'sequence'],
)
def test_other_heads_are_not_linear(make_head):
  model = domain_models.with_domains(_bridge(*make_head()), _DOMAINS)
  for use in (
    domain_models.domain_as_input,
    lambda model: domain_models.projected(model, 2),
  ):
    with pytest.raises(
      ValueError,
      match='`model`.*single dense layer without an activation that computes '
      'in float32.*with the head',
    ):
      use(model)


def test_what_cannot_be_made_of_domains_is_refused(plain, model):
  make = domain_models.domain_model
  for call, reason in (
    (lambda: make(plain, 'input'), 'domain'),
    (lambda: make(plain, 'shared', reweighted=True), '`model`.*domain_model'),
    (lambda: make(model, 'other'), '`domain_model`.*shared, multi_head, input'),
    (lambda: domain_models.with_domains(model, _DOMAINS), 'without domains'),
  ):
    with pytest.raises(ValueError, match=reason):
      call()
