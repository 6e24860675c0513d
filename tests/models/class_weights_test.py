import functools
import types

import keras
import numpy as np
import pytest
import tensorflow as tf
from sklearn.utils import class_weight as sklearn_class_weight

from tff_pfl.core import objectives, padding, scoring
from tff_pfl.datasets import examples as examples_lib
from tff_pfl.methods import registry
from tff_pfl.models import (
  class_weights,
  domain_models,
  domains,
  keras_bridge,
  zoo,
)

_RATE = 0.3


@functools.cache
def _model(num_classes, y=()):
  spec = examples_lib.element_spec(
    tf.TensorSpec([4], tf.float32), tf.TensorSpec(y, tf.int32)
  )
  return zoo.mlp(spec, num_classes, seed=2, widths=[5])


def _data(class_counts):
  return types.SimpleNamespace(
    class_counts=lambda split: {'train': np.array(class_counts)}[split]
  )


def test_balanced_weights_are_those_of_scikit_learn():
  y = [0] * 7 + [2] * 2 + [3] * 3
  expected = sklearn_class_weight.compute_class_weight(
    'balanced', classes=np.array([0, 2, 3]), y=y
  )
  # Class 1 has no example.
  assert class_weights.balanced(np.bincount(y)) == {
    label: pytest.approx(weight) for label, weight in zip((0, 2, 3), expected)
  }


def test_a_step_is_that_of_keras_and_reports_are_without():
  plain = _model(3)
  model = class_weights.with_class_weight(
    plain, 'balanced', _data([[2, 0, 5], [0, 4, 1]])
  )
  model = class_weights.with_sample_weight(model)
  rng = np.random.default_rng(3)
  # Which are padded.
  x = rng.normal(size=[11, 4]).astype(np.float32)
  y = rng.integers(0, 3, 11).astype(np.int32)
  weight = rng.exponential(2.0, 11).astype(np.float32)
  weight[4] = 0
  # Of 12 examples in all: 12 / (3 * 2), 12 / (3 * 4), 12 / (3 * 6).
  of_class = np.array([2, 1, 12 / 18])[y]
  network = keras_bridge.keras_model(plain, plain.initial_weights)
  network.compile(
    keras.optimizers.SGD(_RATE),
    keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=['accuracy'],
    run_eagerly=True,
  )
  reported = network.test_on_batch(x, y, return_dict=True)
  # Keras does not take both.
  in_training = network.train_on_batch(
    x, y, sample_weight=weight * of_class, return_dict=True
  )

  process = registry.build(
    'fed_avg', model, num_steps=1, learning_rate=_RATE, batch_size=None
  )
  state, clients = process.initialize(), process.initialize_client_states([0])
  examples = padding.padded(examples_lib.Examples(x, y, weight=weight))
  scores = scoring.score(model, model.initial_weights, examples).sums
  output = process.next(state, clients, [examples])
  trained = output.state.global_weights
  for value, expected in zip(trained.values(), network.get_weights()):
    np.testing.assert_allclose(value, expected, atol=1e-5)
  assert output.metrics['loss'] == pytest.approx(in_training['loss'], 1e-5)
  means = {name: float(v) for name, v in objectives.means(scores).items()}
  assert means == pytest.approx(reported, 1e-5)


def test_weights_stand_before_domains_whichever_comes_first():
  model = _model(3)
  of_two = domains.Domains(('a', 'b'), (1, 1))
  first, last = (
    class_weights.with_sample_weight(domain_models.with_domains(model, of_two)),
    domain_models.with_domains(class_weights.with_sample_weight(model), of_two),
  )
  expected = examples_lib.element_spec(
    model.element_spec['x'], has_domain=True, has_weight=True
  )
  assert first.element_spec == last.element_spec == expected


def test_classes_with_names_are_weighted_by_their_names():
  assert class_weights.parse('no:1, yes:10', ['no', 'yes']) == {0: 1, 1: 10}
  # Names may be numbers, which are not the labels then.
  data = types.SimpleNamespace(class_names=('1', '2'))
  model = class_weights.with_class_weight(_model(2), '2:10', data)
  assert model.made_with['class_weight'] == {1: 10}
  model = class_weights.with_class_weight(_model(2), {'2': 10.0}, data)
  assert model.made_with['class_weight'] == {1: 10}
  with pytest.raises(ValueError, match="one of 1, 2, found '3'"):
    class_weights.with_class_weight(_model(2), {3: 1.0}, data)
  with pytest.raises(ValueError, match=r", for the classes 1, 2, found '0:1'"):
    class_weights.with_class_weight(_model(2), '0:1', data)


@pytest.mark.parametrize(
  'model, weights, reason',
  [
    *(
      (_model(3), text, 'distinct classes with positive weights')
      for text in ('0:1,0:2', '0:1,1', 'equal', '1:0', '1:nan')
    ),
    (_model(3), {0: 1e39}, 'that float32 can hold, found 1e.39'),
    (_model(3), dict.fromkeys(range(3), 0), 'positive for some class'),
    (_model(3), {3: 1.0}, r'integer in \[0, 2\], found 3'),
    (_model(3), 'balanced', '`data` to be given'),
    (_model(None), '0:1', "`class_weight` to be None for 'mlp'"),
    (_model(2, (3,)), '0:1', "`class_weight` to be None for 'mlp'"),
  ],
)
def test_weights_that_there_cannot_be_are_refused(model, weights, reason):
  with pytest.raises(ValueError, match=reason):
    class_weights.with_class_weight(model, weights)
