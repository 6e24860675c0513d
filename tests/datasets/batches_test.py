"""Tests of examples as datasets."""

import numpy as np

from tff_pfl import datasets
from tff_pfl.datasets import batches


class _Loader:
  """Clients whose datasets take 5,040 bytes; remembers who was loaded."""

  def __init__(self):
    self.loaded = []

  def __call__(self, client_id):
    self.loaded.append(client_id)
    return datasets.Examples(
      np.full([5, 1], int(client_id), np.float32), np.zeros([5], np.int32)
    )


def test_a_client_that_is_asked_for_again_gets_the_same_dataset():
  load = _Loader()
  clients = batches.ClientBatches(load)
  first = clients['3']
  assert clients['3'] is first
  assert load.loaded == ['3']
  (batch,) = first
  np.testing.assert_array_equal(batch['x'], np.full([5, 1], 3))


def test_the_least_recently_used_are_dropped():
  load = _Loader()
  clients = batches.ClientBatches(load, max_bytes=11_000)
  for client_id in ('1', '2', '1', '3', '1', '2'):
    clients[client_id]
  assert load.loaded == ['1', '2', '3', '2']


def test_a_client_larger_than_the_bound_is_not_kept():
  load = _Loader()
  clients = batches.ClientBatches(load, max_bytes=5_000)
  assert clients['1'] is not clients['1']
  assert load.loaded == ['1', '1']


def test_batch_has_a_domain_where_examples_have_one():
  x, y = np.zeros([5, 1], np.float32), np.zeros([5], np.int32)
  for domain in (None, np.arange(5, dtype=np.int32)):
    examples = datasets.Examples(x, y, domain)
    (batch,) = batches.as_batches(examples)
    assert list(batch) == ['x', 'y'] + ['domain'] * (domain is not None)
  np.testing.assert_array_equal(batch['domain'], domain)


def test_domains_count_towards_the_bound():
  x, y = np.zeros([5, 1], np.float32), np.zeros([5], np.int32)

  def load(client_id):
    del client_id
    return datasets.Examples(x, y, np.zeros([5], np.int32))

  # 5,060 bytes each.
  clients = batches.ClientBatches(load, max_bytes=5_050)
  assert clients['1'] is not clients['1']
  clients = batches.ClientBatches(load, max_bytes=5_060)
  assert clients['1'] is clients['1']


def test_no_examples_have_the_fields_of_the_spec():
  data = datasets.FederatedDataset.from_arrays(
    np.zeros([6, 2]), np.zeros(6, int), num_clients=2, domain=np.arange(6) % 2
  )
  empty = batches.no_examples(data.element_spec)
  assert empty.x.shape == (0, 2) and empty.domain.shape == (0,)
  assert empty.domain.dtype == np.int32
  del data.element_spec['domain']
  assert batches.no_examples(data.element_spec).domain is None
