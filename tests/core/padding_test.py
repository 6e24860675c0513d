import numpy as np
import pytest

from tff_pfl import datasets
from tff_pfl.core import padding


class _Loader:
  """Clients that take 2,132 bytes each; remembers who was loaded."""

  def __init__(self):
    self.loaded = []

  def __call__(self, client_id):
    self.loaded.append(client_id)
    return datasets.Examples(
      np.full([5, 1], int(client_id), np.float32), np.zeros([5], np.int32)
    )


def test_a_client_that_is_asked_for_again_is_not_loaded_again():
  load = _Loader()
  clients = padding.ClientExamples(load)
  first = clients['3']
  assert clients['3'] is first
  assert load.loaded == ['3']
  np.testing.assert_array_equal(first.x[:5], np.full([5, 1], 3))


@pytest.mark.parametrize(
  ('max_bytes', 'asked', 'loaded'),
  [
    # The least recently used are dropped.
    (4_300, '121312', '1232'),
    # A client larger than the bound is not kept.
    (2_131, '11', '11'),
    (2_132, '11', '1'),
  ],
)
def test_as_many_are_kept_as_there_is_room_for(max_bytes, asked, loaded):
  load = _Loader()
  clients = padding.ClientExamples(load, max_bytes)
  for client_id in asked:
    assert clients[client_id].num_examples == 5
  assert load.loaded == list(loaded)


def test_inputs_have_a_domain_where_examples_have_one():
  x, y = np.zeros([5, 1], np.float32), np.zeros([5], np.int32)
  domain = np.arange(5, dtype=np.int32)
  examples = padding.padded(datasets.Examples(x, y, domain))
  assert list(examples.x) == ['inputs', 'domain']
  np.testing.assert_array_equal(examples.x['domain'][:5], domain)
  assert padding.padded(datasets.Examples(x, y)).x.shape == (16, 1)


def test_no_examples_have_the_form_of_the_spec():
  data = datasets.FederatedDataset.from_arrays(
    np.zeros([6, 2]), np.zeros(6, int), num_clients=2, domain=np.arange(6) % 2
  )
  empty = padding.no_examples(data.element_spec)
  assert empty.num_examples == 0
  assert empty.x['inputs'].shape == (16, 2)
  del data.element_spec['domain']
  assert padding.no_examples(data.element_spec).x.shape == (16, 2)
