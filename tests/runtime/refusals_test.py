"""Options that runtimes refuse, by name."""

import pytest

from tff_pfl import runtime


@pytest.mark.parametrize(
  ('name', 'options', 'words'),
  [
    ('jax', {}, "`runtime` to be one of in_process, native, ray, found 'jax'"),
    ('in_process', {'max_concurrent_clients': True}, 'an integer, found T'),
    (
      'native',
      {'max_concurrent_clients': 10**9},
      '`max_concurrent_clients` to be at most 10000, found 1000000000',
    ),
    ('in_process', {'device_cache_mb': -1}, '`device_cache_mb`'),
    ('in_process', {'devices': 'tpu'}, "one of cpu, gpu, auto, or a .*'tpu'"),
    ('in_process', {'devices': ['CPU:7']}, "among /device:CPU:0.*'CPU:7'"),
    ('in_process', {'devices': []}, '`devices` to be at least one device'),
    ('ray', {'cpus_per_actor': 0}, '`cpus_per_actor`'),
    ('ray', {'gpus_per_actor': -1}, '`gpus_per_actor`'),
    ('ray', {'clients_per_chunk': 0}, '`clients_per_chunk`'),
  ],
)
def test_options_are_refused_by_name(name, options, words):
  with pytest.raises(ValueError, match=words):
    runtime.create_runtime(name, **options)
