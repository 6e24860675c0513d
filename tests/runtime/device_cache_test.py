"""Tests of what stays on a device."""

import pytest
import tensorflow as tf

from tff_pfl.runtime import client_mapper, device_cache, values

_BYTES = 4 * 5000


def _tensors(number):
  return [tf.zeros([5000]) + i for i in range(number)]


def test_copies_are_bounded_and_the_last_used_stay():
  first, second, third = _tensors(3)
  cache = device_cache.DeviceCache(2 * _BYTES)
  copies = [cache.get(tensor) for tensor in (first, second)]
  assert cache.get(first) is copies[0]
  cache.get(third)
  assert len(cache) == 2
  assert cache.get(first) is copies[0]
  assert cache.get(second) is not copies[1]


def test_a_copy_ends_with_its_tensor():
  tensors = _tensors(3)
  cache = device_cache.DeviceCache(10 * _BYTES)
  for tensor in tensors:
    cache.get(tensor)
  assert len(cache) == 3
  del tensor
  tensors.clear()
  assert len(cache) == 0


def test_without_room_nothing_stays():
  (tensor,) = _tensors(1)
  cache = device_cache.DeviceCache(0)
  assert cache.get(tensor).numpy().tolist() == tensor.numpy().tolist()
  assert len(cache) == 0


def test_small_tensors_strings_and_int32_stay_where_they_are():
  cache = device_cache.DeviceCache(_BYTES)
  for tensor in (
    tf.zeros([10]),
    tf.constant(['a'] * 5000),
    tf.zeros([5000], tf.int32),
  ):
    assert cache.get(tensor) is tensor


def test_without_memory_a_client_runs_again_with_an_empty_cache(monkeypatch):
  monkeypatch.setattr(client_mapper.devices_lib, 'is_gpu', bool)
  mapper = client_mapper.ClientMapper(['/device:CPU:0'], 10 * _BYTES)
  sizes = []

  def work(tensor):
    sizes.append(len(mapper.cache()))
    if sizes[-1] > most:
      raise tf.errors.ResourceExhaustedError(None, None, 'out of memory')
    return float(tensor[0])

  argument = values.PerClient(_tensors(3))
  most = 2
  assert mapper.map(work, argument, 3).values == [0.0, 1.0, 2.0]
  assert sizes == [1, 2, 3, 1]
  most = 0
  with pytest.raises(tf.errors.ResourceExhaustedError):
    mapper.map(work, argument, 3)
  mapper.close()


def test_clients_get_the_copies_of_their_arguments(monkeypatch):
  monkeypatch.setattr(client_mapper.devices_lib, 'is_gpu', bool)
  own = _tensors(2)
  mapper = client_mapper.ClientMapper(['/device:CPU:0'], 10 * _BYTES)
  shared = tf.ones([5000])
  argument = values.Columns(
    (values.AllEqual(shared), values.PerClient([(t, ()) for t in own]))
  )
  actual = mapper.map(lambda row: row, argument, 2).values
  again = mapper.map(lambda row: row, argument, 2).values
  assert actual[0][0] is actual[1][0] is again[0][0]
  assert actual[0][0] is not shared
  for (_, (tensor, empty)), (_, (same, _)), given in zip(actual, again, own):
    assert tensor is same
    assert tensor is not given
    assert empty == ()
    tf.debugging.assert_equal(tensor, given)
  (cache,) = mapper._caches.values()
  assert len(cache) == 3
  mapper.close()
  assert len(cache) == 0
