"""Tests of how a model and a dataset fit, and of what a run records."""

import numpy as np
import pytest

from tests.methods import toy_problems
from tests.models import keras_models
from tff_pfl import datasets, errors
from tff_pfl.core import personalized_process
from tff_pfl.models import class_weights, domain_models, domains
from tff_pfl.runs import client_population, value_codec


def _data(domain=None, domain_names=None, num_examples=24, weight=None):
  examples = toy_problems.labeled_examples(num_examples, 0)
  return datasets.FederatedDataset.from_arrays(
    examples.x,
    examples.y,
    num_clients=3,
    num_classes=toy_problems.NUM_CLASSES,
    domain=domain,
    domain_names=domain_names,
    weight=weight,
  )


_DOMAIN = np.arange(24) % 2


def _model_of(data):
  counts = data.domain_counts().sum(axis=0).tolist()
  return domain_models.with_domains(
    toy_problems.classifier(), domains.Domains(data.domain_names, counts)
  )


def test_model_of_domains_fits_its_dataset():
  data = _data(_DOMAIN)
  client_population.check_data_fit(_model_of(data), data)
  client_population.check_data_fit(toy_problems.classifier(), _data())


def test_dataset_of_weights_needs_a_model_of_such():
  plain, weighted = _data(), _data(weight=np.ones(24))
  model = toy_problems.classifier()
  model_of_weights = class_weights.with_sample_weight(model)
  client_population.check_data_fit(model_of_weights, weighted)
  with pytest.raises(
    ValueError, match='a dataset without weights.*found .*wit'
  ):
    client_population.check_data_fit(model, weighted)
  with pytest.raises(ValueError, match='a dataset with weights.*without'):
    client_population.check_data_fit(model_of_weights, plain)


def test_numbers_to_predict_are_floats():
  network = keras_models.sequential(shape=(5,), units=1)
  model = keras_models.bridge(network, loss='mse', metrics=[])
  with pytest.raises(ValueError, match='predict are floats.*found .y is int32'):
    client_population.check_data_fit(model, _data())


@pytest.mark.parametrize(
  'takes_domains, data, words',
  [
    (True, _data(), "a dataset with domains, as model '.*without"),
    (False, _data(_DOMAIN), 'a dataset without domains.*found .*with'),
    (True, _data(_DOMAIN, ['d0', 'd1', 'd2']), 'found .d0, d1, d2'),
    # As many, but heads would be exchanged.
    (True, _data(_DOMAIN, ['d1', 'd0']), ': domain_0, domain_1, found .d1, d0'),
  ],
)
def test_dataset_of_other_domains_is_refused(takes_domains, data, words):
  model = _model_of(_data(_DOMAIN))
  if not takes_domains:
    model = toy_problems.classifier()
  with pytest.raises(ValueError, match=f'`data` to be .*{words}'):
    client_population.check_data_fit(model, data)


def test_a_state_of_another_model_is_refused():
  def state(**weights):
    return personalized_process.ServerState(0, 0, weights, (), (), (), 1.0)

  template = state(kernel=np.zeros([3, 2]), bias=np.zeros(2))
  same = client_population.decode_state(value_codec.encode(template), template)
  toy_problems.assert_same(same.global_weights, template.global_weights)
  wide = {'kernel': np.zeros([3, 5]), 'bias': np.zeros(5)}
  for weights, words in (
    (wide, r'bias is of shape \(5,\)'),
    ({'bias': np.zeros(2)}, 'rank 2 at global_weights/kernel, found'),
  ):
    stored = value_codec.encode(state(**weights))
    with pytest.raises(errors.RunError, match=f'stored state.*{words}'):
      client_population.decode_state(stored, template)
