import sys

import pytest

from tff_pfl import errors, runtime
from tff_pfl.system import ray_cluster


def test_missing_ray_is_one_line(monkeypatch):
  monkeypatch.setitem(sys.modules, 'ray', None)
  with pytest.raises(errors.RunError, match='make venv RAY=1') as error:
    runtime.create_runtime('ray')
  assert '\n' not in str(error.value)


@pytest.mark.parametrize('address', ['127.0.0.1:1', 'ray://127.0.0.1:1'])
def test_cluster_that_does_not_answer_is_reported_at_once(address):
  pytest.importorskip('ray', reason='needs Ray (`make venv RAY=1`)')
  with pytest.raises(errors.RunError, match=f'answers at {address}'):
    ray_cluster.connect(address)


@pytest.mark.parametrize(
  ('name', 'value'),
  [('cpus_per_actor', 0), ('gpus_per_actor', -1), ('clients_per_chunk', 0)],
)
def test_number_out_of_range_is_refused(name, value):
  with pytest.raises(ValueError, match=name):
    runtime.create_runtime('ray', **{name: value})


def test_checksum_is_of_the_code(monkeypatch):
  assert ray_cluster.code_checksum() == ray_cluster.code_checksum()
  before = ray_cluster.code_checksum()
  monkeypatch.setattr(sys, 'version_info', (3, 99))
  assert ray_cluster.code_checksum() != before
