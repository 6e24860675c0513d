"""Tests of how a model and a dataset fit, and of what a run records."""

import numpy as np
import pytest

from tests.algorithms import toy_problems
from tff_pfl import datasets
from tff_pfl.models import domain_models, domains
from tff_pfl.simulation import client_population


def _data(domain=None, domain_names=None, num_examples=24):
  examples = toy_problems.labeled_examples(num_examples, 0)
  return datasets.FederatedDataset.from_arrays(
    examples.x,
    examples.y,
    num_clients=3,
    num_classes=toy_problems.NUM_CLASSES,
    domain=domain,
    domain_names=domain_names,
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


def test_dataset_without_the_domains_that_a_model_takes_is_an_error():
  model = _model_of(_data(_DOMAIN))
  with pytest.raises(
    ValueError, match="`data` to be a dataset with domains, as model '.*without"
  ):
    client_population.check_data_fit(model, _data())


def test_dataset_with_domains_for_a_model_that_takes_none_is_an_error():
  with pytest.raises(
    ValueError, match='`data` to be a dataset without domains.*found .2 domains'
  ):
    client_population.check_data_fit(toy_problems.classifier(), _data(_DOMAIN))


@pytest.mark.parametrize('names', [['d0', 'd1', 'd2'], ['d1', 'd0']])
def test_dataset_with_other_domains_is_an_error(names):
  """Also if they are as many: heads would be exchanged."""
  model = _model_of(_data(_DOMAIN))
  with pytest.raises(
    ValueError,
    match=f'of model.*: domain_0, domain_1, found .{", ".join(names)}',
  ):
    client_population.check_data_fit(model, _data(_DOMAIN, names))
