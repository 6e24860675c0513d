import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from tests.methods import toy_problems
from tff_pfl.core import client_examples, personalization

_RNG = np.random.default_rng(5)
_BODY = _RNG.normal(size=[4, 2]).astype(np.float32)
_HEAD = _RNG.normal(size=[2, 3]).astype(np.float32)
_CLIENT = toy_problems.regression_examples(20, 4, 3, seed=0)


def _fine_tune(client=_CLIENT, seed=(0, 0), **options):
  """The kernels after fine-tuning."""
  model = toy_problems.linear_network(_BODY, _HEAD)
  weights = personalization.fine_tune(
    model,
    model.initial_weights,
    client_examples.padded(client),
    personalization.Personalization(**options),
    tf.constant(seed, tf.int32),
  )
  assert list(weights) == list(model.initial_weights)
  return toy_problems.kernels(weights)


def test_none_gives_the_weights_back():
  kernels = _fine_tune(fine_tune='none')
  np.testing.assert_array_equal(kernels['body'], _BODY)
  np.testing.assert_array_equal(kernels['head'], _HEAD)


@pytest.mark.parametrize('count', [{'num_steps': 4}, {'num_epochs': 4}])
def test_head_is_tuned_on_the_frozen_body(count):
  kernels = _fine_tune(
    fine_tune='head', batch_size=None, learning_rate=0.1, **count
  )
  head = toy_problems.descended(
    lambda head: toy_problems.gradients(_BODY, head, _CLIENT)[1],
    _HEAD,
    num_steps=4,
    learning_rate=0.1,
    momentum=0.5,
  )
  np.testing.assert_array_equal(kernels['body'], _BODY)
  np.testing.assert_allclose(kernels['head'], head, rtol=1e-4)


@pytest.mark.parametrize('momentum', [0.0, 0.9])
def test_all_weights_are_tuned_together(momentum):
  kernels = _fine_tune(
    fine_tune='all',
    batch_size=None,
    learning_rate=0.05,
    momentum=momentum,
    num_epochs=3,
  )
  body, head = toy_problems.descended_together(
    _BODY, _HEAD, _CLIENT, 3, 0.05, momentum
  )
  np.testing.assert_allclose(kernels['body'], body, rtol=1e-4)
  np.testing.assert_allclose(kernels['head'], head, rtol=1e-4)


@pytest.mark.parametrize('fine_tune', ['head', 'all'])
def test_zero_epochs_and_no_examples_change_nothing(fine_tune):
  nobody = toy_problems.regression_examples(0, 4, 3, seed=0)
  for kernels in (
    _fine_tune(fine_tune=fine_tune, num_epochs=0),
    _fine_tune(nobody, fine_tune=fine_tune, num_epochs=5),
    _fine_tune(nobody, fine_tune=fine_tune, num_steps=5),
  ):
    np.testing.assert_array_equal(kernels['body'], _BODY)
    np.testing.assert_array_equal(kernels['head'], _HEAD)


@pytest.mark.parametrize(
  ('option', 'value'),
  [
    ('fine_tune', 'body'),
    ('fine_tune', None),
    ('num_epochs', -1),
    ('num_steps', 0),
    ('learning_rate', 0.0),
    ('momentum', 1.0),
    ('momentum', -0.1),
    ('optimizer', 'rmsprop'),
    ('batch_size', -1),
    ('new_client_epochs', -1),
  ],
)
def test_option_out_of_range_is_refused_by_name(option, value):
  with pytest.raises(ValueError, match=f'`(fine_tune_)?{option}`'):
    personalization.Personalization(**{option: value})


def test_default_is_what_the_method_does():
  method = personalization.Personalization(
    fine_tune='head', num_steps=2, learning_rate=0.3
  )
  asked = personalization.Personalization(new_client_epochs=4)
  assert asked.fine_tune == 'method'
  assert asked.resolved(method) == dataclasses.replace(
    method, new_client_epochs=4
  )


@pytest.mark.parametrize('fine_tune', ['none', 'head', 'all'])
def test_what_the_user_asks_for_replaces_what_the_method_does(fine_tune):
  asked = personalization.Personalization(fine_tune=fine_tune)
  method = personalization.Personalization(fine_tune='all', num_steps=2)
  assert asked.resolved(method) == asked
