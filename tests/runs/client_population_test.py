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


def _of_domains():
  data = _data(_DOMAIN)
  counts = data.domain_counts().sum(axis=0).tolist()
  return domain_models.with_domains(
    toy_problems.classifier(), domains.Domains(data.domain_names, counts)
  )


def _of_weights():
  return class_weights.with_sample_weight(toy_problems.classifier())


def _of_numbers():
  network = keras_models.sequential(shape=(5,), units=1)
  return keras_models.bridge(network, loss='mse', metrics=[])


@pytest.mark.parametrize(
  'model, data',
  [
    (toy_problems.classifier, _data()),
    (_of_domains, _data(_DOMAIN)),
    (_of_weights, _data(weight=np.ones(24))),
  ],
)
def test_a_dataset_fits_a_model_that_takes_what_it_has(model, data):
  client_population.check_data_fit(model(), data)


@pytest.mark.parametrize(
  'model, data, words',
  [
    (_of_domains, _data(), 'with domain int32.*found .no domain in'),
    (toy_problems.classifier, _data(_DOMAIN), 'no domain.*found .domain int32'),
    (_of_domains, _data(_DOMAIN, ['d0', 'd1', 'd2']), 'found .d0, d1, d2'),
    # As many, but heads would be exchanged.
    (_of_domains, _data(_DOMAIN, ['d1', 'd0']), '_0, domain_1, found .d1, d0'),
    (_of_weights, _data(), 'with weight float32.*with_sample_w.*no weight'),
    (_of_numbers, _data(), 'predict are floats.*found .y int32'),
  ],
)
def test_a_dataset_that_does_not_fit_is_refused(model, data, words):
  with pytest.raises(ValueError, match=f'`data` to be .*{words}'):
    client_population.check_data_fit(model(), data)


def test_a_state_of_another_model_is_refused():
  def state(**weights):
    return personalized_process.ServerState(0, 0, weights, (), (), (), 1.0)

  template = state(kernel=np.zeros([3, 2]), bias=np.zeros(2))
  same = client_population.decode_state(value_codec.encode(template), template)
  toy_problems.assert_same(same.global_weights, template.global_weights)
  stored = value_codec.encode(state(bias=np.zeros(2)))
  words = 'stored state.*rank 2 at global_weights/kernel, found'
  with pytest.raises(errors.RunError, match=words):
    client_population.decode_state(stored, template)
