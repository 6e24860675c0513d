"""Tests of how a model and a dataset fit, and of what a run records."""

import numpy as np
import pytest

from tests.algorithms import toy_problems
from tff_pfl import datasets
from tff_pfl.models import domain_models, domains
from tff_pfl.simulation import client_population


def _data(domain=None, domain_names=None, num_examples=24):
  examples = toy_problems.labelled_examples(num_examples, 0)
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


def test_fingerprint_that_covers_some_clients_is_still_known():
  """Runs of before recorded that of 20 clients, here without the second."""
  before = '796020d7f1fce301'

  def data(*changed):
    x = np.arange(100.0)
    x[list(changed)] += 0.5
    return datasets.FederatedDataset.from_arrays(
      x, np.zeros(100), keys=np.arange(100) // 2, num_classes=1
    )

  for same in (data(), data(2, 3)):
    assert client_population.recorded_fingerprint(same, before) == before
  found = client_population.recorded_fingerprint(data(0, 1), before)
  assert found == data(0, 1).fingerprint
  now = data().fingerprint
  for other in (data(2, 3), data(0, 1)):
    assert client_population.recorded_fingerprint(other, now) != now
