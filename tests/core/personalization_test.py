import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from tests.methods import toy_problems
from tff_pfl.core import padding, personalization

_BODY, _HEAD = toy_problems.BODY, toy_problems.HEAD
_CLIENT = toy_problems.DEEP_CLIENTS[1]


def _fine_tune(client=_CLIENT, seed=(0, 0), **options):
  """The kernels after fine-tuning."""
  model = toy_problems.linear_network(_BODY, _HEAD)
  weights = personalization.fine_tune(
    model,
    model.initial_weights,
    padding.padded(client),
    personalization.Personalization(**options),
    tf.constant(seed, tf.int32),
  )
  assert list(weights) == list(model.initial_weights)
  return toy_problems.kernels(weights)


@pytest.mark.parametrize(
  ('scope', 'count'),
  [('head', 'num_steps'), ('head', 'num_epochs'), ('all', 'num_epochs')],
)
def test_weights_are_tuned_by_gradient_descent(scope, count):
  kernels = _fine_tune(
    fine_tune=scope,
    batch_size=None,
    learning_rate=0.05,
    momentum=0.5,
    **{count: 4},
  )
  body, head = toy_problems.descended_together(
    *(_BODY, _HEAD, _CLIENT, 4, 0.05, 0.5), trained=(scope == 'all', True)
  )
  np.testing.assert_allclose(kernels['body'], body, rtol=1e-4)
  np.testing.assert_allclose(kernels['head'], head, rtol=1e-4)


@pytest.mark.parametrize('fine_tune', ['head', 'all'])
def test_zero_epochs_and_no_examples_change_nothing(fine_tune):
  nobody = toy_problems.regression_examples(0, 4, 3, seed=0)
  for kernels in (
    _fine_tune(fine_tune='none'),
    _fine_tune(fine_tune=fine_tune, num_epochs=0),
    _fine_tune(nobody, fine_tune=fine_tune, num_epochs=5),
    _fine_tune(nobody, fine_tune=fine_tune, num_steps=5),
  ):
    np.testing.assert_array_equal(kernels['body'], _BODY)
    np.testing.assert_array_equal(kernels['head'], _HEAD)


@pytest.mark.parametrize('scope', ['method', 'none', 'head', 'all'])
def test_what_the_user_asks_for_replaces_what_the_method_does(scope):
  asked = personalization.Personalization(fine_tune=scope, new_client_epochs=4)
  method = personalization.Personalization(fine_tune='all', num_steps=2)
  expected = asked
  if scope == 'method':  # The default.
    assert personalization.Personalization().fine_tune == scope
    expected = dataclasses.replace(method, new_client_epochs=4)
  assert asked.resolved(method) == expected
