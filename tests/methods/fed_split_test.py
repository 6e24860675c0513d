import logging

import numpy as np

from tests.methods import toy_problems
from tff_pfl.methods import registry


def test_by_default_half_of_the_last_hidden_layer_is_personal():
  split, model = registry.get_algorithm('fed_split'), toy_problems.classifier()
  local = split.work(model, split.hparams()).initial_local
  weights = model.initial_weights
  assert list(local) == ['dense_1/kernel', 'dense_1/bias']
  np.testing.assert_array_equal(
    local['dense_1/kernel'], weights['dense_1/kernel'][:, 2:]
  )


def test_without_personal_units_it_says_that_it_is_fed_avg(caplog):
  split = registry.get_algorithm('fed_split')
  with caplog.at_level(logging.WARNING, logger='absl'):
    split.work(toy_problems.classifier(), split.hparams(personal_elements=','))
  assert 'No unit is personal' in caplog.text
  assert 'so fed_split is fed_avg' in caplog.text
